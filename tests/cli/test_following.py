"""`tenure events --follow` as people and programs use it."""

import json
import signal
import subprocess
import threading
from collections.abc import Callable, Iterator
from contextlib import closing, suppress
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import psycopg
import pytest

from tenure.cli import events, following
from tenure.cli.following import Reconnecting, wait_for_end
from tenure.coordinator.service import Coordinator
from tenure.core.commands import Cancel, Complete, Heartbeat
from tenure.core.ids import DEFAULT_NAMESPACE, JobId, RequestId, operator_actor
from tenure.core.instants import Duration
from tenure.core.job import Progress
from tenure.core.views.events import TailFilter, TailPage
from tenure.core.vocabulary import JobStatus
from tenure.errors import StoreUnavailable
from tenure.own_transaction.postgres import store_on
from tenure.ports import Coordination, JobStore
from tenure.stores.postgres.store import PostgresStore
from tenure_conformance.spec import spec
from tests.cli.harness import TENURE, Run, enqueued, started
from tests.stores.lives import enqueue
from tests.support.coordinators import World
from tests.support.doubles import Intercepted
from tests.support.terminals import CTRL_C, Terminal
from tests.support.waiting import PATIENCE_S, answer_of, until

process = pytest.mark.process


class Following:
    """A process `tenure events -f` whose output is a pipe."""

    def __init__(self, *words: str) -> None:
        self.process = subprocess.Popen(
            [*TENURE, "events", "-f", *words],
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )

    def line(self) -> str:
        assert self.process.stdout is not None
        return answer_of(self.process.stdout.readline, "it writes a line")

    def ended(self, *, sent: signal.Signals | None = None) -> tuple[int, str]:
        """Its exit code, and what it said on stderr."""
        if sent is not None:
            self.process.send_signal(sent)
        _, said = self.process.communicate(timeout=PATIENCE_S)
        return self.process.returncode, said


@process
@spec("E33", "LV2")
def test_a_program_reads_one_document_on_each_line_and_continues_at_a_position(
    run: Run,
) -> None:
    first = enqueued(run, "mail")
    follower = Following("--json", "-n", "1")
    shown = json.loads(follower.line())
    second = enqueued(run, "mail", "--correlation-id", "a\u202eb")

    line = follower.line()

    position = shown["position"]
    assert shown["event"]["job_id"] == first
    assert json.loads(line)["event"]["correlation_id"] == "a\u202eb"
    assert "\u202e" not in line
    assert follower.ended(sent=signal.SIGINT) == (0, "\n")
    again = Following("--json", "--after", position)
    assert json.loads(again.line())["event"]["job_id"] == second
    again.ended(sent=signal.SIGINT)


@process
@spec("E33", "LV1")
def test_it_ends_quietly_when_nobody_reads_any_more(run: Run) -> None:
    enqueued(run, "mail")
    follower = Following()
    assert follower.line().startswith("TIME ")
    assert "\x1b" not in follower.line()

    assert follower.process.stdout is not None
    follower.process.stdout.close()

    assert follower.process.wait(PATIENCE_S) == 0
    assert follower.process.stderr is not None
    assert answer_of(follower.process.stderr.read, "stderr is closed") == ""
    follower.process.stderr.close()


@process
@spec("E33")
def test_a_person_sees_lines_that_fit_and_stops_with_ctrl_c(run: Run, store_path: Path) -> None:
    job_id = enqueued(run, "mail")

    with Terminal("events", "-f", directory=store_path.parent, columns=80) as terminal:
        terminal.until(job_id[:18])
        lines = terminal.lines
        terminal.type(CTRL_C)
        code = terminal.ended()

    assert code == 0
    assert lines[0].split()[:5] == ["TIME", "JOB", "KIND", "EVENT", "CHANGE"]
    assert lines[1][14:].startswith(f"{job_id[:18]}…  mail            enqueued          - → queued")
    assert lines[2] == ""


