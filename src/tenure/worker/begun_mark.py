"""Which attempt began last in a child, written where its supervisor can read it after its death.

A page of memory that both share: a message for each attempt would cost more than a short job does.
Says nothing about how an attempt ended. [WP21]
"""

import mmap
import os
import struct
import tempfile

_NUMBER = struct.Struct("=q")
_NONE = -1


class BegunMark:
    """The number of the run whose handler was called last. One process writes it, one reads it."""

    def __init__(self, descriptor: int) -> None:
        """The page of this file, which stays open."""
        self._page = mmap.mmap(descriptor, mmap.PAGESIZE)

    def write(self, run: int) -> None:
        """The handler of this run is about to be called."""
        _NUMBER.pack_into(self._page, 0, run)

    def clear(self) -> None:
        """No handler was called yet."""
        self.write(_NONE)

    def is_of(self, run: int) -> bool:
        """Whether this run is the last one whose handler was called."""
        return bool(_NUMBER.unpack_from(self._page, 0)[0] == run)

    def close(self) -> None:
        """Let go of the page."""
        self._page.close()


def shared_file() -> int:
    """A file of one page that has no name. Returns its descriptor, which the caller closes."""
    if hasattr(os, "memfd_create"):
        descriptor = os.memfd_create("tenure-begun")
    else:
        with tempfile.TemporaryFile() as file:
            descriptor = os.dup(file.fileno())
    os.ftruncate(descriptor, mmap.PAGESIZE)
    return descriptor
