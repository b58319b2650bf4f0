"""Hints between stores that share a database, as processes do: they arrive, and only help."""

import os
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, closing, contextmanager
from itertools import cycle
from pathlib import Path
from typing import cast
from unittest.mock import patch

import psycopg
import pytest

from tenure.coordinator.ready_watch import LONGEST_TIMER_S, ReadyWatch
from tenure.coordinator.service import Coordinator
from tenure.core.commands import Cancel, Enqueue
from tenure.core.ids import (
    DEFAULT_NAMESPACE,
    JobId,
    Kind,
    Namespace,
    QueueName,
    RequestId,
    client_actor,
    new_job_id,
)
from tenure.core.instants import Duration, seconds
from tenure.core.kind_settings import KindChange
from tenure.ports import NO_WAIT, Hint, HintedChange, NextReady, Store
from tenure.stores.hints import Watchers
from tenure.stores.postgres import notifications
from tenure.stores.postgres.notifications import Listener, Notifier, channel_of
from tenure.stores.postgres.store import PostgresStore
from tenure.stores.postgres.wire import RoundTrip, Wire
from tenure.stores.sqlite import change_watch
from tenure.stores.sqlite.change_watch import (
    ASKED_AFTER_A_COMMIT,
    ASKED_AFTER_A_WRITE,
    ASKED_ANYWAY,
    FileEvents,
    WriteAheadLog,
)
from tenure.stores.sqlite.memory import MemoryStore
from tenure.stores.sqlite.store import SqliteStore
from tenure_conformance.spec import spec
from tests.support.waiting import PATIENCE_S, until

QUEUE = QueueName("mail")
READY = Hint(HintedChange.READY, DEFAULT_NAMESPACE, QUEUE)
LATER = Hint(HintedChange.LATER, DEFAULT_NAMESPACE, QUEUE)
ENDED = Hint(HintedChange.ENDED, DEFAULT_NAMESPACE, QUEUE)

Pair = tuple[Store, Store]


@contextmanager
def sqlite_pair(path: Path) -> Iterator[Pair]:
    with closing(SqliteStore(path)) as first, closing(SqliteStore(path)) as second:
        yield first, second


@contextmanager
def postgres_pair(dsn: str) -> Iterator[Pair]:
    with (
        closing(PostgresStore(dsn, migrate=True)) as first,
        closing(PostgresStore(dsn)) as second,
    ):
        yield first, second


@pytest.fixture
def on_sqlite(tmp_path: Path) -> Iterator[Pair]:
    with sqlite_pair(tmp_path / "jobs.db") as pair:
        yield pair


@pytest.fixture
def on_postgres(postgres_url: str) -> Iterator[Pair]:
    with postgres_pair(postgres_url) as pair:
        yield pair


def enqueue(store: Store, *, delay_us: Duration = NO_WAIT) -> JobId:
    job_id = new_job_id(store.now(), bytes(16))
    with closing(Coordinator(store)) as coordinator:
        coordinator.execute(
            Enqueue(
                job_id=job_id,
                namespace=DEFAULT_NAMESPACE,
                queue=QUEUE,
                kind=Kind("send"),
                actor=client_actor("test"),
                delay_us=delay_us,
            )
        )
    return job_id


def cancel(store: Store, job_id: JobId) -> None:
    with closing(Coordinator(store)) as coordinator:
        coordinator.execute(
            Cancel(job_id=job_id, actor=client_actor("test"), request_id=RequestId("stop"))
        )


@spec("Z7")
def test_a_commit_to_a_sqlite_file_is_noticed_through_another_connection(on_sqlite: Pair) -> None:
    first, second = on_sqlite
    heard: list[Hint | None] = []
    second.watch(heard.append)
    until(lambda: bool(heard), "it is heard")  # the first look knows no version yet
    heard.clear()

    enqueue(first)

    until(lambda: heard == [None], "it is heard")


@spec("Z7")
def test_nothing_is_told_while_a_sqlite_file_does_not_change(on_sqlite: Pair) -> None:
    first, second = on_sqlite
    heard: list[Hint | None] = []
    second.watch(heard.append)
    until(lambda: bool(heard), "it is heard")
    heard.clear()

    first.jobs.read([])
    enqueue(first)
    until(lambda: bool(heard), "it is heard")

    assert len(heard) == 1


def asked(log: WriteAheadLog, looks: int) -> int:
    """How many of so many looks ask SQLite."""
    return sum(log.may_have_commits() for _ in range(looks))


