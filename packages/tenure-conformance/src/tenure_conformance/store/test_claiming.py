"""Claiming: which jobs a claim receives, in which order, and what a repeated claim gets."""

from typing import Any

import msgspec
import pytest

from tenure.coordinator.retention import KEEP_SESSIONS, Retention
from tenure.core.claims import (
    MAX_CLAIM_BYTES,
    ClaimPlan,
    ClaimScope,
    ClaimView,
    body_bytes,
    plan_claims,
)
from tenure.core.ids import DEFAULT_NAMESPACE, Kind, Namespace, QueueName, WorkerId, worker_actor
from tenure.core.instants import Instant, seconds
from tenure.core.job import Job
from tenure.core.vocabulary import Cause, EventCause, EventType, JobStatus, OnLost
from tenure.ports import LeasedJobs, QueueMeasure
from tenure_conformance.harness import KIND, QUEUE, WORKER, Kit, ids, policy
from tenure_conformance.spec import spec

OTHER_QUEUE = QueueName("other")
OTHER_KIND = Kind("other")
OTHER_WORKER = WorkerId("kit-2")


@spec("Z1", "T2")
def test_a_claim_receives_jobs_by_priority_then_run_at_then_id(kit: Kit) -> None:
    late = kit.enqueue(delay_s=2)
    low = kit.enqueue(priority=-5)
    first_by_id, second_by_id = sorted(
        [kit.enqueue(priority=7), kit.enqueue(priority=7)], key=lambda job: job.id
    )
    early = kit.enqueue(priority=0)
    kit.advance(seconds=2)

    granted = kit.claimed(limit=10)

    assert ids(granted) == ids([first_by_id, second_by_id, early, late, low])


@spec("Z1", "CK13")
def test_jobs_of_several_kinds_are_claimed_in_one_order(kit: Kit) -> None:
    """Each criterion alone would give another order, and each claim is small: what a claim reads of
    each kind, how it merges the kinds and where it stops must all be in claim order."""
    kinds = (KIND, OTHER_KIND, Kind("third"))
    descending = iter(sorted((kit.new_id() for _ in range(21)), reverse=True))

    def enqueued(**fields: Any) -> list[Job]:
        jobs = []
        for kind in kinds:
            jobs.append(kit.enqueue(kind=kind, job_id=next(descending), **fields))
            kit.advance(seconds=1)
        return jobs

    low = enqueued(priority=-1)
    admitted_by_the_first_claim = enqueued(concurrency_key="a") + enqueued(concurrency_key="b")
    plain = enqueued()
    at_once = [kit.enqueue(kind=kind, job_id=next(descending)) for kind in kinds * 2]
    urgent = enqueued(priority=1)

    order = [job for _ in range(22) for job in kit.claimed(limit=1, kinds=kinds)]

    by_id = sorted(at_once, key=lambda job: job.id)
    assert ids(order) == ids([*urgent, *plain, *by_id, *admitted_by_the_first_claim, *low])


@spec("Z1", "Z5")
def test_jobs_that_become_ready_before_those_claimed_last_are_claimed_next(kit: Kit) -> None:
    first, second, third, fourth = [kit.enqueue() for _ in range(4)]
    claims = [kit.claimed(limit=1, kinds=(KIND,)) for _ in range(2)]
    kit.release(claims[0][0])
    urgent = kit.enqueue(priority=1)

    granted = [kit.claimed(limit=1, kinds=(KIND,)) for _ in range(2)]
    rest = kit.claimed(limit=9, kinds=(KIND, OTHER_KIND))

    assert [ids(claim) for claim in claims + granted] == [
        [first.id],
        [second.id],
        [urgent.id],
        [first.id],
    ]
    assert ids(rest) == ids([third, fourth])


LARGE = [b'"%d%s"' % (number, b"\xc3\xa4" * 500_000) for number in range(10)]


