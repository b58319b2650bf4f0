"""Every verdict is final, only transport is retried, and a cancel is asked before it is done."""

import re

import pytest
from msgspec import structs

from tenure.core.commands import Complete, Fail, Heartbeat, Release
from tenure.core.ids import JobId
from tenure.core.instants import seconds
from tenure.core.job import JobError
from tenure.core.policy import Policy
from tenure.core.verdicts import Verdict
from tenure.core.vocabulary import (
    CancelMode,
    Cause,
    Disposition,
    ErrorClass,
    JobStatus,
    Stage,
    VerdictKind,
)
from tenure.protocol.fields import moment
from tenure.worker.frames import AskToStop, CheckpointSaved, Raised, Returned, Snoozed, Stopped
from tenure.worker.session.attempts import NO_RENEWAL
from tenure.worker.session.messages import (
    Kill,
    Note,
    Outcome,
    Send,
    SendClaim,
)
from tenure_conformance.spec import spec
from tests.worker.drive import Drive

# --- verdicts ----------------------------------------------------------------------------------


def test_cancelled_stops_the_handler_and_nothing_is_reported() -> None:
    drive = Drive().begin()
    _, job_id = drive.running()

    drive.cancel(job_id, CancelMode.HARD)
    drive.advance(20)

    assert len(drive.wanted(Kill)) == 1
    assert drive.stats.cancelled == 1
    assert drive.commands(Complete) == drive.commands(Fail) == drive.commands(Release) == []
    assert drive.status(job_id) is JobStatus.CANCELLED


@spec("Y4")
def test_verdicts_with_words_of_a_newer_server_end_the_attempt_as_others_do() -> None:
    committed = Verdict(
        kind=VerdictKind.COMMITTED,
        disposition=Disposition("split"),
        job_status=JobStatus("napping"),
    )
    cancelled = Verdict(kind=VerdictKind.CANCELLED, cause=Cause("eclipse"))
    for verdict in (committed, cancelled):
        drive = Drive().begin()
        run, _ = drive.running()
        drive.network.cut()
        finished = drive.decide(drive.session.finished, run, Returned(b"1"))
        (send,) = [action for action in finished if isinstance(action, Send)]

        actions = drive.decide(drive.session.answered, send.ticket, (verdict,))

        notes = [action.text for action in actions if isinstance(action, Note)]
        assert any("split" in note or "eclipse" in note for note in notes), notes
        assert [action for action in actions if isinstance(action, Send)] == []


def test_a_result_after_cancelled_is_discarded() -> None:
    drive = Drive(kills=False).begin()
    run, job_id = drive.running()
    drive.cancel(job_id, CancelMode.HARD)
    drive.advance(20)

    drive.finish(run, Returned(b"1"))

    assert drive.commands(Complete) == []
    assert drive.job(job_id).result is None


def test_rejected_stops_the_handler_and_is_counted_and_logged() -> None:
    drive = Drive().begin()
    run, _ = drive.running()
    drive.network.cut()
    (send,) = [a for a in drive.decide(drive.session.clock_jumped) if isinstance(a, Send)]

    verdict = Verdict(kind=VerdictKind.REJECTED, cause=Cause.INVALID_LEASE)
    actions = drive.decide(drive.session.answered, send.ticket, (verdict,))

    assert Kill(run) in actions
    assert any(isinstance(a, Note) and a.is_error and "REJECTED" in a.text for a in actions)
    assert drive.stats.rejected == 1


@pytest.mark.parametrize(
    ("outcome", "text", "is_routine"),
    [
        (Returned(b"1"), "succeeded after {} s", True),
        (Snoozed(seconds(5)), "handed back after {} s", True),
        (
            Raised(JobError(type="Boom", message="it broke\n\nTraceback …"), seconds(30)),
            "failed after {} s, next attempt in 30.0 s: Boom: it broke",
            False,
        ),
        (
            Raised(JobError(type="No", message="never", error_class=ErrorClass.PERMANENT)),
            "failed for good after {} s: No: never",
            False,
        ),
    ],
)
def test_how_an_attempt_ended_is_logged_in_one_line(
    outcome: Outcome, text: str, is_routine: bool
) -> None:
    drive = Drive().begin()
    run, job_id = drive.running()
    drive.advance(1.5)

    drive.finish(run, outcome)

    [note] = drive.wanted(Note)
    found = re.search(r"after (\d+\.\d{3}) s", note.text)
    assert found is not None
    ran_s = found[1]
    assert 1.5 <= float(ran_s) <= 5.0
    assert note.text == f"job {job_id} ({drive.job(job_id).kind}) attempt 1: {text.format(ran_s)}"
    assert (note.is_routine, note.is_error) == (is_routine, False)


def test_a_retry_is_logged_with_the_stores_time_if_the_claim_has_none() -> None:
    drive = Drive().begin()
    run, job_id = drive.running()
    attempt = drive.session._attempts[run]
    over_http = structs.replace(attempt.grant.job, claimed_at=None)
    attempt.grant = structs.replace(attempt.grant, job=over_http)

    drive.finish(run, Raised(JobError(type="Boom"), seconds(30)))

    [note] = drive.wanted(Note)
    run_at = drive.job(job_id).run_at
    assert run_at is not None
    assert f", next attempt at {moment(run_at):%Y-%m-%d %H:%M:%S} UTC: Boom" in note.text


