"""The claim planner: which jobs go to whom, and what a repeated claim gets."""

from collections.abc import Sequence
from unittest.mock import patch

from hypothesis import given
from hypothesis import strategies as st
from msgspec.structs import replace

from tenure.core import claims
from tenure.core.claims import (
    MAX_CLAIM_BYTES,
    ClaimAnswer,
    ClaimPlan,
    ClaimRequest,
    ClaimView,
    QueueState,
    answer_without_planning,
    claim_fingerprint,
    plan_claims,
    usable_candidates,
    wanted,
)
from tenure.core.ids import (
    DEFAULT_NAMESPACE,
    LEASE_ID_PATTERN,
    Epoch,
    Kind,
    QueueName,
    RequestId,
    WorkerId,
    new_job_id,
)
from tenure.core.instants import Instant
from tenure.core.job import AT_ONCE, Job
from tenure.core.outcomes import Session
from tenure.core.policy import Policy
from tenure.core.vocabulary import Cause, JobStatus
from tenure_conformance.spec import spec
from tests.support.jobs import BEGINNING, OTHER_WORKER, OWNER, WORKER, entropy
from tools import lives
from tools.driver import QUEUE

OTHER_QUEUE = QueueName("mail")
NOW = Instant(BEGINNING + 10)


def request(
    *, limit: int = 1, claim_seq: int = 1, request_id: str = "c1", worker: str = OWNER
) -> ClaimRequest:
    return ClaimRequest(
        namespace=DEFAULT_NAMESPACE,
        worker=WorkerId(worker),
        actor=WORKER,
        queues=(QUEUE, OTHER_QUEUE),
        limit=limit,
        claim_seq=claim_seq,
        request_id=RequestId(request_id),
    )


def jobs(count: int, *, queue: QueueName = QUEUE) -> list[Job]:
    """Ready jobs with ids that rise."""
    ready = lives.queued().job
    return [
        replace(ready, id=new_job_id(Instant(BEGINNING + number * 1000), entropy(0)), queue=queue)
        for number in range(count)
    ]


def plan(
    requests: Sequence[ClaimRequest],
    candidates: Sequence[Job],
    *,
    sessions: Sequence[Session] = (),
    queues: Sequence[QueueState] = (),
) -> ClaimPlan:
    view = ClaimView(
        now=NOW,
        epoch=Epoch(1),
        sessions={session.key: session for session in sessions},
        queues={state.name: state for state in queues},
        candidates=candidates,
    )
    return plan_claims(requests, view, [entropy(number) for number in range(len(candidates))])


def granted_ids(found: ClaimPlan) -> list[list[str]]:
    return [[grant.job_id for grant in answer.grants] for answer in found.answers]


@spec("Z1")
def test_a_claim_receives_candidates_in_their_order_and_no_more_than_it_asked_for() -> None:
    candidates = jobs(5)

    found = plan([request(limit=3)], candidates)

    assert granted_ids(found) == [[job.id for job in candidates[:3]]]
    assert [change.job.id for change in found.changes] == granted_ids(found)[0]
    assert all(change.job.status is JobStatus.CLAIMED for change in found.changes)


@spec("Z1")
def test_requests_that_share_a_plan_receive_different_jobs() -> None:
    candidates = jobs(5)

    found = plan(
        [request(limit=2), request(limit=2, worker="b"), request(limit=2, worker="c")], candidates
    )

    ids = [job.id for job in candidates]
    assert granted_ids(found) == [ids[:2], ids[2:4], ids[4:]]


@spec("Z1")
def test_a_candidate_that_is_not_ready_is_passed_over() -> None:
    waiting, ready = jobs(2)
    waiting = replace(waiting, run_at=Instant(NOW + 1), not_before=Instant(NOW + 1))

    found = plan([request(limit=2)], [waiting, ready])

    assert granted_ids(found) == [[ready.id]]


@spec("Z3")
def test_a_queue_grants_only_what_its_limit_leaves() -> None:
    limited, free = jobs(4), jobs(2, queue=OTHER_QUEUE)
    states = [QueueState(name=QUEUE, limit=5, live=3), QueueState(name=OTHER_QUEUE)]

    found = plan(
        [request(limit=3), request(limit=10, worker="b")], [*limited, *free], queues=states
    )

    ids = [job.id for job in limited[:2]] + [job.id for job in free]
    assert granted_ids(found) == [ids[:3], ids[3:]]


