"""Claims that begin at a mark: what they find, what they may miss, and for how long."""

import os
import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, closing
from hashlib import blake2b
from itertools import count
from typing import Any, TypeAlias

import psycopg
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from msgspec.structs import replace

from tenure.core.claims import ClaimPlan, ClaimRequest, ClaimScope, ClaimView, claim_order
from tenure.core.commands import Enqueue, Release
from tenure.core.ids import (
    DEFAULT_NAMESPACE,
    Actor,
    Epoch,
    JobId,
    Kind,
    QueueName,
    RequestId,
    ScheduleName,
    WorkerId,
    new_job_id,
    operator_actor,
)
from tenure.core.instants import Instant, seconds
from tenure.core.job import Job
from tenure.core.kind_settings import KindChange
from tenure.core.outcomes import Change, Moment
from tenure.core.rates import Rate, RateUnit
from tenure.core.schedules import PutSchedule, ScheduleSpec, decide_schedule, plan_firing
from tenure.deadlines import deadline
from tenure.errors import OutcomeUnknown
from tenure.ports import Hint, HintedChange
from tenure.stores.postgres.store import PostgresStore
from tenure.stores.sql.candidates import Reading
from tenure.stores.sql.claim_marks import (
    HINTED_SHARE,
    LONGEST_USE_S,
    MAX_MARKED_QUEUES,
    MAX_MARKS_OF_QUEUE,
    ClaimMarks,
    MarkedClaim,
    Place,
)
from tenure_conformance.spec import spec
from tests.stores.lives import QUEUE, WORKER, change, planner, save
from tests.support.postgres import PostgresServer
from tests.support.waiting import joined, until

SEND, CALL = Kind("send"), Kind("call")
KINDS = (SEND, CALL)
HINT = Hint(HintedChange.READY, DEFAULT_NAMESPACE, QUEUE)


def enqueued(
    kind: Kind, *, priority: int, at: int, number: int, queue: QueueName = QUEUE
) -> Change:
    """A job that is ready since `at`."""
    command = Enqueue(
        job_id=new_job_id(
            Instant(at), (blake2b(f"{queue}{number}".encode(), digest_size=16).digest())
        ),
        namespace=DEFAULT_NAMESPACE,
        queue=queue,
        kind=kind,
        actor=Actor("client:c"),
        payload=b"1",
        priority=priority,
    )
    return change(None, command, Instant(at))


def scope_of(*kinds: Kind) -> ClaimScope:
    return ClaimScope(namespace=DEFAULT_NAMESPACE, queues=(QUEUE,), kinds=kinds)


# --- Any order of events, on a model of a store ---------------------------------------------------

PROCESSES = 2


class Entry:
    """A job in the model: who holds it locked, since when it is ready, and which process was told
    so, in which step."""

    def __init__(self, job: Job, *, by: int, at_s: float) -> None:
        self.job = job
        self.is_claimed = False
        self.locked_by: object = None
        self.became_ready(by=by, at_s=at_s, told=None)

    def became_ready(self, *, by: int, at_s: float, told: int | None) -> None:
        self.by, self.ready_at_s, self.told = by, at_s, told
        self.is_claimed, self.locked_by = False, None

    def is_found_by(self, claim: "Claim") -> bool:
        """Whether a claim must not miss it."""
        is_told = self.by == claim.process and self.told is not None and self.told < claim.step
        return is_told or claim.began_at_s - self.ready_at_s >= LONGEST_USE_S


class Claim:
    """A claim under way in the model."""

    def __init__(self, process: int, kinds: tuple[Kind, ...], step: int, at_s: float) -> None:
        self.process, self.kinds, self.step, self.began_at_s = process, kinds, step, at_s
        self.context = ExitStack()
        self.held: list[Entry] = []
        self.has_read = False


