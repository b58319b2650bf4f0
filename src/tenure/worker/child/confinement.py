"""How a child confines itself before it imports an application: it dies with its supervisor, leaves
signals to it, limits its memory and is killed first when the machine runs out.

This contains accidents. It is no sandbox: code of the same user can undo most of it.
"""

import ctypes
import os
import resource
import signal
import sys
from contextlib import suppress
from pathlib import Path

# The C function. The one around it checks whether the handler is a member of an enum: 3 µs instead
# of 0.3, for two signals after each job.
_set_handler = getattr(signal.signal, "__wrapped__", signal.signal)

PR_SET_PDEATHSIG = 1
OOM_SCORE = 500  # of 1000; a supervisor has 0 by default
_OOM_FILE = Path("/proc/self/oom_score_adj")

MEMORY = resource.RLIMIT_DATA if sys.platform == "linux" else resource.RLIMIT_AS
"""On Linux only memory the process can write to: no libraries, no mapped files."""


def die_with_parent(parent: int) -> None:
    """Ask the kernel to kill this process when its supervisor dies, however it dies."""
    if sys.platform == "linux":
        libc = ctypes.CDLL(None, use_errno=True)
        libc.prctl(PR_SET_PDEATHSIG, signal.SIGKILL, 0, 0, 0)
    if os.getppid() != parent:  # it died before we could ask
        os._exit(0)


def ignore_termination() -> None:
    """SIGINT and SIGTERM are the supervisor's business; a manager that signals the whole group
    must not take handlers down before they are released. A handler that does nothing, not
    SIG_IGN: programs that a handler starts would inherit that."""
    for number in (signal.SIGINT, signal.SIGTERM):
        _set_handler(number, _do_nothing)


def _do_nothing(*_: object) -> None:
    """A signal handler."""


def confine(memory_bytes: int | None) -> None:
    """Limit the memory of this process and of each program it starts."""
    if memory_bytes is not None:
        allowed = resource.getrlimit(MEMORY)[1]
        least = memory_bytes if allowed == resource.RLIM_INFINITY else min(memory_bytes, allowed)
        resource.setrlimit(MEMORY, (least, least))
    # A crash is reported with its stack; an image of the memory would hold payloads and secrets.
    resource.setrlimit(resource.RLIMIT_CORE, (0, resource.getrlimit(resource.RLIMIT_CORE)[1]))
    _prefer_for_oom_kill()


def _prefer_for_oom_kill() -> None:
    """When memory runs out, the kernel should kill one job's process, not the supervisor."""
    if _OOM_FILE.exists() and int(_OOM_FILE.read_text()) < OOM_SCORE:
        _OOM_FILE.write_text(str(OOM_SCORE))  # raising it needs no privilege, lowering it does


def reset_process(home: str) -> None:
    """Undo what a handler may have changed in its process and would hit the next one: timers,
    working directory, signal handlers."""
    for timer in (signal.ITIMER_REAL, signal.ITIMER_VIRTUAL, signal.ITIMER_PROF):
        signal.setitimer(timer, 0)
    with suppress(OSError):  # the directory was removed
        os.chdir(home)
    ignore_termination()
