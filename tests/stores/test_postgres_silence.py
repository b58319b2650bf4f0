"""A PostgreSQL that hangs: the store stops waiting for it, and says what that means."""

import os
import signal
from collections.abc import Iterator
from contextlib import contextmanager

import pytest

from tenure.errors import OutcomeUnknown, StoreUnavailable
from tenure.stores.sql import postgres
from tenure.stores.sql.postgres import PostgresStore
from tests.stores.lives import EPOCH, enqueue, enqueue_changes


@pytest.fixture
def store(postgres_url: str, monkeypatch: pytest.MonkeyPatch) -> Iterator[PostgresStore]:
    monkeypatch.setattr(postgres, "MARGIN_S", 0.1)
    store = PostgresStore(postgres_url, migrate=True, pool_size=1, statement_timeout_s=1.0)
    yield store
    store.close()


@contextmanager
def stopped_backend(store: PostgresStore) -> Iterator[None]:
    """The process that serves the store's one connection, standing still."""
    with store._pool.connection() as connection:
        [(pid,)] = connection.execute("SELECT pg_backend_pid()").fetchall()
    os.kill(pid, signal.SIGSTOP)
    try:
        yield
    finally:
        os.kill(pid, signal.SIGCONT)


def test_a_server_that_hangs_is_not_waited_for_without_end(store: PostgresStore) -> None:
    with stopped_backend(store), pytest.raises(StoreUnavailable, match="has not answered"):
        store.now()

    assert store.now() > 0  # on a connection of its own


def test_a_commit_that_is_not_answered_leaves_its_outcome_open(store: PostgresStore) -> None:
    enqueue(store)
    changes = enqueue_changes(store, 3)

    with stopped_backend(store), pytest.raises(OutcomeUnknown):
        store.save(changes, epoch=EPOCH)

    ids = [change.job.id for change in changes]
    found = store.load(ids).jobs.keys()
    assert found in (set(), set(ids))  # it had been sent: all of it, or none
