"""Request identity: what a repeated, reused or unexpected request hears, and what is observed."""

import hashlib
from collections.abc import Callable

import pytest
from msgspec.structs import replace

from tenure.core.attempt_end import OBSERVED_BODY_BYTES
from tenure.core.commands import Command, fingerprint
from tenure.core.ids import Kind, LeaseId, new_job_id
from tenure.core.job import JobError
from tenure.core.lifecycle import decide
from tenure.core.outcomes import NeedsHistory, Outcome, Refused, Replayed
from tenure.core.vocabulary import (
    CancelMode,
    Cause,
    Disposition,
    EventCause,
    JobStatus,
    ObservationType,
    ReasonCode,
    VerdictKind,
)
from tenure_conformance.spec import spec
from tests.support.jobs import (
    BEGINNING,
    CLIENT,
    JOB_ID,
    OPERATOR,
    OTHER_OWNER,
    OTHER_WORKER,
    WORKER,
    Driver,
    applied,
    changes_nothing,
    entropy,
    reply,
    verdict,
)
from tools import lives

# --- Enqueue -------------------------------------------------------------------------------------


@spec("D3")
def test_the_same_id_and_body_return_the_existing_job_in_any_status() -> None:
    for build in lives.IN_STATUS.values():
        driver = build()

        is_of_flow = driver.job.flow_id is not None
        again = changes_nothing(driver, driver.flow() if is_of_flow else driver.enqueue())

        assert isinstance(again, Replayed)
        assert (reply(again).job, reply(again).replayed) == (driver.job, True)


@spec("D3")
@pytest.mark.parametrize(
    "other",
    [
        {"payload": b"1"},
        {"priority": 1},
        {"delay_s": 1},
        {"dedupe_key": "k"},
        {"kind": Kind("other")},
        {"correlation_id": None},
    ],
)
def test_the_same_id_with_another_body_is_refused(other: dict[str, object]) -> None:
    driver = lives.queued()

    refused = reply(changes_nothing(driver, driver.enqueue(**other)))  # type: ignore[arg-type]  # one field each

    assert refused.cause is Cause.IDEMPOTENCY_KEY_REUSE


@spec("D3")
def test_the_job_id_is_checked_before_the_dedupe_key() -> None:
    driver = Driver()
    driver.do(driver.enqueue(dedupe_key="k"))

    again = reply(changes_nothing(driver, driver.enqueue(dedupe_key="k")))

    assert again.replayed
    assert not again.deduplicated


@spec("D5", "T1")
def test_an_enqueue_that_meets_the_holder_of_its_key_gets_that_job() -> None:
    driver = Driver()
    driver.do(driver.enqueue(dedupe_key="k"))
    other_id = new_job_id(BEGINNING, entropy(99))

    met = changes_nothing(driver, driver.enqueue(dedupe_key="k", job_id=other_id, payload=b"1"))

    assert (reply(met).job, reply(met).deduplicated) == (driver.job, True)
    assert not reply(met).replayed


# --- Clients and operators -----------------------------------------------------------------------


@spec("Q4")
def test_a_repeated_cancel_gets_its_answer_whatever_happened_to_the_job() -> None:
    driver = lives.running()
    first = driver.cancel(request_id="c1")
    driver.do(first)

    at_once = reply(changes_nothing(driver, first))
    driver.do(driver.complete())
    afterwards = reply(changes_nothing(driver, first))

    assert (at_once.pending, at_once.replayed, at_once.is_ok) == (True, True, True)
    assert (afterwards.pending, afterwards.replayed, afterwards.is_ok) == (False, True, True)
    assert afterwards.job == driver.job


@spec("Q4")
def test_a_repeated_requeue_does_not_undo_a_later_hold() -> None:
    driver = lives.held()
    first = driver.requeue(request_id="r1")
    driver.do(first)
    driver.do(driver.claim())
    driver.advance(60)
    driver.do(driver.sweep())
    assert driver.job.status is JobStatus.STALLED

    again = reply(changes_nothing(driver, first))

    assert (again.replayed, again.is_ok, again.pending) == (True, True, False)


@spec("Q4")
def test_a_repeated_dead_letter_is_replayed() -> None:
    driver = lives.running()
    first = driver.dead_letter(request_id="d1")
    driver.do(first)

    again = reply(changes_nothing(driver, first))

    assert (again.replayed, again.is_ok, again.job) == (True, True, driver.job)


