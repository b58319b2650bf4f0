"""One round trip: statements sent together, answers read together.

The driver's own pipeline polls the socket after every statement, and each poll releases the
interpreter's lock: with a few busy threads a claim of ten statements cost a millisecond of CPU and
waited for the lock some thirty times. Here the statements go into the buffer of libpq, are sent at
once, and the thread waits once for what comes back. Measured: a third of the CPU per transaction.

Statements that a connection sees again and again are prepared there: that saves a tenth of the
server's work in a drain of 200 jobs a call. No server-side cursors, text results only.
"""

import hashlib
import select
import time
from collections.abc import Callable, Iterable, Sequence
from contextlib import suppress
from functools import lru_cache
from typing import Any

from tenure.deadlines import Deadline
from tenure.stores.postgres.driver import (
    Connection,
    ConnStatus,
    Diagnostic,
    ExecStatus,
    Format,
    PGresult,
    TransactionStatus,
    Transformer,
    error_from_result,
    psycopg,
)
from tenure.stores.sql.rows import Row
from tenure.stores.sql.statements import Query

_INFERRED, _BOOLEAN, _BYTES, _INTEGER = 0, 16, 17, 20
"""PostgreSQL's fixed ids of types. The server infers that of text, as it does for a literal."""


PREPARED_AFTER = 3
"""Uses of a statement on a connection before it is prepared."""

MOST_PREPARED = 200
"""Per connection: each keeps its plan in the server's memory. With more they are all deallocated,
and used ones are prepared again."""

MOST_COUNTED = 1000
"""Texts whose uses are counted. The text of a batch depends on which of its columns are equal, so
some texts are used only once."""

_UNPREPARED = ("BEGIN", "COMMIT", "ROLLBACK")

_INTERRUPTED = frozenset({"57014", "57P01"})  # query_canceled, admin_shutdown

_Types = tuple[int, ...]
_Encoder = Callable[[Any], bytes | None]

_SENT_AS: dict[type, tuple[int, Format, _Encoder]] = {
    type(None): (_INFERRED, Format.TEXT, lambda _: None),
    str: (_INFERRED, Format.TEXT, str.encode),
    bool: (_BOOLEAN, Format.TEXT, {True: b"t", False: b"f"}.__getitem__),
    int: (_INTEGER, Format.TEXT, b"%d".__mod__),
    bytes: (_BYTES, Format.BINARY, bytes),
}
"""How each type of parameter is sent. There are no others."""


class PreparedStatements:
    """The statements that one connection has prepared, by text and types of parameters.

    A name is a hash of the statement's text: behind a pooler, another client may have prepared a
    statement under the same name on the same connection, and then it is the same statement.
    """

    def __init__(self) -> None:
        self._uses: dict[tuple[str, _Types], int] = {}
        self.names: dict[tuple[str, _Types], bytes] = {}
        """The name under which to execute each."""

    @property
    def is_full(self) -> bool:
        """Whether there are enough of them to deallocate all."""
        return len(self.names) >= MOST_PREPARED

    def clear(self) -> None:
        """The server has deallocated them."""
        self._uses.clear()
        self.names.clear()

    def new_name(self, text: str, types: _Types) -> bytes | None:
        """The name under which to prepare a statement that has none; None: it is not prepared."""
        key = (text, types)
        uses = self._uses.get(key, 0) + 1
        if len(self._uses) >= MOST_COUNTED:
            self._uses.clear()
        self._uses[key] = uses
        if uses <= PREPARED_AFTER or text.startswith(_UNPREPARED):
            return None
        digest = hashlib.blake2b(repr((text, list(types))).encode(), digest_size=12).hexdigest()
        self.names[key] = name = f"tenure_{digest}".encode()
        return name

    def forget(self, text: str, types: _Types) -> None:
        """The server has not prepared it: a statement before it failed."""
        self.names.pop((text, types), None)


class NoAnswer(psycopg.OperationalError):
    """The server did not answer within the deadline. The connection is closed."""