@pytest.mark.parametrize("every_end", [True, False])
def test_the_traceback_of_a_failure_is_logged_where_every_end_is(every_end: bool) -> None:
    drive = Drive(notes_every_end=every_end).begin()
    run, _ = drive.running()

    drive.finish(run, Raised(JobError(type="Boom", traceback="Traceback …\n  here")))

    [note] = drive.wanted(Note)
    assert note.below == ("Traceback …\n  here" if every_end else "")


def test_verdicts_are_never_retried() -> None:
    drive = Drive().begin()
    for outcome in (Returned(b"1"), Raised(JobError(type="X")), Snoozed(seconds(5))):
        run, _ = drive.running()
        drive.finish(run, outcome)
    run, job_id = drive.running()
    drive.cancel(job_id, CancelMode.HARD)
    drive.finish(run)
    reports = [c for send in drive.wanted(Send) for c in send.commands if not _is_routine(c)]

    drive.advance(300)

    after = [c for send in drive.wanted(Send) for c in send.commands if not _is_routine(c)]
    assert len(reports) == 4
    assert [c for c in after if c in reports] == reports
    assert drive.stats.cancelled == 1


def _is_routine(command: object) -> bool:
    return isinstance(command, Heartbeat)


def test_a_report_without_an_answer_is_repeated_under_its_id_and_replayed() -> None:
    drive = Drive().begin()
    run, job_id = drive.running()
    drive.network.answers_return = False
    drive.finish(run)
    drive.advance(3)
    drive.network.heal()
    drive.advance(10)

    reports = drive.commands(Complete)
    assert len(reports) >= 2
    assert len(set(reports)) == 1
    assert drive.types(job_id).count("succeeded") == 1
    assert drive.stats.succeeded == 1


def test_transport_retries_of_a_report_are_bounded() -> None:
    drive = Drive(concurrency=1).begin()
    run, _ = drive.running()
    drive.network.cut()

    drive.finish(run)
    drive.advance(300)

    assert 3 <= len(drive.commands(Complete)) <= 13
    assert drive.stats.unreported == 1


def test_work_goes_on_while_a_report_waits_but_does_not_pile_up() -> None:
    drive = Drive(concurrency=2).begin()
    runs = [drive.running()[0] for _ in range(2)]
    drive.network.cut()
    for run in runs:
        drive.finish(run)
    claims = len(drive.wanted(SendClaim))

    drive.advance(20)

    assert len(drive.wanted(SendClaim)) > claims
    assert len(drive.session._attempts) == 2


def test_one_bad_command_does_not_hold_up_its_neighbours() -> None:
    drive = Drive(concurrency=2).begin()
    bad, bad_id = drive.running()
    good, good_id = drive.running()
    _refuse_bad_checkpoints(drive)

    drive.advance(20)
    drive.feed(drive.session.child_sent, CheckpointSaved(good, b"[1]"))
    drive.feed(drive.session.child_sent, CheckpointSaved(bad, b"NaN"))
    drive.advance(60)
    drive.feed(drive.session.child_sent, CheckpointSaved(bad, b"NaN"))
    drive.finish(bad)
    drive.finish(good)
    drive.advance(10)

    assert drive.status(good_id) is drive.status(bad_id) is JobStatus.SUCCEEDED
    assert drive.job(good_id).checkpoint == b"[1]"
    assert drive.stats.fenced == 0


def _refuse_bad_checkpoints(drive: Drive) -> None:
    """From now on the network refuses, as a whole, batches that hold such a checkpoint."""
    send = drive.send

    def refuse(ticket: int, commands: tuple[object, ...]) -> None:
        if any(isinstance(c, Heartbeat) and c.checkpoint == b"NaN" for c in commands):
            drive.session.refused(ticket, "checkpoint: NaN is not JSON")
        else:
            send(ticket, commands)  # type: ignore[arg-type]  # only worker commands are sent

    drive.send = refuse  # type: ignore[method-assign]  # a fault put into the test's own network


def test_a_result_the_coordinator_does_not_take_is_permanent_at_output() -> None:
    drive = Drive().begin()
    run, job_id = drive.running()
    (send,) = drive.decide(drive.session.finished, run, Returned(b"[" * 99))
    assert isinstance(send, Send)

    drive.feed(drive.session.refused, send.ticket, "result: too deep")

    job = drive.job(job_id)
    assert job.status is JobStatus.FAILED
    assert job.error is not None
    assert job.error.stage == "output"


def test_a_failure_the_coordinator_does_not_take_is_one_at_commit() -> None:
    drive = Drive().begin()
    run, job_id = drive.running()
    outcome = Raised(JobError(type="RuntimeError", message="x" * 99_999))
    (send,) = drive.decide(drive.session.finished, run, outcome)
    assert isinstance(send, Send)

    drive.feed(drive.session.refused, send.ticket, "error.message: too long")

    job = drive.job(job_id)
    assert job.last_error is not None
    assert (job.last_error.stage, job.failures) == (Stage.COMMIT, 1)
    assert "error.message: too long" in job.last_error.message


