"""Racing: real threads and several handles. Whichever wins, the rules hold at every commit."""

import threading
from collections import Counter
from collections.abc import Sequence
from functools import partial

from tenure.coordinator.service import Coordinator
from tenure.core.claims import ClaimAnswer
from tenure.core.commands import Sweep
from tenure.core.ids import DEFAULT_NAMESPACE, WorkerId
from tenure.core.job import Job
from tenure.core.outcomes import Change
from tenure.core.verdicts import Answer, Grant, Reply, Verdict
from tenure.core.vocabulary import CancelMode, Cause, EventType, JobStatus, VerdictKind
from tenure_conformance.harness import Kit, ids, race
from tenure_conformance.spec import spec

CLAIMERS = 4
JOBS = 40


@spec("Z4")
def test_racing_claimers_receive_every_job_once(kit: Kit) -> None:
    jobs = [kit.enqueue() for _ in range(JOBS)]

    def drain(coordinator: Coordinator, worker: WorkerId) -> list[str]:
        taken: list[str] = []
        for _ in range(JOBS):
            request = kit.claim_request(limit=3, worker=worker)
            taken += ids(coordinator.claim(request).grants)
        return taken

    taken = race(*(partial(drain, kit.rival(), WorkerId(f"racer-{n}")) for n in range(CLAIMERS)))

    granted = [job_id for each in taken for job_id in each]
    assert sorted(granted) == sorted(ids(jobs))
    assert Counter(kit.reload(job).attempt for job in jobs) == {1: JOBS}


@spec("Z3")
def test_racing_claimers_never_pass_a_limit(kit: Kit) -> None:
    for _ in range(JOBS):
        kit.enqueue()
    kit.limit(5)
    rivals = [kit.rival() for _ in range(CLAIMERS)]

    for round_ in range(3):
        answers = race(
            *(
                partial(rival.claim, kit.claim_request(limit=4, worker=WorkerId(f"racer-{number}")))
                for number, rival in enumerate(rivals)
            )
        )
        (state,) = kit.store.settings.queues(DEFAULT_NAMESPACE)
        assert state.live == sum(len(answer.grants) for answer in answers) <= 5, round_
        for answer in answers:
            for grant in answer.grants:
                kit.complete(grant.job)


@spec("Q1")
def test_two_equal_claims_that_race_receive_one_set_of_grants(kit: Kit) -> None:
    jobs = [kit.enqueue() for _ in range(JOBS)]
    rivals = [kit.rival() for _ in range(CLAIMERS)]

    for number in range(5):
        request = kit.claim_request(limit=3)
        answers: list[ClaimAnswer] = race(*(partial(rival.claim, request) for rival in rivals))

        leases = {frozenset(grant.lease_id for grant in answer.grants) for answer in answers}
        assert len(leases) == 1, f"round {number}"
        assert len(answers[0].grants) == 3
    assert sum(kit.reload(job).attempt for job in jobs) == 5 * 3


@spec("Z2")
def test_no_claim_is_granted_after_a_pause_has_returned(kit: Kit) -> None:
    for _ in range(JOBS):
        kit.enqueue()
    rival = kit.rival()
    granted: list[Grant] = []

    def drain() -> None:
        for _ in range(JOBS):
            granted.extend(rival.claim(kit.claim_request(limit=1)).grants)

    def pause() -> int:
        kit.pause()
        return len(list(kit.store.audit.lease_holders()))

    _, leases = race(drain, pause)

    assert len(list(kit.store.audit.lease_holders())) == leases
    assert len(granted) == leases


@spec("W1")
def test_racing_sweepers_record_each_end_once(kit: Kit) -> None:
    jobs = [kit.running_job(lease_s=30) for _ in range(10)]
    kit.advance(seconds=31)
    commands = [Sweep(job_id=job.id) for job in jobs]
    rivals = [kit.rival() for _ in range(CLAIMERS)]

    race(*(lambda rival=rival: rival.submit_many(commands).result() for rival in rivals))

    for job in jobs:
        assert kit.types(job).count(EventType.STALLED) == 1
        assert kit.reload(job).failures == 1


ENDS = {EventType.SUCCEEDED, EventType.CANCELLED}


@spec("K1", "R13", "Q5")
def test_a_completion_that_races_a_hard_cancel_has_one_winner(kit: Kit) -> None:
    rival = kit.rival()
    for _ in range(8):
        job = kit.running_job()
        complete, cancel = kit.completion(job), kit.cancellation(job, mode=CancelMode.HARD)
        verdict, reply = race(
            partial(kit.coordinator.execute, complete), partial(rival.execute, cancel)
        )

        _has_one_winner(kit, job, verdict, reply)


@spec("K1", "R13")
def test_a_hard_cancel_between_decision_and_write_wins(kit: Kit) -> None:
    job, replies = kit.running_job(), list[Reply]()

    def cancel_first(_: Sequence[Change]) -> None:
        if not replies:
            replies.append(kit.cancel_hard(job))

    verdict = kit.interpose(cancel_first).execute(kit.completion(job))

    assert replies[0].is_ok
    _has_one_winner(kit, job, verdict, replies[0])