@spec("Z7")
def test_an_idle_sqlite_file_is_asked_for_its_version_once_in_many_looks(tmp_path: Path) -> None:
    (tmp_path / "jobs.db-wal").write_bytes(b"frames")
    log = WriteAheadLog(tmp_path / "jobs.db")
    assert log.may_have_commits()
    log.committed()
    asked(log, ASKED_AFTER_A_COMMIT)

    assert asked(log, 100 * ASKED_ANYWAY) == 100


@spec("Z7")
def test_after_a_write_to_a_sqlite_file_each_look_asks_until_its_commit_can_be_seen(
    tmp_path: Path,
) -> None:
    """A look may come between the write and the end of its flush, which may take long."""
    file = tmp_path / "jobs.db-wal"
    file.write_bytes(b"frames")
    log = WriteAheadLog(tmp_path / "jobs.db")
    log.committed()
    asked(log, ASKED_AFTER_A_WRITE + 10 * ASKED_ANYWAY)

    os.utime(file, ns=(1, 1))  # the log was begun again: it has the same size
    after_new_time = asked(log, ASKED_AFTER_A_WRITE)
    asked(log, 10 * ASKED_ANYWAY)
    file.write_bytes(b"more frames")
    os.utime(file, ns=(1, 1))
    after_new_size = asked(log, ASKED_AFTER_A_WRITE)

    assert (after_new_time, after_new_size) == (ASKED_AFTER_A_WRITE, ASKED_AFTER_A_WRITE)


@spec("Z7")
def test_after_a_commit_to_a_sqlite_file_looks_ask_a_little_longer(tmp_path: Path) -> None:
    """A second one within the same tick of the clock may not show in the log's times."""
    (tmp_path / "jobs.db-wal").write_bytes(b"frames")
    log = WriteAheadLog(tmp_path / "jobs.db")
    assert log.may_have_commits()

    log.committed()

    assert asked(log, ASKED_AFTER_A_COMMIT) == ASKED_AFTER_A_COMMIT
    assert asked(log, ASKED_ANYWAY) == 1


@spec("Z7")
def test_a_sqlite_file_without_a_log_is_always_asked(tmp_path: Path) -> None:
    assert asked(WriteAheadLog(tmp_path / "jobs.db"), 60) == 60


def pausing_by(pause: Callable[[float], None], path: Path) -> SqliteStore:
    """A store whose pauses between two checks are these."""
    with patch.object(time, "sleep", pause):
        return SqliteStore(path)


class RestsUntilTold:
    """Stands for the kernel's events: each rest ends when the test says so."""

    def __init__(self, _: str) -> None:
        self.rests = 0
        self._may_end = threading.Semaphore(0)

    def wait(self, _: float) -> None:
        self.rests += 1
        self._may_end.acquire()

    def end_rests(self, number: int) -> None:
        self._may_end.release(number)

    def wake(self) -> None:
        self.end_rests(1)

    def close(self) -> None:
        pass


