"""The tail on PostgreSQL, where transactions overlap, and of restored stores. The kit has what is
true of every store."""

import sqlite3
from contextlib import closing
from pathlib import Path

import psycopg
import pytest

from tenure.core.events import Event
from tenure.core.ids import Epoch
from tenure.own_transaction.postgres import store_on
from tenure.stores.postgres.store import PostgresStore
from tenure.stores.sqlite.store import SqliteStore
from tenure_conformance.spec import spec
from tests.stores.hands import PostgresHand
from tests.stores.lives import claim, complete, enqueue, enqueue_changes, heartbeat, start
from tests.support.postgres import PostgresCluster


def _tail(store: PostgresStore) -> list[Event]:
    return [each.event for each in store.events.tail(after=None, limit=100)]


@spec("E32")
def test_an_old_transaction_that_ends_a_job_comes_after_what_was_written_meanwhile(
    postgres_store: PostgresStore, postgres_url: str
) -> None:
    enqueue(postgres_store)
    [job] = start(postgres_store, claim(postgres_store, 1))
    shown = _tail(postgres_store)

    with psycopg.connect(postgres_url) as raw:
        raw.execute("SELECT pg_current_xact_id()")  # older than that of the heartbeat
        [renewed] = heartbeat(postgres_store, [job])
        complete(store_on(postgres_store, raw), [renewed])
        while_open = _tail(postgres_store)

    assert while_open == shown
    assert _tail(postgres_store) == postgres_store.events.load([job.id])[job.id]


@spec("E32")
def test_an_effect_comes_first_if_its_transaction_began_to_write_before_its_causes(
    postgres_store: PostgresStore, postgres_url: str
) -> None:
    enqueue(postgres_store)  # the queue exists
    with psycopg.connect(postgres_url) as raw:
        raw.execute("SELECT pg_current_xact_id()")
        [cause] = enqueue(postgres_store)
        [effect] = enqueue(store_on(postgres_store, raw))

    assert [event.job_id for event in _tail(postgres_store)[1:]] == [effect, cause]


@spec("E35")
def test_the_transaction_that_delays_events_is_named(
    postgres_store: PostgresStore, postgres_url: str
) -> None:
    before = postgres_store.events.delay()
    with psycopg.connect(postgres_url, application_name="a report") as raw:
        raw.execute("SELECT pg_current_xact_id()")
        while_nothing_waits = postgres_store.events.delay()
        enqueue(postgres_store)
        found = postgres_store.events.delay()

        assert found is not None
        assert (found.pid, found.name) == (raw.info.backend_pid, "a report")
        assert found.state == "idle in transaction"
        assert found.open_us is not None
        assert found.open_us >= 0
    assert (before, while_nothing_waits, postgres_store.events.delay()) == (None, None, None)


@spec("E35")
@pytest.mark.process
def test_the_oldest_of_several_transactions_is_named_and_a_prepared_one_by_its_name() -> None:
    with PostgresCluster.start(
        durable=False, settings={"max_prepared_transactions": "1"}
    ) as server:
        url = server.create_database()
        with (
            closing(PostgresStore(url, migrate=True)) as store,
            psycopg.connect(url) as old,
            psycopg.connect(url, application_name="second") as young,
        ):
            for connection in (old, young):
                connection.execute("SELECT pg_current_xact_id()")
            old.execute("PREPARE TRANSACTION 'monthly'")
            enqueue(store)
            prepared = store.events.delay()
            old.autocommit = True
            old.execute("ROLLBACK PREPARED 'monthly'")
            left = store.events.delay()

    assert prepared is not None
    assert (prepared.pid, prepared.name, prepared.state) == (None, "monthly", "prepared")
    assert left is not None
    assert left.name == "second"


@spec("E35")
def test_sqlite_delays_no_events(sqlite_store: SqliteStore) -> None:
    enqueue(sqlite_store)

    assert sqlite_store.events.delay() is None


@spec("E32")
def test_events_of_an_earlier_epoch_come_first_whatever_the_server_counts(
    postgres_hand: PostgresHand,
) -> None:
    store = postgres_hand.store
    [old] = enqueue(store)
    # As after a dump was restored on another server, which counts its transactions from the start.
    postgres_hand.run("ALTER TABLE {t}job_event DISABLE TRIGGER ALL")
    postgres_hand.run("UPDATE {t}job_event SET position = position + 1000000")
    before = store.events.tail(after=None, limit=10)

    store.raise_epoch()

    assert not before
    assert [each.event.job_id for each in store.events.tail(after=None, limit=10)] == [old]


@spec("E32")
@pytest.mark.parametrize("jobs_before", [0, 2])
def test_what_a_restored_file_gets_comes_after_what_was_read_before(
    sqlite_store: SqliteStore, sqlite_path: Path, tmp_path: Path, jobs_before: int
) -> None:
    backup = tmp_path / "backup.db"
    for _ in range(jobs_before):
        enqueue(sqlite_store)
    with closing(sqlite3.connect(sqlite_path)) as here, closing(sqlite3.connect(backup)) as there:
        here.backup(there)
    enqueue(sqlite_store, 5)
    *_, last = sqlite_store.events.tail(after=None, limit=100)

    with closing(SqliteStore(backup)) as restored:
        epoch = restored.raise_epoch()
        [new] = enqueue_changes(restored, 1)
        restored.jobs.save([new], epoch=epoch)
        shown = restored.events.tail(after=last.position, limit=100)
        again = restored.raise_epoch()
        [newest] = enqueue_changes(restored, 1)
        restored.jobs.save([newest], epoch=again)
        shown += restored.events.tail(after=shown[-1].position, limit=100)

    assert (epoch, again) == (Epoch(2), Epoch(3))
    assert [each.event.job_id for each in shown] == [new.job.id, newest.job.id]