class Model:
    """Two processes that share a queue. Steps are as small as those that threads can interleave."""

    def __init__(self) -> None:
        self.now_s = 100.0
        self.step = 0
        self.marks = [ClaimMarks(monotonic=lambda: self.now_s) for _ in range(PROCESSES)]
        self.entries: list[Entry] = []
        self.untold: list[Entry] = []
        self.claims: list[Claim] = []
        self.readings: dict[Claim, MarkedClaim] = {}

    def arrive(self, process: int, kind: Kind, priority: int, at: int) -> None:
        """A process has committed a job; it tells its marks in a later step."""
        made = enqueued(kind, priority=priority, at=at, number=len(self.entries))
        self.entries.append(Entry(made.job, by=process, at_s=self.now_s))
        self.untold.append(self.entries[-1])

    def tell(self) -> None:
        """The processes tell their marks what they have committed."""
        for entry in self.untold:
            made = enqueued_again(entry.job)
            self.marks[entry.by].made_ready([made])
            entry.told = self.step
        self.untold.clear()

    def hint(self, process: int) -> None:
        """A process hears another."""
        self.marks[process].hear(HINT)

    def wait(self, tenths: int) -> None:
        self.now_s += tenths / 10

    def begin(self, process: int, kinds: tuple[Kind, ...]) -> None:
        claim = Claim(process, kinds, self.step, self.now_s)
        context = self.marks[process].claim(scope_of(*kinds))
        self.readings[claim] = claim.context.enter_context(context)
        self.claims.append(claim)

    def read(self, nth: int, wanted: int) -> None:
        """A claim reads, and locks what it finds."""
        claim = self.claims[nth % len(self.claims)] if self.claims else None
        if claim is None or claim.has_read:
            return
        claim.has_read = True
        reading = self.readings[claim]
        first = self._first(claim, wanted, reading)
        reading.note_short({QUEUE: wanted}, {QUEUE: len(first)})
        if reading.must_read_again:
            reading.begin_at_front()
            again = self._first(claim, wanted, reading)
            reading.note_short({QUEUE: wanted}, {QUEUE: len(again)})
            reading.note(entry.job for entry in first)
            self._lock(claim, first)
            first = again
        reading.note(entry.job for entry in first)
        self._lock(claim, first)
        self._check(claim, first, wanted)

    def end(self, nth: int, granted: int | None) -> None:
        """A claim commits the first so many of what it has read, the last ones if negative, or it
        fails."""
        if not self.claims:
            return
        claim = self.claims.pop(nth % len(self.claims))
        held = sorted(claim.held, key=lambda entry: claim_order(entry.job))
        chosen = [] if granted is None else held[:granted] if granted > 0 else held[granted:]
        for entry in held:
            if entry in chosen:
                entry.is_claimed = True
            else:
                entry.became_ready(by=claim.process, at_s=self.now_s, told=self.step)
        self.readings.pop(claim).granted = {e.job.id for e in held if e.is_claimed}
        if granted is None:
            with pytest.raises(ZeroDivisionError), claim.context:
                raise ZeroDivisionError
        else:
            claim.context.close()

    def release(self, process: int, nth: int) -> None:
        """A claimed job returns to its place."""
        claimed = [entry for entry in self.entries if entry.is_claimed]
        if claimed:
            entry = claimed[nth % len(claimed)]
            entry.became_ready(by=process, at_s=self.now_s, told=None)
            self.untold.append(entry)

    def _first(self, claim: Claim, wanted: int, reading: MarkedClaim) -> list[Entry]:
        begins_at = reading.begins_at.get(QUEUE)
        found = [
            entry
            for entry in self._in_order(claim)
            if begins_at is None or self._is_at(begins_at.place, entry.job)
        ]
        return found[:wanted]

    def _is_at(self, mark: Place, job: Job) -> bool:
        """What a statement reads that begins at a mark: the rest of one priority."""
        return claim_order(job)[0] == mark[0] and claim_order(job) >= mark

    def _in_order(self, claim: Claim) -> list[Entry]:
        ready = [
            entry
            for entry in self.entries
            if not entry.is_claimed
            and entry.locked_by in (None, claim)
            and entry.job.kind in claim.kinds
        ]
        return sorted(ready, key=lambda entry: claim_order(entry.job))

    def _lock(self, claim: Claim, entries: Sequence[Entry]) -> None:
        for entry in entries:
            if entry.locked_by is None:
                entry.locked_by = claim
                claim.held.append(entry)

    def _check(self, claim: Claim, found: Sequence[Entry], wanted: int) -> None:
        expected = self._in_order(claim)[:wanted]
        if len(found) < wanted:
            assert found == expected, "it read from the front"
        missed = [entry for entry in expected if entry not in found]
        assert not any(entry.is_found_by(claim) for entry in missed)


