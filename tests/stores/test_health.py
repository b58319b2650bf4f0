"""Health: thresholds, and what each store says when something is wrong with it."""

import sqlite3
from contextlib import closing
from pathlib import Path

import psycopg
import pytest

from tenure.core.instants import Instant
from tenure.core.vocabulary import HealthState
from tenure.ports import HealthFact
from tenure.stores.postgres.health import postgres_facts
from tenure.stores.postgres.schema import PACKAGE
from tenure.stores.postgres.store import PostgresStore
from tenure.stores.sql.migrations import newest_version
from tenure.stores.sql.rows import Row
from tenure.stores.sqlite import health as sqlite_health
from tenure.stores.sqlite.health import sqlite_facts
from tenure.stores.sqlite.memory import MemoryStore
from tenure.stores.sqlite.store import SqliteStore
from tenure_conformance.spec import spec

OK, WARNING, BAD = HealthState.OK, HealthState.WARNING, HealthState.BAD


def states(facts: list[HealthFact]) -> dict[str, HealthState]:
    return {fact.name: fact.state for fact in facts}


def fact_of(path: Path, name: str) -> HealthFact:
    return next(each for each in sqlite_facts(path, "wal", 2, (0, 1)) if each.name == name)


@spec("B14")
def test_a_store_in_memory_says_that_it_is_not_durable() -> None:
    (store, *_) = MemoryStore().health()

    assert (store.state, "nothing survives" in store.advice) == (WARNING, True)


# --- SQLite --------------------------------------------------------------------------------------


@spec("B14")
def test_a_fresh_file_is_durable_and_current(sqlite_path: Path) -> None:
    store = SqliteStore(sqlite_path)

    facts = {fact.name: fact for fact in store.health()}

    assert (facts["journal_mode"].value, facts["synchronous"].value) == ("wal", "full")
    assert facts["schema_version"].state is facts["filesystem"].state is OK
    assert facts["file_bytes"].value == sqlite_path.stat().st_size
    store.close()


def test_a_file_without_its_settings_is_bad(sqlite_path: Path) -> None:
    found = states(sqlite_facts(sqlite_path, "delete", 1, (0, 1)))

    assert [found[name] for name in ("journal_mode", "synchronous", "schema_version")] == [BAD] * 3


def test_a_large_log_is_a_warning(sqlite_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sqlite_health, "LARGE_WAL_BYTES", 1000)
    store = SqliteStore(sqlite_path)
    with closing(sqlite3.connect(sqlite_path, isolation_level=None)) as reader:
        reader.execute("BEGIN")
        reader.execute("SELECT * FROM tenure_meta").fetchall()
        store.raise_epoch()

        assert states(store.health())["wal_bytes"] is WARNING
    store.close()


@pytest.mark.parametrize(
    ("version", "state"),
    [
        ((3, 51, 2), WARNING),
        ((3, 51, 3), OK),
        ((3, 40, 1), WARNING),
        ((3, 50, 6), WARNING),
        ((3, 50, 7), OK),
        ((3, 44, 6), OK),
        ((3, 45, 0), WARNING),
    ],
)
def test_an_old_library_is_named(
    sqlite_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    version: tuple[int, ...],
    state: HealthState,
) -> None:
    monkeypatch.setattr(sqlite3, "sqlite_version_info", version)

    found = fact_of(sqlite_path, "sqlite_version")

    assert (found.value, found.state) == (".".join(map(str, version)), state)


def test_a_disk_that_fills_up_is_noticed(
    sqlite_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    free = fact_of(sqlite_path, "free_bytes").value
    assert isinstance(free, int)

    monkeypatch.setattr(sqlite_health, "LITTLE_SPACE_BYTES", 2 * free)
    monkeypatch.setattr(sqlite_health, "NO_SPACE_BYTES", 0)
    assert fact_of(sqlite_path, "free_bytes").state is WARNING

    monkeypatch.setattr(sqlite_health, "NO_SPACE_BYTES", 2 * free)
    assert fact_of(sqlite_path, "free_bytes").state is BAD


# --- PostgreSQL ----------------------------------------------------------------------------------


@spec("B14")
def test_a_fresh_database_is_current_and_a_forgotten_transaction_is_seen(postgres_url: str) -> None:
    store = PostgresStore(postgres_url, migrate=True)
    with psycopg.connect(postgres_url) as forgotten:
        forgotten.execute("SELECT 1")

        facts = {fact.name: fact for fact in store.health()}

    assert facts["schema_version"].state is facts["in_recovery"].state is OK
    assert facts["clock_difference_s"].state is OK
    assert {"dead_rows_job", "dead_rows_job_event", "oldest_transaction_s"} < facts.keys()
    store.close()


HEALTHY: dict[str, list[Row]] = {
    "server": [("17.1", 170001, "on", "on", 0, 1_000_000_000)],
    "meta": [(newest_version(PACKAGE), 1, 7, 7, 1, 0, None)],
    "transactions": [(1, 10, None)],
    "connections": [(5, 100)],
    "slots": [(0, 0)],
    "tables": [("job", 1000, 10)],
}


@pytest.mark.parametrize(
    ("part", "row", "name", "state"),
    [
        ("server", ("13.9", 130009, "on", "on", 0, 10**9), "server_version", WARNING),
        ("server", ("17.1", 170001, "off", "on", 0, 10**9), "fsync", BAD),
        ("server", ("17.1", 170001, "on", "off", 0, 10**9), "synchronous_commit", BAD),
        ("server", ("17.1", 170001, "on", "on", 1, 10**9), "in_recovery", BAD),
        (
            "server",
            ("17.1", 170001, "on", "on", 0, 10**9 + 3_100_000),
            "clock_difference_s",
            WARNING,
        ),
        (
            "server",
            ("17.1", 170001, "on", "on", 0, 10**9 - 2_100_000),
            "clock_difference_s",
            WARNING,
        ),
        ("meta", (0, 1, 7, 7, 1, 0, None), "schema_version", BAD),
        (
            "meta",
            (newest_version(PACKAGE), 1, 7, 8, 1, 0, None),
            "system_identifier",
            BAD,
        ),
        (
            "meta",
            (newest_version(PACKAGE), 2, 7, 7, 2, 1, 5_000_000),
            "losses",
            WARNING,
        ),
        ("transactions", (301, 10, None), "oldest_transaction_s", WARNING),
        ("transactions", (1, 1_000_001, "process 7"), "xmin_age", WARNING),
        ("connections", (81, 100), "connections", WARNING),
        ("slots", (1, (1 << 30) + 1), "replication_slots", WARNING),
        ("tables", ("job", 1000, 100_001), "dead_rows_job", WARNING),
    ],
)
def test_what_is_wrong_with_a_server_is_named(
    part: str, row: Row, name: str, state: HealthState
) -> None:
    def found(answers: dict[str, list[Row]]) -> dict[str, HealthState]:
        now = Instant(10**9)
        later = Instant(10**9 + 1_000_000)
        return states(postgres_facts(list(answers.values()), sent_at=now, received_at=later))

    assert set(found(HEALTHY).values()) == {OK}
    assert {key: value for key, value in found(HEALTHY | {part: [row]}).items() if value != OK} == {
        name: state
    }