@spec("Q4")
def test_another_body_under_the_same_request_id_is_refused_as_reuse() -> None:
    cancelled, dead, let_go = lives.running(), lives.running(), lives.held()
    cancelled.do(cancelled.cancel(request_id="x"))
    dead.do(dead.dead_letter(request_id="x"))
    let_go.do(let_go.requeue(request_id="x", expected_rev=let_go.job.rev))

    attempts: list[tuple[Driver, Command]] = [
        (cancelled, cancelled.cancel(request_id="x", reason="another")),
        (cancelled, cancelled.cancel(CancelMode.HARD, request_id="x")),
        (dead, dead.dead_letter(ReasonCode.INFRASTRUCTURE_FAILURE, request_id="x")),
        (let_go, let_go.requeue(request_id="x")),
        (let_go, replace(let_go.cancel(request_id="x"), actor=OPERATOR)),
        (let_go, let_go.dead_letter(request_id="x")),
    ]
    for driver, command in attempts:
        refused = reply(changes_nothing(driver, command))
        assert refused.cause is Cause.IDEMPOTENCY_KEY_REUSE
        assert refused.job == driver.job


@spec("Q4")
def test_the_same_id_of_another_caller_is_another_request() -> None:
    driver = lives.running()
    driver.do(driver.cancel(request_id="x", actor=CLIENT))

    hard = driver.do(driver.cancel(CancelMode.HARD, request_id="x", actor=OPERATOR))

    assert applied(hard).rule == "T20"


@spec("Q5")
def test_cancelling_a_cancelled_job_is_ok_and_changes_nothing() -> None:
    driver = lives.cancelled()

    again = changes_nothing(driver, driver.cancel(request_id="new"))

    assert reply(again).is_ok
    assert (reply(again).job, reply(again).replayed) == (driver.job, False)


@spec("Q5", "T25")
@pytest.mark.parametrize("status", ["succeeded", "failed", "dead_lettered"])
def test_cancelling_a_job_that_ended_otherwise_is_a_conflict_with_its_record(status: str) -> None:
    driver = lives.IN_STATUS[JobStatus(status)]()

    refused = reply(changes_nothing(driver, driver.cancel(CancelMode.HARD, request_id="new")))

    assert (refused.cause, refused.job) == (Cause.JOB_FINISHED, driver.job)


@spec("N3")
def test_a_second_soft_cancel_is_pending_and_writes_nothing() -> None:
    driver = lives.cancelling()

    again = reply(changes_nothing(driver, driver.cancel(request_id="second", actor=OPERATOR)))

    assert (again.pending, again.is_ok, again.replayed) == (True, True, False)


@spec("Q6")
def test_the_request_ids_of_events_say_where_they_came_from() -> None:
    driver = lives.running()
    driver.do(driver.heartbeat(hb_seq=4))
    beat = driver.events[-1]
    driver.advance(60)
    driver.do(driver.sweep())
    stalled, requeued = driver.events[-2:]

    assert beat.request_id == f"{driver.lease_id}:4"
    assert stalled.request_id == f"{driver.job.id}:{stalled.seq}"
    assert requeued.request_id == f"{driver.job.id}:{requeued.seq}"
    assert driver.events[0].request_id == f"{driver.job.id}"


@spec("Q6")
def test_events_of_internal_commands_have_request_ids_of_job_id_and_rev() -> None:
    driver = lives.claimed()
    driver.do(driver.undelivered(request_id="internal"))
    born = lives.compensation().events[0]

    assert [event.request_id for event in driver.events[-2:]] == [
        f"{JOB_ID}:{event.seq}" for event in driver.events[-2:]
    ]
    assert born.request_id == f"{born.job_id}:1"


@spec("K12")
@pytest.mark.parametrize("verb", ["cancel", "requeue", "dead_letter"])
def test_an_expectation_that_fails_is_a_conflict_and_one_that_holds_is_not(verb: str) -> None:
    driver = lives.held()
    make: Callable[..., Command] = {
        "cancel": driver.cancel,
        "requeue": driver.requeue,
        "dead_letter": driver.dead_letter,
    }[verb]  # type: ignore[assignment]  # each takes the two expectations
    rev, status = driver.job.rev, driver.job.status

    for wrong in (
        make(expected_rev=rev - 1),
        make(expected_rev=rev + 1),
        make(expected_status=JobStatus.RUNNING),
        make(expected_rev=rev, expected_status=JobStatus.QUEUED),
        make(expected_rev=rev - 1, expected_status=status),
    ):
        refused = reply(changes_nothing(driver, wrong))
        assert (refused.cause, refused.job) == (Cause.REVISION_MISMATCH, driver.job)
    applied(driver.do(make(expected_rev=rev, expected_status=status)))


