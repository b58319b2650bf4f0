"""Fixtures and settings of the whole test suite."""

import gc
import os
import signal
from collections.abc import Iterator
from urllib.parse import urlsplit

import pytest
from hypothesis import settings

from tenure.stores.postgres.store import PostgresStore
from tests.support.postgres import DSN_VARIABLE, PostgresCluster, PostgresServer

pytest_plugins = [
    "pytester",
    "tests.support.evidence",
    "tests.support.hang_limit",
    "tests.support.needs",
    "tests.model.figures",
]

# No deadlines: a slow machine is not a bug. In CI a property must fail on the change that broke
# it, not on a lucky draw; at a desk every run may look at new examples.
settings.register_profile("desk", deadline=None)
settings.register_profile("ci", deadline=None, derandomize=True, database=None, print_blob=True)
settings.load_profile("ci" if os.environ.get("CI") else "desk")
settings.register_profile("quick", max_examples=25)  # and otherwise as the one that is loaded


def pytest_configure() -> None:
    """Restore SIGINT where it is ignored, as in a background job of a shell: programs that the
    tests start would inherit that, and Ctrl-C would not reach them."""
    if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
        signal.signal(signal.SIGINT, signal.default_int_handler)


@pytest.hookimpl(wrapper=True)
def pytest_collection() -> Iterator[None]:
    """Keep from the garbage collector what stays until the end: to look at all tests again and
    again took a tenth of the time of the tests."""
    gc.disable()
    try:
        return (yield)
    finally:
        gc.enable()
        gc.freeze()


@pytest.fixture(scope="session")
def postgres() -> Iterator[PostgresServer]:
    """One server per test process, without fsync: for semantics. Do not kill it, it is shared."""
    dsn = os.environ.get(DSN_VARIABLE)
    with PostgresServer.attach(dsn) if dsn else PostgresCluster.start(durable=False) as server:
        yield server


@pytest.fixture(scope="session")
def migrated_postgres(postgres: PostgresServer) -> str:
    """The name of a database with Tenure's schema: to copy it costs half of what migrating does."""
    dsn = postgres.create_database()
    PostgresStore(dsn, migrate=True).close()
    return urlsplit(dsn).path.removeprefix("/")


@pytest.fixture
def postgres_url(postgres: PostgresServer, migrated_postgres: str) -> Iterator[str]:
    """The URL of a fresh database with an empty store, dropped after the test."""
    dsn = postgres.create_database(template=migrated_postgres)
    yield dsn
    postgres.drop_database(dsn)


@pytest.fixture
def empty_postgres_url(postgres: PostgresServer) -> Iterator[str]:
    """The URL of a fresh database without anything, dropped after the test."""
    dsn = postgres.create_database()
    yield dsn
    postgres.drop_database(dsn)


@pytest.fixture
def durable_postgres() -> Iterator[PostgresCluster]:
    """A server of the test's own with fsync on: it may be killed, restarted and measured."""
    with PostgresCluster.start() as cluster:
        yield cluster
