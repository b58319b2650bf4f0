"""What is SQLite's own: the file, its settings, its writer, and forks."""

import itertools
import os
import signal
import sqlite3
import stat
import sys
import threading
from collections import Counter, deque
from collections.abc import Callable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import closing, contextmanager
from functools import partial
from pathlib import Path
from types import FrameType
from typing import Any

import pytest

from tenure.clock import host_clock
from tenure.core.ids import DEFAULT_NAMESPACE, Kind
from tenure.deadlines import waiting_at_most
from tenure.errors import Closed, OutcomeUnknown, StoreError, StoreRefused, StoreUnavailable
from tenure.stores.sql.candidates import Reading
from tenure.stores.sqlite import writer as sqlite_writer
from tenure.stores.sqlite.file import connect, filesystem_of, is_network_filesystem, translated
from tenure.stores.sqlite.store import SqliteStore
from tenure_conformance.spec import spec
from tests.stores.lives import (
    QUEUE,
    claim,
    claim_request,
    enqueue,
    enqueue_changes,
    planner,
    save,
)
from tests.support.waiting import PATIENCE_S, until

# --- Settings ------------------------------------------------------------------------------------


def test_connections_are_durable_and_careful(sqlite_store: SqliteStore, sqlite_path: Path) -> None:
    wanted = {
        "journal_mode": "wal",
        "page_size": 2048,
        "synchronous": 2,  # FULL
        "mmap_size": 0,
        "wal_autocheckpoint": 0,
        "trusted_schema": 0,
        "busy_timeout": 3000,
    }

    with closing(connect(sqlite_path, host_clock, 3.0)) as connection:
        found = {name: connection.execute(f"PRAGMA {name}").fetchone()[0] for name in wanted}

        assert found == wanted
        assert connection.isolation_level is None


def test_readers_cannot_write(sqlite_store: SqliteStore, sqlite_path: Path) -> None:
    with (
        closing(connect(sqlite_path, host_clock, 1.0, reader=True)) as reader,
        pytest.raises(sqlite3.OperationalError, match="readonly"),
    ):
        reader.execute("UPDATE tenure_meta SET tick = 1")


def test_only_the_owner_can_read_the_file_and_its_wal(
    sqlite_store: SqliteStore, sqlite_path: Path
) -> None:
    enqueue(sqlite_store)

    files = list(sqlite_path.parent.glob("tenure.db*"))

    assert len(files) >= 2
    assert {stat.S_IMODE(each.stat().st_mode) for each in files} == {0o600}


def test_text_is_not_accepted_for_a_number(sqlite_store: SqliteStore, sqlite_path: Path) -> None:
    with (
        closing(sqlite3.connect(sqlite_path, isolation_level=None)) as raw,
        pytest.raises(sqlite3.IntegrityError),
    ):
        raw.execute("UPDATE tenure_meta SET epoch = 'two'")


def test_a_large_wal_is_checkpointed(sqlite_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sqlite_writer, "CHECKPOINT_AT_BYTES", 1 << 20)
    store = SqliteStore(sqlite_path)
    wal = sqlite_path.with_name("tenure.db-wal")

    for _ in range(30):
        enqueue(store, 100)

    assert sqlite_path.stat().st_size > 1 << 20
    assert wal.stat().st_size < 2 << 20
    store.close()


def test_the_wal_stays_small_while_reads_follow_each_other_without_a_gap(
    sqlite_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sqlite_writer, "CHECKPOINT_AT_BYTES", 1 << 18)
    store = SqliteStore(sqlite_path)
    wal = sqlite_path.with_name("tenure.db-wal")
    readers = deque(connect(sqlite_path, host_clock, 1.0, reader=True) for _ in range(2))
    _begin_to_read(readers[0])

    one_at_a_time = threading.Lock()

    def next_reader(seconds: float = 0) -> None:
        with one_at_a_time:
            _begin_to_read(readers[1])
            readers[0].execute("COMMIT")
            readers.rotate()

    monkeypatch.setattr(sqlite_writer, "sleep", next_reader)

    sizes = []
    for _ in range(36):
        enqueue(store, 100)
        enqueue(store, 1)  # answered after the checkpoint, which changes readers by itself
        sizes.append(wal.stat().st_size)
        next_reader()
    store.close()
    for reader in readers:
        reader.close()

    assert sqlite_path.stat().st_size > 3 << 20
    assert max(sizes) < 2 << 20