@spec("K12")
def test_a_redrive_may_state_what_it_expects() -> None:
    driver = lives.failed()

    wrong = reply(changes_nothing(driver, driver.redrive(expected_rev=1)))
    right = driver.do(driver.redrive(expected_rev=driver.job.rev, expected_status=JobStatus.FAILED))

    assert wrong.cause is Cause.REVISION_MISMATCH
    assert reply(right).is_ok


@spec("K12", "Q4")
def test_a_repeat_is_recognised_even_if_its_expectation_no_longer_holds() -> None:
    for driver in (lives.running(), lives.held()):
        first = driver.cancel(CancelMode.HARD, request_id="x", expected_rev=driver.job.rev)
        driver.do(first)

        again = reply(changes_nothing(driver, first))

        assert (again.replayed, again.is_ok) == (True, True)


@spec("K12")
def test_an_expectation_about_a_finished_job_is_checked_too() -> None:
    driver = lives.cancelled()

    cancel = reply(changes_nothing(driver, driver.cancel(expected_status=JobStatus.RUNNING)))
    bury = reply(changes_nothing(driver, driver.dead_letter(expected_status=JobStatus.RUNNING)))

    assert cancel.cause is bury.cause is Cause.REVISION_MISMATCH


@spec("K12")
@pytest.mark.parametrize("build", [lives.cancelled, lives.failed, lives.queued, lives.running])
def test_who_expects_a_dead_letter_hears_that_it_is_none(build: Callable[[], Driver]) -> None:
    driver = build()
    letter = JobStatus.DEAD_LETTERED

    answers = [
        reply(changes_nothing(driver, command))
        for rev in (driver.job.rev, 77)
        for command in (
            driver.redrive(expected_rev=rev, expected_status=letter),
            driver.cancel(expected_rev=rev, expected_status=letter),
        )
    ]

    told = [(answer.cause, answer.job) for answer in answers]
    assert told == [(Cause.NOT_DEAD_LETTERED, driver.job)] * 4


# --- The row alone, where it can tell ------------------------------------------------------------


def without_history(driver: Driver, command: Command) -> Outcome:
    return decide(command, driver.context())


def test_the_log_is_read_only_if_the_row_is_not_enough() -> None:
    queued, running, ended = lives.queued(), lives.running(), lives.succeeded()

    told = [
        without_history(running, command)
        for command in (running.heartbeat(), running.complete(), running.sweep())
    ] + [without_history(queued, command) for command in (queued.cancel(), queued.dead_letter())]
    untold = [
        without_history(ended, ended.complete()),
        without_history(ended, ended.heartbeat()),
        without_history(ended, ended.start()),
        without_history(ended, ended.cancel()),
        without_history(ended, ended.dead_letter()),
        without_history(ended, ended.requeue()),
        without_history(ended, ended.enqueue()),
        without_history(running, running.start()),
        without_history(running, running.cancel()),
        without_history(running, running.dead_letter()),
        without_history(queued, queued.cancel(expected_rev=7)),
        without_history(lives.cancelling(), running.cancel(request_id="again")),
    ]

    assert not any(isinstance(outcome, NeedsHistory) for outcome in told)
    assert untold == [NeedsHistory(job_id=JOB_ID)] * len(untold)


# --- Workers: the order of checks, and identity within a lease -----------------------------------


@spec("R1")
def test_unknown_job_is_checked_before_the_lease() -> None:
    driver = Driver()

    answer = verdict(driver.ask(driver.complete(lease_id=LeaseId("9-" + "a" * 32))))

    assert (answer.kind, answer.cause) == (VerdictKind.REJECTED, Cause.UNKNOWN_JOB)


@spec("R1")
def test_the_owner_of_a_lease_is_checked_before_recorded_requests() -> None:
    driver = lives.running()
    first = driver.complete(request_id="r1")
    driver.do(first)

    stranger = verdict(changes_nothing(driver, replace(first, actor=OTHER_WORKER)))

    assert (stranger.kind, stranger.cause) == (VerdictKind.REJECTED, Cause.INVALID_LEASE)
    assert stranger.job_status is None, "a stranger learns nothing about the job"


