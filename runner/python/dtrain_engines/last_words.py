"""The last line of a rank that fails: dtrain shows it, and tells from it whether memory ran out."""

import errno
import os
import sys
import traceback
from types import TracebackType

from .job import JobError

LONGEST_END = 300

# The exit code of a rank that was asked to stop before its last step: that of a shell for SIGTERM.
STOPPED = 143

# The exit code of a rank that would fail again, such as on a full disk: dtrain does not start it again.
REFUSED = 126


def install() -> None:
    """Makes every exception that ends this process its last line."""
    sys.excepthook = _end


def of(error: BaseException) -> str:
    """One line that names an error. A long message is shortened in the middle."""
    words = " ".join(str(error).split())
    if len(words) > 2 * LONGEST_END:
        words = f"{words[:LONGEST_END]} … {words[-LONGEST_END:]}"
    if isinstance(error, JobError):
        return words
    # PyTorch on a GPU, and on a CPU.
    if type(error).__name__ == "OutOfMemoryError" or "can't allocate memory" in words:
        return f"out of memory: {words}"
    return f"{type(error).__name__}: {words}"


def _end(kind: type[BaseException], error: BaseException, trace: TracebackType | None) -> None:
    is_permanent = isinstance(error, (JobError, ImportError)) or getattr(error, "errno", None) == errno.ENOSPC
    # Not `sys.stderr`: torch.distributed wraps the hook, and collects in a buffer what it prints there.
    if not isinstance(error, JobError):
        traceback.print_exception(kind, error, trace, file=sys.__stderr__)
    sys.stdout.flush()
    print(of(error), file=sys.__stderr__, flush=True)
    # Neither destructors nor threads of the communication may wait for other ranks, or print after this line.
    os._exit(REFUSED if is_permanent else 1)
