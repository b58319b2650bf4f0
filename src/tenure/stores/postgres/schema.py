"""A PostgreSQL database: how it is reached, which schema it has, and its errors as ours.

Refuses every schema version but this code's own, without changing it, and never prints a connection
string: it may contain a password.
"""

import re
from collections.abc import Mapping

from tenure.deadlines import Deadline
from tenure.errors import (
    SchemaTooNew,
    SchemaTooOld,
    StoreError,
    StoreRefused,
    StoreUnavailable,
    TenureError,
    UnknownStoreUrl,
)
from tenure.stores.postgres.driver import (
    Connection,
    RawCursor,
    TextLoader,
    conninfo_to_dict,
    errors,
    make_conninfo,
    psycopg,
    sql,
)
from tenure.stores.sql.migrations import (
    Migration,
    checked_version,
    migrations,
    newest_version,
    schema_digest,
)
from tenure.stores.sql.statements import fill

PACKAGE = "tenure.stores.postgres"
"""Where the statements and migrations of this dialect are."""

DEFAULT_SCHEMA = "tenure"
CONNECT_TIMEOUT_S = 10
SHORTEST_CONNECT_TIMEOUT_S = 2  # libpq rounds less up to it

_SCHEMA_NAME = re.compile(r"[a-z_][a-z0-9_]{0,62}")
_DEFAULTS: Mapping[str, str] = {
    "application_name": "tenure",
    "connect_timeout": str(CONNECT_TIMEOUT_S),
    # Never a demoted primary or a replica.
    "target_session_attrs": "read-write",
    "keepalives_idle": "10",
    "keepalives_interval": "5",
    "keepalives_count": "3",
    "tcp_user_timeout": "30000",  # for data that was sent and not confirmed: keepalives ignore it
}


def schema_placeholders(schema: str) -> dict[str, str]:
    """The values of `{t}` and `{schema}`; the name is checked, because it becomes SQL."""
    if not _SCHEMA_NAME.fullmatch(schema) or schema.startswith("pg_"):
        raise StoreError(
            f"{schema!r:.80} cannot be the name of a schema",
            hint="use lower-case letters, digits and underscores, at most 63",
        )
    return {"schema": f'"{schema}"', "t": f'"{schema}".'}


# --- Connecting --------------------------------------------------------------------------------


def complete_dsn(dsn: str) -> str:
    """The connection string with our defaults for what it leaves open."""
    try:
        given = conninfo_to_dict(dsn)
        return make_conninfo(dsn, **{k: v for k, v in _DEFAULTS.items() if k not in given})
    except psycopg.Error:
        # Not `from` the cause, nor its text: libpq quotes the part it did not understand.
        raise UnknownStoreUrl("the PostgreSQL URL cannot be understood") from None


def hosts_of(dsn: str) -> list[str]:
    """A connection string for each of its hosts, in their order."""
    given = conninfo_to_dict(dsn)
    lists = {
        name: str(given[name]).split(",")
        for name in ("host", "hostaddr", "port")
        if given.get(name) is not None
    }
    count = max((len(values) for name, values in lists.items() if name != "port"), default=1)
    if count == 1:
        return [dsn]
    return [
        # One port for all hosts is allowed; any other mismatch is libpq's to refuse.
        make_conninfo(
            dsn, **{name: values[min(at, len(values) - 1)] for name, values in lists.items()}
        )
        for at in range(count)
    ]


def shown_host(dsn: str) -> str:
    """Where a connection string leads, and nothing secret."""
    given = conninfo_to_dict(dsn)
    place = given.get("host") or given.get("hostaddr") or "the default host"
    return f"{place}:{given['port']}" if given.get("port") else str(place)


def connect(dsn: str, *, until: Deadline | None = None) -> Connection:
    """A connection in autocommit mode that returns ids as text, in UTF-8."""
    try:
        connection = psycopg.connect(
            dsn if until is None else _connecting_until(dsn, until),
            autocommit=True,
            # `wire` prepares statements, under names made of their text. The driver would use
            # numbers: behind a pooler, another client may have prepared something else under one.
            prepare_threshold=None,
            cursor_factory=RawCursor,
            client_encoding="utf8",
        )
    except psycopg.Error as problem:
        raise StoreUnavailable(
            f"PostgreSQL cannot be reached: {_said(problem)}",
            hint="check the URL and that the server runs",
        ) from problem
    connection.adapters.register_loader("uuid", TextLoader)
    return connection