@spec("R1", "R22")
def test_a_recorded_report_is_checked_before_the_end_of_the_job() -> None:
    driver = lives.running()
    first = driver.fail(request_id="r1")
    recorded = verdict(driver.do(first))
    driver.do(driver.cancel())
    driver.advance(10**8)

    again = verdict(changes_nothing(driver, first))

    assert again == replace(recorded, replayed=True)
    assert again.job_status is JobStatus.QUEUED, "the recorded body, not today's status"


@spec("R1")
def test_a_lost_lease_is_checked_before_one_that_ended_by_time() -> None:
    driver = lives.running()
    driver.raise_epoch()
    driver.advance(10**6)

    answer = verdict(changes_nothing(driver, driver.complete()))

    assert answer.cause is Cause.EPOCH_CHANGED


@spec("R1")
def test_time_is_checked_before_the_status_guard() -> None:
    driver = lives.running()
    driver.advance(60)

    answer = verdict(changes_nothing(driver, driver.start(request_id="other")))

    assert (answer.kind, answer.cause) == (VerdictKind.CANCELLED, Cause.LEASE_EXPIRED)


@spec("R2")
def test_a_guessed_and_a_real_lease_id_of_an_earlier_epoch_get_the_same_answer() -> None:
    driver = lives.running()
    driver.raise_epoch()

    hit = driver.ask(driver.complete(actor=OTHER_WORKER))
    guess = driver.ask(driver.complete(actor=OTHER_WORKER, lease_id=LeaseId("1-" + "a" * 32)))

    assert verdict(hit) == verdict(guess)
    assert verdict(hit).cause is Cause.EPOCH_CHANGED
    assert verdict(hit).job_status is None


@spec("R2")
def test_a_lease_id_of_a_later_epoch_was_never_issued() -> None:
    driver = lives.running()

    answer = verdict(driver.ask(driver.complete(lease_id=LeaseId("2-" + "a" * 32))))

    assert (answer.kind, answer.cause) == (VerdictKind.REJECTED, Cause.INVALID_LEASE)


@spec("R4", "A5")
def test_a_lease_that_was_cancelled_stays_cancelled() -> None:
    driver = lives.running()
    driver.advance(60)
    first = verdict(changes_nothing(driver, driver.complete(request_id="r1")))
    driver.do(driver.sweep())

    later = [
        verdict(changes_nothing(driver, command))
        for command in (
            driver.complete(request_id="r1"),
            driver.complete(request_id="r2"),
            driver.fail(),
            driver.release(),
            driver.heartbeat(hb_seq=50),
            driver.start(),
        )
    ]

    assert {answer.kind for answer in (first, *later)} == {VerdictKind.CANCELLED}


@spec("R23")
def test_the_same_request_id_under_another_lease_is_another_request() -> None:
    driver = lives.running()
    first = driver.fail(request_id="same")
    driver.do(first)
    driver.advance(61)
    driver.do(driver.claim(actor=OTHER_WORKER, owner=OTHER_OWNER, request_id="same"))
    driver.do(driver.start(actor=OTHER_WORKER, request_id="same"))
    second = driver.complete(actor=OTHER_WORKER, request_id="same")
    driver.do(second)

    one, two = verdict(driver.ask(first)), verdict(driver.ask(second))

    assert (one.disposition, one.job_status) == (Disposition.RETRY_SCHEDULED, JobStatus.QUEUED)
    assert (two.disposition, two.job_status) == (Disposition.SUCCEEDED, JobStatus.SUCCEEDED)


@spec("R23")
def test_the_same_worker_may_use_one_request_id_for_each_of_its_leases() -> None:
    driver = lives.running()
    first = driver.release(request_id="same")
    driver.do(first)
    driver.do(driver.claim(request_id="same"))
    second = driver.fail(request_id="same")
    driver.do(second)
    driver.do(driver.cancel(request_id="same"))

    one, two = verdict(driver.ask(first)), verdict(driver.ask(second))

    assert (one.disposition, one.replayed) == (Disposition.RELEASED, True)
    assert (two.disposition, two.replayed) == (Disposition.RETRY_SCHEDULED, True)


@spec("R23", "R18")
def test_a_start_under_an_earlier_lease_does_not_count_for_this_one() -> None:
    driver = lives.claimed()
    driver.do(driver.start(request_id="s1"))
    driver.do(driver.release())
    driver.do(driver.claim())
    driver.do(driver.start(request_id="s2"))

    old = verdict(changes_nothing(driver, driver.start(request_id="s1")))
    own = verdict(changes_nothing(driver, driver.start(request_id="s2")))

    assert (old.kind, old.cause) == (VerdictKind.REJECTED, Cause.ALREADY_STARTED)
    assert (own.kind, own.replayed) == (VerdictKind.OK, True)


