#!/usr/bin/env python3
"""Checks what `tests/run` does with flaky tests and with Ctrl-C, on test programs that are shell scripts.

    run_check.py FOLDER
"""

import importlib.machinery
import importlib.util
import os
import re
import signal
import subprocess
import sys
import time
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent.parent

# A test program: it lists its tests as libtest does, and runs the one after `--exact`.
PROGRAM = """#!/bin/sh
case "$*" in
  *--ignored*) exit 0 ;;
  *--list*) for name in {names}; do echo "$name: test"; done; exit 0 ;;
esac
name=$2
runs="{folder}/runs.$(echo "$name" | tr : _)"
echo run >>"$runs"
case $name in
  *passes*) exit 0 ;;
  *fails*) echo "wrong value"; exit 1 ;;
  *flaky*) [ "$(wc -l <"$runs")" -gt 1 ] || {{ echo "wrong once"; exit 1; }} ;;
  *hangs*) {python} -c '{daemon}'; exec sleep 1000 ;;
esac
"""

# Leaves the session, the process group, the parent and the environment behind, as a daemon does.
DAEMON = 'import os,sys; os.fork() and os._exit(0); os.setsid(); os.fork() and os._exit(0); os.execve("/bin/sleep", ["sleep", "1000"], {})'


def module():
    """`tests/run` as a module."""
    loader = importlib.machinery.SourceFileLoader("tests_run", str(ROOT / "tests/run"))
    made = importlib.util.module_from_spec(importlib.util.spec_from_loader("tests_run", loader))
    sys.modules["tests_run"] = made
    loader.exec_module(made)
    return made


def run(folder, names):
    """Runs `tests/run` in this process, with a test program that has these tests."""
    runner = module()
    program = folder / "program"
    program.write_text(PROGRAM.format(names=" ".join(names), folder=folder, python=sys.executable, daemon=DAEMON))
    program.chmod(0o755)
    (folder / "test-data").mkdir(exist_ok=True)
    runner.TARGET, runner.SKIPPED = folder, folder / "test-data" / "skipped"
    runner.prepare = lambda names: []
    runner.build = lambda names: [runner.Program("tests/suite", str(program), str(folder))]
    sys.argv = ["tests/run"]
    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
        signal.signal(number, runner.interrupted)
    runner.adopt_orphans()
    sys.exit(runner.main())


def below(process):
    """The processes below one, by id."""
    parents = {}
    for stat in Path("/proc").glob("[0-9]*/stat"):
        try:
            parents[int(stat.parent.name)] = int(stat.read_text(errors="replace").rpartition(")")[2].split()[1])
        except OSError:
            pass
    found, more = set(), {process}
    while more:
        more = {child for child, parent in parents.items() if parent in more} - found
        found |= more
    return found


def check_flaky(folder, names, code, expected):
    """Asserts the exit code and the last lines of a run of these tests."""
    folder.mkdir()
    done = subprocess.run([sys.executable, __file__, folder, *names], stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)
    last = [line for line in done.stdout.splitlines() if re.match(r"failed: |flaky: |\d+ passed", line)]
    assert (done.returncode, last) == (code, expected), f"{names}: {done.returncode}\n{done.stdout}"


def command(process):
    """Returns the command line of a process, and nothing of one that has ended."""
    try:
        return Path(f"/proc/{process}/cmdline").read_bytes()
    except OSError:
        return b""


def check_interrupt(folder, number):
    """Asserts that a signal to `tests/run` alone ends its tests and what they left behind."""
    folder.mkdir()
    process = subprocess.Popen([sys.executable, __file__, folder, "hangs"], stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)
    deadline = time.monotonic() + 60

    def sleeps():
        return {child for child in below(process.pid) if command(child) == b"sleep\0001000\0"}

    while len(found := sleeps()) < 2:
        assert time.monotonic() < deadline and process.poll() is None, "the test and its daemon do not run"
        time.sleep(0.05)
    os.kill(process.pid, number)
    printed = process.communicate(timeout=60)[0]
    left = [child for child in found if Path(f"/proc/{child}").exists()]
    for child in left:
        os.kill(child, signal.SIGKILL)
    assert not left and process.returncode == 130, f"{len(left)} processes run on, exit code {process.returncode}\n{printed}"


def main(folder):
    check_flaky(folder / "one", ["docs::flaky", "docs::passes"], 0, ["flaky: tests/suite docs::flaky", "2 passed, 0 failed, 0 skipped"])
    strict = ["flaky: tests/suite kill::flaky (counts as failed)", "1 passed, 1 failed, 0 skipped"]
    check_flaky(folder / "strict", ["docs::passes", "kill::flaky"], 1, strict)
    two = [f"flaky: tests/suite docs::{name} (counts as failed)" for name in ("flaky_a", "flaky_b")]
    check_flaky(folder / "two", ["docs::flaky_a", "docs::flaky_b"], 1, two + ["0 passed, 2 failed, 0 skipped"])
    failed = ["failed: tests/suite docs::fails", "1 passed, 1 failed, 0 skipped"]
    check_flaky(folder / "failed", ["docs::fails", "docs::passes"], 1, failed)
    for number in (signal.SIGINT, signal.SIGTERM):
        check_interrupt(folder / number.name, number)


if __name__ == "__main__":
    if len(sys.argv) > 2:
        run(Path(sys.argv[1]), sys.argv[2:])
    main(Path(sys.argv[1]))