def _queued(writer: sqlite_writer.Writer) -> int:
    """How many callers wait for the thread that writes."""
    return len(writer._tasks)


def _begin_to_read(connection: sqlite3.Connection) -> None:
    connection.execute("BEGIN")
    connection.execute("SELECT count(*) FROM tenure_meta").fetchall()


def test_the_log_is_copied_into_the_file_only_while_nobody_else_can_write(
    sqlite_store: SqliteStore, sqlite_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sqlite_writer, "CHECKPOINT_AT_BYTES", 0)
    refused: list[str] = []

    class Copying(sqlite3.Connection):
        def execute(self, statement: str, *parameters: Any) -> sqlite3.Cursor:
            if "wal_checkpoint" in statement:
                with (
                    closing(sqlite3.connect(sqlite_path, timeout=0)) as other,
                    pytest.raises(sqlite3.OperationalError, match="locked"),
                ):
                    other.execute("BEGIN IMMEDIATE")
                refused.append(statement)
            return super().execute(statement, *parameters)

    enqueue(sqlite_store)
    writer = sqlite_writer.Writer(
        lambda: sqlite3.connect(
            sqlite_path, factory=Copying, isolation_level=None, check_same_thread=False
        ),
        path=sqlite_path,
        timeout_s=PATIENCE_S,
    )

    writer.run(lambda connection: connection.execute("UPDATE tenure_meta SET epoch = epoch"))
    writer.close()

    assert refused


# --- Places --------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", [":memory:", "", "."])
def test_what_is_not_a_file_is_refused(name: str) -> None:
    with pytest.raises(StoreError, match="not a file"):
        SqliteStore(name)


def test_a_directory_is_refused(tmp_path: Path) -> None:
    with pytest.raises(StoreError, match="is a directory"):
        SqliteStore(tmp_path)


def test_a_missing_directory_is_refused(tmp_path: Path) -> None:
    with pytest.raises(StoreError, match="does not exist"):
        SqliteStore(tmp_path / "missing" / "tenure.db")


def test_a_file_that_is_no_database_is_refused_and_kept(tmp_path: Path) -> None:
    path = tmp_path / "notes.txt"
    path.write_text("these are my notes\n" * 100)

    with pytest.raises(StoreError, match="not a SQLite database"):
        SqliteStore(path)

    assert path.read_text().startswith("these are my notes")


