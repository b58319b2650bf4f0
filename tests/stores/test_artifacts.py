"""Artifacts: what the schema refuses, and by which index their usage is read."""

import sqlite3
from contextlib import closing
from pathlib import Path

import pytest

from tenure.core.job import Job
from tenure.stores.sqlite.store import SqliteStore
from tests.stores.hands import ForeignHand, Refused
from tests.stores.lives import claim, complete, enqueue, start


def _finished(hand: ForeignHand) -> Job:
    enqueue(hand.store)
    [job] = complete(hand.store, start(hand.store, claim(hand.store, 1)))
    return job


def test_an_artifact_whose_size_is_not_its_bodys_is_refused(hand: ForeignHand) -> None:
    job = _finished(hand)

    with pytest.raises(Refused):
        hand.run(
            "INSERT INTO {t}artifact (job_id, attempt, name, media_type, size, sha256, ts,"
            f" namespace, body) VALUES ('{job.id}', 1, 'a', 'text/plain', 3, '', 1, 'n', '')"
        )


def test_sqlite_reads_the_usage_of_artifacts_by_keys(sqlite_path: Path) -> None:
    store = SqliteStore(sqlite_path)
    query = store.database.query("artifact_usage", job_id="j", name="a")

    with closing(sqlite3.connect(sqlite_path)) as raw:
        rows = raw.execute(f"EXPLAIN QUERY PLAN {query.text}", query.parameters).fetchall()
    store.close()

    steps = [str(row[-1]) for row in rows]
    assert len([step for step in steps if step.startswith("SEARCH")]) == 4
    assert not [step for step in steps if step.startswith("SCAN")]