@spec("Z10", "Z1")
@pytest.mark.parametrize(
    "fields",
    [{}, {"delay_s": 1}, {"kinds": 2}, {"concurrency_key": "c"}, {"rate_key": "r"}],
    ids=["ready", "delayed", "kinds", "key", "rate-key"],
)
def test_a_claim_receives_as_many_large_jobs_as_fit(kit: Kit, fields: dict[str, Any]) -> None:
    kinds = fields.get("kinds", 1)
    jobs = []
    for number, payload in enumerate(LARGE):
        more = _own_key(fields, number)
        jobs.append(kit.enqueue(payload=payload, kind=Kind(f"k{number % kinds}"), **more))
    small = kit.enqueue(payload=b"1", kind=Kind("k0"), **_own_key(fields, len(LARGE)))
    kit.advance(seconds=1)

    first = kit.claimed(limit=20)
    second = kit.claimed(limit=20)

    assert ids(first) == ids(jobs[:8])
    assert ids(second) == ids([*jobs[8:], small])
    assert [job.payload for job in [*first, *second]] == [*LARGE, b"1"]
    assert [kit.reload(job).payload for job in first] == LARGE[:8]


def _own_key(fields: dict[str, Any], number: int) -> dict[str, Any]:
    found = {name: f"{key}{number}" for name, key in fields.items() if name.endswith("key")}
    return found | {name: each for name, each in fields.items() if name == "delay_s"}


@spec("Z10")
def test_a_claim_reads_no_more_large_bodies_than_fit(kit: Kit) -> None:
    for payload in LARGE:
        kit.enqueue(payload=payload)
    request = kit.claim_request(limit=20)
    views: list[ClaimView] = []

    def plan(view: ClaimView) -> ClaimPlan:
        views.append(view)
        return plan_claims([request], view, [])

    kit.store.claims.claim(request.scope, [request.session], 20, plan)

    assert sum(map(body_bytes, views[-1].candidates)) <= MAX_CLAIM_BYTES
    assert [job.payload for job in views[-1].candidates] == LARGE[:8]


@spec("Z10", "Q1")
def test_a_large_checkpoint_counts_and_a_repeated_claim_brings_it_again(kit: Kit) -> None:
    kit.running_job(payload=LARGE[9])  # another lease of the same session
    for job in [kit.running_job(payload=payload) for payload in LARGE[:4]]:
        kit.heartbeat(job, checkpoint=b'"%s"' % (b"y" * 1_040_000))
        kit.release(job)
    kit.enqueue(payload=b'"%s"' % (b"z" * 100_000))
    kit.enqueue(payload=b'"%s"' % (b"z" * 200_000))
    request = kit.claim_request(limit=9)

    granted = kit.coordinator.claim(request)
    again = kit.coordinator.claim(request)

    assert [len(grant.job.checkpoint or b"") for grant in granted.grants] == [1_040_002] * 4 + [0]
    assert again.is_repeat
    assert {grant.job_id: grant.job for grant in again.grants} == {
        grant.job_id: grant.job for grant in granted.grants
    }


@spec("Z6", "Z1", "T2")
def test_jobs_that_were_ready_stay_ready_when_the_clock_is_set_back(kit: Kit) -> None:
    early = kit.enqueue()
    kit.advance(seconds=1)
    running = kit.running_job(queue=OTHER_QUEUE)
    kit.advance(seconds=1)
    late = kit.enqueue()
    kit.enqueue(delay_s=5)
    kit.enqueue(run_at=Instant(kit.now() + seconds(5)))
    kit.fail(kit.running_job(queue=OTHER_QUEUE))
    kit.release(running)

    kit.step_back(seconds=45)
    queue, other = _depths(kit)
    granted = kit.claimed(limit=10, queues=(QUEUE, OTHER_QUEUE))

    assert (queue.ready, queue.delayed, queue.oldest_ready_at) == (2, 2, early.run_at)
    assert (other.ready, other.delayed, other.oldest_ready_at) == (1, 1, running.enqueued_at)
    assert ids(granted) == ids([early, running, late])


@spec("Z6")
def test_a_job_that_is_enqueued_after_a_step_back_is_ready_at_once(kit: Kit) -> None:
    before = kit.enqueue()
    kit.step_back(seconds=45)
    after = kit.enqueue()

    assert set(ids(kit.claimed(limit=10))) == {before.id, after.id}


def _depths(kit: Kit) -> tuple[QueueMeasure, ...]:
    return tuple(
        sorted(
            kit.store.views.measure(queues=10, jobs=10).queues, key=lambda each: each.queue != QUEUE
        )
    )


