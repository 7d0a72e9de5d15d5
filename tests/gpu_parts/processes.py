"""Commands with a limit of time. Nothing that they started outlives them."""

import ctypes
import os
import signal
import subprocess
import time
from dataclasses import dataclass
from pathlib import Path

PR_SET_CHILD_SUBREAPER = 36

# Seconds that a command gets to write what it found, after it was interrupted.
GRACE = 2.0

# Bytes of what a command prints that are kept of its beginning, and of its end.
KEPT = 200_000


@dataclass
class Ended:
    """How a command ended."""

    code: int
    seconds: float
    is_late: bool
    stdout: str
    stderr: str

    def words(self):
        """How it ended, and the last thing that it said."""
        if self.is_late:
            how = f"not done after {self.seconds:.0f} s"
        elif self.code < 0:
            how = f"killed by signal {-self.code}"
        else:
            how = f"exit code {self.code}"
        # Lines of JSON are no words.
        said = [[line.strip() for line in text.splitlines() if line.strip() and line[0] not in "{}"] for text in (self.stderr, self.stdout)]
        told = " / ".join((said[0] or said[1])[-3:])
        return f"{how}: {told[-600:]}" if told else how


def adopt():
    """Makes this process the parent of what its children leave behind, so that it can be found and ended."""
    try:
        ctypes.CDLL(None).prctl(PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0)
    except (OSError, AttributeError):
        # Not Linux: then the group of a command is all that can be ended.
        pass


def descendants():
    """Ids of all processes that this one, or one of its descendants, started."""
    parents = {}
    for entry in Path("/proc").glob("[0-9]*") if Path("/proc").is_dir() else []:
        try:
            # The name in parentheses may hold anything.
            fields = (entry / "stat").read_text(errors="replace").rpartition(")")[2].split()
        except OSError:
            continue
        if fields[0] != "Z":
            parents[int(entry.name)] = int(fields[1])
    found, last = set(), {os.getpid()}
    while last:
        last = {process for process, parent in parents.items() if parent in last and process not in found}
        found |= last
    return found


def sweep():
    """Ends every descendant. Returns how many there were."""
    ended = set()
    for _ in range(50):
        left = descendants()
        if not left:
            break
        for process in left:
            try:
                os.kill(process, signal.SIGKILL)
                ended.add(process)
            except ProcessLookupError:
                pass
        time.sleep(0.02)
    try:
        while os.waitpid(-1, os.WNOHANG)[0]:
            pass
    except ChildProcessError:
        pass
    return len(ended)


def run(command, limit, folder, log, environment=None):
    """Runs a command in `folder` for at most `limit` seconds, in a session of its own; adds what it prints to `log`."""
    begun = time.monotonic()
    printed = [folder / "stdout", folder / "stderr"]
    with open(log, "a", encoding="utf-8") as words:
        words.write(f"$ {' '.join(map(str, command))}\n")
    is_late = False
    with open(printed[0], "wb") as out, open(printed[1], "wb") as err:
        try:
            process = subprocess.Popen(
                [str(word) for word in command], stdin=subprocess.DEVNULL, stdout=out, stderr=err, cwd=folder,
                env={**os.environ, **(environment or {})}, start_new_session=True,
            )
        except OSError as error:
            return Ended(127, 0.0, False, "", str(error))
        try:
            process.wait(max(limit, 0.1))
        except subprocess.TimeoutExpired:
            is_late = True
            ask_to_end(process)
        except BaseException:
            sweep()
            raise
    seconds = time.monotonic() - begun
    sweep()
    out, err = [shortened(file) for file in printed]
    with open(log, "a", encoding="utf-8") as words:
        how = "ended by this script" if is_late else f"exit code {process.returncode}"
        words.write(f"{err}{out}[{how} after {seconds:.1f} s]\n\n")
    for file in printed:
        file.unlink()
    return Ended(process.returncode, seconds, is_late, out, err)


def ask_to_end(process):
    """Interrupts a command, which then may write what it found, and ends it if it does not."""
    for how, patience in ((signal.SIGINT, GRACE), (signal.SIGKILL, 5.0)):
        try:
            os.killpg(process.pid, how)
        except (ProcessLookupError, PermissionError):
            pass
        try:
            process.wait(patience)
            return
        except subprocess.TimeoutExpired:
            continue


def shortened(file):
    """A text file, without its middle where it is long."""
    size = file.stat().st_size
    with open(file, "rb") as opened:
        if size <= 2 * KEPT:
            return opened.read().decode(errors="replace")
        head = opened.read(KEPT).decode(errors="replace")
        opened.seek(size - KEPT)
        tail = opened.read().decode(errors="replace")
    return f"{head}\n[… {size - 2 * KEPT} bytes left out …]\n{tail}"
