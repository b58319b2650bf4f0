"""A server says that it is not ready while its store cannot be written, and when it can again."""

import resource
import time
from collections.abc import Iterator
from contextlib import AbstractContextManager, closing, contextmanager
from pathlib import Path

import psycopg
import pytest

from tenure.coordinator.service import Coordinator
from tenure.coordinator.sweeper import Sweeper
from tenure.errors import StoreUnavailable
from tenure.stores.sqlite.store import SqliteStore
from tenure_conformance.spec import spec
from tests.server.processes import House, Process
from tests.support.hanging import write_lock
from tests.support.waiting import until


@pytest.fixture
def server(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Process]:
    monkeypatch.setenv("TENURE_STORE_TIMEOUT", "500ms")
    house = House(f"sqlite:///{tmp_path / 'house.db'}", tmp_path)
    yield house.serve()
    house.close()


@contextmanager
def full_disk(server: Process) -> Iterator[None]:
    """No file of the server may grow, and none may be written that is not empty."""
    before = resource.prlimit(server.popen.pid, resource.RLIMIT_FSIZE)
    resource.prlimit(server.popen.pid, resource.RLIMIT_FSIZE, (1, before[1]))
    try:
        yield
    finally:
        resource.prlimit(server.popen.pid, resource.RLIMIT_FSIZE, before)


@pytest.mark.process
@spec("H88")
@pytest.mark.parametrize("trouble", ["locked", "full"])
def test_a_store_that_cannot_be_written_is_not_ready(
    server: Process, tmp_path: Path, trouble: str
) -> None:
    def status() -> int:
        return server.ask("GET", "/readyz").status

    def cannot_write() -> AbstractContextManager[None]:
        return full_disk(server) if trouble == "full" else write_lock(tmp_path / "house.db")

    until(lambda: status() == 200, "it is ready")
    with cannot_write():
        until(lambda: status() == 503, "it is not ready")
        began = time.monotonic()
        quick = status()
        took_s = time.monotonic() - began
    until(lambda: status() == 200, "it is ready again")

    assert quick == 503
    assert took_s < 5.0  # from memory, whatever the store does


@spec("H88", "O5")
def test_a_file_that_became_read_only_is_unavailable(tmp_path: Path) -> None:
    with (
        closing(SqliteStore(tmp_path / "tenure.db")) as store,
        closing(Coordinator(store)) as coordinator,
    ):
        sweeper = Sweeper(coordinator)
        sweeper.sweep_once()
        store.database.writer.run(lambda connection: connection.execute("PRAGMA query_only = ON"))

        with pytest.raises(StoreUnavailable, match="read-only"):
            sweeper.sweep_once()
        cannot_write = not coordinator.writability.is_writable
        sweeper.sweep_once()  # on a connection that may write

        assert cannot_write
        assert coordinator.writability.is_writable


@spec("H88")
def test_a_table_of_jobs_that_is_locked_makes_the_server_not_ready(
    postgres_url: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("TENURE_STORE_TIMEOUT", "500ms")
    with closing(House(postgres_url, tmp_path)) as house:
        server = house.serve()

        def status() -> int:
            return server.ask("GET", "/readyz").status

        until(lambda: status() == 200, "it is ready")
        with psycopg.connect(postgres_url) as other:
            other.execute("LOCK TABLE tenure.job IN ACCESS EXCLUSIVE MODE")
            until(lambda: status() == 503, "it is not ready")
            while_locked = set[int]()
            for _ in range(20):  # for about two passes, whose ticks succeed
                while_locked.add(status())
                time.sleep(0.1)
        until(lambda: status() == 200, "it is ready again")

    assert while_locked == {503}
