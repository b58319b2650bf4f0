"""Wiring: composes store and coordinator from a URL. The only module that knows them all.

Drivers are imported when a URL asks for them, so that a SQLite user never loads psycopg.
"""

import os
from collections.abc import Mapping
from urllib.parse import unquote, urlsplit

from tenure.core.instants import parse_duration
from tenure.core.policy import LeaseBounds
from tenure.core.validation import Limits
from tenure.errors import InvalidInput, UnknownStoreUrl
from tenure.ports import Store
from tenure.stores.memory import MemoryStore

DEFAULT_URL = "sqlite:///tenure.db"
URL_VARIABLE = "TENURE_URL"
LEASE_BOUNDS_VARIABLE = "TENURE_LEASE_BOUNDS"


def url_from_environment(environment: Mapping[str, str] = os.environ) -> str:
    """`TENURE_URL`, or the embedded default."""
    return environment.get(URL_VARIABLE) or DEFAULT_URL


def open_store(url: str, *, migrate: bool = False) -> Store:
    """The store a URL names; with `migrate`, its schema is brought up to date first."""
    scheme = url.partition(":")[0].lower()
    match scheme:
        case "memory":
            return MemoryStore()
        case "sqlite":
            from tenure.stores.sql.sqlite import SqliteStore

            return SqliteStore(sqlite_path(url), migrate=migrate)
        case "postgresql" | "postgres":
            from tenure.stores.sql.postgres import PostgresStore

            return PostgresStore(url, migrate=migrate)
        case _:
            # Never the whole URL: it may hold a password.
            raise UnknownStoreUrl(f"no store understands a URL that begins with {scheme[:20]!a}")


def sqlite_path(url: str) -> str:
    """The file of a `sqlite:///relative` or `sqlite:////absolute` URL."""
    parts = urlsplit(url)
    if parts.netloc or not parts.path.startswith("/") or len(parts.path) < 2:
        raise UnknownStoreUrl("a SQLite URL is sqlite:///file.db or sqlite:////absolute/file.db")
    if parts.query or parts.fragment:
        raise UnknownStoreUrl("a SQLite URL takes no options")
    return unquote(parts.path[1:])


def limits_from_environment(environment: Mapping[str, str] = os.environ) -> Limits:
    """The coordinator's limits; `TENURE_LEASE_BOUNDS` is `SHORTEST,LONGEST`, as in `5s,120s`."""
    text = environment.get(LEASE_BOUNDS_VARIABLE)
    if not text:
        return Limits()
    shortest, separator, longest = text.partition(",")
    try:
        bounds = LeaseBounds(
            shortest_us=parse_duration(shortest), longest_us=parse_duration(longest)
        )
    except ValueError as wrong:
        raise InvalidInput(
            LEASE_BOUNDS_VARIABLE, str(wrong), hint="write SHORTEST,LONGEST, as in 30s,120s"
        ) from wrong
    if not separator or not 0 < bounds.shortest_us <= bounds.longest_us:
        raise InvalidInput(LEASE_BOUNDS_VARIABLE, f"{text[:40]!a} is not SHORTEST,LONGEST")
    return Limits(lease=bounds)
