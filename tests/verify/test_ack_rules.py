"""What callers were told is held against the log: kept, kept once, and never contradicted."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from msgspec.structs import replace

from tenure.core.commands import (
    Cancel,
    Command,
    Complete,
    DeadLetter,
    Fail,
    Heartbeat,
    Redrive,
    Requeue,
    Start,
)
from tenure.core.ids import Actor, JobId, LeaseId, RequestId
from tenure.core.instants import Instant, seconds
from tenure.core.job import JobError
from tenure.core.policy import Policy
from tenure.core.verdicts import Reply, Verdict
from tenure.core.vocabulary import (
    CancelMode,
    EventType,
    JobStatus,
    OnLost,
    ReasonCode,
    VerdictKind,
)
from tenure.ports import JobHistory
from tenure.verify import Ack, AckOp, AckWriter, VerifyReport, check_record, verify
from tenure_conformance.spec import spec
from tests.support.corruptions import with_events, with_job
from tests.support.histories import OPERATOR, PRODUCER, RecordedStore, World

DAY = seconds(24 * 3600)
POLICY = Policy(lease_us=seconds(30))


class Told(World):
    """A world in which every answer arrives and jobs are driven one by one."""

    def __init__(self, policy: Policy = POLICY) -> None:
        super().__init__(3, lost_answers=0)
        self.job_id = self.enqueue(policy)
        self.advance(seconds_=10)

    def grant(self) -> tuple[LeaseId, Actor]:
        lease_id = self.claim(self.job_id)
        assert lease_id is not None
        return lease_id, self.leases[-1][2]

    def start(self) -> tuple[LeaseId, Actor]:
        lease_id, actor = self.grant()
        self.tell(
            Start(job_id=self.job_id, lease_id=lease_id, actor=actor, request_id=RequestId("s"))
        )
        return lease_id, actor

    def tell(self, command: Command) -> None:
        answer = self.submit(command)
        assert isinstance(answer, Verdict | Reply)

    def complete(self) -> None:
        lease_id, actor = self.start()
        self.tell(
            Complete(job_id=self.job_id, lease_id=lease_id, actor=actor, request_id=RequestId("d"))
        )

    def cancel(self, mode: CancelMode = CancelMode.SOFT) -> None:
        self.tell(Cancel(job_id=self.job_id, actor=PRODUCER, request_id=RequestId("c"), mode=mode))

    def broken(self, record: JobHistory | None = None) -> set[str]:
        """The rules that need acknowledgements and are broken, by the record or by another one."""
        found = check_record(record or self.record(self.job_id), self.acks_of(self.job_id))
        return {violation.invariant for violation in found} & {"I13", "I14", "I16", "I21", "P3"}

    def without(self, *types: EventType) -> JobHistory:
        """The job's record as if these events and everything after them had been lost."""
        record = self.record(self.job_id)
        kept = []
        for event in record.events:
            if event.type in types:
                break
            kept.append(event)
        assert record.job is not None
        return with_events(with_job(record, replace(record.job, rev=len(kept))), kept)


def completed(world: Told) -> None:
    world.complete()


def failed(world: Told) -> None:
    lease_id, actor = world.start()
    world.tell(
        Fail(
            job_id=world.job_id,
            lease_id=lease_id,
            actor=actor,
            request_id=RequestId("f"),
            error=JobError(),
        )
    )


@spec("I13", "I21")
@pytest.mark.parametrize(
    ("report", "settled"), [(completed, EventType.SUCCEEDED), (failed, EventType.STALLED)]
)
def test_a_commit_without_its_settle_event_is_noticed(
    report: Callable[[Told], None], settled: EventType
) -> None:
    world = Told()
    report(world)

    assert not world.broken()
    assert {"I13", "I21"} <= world.broken(world.without(settled))


@spec("I13")
def test_a_commit_settled_twice_is_noticed() -> None:
    world = Told()
    world.complete()
    record = world.record(world.job_id)

    twice = with_events(record, [*record.events, record.events[-1]])

    assert "I13" in world.broken(twice)


@spec("I13")
@pytest.mark.parametrize("change", [{"request_id": "another"}, {"lease_id": "1-" + "0" * 32}])
def test_a_commit_settled_by_another_request_is_noticed(change: dict[str, str]) -> None:
    world = Told()
    world.complete()
    record = world.record(world.job_id)

    other = with_events(record, [*record.events[:-1], replace(record.events[-1], **change)])

    assert "I13" in world.broken(other)


