"""The PostgreSQL driver, if it is installed: a clear error instead of an ImportError if not."""

from tenure.errors import StoreError, install_hint

try:
    import psycopg as psycopg
    from psycopg import RawCursor as RawCursor
    from psycopg import errors as errors
    from psycopg import sql as sql
    from psycopg.adapt import Transformer as Transformer
    from psycopg.conninfo import conninfo_to_dict as conninfo_to_dict
    from psycopg.conninfo import make_conninfo as make_conninfo
    from psycopg.errors import Diagnostic as Diagnostic
    from psycopg.errors import error_from_result as error_from_result
    from psycopg.pq import ConnStatus as ConnStatus
    from psycopg.pq import ExecStatus as ExecStatus
    from psycopg.pq import Format as Format
    from psycopg.pq import TransactionStatus as TransactionStatus
    from psycopg.pq.abc import PGresult as PGresult
    from psycopg.rows import TupleRow as TupleRow
    from psycopg.types.string import TextLoader as TextLoader
except ImportError as missing:
    raise StoreError(
        "a postgresql: URL needs the extra postgres", hint=install_hint("postgres")
    ) from missing

Connection = psycopg.Connection[TupleRow]
