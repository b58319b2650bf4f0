"""An attempt's output, bounded: the beginning and the end are kept, the middle is counted.

The end matters most after a crash, the beginning says what was attempted.
"""


class BoundedOutput:
    """Takes any number of bytes, keeps at most `limit` of them."""

    def __init__(self, limit: int) -> None:
        self._half = max(1, limit // 2)
        self._head = bytearray()
        self._tail = bytearray()
        self.left_out_bytes = 0

    def write(self, data: bytes) -> None:
        """Append; what no longer fits falls out of the middle."""
        room = self._half - len(self._head)
        self._head += data[:room]
        self._tail += data[room:] if room > 0 else data
        surplus = len(self._tail) - self._half
        if surplus > 0:
            self.left_out_bytes += surplus
            del self._tail[:surplus]

    def take(self) -> tuple[bytes, int]:
        """The text with a note where something is missing, and how much; starts afresh."""
        missing = self.left_out_bytes
        note = b"\n[... %d bytes left out ...]\n" % missing if missing else b""
        text = bytes(self._head) + note + bytes(self._tail)
        self._head.clear()
        self._tail.clear()
        self.left_out_bytes = 0
        return text, missing