@spec("E33")
@pytest.mark.parametrize(
    ("words", "beats"),
    [
        ((), 0),
        (("--json",), 2),
        (("--type", "heartbeat", "--type", "enqueued", "--type", "succeeded"), 2),
    ],
)
def test_heartbeats_are_shown_to_those_who_ask_and_all_others_to_everybody(
    run: Run,
    serving: Coordinator,
    monkeypatch: pytest.MonkeyPatch,
    words: tuple[str, ...],
    beats: int,
) -> None:
    enqueued(run, "mail")
    held = started(serving)
    steps = iter((lambda: _beats(serving, held), lambda: _complete(serving, held), _stop))
    monkeypatch.setattr(events, "pause", lambda _: next(steps)())

    lines = run("events", "-f", "-n", "2", *words).stdout.splitlines()

    assert sum("heartbeat" in line for line in lines) == beats
    assert sum("succeeded" in line for line in lines) == 1


@spec("E33")
def test_it_begins_with_the_newest_events_that_it_shows_and_names_their_kinds(
    run: Run, serving: Coordinator, monkeypatch: pytest.MonkeyPatch
) -> None:
    enqueued(run, "mail")
    held = started(serving)
    _beats(serving, held)
    monkeypatch.setattr(events, "pause", lambda _: _stop())

    lines = run("events", "-f", "-n", "2").stdout.splitlines()

    assert [line.split()[2:4] for line in lines] == [
        ["KIND", "EVENT"],
        ["mail", "claimed"],
        ["mail", "started"],
    ]


def _beats(serving: Coordinator, held: dict[str, Any]) -> None:
    for done in (1, 2):
        said = Progress(done=done, total=4)
        serving.execute(Heartbeat(**held, hb_seq=done, progress=said))


def _complete(serving: Coordinator, held: dict[str, Any]) -> None:
    serving.execute(Complete(**held, request_id=RequestId("end"), result=b"7"))


def _stop() -> None:
    raise KeyboardInterrupt


class Over(Exception):
    """The follower has seen enough."""


class Watched:
    """A store for a follower in this process: counts its questions, and ends it."""

    def __init__(self, store: Any) -> None:
        self.events = self
        self._store = store
        self.questions = 0
        self.is_over = False

    def follow(self, wanted: TailFilter, **more: Any) -> TailPage:
        if self.is_over:
            raise Over
        page: TailPage = self._store.events.follow(wanted, **more)
        self.questions += 1
        return page


@pytest.fixture
def postgres_store(postgres_url: str) -> Iterator[PostgresStore]:
    with closing(PostgresStore(postgres_url, migrate=True)) as store:
        yield store


