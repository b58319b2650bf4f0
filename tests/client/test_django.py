"""Enqueueing within a transaction of Django, on both databases."""

import sqlite3
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path
from typing import Any

import django  # type: ignore[import-untyped]  # it has no type hints
import django.conf  # type: ignore[import-untyped]  # it has no type hints
import psycopg
import pytest
from django.db import transaction  # type: ignore[import-untyped]  # it has no type hints
from django.db.utils import ConnectionHandler  # type: ignore[import-untyped]  # no type hints
from django.utils.connection import ConnectionProxy  # type: ignore[import-untyped]  # no type hints

from tenure import InvalidInput, Job, Tenure, UnknownJob
from tenure.wiring import open_store
from tests.support.databases import django_database


@pytest.fixture(params=["sqlite", "postgres"])
def url(request: pytest.FixtureRequest, tmp_path: Path) -> str:
    if request.param == "sqlite":
        made = f"sqlite:///{tmp_path}/shop.db"
    else:
        made = str(request.getfixturevalue("postgres_url"))
    open_store(made, migrate=True).close()
    return made


@pytest.fixture
def connection(url: str, monkeypatch: pytest.MonkeyPatch) -> Iterator[Any]:
    """Django's default connection, to the database of the jobs."""
    if not django.conf.settings.configured:
        django.conf.settings.configure(USE_TZ=True)
        django.setup()
    handler = ConnectionHandler({"default": django_database(url)})
    monkeypatch.setattr(transaction, "connections", handler)
    yield handler["default"]
    handler.close_all()


def test_a_job_is_committed_or_rolled_back_with_an_atomic_block(url: str, connection: Any) -> None:
    with Tenure(url) as app:

        @app.job
        def work(n: int) -> None: ...

        with transaction.atomic():
            kept = work.using(key="k", connection=connection).enqueue(1)
            same = work.using(key="k", connection=connection).enqueue(2)
            savepoint = transaction.savepoint()
            inner = work.using(connection=connection).enqueue(3)
            transaction.savepoint_rollback(savepoint)

        assert app.get(kept.id).status == "queued"
        assert same == kept
        with pytest.raises(UnknownJob):
            app.get(inner.id).refresh()
        with pytest.raises(InvalidInput, match=r"transaction\.atomic\(\)"):
            work.using(connection=connection).enqueue(4)


def test_an_atomic_block_that_raises_leaves_no_job(url: str, connection: Any) -> None:
    with Tenure(url) as app:

        def buy() -> None:
            with transaction.atomic():
                jobs.append(app.enqueue("work", {}, key="k", connection=connection))
                raise ZeroDivisionError

        jobs: list[Job[Any]] = []
        with pytest.raises(ZeroDivisionError):
            buy()

        with pytest.raises(UnknownJob):
            app.get(jobs[0].id).refresh()
        assert not app.enqueue("work", {}, key="k").deduplicated


def test_a_transaction_of_its_own_is_an_atomic_block(url: str, connection: Any) -> None:
    with Tenure(url) as app:
        with transaction.atomic(), pytest.raises(InvalidInput, match="open transaction already"):
            app.transaction_on(connection).__enter__()

        with app.transaction_on(connection):
            assert connection.in_atomic_block
        assert not connection.in_atomic_block


def test_djangos_own_proxy_is_understood(url: str, connection: Any) -> None:
    proxy = ConnectionProxy({"default": connection}, "default")
    with Tenure(url) as app, transaction.atomic():
        job = app.enqueue("work", {}, connection=proxy)
    if url.startswith("sqlite"):
        with closing(sqlite3.connect(url.removeprefix("sqlite:///"))) as raw:
            found = raw.execute("SELECT id FROM tenure_job").fetchone()
    else:
        with psycopg.connect(url) as other:
            found = other.execute("SELECT id::text FROM tenure.job").fetchone()

    assert found == (job.id,)
