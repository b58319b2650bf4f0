"""The worker's side of the contract, in virtual time against a real coordinator."""

import pytest
from msgspec.structs import replace

from tenure.clock import Boot
from tenure.core.claims import ClaimAnswer
from tenure.core.commands import Complete, Fail, Heartbeat, Release
from tenure.core.instants import seconds
from tenure.core.job import JobError, Progress
from tenure.core.policy import Policy
from tenure.core.verdicts import Verdict
from tenure.core.vocabulary import Cause, JobStatus, VerdictKind
from tenure.handlers.registry import Isolation
from tenure.verify import assert_holds
from tenure.worker.frames import (
    CheckpointSaved,
    Conflicted,
    LeaseRenewed,
    ProgressMade,
    Raised,
    Snoozed,
)
from tenure.worker.session.attempts import fence_at, margin_us
from tenure.worker.session.messages import (
    Begin,
    Died,
    Displaced,
    Kill,
    Note,
    Outcome,
    Send,
    SendClaim,
)
from tenure_conformance.spec import spec
from tests.worker.drive import Drive

LEASE = Policy().lease_us
SHORT = Policy(lease_us=seconds(30))


# --- a job's way -------------------------------------------------------------------------------


def test_a_grant_is_started_run_and_reported() -> None:
    drive = Drive().begin()
    run, job_id = drive.running()

    drive.finish(run)

    assert drive.job(job_id).result == b'"done"'
    assert drive.types(job_id) == ["enqueued", "claimed", "started", "succeeded"]
    assert drive.stats.succeeded == 1
    assert_holds(drive.world.store)


def test_nothing_is_claimed_before_the_children_are_up() -> None:
    drive = Drive()
    drive.enqueue()
    drive.feed(drive.session.work_expected)
    drive.advance(5)
    assert drive.wanted(SendClaim) == []

    drive.begin()

    assert len(drive.grants()) == 1


def test_outcomes_become_their_reports() -> None:
    drive = Drive(concurrency=10).begin()
    error = JobError(type="Boom", message="it broke")
    outcomes: list[Outcome] = [
        Raised(error, seconds(9)),
        Died("was killed by SIGSEGV"),
        Snoozed(seconds(7)),
    ]
    ids = []
    for outcome in outcomes:
        run, job_id = drive.running()
        drive.finish(run, outcome)
        ids.append(job_id)

    raised, died, snoozed = [drive.job(job_id) for job_id in ids]
    assert raised.last_error == error
    assert (raised.run_at or 0) - raised.updated_at == seconds(9)
    assert died.last_error is not None
    assert died.last_error.message == "the handler's process was killed by SIGSEGV"
    assert (snoozed.failures, snoozed.releases) == (0, 0)
    assert (snoozed.run_at or 0) - snoozed.updated_at == seconds(7)
    assert drive.stats.crashes == 1


@spec("F8")
def test_a_conflict_reports_and_renews_nothing_and_frees_the_slot() -> None:
    drive = Drive(concurrency=1).begin()
    run, job_id = drive.running()

    drive.finish(run, Conflicted())

    drive.running()
    drive.advance(30)
    assert drive.status(job_id) is JobStatus.RUNNING
    assert job_id not in {each.job_id for each in drive.commands(Heartbeat)}
    assert drive.commands(Fail) == drive.commands(Release) == []
    assert drive.stats.conflicts == 1


def test_a_displaced_attempt_is_handed_back() -> None:
    drive = Drive().begin()
    run, job_id = drive.running()

    drive.finish(run, Displaced())

    assert (drive.job(job_id).failures, drive.job(job_id).releases) == (0, 1)
    assert drive.stats.displaced == 1


# --- claiming ----------------------------------------------------------------------------------


def test_claims_ask_for_what_is_free_and_stop_when_nothing_is() -> None:
    drive = Drive(concurrency=3)
    for _ in range(5):
        drive.enqueue()

    drive.begin()
    drive.advance(10)

    assert [send.request.limit for send in drive.wanted(SendClaim)] == [3]
    drive.finish(1)
    assert [send.request.limit for send in drive.wanted(SendClaim)] == [3, 1]


