"""What handlers print: kept within bounds, echoed line by line, and stored.

The beginning and the end are kept, the middle is counted: the end matters most after a crash, the
beginning says what was attempted. Output of a running attempt is sent early, but seldom.
"""

from collections.abc import Callable, Sequence

from tenure.clock import Boot
from tenure.core.artifacts import MAX_ATTEMPT_LOG_BYTES, AttemptOutput
from tenure.core.ids import Actor
from tenure.core.instants import seconds
from tenure.core.verdicts import Grant
from tenure.telemetry import tracing
from tenure.telemetry.log_lines import job_ids
from tenure.worker.session.timers import Timers
from tenure.worker.supervisor.options import OutputLine, WorkerOptions

MAX_LINE_BYTES = 16 * 1024
LEFT_OUT = "\n[... more left out ...]\n"
FIRST_OUTPUT_AFTER = seconds(1)  # so that short jobs send theirs once, at the end
OUTPUT_INTERVAL = seconds(2)
OUTPUT_BYTES_PER_S = 8 * 1024
"""What a chatty job may cost its store: all of its 64 KiB every eight seconds."""


class BoundedOutput:
    """Takes any number of bytes, keeps at most `limit` of them."""

    def __init__(self, limit: int) -> None:
        self._half = max(1, limit // 2)
        self._head = bytearray()
        self._tail = bytearray()
        self.left_out_bytes = 0
        self.written_bytes = 0  # since it was last taken
        self._line = b""  # the last one, while it is not complete

    def write(self, data: bytes) -> list[str]:
        """Append; what no longer fits falls out of the middle. Returns the lines that are complete
        with this piece; a very long one in several."""
        self.written_bytes += len(data)
        room = self._half - len(self._head)
        self._head += data[:room]
        self._tail += data[room:] if room > 0 else data
        surplus = len(self._tail) - self._half
        if surplus > 0:
            self.left_out_bytes += surplus
            del self._tail[:surplus]
        *lines, self._line = (self._line + data).split(b"\n")
        if len(self._line) > MAX_LINE_BYTES:
            lines.append(self._line)
            self._line = b""
        return [_text(line) for line in lines]

    def last_line(self) -> list[str]:
        """The last line, if it does not end with a newline."""
        line, self._line = self._line, b""
        return [_text(line)] if line else []

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


def _text(line: bytes) -> str:
    return line.decode("utf-8", "backslashreplace").removesuffix("\r")


class _Printing:
    """An attempt that prints."""

    def __init__(self, grant: Grant, output: BoundedOutput) -> None:
        self.grant = grant
        self.output = output
        self.sent_parts = 0
        self.sent_at = Boot(0)


class OutputRelay:
    """Passes on what attempts print, by run."""

    def __init__(
        self,
        options: WorkerOptions,
        clock: Callable[[], Boot],
        actor: Actor,
        store: Callable[[AttemptOutput, bool], None],
    ) -> None:
        """`store` gets what an attempt has printed so far, and whether that is all."""
        self._options = options
        self._clock = clock
        self._actor = actor
        self._store = store
        self._printing: dict[int, _Printing] = {}
        self.timers = Timers()  # by run: to send its output; when due, call `send_due`

    def begin(self, run: int, grant: Grant, output: BoundedOutput) -> None:
        """From here on this attempt prints there."""
        self._printing[run] = _Printing(grant, output)

    def write(self, run: int, grant: Grant, data: bytes) -> None:
        """An attempt that shares its child has printed this."""
        if run not in self._printing:
            self.begin(run, grant, BoundedOutput(self._options.output_bytes))
        self.printed(run, self._printing[run].output.write(data))

    def printed(self, run: int | None, lines: Sequence[str]) -> None:
        """An attempt has printed these lines, and perhaps a part of another; None: its child has,
        between two attempts."""
        printing = None if run is None else self._printing[run]
        if self._options.echo is not None:
            about = {} if printing is None else job_ids(printing.grant.job)
            for line in lines:
                self._options.echo(OutputLine(text=line, about=about))
        if run is not None and printing is not None:
            self._send_soon(run, printing)

    def _send_soon(self, run: int, printing: _Printing) -> None:
        """The more there is, the less often: all of it is sent each time."""
        if run in self.timers:
            return
        size_bytes = min(printing.output.written_bytes, self._options.output_bytes)
        pause = max(OUTPUT_INTERVAL, seconds(size_bytes / OUTPUT_BYTES_PER_S))
        due = Boot(max(self._clock() + FIRST_OUTPUT_AFTER, printing.sent_at + pause))
        self.timers.put(run, due)

    def send_due(self, now: Boot) -> None:
        """Send the output so far of running attempts."""
        for run in self.timers.due(now):
            printing = self._printing[run]
            printing.sent_at = now
            self._send(printing, *printing.output.peek(), is_last=False)

    def end(self, run: int) -> None:
        """The attempt has ended, and so has its output."""
        printing = self._printing.get(run)
        if printing is not None:
            last_line = printing.output.last_line()
            if last_line:
                self.printed(run, last_line)
            self._send(printing, *printing.output.take(), is_last=True)
            self.drop(run)

    def drop(self, run: int) -> None:
        """The attempt has not started after all."""
        self._printing.pop(run, None)
        self.timers.drop(run)

    def _send(self, printing: _Printing, output: bytes, left_out: int, *, is_last: bool) -> None:
        if not output:
            return
        text, left_out = storable(output, left_out)
        kept = AttemptOutput(
            job_id=printing.grant.job_id,
            lease_id=printing.grant.lease_id,
            actor=self._actor,
            text=text,
            left_out_bytes=left_out,
            part=printing.sent_parts,
        )
        printing.sent_parts += 1
        with tracing.use_trace(tracing.trace_of_jobs([printing.grant.job])):
            self._store(kept, is_last)


def storable(output: bytes, left_out: int = 0) -> tuple[str, int]:
    """The output as text within the store's limits, and how many bytes are missing."""
    text = output.decode("utf-8", "replace").replace("\x00", "\\x00")
    body = text.encode()
    if len(body) > MAX_ATTEMPT_LOG_BYTES:
        half = (MAX_ATTEMPT_LOG_BYTES - len(LEFT_OUT)) // 2
        left_out += len(body) - 2 * half
        text = LEFT_OUT.join(
            piece.decode("utf-8", "ignore") for piece in (body[:half], body[-half:])
        )
    return text, left_out
