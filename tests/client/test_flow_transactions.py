"""A flow in a transaction of the caller's: all of it is committed, or nothing is."""

import asyncio
import sqlite3
from contextlib import closing
from pathlib import Path

import psycopg
import pytest

from tenure import Conflict, Flow, InvalidInput, Tenure
from tenure.core.ids import DEFAULT_NAMESPACE
from tenure.core.instants import Duration
from tenure.core.vocabulary import JobStatus
from tenure.verify import assert_holds
from tenure.wiring import open_store
from tenure_conformance.spec import spec


def filled(app: Tenure, connection: object) -> Flow:
    with app.flow("mine", connection=connection) as flow:
        first = flow.add(app.call("a"))
        flow.add(app.call("b"), after=first)
    return flow


def statuses(url: str, flow: Flow) -> list[JobStatus]:
    with closing(open_store(url)) as store:
        assert_holds(store)
        rows = store.jobs.load([job.id for job in flow.jobs]).jobs
        return [rows[job.id].status for job in flow.jobs if job.id in rows]


@spec("FL8")
@pytest.mark.parametrize("commits", [True, False])
def test_on_sqlite(tmp_path: Path, commits: bool) -> None:
    url = f"sqlite:///{tmp_path}/shop.db"
    open_store(url).close()
    with Tenure(url) as app, closing(sqlite3.connect(tmp_path / "shop.db")) as connection:
        connection.execute("BEGIN IMMEDIATE")
        flow = filled(app, connection)
        connection.execute("COMMIT" if commits else "ROLLBACK")

    expected = [JobStatus.QUEUED, JobStatus.WAITING] if commits else []
    assert statuses(url, flow) == expected


@spec("FL8")
@pytest.mark.parametrize("commits", [True, False])
def test_on_postgresql(postgres_url: str, commits: bool) -> None:
    open_store(postgres_url, migrate=True).close()
    with Tenure(postgres_url) as app, psycopg.connect(postgres_url) as connection:
        flow = filled(app, connection)
        if commits:
            connection.commit()
        else:
            connection.rollback()

    expected = [JobStatus.QUEUED, JobStatus.WAITING] if commits else []
    assert statuses(postgres_url, flow) == expected


@spec("FL6", "FL8")
def test_a_parent_is_not_purged_while_the_transaction_is_open(postgres_url: str) -> None:
    open_store(postgres_url, migrate=True).close()
    with Tenure(postgres_url) as app, psycopg.connect(postgres_url) as connection:
        done, live = app.enqueue("done"), app.enqueue("live")
        done.cancel()
        with app.flow("mine", connection=connection) as flow:
            flow.add(app.call("a"), after=[done, live], when="ended")

        with closing(open_store(postgres_url)) as store:
            assert store.upkeep.delete("jobs", older_than_us=Duration(0), limit=10).deleted == 0
            assert live.cancel() is JobStatus.CANCELLED  # it does not wait for the transaction
            connection.commit()
            assert store.upkeep.delete("jobs", older_than_us=Duration(0), limit=10).deleted == 0

    assert statuses(postgres_url, flow) == [JobStatus.WAITING]


@spec("FL8")
def test_on_an_asynchronous_connection(postgres_url: str) -> None:
    open_store(postgres_url, migrate=True).close()

    async def send() -> Flow:
        async with await psycopg.AsyncConnection.connect(postgres_url) as connection:
            async with app.flow("mine", connection=connection) as flow:
                flow.add(app.call("b"), after=flow.add(app.call("a")))
            await connection.commit()
        return flow

    with Tenure(postgres_url) as app:
        flow = asyncio.run(send())

    assert sorted(statuses(postgres_url, flow)) == [JobStatus.QUEUED, JobStatus.WAITING]


@spec("FL3", "FL8")
def test_a_flow_that_is_refused_leaves_the_transaction_usable(tmp_path: Path) -> None:
    url = f"sqlite:///{tmp_path}/shop.db"
    open_store(url).close()
    with Tenure(url) as app, closing(sqlite3.connect(tmp_path / "shop.db")) as connection:
        connection.execute("CREATE TABLE orders (id INTEGER)")
        connection.execute("BEGIN IMMEDIATE")
        connection.execute("INSERT INTO orders VALUES (1)")
        flow = app.flow("wrong", connection=connection)
        flow.add(app.call("a"), after="01977420-dc00-7000-8000-000000000000")
        with pytest.raises(InvalidInput, match="there is no job"), flow:
            pass
        connection.execute("COMMIT")

        assert connection.execute("SELECT count(*) FROM orders").fetchone() == (1,)
    assert statuses(url, flow) == []


@spec("FL3", "FL8")
@pytest.mark.parametrize("store", ["sqlite", "postgres"])
def test_a_flow_with_the_id_of_a_job_that_exists_leaves_no_half(
    tmp_path: Path, postgres_url: str, store: str
) -> None:
    url = f"sqlite:///{tmp_path}/shop.db" if store == "sqlite" else postgres_url
    open_store(url, migrate=True).close()
    with (
        Tenure(url) as app,
        closing(
            sqlite3.connect(tmp_path / "shop.db") if store == "sqlite" else psycopg.connect(url)
        ) as connection,
    ):
        there = app.enqueue("there")
        flow = app.flow("half", connection=connection)
        first = flow.add(app.call("a"))
        flow.add(app.call("b"), after=first).call.job_id = there.id
        with pytest.raises(Conflict, match="idempotency_key_reuse"), flow:
            pass
        connection.commit()

    with closing(open_store(url)) as opened:
        assert_holds(opened)
        assert opened.jobs.load([first.id]).jobs == {}
        assert opened.flows.page(DEFAULT_NAMESPACE, before=None, limit=5) == []
