"""The PostgreSQL driver, if it is installed: a clear error instead of an ImportError if not."""

from tenure.errors import StoreError

try:
    import psycopg as psycopg
    from psycopg import RawCursor as RawCursor
    from psycopg import errors as errors
    from psycopg import sql as sql
    from psycopg.conninfo import conninfo_to_dict as conninfo_to_dict
    from psycopg.conninfo import make_conninfo as make_conninfo
    from psycopg.errors import Diagnostic as Diagnostic
    from psycopg.pq import TransactionStatus as TransactionStatus
    from psycopg.rows import TupleRow as TupleRow
    from psycopg.types.string import TextLoader as TextLoader
except ImportError as missing:
    raise StoreError(
        "the PostgreSQL driver is not installed", hint="run pip install 'tenure[postgres]'"
    ) from missing

Connection = psycopg.Connection[TupleRow]