@spec("I13")
def test_a_commit_after_its_leases_end_is_noticed() -> None:
    world = Told()
    world.complete()
    record = world.record(world.job_id)
    end = record.events[-1]
    assert end.lease_expires_at is not None

    late = with_events(record, [*record.events[:-1], replace(end, ts=end.lease_expires_at)])

    assert "I13" in world.broken(late)


@spec("I14")
def test_a_grant_after_an_acknowledged_cancel_is_noticed() -> None:
    world, granted = Told(), Told()
    world.cancel()
    granted.grant()
    record = world.record(world.job_id)
    claimed = replace(granted.record(granted.job_id).events[-1], seq=3, job_id=world.job_id)

    assert not world.broken()
    assert "I14" in world.broken(with_events(record, [*record.events, claimed]))


@spec("I14", "I21")
def test_a_grant_is_noticed_also_where_the_acknowledged_cancel_was_lost() -> None:
    world, granted = Told(), Told()
    world.cancel()
    granted.grant()
    log = granted.record(granted.job_id).events
    lost = [*world.record(world.job_id).events[:1], *(replace(e, seq=e.seq + 1) for e in log[1:])]

    assert {"I14", "I21"} <= world.broken(with_events(world.record(world.job_id), lost))


@spec("I14")
def test_a_pending_cancel_of_a_running_job_forbids_no_earlier_grant() -> None:
    world = Told()
    world.start()
    world.cancel()

    assert any(ack.pending for ack in world.acks)
    assert not world.broken()


@spec("I16", "I21")
def test_an_acknowledged_enqueue_without_a_row_is_noticed() -> None:
    world = Told()

    assert not world.broken()
    assert {"I16", "I21"} <= world.broken(with_job(world.record(world.job_id), None))


@spec("I16")
def test_an_enqueue_that_happened_twice_is_noticed_acknowledged_or_not() -> None:
    world = Told()
    record = world.record(world.job_id)
    twice = with_events(record, [*record.events, replace(record.events[0], seq=2)])

    assert "I16" in world.broken(twice)

    world.acks = [ack for ack in world.acks if ack.answer is None]
    assert "I16" in world.broken(twice)


@spec("I16", "I21")
def test_an_enqueue_that_was_not_acknowledged_may_be_missing() -> None:
    world = Told()
    world.acks = [ack for ack in world.acks if ack.answer is None]

    assert not world.broken(with_job(world.record(world.job_id), None))


def started(world: Told) -> None:
    world.start()


def granted(world: Told) -> None:
    world.grant()


def beaten(world: Told) -> None:
    lease_id, actor = world.start()
    world.tell(Heartbeat(job_id=world.job_id, lease_id=lease_id, actor=actor, hb_seq=1))


def cancelled(world: Told) -> None:
    world.cancel()


def asked_to_stop(world: Told) -> None:
    world.start()
    world.cancel()


def let_go(world: Told) -> None:
    world.grant()
    world.advance(seconds_=31)
    world.sweep()
    world.tell(Requeue(job_id=world.job_id, actor=OPERATOR, request_id=RequestId("q")))


def discarded(world: Told) -> None:
    world.tell(
        DeadLetter(
            job_id=world.job_id,
            actor=OPERATOR,
            request_id=RequestId("x"),
            reason_code=ReasonCode.POLICY_VIOLATION,
        )
    )


@spec("I21")
@pytest.mark.parametrize(
    ("act", "event"),
    [
        (granted, EventType.CLAIMED),
        (started, EventType.STARTED),
        (beaten, EventType.LEASE_RENEWED),
        (cancelled, EventType.CANCELLED),
        (asked_to_stop, EventType.CANCEL_REQUESTED),
        (let_go, EventType.REQUEUED),
        (discarded, EventType.DEAD_LETTERED),
    ],
)
def test_whatever_was_acknowledged_and_then_lost_is_noticed(
    act: Callable[[Told], None], event: EventType
) -> None:
    world = Told(Policy(lease_us=seconds(30), on_lost=OnLost.HOLD))
    act(world)

    assert not world.broken()
    assert "I21" in world.broken(world.without(event))


@spec("I21")
def test_a_row_that_is_older_than_an_answer_is_noticed() -> None:
    world = Told()
    job_id = world.job_id
    ack = Ack(op=AckOp.ENQUEUE, job_id=job_id, at=world.now, answer=VerdictKind.OK, rev=7)

    found = [v.message for v in check_record(world.record(job_id), [ack])]

    assert found == ["enqueue was answered at rev 7, the job is back at 1"]