@spec("Z7")
def test_while_a_sqlite_file_rests_nobody_looks_at_it_between_the_kernels_events(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    made: list[RestsUntilTold] = []
    pauses: list[float] = []

    def make(file: str) -> RestsUntilTold:
        made.append(RestsUntilTold(file))
        return made[-1]

    monkeypatch.setattr(change_watch, "FileEvents", make)
    with closing(pausing_by(pauses.append, tmp_path / "jobs.db")) as store:
        store.watch(lambda hint: None)
        until(lambda: bool(made) and made[0].rests == 1, "it rests")
        before = len(pauses)

        made[0].end_rests(20)
        until(lambda: made[0].rests == 21, "it rests again")

        assert len(pauses) == before


@spec("Z7")
def test_a_commit_is_noticed_where_the_kernel_does_not_tell_of_writes(
    on_sqlite: Pair, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(_: str) -> FileEvents:
        raise OSError("there is no inotify here")

    monkeypatch.setattr(change_watch, "FileEvents", refuse)
    first, second = on_sqlite
    heard: list[Hint | None] = []
    second.watch(heard.append)
    until(lambda: bool(heard), "it is heard")
    heard.clear()

    enqueue(first)

    until(lambda: heard == [None], "it is heard")


LONG_S = 60.0


def ends(work: Callable[[], None]) -> bool:
    """Whether it ends long before a wait of `LONG_S` would."""
    thread = threading.Thread(target=work, daemon=True)
    thread.start()
    thread.join(LONG_S / 2)
    return not thread.is_alive()


@spec("Z7")
def test_a_wait_for_the_kernel_ends_with_a_write_or_with_a_wake(tmp_path: Path) -> None:
    file = tmp_path / "log"
    file.write_bytes(b"")
    with closing(FileEvents(str(file))) as events:
        file.write_bytes(b"frames")
        assert ends(lambda: events.wait(LONG_S))
    with closing(FileEvents(str(file))) as events:
        events.wake()
        assert ends(lambda: events.wait(LONG_S))


def test_a_file_that_is_not_there_cannot_be_watched(tmp_path: Path) -> None:
    with pytest.raises(OSError, match="inotify"):
        FileEvents(str(tmp_path / "log"))


class HeldUp:
    """A pause that does not end until it may."""

    def __init__(self) -> None:
        self.has_begun = threading.Event()
        self.may_end = threading.Event()

    def __call__(self, _: float) -> None:
        self.has_begun.set()
        self.may_end.wait()


@spec("Z7")
def test_a_watcher_that_leaves_while_a_sqlite_store_is_closed_does_not_hold_it_up(
    tmp_path: Path,
) -> None:
    pause = HeldUp()
    with closing(pausing_by(pause, tmp_path / "jobs.db")) as store:
        leave = store.watch(lambda hint: None)
        assert pause.has_begun.wait(10)
        closer = threading.Thread(target=store.close, daemon=True)
        closer.start()
        until(store.database.changes._stopping.is_set, "the store is being closed")
        leave()
        pause.may_end.set()

        closer.join(10)

        assert not closer.is_alive()


@spec("Z7")
def test_another_process_on_postgresql_hears_what_became_ready_and_what_ended(
    on_postgres: Pair,
) -> None:
    first, second = on_postgres
    heard: list[Hint | None] = []
    second.watch(heard.append)
    until(lambda: None in heard, "it is heard")  # it listens

    job_id = enqueue(first)
    until(lambda: READY in heard, "it is heard")
    cancel(first, job_id)
    until(lambda: ENDED in heard, "it is heard")
    first.settings.put_queue(DEFAULT_NAMESPACE, QueueName("other"), paused=False, limit=None)
    until(
        lambda: Hint(HintedChange.READY, DEFAULT_NAMESPACE, QueueName("other")) in heard,
        "it is heard",
    )


@spec("Z7")
def test_a_delayed_job_gives_a_hint_of_its_own(on_postgres: Pair) -> None:
    first, second = on_postgres
    heard: list[Hint | None] = []
    second.watch(heard.append)
    until(lambda: None in heard, "it is heard")

    enqueue(first, delay_us=seconds(60))

    until(lambda: LATER in heard, "it is heard")
    assert READY not in heard


@spec("Z7", "V5")
def test_a_listener_whose_connection_is_lost_says_so_and_listens_again(
    on_postgres: Pair, postgres_url: str
) -> None:
    first, second = on_postgres
    heard: list[Hint | None] = []
    arrived: list[bool] = []

    def hear(hint: Hint | None) -> None:
        arrived.append(second.hints_arrive)
        heard.append(hint)

    assert not second.hints_arrive
    second.watch(hear)
    until(lambda: heard == [None], "it is heard")

    with psycopg.connect(postgres_url, autocommit=True) as connection:
        connection.execute(
            "SELECT pg_terminate_backend(pid) FROM pg_stat_activity"
            " WHERE query LIKE 'LISTEN %' AND datname = current_database()"
        )
    until(lambda: heard == [None, None, None], "the loss is heard, and that it listens again")
    assert arrived == [True, False, True]

    enqueue(first)
    until(lambda: READY in heard, "it is heard")


@spec("Z7")
@pytest.mark.parametrize(
    "payload",
    ["", "probe", "[" * 7000, '["x", ["ready", "default", "mail"], ' + "[" * 7000, '["x", ["?"]]'],
    ids=["empty", "text", "brackets", "brackets after a hint", "another word"],
)
def test_a_notification_that_is_no_hint_ends_no_listener(
    payload: str, on_postgres: Pair, postgres_url: str
) -> None:
    first, second = on_postgres
    heard: list[Hint | None] = []
    second.watch(heard.append)
    until(lambda: heard == [None], "it listens")

    with psycopg.connect(postgres_url, autocommit=True) as anybody:
        anybody.execute("SELECT pg_notify(%s, %s)", (channel_of("tenure"), payload))
    enqueue(first)

    until(lambda: len(heard) > 1, "it is heard")
    assert heard == [None, READY]


@spec("Z7")
def test_a_change_of_a_kind_wakes_the_workers_of_every_queue(on_postgres: Pair) -> None:
    first, second = on_postgres
    enqueue(first)
    heard: list[Hint | None] = []
    second.watch(heard.append)
    until(lambda: heard == [None], "it listens")

    first.settings.put_kind(DEFAULT_NAMESPACE, KindChange(kind=Kind("send"), concurrency_limit=2))

    until(lambda: READY in heard, "it is heard")


@spec("Z7", "B14")
def test_a_store_that_hears_no_notifications_says_that_it_polls(
    on_postgres: Pair, postgres_url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    first, _ = on_postgres
    facts = {fact.name: fact.value for fact in first.health()}
    monkeypatch.setattr(notifications, "HANDSHAKE_S", 0.05)

    def connect(_: object) -> Wire:
        return Wire(psycopg.connect(postgres_url, autocommit=True))

    deaf = Listener("me", channel_of("tenure"), connect, lambda *_: None)

    assert facts["wake-ups"] == "notifications"
    with closing(deaf):
        assert deaf.find_out() is False


@spec("Z7")
def test_a_listener_that_heard_nothing_tries_again(
    on_postgres: Pair, postgres_url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(notifications, "HANDSHAKE_S", 0.2)
    monkeypatch.setattr(notifications, "TRY_AGAIN_S", 0.05)
    heard: list[Hint | None] = []
    is_passed_on = threading.Event()

    def connect(_: object) -> Wire:
        return Wire(psycopg.connect(postgres_url, autocommit=True))

    def notify(channel: str, payloads: Sequence[str]) -> None:
        if is_passed_on.is_set():
            with psycopg.connect(postgres_url, autocommit=True) as connection:
                for payload in payloads:
                    connection.execute("SELECT pg_notify(%s, %s)", [channel, payload])

    with closing(Listener("me", channel_of("tenure"), connect, notify)) as listener:
        assert listener.find_out() is False
        listener.add(heard.append)

        is_passed_on.set()

        until(lambda: heard == [None], "it listens")
        assert listener.find_out() is True


@spec("Z7")
def test_a_probe_behind_a_pooler_in_transaction_mode_leaves_no_connection_listening(
    postgres_store: PostgresStore, postgres_url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(notifications, "HANDSHAKE_S", 0.5)
    with ExitStack() as stack:
        pooled = [
            stack.enter_context(psycopg.connect(postgres_url, autocommit=True)) for _ in range(3)
        ]
        turns = cycle(map(Wire, pooled))
        monkeypatch.setattr(
            notifications,
            "RoundTrip",
            lambda _, **named: RoundTrip(next(turns), **named),
        )
        while_probing: list[str] = []

        def notify(*_: object) -> None:
            while_probing.extend(_listened_to(pooled))

        def connect(_: object) -> Wire:
            return Wire(psycopg.connect(postgres_url, autocommit=True))

        client = Listener("me", channel_of("tenure"), connect, notify)
        with closing(client):
            assert client.find_out(PATIENCE_S) is False

        assert len(while_probing) == 1
        assert channel_of("tenure") not in while_probing
        assert _listened_to(pooled) == []


def _listened_to(connections: Sequence[psycopg.Connection[tuple[object, ...]]]) -> list[str]:
    """The channels that these connections listen to."""
    return [
        str(channel)
        for connection in connections
        for (channel,) in connection.execute("SELECT pg_listening_channels()").fetchall()
    ]


class Recorder:
    """Takes what a notifier sends, and can hold it up."""

    def __init__(self) -> None:
        self.sent: list[tuple[str, ...]] = []
        self.may_go_on = threading.Event()
        self.may_go_on.set()

    def __call__(self, channel: str, payloads: Sequence[str]) -> None:
        self.sent.append(tuple(payloads))
        self.may_go_on.wait()


@spec("Z7")
def test_hints_about_one_queue_are_combined(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(notifications, "SHORTEST_GAP_S", 3600.0)
    sent = Recorder()
    notifier = Notifier("me", "channel", sent)

    for _ in range(1000):
        notifier.notify([READY])
    notifier.notify([LATER])
    until(
        lambda: len({payload for payloads in sent.sent for payload in payloads}) == 2, "it is heard"
    )
    notifier.notify([READY])
    before = [payload for payloads in sent.sent for payload in payloads]
    notifier.close()

    after = [payload for payloads in sent.sent for payload in payloads]
    assert sorted(before) == sorted(set(before)), "one of each kind in the gap"
    assert len(after) == 3, "the last one is sent when the process ends"


@spec("Z7")
def test_a_hint_is_sent_at_once_even_if_the_last_call_hangs() -> None:
    sent = Recorder()
    sent.may_go_on.clear()
    notifier = Notifier("me", "channel", sent)

    notifier.notify([READY])
    until(lambda: len(sent.sent) == 1, "it is heard")
    began = time.monotonic()
    notifier.notify([LATER])

    assert time.monotonic() - began < 5, "telling waits for nothing"
    sent.may_go_on.set()
    notifier.close()
    assert len(sent.sent) == 2


@spec("Z7")
def test_a_hint_that_a_caller_sends_itself_counts_as_sent() -> None:
    notifier = Notifier("me", "channel", Recorder())

    due, payloads = notifier.take_due([READY, LATER])
    again, _ = notifier.take_due([READY])

    assert due == [READY, LATER]
    assert len(payloads) == 2
    assert again == []


# --- Waking a worker ----------------------------------------------------------------------------


@contextmanager
def watching(store: Store, *, is_wanted: Callable[[], bool] = lambda: True) -> Iterator[list[int]]:
    woken: list[int] = []
    watch = ReadyWatch(
        store, DEFAULT_NAMESPACE, [QUEUE], wake=lambda: woken.append(1), is_wanted=is_wanted
    )
    watch.start()
    try:
        yield woken
    finally:
        watch.stop()


@spec("Z7")
@pytest.mark.parametrize("kind", ["memory", "sqlite"])
def test_a_worker_is_woken_by_a_new_job(kind: str, tmp_path: Path) -> None:
    store = MemoryStore() if kind == "memory" else SqliteStore(tmp_path / "jobs.db")
    with closing(store), watching(store) as woken:
        assert not woken

        enqueue(store)

        until(lambda: bool(woken), "it is heard")


@spec("Z7")
@pytest.mark.parametrize("kind", ["memory", "sqlite"])
def test_a_worker_is_woken_when_a_delayed_job_is_due(kind: str, tmp_path: Path) -> None:
    store = MemoryStore() if kind == "memory" else SqliteStore(tmp_path / "jobs.db")
    with closing(store), watching(store) as woken:
        began = time.monotonic()
        enqueue(store, delay_us=seconds(0.3))

        until(lambda: bool(woken), "it is heard")

        assert time.monotonic() - began >= 0.29


@spec("Z7")
def test_a_worker_is_woken_for_each_of_several_delayed_jobs() -> None:
    class OneBlockedTwoDelayed:
        """One job stays ready: a limit blocks it."""

        looks = 0
        hints_arrive = False

        @property
        def claims(self) -> "OneBlockedTwoDelayed":
            return self

        def watch(self, on_hint: object) -> Callable[[], None]:
            return lambda: None

        def next_ready(self, *asked: object) -> NextReady:
            self.looks += 1
            return NextReady(True, seconds(0.05) if self.looks < 3 else None)

    store = OneBlockedTwoDelayed()
    began = time.monotonic()
    with watching(cast(Store, store)) as woken:
        until(lambda: len(woken) == 3, "it is told of each")

    assert 0.1 <= time.monotonic() - began < LONGEST_TIMER_S / 2
    assert store.looks == 3


@spec("Z7")
def test_a_busy_worker_hears_of_a_job_when_it_waits_again(tmp_path: Path) -> None:
    is_idle = threading.Event()
    with (
        closing(SqliteStore(tmp_path / "jobs.db")) as store,
        watching(store, is_wanted=is_idle.is_set) as woken,
    ):
        enqueue(store)
        assert not woken

        is_idle.set()

        until(lambda: bool(woken), "it is heard")


@spec("Z7")
def test_hints_about_other_queues_wake_nobody() -> None:
    class Hinting:
        """A store that says what has changed, as PostgreSQL does."""

        watchers = Watchers()
        watch = watchers.add
        hints_arrive = True

        @property
        def claims(self) -> "Hinting":
            return self

        def next_ready(self, *asked: object) -> NextReady:
            return NextReady(is_ready=False)

    store = Hinting()
    with watching(cast(Store, store)) as woken:
        store.watchers.notify(Hint(HintedChange.READY, DEFAULT_NAMESPACE, QueueName("other")))
        store.watchers.notify(Hint(HintedChange.READY, Namespace("elsewhere"), QUEUE))
        assert not woken

        store.watchers.notify(Hint(HintedChange.READY, DEFAULT_NAMESPACE, QUEUE))

        until(lambda: bool(woken), "it is heard")


@spec("V5")
def test_a_worker_asks_at_once_when_hints_no_longer_arrive() -> None:
    class Hinting:
        """A store whose listening connection can be lost."""

        watchers = Watchers()
        watch = watchers.add
        hints_arrive = True

        @property
        def claims(self) -> "Hinting":
            return self

        def next_ready(self, *asked: object) -> NextReady:
            return NextReady(is_ready=False)

    store = Hinting()
    with watching(cast(Store, store)) as woken:
        store.watchers.notify(None)
        assert not woken

        store.hints_arrive = False
        store.watchers.notify(None)

        assert woken == [1]
