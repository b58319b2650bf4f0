"""A PostgreSQL store without a connection of its own: good only for being lent a caller's.

For handlers whose worker keeps the password of its URL to itself: they bring their own connection,
and the statements are all that is needed.
"""

from tenure.stores.postgres.schema import DEFAULT_SCHEMA, schema_words
from tenure.stores.postgres.store import WORDS, PostgresStore
from tenure.stores.sql.statements import Statements
from tenure.stores.sql.store import SqlStore


class UnopenedPostgresStore(PostgresStore):
    """Statements and a schema; every call but a loan fails."""

    def __init__(self, *, schema: str = DEFAULT_SCHEMA) -> None:
        self._statements = Statements("postgres", WORDS | schema_words(schema), placeholder="$")
        SqlStore.__init__(self, self._statements)
        self._schema = schema
