"""A clock for PostgreSQL that a test turns.

The clock of a PostgreSQL store is a function of its schema. Replacing the function replaces time
for every connection at once; a sequence keeps it, because a sequence is outside of transactions:
what was set is seen by all, also in the middle of theirs.
"""

from tenure.core.instants import Duration, Instant
from tenure.stores.postgres.driver import Connection
from tenure.stores.postgres.schema import DEFAULT_SCHEMA, complete_dsn, connect, schema_words
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
    """Time in one schema of one database, as long as this object is open."""

    def __init__(self, connection: Connection, words: dict[str, str]) -> None:
        self._connection = connection
        self._words = words

    def __call__(self) -> Instant:
        return self._run(_READ)

    def set(self, now: Instant) -> Instant:
        """Turn the clock, forwards or backwards."""
        return self._run(_SET, now)

    def advance(self, duration: Duration) -> Instant:
        """Turn the clock by this much; a negative duration steps it back."""
        return self._run(_ADVANCE, duration)

    def close(self) -> None:
        """Let go of the connection; time stands still from now on."""
        self._connection.close()

    def _run(self, statement: str, *parameters: int) -> Instant:
        text = fill(statement, self._words)
        [(now,)] = self._connection.execute(text, parameters).fetchall()
        return Instant(now)


def install_test_clock(
    dsn: str, *, schema: str = DEFAULT_SCHEMA, now: Instant = BEGINNING
) -> PostgresTestClock:
    """Replace the clock of a migrated database by one that stands still until it is turned."""
    words = schema_words(schema) | {"now": str(now)}
    connection = connect(complete_dsn(dsn))
    connection.execute(fill(_INSTALL, words).encode())
    return PostgresTestClock(connection, words)