# --- cancelling --------------------------------------------------------------------------------


def test_a_cancel_directive_asks_and_the_acknowledgement_ends_the_job() -> None:
    drive = Drive().begin()
    run, job_id = drive.running()
    drive.cancel(job_id)
    drive.advance(16)
    assert drive.wanted(AskToStop) == [AskToStop(run, "enough")]

    drive.finish(run, Stopped())

    assert drive.status(job_id) is JobStatus.CANCELLED
    assert drive.types(job_id)[-1] == "cancelled"
    assert drive.stats.acknowledged_cancels == 1


def test_a_handler_that_finishes_in_spite_of_a_cancel_has_succeeded() -> None:
    drive = Drive().begin()
    run, job_id = drive.running()
    drive.cancel(job_id)
    drive.advance(16)

    drive.finish(run)

    assert drive.status(job_id) is JobStatus.SUCCEEDED


def test_after_the_grace_the_handler_is_killed_and_the_cancel_acknowledged() -> None:
    drive = Drive().begin()
    _, job_id = drive.running()
    drive.cancel(job_id)
    deadline = drive.job(job_id).cancel_deadline
    assert deadline is not None

    drive.advance(61)

    assert len(drive.wanted(Kill)) == 1
    assert drive.status(job_id) is JobStatus.CANCELLED
    assert drive.stats.acknowledged_cancels == 1
    assert (drive.job(job_id).finished_at or 0) < deadline


@spec("WP12")
def test_an_early_heartbeat_under_a_cancel_leaves_the_margin_of_the_lease() -> None:
    policy = Policy(lease_us=seconds(30), grace_us=seconds(60))
    drive = Drive().begin()
    _, job_id = drive.running(policy)
    _until_a_heartbeat_is_recorded(drive, job_id)
    drive.cancel(job_id)
    drive.advance(1.2)
    assert len(drive.wanted(AskToStop)) == 1, "a heartbeat brought the cancel"
    expires_at = drive.job(job_id).lease_expires_at
    assert expires_at is not None
    drive.network.cut()

    while not drive.wanted(Kill):
        drive.advance(0.1)

    assert expires_at - drive.now > seconds(2.8), "a tenth of it"
    assert (drive.stats.fenced, drive.stats.timed_out) == (1, 0)
    assert any(NO_RENEWAL in note.text for note in drive.wanted(Note))


@spec("WP12")
def test_an_early_heartbeat_shortly_before_a_time_out_leaves_the_margin_of_the_lease() -> None:
    policy = Policy(lease_us=seconds(30), timeout_us=seconds(46))
    drive = Drive().begin()
    _, job_id = drive.running(policy)
    _until_a_heartbeat_is_recorded(drive, job_id)
    drive.feed(drive.session.clock_jumped)  # every lease is renewed at once
    job = drive.job(job_id)
    assert job.lease_expires_at is not None
    assert job.started_at is not None
    before_time_out = job.started_at + seconds(46) - job.lease_expires_at
    assert 0 < before_time_out < seconds(2)
    drive.network.cut()

    while not drive.wanted(Kill):
        drive.advance(0.1)

    assert job.lease_expires_at - drive.now > seconds(2.8), "a tenth of it"
    assert (drive.stats.fenced, drive.stats.timed_out) == (1, 0)


def _until_a_heartbeat_is_recorded(drive: Drive, job_id: JobId) -> None:
    recorded = drive.types(job_id).count("lease_renewed")
    while drive.types(job_id).count("lease_renewed") == recorded:
        drive.advance(0.1)


def test_a_handler_killed_after_a_cancel_is_logged_with_the_time_it_had() -> None:
    drive = Drive().begin()
    _, job_id = drive.running()
    drive.cancel(job_id)

    drive.advance(61)

    about = f"job {job_id} ({drive.job(job_id).kind}) attempt 1: "
    [stopped] = [note for note in drive.wanted(Note) if "killing it" in note.text]
    assert stopped.text.startswith(about)
    [had_s] = re.findall(r"did not stop within ([0-9.]+) s", stopped.text)
    assert 57 <= float(had_s) <= 59, "heartbeat and grace, without the poll and the reserve"
    assert (stopped.is_routine, stopped.is_error) == (False, False)
    assert stopped.job is not None


def test_a_handler_that_stopped_when_asked_is_not_logged_as_killed() -> None:
    drive = Drive().begin()
    run, job_id = drive.running()
    drive.cancel(job_id)
    drive.advance(16)

    drive.finish(run, Stopped())
    drive.advance(46)

    assert [note.text for note in drive.wanted(Note) if "killing it" in note.text] == []


def test_a_handler_that_stopped_unasked_saw_its_lease_run_out() -> None:
    drive = Drive().begin()
    run, job_id = drive.running()

    drive.finish(run, Stopped())

    assert drive.commands(Release) == []
    assert drive.status(job_id) is JobStatus.RUNNING
    assert drive.stats.fenced == 1