@spec("K1", "Q5")
def test_a_completion_between_decision_and_write_wins_over_a_hard_cancel(kit: Kit) -> None:
    job, verdicts = kit.running_job(), list[Verdict]()

    def complete_first(_: Sequence[Change]) -> None:
        if not verdicts:
            verdicts.append(kit.complete(job))

    hard = kit.cancellation(job, mode=CancelMode.HARD)
    reply = kit.interpose(complete_first).execute(hard)

    assert verdicts[0].kind is VerdictKind.COMMITTED
    _has_one_winner(kit, job, verdicts[0], reply)


def _has_one_winner(kit: Kit, job: Job, verdict: Answer, reply: Answer) -> None:
    """One was accepted, the other was refused, and the log and the row say the same."""
    assert isinstance(verdict, Verdict)
    assert isinstance(reply, Reply)
    ended = kit.reload(job)
    if verdict.kind is VerdictKind.COMMITTED:
        assert (reply.cause, reply.job) == (Cause.JOB_FINISHED, ended)
        winner, status = EventType.SUCCEEDED, JobStatus.SUCCEEDED
    else:
        assert (verdict.kind, verdict.cause) == (VerdictKind.CANCELLED, Cause.JOB_CANCELLED)
        assert (reply.cause, reply.job) == (None, ended)
        winner, status = EventType.CANCELLED, JobStatus.CANCELLED
    assert ended.status is status
    assert [type_ for type_ in kit.types(job) if type_ in ENDS] == [winner]


@spec("K1", "T5")
def test_a_completion_succeeds_however_a_soft_cancel_races_it(kit: Kit) -> None:
    rival = kit.rival()
    for _ in range(8):
        job = kit.running_job()
        complete, cancel = kit.completion(job), kit.cancellation(job)
        verdict, reply = race(
            partial(kit.coordinator.execute, complete), partial(rival.execute, cancel)
        )

        assert isinstance(verdict, Verdict)
        assert isinstance(reply, Reply)
        assert verdict.kind is VerdictKind.COMMITTED
        assert kit.reload(job).status is JobStatus.SUCCEEDED
        assert reply.is_ok == (EventType.CANCEL_REQUESTED in kit.types(job))


@spec("D5", "I17")
def test_racing_enqueues_with_one_key_make_one_job(kit: Kit) -> None:
    rivals = [kit.rival() for _ in range(CLAIMERS)]

    for number in range(5):
        commands = [kit.new(dedupe_key=f"k{number}") for _ in rivals]
        replies = race(
            *(
                partial(rival.execute, command)
                for rival, command in zip(rivals, commands, strict=True)
            )
        )

        kept = {reply.job.id for reply in replies if isinstance(reply, Reply) and reply.job}
        assert len(kept) == 1
        assert sum(kit.exists(command.job_id) for command in commands) == 1


@spec("D3", "I16")
def test_racing_enqueues_of_one_id_make_one_job(kit: Kit) -> None:
    rivals = [kit.rival() for _ in range(CLAIMERS)]
    command = kit.new()

    replies = race(*(partial(rival.execute, command) for rival in rivals))

    assert sum(isinstance(reply, Reply) and not reply.replayed for reply in replies) == 1
    (job,) = {reply.job for reply in replies if isinstance(reply, Reply) and reply.job}
    assert kit.types(job) == [EventType.ENQUEUED]


@spec("W1", "I21")
def test_many_callers_share_one_coordinator(kit: Kit) -> None:
    jobs = [kit.running_job() for _ in range(JOBS)]

    def work(mine: list[int]) -> None:
        for number in mine:
            kit.heartbeat(jobs[number])
            assert kit.complete(jobs[number]).kind is VerdictKind.COMMITTED

    race(*(partial(work, list(range(start, JOBS, CLAIMERS))) for start in range(CLAIMERS)))

    assert {kit.reload(job).status for job in jobs} == {JobStatus.SUCCEEDED}
    assert {len(kit.events(job)) for job in jobs} == {5}


@spec("CK3", "CK4")
def test_racing_claimers_never_run_two_jobs_of_one_key(kit: Kit) -> None:
    jobs = [kit.enqueue(concurrency_key=str(number % 3)) for number in range(JOBS)]
    running: Counter[str | None] = Counter()
    order: list[str] = []
    lock = threading.Lock()

    def work(coordinator: Coordinator, worker: WorkerId) -> None:
        while len(order) < JOBS:
            request = kit.claim_request(limit=2, worker=worker)
            for grant in coordinator.claim(request).grants:
                key = grant.job.concurrency_key
                with lock:
                    running[key] += 1
                    order.append(grant.job_id)
                    assert running[key] == 1, f"two jobs of the key {key} run"
                with lock:
                    running[key] -= 1  # before it ends: what is counted is surely running
                coordinator.execute(kit.completion(grant.job))

    race(*(partial(work, kit.rival(), WorkerId(f"racer-{n}")) for n in range(CLAIMERS)))

    for key in range(3):
        assert [each for each in order if each in ids(jobs[key::3])] == ids(jobs[key::3])
