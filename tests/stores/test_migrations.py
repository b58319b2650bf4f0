"""Migrations: a schema is made once, checked always, and left alone when it is not ours."""

import sqlite3
import threading
from contextlib import closing
from pathlib import Path

import psycopg
import pytest
from click.testing import CliRunner, Result

from tenure.cli.main import main
from tenure.errors import SchemaDiffers, SchemaTooNew, SchemaTooOld, StoreError
from tenure.stores.postgres import schema as postgres_schema
from tenure.stores.postgres.store import PostgresStore
from tenure.stores.sql import migrations as sql_migrations
from tenure.stores.sql.migrations import Migration, migrations, newest_version
from tenure.stores.sqlite import file as sqlite_file
from tenure.stores.sqlite.store import SqliteStore
from tenure_conformance.spec import spec
from tests.stores.lives import enqueue
from tests.support.waiting import joined

# --- SQLite --------------------------------------------------------------------------------------


def _set_version(path: Path, version: int) -> None:
    with closing(sqlite3.connect(path, isolation_level=None)) as raw:
        raw.execute("UPDATE tenure_meta SET schema_version = ?", (version,))


@spec("Y3")
@pytest.mark.parametrize(("version", "error"), [(0, SchemaTooOld), (99, SchemaTooNew)])
def test_a_file_of_another_version_is_refused_and_not_written_to(
    sqlite_path: Path, version: int, error: type[StoreError]
) -> None:
    SqliteStore(sqlite_path).close()
    _set_version(sqlite_path, version)
    before = sqlite_path.read_bytes()

    with pytest.raises(error) as refusal:
        SqliteStore(sqlite_path)

    assert str(version) in str(refusal.value)
    assert sqlite_path.read_bytes() == before


@spec("Y7")
@pytest.mark.parametrize(
    "older",
    [
        "UPDATE tenure_meta SET schema_digest = 'of another state'",
        "UPDATE tenure_meta SET schema_digest = NULL, schema_version = 40",
        "ALTER TABLE tenure_meta DROP COLUMN schema_digest",
    ],
)
def test_a_file_of_other_migrations_is_refused_in_one_sentence_and_not_written_to(
    sqlite_path: Path, older: str
) -> None:
    SqliteStore(sqlite_path).close()
    with closing(sqlite3.connect(sqlite_path, isolation_level=None)) as raw:
        raw.execute(older)
    before = sqlite_path.read_bytes()

    migrated = _migrate("--url", f"sqlite:///{sqlite_path}")
    checked = _migrate("--check", "--url", f"sqlite:///{sqlite_path}")
    with pytest.raises(SchemaDiffers, match="another state of Tenure"):
        SqliteStore(sqlite_path)
    with pytest.raises(SchemaDiffers):
        SqliteStore(sqlite_path, migrate=True)

    for told in (migrated, checked):
        assert told.exit_code == 2
        assert "another state of Tenure" in told.stderr
        assert "make a new store" in told.stderr
        assert told.stderr.count("\n") == 1
    assert sqlite_path.read_bytes() == before