@spec("Z1")
def test_the_order_goes_across_the_queues_of_a_claim(kit: Kit) -> None:
    second = kit.enqueue(queue=QUEUE, priority=1)
    first = kit.enqueue(queue=OTHER_QUEUE, priority=2)
    third = kit.enqueue(queue=OTHER_QUEUE, priority=0)

    granted = kit.claimed(limit=10, queues=(QUEUE, OTHER_QUEUE))

    assert ids(granted) == ids([first, second, third])


@spec("Z1")
def test_a_claim_receives_at_most_as_many_as_it_asks_for(kit: Kit) -> None:
    for _ in range(5):
        kit.enqueue()

    granted = kit.claimed(limit=3)

    assert len(granted) == 3
    assert len(kit.claimed(limit=10)) == 2


@spec("Z1")
def test_a_limit_is_for_all_queues_of_a_claim_together(kit: Kit) -> None:
    jobs = [kit.enqueue(queue=queue) for queue in (QUEUE, OTHER_QUEUE) for _ in range(3)]

    granted = kit.claimed(limit=4, queues=(QUEUE, OTHER_QUEUE))

    assert ids(granted) == sorted(ids(jobs))[:4]


@spec("Z1")
def test_a_claim_receives_only_its_queues_kinds_and_namespace(kit: Kit) -> None:
    wanted = kit.enqueue(queue=QUEUE, kind=KIND)
    kit.enqueue(queue=OTHER_QUEUE, kind=KIND)
    kit.enqueue(queue=QUEUE, kind=OTHER_KIND)
    kit.enqueue(queue=QUEUE, kind=KIND, namespace=Namespace("elsewhere"))

    granted = kit.claimed(limit=10, queues=(QUEUE,), kinds=(KIND,))

    assert ids(granted) == [wanted.id]


def test_a_claim_may_name_several_kinds(kit: Kit) -> None:
    kinds = (Kind("a"), Kind("b"), Kind("c"))
    jobs = [kit.enqueue(kind=kind) for kind in kinds]

    granted = kit.claimed(limit=10, kinds=(kinds[0], kinds[2]))

    assert ids(granted) == [jobs[0].id, jobs[2].id]


@spec("Z1")
def test_jobs_of_several_kinds_are_granted_in_one_order(kit: Kit) -> None:
    jobs = []
    for kind, priority, delay_s in (
        ("c", 1, 0),
        ("a", 9, 3),
        ("b", 1, 0),
        ("a", 1, 1),
        ("b", 9, 60),
        ("c", 9, 2),
        ("other", 9, 0),
        ("a", 0, 0),
    ):
        jobs.append(kit.enqueue(kind=Kind(kind), priority=priority, delay_s=delay_s))
        kit.advance(seconds=0.1)
    kit.advance(seconds=5)

    granted = kit.claimed(limit=4, kinds=(Kind("b"), Kind("a"), Kind("c")))
    rest = kit.claimed(limit=9)

    assert ids(granted) == ids([jobs[5], jobs[1], jobs[0], jobs[2]])
    assert ids(rest) == ids([jobs[6], jobs[3], jobs[7]])


@spec("Z1", "Z6")
def test_delayed_jobs_are_found_below_many_priorities_that_are_not_due(kit: Kit) -> None:
    for priority in range(40):
        kit.enqueue(priority=priority, delay_s=60)
    lower = kit.enqueue(priority=-2, delay_s=1)
    higher = kit.enqueue(priority=-1, delay_s=1)
    lowest = kit.enqueue(priority=-3)
    kit.advance(seconds=2)

    assert ids(kit.claimed(limit=10)) == ids([higher, lower, lowest])


@spec("Z1")
def test_more_kinds_than_one_statement_takes_are_granted_in_one_order(kit: Kit) -> None:
    kinds = [Kind(f"kind-{(9 * n) % 70}") for n in range(70)]
    jobs = []
    for kind in kinds:
        jobs.append(kit.enqueue(kind=kind))
        kit.advance(seconds=0.1)

    named = kit.claimed(limit=3, kinds=tuple(kinds))
    unnamed = kit.claimed(limit=50)

    assert ids(named) == ids(jobs[:3])
    assert ids(unnamed) == ids(jobs[3:53])


def test_a_claim_of_no_kinds_receives_nothing(kit: Kit) -> None:
    kit.enqueue()

    assert kit.claimed(limit=10, kinds=()) == []