def enqueued_again(job: Job) -> Change:
    return Change(job=job, expected_rev=0, events=())


Step: TypeAlias = Callable[[Model], None]

_process, _nth, _number = st.integers(0, PROCESSES - 1), st.integers(0, 2), st.integers(1, 2)
_kinds = st.sampled_from([KINDS, (SEND,)])


def _begun(process: int, kinds: tuple[Kind, ...], wanted: int) -> Step:
    def begin(model: Model) -> None:
        model.begin(process, kinds)
        model.read(-1, wanted)

    return begin


def _claimed_at_once(process: int, kinds: tuple[Kind, ...], wanted: int) -> Step:
    def claim(model: Model) -> None:
        model.begin(process, kinds)
        model.read(-1, wanted)
        model.end(-1, wanted)

    return claim


_steps: st.SearchStrategy[list[Step]] = st.lists(
    st.one_of(
        st.builds(_claimed_at_once, _process, _kinds, _number),
        st.builds(_begun, _process, _kinds, _number),
        st.builds(lambda p, k: lambda m: m.begin(p, k), _process, _kinds),
        st.builds(lambda n, w: lambda m: m.read(n, w), _nth, _number),
        st.builds(lambda n, g: lambda m: m.end(n, g), _nth, st.sampled_from([None, 1, 2, -1])),
        st.builds(
            lambda p, kind, priority, at: lambda m: m.arrive(p, kind, priority, at),
            _process,
            st.sampled_from(KINDS),
            st.integers(0, 1),
            st.integers(1, 9),
        ),
        st.builds(lambda p, n: lambda m: m.release(p, n), _process, _nth),
        st.just(lambda m: m.tell()),
        st.builds(lambda p: lambda m: m.hint(p), _process),
        st.builds(lambda t: lambda m: m.wait(t), st.sampled_from([1, 5, 10])),
    ),
    min_size=4,
    max_size=20,
)


@spec("Z8")
@given(_steps)
def test_whatever_arrives_before_a_mark_is_found_in_time(steps: list[Step]) -> None:
    model = Model()
    for number in range(8):
        model.arrive(0, KINDS[number % 2], 0, at=10 + number)
    model.tell()
    model.wait(20)

    for step in steps:
        model.step += 1
        step(model)

    while model.claims:
        model.end(0, None)


# --- Single steps ---------------------------------------------------------------------------------


class Clock:
    """Stands still unless told."""

    def __init__(self) -> None:
        self.now_s = 100.0

    def __call__(self) -> float:
        return self.now_s


def marked_model() -> Model:
    """Four jobs are left, and a claim of the first process begins behind the four that are gone."""
    model = Model()
    for number in range(8):
        model.arrive(0, SEND, 0, at=10 + number)
    model.tell()
    _claimed_at_once(0, KINDS, 4)(model)
    model.step += 1
    return model


@spec("Z8")
def test_a_claim_that_read_from_its_mark_does_not_hide_what_the_front_showed_meanwhile() -> None:
    model = marked_model()
    model.begin(0, KINDS)
    model.read(-1, 1)
    model.arrive(1, SEND, 1, at=1)
    model.arrive(1, SEND, 1, at=2)
    model.wait(10)
    _claimed_at_once(0, KINDS, 1)(model)

    model.end(0, 1)

    _claimed_at_once(0, KINDS, 1)(model)
    assert all(entry.is_claimed for entry in model.entries if entry.job.priority == 1)