@pytest.fixture
def quick_polls(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(events, "POLL_S", 0.01)
    monkeypatch.setattr(following, "FIRST_RETRY_S", 0.01)
    monkeypatch.setattr(following, "LONGEST_RETRY_S", 0.01)


@spec("E33", "E32")
def test_a_transaction_that_commits_late_is_not_missed(
    postgres_store: PostgresStore,
    postgres_url: str,
    monkeypatch: pytest.MonkeyPatch,
    quick_polls: None,
) -> None:
    shown: list[JobId] = []

    monkeypatch.setattr(
        events, "print_json_line", lambda document: shown.append(document.event.job_id)
    )
    enqueue(postgres_store)  # the queue exists: two transactions that make it would wait
    store = Watched(postgres_store)
    wanted = TailFilter(namespace=DEFAULT_NAMESPACE, newest=0)

    def follow() -> None:
        with suppress(Over):
            events._follow(cast(JobStore, store), wanted, as_json=True)

    follower = threading.Thread(target=follow, daemon=True)
    follower.start()
    until(lambda: store.questions, "it follows")

    with psycopg.connect(postgres_url) as raw:
        [late] = enqueue(store_on(postgres_store, raw))
        [early] = enqueue(postgres_store)  # committed before, by a transaction that began later
        asked = store.questions
        until(lambda: store.questions > asked + 3, "it looks again")
        while_open = list(shown)
    until(lambda: len(shown) == 2, "both are shown", seen=lambda: shown)
    store.is_over = True
    follower.join(PATIENCE_S)

    assert while_open == []
    assert shown == [late, early]


@spec("E35")
def test_it_says_once_which_transaction_delays_events(
    postgres_store: PostgresStore,
    postgres_url: str,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    delays = events._Delays(postgres_store)
    monkeypatch.setattr(events, "DELAY_S", 0.0)
    enqueue(postgres_store)

    with psycopg.connect(postgres_url, application_name="report\x1b[2J") as raw:
        raw.execute("SELECT pg_current_xact_id()")
        enqueue(postgres_store)
        delays.report(Reconnecting())
        at_once = capsys.readouterr().err
        for _ in range(3):
            delays.report(Reconnecting())
        pid = raw.info.backend_pid
    delays.report(Reconnecting())

    [said] = capsys.readouterr().err.splitlines()
    assert at_once == ""
    assert said.startswith("tenure: events are delayed by an open transaction of report")
    assert f"(backend {pid}), idle in transaction, open for " in said
    assert "\x1b" not in said


@spec("LV5")
def test_after_a_lost_connection_it_says_so_without_advice_and_continues_where_it_was(
    capsys: pytest.CaptureFixture[str], quick_polls: None
) -> None:
    answers: list[Callable[[], str]] = [lambda: "first", _away, _away, lambda: "second"]
    reading = Reconnecting()

    given = [reading.ask(lambda: answers.pop(0)()) for _ in range(2)]

    assert given == ["first", "second"]
    assert capsys.readouterr().err.splitlines() == [
        "tenure: lost the connection: it is away; trying again until it is back",
        "tenure: connected again; continues where it was",
    ]


def test_a_store_that_never_answered_is_not_waited_for(quick_polls: None) -> None:
    with pytest.raises(StoreUnavailable):
        Reconnecting().ask(_away)


@spec("LV5")
def test_a_view_with_a_timeout_does_not_wait_longer_for_a_lost_store(quick_polls: None) -> None:
    answers: list[Callable[[], str]] = [lambda: "first", _away, lambda: "too late"]
    reading = Reconnecting(timeout=Duration(0))
    reading.ask(lambda: answers.pop(0)())

    with pytest.raises(StoreUnavailable):
        reading.ask(lambda: answers.pop(0)())


@spec("LV5")
def test_a_wait_continues_after_the_store_was_lost(
    capsys: pytest.CaptureFixture[str], quick_polls: None
) -> None:
    world = World()
    job = world.enqueue()
    cancel = Cancel(job_id=job.id, actor=operator_actor("ann"), request_id=world.request_id())
    lost = Lost(world.store, ends=lambda: world.coordinator.execute(cancel))

    serving = SimpleNamespace(store=lost, read_jobs=lost.jobs.read)

    ended = wait_for_end(cast(Coordination, serving), job.id, None)

    assert ended.status is JobStatus.CANCELLED
    assert capsys.readouterr().err.splitlines()[-2:] == [
        "tenure: lost the connection: it is away; trying again until it is back",
        "tenure: connected again; continues where it was",
    ]


class Lost(Intercepted):
    """A store that is away after the first question; then it is back and the job has ended."""

    def __init__(self, store: Any, *, ends: Callable[[], object]) -> None:
        super().__init__(store, self._answer)
        self._ends = ends
        self._asked = 0

    def _answer(self, _place: str, method: Callable[..., Any], *given: Any, **named: Any) -> Any:
        self._asked += 1
        if self._asked in (2, 3):
            raise StoreUnavailable("it is away")
        if self._asked == 4:
            self._ends()
        return method(*given, **named)


def _away() -> str:
    raise StoreUnavailable("it is away", hint="look for it")


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (("--since", "1h"), "--since and --until do not go with --follow"),
        (("-n", "101"), "at most 100 of the newest"),
        (("-n", "1", "--oldest-first"), "takes one of -n, --after and --oldest-first"),
        (("--after", "nowhere"), "is not a position"),
        (("--type", "nope"), "is not one of"),
    ],
)
def test_a_wrong_question_is_refused(run: Run, words: tuple[str, ...], said: str) -> None:
    enqueued(run, "mail")

    refused = run("events", "-f", *words)

    assert refused.exit_code == 2
    assert said in refused.stderr
