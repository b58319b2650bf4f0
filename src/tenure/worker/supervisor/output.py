"""What handlers print, kept within bounds.

The beginning and the end are kept, the middle is counted: the end matters most after a crash, the
beginning says what was attempted.
"""

MAX_LINE_BYTES = 16 * 1024


class BoundedOutput:
    """Takes any number of bytes, keeps at most `limit` of them."""

    def __init__(self, limit: int) -> None:
        self._half = max(1, limit // 2)
        self._head = bytearray()
        self._tail = bytearray()
        self.left_out_bytes = 0
        self.written_bytes = 0  # since it was last taken

    def write(self, data: bytes) -> None:
        """Append; what no longer fits falls out of the middle."""
        self.written_bytes += len(data)
        room = self._half - len(self._head)
        self._head += data[:room]
        self._tail += data[room:] if room > 0 else data
        surplus = len(self._tail) - self._half
        if surplus > 0:
            self.left_out_bytes += surplus
            del self._tail[:surplus]

    def peek(self) -> tuple[bytes, int]:
        """The text with a note where something is missing, and how much."""
        missing = self.left_out_bytes
        note = b"\n[... %d bytes left out ...]\n" % missing if missing else b""
        return bytes(self._head) + note + bytes(self._tail), missing

    def take(self) -> tuple[bytes, int]:
        """As `peek`, and start over."""
        if not self.written_bytes:
            return b"", 0
        taken = self.peek()
        self._head.clear()
        self._tail.clear()
        self.left_out_bytes = self.written_bytes = 0
        return taken


class Lines:
    """Cuts a stream of bytes into lines, so that those of several handlers are not mixed up."""

    def __init__(self) -> None:
        self._rest = b""

    def feed(self, data: bytes) -> list[str]:
        """The lines that are complete with this piece; a very long one in several."""
        *lines, self._rest = (self._rest + data).split(b"\n")
        if len(self._rest) > MAX_LINE_BYTES:
            lines.append(self._rest)
            self._rest = b""
        return [_text(line) for line in lines]

    def end(self) -> list[str]:
        """The last line, if it does not end with a newline."""
        rest, self._rest = self._rest, b""
        return [_text(rest)] if rest else []


def _text(line: bytes) -> str:
    return line.decode("utf-8", "backslashreplace").removesuffix("\r")
