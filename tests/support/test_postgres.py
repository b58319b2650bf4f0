"""The PostgreSQL of the tests is real, survives crashes, cleans up, and is never skipped."""

import os
import signal
import subprocess
import sys
from pathlib import Path

import psycopg
import pytest

from tests.support.postgres import (
    MAX_CONNECTIONS,
    PostgresCluster,
    PostgresServer,
    PostgresUnavailable,
    find_bin_dir,
    wheel_bin_dirs,
)
from tests.support.waiting import answer_of, until

pytestmark = pytest.mark.process


def ask(dsn: str, question: str) -> object:
    with psycopg.connect(dsn) as connection:
        row = connection.execute(question.encode()).fetchone()
        return row[0] if row is not None else None


def test_every_test_gets_a_fresh_database(postgres: PostgresServer, postgres_url: str) -> None:
    other_url = postgres.create_database()

    with psycopg.connect(postgres_url) as connection:
        connection.execute("CREATE TABLE mark (value int)")

    assert other_url != postgres_url
    assert ask(other_url, "SELECT to_regclass('mark')") is None


def test_a_database_can_be_a_copy_of_another(postgres: PostgresServer, postgres_url: str) -> None:
    with psycopg.connect(postgres_url) as connection:
        connection.execute("CREATE TABLE mark AS SELECT 7 AS value")

    copy_url = postgres.create_database(template=postgres_url.rpartition("/")[2])

    assert ask(copy_url, "SELECT value FROM mark") == 7


def test_a_killed_cluster_recovers_what_was_committed(durable_postgres: PostgresCluster) -> None:
    dsn = durable_postgres.create_database()
    with psycopg.connect(dsn) as connection:
        connection.execute("CREATE TABLE mark AS SELECT 7 AS value")

    durable_postgres.kill()
    with pytest.raises(psycopg.OperationalError):
        psycopg.connect(dsn)
    durable_postgres.restart()

    assert ask(dsn, "SELECT value FROM mark") == 7


def test_a_durable_cluster_is_durable_and_roomy(durable_postgres: PostgresCluster) -> None:
    dsn = durable_postgres.socket_dsn("postgres")

    assert ask(dsn, "SHOW fsync") == "on"
    assert ask(dsn, "SHOW synchronous_commit") == "on"
    assert ask(dsn, "SHOW full_page_writes") == "on"
    assert ask(dsn, "SHOW max_connections") == str(MAX_CONNECTIONS)


def test_the_programs_of_the_wheel_make_a_server_too() -> None:
    bin_dir = find_bin_dir(list(wheel_bin_dirs()))

    with PostgresCluster.start(
        durable=False, bin_dir=bin_dir, settings={"work_mem": "1MB"}
    ) as cluster:
        dsn = cluster.create_database()
        answers = ask(dsn, "SELECT 1"), ask(dsn, "SHOW fsync"), ask(dsn, "SHOW work_mem")

    assert answers == (1, "off", "1MB")


def test_stopping_removes_everything_and_may_be_repeated() -> None:
    cluster = PostgresCluster.start(durable=False)
    directory = cluster.data_directory.parent
    pid = cluster.pid

    cluster.stop()
    cluster.stop()

    assert not directory.exists()
    with pytest.raises(ProcessLookupError):
        os.kill(pid, 0)


def test_a_cluster_does_not_outlive_a_killed_owner(pytestconfig: pytest.Config) -> None:
    program = (
        "from tests.support.postgres import PostgresCluster as C; import time;"
        "c = C.start(durable=False); print(c.data_directory.parent, flush=True); time.sleep(600)"
    )
    owner = subprocess.Popen(
        [sys.executable, "-c", program],
        stdout=subprocess.PIPE,
        text=True,
        cwd=pytestconfig.rootpath,
    )
    assert owner.stdout is not None
    with owner.stdout:
        directory = Path(answer_of(owner.stdout.readline, "the cluster runs").strip())

    owner.send_signal(signal.SIGKILL)
    owner.wait()

    until(lambda: not directory.exists(), "the watchdog has removed the cluster")


def test_a_server_that_somebody_else_runs_is_left_as_it_was(postgres: PostgresServer) -> None:
    with PostgresServer.attach(postgres.dsn("postgres")) as guest:
        dsn = guest.create_database()
        assert ask(dsn, "SELECT 1") == 1

    with pytest.raises(psycopg.OperationalError, match="does not exist"):
        psycopg.connect(dsn)


def test_a_server_is_named_by_a_url() -> None:
    with pytest.raises(PostgresUnavailable, match="postgresql://"):
        PostgresServer.attach("host=localhost dbname=postgres")


def test_without_any_server_the_message_says_what_to_do(tmp_path: Path) -> None:
    with pytest.raises(PostgresUnavailable, match=r"TENURE_TEST_POSTGRES_DSN.*install PostgreSQL"):
        find_bin_dir([tmp_path])


def test_a_server_that_does_not_start_shows_its_log() -> None:
    with pytest.raises(PostgresUnavailable, match="no_such_setting"):
        PostgresCluster.start(settings={"no_such_setting": "1"})