def _connecting_until(dsn: str, until: Deadline) -> str:
    """The connection string with the remaining time as its time-out, which libpq does not allow to
    be shorter than two seconds."""
    given = conninfo_to_dict(dsn)
    most_s = int(given.get("connect_timeout") or CONNECT_TIMEOUT_S)
    timeout_s = max(SHORTEST_CONNECT_TIMEOUT_S, min(most_s, int(until.remaining_s)))
    return make_conninfo(dsn, connect_timeout=str(timeout_s))


# --- Errors ------------------------------------------------------------------------------------


def translate(problem: psycopg.Error) -> TenureError:
    """One of PostgreSQL's errors as one of ours."""
    match problem:
        case psycopg.IntegrityError():
            return StoreRefused(
                f"the schema refused a write: {_said(problem)}",
                hint="run `tenure verify`; if it finds nothing, this is a bug of Tenure",
            )
        case errors.UndefinedTable() | errors.UndefinedFunction() | errors.InvalidSchemaName():
            return SchemaTooOld(found=0, needed=newest_version(PACKAGE))
        case psycopg.OperationalError() | psycopg.InternalError():
            return StoreUnavailable(
                f"PostgreSQL did not take the request: {_said(problem)}",
                hint="send the same request again",
            )
        case _:
            return StoreError(f"PostgreSQL refused a statement: {_said(problem)}")


def _said(problem: psycopg.Error) -> str:
    """The first line of the server's message: the details may quote a payload."""
    message = problem.diag.message_primary or str(problem)
    return message.strip().partition("\n")[0]


# --- The schema --------------------------------------------------------------------------------


def script(migration: Migration, *, schema: str) -> str:
    """A migration as plain SQL for this schema, without its transaction."""
    version = migration.version
    values = schema_placeholders(schema) | {
        "version": str(version),
        "digest": schema_digest(PACKAGE, version),
    }
    end = "\nUPDATE {t}meta SET schema_version = {version}, schema_digest = '{digest}';\n"
    return fill(migration.text + end, values)


def schema_version(dsn: str, *, schema: str = DEFAULT_SCHEMA) -> int:
    """The schema version of a database; 0 if it has none. Raises `SchemaDiffers` for a schema of
    other migrations than these. [Y7]"""
    with connect(complete_dsn(dsn)) as connection:
        return _version(connection, schema)


def _version(connection: Connection, schema: str) -> int:
    values = schema_placeholders(schema)
    try:
        cursor = connection.execute(
            # As JSON: a store from before the first release may not have the second column.
            sql.SQL("SELECT schema_version, to_jsonb(m) ->> 'schema_digest' FROM {} AS m").format(
                sql.Identifier(schema, "meta")
            )
        )
    except (errors.UndefinedTable, errors.InvalidSchemaName):
        return 0
    except psycopg.Error as problem:
        raise translate(problem) from problem
    row = cursor.fetchone()
    assert row is not None, f"{values['t']}meta has one row"
    return checked_version(PACKAGE, version=int(row[0]), digest=row[1])


def check_schema(dsn: str, *, schema: str) -> None:
    """Raise unless the database's schema is the one this code was written for. [Y3]"""
    found, needed = schema_version(dsn, schema=schema), newest_version(PACKAGE)
    if found < needed:
        raise SchemaTooOld(found=found, needed=needed)
    if found > needed:
        raise SchemaTooNew(found=found, needed=needed)


def migrate(dsn: str, *, schema: str = DEFAULT_SCHEMA) -> int:
    """Bring a database's schema up to date, one migrator at a time; the version it then has.

    A database of a newer Tenure is left unchanged.
    """
    schema_placeholders(schema)
    with connect(complete_dsn(dsn)) as connection:
        try:
            with connection.transaction():
                connection.execute(
                    "SELECT pg_advisory_xact_lock(hashtextextended('tenure migrate', 0))"
                )
                found = _version_in_transaction(connection, schema)
                for migration in migrations(PACKAGE):
                    if migration.version > found:
                        connection.execute(script(migration, schema=schema).encode())
        except psycopg.Error as problem:
            raise translate(problem) from problem
        return _version(connection, schema)


def _version_in_transaction(connection: Connection, schema: str) -> int:
    """Like `_version`, but without an error, which would abort the transaction."""
    cursor = connection.execute("SELECT to_regclass($1) IS NULL", [f'"{schema}".meta'])
    [(is_missing,)] = cursor.fetchall()
    return 0 if is_missing else _version(connection, schema)