def test_claim_seq_rises_and_idle_polls_slow_down() -> None:
    drive = Drive().begin()
    drive.advance(60)
    claims = drive.wanted(SendClaim)

    numbers = [send.request.claim_seq for send in claims]
    assert numbers == sorted(set(numbers))
    assert 115 <= len(claims) <= 130

    drive.feed(drive.session.work_expected)
    drive.advance(0.2)

    assert len(drive.wanted(SendClaim)) - len(claims) >= 3, "a hint makes it look often again"


def test_a_claim_without_an_answer_is_repeated_as_it_was_and_grants_once() -> None:
    drive = Drive()
    job_id = drive.enqueue()
    drive.network.answers_return = False
    drive.begin()
    drive.advance(20)
    claims = [send.request for send in drive.wanted(SendClaim)]
    drive.network.heal()
    drive.advance(6)

    assert len(claims) > 4
    assert len(set(claims)) == 1
    assert [grant.job_id for grant in drive.grants()] == [job_id]
    assert drive.types(job_id).count("claimed") == 1
    assert drive.status(job_id) is JobStatus.RUNNING


def test_the_lease_of_a_repeated_claim_counts_from_its_own_sending() -> None:
    drive = Drive()
    drive.enqueue()
    drive.network.answers_return = False
    drive.begin()
    drive.advance(30)
    drive.network.heal()
    drive.advance(6)
    (grant,) = drive.grants()
    assert grant.ttl_us < seconds(30), "what is left of it"

    drive.network.cut()
    drive.advance(31)

    assert len(drive.wanted(Kill)) == 1


@spec("WP12")
def test_the_lease_of_a_held_claim_counts_from_the_end_of_the_hold() -> None:
    drive = Drive()
    drive.enqueue(SHORT)

    held_claim(drive, held_s=40, said_s=40)

    drive.advance(1)
    assert drive.stats.started == 1


@spec("WP12")
def test_a_claim_cannot_have_been_held_longer_than_the_worker_waited() -> None:
    drive = Drive()
    drive.enqueue(SHORT)

    held_claim(drive, held_s=0, said_s=3600)
    drive.network.cut()
    drive.advance(30)

    assert len(drive.wanted(Kill)) == 1


@spec("WP12")
@pytest.mark.parametrize(("late_s", "becomes"), [(28, JobStatus.QUEUED), (30, JobStatus.RUNNING)])
def test_a_grant_that_comes_too_late_is_handed_back_unless_its_lease_is_over(
    late_s: float, becomes: JobStatus
) -> None:
    drive = Drive()
    job_id = drive.enqueue(SHORT)

    held_claim(drive, held_s=0, said_s=0, late_s=late_s)

    assert drive.status(job_id) is becomes
    assert drive.grants() == [], "it was not begun"
    assert len(drive.commands(Release)) == 1
    assert drive.job(job_id).failures == 0


def held_claim(drive: Drive, *, held_s: float, said_s: float, late_s: float = 0) -> None:
    """The session's claim is held, then granted; the answer says so, and is on its way for long."""
    [asked] = drive.decide(drive.session.children_serving, Isolation.ASYNC, 1)
    assert isinstance(asked, SendClaim)
    drive.world.clock.now += seconds(held_s)  # type: ignore[assignment]  # both count microseconds
    answer = drive.world.coordinator.claim(asked.request)
    drive.world.clock.now += seconds(late_s)  # type: ignore[assignment]  # both count microseconds
    drive.feed(
        drive.session.claim_answered, asked.ticket, replace(answer, waited_us=seconds(said_s))
    )


def test_a_rejected_claim_ends_the_worker() -> None:
    drive = Drive().begin()
    (claim,) = drive.wanted(SendClaim)[-1:]
    drive.network.cut()
    drive.feed(drive.session.work_expected)
    drive.advance(0.01)

    ticket = drive.wanted(SendClaim)[-1].ticket
    drive.decide(drive.session.claim_answered, ticket + 1, ClaimAnswer(cause=Cause.STALE_CLAIM))
    assert drive.session.failure is None, "that was no answer to its claim"
    session = drive.session
    session._claim = (ticket, drive.now)
    drive.decide(drive.session.claim_answered, ticket, ClaimAnswer(cause=Cause.STALE_CLAIM))

    assert claim.request.claim_seq >= 1
    assert session.failure is not None
    assert "stale_claim" in session.failure
    assert drive.stats.rejected == 1


# --- heartbeats and fencing --------------------------------------------------------------------