@spec("Z8")
def test_a_job_that_becomes_ready_while_a_claim_is_under_way_is_claimed_next() -> None:
    model = marked_model()
    model.begin(0, KINDS)
    model.read(-1, 1)
    model.arrive(0, SEND, 0, at=1)
    model.tell()

    model.end(0, 1)

    model.step += 1
    _claimed_at_once(0, KINDS, 1)(model)
    assert model.entries[-1].is_claimed


@spec("Z8")
def test_a_job_that_a_claim_left_is_claimed_next() -> None:
    model = marked_model()
    model.begin(0, KINDS)
    model.read(-1, 2)
    first, _ = model.claims[0].held

    model.end(0, -1)

    model.step += 1
    _claimed_at_once(0, KINDS, 1)(model)
    assert first.is_claimed


@spec("Z8")
def test_a_job_that_becomes_ready_while_a_claim_moves_its_mark_is_not_hidden() -> None:
    first, urgent = (enqueued(SEND, priority=level, at=1, number=level) for level in (0, 1))
    claims: list[MarkedClaim] = []
    arrivals: list[threading.Thread] = []

    def monotonic() -> float:
        """Called last while the mark is being moved."""
        if claims and not arrivals:
            arrivals.append(threading.Thread(target=marks.made_ready, args=([urgent],)))
            arrivals[0].start()
            arrivals[0].join(0.2)
        return 100.0

    marks = ClaimMarks(monotonic=monotonic)
    with marks.claim(scope_of(SEND)) as reading:
        claims.append(reading)
        reading.note_short({QUEUE: 1}, {QUEUE: 1})
        reading.note([first.job])
        reading.granted = {first.job.id}
    joined(arrivals[0], "the job has arrived")

    with marks.claim(scope_of(SEND)) as following:
        assert not following.begins_at


@spec("Z8")
def test_after_a_hint_the_front_is_read_for_a_twentieth_of_the_time() -> None:
    clock = Clock()
    marks = ClaimMarks(monotonic=clock)
    job = enqueued(SEND, priority=0, at=1, number=1).job
    with marks.claim(scope_of(SEND)) as reading:
        reading.note_short({QUEUE: 1}, {QUEUE: 1})
        reading.note([job])
        reading.granted = {job.id}
        clock.now_s += 0.01
    marks.hear(HINT)

    begins = []
    for _ in range(2):
        with marks.claim(scope_of(SEND)) as reading:
            begins.append(dict(reading.begins_at))
            reading.note_short({QUEUE: 1}, {QUEUE: 1})
        clock.now_s += HINTED_SHARE * 0.01

    assert [QUEUE in each for each in begins] == [True, False]


@spec("Z8")
def test_only_hints_about_ready_jobs_shorten_the_use_of_a_mark() -> None:
    model = marked_model()
    [marks] = model.marks[0]._marks.values()

    for what in (HintedChange.ENDED, HintedChange.LATER):
        model.marks[0].hear(replace(HINT, change=what))
    before = marks[KINDS].is_hinted
    model.hint(0)

    assert (before, marks[KINDS].is_hinted) == (False, True)


@spec("Z8")
def test_marks_are_bounded() -> None:
    marks = ClaimMarks()
    job = enqueued(SEND, priority=0, at=1, number=1).job

    def mark(scope: ClaimScope) -> None:
        [queue] = scope.queues
        with marks.claim(scope) as reading:
            reading.note_short({queue: 1}, {queue: 1})
            reading.note([replace(job, queue=queue)])
            reading.granted = {job.id}

    for number in range(2 * MAX_MARKED_QUEUES):
        mark(replace(scope_of(SEND), queues=(QueueName(f"q{number}"),)))
    for number in range(2 * MAX_MARKS_OF_QUEUE):
        mark(scope_of(SEND, Kind(f"k{number}")))

    assert 0 < len(marks._marks) <= MAX_MARKED_QUEUES
    assert 0 < max(map(len, marks._marks.values())) <= MAX_MARKS_OF_QUEUE