@spec("R15")
def test_another_operation_under_a_settled_request_id_is_refused_as_reuse() -> None:
    driver = lives.running()
    driver.do(driver.complete(request_id="r1"))

    answer = verdict(changes_nothing(driver, driver.fail(request_id="r1")))

    assert answer.cause is Cause.IDEMPOTENCY_KEY_REUSE


# --- Fingerprints --------------------------------------------------------------------------------


@spec("R15", "Q4")
def test_a_fingerprint_tells_bodies_and_operations_apart_and_nothing_else() -> None:
    driver = lives.failed()
    redrive = driver.redrive(request_id="x")
    commands: list[Command] = [
        driver.complete(request_id="x"),
        driver.complete(request_id="x", result=b"1"),
        driver.complete(request_id="x", actor=OTHER_WORKER),
        driver.fail(request_id="x"),
        driver.fail(JobError(message="other"), request_id="x"),
        driver.release(request_id="x"),
        driver.start(request_id="x"),
        driver.requeue(request_id="x"),
        driver.requeue(request_id="y"),
        driver.cancel(request_id="x"),
        driver.dead_letter(request_id="x"),
        driver.sweep(),
        redrive,
        driver.redrive(EventCause.RERUN, request_id="x"),
    ]

    prints = [fingerprint(command) for command in commands]

    assert len(set(prints)) == len(prints)
    assert [fingerprint(command) for command in commands] == prints
    assert all(len(each) == 32 and int(each, 16) >= 0 for each in prints)


# --- Observations --------------------------------------------------------------------------------


@spec("U1")
def test_a_late_result_is_kept_as_an_observation_with_a_bounded_body() -> None:
    driver = lives.running()
    driver.advance(60)
    body = b'"' + b"x" * 10_000 + b'"'

    outcome = changes_nothing(driver, driver.complete(result=body, request_id="late"))

    assert isinstance(outcome, Refused)
    seen = outcome.observation
    assert seen is not None
    assert (seen.type, seen.job_id, seen.ts) == (
        ObservationType.RESULT_DISCARDED,
        driver.job.id,
        driver.now,
    )
    assert (seen.actor, seen.lease_id, seen.request_id) == (WORKER, driver.lease_id, "late")
    assert (seen.cause, seen.size) == ("lease_expired", len(body))
    assert seen.sha256 == hashlib.sha256(body).hexdigest()
    assert seen.body == body[:OBSERVED_BODY_BYTES]
    assert OBSERVED_BODY_BYTES == 4096


@spec("U1")
def test_a_late_failure_and_a_second_completion_are_kept_too() -> None:
    late, second = lives.running(), lives.succeeded()
    late.advance(60)

    failure = late.ask(late.fail(JobError(message="näh")))
    completion = second.ask(second.complete(request_id="another"))

    assert isinstance(failure, Refused)
    assert isinstance(completion, Refused)
    assert failure.observation is not None
    assert completion.observation is not None
    assert failure.observation.body == "näh".encode()
    assert completion.observation.cause == "duplicate_completion"


@spec("U1")
def test_requests_without_a_result_and_other_refusals_are_not_kept() -> None:
    late, settled = lives.running(), lives.running()
    late.advance(60)
    first = settled.complete(request_id="r1")
    settled.do(first)

    for driver, command in (
        (late, late.release()),
        (late, late.heartbeat()),
        (late, late.start()),
        (settled, replace(first, result=b"1")),
        (settled, settled.release()),
        (settled, settled.complete(lease_id=LeaseId("1-" + "a" * 32))),
    ):
        outcome = driver.ask(command)
        assert isinstance(outcome, Refused)
        assert outcome.observation is None
    assert isinstance(settled.ask(first), Replayed)


@spec("U2")
@pytest.mark.parametrize("build", [lives.running, lives.succeeded, lives.held])
def test_a_report_under_a_foreign_lease_is_kept_without_its_body(build: object) -> None:
    assert callable(build)
    driver = build()

    outcome = changes_nothing(driver, driver.complete(actor=OTHER_WORKER, request_id="mine"))

    assert isinstance(outcome, Refused)
    seen = outcome.observation
    assert seen is not None
    assert (seen.type, seen.actor) == (ObservationType.FOREIGN_LEASE, OTHER_WORKER)
    assert (seen.lease_id, seen.request_id) == (driver.lease_id, "mine")
    assert (seen.body, seen.size, seen.sha256) == (None, None, None)