def test_heartbeats_are_batched_and_numbered() -> None:
    drive = Drive(concurrency=3).begin()
    for _ in range(3):
        drive.running()

    drive.advance(240)

    batches = [
        [c for c in send.commands if isinstance(c, Heartbeat)] for send in drive.wanted(Send)
    ]
    beats = [batch for batch in batches if batch]
    assert all(len(batch) == 3 for batch in beats[-4:])
    of_one = [c.hb_seq for batch in beats for c in batch if c.job_id == drive.grants()[0].job_id]
    assert of_one == list(range(1, len(of_one) + 1))
    assert 8 <= len(of_one) <= 12, "every 30 s of a 60 s lease"


def test_a_renewal_is_passed_on_with_the_instant_it_lasts_to() -> None:
    drive = Drive().begin()
    drive.running()

    drive.advance(31)

    renewals = drive.wanted(LeaseRenewed)
    sent = drive.commands(Heartbeat)
    assert len(renewals) == len(sent)
    assert renewals[-1].until > drive.wanted(Begin)[0].until


def test_the_margin_is_a_tenth_and_at_least_two_seconds_of_a_long_lease() -> None:
    assert margin_us(seconds(60)) == seconds(6)
    assert margin_us(seconds(20)) == seconds(2)
    assert margin_us(seconds(10)) == seconds(1.1)
    assert margin_us(seconds(1)) == seconds(0.15)
    assert fence_at(Boot(0), ttl_us=LEASE, lease_us=LEASE) == Boot(seconds(54))
    assert fence_at(Boot(0), ttl_us=seconds(30), lease_us=LEASE) == Boot(seconds(24))
    assert fence_at(Boot(7), ttl_us=seconds(3), lease_us=LEASE) == Boot(7)
    short = fence_at(Boot(0), ttl_us=seconds(5), lease_us=LEASE, is_bounded=True)
    assert seconds(4.9) < short < seconds(5), "a bound by a time-out is exact"


def test_without_a_renewal_the_handler_is_killed_before_the_lease_ends() -> None:
    drive = Drive().begin()
    _, job_id = drive.running()
    drive.network.cut()
    expires_at = drive.job(job_id).lease_expires_at
    assert expires_at is not None

    drive.advance(50)
    assert drive.wanted(Kill) == []
    drive.advance(5)

    assert len(drive.wanted(Kill)) == 1
    assert drive.now < expires_at
    assert drive.stats.fenced == 1
    assert drive.commands(Complete) == drive.commands(Release) == drive.commands(Fail) == []


def test_the_deadline_counts_from_sending_not_from_the_answer() -> None:
    drive = Drive().begin()
    run, _ = drive.running()
    drive.network.cut()
    drive.advance(14)
    before = drive.now
    actions = drive.decide(drive.session.clock_jumped)
    (send,) = [action for action in actions if isinstance(action, Send)]
    drive.world.clock.advance(10)

    verdict = Verdict(kind=VerdictKind.OK, ttl_us=LEASE)
    drive.decide(drive.session.answered, send.ticket, [verdict])

    drive.advance((before + seconds(54) - drive.now) / 1e6 - 0.01)
    fenced_too_soon = drive.wanted(Kill)
    drive.advance(0.02)

    assert not fenced_too_soon
    assert [each.run for each in drive.wanted(Kill)] == [run]


def test_a_worker_that_slept_past_its_lease_kills_before_it_does_anything_else() -> None:
    drive = Drive().begin()
    drive.running()
    heartbeats = len(drive.commands(Heartbeat))

    drive.advance(600, sleeping=True)

    assert len(drive.wanted(Kill)) == 1
    assert len(drive.commands(Heartbeat)) == heartbeats, "a dead lease is not renewed"


@spec("WP26")
def test_a_heartbeat_without_an_answer_is_repeated_at_half_of_what_remains_of_its_lease() -> None:
    drive = Drive().begin()
    drive.running()
    fence_at = drive.wanted(Begin)[0].until
    drive.network.cut()
    remaining_s = []
    while not drive.wanted(Kill):
        before = len(drive.commands(Heartbeat))
        drive.advance(0.1)
        if len(drive.commands(Heartbeat)) > before:
            remaining_s.append((fence_at - drive.now) / 1e6)

    assert [round(each) for each in remaining_s] == [24, 12, 6, 3, 1]
    seqs = [beat.hb_seq for beat in drive.commands(Heartbeat)]
    assert seqs == list(range(1, len(seqs) + 1))
    assert drive.stats.fenced == 1