@spec("T2", "S2")
def test_a_grant_shows_the_stored_row(kit: Kit) -> None:
    enqueued = kit.enqueue(payload=b'{"n":1}', lease_s=45)

    (grant,) = kit.claim().grants

    stored = kit.reload(enqueued)
    assert grant.job == stored
    assert stored.status is JobStatus.CLAIMED
    assert (stored.attempt, stored.rev) == (1, 2)
    assert stored.lease_id == grant.lease_id
    assert stored.lease_expires_at == kit.now() + seconds(45)
    assert stored.payload == b'{"n":1}'
    assert kit.types(stored) == [EventType.ENQUEUED, EventType.CLAIMED]


@spec("T2")
def test_a_job_is_ready_from_the_microsecond_of_its_run_at(kit: Kit) -> None:
    job = kit.enqueue(delay_s=5)
    assert job.run_at is not None
    kit.advance_to(job.run_at)
    kit.step_back(seconds=0.000001)

    assert kit.claimed() == []
    kit.advance(microseconds=1)

    assert ids(kit.claimed()) == [job.id]


def test_a_leased_job_is_not_granted_again(kit: Kit) -> None:
    kit.claimed_job()

    assert kit.claimed(worker=WorkerId("kit-2")) == []


def test_an_overdue_job_is_not_granted_before_it_was_swept(kit: Kit) -> None:
    job = kit.running_job(lease_s=30)
    kit.advance_to(job.due_at)

    assert kit.claimed(worker=WorkerId("kit-2")) == []


@spec("T22", "A1")
def test_a_reclaim_takes_a_stalled_job_straight_from_stalled(kit: Kit) -> None:
    stalled = kit.stalled_job(policy=policy(lease_s=30, on_lost=OnLost.RECLAIM))
    assert stalled.status is JobStatus.STALLED
    assert kit.claimed() == []
    kit.advance_to(stalled.run_at)

    (job,) = kit.claimed()

    assert job.attempt == 2
    assert kit.events(job)[-1].cause is EventCause.RECLAIM
    assert kit.reload(job) == job


@spec("L7")
def test_a_held_job_is_never_granted(kit: Kit) -> None:
    kit.stalled_job(policy=policy(lease_s=30, on_lost=OnLost.HOLD))
    kit.advance(seconds=10_000)

    assert kit.claimed() == []


def test_a_job_that_arrives_below_the_last_claimed_one_is_found(kit: Kit) -> None:
    kit.enqueue(priority=1)
    kit.enqueue(priority=9)
    assert len(kit.claimed(limit=1)) == 1
    urgent = kit.enqueue(priority=10)

    assert ids(kit.claimed(limit=1)) == [urgent.id]


def test_a_plan_that_raises_writes_nothing(kit: Kit) -> None:
    job = kit.enqueue()
    scope = ClaimScope(namespace=DEFAULT_NAMESPACE, queues=(QUEUE,), kinds=None)

    def fail(view: ClaimView) -> ClaimPlan:
        raise RuntimeError(f"{len(view.candidates)} candidate")

    with pytest.raises(RuntimeError, match="1 candidate"):
        kit.store.claims.claim(scope, [kit.claim_request().session], 1, fail)

    assert kit.reload(job) == job
    assert ids(kit.claimed()) == [job.id]


# --- repeated claims -----------------------------------------------------------------------------


@spec("Q1", "L8")
def test_a_repeated_claim_returns_the_same_grants_with_what_is_left_of_their_ttl(kit: Kit) -> None:
    for _ in range(3):
        kit.enqueue(lease_s=60)
    request = kit.claim_request(limit=2)
    first = kit.coordinator.claim(request)
    kit.advance(seconds=20)

    repeated = kit.coordinator.claim(request)

    assert repeated.is_repeat
    assert sorted(grant.lease_id for grant in repeated.grants) == sorted(
        grant.lease_id for grant in first.grants
    )
    assert {grant.ttl_us for grant in repeated.grants} == {seconds(40)}


@spec("Q1")
def test_a_repeated_claim_returns_a_started_job_too(kit: Kit) -> None:
    job = kit.enqueue()
    request = kit.claim_request()
    (granted,) = kit.coordinator.claim(request).grants
    kit.start(granted.job)

    (repeated,) = kit.coordinator.claim(request).grants

    assert repeated.lease_id == granted.lease_id
    assert repeated.job == kit.reload(job)


