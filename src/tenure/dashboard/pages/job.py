"""One job: its life as a picture, what it was given and returned, and why it is where it is.

The log is read from its newest part: `rev` is the seq of its last event, so the beginning of a very
long one is left out without counting it.
"""

from collections.abc import Sequence
from typing import Any

import msgspec
from starlette.responses import Response

from tenure.core.artifacts import AttemptLog
from tenure.core.events import Event
from tenure.core.views.events import timeline
from tenure.dashboard.actions import DEAD_LETTER, JOB, Action, Field
from tenure.dashboard.event_words import what_happened, why_it_happened
from tenure.dashboard.job_life import life_of
from tenure.dashboard.life_picture import picture_of
from tenure.dashboard.visits import Page, Visit
from tenure.protocol.fields import moment
from tenure.protocol.records import JobRecord, event_of, job_of, observation_of
from tenure.protocol.replies import (
    ArtifactsReply,
    EventsReply,
    FlowReply,
    JobReply,
    LogsReply,
    ObservationsReply,
    VerificationReply,
    WaitReasonRecord,
    WaitReasonsReply,
)

MAX_EVENTS = 2_000
"""The newest events of a log that a page reads."""

EVENTS_PER_READ = 500
MAX_ENTRIES = 200
"""The newest entries of the table of events."""

MAX_BODY_CHARACTERS = 100_000
MAX_OUTPUT_CHARACTERS = 200_000
"""A page shows no more of a body or of an attempt's output; the command line shows all."""


async def job(visit: Visit) -> Response:
    """The page of one job."""
    job_id = visit.part("job_id")
    path = {"job_id": job_id}
    reply = await visit.ask("job", JobReply, path=path, query={"bodies": visit.sees_bodies})
    record = reply.job
    assert record is not None
    events, after_seq = await _newest_events(visit, record)
    observed = await visit.ask("observations", ObservationsReply, path=path)
    observations = [observation_of(each) for each in observed.observations]
    logs: Sequence[AttemptLog] = ()
    if visit.may("logs"):
        logs = (await visit.ask("logs", LogsReply, path=path)).logs
    artifacts = await visit.ask("artifacts", ArtifactsReply, path=path)
    life = life_of(job_of(record), events, observations, now=visit.instant)
    entries = timeline(events, observations, folded=True, after_seq=after_seq)
    return await visit.show(
        "job.html",
        job=record,
        resolution=reply.resolution,
        picture=picture_of(life),
        entries=entries[-MAX_ENTRIES:],
        has_more_events=after_seq > 0 or len(entries) > MAX_ENTRIES,
        what=what_happened,
        why=why_it_happened,
        moment=moment,
        logs=logs,
        artifacts=artifacts.artifacts,
        reasons=await _wait_reasons(visit, record),
        relatives=await _relatives(visit, record),
        bodies=_bodies(record),
        max_body=MAX_BODY_CHARACTERS,
        max_output=MAX_OUTPUT_CHARACTERS,
        offered=offered_actions(record, is_resolved=reply.resolution is not None),
    )


async def verify(visit: Visit) -> Response:
    """Check a job's row and log against the invariants, and show the result. It changes nothing."""
    path = {"job_id": visit.part("job_id")}
    reply = await visit.ask("job", JobReply, path=path)
    found = await visit.ask("verify-job", VerificationReply, path=path)
    return await visit.show("verify.html", job=reply.job, found=found)


async def _wait_reasons(visit: Visit, record: JobRecord) -> Sequence[WaitReasonRecord]:
    """Why no worker runs this job."""
    if record.status.is_terminal or record.status.is_leased:
        return ()
    found = await visit.ask("wait-reasons", WaitReasonsReply, path={"job_id": record.id})
    return found.reasons


async def _newest_events(visit: Visit, record: JobRecord) -> tuple[list[Event], int]:
    """The newest events, and the seq after which they start."""
    first_after = max(0, record.rev - MAX_EVENTS)
    after: int | None = first_after
    events: list[Event] = []
    while after is not None and len(events) <= MAX_EVENTS:
        page = await visit.ask(
            "events",
            EventsReply,
            path={"job_id": record.id},
            query={"after_seq": after, "limit": EVENTS_PER_READ},
        )
        events += [event_of(each) for each in page.events]
        after = page.next_after_seq
    return events, first_after


def _bodies(record: JobRecord) -> list[tuple[str, int, str]]:
    """Each body that is known: its name, size and text."""
    known = ((name, getattr(record, name)) for name in ("payload", "result", "checkpoint"))
    return [
        (name, len(bytes(raw)), msgspec.json.format(bytes(raw).decode(), indent=2))
        for name, raw in known
        if raw is not msgspec.UNSET and raw is not None
    ]


