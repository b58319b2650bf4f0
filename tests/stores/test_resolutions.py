"""Resolutions: what the schema refuses, and by which index dead letters are found."""

import sqlite3
from contextlib import closing
from pathlib import Path

import psycopg
import pytest

from tenure.core.ids import DEFAULT_NAMESPACE
from tenure.core.job import Job
from tenure.core.views.job_search import JobFilter
from tenure.core.vocabulary import JobStatus
from tenure.stores.postgres.store import PostgresStore
from tenure.stores.sqlite.store import SqliteStore
from tenure_conformance.spec import spec
from tests.stores.hands import ForeignHand, Refused
from tests.stores.lives import claim, complete, enqueue, start
from tests.support.counted_work import queries_of

RESOLVE = (
    "INSERT INTO {{t}}dead_letter_resolution"
    " (job_id, kind, ts, actor, request_id, fingerprint, note, new_job_id)"
    " VALUES ('{job_id}', '{kind}', 1, 'operator:x', 'r', 'f', '', {new})"
)


DEAD = JobFilter(
    namespace=DEFAULT_NAMESPACE, statuses=(JobStatus.DEAD_LETTERED,), resolved=False, limit=50
)


def _finished(hand: ForeignHand) -> Job:
    enqueue(hand.store)
    [job] = complete(hand.store, start(hand.store, claim(hand.store, 1)))
    return job


@spec("B1")
def test_a_resolution_is_never_changed_nor_written_twice(hand: ForeignHand) -> None:
    job = _finished(hand)
    statement = RESOLVE.format(job_id=job.id, kind="discarded", new="NULL")
    hand.run(statement)

    with pytest.raises(Refused, match="never changed"):
        hand.run("UPDATE {t}dead_letter_resolution SET note = 'x'")
    with pytest.raises(Refused):
        hand.run(statement)


@pytest.mark.parametrize(("kind", "new"), [("redriven", "NULL"), ("discarded", "'{job_id}'")])
def test_a_resolution_that_contradicts_itself_is_refused(
    hand: ForeignHand, kind: str, new: str
) -> None:
    job = _finished(hand)
    given = new.format(job_id=job.id)

    with pytest.raises(Refused):
        hand.run(RESOLVE.format(job_id=job.id, kind=kind, new=given))


def test_sqlite_finds_dead_letters_by_their_index(sqlite_path: Path) -> None:
    store = SqliteStore(sqlite_path)
    *_, query = queries_of(store, lambda: store.views.jobs(DEAD))

    with closing(sqlite3.connect(sqlite_path)) as raw:
        rows = raw.execute(f"EXPLAIN QUERY PLAN {query.text}", query.parameters).fetchall()
    store.close()

    [arm] = [row[0] for row in rows if row[3] == "CO-ROUTINE arm"]
    read = [row[3] for row in rows if row[1] == arm]
    assert "USING INDEX tenure_job_dead_letter" in read[0]
    assert not any("TEMP B-TREE" in each for each in read), "only the page is sorted"


def test_postgres_finds_dead_letters_by_their_index(postgres_url: str) -> None:
    store = PostgresStore(postgres_url, migrate=True)
    enqueue(store, 2000)
    *_, query = queries_of(store, lambda: store.views.jobs(DEAD))

    with psycopg.connect(postgres_url, cursor_factory=psycopg.RawCursor) as raw:
        raw.execute("ANALYZE tenure.job")
        raw.execute("SET enable_seqscan = off")
        rows = raw.execute(f"EXPLAIN {query.text}".encode(), query.parameters).fetchall()
    store.close()

    plan = "\n".join(str(row[0]) for row in rows)
    assert "job_dead_letter" in plan
    assert "Seq Scan on job" not in plan
