"""A clock for PostgreSQL that a test sets.

A PostgreSQL store reads its clock from a function of its schema, so replacing the function changes
the time for every connection. The test clock keeps the time in a sequence, because sequences ignore
transactions: every connection sees a new time at once, even within an open transaction.
"""

from tenure.core.instants import Duration, Instant
from tenure.stores.postgres.driver import Connection
from tenure.stores.postgres.schema import DEFAULT_SCHEMA, complete_dsn, connect, schema_placeholders
from tenure.stores.sql.statements import fill

BEGINNING = Instant(1_700_000_000_000_000)

_INSTALL = """
CREATE SEQUENCE {t}test_clock;
SELECT setval('{t}test_clock', {now});
CREATE OR REPLACE FUNCTION {t}clock() RETURNS bigint LANGUAGE sql VOLATILE
    AS $$ SELECT last_value FROM {t}test_clock $$;
"""
_READ = "SELECT {t}clock()"
_SET = "SELECT setval('{t}test_clock', $1)"
_ADVANCE = "SELECT setval('{t}test_clock', {t}clock() + $1)"


class PostgresTestClock:
    """Sets the time of one schema of one database."""

    def __init__(self, connection: Connection, values: dict[str, str]) -> None:
        self._connection = connection
        self._values = values

    def __call__(self) -> Instant:
        return self._run(_READ)

    def set(self, now: Instant) -> Instant:
        """Set the clock, forwards or backwards."""
        return self._run(_SET, now)

    def advance(self, duration: Duration) -> Instant:
        """Move the clock by this much; a negative duration moves it back."""
        return self._run(_ADVANCE, duration)

    def close(self) -> None:
        """Close the connection. The clock keeps its last time."""
        self._connection.close()

    def _run(self, statement: str, *parameters: int) -> Instant:
        text = fill(statement, self._values)
        [(now,)] = self._connection.execute(text, parameters).fetchall()
        return Instant(now)


def install_test_clock(
    dsn: str, *, schema: str = DEFAULT_SCHEMA, now: Instant = BEGINNING
) -> PostgresTestClock:
    """Replace the clock of a migrated database by one that moves only when a test sets it."""
    values = schema_placeholders(schema) | {"now": str(now)}
    connection = connect(complete_dsn(dsn))
    connection.execute(fill(_INSTALL, values).encode())
    return PostgresTestClock(connection, values)