@spec("Z3")
def test_a_full_an_overfull_and_a_paused_queue_grant_nothing() -> None:
    assert QueueState(name=QUEUE, limit=3, live=3).room == 0
    assert QueueState(name=QUEUE, limit=3, live=9).room == 0
    assert QueueState(name=QUEUE, limit=3, live=1).room == 2
    assert QueueState(name=QUEUE, paused=True).room == 0
    assert QueueState(name=QUEUE).room is None

    for state in (
        QueueState(name=QUEUE, limit=3, live=9),
        QueueState(name=QUEUE, limit=3, paused=True),
    ):
        found = plan([request(limit=9)], jobs(3), queues=[state])
        assert granted_ids(found) == [[]]
        assert (found.changes, found.sessions) == ((), ())


@spec("Z3", "Z1")
@given(
    limits=st.lists(st.integers(0, 6), min_size=1, max_size=5),
    room=st.integers(0, 6),
    count=st.integers(0, 10),
)
def test_no_plan_exceeds_a_limit_or_grants_a_job_twice(
    limits: list[int], room: int, count: int
) -> None:
    requests = [request(limit=limit, worker=f"w{n}") for n, limit in enumerate(limits)]
    candidates = jobs(count)

    found = plan(requests, candidates, queues=[QueueState(name=QUEUE, limit=room)])

    ids = [each for ids in granted_ids(found) for each in ids]
    assert ids == [job.id for job in candidates][: min(room, count, sum(limits))]
    assert all(len(got) <= limit for got, limit in zip(granted_ids(found), limits, strict=True))
    assert wanted(requests) == sum(limits)


@spec("J5")
def test_every_grant_has_a_lease_of_its_own_in_the_documented_form() -> None:
    (answer,) = plan([request(limit=9)], jobs(9)).answers

    leases = {grant.lease_id for grant in answer.grants}
    assert len(leases) == 9
    assert all(LEASE_ID_PATTERN.fullmatch(lease) for lease in leases)


# --- Sessions ------------------------------------------------------------------------------------


def remembered(claim: ClaimRequest) -> Session:
    (session,) = plan([claim], jobs(1)).sessions
    return session


STALE = ClaimAnswer(cause=Cause.STALE_CLAIM)
REUSED = ClaimAnswer(cause=Cause.IDEMPOTENCY_KEY_REUSE)


@spec("Q2")
def test_a_session_admits_rising_claims_and_refuses_older_ones() -> None:
    session = remembered(request(claim_seq=5, request_id="five"))

    assert answer_without_planning(None, request()) is None
    assert answer_without_planning(session, request(claim_seq=6, request_id="six")) is None
    assert answer_without_planning(session, request(claim_seq=4, request_id="four")) == STALE
    assert answer_without_planning(session, request(claim_seq=5, request_id="other")) == STALE


@spec("Q2")
def test_a_repeat_is_known_by_id_and_body() -> None:
    first = request(claim_seq=5, request_id="five", limit=2)
    session = remembered(first)

    assert answer_without_planning(session, first) == ClaimAnswer(is_repeat=True)
    assert answer_without_planning(session, replace(first, limit=3)) == REUSED
    assert answer_without_planning(session, replace(first, queues=(QUEUE,))) == REUSED
    assert answer_without_planning(session, replace(first, kinds=(Kind("x"),))) == REUSED
    assert answer_without_planning(session, replace(first, claim_seq=6)) == REUSED


@spec("Q2")
def test_refused_and_repeated_claims_receive_no_new_jobs() -> None:
    first = request(claim_seq=5, request_id="five")
    session = remembered(first)

    found = plan(
        [first, replace(first, limit=9), request(claim_seq=4, request_id="four")],
        jobs(3),
        sessions=[session],
    )

    assert [answer.cause for answer in found.answers] == [
        None,
        Cause.IDEMPOTENCY_KEY_REUSE,
        Cause.STALE_CLAIM,
    ]
    assert [answer.is_repeat for answer in found.answers] == [True, False, False]
    assert (found.changes, found.sessions) == ((), (replace(session, is_repeated=True),))