@spec("WP26")
def test_a_repeated_heartbeat_is_no_later_than_any_other() -> None:
    drive = Drive().begin()
    drive.running(Policy(heartbeat_us=seconds(15)))
    begun = drive.now
    drive.network.cut()
    sent_s: list[int] = []
    while len(sent_s) < 2:
        before = len(drive.commands(Heartbeat))
        drive.advance(0.1)
        if len(drive.commands(Heartbeat)) > before:
            sent_s.append(round((drive.now - begun) / 1e6))

    assert sent_s[1] - sent_s[0] == 15


@spec("WP26")
def test_a_repeated_heartbeat_keeps_the_lease_and_the_next_comes_after_the_interval() -> None:
    drive = Drive().begin()
    _, job_id = drive.running()
    drive.network.cut()
    drive.advance(32)
    drive.network.heal()
    drive.advance(15)
    recovered = len(drive.commands(Heartbeat))

    assert "lease_renewed" in drive.types(job_id)
    drive.advance(20)
    assert len(drive.commands(Heartbeat)) == recovered
    drive.advance(12)
    assert len(drive.commands(Heartbeat)) == recovered + 1
    assert drive.stats.fenced == 0


def test_a_jump_of_the_wall_clock_renews_every_lease_now() -> None:
    drive = Drive().begin()
    drive.running()
    drive.running()
    before = len(drive.commands(Heartbeat))

    drive.feed(drive.session.clock_jumped)

    assert len(drive.commands(Heartbeat)) == before + 2


def test_a_timed_out_job_is_killed_at_its_time_and_reports_nothing() -> None:
    drive = Drive().begin()
    _, job_id = drive.running(replace(Policy(), timeout_us=seconds(100)))
    started_at = drive.job(job_id).started_at
    assert started_at is not None

    drive.advance(99)

    assert len(drive.wanted(Kill)) == 1
    assert drive.now - started_at > seconds(95)
    assert (drive.stats.timed_out, drive.stats.fenced) == (1, 0)
    assert any("it ran into its timeout" in note.text for note in drive.wanted(Note))


# --- news --------------------------------------------------------------------------------------


def test_news_is_sent_at_once_and_then_once_a_second() -> None:
    drive = Drive().begin()
    run, job_id = drive.running()
    before = len(drive.commands(Heartbeat))

    for step in range(20):
        drive.feed(drive.session.child_sent, CheckpointSaved(run, b"%d" % step))
        drive.feed(drive.session.child_sent, ProgressMade(run, Progress(done=step)))
        drive.advance(0.1)

    assert 2 <= len(drive.commands(Heartbeat)) - before <= 4
    drive.advance(1)
    assert drive.job(job_id).checkpoint == b"19"
    assert drive.job(job_id).progress == Progress(done=19)


def test_the_last_checkpoint_arrives_before_the_report() -> None:
    drive = Drive().begin()
    run, job_id = drive.running()
    for step in range(3):
        drive.feed(drive.session.child_sent, CheckpointSaved(run, b"%d" % step))

    drive.finish(run, Raised(JobError(type="Boom", message="half-way")))

    assert drive.job(job_id).checkpoint == b"2"
    assert drive.types(job_id)[-3:] == ["heartbeat", "stalled", "requeued"]


def test_a_report_that_overtakes_a_heartbeat_brings_its_news_along() -> None:
    drive = Drive().begin()
    run, job_id = drive.running()
    on_its_way = drive.decide(drive.session.child_sent, CheckpointSaved(run, b"1"))
    assert [type(each) for each in on_its_way] == [Send]

    drive.finish(run)

    assert drive.status(job_id) is JobStatus.SUCCEEDED
    assert drive.job(job_id).checkpoint == b"1"


def test_news_of_a_lost_heartbeat_is_sent_again() -> None:
    drive = Drive().begin()
    run, job_id = drive.running()
    drive.network.cut()
    drive.feed(drive.session.child_sent, CheckpointSaved(run, b"1"))
    drive.feed(drive.session.child_sent, ProgressMade(run, Progress(done=1)))
    drive.advance(0.1)
    drive.network.heal()
    drive.feed(drive.session.child_sent, ProgressMade(run, Progress(done=2)))
    drive.advance(5)

    assert drive.job(job_id).checkpoint == b"1"
    assert drive.job(job_id).progress == Progress(done=2)