@spec("Q1")
def test_a_repeated_claim_never_revives_an_ended_lease(kit: Kit) -> None:
    settled, lost = kit.enqueue(priority=2), kit.enqueue(priority=1)
    request = kit.claim_request(limit=2)
    granted = kit.coordinator.claim(request).grants
    assert ids(granted) == [settled.id, lost.id]
    kit.complete(granted[0].job)
    kit.advance_to(granted[1].job.due_at)

    repeated = kit.coordinator.claim(request)

    assert repeated.is_repeat
    assert repeated.grants == ()


@spec("Q1")
def test_a_repeated_claim_never_grants_other_jobs(kit: Kit) -> None:
    job = kit.enqueue()
    request = kit.claim_request(limit=5)
    kit.coordinator.claim(request)
    kit.enqueue()

    repeated = kit.coordinator.claim(request)

    assert ids(repeated.grants) == [job.id]


@spec("Q1")
def test_a_claim_repeated_through_another_process_returns_the_same_grants(kit: Kit) -> None:
    job = kit.enqueue()
    request = kit.claim_request()
    (granted,) = kit.coordinator.claim(request).grants

    (repeated,) = kit.rival().claim(request).grants

    assert (repeated.job_id, repeated.lease_id) == (job.id, granted.lease_id)


@spec("Q1", "Q2")
def test_what_another_body_received_under_the_same_id_is_not_part_of_a_repeat(kit: Kit) -> None:
    kit.enqueue()
    one = kit.claim_request()
    kit.coordinator.claim(one)
    kit.claimed_job()  # the session's last claim is another one now
    later = kit.enqueue()
    request = msgspec.structs.replace(kit.claim_request(limit=2), request_id=one.request_id)
    kit.coordinator.claim(request)

    repeated = kit.coordinator.claim(request)

    assert ids(repeated.grants) == [later.id]


@spec("Q1")
def test_an_earlier_grant_of_the_session_is_not_part_of_a_repeat(kit: Kit) -> None:
    earlier = kit.claimed_job()
    later = kit.enqueue()
    request = kit.claim_request(limit=2)
    kit.coordinator.claim(request)

    repeated = kit.coordinator.claim(request)

    assert ids(repeated.grants) == [later.id]
    assert kit.reload(earlier) == earlier


@spec("Q2")
def test_a_lower_claim_seq_is_stale(kit: Kit) -> None:
    kit.enqueue()
    kit.claim(claim_seq=5)
    kit.enqueue()

    answer = kit.claim(claim_seq=4)

    assert answer.cause is Cause.STALE_CLAIM
    assert answer.grants == ()


@spec("Q2")
def test_the_same_request_id_with_another_body_is_refused(kit: Kit) -> None:
    job = kit.enqueue()
    kit.claim(limit=1, request_id="r1")
    waiting = kit.enqueue()

    answer = kit.claim(limit=2, request_id="r1")

    assert answer.cause is Cause.IDEMPOTENCY_KEY_REUSE
    assert kit.reload(waiting) == waiting
    assert kit.reload(job).attempt == 1


@spec("Q3")
def test_an_empty_answer_is_not_remembered(kit: Kit) -> None:
    request = kit.claim_request()
    assert kit.coordinator.claim(request).grants == ()
    job = kit.enqueue()

    answer = kit.coordinator.claim(request)

    assert ids(answer.grants) == [job.id]


@spec("Q3")
def test_an_empty_answer_does_not_raise_the_claim_seq(kit: Kit) -> None:
    kit.claim(claim_seq=9)
    job = kit.enqueue()

    assert ids(kit.claimed(claim_seq=1)) == [job.id]


@spec("Q2", "L1")
def test_sessions_are_kept_apart_by_worker_and_by_principal(kit: Kit) -> None:
    jobs = [kit.enqueue() for _ in range(3)]
    same: dict[str, Any] = {"claim_seq": 1, "request_id": "r1"}

    one = kit.claimed(**same)
    two = kit.claimed(worker=WorkerId("kit-2"), **same)
    three = kit.claimed(actor=worker_actor("else"), **same)

    assert ids(one + two + three) == sorted(ids(jobs))