@spec("Q2")
def test_two_claims_of_one_session_in_one_plan_see_each_other() -> None:
    first = request(claim_seq=1, request_id="one")

    found = plan([first, first, request(claim_seq=2, request_id="two")], jobs(3))

    assert [answer.is_repeat for answer in found.answers] == [False, True, False]
    assert [len(answer.grants) for answer in found.answers] == [1, 0, 1]
    (session,) = found.sessions
    assert (session.claim_seq, session.request_id) == (2, "two")
    assert session.fingerprint == claim_fingerprint(request(claim_seq=2, request_id="two"))
    assert session.claimed_at == NOW


@spec("Q3")
def test_an_empty_answer_is_not_remembered() -> None:
    claim = request(claim_seq=5)

    empty = plan([claim], [])
    none_wanted = plan([replace(claim, limit=0)], jobs(2))
    again = plan([claim, claim], jobs(2), sessions=empty.sessions)

    assert empty.sessions == none_wanted.sessions == ()
    assert none_wanted.changes == ()
    assert [len(answer.grants) for answer in again.answers] == [1, 0]


@spec("Q2")
def test_sessions_are_told_apart_by_namespace_principal_and_worker() -> None:
    first = request()

    assert first.session == request(claim_seq=9).session
    assert first.session != request(worker="other").session
    assert first.session != replace(first, actor=OTHER_WORKER).session


def test_a_grant_remembers_which_claim_asked_for_it() -> None:
    claim = request(request_id="asked")

    (change,) = plan([claim], jobs(1)).changes

    event = change.events[-1]
    assert (event.request_id, event.fingerprint) == ("asked", claim_fingerprint(claim))
    assert (change.job.owner, change.job.principal) == (OWNER, WORKER)
    assert change.expected_rev == 1
    assert change.not_after is None


def test_reclaimable_jobs_are_candidates_like_any_other() -> None:
    driver = lives.reclaimable(Policy(on_lost=lives.RECLAIM.on_lost))
    job = replace(driver.job, run_at=NOW, not_before=AT_ONCE, updated_at=NOW)

    (answer,) = plan([request()], [job]).answers

    assert answer.grants[0].attempt == 2


@spec("Z10")
def test_a_claim_receives_the_first_jobs_whose_bodies_fit() -> None:
    half = b"x" * (MAX_CLAIM_BYTES // 2)
    first, second, third, fourth = jobs(4)
    found = [
        replace(first, payload=half),
        replace(second, payload=half[:-10], checkpoint=b"0123456789"),
        replace(third, payload=b"1"),
        fourth,
    ]

    assert granted_ids(plan([request(limit=9)], found)) == [[first.id, second.id]]


@spec("Z10")
def test_claims_share_the_bytes_and_each_receives_a_job_of_any_size() -> None:
    size = MAX_CLAIM_BYTES // 8
    found = [replace(job, payload=b"x" * size) for job in jobs(10)]
    huge = [replace(job, payload=b"x" * (2 * MAX_CLAIM_BYTES)) for job in jobs(3)]
    two = [request(limit=9), request(limit=9, worker="second")]
    few = [request(limit=1), request(limit=9, worker="second")]

    assert [len(each) for each in granted_ids(plan(two, found))] == [4, 4]
    assert [len(each) for each in granted_ids(plan(few, found))] == [1, 7]
    assert [len(each) for each in granted_ids(plan(two, huge))] == [1, 1]


@spec("Z10")
@given(
    sizes=st.lists(st.integers(1, 200), max_size=12),
    limits=st.lists(st.integers(1, 5), min_size=1, max_size=4),
)
def test_a_plan_uses_no_more_candidates_than_a_store_keeps(
    sizes: list[int], limits: list[int]
) -> None:
    found = [replace(job, payload=b"x" * size) for job, size in zip(jobs(12), sizes, strict=False)]
    asked = [request(limit=each, worker=f"w{n}") for n, each in enumerate(limits)]

    with patch.object(claims, "MAX_CLAIM_BYTES", 100):
        kept = found[: usable_candidates(sizes, claims=len(limits))]
        assert granted_ids(plan(asked, kept)) == granted_ids(plan(asked, found))
