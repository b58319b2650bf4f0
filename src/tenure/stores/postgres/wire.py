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
from collections.abc import Callable, Iterable, Sequence
from functools import lru_cache
from typing import Any

from tenure.deadlines import Deadline
from tenure.stores.postgres.driver import (
    Connection,
    ConnStatus,
    ExecStatus,
    Format,
    PGconn,
    PGresult,
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
"""Per connection: each holds its plan in the server's memory. With more they are all
deallocated, and those in use are prepared again."""

MOST_COUNTED = 1000
"""Texts whose uses are counted. The text of a batch depends on which of its columns are equal, so
some texts are used only once."""

_UNPREPARED = ("BEGIN", "COMMIT", "ROLLBACK")

_Bound = tuple[list[bytes | None], list[int], list[Format]]
"""Values, types and formats of a statement's parameters."""

_Encoder = Callable[[Any], bytes | None]

_SENT_AS: dict[type, tuple[int, Format, _Encoder]] = {
    type(None): (_INFERRED, Format.TEXT, lambda _: None),
    str: (_INFERRED, Format.TEXT, str.encode),
    bool: (_BOOLEAN, Format.TEXT, lambda value: b"t" if value else b"f"),
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
        self._uses: dict[tuple[str, tuple[int, ...]], int] = {}
        self._names: dict[tuple[str, tuple[int, ...]], bytes] = {}

    @property
    def is_full(self) -> bool:
        """Whether there are enough of them to deallocate all."""
        return len(self._names) >= MOST_PREPARED

    def clear(self) -> None:
        """The server has deallocated them."""
        self._uses.clear()
        self._names.clear()

    def name_of(self, text: str, types: list[int]) -> tuple[bytes | None, bool]:
        """The name under which to execute a statement (None: without a name), and whether it must
        be prepared first."""
        key = (text, tuple(types))
        name = self._names.get(key)
        if name is not None:
            return name, False
        uses = self._uses.get(key, 0) + 1
        if len(self._uses) >= MOST_COUNTED:
            self._uses.clear()
        self._uses[key] = uses
        if uses <= PREPARED_AFTER or text.startswith(_UNPREPARED):
            return None, False
        digest = hashlib.blake2b(repr(key).encode(), digest_size=12).hexdigest()
        return f"tenure_{digest}".encode(), True

    def keep(self, text: str, types: list[int], name: bytes) -> None:
        """The server has prepared it."""
        self._names[text, tuple(types)] = name


class NoAnswer(psycopg.OperationalError):
    """The server did not answer within the deadline. The connection is closed."""


class RoundTrip:
    """Sends statements, then reads their answers. The server executes what has been pushed while
    the next statements are being made.

    If it is interrupted half-way, the connection is left in the middle of its pipeline. The pool
    sees that it is not idle and closes it.
    """

    def __init__(
        self, connection: Connection, prepared: PreparedStatements | None, *, until: Deadline
    ) -> None:
        self._connection = connection
        self._prepared = prepared
        self._until = until
        self._sent = 0
        self.was_done_afterwards = False
        self._preparing: dict[int, tuple[str, list[int], bytes]] = {}  # by place among the results
        self._new_names: set[bytes] = set()  # a statement may be sent many times in one exchange
        connection.pgconn.enter_pipeline_mode()

    def send(self, statements: Iterable[Query]) -> None:
        """Put them into the buffer."""
        pgconn, prepared = self._connection.pgconn, self._prepared
        for query in statements:
            values, types, formats = _bound(query)
            name, is_new = prepared.name_of(query.text, types) if prepared else (None, False)
            if name is None:
                pgconn.send_query_params(query.text.encode(), values, types, formats)
            else:
                if is_new and name not in self._new_names:
                    self._new_names.add(name)
                    self._preparing[self._sent] = (query.text, types, name)
                    pgconn.send_prepare(name, query.text.encode(), types)
                    self._sent += 1
                pgconn.send_query_prepared(name, values, formats)
            self._sent += 1

    def push(self) -> None:
        """Send as much of the buffer as the server reads now."""
        self._connection.pgconn.flush()

    def finish(self, afterwards: Sequence[Query] = ()) -> list[list[Row]]:
        """The rows of each statement. Raises the first error; the server does not execute the
        statements after it.

        The server executes `afterwards` in a transaction of its own, without another round trip,
        whatever became of the statements before. An error of it is not raised.
        """
        pgconn = self._connection.pgconn
        pgconn.pipeline_sync()
        if afterwards:
            for query in afterwards:
                values, types, formats = _bound(query)
                pgconn.send_query_params(query.text.encode(), values, types, formats)
            pgconn.pipeline_sync()
        try:
            results = _receive(pgconn, self._until)
        except NoAnswer:
            self._connection.close()
            raise
        if afterwards:
            self._finish_afterwards()
        else:
            pgconn.exit_pipeline_mode()
        for position, result in enumerate(results):
            if result.status == ExecStatus.FATAL_ERROR:
                raise error_from_result(result, encoding="utf-8")
            if self._prepared is not None and position in self._preparing:
                self._prepared.keep(*self._preparing[position])
        assert len(results) == self._sent, f"{len(results)} answers to {self._sent}"
        wanted = [each for at, each in enumerate(results) if at not in self._preparing]
        return _rows(self._connection, wanted)

    def _finish_afterwards(self) -> None:
        try:
            done = _receive(self._connection.pgconn, self._until)
        except psycopg.Error:
            self._connection.close()
            return
        self._connection.pgconn.exit_pipeline_mode()
        self.was_done_afterwards = all(each.status == ExecStatus.TUPLES_OK for each in done)


def _bound(query: Query) -> _Bound:
    types, formats, encoders = _layout(tuple(map(type, query.parameters)))
    values = [
        None if value is None else encode(value)  # half of a single row is NULL
        for encode, value in zip(encoders, query.parameters, strict=True)
    ]
    return values, types, formats


@lru_cache(maxsize=4096)
def _layout(kinds: tuple[type, ...]) -> tuple[list[int], list[Format], list[_Encoder]]:
    """How parameters of these types are sent. Cached: a statement has the same types each time."""
    found = []
    for kind in kinds:
        base = next((each for each in kind.__mro__ if each in _SENT_AS), None)
        assert base is not None, f"a parameter of type {kind.__name__} cannot be sent"
        found.append(_SENT_AS[base])
    return (
        [type_ for type_, _, _ in found],
        [form for _, form, _ in found],
        [encode for _, _, encode in found],
    )


def _receive(pgconn: PGconn, until: Deadline) -> list[PGresult]:
    """Read everything up to the sync. Returns the statements' results in their order."""
    poll = select.poll()
    poll.register(pgconn.socket, select.POLLIN | select.POLLOUT)
    while pgconn.flush():  # the server may have to send before it reads on
        for _, ready in _ready(poll, until):
            if ready & ~select.POLLOUT:
                pgconn.consume_input()
    poll.modify(pgconn.socket, select.POLLIN)
    results: list[PGresult] = []
    while True:
        while pgconn.is_busy():
            _ready(poll, until)
            pgconn.consume_input()
        result = pgconn.get_result()
        if result is None:  # the end of one statement's answer, or of the connection
            if pgconn.status == ConnStatus.BAD:
                raise psycopg.OperationalError("the connection to the server was lost")
        elif result.status == ExecStatus.PIPELINE_SYNC:
            return results
        else:
            results.append(result)


def _ready(poll: select.poll, until: Deadline) -> list[tuple[int, int]]:
    """Wait until the socket is ready, at most until the deadline: the server's own time-outs end
    its statements, but a server that hangs or whose host is gone never answers."""
    found = poll.poll(until.remaining_s * 1000)
    if not found:
        raise NoAnswer("the server has not answered in time")
    return found


def _rows(connection: Connection, results: Sequence[PGresult]) -> list[list[Row]]:
    transformer = Transformer.from_context(connection)
    answers: list[list[Row]] = []
    for result in results:
        rows: list[Row] = []
        if result.ntuples:
            transformer.set_pgresult(result)
            rows += transformer.load_rows(0, result.ntuples, tuple)
        answers.append(rows)
    return answers