def test_the_jobs_a_session_holds_are_loaded_expired_ones_included(kit: Kit) -> None:
    expired = kit.running_job(lease_s=30, payload=b"[1]")
    kit.advance(seconds=31)
    claimed = kit.claimed_job()
    kit.enqueue()
    kit.claimed(worker=WorkerId("kit-2"))
    kit.enqueue()
    kit.claimed(actor=worker_actor("else"))
    kit.succeeded_job()

    held = kit.store.jobs.load(LeasedJobs(kit.claim_request().session), bodies=False)

    assert held.jobs == {expired.id: expired.without_bodies, claimed.id: claimed}
    assert held.now == kit.now()


# --- forgotten sessions --------------------------------------------------------------------------


def _is_known(kit: Kit, **fields: Any) -> bool:
    """Whether a claim of the session's past is still one."""
    answer = kit.coordinator.claim(kit.claim_request(claim_seq=1, **fields))
    return answer.cause is Cause.STALE_CLAIM


@spec("Q7", "Q2")
@pytest.mark.parametrize(("more_us", "gone"), [(-1, 0), (0, 0), (1, 1)])
def test_a_session_is_deleted_when_it_received_nothing_for_a_week(
    kit: Kit, more_us: int, gone: int
) -> None:
    kit.succeeded_job()
    kit.advance(microseconds=KEEP_SESSIONS + more_us)
    kit.enqueue()
    (late,) = kit.claimed(worker=OTHER_WORKER)
    kit.complete(late)

    report = Retention(kit.store).run_once()

    assert report.deleted["sessions"] == gone
    assert _is_known(kit) is not bool(gone)
    assert _is_known(kit, worker=OTHER_WORKER)


@spec("Q7", "Q1")
def test_a_session_that_holds_a_lease_is_not_deleted(kit: Kit) -> None:
    kit.enqueue()
    request = kit.claim_request()
    (grant,) = kit.coordinator.claim(request).grants
    kit.advance(seconds=30 * 24 * 3600)

    assert kit.store.upkeep.delete("sessions", older_than_us=KEEP_SESSIONS, limit=10).deleted == 0

    kit.enqueue()
    assert kit.coordinator.claim(request).is_repeat
    kit.sweep(grant.job)
    assert kit.store.upkeep.delete("sessions", older_than_us=KEEP_SESSIONS, limit=10).deleted == 1


@spec("Q7")
def test_sessions_are_told_apart_by_worker_principal_and_namespace(kit: Kit) -> None:
    elsewhere, other = Namespace("elsewhere"), worker_actor("other")
    sessions: list[dict[str, Any]] = [
        {"worker": OTHER_WORKER},
        {"actor": other},
        {"namespace": elsewhere},
    ]
    for fields in sessions:
        kit.enqueue(namespace=fields.get("namespace", DEFAULT_NAMESPACE))
        (grant,) = kit.coordinator.claim(kit.claim_request(**fields)).grants
        kit.coordinator.execute(kit.completion(grant.job, actor=fields.get("actor", WORKER)))
    kit.advance(microseconds=KEEP_SESSIONS + 1)
    kit.claimed_job()

    assert kit.store.upkeep.delete("sessions", older_than_us=KEEP_SESSIONS, limit=10).deleted == 3

    assert [_is_known(kit, **fields) for fields in sessions] == [False, False, False]
    assert _is_known(kit)


@spec("Q7", "G4")
@pytest.mark.parametrize("limit", [1, 2, 100])
def test_sessions_are_forgotten_page_by_page_whatever_is_between_them(kit: Kit, limit: int) -> None:
    workers = [WorkerId(f"kit-{number}") for number in range(2, 8)]
    for worker in workers:
        kit.enqueue()
        (job,) = kit.claimed(worker=worker)
        kit.complete(job)
    kit.advance(seconds=60, microseconds=1)
    for worker in workers[:4]:
        kit.enqueue()
        (job,) = kit.claimed(worker=worker)
        kit.complete(job)

    pages = [
        kit.store.upkeep.delete("sessions", older_than_us=seconds(60), limit=limit).deleted
        for _ in range(7)
    ]

    assert sum(pages) == 2
    assert max(pages) <= limit
    assert [_is_known(kit, worker=worker) for worker in workers] == [True] * 4 + [False] * 2