# --- On PostgreSQL --------------------------------------------------------------------------------


class Queue:
    """A queue of a PostgreSQL store, whose marks are used while their clock stands still."""

    def __init__(self, store: PostgresStore, name: str, *, first_number: int = 0) -> None:
        self.store = store
        self.name = QueueName(name)
        self.clock = Clock()
        store._claim_marks = self.marks = ClaimMarks(monotonic=self.clock)
        self.waiting: list[Job] = []
        self.leased: list[Job] = []
        self._numbers = count(first_number)

    def enqueue(self, kind: Kind, priority: int, at: int) -> Job:
        number = next(self._numbers)
        made = enqueued(kind, priority=priority, at=at, number=number, queue=self.name)
        save(self.store, [made])
        self.waiting.append(made.job)
        return made.job

    def claim(self, kinds: tuple[Kind, ...], wanted: int) -> list[JobId]:
        """The ids of what a claim was granted."""
        number = next(self._numbers)
        request = ClaimRequest(
            namespace=DEFAULT_NAMESPACE,
            worker=WorkerId(f"{self.name}-{number}"),
            actor=WORKER,
            queues=(self.name,),
            kinds=kinds,
            limit=wanted,
            claim_seq=1,
            request_id=RequestId(f"{self.name}-{number}"),
        )
        planned = self.store.claims.claim(
            request.scope, [request.session], wanted, planner(request)
        )
        granted = [grant.job for answer in planned.answers for grant in answer.grants]
        self.leased += granted
        return [job.id for job in granted]

    def release(self, nth: int) -> None:
        """A job returns to its place."""
        if self.leased:
            job = self.leased.pop(nth % len(self.leased))
            assert job.lease_id is not None
            command = Release(
                job_id=job.id, lease_id=job.lease_id, actor=WORKER, request_id=RequestId("r")
            )
            made = change(job, command, self.store.now())
            save(self.store, [made])
            self.waiting.append(made.job)

    def expected(self, kinds: tuple[Kind, ...], wanted: int) -> list[JobId]:
        """The first of those that wait; they no longer do."""
        first = sorted((job for job in self.waiting if job.kind in kinds), key=claim_order)[:wanted]
        self.waiting = [job for job in self.waiting if job not in first]
        return [job.id for job in first]

    @property
    def has_marks(self) -> bool:
        return bool(self.marks._marks)


@pytest.fixture
def queue(postgres_store: PostgresStore) -> Queue:
    return Queue(postgres_store, "marked")


@pytest.fixture(scope="module")
def shared_store(postgres: PostgresServer) -> Iterator[PostgresStore]:
    url = postgres.create_database()
    with closing(PostgresStore(url, migrate=True)) as store:
        yield store
    postgres.drop_database(url)


_queue_steps: st.SearchStrategy[list[Callable[[Queue], None]]] = st.lists(
    st.one_of(
        st.builds(
            lambda kind, priority, at: lambda q: q.enqueue(kind, priority, at) and None,
            st.sampled_from(KINDS),
            st.integers(-1, 1),
            st.integers(1, 3),
        ),
        st.builds(lambda n: lambda q: q.release(n), st.integers(0, 9)),
        st.builds(
            lambda kinds, n: lambda q: _claims_in_order(q, kinds, n),
            st.sampled_from([KINDS, (SEND,)]),
            st.integers(1, 2),
        ),
    ),
    min_size=5,
    max_size=25,
)


def _claims_in_order(queue: Queue, kinds: tuple[Kind, ...], wanted: int) -> None:
    expected = queue.expected(kinds, wanted)
    assert queue.claim(kinds, wanted) == expected


