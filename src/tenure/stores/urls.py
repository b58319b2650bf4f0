"""Which store a URL names: packages register their schemes under the entry point group
`tenure.stores`.

An entry point's name is the scheme, its value a module with `open_store(url, options)`, and with
`schema_of(url, name)` if `tenure migrate` is to work. The module is imported only when a URL asks
for it, so that a SQLite user never loads psycopg. Another package cannot take over Tenure's own
schemes.
"""

from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from importlib.metadata import (
    EntryPoint,
    PackageNotFoundError,
    distribution,
    entry_points,
)
from pathlib import Path
from typing import Protocol

import msgspec

from tenure.deadlines import CALL_TIMEOUT_S
from tenure.errors import StoreError, TenureError, UnknownStoreUrl
from tenure.ports import Store

GROUP = "tenure.stores"
OWN_DISTRIBUTION = "tenure"


class StoreOptions(msgspec.Struct, frozen=True, kw_only=True):
    """How a store is to be opened. A store may ignore what does not apply to it.

    `migrate`: bring its schema up to date first. Without `create` a store that does not exist is an
    error. `accept_restored`: also open a database that was restored from a backup. [A12] A call
    waits for `timeout_s` at most. [K16]
    """

    migrate: bool = False
    create: bool = True
    accept_restored: bool = False
    timeout_s: float = CALL_TIMEOUT_S


class StoreSchema(msgspec.Struct, frozen=True, kw_only=True):
    """The schema of one database, for `tenure migrate` and `tenure backup`: the version this code
    needs, the version that is there, what brings it up to date, and the SQL of all versions."""

    needed: int
    version: Callable[[], int]
    migrate: Callable[[], int]
    script: Callable[[], str]
    backup: Callable[[Path], None]
    """Copies the database to a new file, or raises an error that states what to run instead."""


class StoreModule(Protocol):
    """What an entry point names."""

    def open_store(self, url: str, options: StoreOptions) -> Store:
        """The store at this URL."""


def open_url(url: str, options: StoreOptions) -> Store:
    """The store that a URL names."""
    registered = _registered(_scheme(url))
    module = _loaded(registered)
    with _reported(registered):
        store = module.open_store(url, options)
    if not callable(getattr(getattr(store, "jobs", None), "save", None)):
        what = type(store).__name__
        raise _unusable(registered, f"its open_store returned {what}, which is not a store")
    return store


def schema_at(url: str, name: str) -> StoreSchema:
    """The schema of the store that a URL names; `name` is the schema's, on PostgreSQL."""
    registered = _registered(_scheme(url))
    schema_of = getattr(_loaded(registered), "schema_of", None)
    if schema_of is None:
        raise UnknownStoreUrl(f"a store with a {registered.name}: URL has no schema")
    with _reported(registered):
        schema: StoreSchema = schema_of(url, name)
    return schema


def _registered(scheme: str) -> EntryPoint:
    found = _named(scheme, _own_entry_points()) or _named(scheme, entry_points(group=GROUP))
    if found is None:
        # Never the whole URL: it may hold a password.
        raise UnknownStoreUrl(f"no store understands a URL that starts with {scheme[:20]!a}")
    return found


def _loaded(registered: EntryPoint) -> StoreModule:
    with _reported(registered):
        module: StoreModule = registered.load()
    if not callable(getattr(module, "open_store", None)):
        raise _unusable(registered, f"{registered.value} has no function open_store")
    return module


@contextmanager
def _reported(registered: EntryPoint) -> Iterator[None]:
    """What a package's code raises becomes an error that names the package; its text may have the
    URL's password."""
    try:
        yield
    except TenureError:
        raise
    except Exception as failure:
        from tenure.telemetry.logs import without_secrets  # here: only a failure needs it

        problem = f"{type(failure).__name__}: {without_secrets(str(failure))}"
        raise _unusable(registered, problem) from failure


def _scheme(url: str) -> str:
    return url.partition(":")[0].lower()


def _own_entry_points() -> Iterable[EntryPoint]:
    """Tenure's own. Read from its own metadata only: that is quick, and no other package can
    replace them."""
    try:
        own = distribution(OWN_DISTRIBUTION).entry_points.select(group=GROUP)
    except PackageNotFoundError:
        own = None
    if not own:
        raise StoreError(
            "Tenure's installed metadata does not name its stores",
            hint="install Tenure again, in a source checkout by `pip install -e .`",
        )
    return own


def _named(scheme: str, among: Iterable[EntryPoint]) -> EntryPoint | None:
    return next((each for each in among if each.name == scheme and each.group == GROUP), None)


def _unusable(found: EntryPoint, problem: str) -> StoreError:
    package = found.dist.name if found.dist is not None else found.value
    return StoreError(
        f"the store for {found.name}: URLs cannot be used: {problem}",
        hint=f"it is registered by the package {package}: repair or remove that",
    )