@spec("I21")
@pytest.mark.parametrize("heard", [{}, {"hb_seq": 0}, {"hb_seq": 1, "settled": True}])
def test_an_acknowledged_heartbeat_under_an_unknown_lease_is_noticed(
    heard: dict[str, Any],
) -> None:
    world = Told()
    beaten(world)
    lost = LeaseId("1-" + "0" * 32)
    ack = Ack(
        op=AckOp.HEARTBEAT,
        job_id=world.job_id,
        at=world.now,
        answer=VerdictKind.OK,
        lease_id=lost,
        **heard,
    )

    found = [v.invariant for v in check_record(world.record(world.job_id), [ack])]

    assert found == ["I21"]


@spec("I21")
def test_an_acknowledged_heartbeat_may_be_pruned_with_its_attempt() -> None:
    world = Told()
    beaten(world)
    lease_id, actor = world.leases[-1][1:]
    world.tell(
        Complete(job_id=world.job_id, lease_id=lease_id, actor=actor, request_id=RequestId("d"))
    )
    record = world.record(world.job_id)
    kept = [event for event in record.events if event.type is not EventType.LEASE_RENEWED]

    assert len(kept) < len(record.events)
    assert list(check_record(with_events(record, kept), world.acks)) == []


@spec("P3")
def test_a_report_that_was_answered_cancelled_and_applied_is_noticed() -> None:
    world = Told()
    world.complete()
    world.acks = [
        replace(ack, answer=VerdictKind.CANCELLED) if ack.op is AckOp.COMPLETE else ack
        for ack in world.acks
    ]

    assert world.broken() == {"P3"}


def written(world: World, path: Path) -> list[Path]:
    with AckWriter(path) as writer:
        writer.write(*world.acks)
    return [path]


def lose(world: World, job_id: JobId) -> None:
    del world.rows[job_id], world.logs[job_id]


def at(world: World, now: int, acks: list[Path]) -> VerifyReport:
    return verify(RecordedStore(world.records(), now=Instant(now)), acks)


@spec("I13", "I16", "I21")
def test_an_acknowledged_job_that_is_gone_is_noticed(tmp_path: Path) -> None:
    world = Told()
    world.complete()
    acks = written(world, tmp_path / "acks.jsonl")

    assert at(world, world.now, acks).holds

    lose(world, world.job_id)
    assert set(at(world, world.now, acks).violated) == {"I13", "I16", "I21"}


@spec("I16", "I21")
def test_a_job_that_is_gone_is_excused_only_when_it_is_old_enough_to_be_purged(
    tmp_path: Path,
) -> None:
    world = Told()
    first_heard = world.acks[0].at
    world.complete()
    acks = written(world, tmp_path / "acks.jsonl")
    lose(world, world.job_id)

    too_young = at(world, first_heard + DAY - 1, acks)
    old_enough = at(world, first_heard + DAY, acks)

    assert not too_young.holds
    assert too_young.purged == 0
    assert old_enough.holds
    assert old_enough.purged == 1


@spec("I16")
def test_a_deduplicated_enqueue_promises_the_job_it_was_answered_with(tmp_path: Path) -> None:
    world = World(5, lost_answers=0)
    holder = world.enqueue(dedupe_key="k")
    assert world.enqueue(dedupe_key="k") == holder
    world.acks = world.acks[2:]
    acks = written(world, tmp_path / "acks.jsonl")

    assert at(world, world.now, acks).holds

    lose(world, holder)
    report = at(world, world.now, acks)
    assert set(report.violated) == {"I16", "I21"}
    assert {v.job_id for finding in report.findings for v in finding.first} == {holder}


@spec("I16")
def test_a_redrive_promises_the_job_it_made(tmp_path: Path) -> None:
    world = Told()
    world.complete()
    world.tell(Redrive(job_id=world.job_id, actor=OPERATOR, request_id=RequestId("again")))
    [made] = set(world.rows) - {world.job_id}
    acks = written(world, tmp_path / "acks.jsonl")

    assert at(world, world.now, acks).holds

    lose(world, made)
    report = at(world, world.now, acks)
    assert report.violated == ["I16", "I21"]
    assert world.rows[world.job_id].status is JobStatus.SUCCEEDED