@spec("Y7")
def test_a_comment_in_a_migration_does_not_make_another_schema(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    ours = sql_migrations.schema_digest(sqlite_file.PACKAGE, 1)
    [first] = sql_migrations.migrations(sqlite_file.PACKAGE)
    with_comment = Migration(first.version, first.name, "-- A remark.\n" + first.text)
    with_column = Migration(first.version, first.name, first.text.replace("tick ", "tock ", 1))
    changed = {"with a comment": with_comment, "with another column": with_column}
    monkeypatch.setattr(sql_migrations, "migrations", lambda package: [changed[package]])
    digests = [sql_migrations.schema_digest(package, 1) for package in changed]

    assert digests[0] == ours
    assert digests[1] != ours


@spec("Y3")
def test_a_database_of_something_else_is_refused_and_not_written_to(sqlite_path: Path) -> None:
    with closing(sqlite3.connect(sqlite_path, isolation_level=None)) as raw:
        raw.execute("CREATE TABLE theirs (x)")
    before = sqlite_path.read_bytes()

    with pytest.raises(SchemaTooOld, match="tenure migrate"):
        SqliteStore(sqlite_path)

    assert sqlite_path.read_bytes() == before


@pytest.mark.parametrize("row", [None, "two"])
def test_a_file_that_does_not_say_its_version_is_refused_in_one_line(
    sqlite_path: Path, row: str | None
) -> None:
    with closing(sqlite3.connect(sqlite_path, isolation_level=None)) as raw:
        raw.execute("CREATE TABLE tenure_meta (schema_version)")
        if row is not None:
            raw.execute("INSERT INTO tenure_meta VALUES (?)", (row,))

    result = _migrate("--url", f"sqlite:///{sqlite_path}")

    assert result.exit_code == 2
    assert "tenure_meta" in result.stderr
    assert result.stderr.count("\n") == 1
    with pytest.raises(StoreError, match="tenure_meta"):
        SqliteStore(sqlite_path)


def test_a_database_of_something_else_can_be_shared_when_asked_for(sqlite_path: Path) -> None:
    with closing(sqlite3.connect(sqlite_path, isolation_level=None)) as raw:
        raw.execute("CREATE TABLE theirs (x)")

    store = SqliteStore(sqlite_path, migrate=True)

    assert enqueue(store, 3)
    store.close()


def test_an_empty_file_is_filled(sqlite_path: Path) -> None:
    sqlite_path.touch()

    SqliteStore(sqlite_path).close()

    assert sqlite_file.schema_version(sqlite_path) == newest_version(sqlite_file.PACKAGE)


def test_a_newer_file_is_not_migrated_back(sqlite_path: Path) -> None:
    SqliteStore(sqlite_path).close()
    _set_version(sqlite_path, 99)

    assert sqlite_file.migrate(sqlite_path) == 99


def test_many_may_open_a_new_file_at_once(sqlite_path: Path) -> None:
    opened: list[SqliteStore] = []

    def open_it() -> None:
        opened.append(SqliteStore(sqlite_path))

    threads = [threading.Thread(target=open_it) for _ in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        joined(thread, "the store is migrated")

    assert len(opened) == 8
    for store in opened:
        store.close()


# --- PostgreSQL ----------------------------------------------------------------------------------


@spec("Y3")
def test_a_database_without_our_schema_is_refused_and_not_written_to(
    empty_postgres_url: str,
) -> None:
    with pytest.raises(SchemaTooOld, match="tenure migrate"):
        PostgresStore(empty_postgres_url)

    with psycopg.connect(empty_postgres_url) as raw:
        found = raw.execute("SELECT 1 FROM pg_namespace WHERE nspname = 'tenure'").fetchall()
    assert not found


@spec("Y3")
@pytest.mark.parametrize(("version", "error"), [(0, SchemaTooOld), (99, SchemaTooNew)])
def test_a_database_of_another_version_is_refused(
    empty_postgres_url: str, version: int, error: type[StoreError]
) -> None:
    postgres_schema.migrate(empty_postgres_url)
    with psycopg.connect(empty_postgres_url) as raw:
        raw.execute("UPDATE tenure.meta SET schema_version = %s", [version])

    with pytest.raises(error) as refusal:
        PostgresStore(empty_postgres_url)

    assert str(version) in str(refusal.value)


@spec("Y7")
@pytest.mark.parametrize(
    "older",
    [
        "UPDATE tenure.meta SET schema_digest = 'of another state'",
        "UPDATE tenure.meta SET schema_digest = NULL, schema_version = 40",
        "ALTER TABLE tenure.meta DROP COLUMN schema_digest",
    ],
)
def test_a_database_of_other_migrations_is_refused_in_one_sentence(
    empty_postgres_url: str, older: str
) -> None:
    postgres_schema.migrate(empty_postgres_url)
    with psycopg.connect(empty_postgres_url) as raw:
        raw.execute(older.encode())

    migrated = _migrate("--url", empty_postgres_url)
    with pytest.raises(SchemaDiffers, match="another state of Tenure"):
        PostgresStore(empty_postgres_url)

    assert migrated.exit_code == 2
    assert "another state of Tenure" in migrated.stderr


def test_many_may_migrate_a_database_at_once(empty_postgres_url: str) -> None:
    versions: list[int] = []

    def migrate() -> None:
        versions.append(postgres_schema.migrate(empty_postgres_url))

    threads = [threading.Thread(target=migrate) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        joined(thread, "the store is migrated")

    assert versions == [newest_version(postgres_schema.PACKAGE)] * 4


def test_two_schemas_live_in_one_database(empty_postgres_url: str) -> None:
    one = PostgresStore(empty_postgres_url, schema="one", migrate=True)
    two = PostgresStore(empty_postgres_url, schema="two", migrate=True)

    [job_id] = enqueue(one)

    assert set(one.jobs.load([job_id]).jobs) == {job_id}
    assert not two.jobs.load([job_id]).jobs
    one.close()
    two.close()


@pytest.mark.parametrize("schema", ["", "Upper", 'a"b', "a.b", "pg_x", "x" * 64, "a b", "a;b"])
def test_a_schema_name_that_could_be_more_than_a_name_is_refused(schema: str) -> None:
    with pytest.raises(StoreError, match="schema"):
        PostgresStore("postgresql://nobody@127.0.0.1:1/x", schema=schema)


# --- Both ----------------------------------------------------------------------------------------


@pytest.mark.parametrize("package", [sqlite_file.PACKAGE, postgres_schema.PACKAGE])
def test_migrations_are_numbered_from_one_without_a_gap(package: str) -> None:
    versions = [migration.version for migration in migrations(package)]

    assert versions == list(range(1, len(versions) + 1))


def test_both_dialects_have_the_same_tables_and_columns(
    empty_postgres_url: str, sqlite_path: Path
) -> None:
    postgres_schema.migrate(empty_postgres_url)
    with psycopg.connect(empty_postgres_url) as raw:
        theirs = raw.execute(
            "SELECT table_name, column_name, is_nullable = 'NO' FROM information_schema.columns"
            " WHERE table_schema = 'tenure'"
        ).fetchall()
    SqliteStore(sqlite_path).close()
    with closing(sqlite3.connect(sqlite_path)) as file:
        ours = file.execute(
            "SELECT substr(m.name, 8), c.name, c.\"notnull\" OR (c.pk AND m.name = 'tenure_meta')"
            " FROM sqlite_master AS m, pragma_table_info(m.name) AS c"
            " WHERE m.type = 'table' AND m.name LIKE 'tenure%'"
        ).fetchall()

    only_postgres = {("job", "event_position", True)}  # SQLite has one writer, see docs/adr/0031
    assert {(*row[:2], bool(row[2])) for row in ours} == set(theirs) - only_postgres
    assert only_postgres <= set(theirs)


# --- The command ---------------------------------------------------------------------------------


def _migrate(*arguments: str) -> Result:
    return CliRunner().invoke(main, ["migrate", *arguments])


def test_the_command_checks_migrates_and_checks_again(sqlite_path: Path) -> None:
    url = f"sqlite:///{sqlite_path}"

    results = [_migrate("--url", url, *flag) for flag in (["--check"], [], [], ["--check"])]

    assert [result.exit_code for result in results] == [1, 0, 0, 0]
    newest = newest_version(sqlite_file.PACKAGE)
    assert results[0].stderr == f"schema version 0, needed {newest}; run `tenure migrate`\n"
    assert results[1].stderr == f"schema version {newest}, was 0\n"
    assert sqlite_path.exists()


def test_checking_makes_no_file(sqlite_path: Path) -> None:
    assert _migrate("--url", f"sqlite:///{sqlite_path}", "--check").exit_code == 1

    assert not sqlite_path.exists()


@spec("Y3")
def test_the_command_leaves_a_newer_store_alone(sqlite_path: Path) -> None:
    SqliteStore(sqlite_path).close()
    _set_version(sqlite_path, 99)

    result = _migrate("--url", f"sqlite:///{sqlite_path}")

    assert result.exit_code == 2
    assert "upgrade Tenure" in result.stderr


def test_the_printed_sql_of_sqlite_makes_the_schema(sqlite_path: Path) -> None:
    printed = _migrate("--url", f"sqlite:///{sqlite_path}", "--print").stdout
    with closing(sqlite3.connect(sqlite_path)) as raw:
        raw.executescript(printed)

    SqliteStore(sqlite_path).close()


def test_the_printed_sql_of_postgres_makes_the_schema(empty_postgres_url: str) -> None:
    printed = _migrate("--url", empty_postgres_url, "--print", "--schema", "elsewhere").stdout
    with psycopg.connect(empty_postgres_url, autocommit=True) as raw:
        raw.execute(printed.encode())

    PostgresStore(empty_postgres_url, schema="elsewhere").close()


@pytest.mark.parametrize("url", ["memory://", "redis://x", "postgresql://u:hunter2@127.0.0.1:1/x"])
def test_the_command_says_in_one_line_why_it_cannot(url: str) -> None:
    result = _migrate("--url", url)

    assert result.exit_code == 2
    assert result.stderr.count("\n") == 1
    assert "hunter2" not in result.output
