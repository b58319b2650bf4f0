"""A PostgreSQL that hangs: the store stops waiting for it, and says what that means."""

import os
import signal
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing, contextmanager

import psycopg
import pytest
from psycopg import errors, sql

from tenure.coordinator.service import Coordinator
from tenure.core.commands import Enqueue
from tenure.core.ids import DEFAULT_NAMESPACE, Kind, QueueName, client_actor, new_job_id
from tenure.core.instants import Instant
from tenure.core.outcomes import Change
from tenure.core.verdicts import Reply
from tenure.core.views.job_search import JobFilter
from tenure.errors import OutcomeUnknown, StoreUnavailable
from tenure.stores.postgres import database as postgres
from tenure.stores.postgres.store import PostgresStore
from tenure_conformance.spec import spec
from tests.stores.lives import EPOCH, enqueue, enqueue_changes, taken
from tests.support.hanging import frozen
from tests.support.postgres import PostgresCluster
from tests.support.waiting import until

pytestmark = pytest.mark.process


@pytest.fixture
def store(postgres_url: str) -> Iterator[PostgresStore]:
    store = PostgresStore(postgres_url, migrate=True, pool_size=1, timeout_s=1.0)
    yield store
    store.close()


@contextmanager
def stopped_backend(store: PostgresStore) -> Iterator[None]:
    """The process that serves the store's one connection, standing still."""
    with taken(store) as wire:
        [(pid,)] = wire.connection.execute("SELECT pg_backend_pid()").fetchall()
    os.kill(pid, signal.SIGSTOP)
    try:
        yield
    finally:
        os.kill(pid, signal.SIGCONT)


def test_waiting_for_a_server_that_hangs_has_a_limit(store: PostgresStore) -> None:
    with stopped_backend(store), pytest.raises(StoreUnavailable, match="has not answered"):
        store.now()

    assert store.now() > 0  # on a connection of its own


def test_the_outcome_of_an_unanswered_commit_is_unknown(store: PostgresStore) -> None:
    enqueue(store)
    changes = enqueue_changes(store, 3)

    with stopped_backend(store), pytest.raises(OutcomeUnknown):
        store.jobs.save(changes, epoch=EPOCH)

    ids = [change.job.id for change in changes]
    found = store.jobs.load(ids).jobs.keys()
    assert found in (set(), set(ids))  # it had been sent: all of it, or none


@spec("K16")
def test_whatever_is_retried_the_call_ends_in_time(
    store: PostgresStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    def give_up(_: object) -> None:
        raise errors.DeadlockDetected("the test gave it up for another")

    monkeypatch.setattr(postgres, "MAX_TRIES", 1_000_000)
    began = time.monotonic()

    with pytest.raises(StoreUnavailable):
        store.database.write(give_up)

    assert 1.0 <= time.monotonic() - began < 5.0


@spec("K16")
def test_a_frozen_server_is_given_up_by_many_callers_at_the_same_time(
    cluster: PostgresCluster,
) -> None:
    with closing(PostgresStore(cluster.create_database(), migrate=True, timeout_s=1.0)) as store:
        store.now()
        with frozen(cluster.pid), ThreadPoolExecutor(12) as callers:
            began = time.monotonic()
            calls = [
                callers.submit(store.jobs.load, []) for _ in range(12)
            ]  # three for each connection
            problems = [call.exception() for call in calls]
            waited_s = time.monotonic() - began
        recovered = store.now()

    assert all(isinstance(problem, StoreUnavailable) for problem in problems)
    # A connection cannot be made in less than two seconds: libpq has no shorter time-out.
    assert waited_s < 6.0
    assert recovered > 0


@spec("K16")
def test_calls_that_wait_behind_those_to_a_frozen_server_are_answered_in_time(
    cluster: PostgresCluster,
) -> None:
    url = cluster.create_database()
    with (
        closing(PostgresStore(url, migrate=True, timeout_s=1.0)) as store,
        closing(Coordinator(store, timeout_s=1.0)) as coordinator,
    ):
        coordinator.submit(_new_job(0)).result()
        with frozen(cluster.pid):
            began = time.monotonic()
            calls = [coordinator.submit(_new_job(number)) for number in range(1, 40)]
            calls += [coordinator.submit(_new_job(1)) for _ in range(10)]  # about one job
            problems = [call.exception() for call in calls]
            waited_s = time.monotonic() - began
        recovered = coordinator.execute(_new_job(50))

    assert all(isinstance(problem, StoreUnavailable) for problem in problems)
    assert waited_s < 6.0
    assert isinstance(recovered, Reply)


def _new_job(number: int) -> Enqueue:
    return Enqueue(
        job_id=new_job_id(Instant(1), bytes([number]) * 16),
        namespace=DEFAULT_NAMESPACE,
        queue=QueueName("q"),
        kind=Kind("k"),
        actor=client_actor("tests"),
    )


@spec("K16")
def test_a_commit_that_waits_for_an_absent_standby_has_an_unknown_outcome(
    cluster: PostgresCluster,
) -> None:
    with closing(PostgresStore(cluster.create_database(), migrate=True, timeout_s=1.0)) as store:
        changes = iter(enqueue_changes(store, 1000))
        with awaiting_a_standby(cluster), pytest.raises(OutcomeUnknown):
            _save_until_one_waits(store, changes)
        found = len(store.views.jobs(JobFilter(namespace=DEFAULT_NAMESPACE, limit=500)).jobs)

    # The last of them was written as well: who asks again under its id hears so.
    assert found == 1000 - len(list(changes))


def _save_until_one_waits(store: PostgresStore, changes: Iterator[Change]) -> None:
    """The server's checkpointer may be later than others to hear of the setting."""
    for change in changes:
        began = time.monotonic()
        try:
            store.jobs.save([change], epoch=EPOCH)
        finally:
            assert time.monotonic() - began < 6.0


@pytest.fixture(scope="module")
def cluster() -> Iterator[PostgresCluster]:
    """A server of these tests' own: the shared one must not be frozen."""
    with PostgresCluster.start(durable=False) as cluster:
        yield cluster


@contextmanager
def awaiting_a_standby(cluster: PostgresCluster) -> Iterator[None]:
    """Every commit waits for a standby that nobody ever started."""
    with psycopg.connect(cluster.dsn("postgres"), autocommit=True) as administrator:

        def set_standby(name: str) -> None:
            administrator.execute(
                sql.SQL("ALTER SYSTEM SET synchronous_standby_names = {}").format(name)
            )
            administrator.execute("SELECT pg_reload_conf()")
            until(lambda: _shown(administrator) == name, "the setting is shown")

        set_standby("nobody")
        try:
            yield
        finally:
            set_standby("")


def _shown(connection: psycopg.Connection) -> str:
    [(name,)] = connection.execute("SHOW synchronous_standby_names").fetchall()
    return str(name)