def test_a_network_filesystem_is_refused_unless_asked_for(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("tenure.stores.sqlite.file.filesystem_of", lambda _: "nfs4")

    with pytest.raises(StoreError, match="nfs4"):
        SqliteStore(tmp_path / "tenure.db")

    SqliteStore(tmp_path / "tenure.db", allow_network_filesystem=True).close()


def test_the_filesystem_is_that_of_the_longest_mount_point(tmp_path: Path) -> None:
    inside = tmp_path / "with blank" / "deeper"
    inside.mkdir(parents=True)
    blank = str(tmp_path / "with blank").replace(" ", "\\040")
    mounts = tmp_path / "mounts"
    mounts.write_text(
        f"/dev/a / ext4 rw 0 0\nhost:/x {blank} nfs rw 0 0\n/dev/b /other xfs rw 0 0\n"
    )

    assert filesystem_of(inside, mounts) == "nfs"
    assert filesystem_of(tmp_path, mounts) == "ext4"
    assert filesystem_of(tmp_path, tmp_path / "missing") == ""


def test_network_filesystems_are_known_by_name() -> None:
    kinds = ["nfs", "cifs", "fuse.sshfs", "9p", "ext4", "fuseblk", "overlay", ""]

    assert [kind for kind in kinds if is_network_filesystem(kind)] == kinds[:4]


# --- Writing -------------------------------------------------------------------------------------


@spec("K3")
def test_work_that_fails_fails_alone(sqlite_store: SqliteStore) -> None:
    holding, gate = threading.Event(), threading.Event()
    writer, runs = sqlite_store.database.writer, Counter[str]()

    def hold(connection: sqlite3.Connection) -> None:
        holding.set()
        assert gate.wait(PATIENCE_S)

    def count(name: str, connection: sqlite3.Connection) -> int:
        runs[name] += 1
        return int(connection.execute("SELECT count(*) FROM tenure_meta").fetchone()[0])

    def fail(connection: sqlite3.Connection) -> None:
        runs["fail"] += 1
        connection.execute("DELETE FROM tenure_meta")
        raise ValueError("not today")

    with ThreadPoolExecutor(4) as pool:
        held = pool.submit(writer.run, hold)
        assert holding.wait(PATIENCE_S)
        waiting = []
        for work in (partial(count, "before"), fail, partial(count, "after")):
            waiting.append(pool.submit(writer.run, work))
            until(lambda: _queued(writer) == len(waiting), "the work is queued")
        gate.set()
        before, failed, after = waiting

        held.result()
        assert isinstance(failed.exception(), ValueError)
        assert (before.result(), after.result()) == (1, 1)
    # What came before the failure shared its group: it was rolled back and ran again.
    assert runs == {"before": 2, "fail": 2, "after": 1}


@spec("K3")
def test_a_change_that_is_refused_fails_its_whole_batch(sqlite_store: SqliteStore) -> None:
    good, bad = enqueue_changes(sqlite_store, 2)
    twice = bad.events * 2

    with pytest.raises(StoreRefused):
        save(sqlite_store, [good, type(bad)(job=bad.job, expected_rev=0, events=twice)])

    assert not sqlite_store.jobs.load([good.job.id, bad.job.id]).jobs
    assert save(sqlite_store, [good, bad]).applied == {good.job.id, bad.job.id}


def test_waiting_for_a_writer_of_another_process_has_a_limit(sqlite_path: Path) -> None:
    store = SqliteStore(sqlite_path, timeout_s=0.05)
    changes = enqueue_changes(store, 1)
    with closing(sqlite3.connect(sqlite_path, isolation_level=None)) as other:
        other.execute("BEGIN IMMEDIATE")

        with pytest.raises(StoreUnavailable, match="locked"):
            store.jobs.save(changes, epoch=store.jobs.load([]).epoch)

        other.execute("ROLLBACK")
    save(store, changes)
    store.close()


def test_after_an_error_at_commit_the_outcome_is_unknown(sqlite_path: Path) -> None:
    failure = sqlite3.OperationalError("disk I/O error")
    failure.sqlite_errorcode = sqlite3.SQLITE_IOERR

    with pytest.raises(OutcomeUnknown), translated(sqlite_path, committing=True):
        raise failure


def test_a_closed_store_says_so(sqlite_store: SqliteStore) -> None:
    sqlite_store.close()
    sqlite_store.close()

    with pytest.raises(Closed):
        sqlite_store.jobs.load([])
    with pytest.raises(Closed):
        sqlite_store.raise_epoch()


@spec("Z1")
def test_the_claim_reads_its_index_in_order(sqlite_store: SqliteStore, sqlite_path: Path) -> None:
    enqueue(sqlite_store, 50)
    kinds = {QUEUE: [Kind("send")]}
    query, *_ = sqlite_store.candidates.queries(Reading.of_all(claim_request(10).scope, kinds, 10))

    with closing(connect(sqlite_path, host_clock, 1.0)) as connection:
        plan = connection.execute("EXPLAIN QUERY PLAN " + query.text, query.parameters).fetchall()

    steps = " ".join(row[3] for row in plan)
    assert "tenure_job_ready (namespace=? AND queue=? AND kind=? AND lane=?)" in steps
    assert "TEMP B-TREE" not in steps


# --- Forks ---------------------------------------------------------------------------------------


@spec("OB53")
def test_a_claim_says_how_often_it_began_again_because_its_queue_had_changed(
    sqlite_store: SqliteStore, sqlite_path: Path
) -> None:
    enqueue(sqlite_store, 3)
    claim(sqlite_store, 1)  # as a queue without settings
    with closing(SqliteStore(sqlite_path)) as of_another_process:
        of_another_process.settings.put_queue(DEFAULT_NAMESPACE, QUEUE, paused=None, limit=3)
    request = claim_request(2, seq=2)

    began_again = sqlite_store.claims.claim(request.scope, [request.session], 2, planner(request))
    request = claim_request(1, seq=3)
    knows_it = sqlite_store.claims.claim(request.scope, [request.session], 1, planner(request))

    assert [len(each.changes) for each in (began_again, knows_it)] == [2, 0]
    assert (began_again.restarts, knows_it.restarts) == (1, 0)


def test_after_a_failed_checkpoint_the_writer_goes_on(
    sqlite_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sqlite_writer, "CHECKPOINT_AT_BYTES", 0)

    class Failing(sqlite3.Connection):
        def execute(self, statement: str, *parameters: Any) -> sqlite3.Cursor:
            if "wal_checkpoint" in statement:
                raise sqlite3.OperationalError("disk I/O error")
            return super().execute(statement, *parameters)

    sqlite_path.with_name(sqlite_path.name + "-wal").write_bytes(b"")
    writer = sqlite_writer.Writer(
        lambda: sqlite3.connect(
            ":memory:", factory=Failing, isolation_level=None, check_same_thread=False
        ),
        path=sqlite_path,
        timeout_s=3.0,
    )

    assert [writer.run(lambda connection: "written") for _ in range(2)] == ["written"] * 2
    writer.close()


def test_a_failed_commit_of_work_that_nobody_waits_for_does_not_end_the_writer(
    sqlite_path: Path,
) -> None:
    commits = 0

    class FailsSecond(sqlite3.Connection):
        def execute(self, statement: str, *parameters: Any) -> sqlite3.Cursor:
            nonlocal commits
            commits += statement == "COMMIT"
            if statement == "COMMIT" and commits == 2:
                raise sqlite3.OperationalError("disk I/O error")
            return super().execute(statement, *parameters)

    with _writer(sqlite_path, FailsSecond) as writer:
        with _busy(writer), pytest.raises(StoreUnavailable), waiting_at_most(0.05):
            writer.run(lambda connection: None)
        until(lambda: commits == 2, "the thread has committed without a caller")

        assert writer.run(lambda connection: "written") == "written"


# --- Who writes ----------------------------------------------------------------------------------


@contextmanager
def _writer(
    path: Path, factory: type[sqlite3.Connection] = sqlite3.Connection
) -> Iterator[sqlite_writer.Writer]:
    """A writer of an empty database in memory."""

    def connect_once() -> sqlite3.Connection:
        return sqlite3.connect(
            ":memory:", factory=factory, isolation_level=None, check_same_thread=False
        )

    writer = sqlite_writer.Writer(connect_once, path=path, timeout_s=PATIENCE_S)
    yield writer
    writer.close()


@contextmanager
def _busy(writer: sqlite_writer.Writer) -> Iterator[None]:
    """Another thread writes meanwhile."""
    holding, gate = threading.Event(), threading.Event()

    def hold(_: sqlite3.Connection) -> None:
        holding.set()
        assert gate.wait(PATIENCE_S)

    with ThreadPoolExecutor(1) as pool:
        held = pool.submit(writer.run, hold)
        assert holding.wait(PATIENCE_S)
        yield
        gate.set()
        held.result(PATIENCE_S)


def _name_of_thread(_: sqlite3.Connection) -> str:
    return threading.current_thread().name


def test_a_caller_writes_in_its_own_thread_unless_others_write(sqlite_path: Path) -> None:
    with _writer(sqlite_path) as writer, ThreadPoolExecutor(2) as pool:
        alone = writer.run(_name_of_thread)
        with _busy(writer):
            waiting = [pool.submit(writer.run, _name_of_thread) for _ in range(2)]
            until(lambda: _queued(writer) == 2, "both wait")

        assert alone == threading.current_thread().name
        assert [each.result(PATIENCE_S) for each in waiting] == ["tenure-sqlite"] * 2


def test_no_caller_overtakes_work_that_waits(sqlite_path: Path) -> None:
    order: list[str] = []
    with _writer(sqlite_path) as writer, ThreadPoolExecutor(1) as pool:
        with _busy(writer):
            first = pool.submit(writer.run, lambda _: order.append("first"))
            until(lambda: _queued(writer) == 1, "it waits")
        writer.run(lambda _: order.append("second"))
        first.result(PATIENCE_S)

    assert order == ["first", "second"]


def test_an_interrupted_caller_leaves_the_file_to_others(sqlite_path: Path) -> None:
    def interrupt(connection: sqlite3.Connection) -> None:
        connection.execute("CREATE TABLE half (x)")
        raise KeyboardInterrupt

    with _writer(sqlite_path) as writer:
        with pytest.raises(KeyboardInterrupt):
            writer.run(interrupt)

        tables = writer.run(lambda each: each.execute("SELECT * FROM sqlite_master").fetchall())

    assert tables == []


def _interrupts_at(place: int, *, everywhere: bool = False) -> Callable[[FrameType, str, Any], Any]:
    """A trace function that raises when the writer, or a function that it calls, has been entered
    or left this many times: it is there that Python runs signal handlers. `everywhere`: functions
    that these call count, too."""
    places = itertools.count()

    def trace(frame: FrameType, event: str, _: Any) -> Any:
        caller = frame.f_back
        files = [frame.f_code.co_filename, caller.f_code.co_filename if caller else ""]
        if not everywhere and sqlite_writer.__file__ not in files:
            return None
        if event in ("call", "return") and next(places) == place:
            raise KeyboardInterrupt
        return trace

    return trace


def test_a_signal_handler_may_raise_anywhere_in_a_write(sqlite_path: Path) -> None:
    with _writer(sqlite_path) as writer, ThreadPoolExecutor(1) as pool:
        waiting: list[Future[str]] = []

        def work(_: sqlite3.Connection) -> None:
            waiting.append(pool.submit(writer.run, _name_of_thread))
            until(lambda: _queued(writer) == 1, "another caller waits")

        before = sys.gettrace()
        for place in itertools.count():
            sys.settrace(_interrupts_at(place))
            try:
                writer.run(work)
            except KeyboardInterrupt:
                pass
            else:
                break
            finally:
                sys.settrace(before)

            waiting.append(pool.submit(writer.run, _name_of_thread))
            assert [each.result(PATIENCE_S) for each in waiting], place
            waiting.clear()

    assert place > 20


def test_a_signal_handler_may_raise_anywhere_while_a_write_waits(sqlite_path: Path) -> None:
    before = sys.gettrace()
    for place in itertools.count():
        with _writer(sqlite_path) as writer:
            with _busy(writer), waiting_at_most(0.02):
                was_interrupted = False
                sys.settrace(_interrupts_at(place, everywhere=True))
                try:
                    writer.run(_name_of_thread)
                except KeyboardInterrupt:
                    was_interrupted = True
                except StoreUnavailable:
                    pass
                finally:
                    sys.settrace(before)

            with waiting_at_most(5.0):
                assert writer.run(_name_of_thread), place
        if not was_interrupted:
            break

    assert place > 10


def test_what_a_signal_handler_raises_during_a_statement_reaches_the_caller(
    sqlite_path: Path,
) -> None:
    long = "WITH RECURSIVE n(i) AS (SELECT 1 UNION ALL SELECT i + 1 FROM n LIMIT 3000000)"

    def work(connection: sqlite3.Connection) -> None:
        signal.setitimer(signal.ITIMER_REAL, 0.02)
        connection.execute(f"{long} SELECT max(i) FROM n").fetchall()

    before = signal.signal(signal.SIGALRM, signal.default_int_handler)
    try:
        with _writer(sqlite_path) as writer, pytest.raises(KeyboardInterrupt):
            writer.run(work)
    finally:
        signal.signal(signal.SIGALRM, before)


def test_a_signal_handler_that_closes_does_not_wait_for_the_write_it_interrupts(
    sqlite_path: Path,
) -> None:
    with _writer(sqlite_path) as writer:
        writer.run(lambda _: writer.close())

        with pytest.raises(Closed):
            writer.run(_name_of_thread)


@spec("K16")
def test_a_statement_ends_at_the_deadline_of_its_caller_and_changes_nothing(
    sqlite_store: SqliteStore,
) -> None:
    endless = "WITH RECURSIVE n(i) AS (SELECT 1 UNION ALL SELECT i FROM n) SELECT max(i) FROM n"
    before = sqlite_store.jobs.load([]).epoch

    def work(connection: sqlite3.Connection) -> None:
        connection.execute("UPDATE tenure_meta SET epoch = epoch + 1")
        connection.execute(endless)

    with pytest.raises(StoreUnavailable), waiting_at_most(0.05):
        sqlite_store.database.writer.run(work)

    assert sqlite_store.jobs.load([]).epoch == before
    assert sqlite_store.raise_epoch() == before + 1


@spec("K16", "K15")
def test_only_the_caller_whose_own_flush_hangs_waits_longer_than_its_deadline(
    sqlite_path: Path,
) -> None:
    flushing, flushed = threading.Event(), threading.Event()
    carried_out: list[str] = []

    class Hanging(sqlite3.Connection):
        def execute(self, statement: str, *parameters: Any) -> sqlite3.Cursor:
            if statement == "COMMIT":
                flushing.set()
                assert flushed.wait(PATIENCE_S)
            return super().execute(statement, *parameters)

    def write_in_time(name: str) -> None:
        with waiting_at_most(0.05):
            writer.run(lambda _: carried_out.append(name))

    with _writer(sqlite_path, Hanging) as writer, ThreadPoolExecutor(1) as pool:
        hangs = pool.submit(write_in_time, "hangs")
        assert flushing.wait(PATIENCE_S)

        with pytest.raises(StoreUnavailable):
            write_in_time("is withdrawn")
        assert not hangs.done()
        flushed.set()
        hangs.result(PATIENCE_S)

    assert carried_out == ["hangs"]


@pytest.mark.process
def test_a_store_does_not_cross_a_fork(sqlite_store: SqliteStore) -> None:
    enqueue(sqlite_store)
    reading, writing = os.pipe()
    child = os.fork()
    if child == 0:  # pragma: no cover - the child reports through the pipe and ends
        try:
            sqlite_store.jobs.load([])
            report = b"it worked"
        except StoreError as refusal:
            report = str(refusal).encode()
        os.write(writing, report)
        os._exit(0)
    os.waitpid(child, 0)

    assert b"before a fork" in os.read(reading, 1000)
    os.close(reading)
    os.close(writing)
    assert claim(sqlite_store, 1)


@spec("K14")
@pytest.mark.parametrize("is_replaced", [False, True])
def test_a_store_whose_file_is_gone_refuses_every_call_until_it_is_back(
    sqlite_path: Path, is_replaced: bool
) -> None:
    store = SqliteStore(sqlite_path)
    aside = sqlite_path.with_name("aside.db")
    sqlite_path.rename(aside)
    if is_replaced:
        with closing(SqliteStore(sqlite_path)):
            pass

    for call in (store.now, store.upkeep.tick, partial(store.jobs.load, [])):
        with pytest.raises(StoreError, match="was deleted or replaced"):
            call()
    assert sqlite_path.exists() == is_replaced

    aside.replace(sqlite_path)
    store.upkeep.tick()
    store.close()