@spec("Z1", "Z8")
@settings(max_examples=30)
@given(steps=_queue_steps)
def test_claims_of_one_process_are_in_order_whatever_it_makes_ready(
    shared_store: PostgresStore, steps: list[Callable[[Queue], None]]
) -> None:
    queue = Queue(shared_store, f"q{os.urandom(6).hex()}")
    for number in range(4):
        queue.enqueue(KINDS[number % 2], 0, 2)

    for step in steps:
        step(queue)


@spec("Z8")
def test_a_job_of_another_process_is_found_after_a_second(queue: Queue, postgres_url: str) -> None:
    for number in range(6):
        queue.enqueue(SEND, 0, number + 10)
    queue.claim((SEND,), 1)
    with closing(PostgresStore(postgres_url)) as store:
        urgent = Queue(store, queue.name, first_number=100).enqueue(SEND, 9, 1)
    in_order = queue.expected((SEND,), 9)

    missed = queue.claim((SEND,), 1)
    queue.clock.now_s += LONGEST_USE_S
    found = queue.claim((SEND,), 1)

    assert missed == in_order[1:2]  # the first one was granted before
    assert found == [urgent.id]


@spec("Z8")
def test_a_claim_that_gets_less_than_it_wants_has_read_from_the_front(
    queue: Queue, postgres_url: str
) -> None:
    for number in range(3):
        queue.enqueue(SEND, 0, number + 10)
    queue.claim((SEND,), 1)
    with closing(PostgresStore(postgres_url)) as store:
        other = Queue(store, queue.name, first_number=100).enqueue(SEND, 9, 1)

    granted = queue.claim((SEND,), 4)

    assert granted[0] == other.id
    assert len(granted) == 3
    assert not queue.has_marks  # the next claims read once


@spec("Z8", "Z7")
def test_a_hint_of_another_process_reaches_the_marks(queue: Queue, postgres_url: str) -> None:
    stop = queue.store.watch(lambda hint: None)
    until(queue.store._notifications.arrive, "notifications arrive")
    for number in range(3):
        queue.enqueue(SEND, 0, number + 10)
    queue.claim((SEND,), 1)
    # The store was opened with marks of its own.
    queue.store._notifications._listener._on_heard = queue.marks.hear
    with closing(PostgresStore(postgres_url)) as store:
        Queue(store, queue.name, first_number=100).enqueue(SEND, 9, 1)

    [marks] = queue.marks._marks.values()
    until(lambda: marks[SEND,].is_hinted, "the hint arrives")
    stop()


@spec("Z8", "SC3")
def test_the_job_of_a_schedule_is_not_passed_over(queue: Queue) -> None:
    for number in range(3):
        queue.enqueue(SEND, 0, number + 10)
    queue.claim((SEND,), 1)
    put = PutSchedule(
        namespace=DEFAULT_NAMESPACE,
        name=ScheduleName("s"),
        actor=operator_actor("o"),
        spec=ScheduleSpec(kind=SEND, queue=queue.name, every_us=seconds(60), priority=9),
    )
    made = decide_schedule(None, put, Moment(now=Instant(1), epoch=Epoch(1), entropy=b""))
    assert made.change is not None
    at = Moment(now=Instant(1 + seconds(60)), epoch=Epoch(1), entropy=b"")
    firing = plan_firing(made.change.schedule, None, at).change
    assert firing.job is not None

    for each in (made.change, firing):
        assert queue.store.schedules.save(each, epoch=Epoch(1))

    assert queue.has_marks
    assert queue.claim((SEND,), 1) == [firing.job.job.id]