async def _relatives(visit: Visit, record: JobRecord) -> dict[str, Any] | None:
    """The jobs of the flow before and after this one, and the names of all, replaced ones included.
    The whole flow is read for it, so the page of a job in a large flow is asked for less often."""
    if record.flow_id is None:
        return None
    found = await visit.ask("show-flow", FlowReply, path={"flow_id": record.flow_id})
    before = next((step.after for step in found.steps if step.job_id == record.id), ())
    return {
        "parents": [step for step in found.current if step.name in before],
        "children": [step for step in found.current if record.flow_step in step.after],
        "flow_jobs": len(found.current),
        "names": {step.job_id: step.name for step in found.steps},
    }


async def artifact(visit: Visit) -> Response:
    """Download an artifact. It is untrusted, so it is never shown. [DB21]"""
    return await visit.response(
        "artifact", path={"job_id": visit.part("job_id"), "name": visit.part("name")}
    )


def offered_actions(record: JobRecord, *, is_resolved: bool) -> list[str]:
    """The actions that may be useful in this status. The core decides; this only leaves out what it
    would refuse in any case."""
    if not record.status.is_terminal:
        first = {"stalled": ["requeue"], "claimed": ["stall"], "running": ["stall"]}
        return [*first.get(record.status, []), "cancel", "dead-letter"]
    if record.status == "dead_lettered" and not is_resolved:
        return ["redrive", "discard"]
    return ["rerun"]


REASON = Field(name="reason", label="Reason", hint="Optional. The job's log keeps it.")

CANCEL = Action(
    name="cancel",
    target=JOB,
    verb="Cancel",
    explains="A job that waits is cancelled at once. One that runs is asked to stop, or is"
    " stopped.",
    done="cancelled, or asked to stop",
    icon="stop",
    fields=(
        Field(
            name="mode",
            label="How",
            kind="choice",
            choices=(
                ("soft", "Soft: ask the handler to stop, and give it its grace period"),
                ("hard", "Hard: revoke its lease at once"),
            ),
        ),
        REASON,
    ),
    is_severe=True,
    many="cancel-many",
)

ACTIONS = (
    CANCEL,
    Action(
        name="rerun",
        target=JOB,
        verb="Run again",
        phrase="Run {} again",
        explains="Makes a new job with the same payload. The finished one stays unchanged.",
        done="enqueued again as a new job",
        icon="again",
    ),
    Action(
        name="stall",
        target=JOB,
        verb="Stall",
        explains="Takes the job from a worker that you no longer trust: its lease ends at once and"
        " its report is discarded. The job stays stalled until it is requeued. It costs no"
        " attempt.",
        done="stalled",
        icon="warn",
        is_severe=True,
    ),
    Action(
        name="requeue",
        target=JOB,
        verb="Requeue",
        explains="Lets a held job go back to its queue. Its lost attempt may have had effects: the"
        " handler runs once more.",
        done="requeued",
        icon="again",
    ),
    Action(
        name="dead-letter",
        target=JOB,
        verb="Dead-letter",
        explains="Takes the job out of circulation. It can be redriven later.",
        done="dead-lettered",
        icon="dead",
        fields=(
            Field(
                name="reason_code",
                label="Why",
                kind="choice",
                choices=(
                    ("policy_violation", "Policy violation: it must not run"),
                    ("validation_failed", "Its payload is wrong"),
                    ("dependency_unavailable", "Something that it needs is missing"),
                    ("infrastructure_failure", "Infrastructure failure"),
                ),
            ),
            Field(name="message", label="Message", hint="Optional. The job's log keeps it."),
        ),
        is_severe=True,
    ),
    Action(
        name="redrive",
        target=DEAD_LETTER,
        verb="Redrive",
        explains="Makes a new job with the same payload and a fresh budget of attempts. The dead"
        " letter stays, marked as redriven.",
        done="redriven as a new job",
        done_many="redriven as {} new jobs",
        icon="again",
    ),
    Action(
        name="discard",
        target=DEAD_LETTER,
        verb="Discard",
        explains="Marks the dead letter as resolved: it is not redriven. Its record stays until"
        " it is purged.",
        done="discarded",
        icon="trash",
        fields=(Field(name="note", label="Note", hint="Optional. Says why it was discarded."),),
        is_severe=True,
    ),
)

PAGES = (
    Page("job", "/jobs/{job_id}", job),
    Page("verify-job", "/jobs/{job_id}/verify", verify),
    Page("artifact", "/jobs/{job_id}/artifacts/{name}", artifact),
)
