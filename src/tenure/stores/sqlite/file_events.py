"""The kernel's word that a file was written to, where it has inotify (Linux).

Watches a path and opens nothing: closing a descriptor of a SQLite file would drop this process's
locks on it (POSIX). Says only that something happened; what comes of it is asked elsewhere.
"""

import os
import select
from contextlib import suppress

_IN_MODIFY = 0x2
_READ_AT_ONCE = 64 * 1024


class FileEvents:
    """Waits for writes to one file. Raises `OSError` if the kernel cannot watch it."""

    def __init__(self, file: str) -> None:
        import ctypes  # here: who only opens a store, as commands do, needs none of it

        libc = ctypes.CDLL(None, use_errno=True)
        try:
            begin, watch = libc.inotify_init1, libc.inotify_add_watch
        except AttributeError as missing:
            raise OSError("this system has no inotify") from missing
        self._events = begin(os.O_CLOEXEC | os.O_NONBLOCK)
        if self._events < 0:
            raise OSError(ctypes.get_errno(), "inotify_init1 failed")
        if watch(self._events, os.fsencode(file), _IN_MODIFY) < 0:
            os.close(self._events)
            raise OSError(ctypes.get_errno(), "inotify_add_watch failed", file)
        self._woken, self._wakes = os.pipe()
        self._poll = select.poll()
        self._poll.register(self._events, select.POLLIN)
        self._poll.register(self._woken, select.POLLIN)

    def wait(self, timeout_s: float) -> None:
        """Return when the file has been written to since the last wait, after `wake`, or after so
        long."""
        if self._poll.poll(timeout_s * 1000):
            with suppress(BlockingIOError):
                os.read(self._events, _READ_AT_ONCE)

    def wake(self) -> None:
        """End the wait of another thread, and all later ones."""
        os.write(self._wakes, b".")

    def close(self) -> None:
        """Stop watching. No thread may wait then."""
        for descriptor in (self._events, self._woken, self._wakes):
            os.close(descriptor)