@spec("Z8", "K6")
def test_a_job_whose_commit_was_not_answered_is_not_passed_over(
    queue: Queue, monkeypatch: pytest.MonkeyPatch
) -> None:
    for number in range(3):
        queue.enqueue(SEND, 0, number + 10)
    queue.claim((SEND,), 1)

    def commit_unanswered(*given: Any, **options: Any) -> None:
        PostgresStore._transact(queue.store, *given, **options)
        raise OutcomeUnknown("the connection was lost", hint="send it again")

    monkeypatch.setattr(queue.store, "_transact", commit_unanswered)
    with pytest.raises(OutcomeUnknown):
        queue.enqueue(SEND, 9, 1)
    monkeypatch.undo()

    queue.claim((SEND,), 1)
    assert queue.leased[-1].priority == 9


@spec("Z4", "Z8")
def test_a_claim_that_fails_hides_nothing(queue: Queue) -> None:
    """Another claim of the process has passed what it held locked."""
    for number in range(6):
        queue.enqueue(SEND, 0, number + 10)
    first, second, *_ = queue.expected((SEND,), 9)
    claims: list[list[JobId]] = []

    def fail(view: ClaimView) -> ClaimPlan:
        claims.append(queue.claim((SEND,), 1))
        raise ZeroDivisionError

    scope = ClaimScope(namespace=DEFAULT_NAMESPACE, queues=(queue.name,), kinds=(SEND,))
    with pytest.raises(ZeroDivisionError):
        queue.store.claims.claim(scope, [], 1, fail)
    claims.append(queue.claim((SEND,), 1))

    assert claims == [[second], [first]]


@spec("Z8", "RL8")
def test_a_kind_that_its_rate_holds_back_is_not_passed_over_afterwards(queue: Queue) -> None:
    slow = Rate(grants=1, per=RateUnit.DAY, burst=1)
    for number in range(3):
        queue.enqueue(SEND, 0, number + 10)
    for number in range(4):
        queue.enqueue(CALL, 0, number + 20)
    queue.store.settings.put_kind(DEFAULT_NAMESPACE, KindChange(kind=SEND, rate=slow))

    while_slow = [queue.claim(KINDS, 1) for _ in range(3)]
    has_marks = queue.has_marks
    queue.store.settings.put_kind(DEFAULT_NAMESPACE, KindChange(kind=SEND, rate=None))
    afterwards = [queue.claim(KINDS, 1) for _ in range(2)]

    sent, called = queue.expected((SEND,), 9), queue.expected((CALL,), 9)
    assert while_slow == [[sent[0]], [called[0]], [called[1]]]
    assert not has_marks  # there may be room for the first kind at any time
    assert afterwards == [[sent[1]], [sent[2]]]


@spec("Z1")
@pytest.mark.parametrize("kinds", [(SEND,), KINDS], ids=["one kind", "two kinds"])
def test_a_claim_from_its_mark_reads_its_index_in_order(
    queue: Queue, postgres_url: str, kinds: tuple[Kind, ...]
) -> None:
    queue.enqueue(SEND, 0, 1)
    queue.enqueue(SEND, 0, 2)
    queue.claim(kinds, 1)
    scope = ClaimScope(namespace=DEFAULT_NAMESPACE, queues=(queue.name,), kinds=kinds)
    with queue.marks.claim(scope) as reading:
        begins_at = dict(reading.begins_at)

    store, wanted = queue.store, {queue.name: 200}
    asked = Reading(scope, {queue.name: kinds}, wanted, begins_at=begins_at)
    query = store._candidate_queries(asked)[0]
    with psycopg.connect(postgres_url, cursor_factory=psycopg.RawCursor) as raw:
        settings_query = store._settings(deadline(10), None)
        raw.execute(settings_query.text, settings_query.parameters)
        rows = raw.execute(f"EXPLAIN {query.text}".encode(), query.parameters).fetchall()
    plan = "\n".join(row[0] for row in rows)

    assert plan.count("using job_ready") == len(kinds)
    assert plan.count("(ROW(run_at, id) >= ROW(") == len(kinds)
    assert "Seq Scan" not in plan
    assert "->  Sort" not in plan
