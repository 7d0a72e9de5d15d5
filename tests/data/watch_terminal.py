"""Runs a program in a pseudo-terminal, types keys at moments, and prints what a terminal would show.

    watch_terminal.py COLUMNS LINES PROGRAM ARGS... < STEPS

Each line of STEPS is `wait TEXT` (until the screen has it), `type KEYS`, `size COLUMNS LINES`, `signal NAME`, `show`,
`hang`, which takes the terminal away, or `end`, which waits for the program. The exit code is the program's; a wait of more than a minute fails.
"""

import fcntl
import os
import pty
import re
import select
import signal
import struct
import sys
import termios
import time


class Screen:
    """As much of a terminal as a program needs that moves the cursor, writes, and clears."""

    def __init__(self, columns, lines):
        self.resize(columns, lines)
        self.alternate = False
        self.rest = ""

    def resize(self, columns, lines):
        self.columns, self.lines = columns, lines
        self.cells = [[" "] * columns for _ in range(lines)]
        self.x = self.y = 0

    def feed(self, text):
        text = self.rest + text
        self.rest = ""
        at = 0
        while at < len(text):
            c = text[at]
            if c == "\x1b":
                found = re.compile(r"\x1b(\[[?>]?[0-9;]*[A-Za-z]|[=>78]|\([A-Z])").match(text, at)
                if not found:
                    self.rest = text[at:]
                    return
                self.escape(found.group(1))
                at = found.end()
                continue
            at += 1
            if c == "\r":
                self.x = 0
            elif c == "\n":
                self.y = min(self.y + 1, self.lines - 1)
            elif c >= " " and self.y < self.lines and self.x < self.columns:
                self.cells[self.y][self.x] = c
                self.x += 1

    def escape(self, code):
        if code in ("[?1049h", "[?1049l"):
            self.alternate = code.endswith("h")
        elif code.endswith("H"):
            parts = code[1:-1].split(";") + ["1", "1"]
            self.y, self.x = int(parts[0] or 1) - 1, int(parts[1] or 1) - 1
        elif code.endswith("J") and code[1:-1] in ("2", "3"):
            self.cells = [[" "] * self.columns for _ in range(self.lines)]
        elif code.endswith("J"):
            for y in range(self.y, self.lines):
                self.cells[y] = [" "] * self.columns

    def text(self):
        return "\n".join("".join(line).rstrip() for line in self.cells)


def main():
    columns, lines = int(sys.argv[1]), int(sys.argv[2])
    child, terminal = pty.fork()
    if child == 0:
        os.execv(sys.argv[3], sys.argv[3:])
    size = lambda columns, lines: fcntl.ioctl(terminal, termios.TIOCSWINSZ, struct.pack("HHHH", lines, columns, 0, 0))
    size(columns, lines)
    # A program may be told of more than can be drawn.
    screen = Screen(min(columns, 1000), min(lines, 500))

    def read(seconds):
        if not select.select([terminal], [], [], seconds)[0]:
            return True
        try:
            data = os.read(terminal, 65536)
        except OSError:
            return False
        screen.feed(data.decode("utf-8", "replace"))
        return bool(data)

    for step in sys.stdin.read().splitlines():
        word, _, rest = step.partition(" ")
        if word == "wait":
            until = time.time() + 60
            while rest not in screen.text():
                if time.time() > until or not read(0.1):
                    sys.exit(f"there is no {rest!r} on\n{screen.text()}")
        elif word == "type":
            os.write(terminal, rest.encode().decode("unicode_escape").encode())
        elif word == "size":
            columns, lines = map(int, rest.split())
            screen.resize(columns, lines)
            size(columns, lines)
        elif word == "signal":
            os.kill(child, getattr(signal, f"SIG{rest}"))
        elif word == "show":
            read(0.3)
            print(screen.text(), flush=True)
        elif word == "hang":
            os.close(terminal)
            until = time.time() + 20
            while os.waitpid(child, os.WNOHANG) == (0, 0):
                if time.time() > until:
                    os.kill(child, signal.SIGKILL)
                    sys.exit("the program goes on without a terminal")
                time.sleep(0.05)
            sys.exit(0)
        elif word == "end":
            while read(0.1):
                pass
            _, status = os.waitpid(child, 0)
            print("the screen is", "kept" if screen.alternate else "given back")
            sys.exit(os.waitstatus_to_exitcode(status))


main()