class Wire:
    """A connection, and what belongs to it as long as it lasts."""

    def __init__(self, connection: Connection) -> None:
        self.connection = connection
        self.pgconn = connection.pgconn
        self.prepared = PreparedStatements()
        self.was_interrupted = False
        """Whether a wait for a synchronous standby was cut short: then PostgreSQL commits with a
        warning, and the commit must not be reported as durable."""
        self._transformer = Transformer.from_context(connection)
        self._poll = select.poll()
        self._poll.register(self.pgconn.socket, select.POLLIN)
        connection.add_notice_handler(self._on_notice)

    def _on_notice(self, notice: Diagnostic) -> None:
        if notice.sqlstate in _INTERRUPTED:
            self.was_interrupted = True

    @property
    def is_closed(self) -> bool:
        """Whether the connection was lost, or closed here."""
        return bool(self.pgconn.status == ConnStatus.BAD)

    @property
    def is_idle(self) -> bool:
        """Whether a new transaction can start on it."""
        return bool(self.pgconn.transaction_status == TransactionStatus.IDLE)

    @property
    def is_quiet(self) -> bool:
        """Whether there is nothing to read: a server sends something on an idle connection only
        when it closes it."""
        return self.pgconn.status != ConnStatus.BAD and not self._poll.poll(0)

    def close(self) -> None:
        """Close the connection, whatever its state."""
        with suppress(psycopg.Error):
            self.connection.close()

    def receive(self, until: Deadline) -> list[PGresult]:
        """Read everything up to the sync. Returns the statements' results in their order."""
        pgconn = self.pgconn
        while pgconn.flush():  # the server may have to send before it reads on
            self._poll.modify(pgconn.socket, select.POLLIN | select.POLLOUT)
            for _, ready in self._ready(until):
                if ready & ~select.POLLOUT:
                    pgconn.consume_input()
            self._poll.modify(pgconn.socket, select.POLLIN)
        results: list[PGresult] = []
        while True:
            while pgconn.is_busy():
                self._ready(until)
                pgconn.consume_input()
            result = pgconn.get_result()
            if result is None:  # the end of one statement's answer, or of the connection
                if pgconn.status == ConnStatus.BAD:
                    raise psycopg.OperationalError("the connection to the server was lost")
            elif result.status == ExecStatus.PIPELINE_SYNC:
                return results
            else:
                results.append(result)

    def rows_of(self, results: Iterable[PGresult]) -> list[list[Row]]:
        """The rows of each result."""
        answers: list[list[Row]] = []
        for result in results:
            rows: list[Row] = []
            if result.ntuples:
                self._transformer.set_pgresult(result)
                rows += self._transformer.load_rows(0, result.ntuples, tuple)
            answers.append(rows)
        return answers

    def _ready(self, until: Deadline) -> list[tuple[int, int]]:
        """Wait until the socket is ready, at most until the deadline: the server's own time-outs
        end its statements, but a server that hangs or whose host is gone never answers."""
        found = self._poll.poll(max(0.0, until.until_s - time.monotonic()) * 1000)
        if not found:
            self.close()
            raise NoAnswer("the server has not answered in time")
        return found


class RoundTrip:
    """Sends statements, then reads their answers. The server executes what has been pushed while
    the next statements are being made.

    If it is interrupted half-way, the connection is left in the middle of its pipeline. The pool
    sees that it is not idle and closes it.
    """

    def __init__(self, wire: Wire, *, until: Deadline, prepares: bool = True) -> None:
        self._wire = wire
        self._prepares = prepares
        self._until = until
        self._sent = 0
        self.was_done_afterwards = False
        self._preparing: dict[int, tuple[str, _Types]] = {}  # by place among the results
        wire.pgconn.enter_pipeline_mode()

    def send(self, statements: Iterable[Query]) -> None:
        """Put them into the buffer."""
        pgconn, prepared = self._wire.pgconn, self._wire.prepared
        for query in statements:
            types, formats, encoders = _layout(tuple(map(type, query.parameters)))
            values = []
            for encode, value in zip(encoders, query.parameters, strict=True):
                # Half of a single row is NULL.
                values.append(None if value is None else encode(value))
            name, is_new = None, False
            if self._prepares:
                name = prepared.names.get((query.text, types))
                if name is None:
                    name = prepared.new_name(query.text, types)
                    is_new = name is not None
            if name is None:
                pgconn.send_query_params(query.text.encode(), values, types, formats)
            else:
                if is_new:
                    self._preparing[self._sent] = (query.text, types)
                    pgconn.send_prepare(name, query.text.encode(), types)
                    self._sent += 1
                pgconn.send_query_prepared(name, values, formats)
            self._sent += 1

    def push(self) -> None:
        """Send as much of the buffer as the server reads now."""
        self._wire.pgconn.flush()

    def finish(self, afterwards: Sequence[Query] = ()) -> list[list[Row]]:
        """The rows of each statement. Raises the first error; the server does not execute the
        statements after it.

        The server executes `afterwards` in a transaction of its own, without another round trip,
        whatever became of the statements before. An error of it is not raised.
        """
        wire, sent = self._wire, self._sent
        wire.pgconn.pipeline_sync()
        if afterwards:
            self.send(afterwards)
            wire.pgconn.pipeline_sync()
        results = wire.receive(self._until)
        if afterwards:
            self._finish_afterwards(sent)
        else:
            wire.pgconn.exit_pipeline_mode()
        failed = self._first_failure(results)
        if failed is not None:
            raise error_from_result(failed, encoding="utf-8")
        assert len(results) == sent, f"{len(results)} answers to {sent}"
        if self._preparing:
            results = [each for at, each in enumerate(results) if at not in self._preparing]
        return wire.rows_of(results)

    def _finish_afterwards(self, sent: int) -> None:
        try:
            done = self._wire.receive(self._until)
        except psycopg.Error:
            self._wire.close()
            return
        self._wire.pgconn.exit_pipeline_mode()
        self.was_done_afterwards = self._first_failure(done, sent) is None

    def _first_failure(self, results: Sequence[PGresult], first: int = 0) -> PGresult | None:
        """The first error, if there is one; the server has prepared nothing from there on."""
        for at, result in enumerate(results, first):
            if result.status == ExecStatus.FATAL_ERROR:
                for place, (text, types) in self._preparing.items():
                    if place >= at:
                        self._wire.prepared.forget(text, types)
                return result
        return None


@lru_cache(maxsize=4096)
def _layout(kinds: tuple[type, ...]) -> tuple[_Types, list[Format], list[_Encoder]]:
    """How parameters of these types are sent. Cached: a statement has the same types each time."""
    found = []
    for kind in kinds:
        base = next((each for each in kind.__mro__ if each in _SENT_AS), None)
        assert base is not None, f"a parameter of type {kind.__name__} cannot be sent"
        found.append(_SENT_AS[base])
    return (
        tuple(type_ for type_, _, _ in found),
        [form for _, form, _ in found],
        [encode for _, _, encode in found],
    )
