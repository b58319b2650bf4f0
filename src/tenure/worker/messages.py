"""What session, supervisor and child tell each other: one struct for each fact.

The supervisor feeds the session with events and carries out its actions, in order. Some of both are
frames: the session hears the child's own words, and what it wants a child to know is sent as it is.
Frames carry no lease id unless a handler asks for its own: a child knows its attempts by a local
number, so user code that gets hold of the socket can at most spoil the attempts of its own process.
"""

import msgspec

from tenure.clock import Boot
from tenure.core.claims import ClaimAnswer, ClaimRequest
from tenure.core.commands import WorkerCommand
from tenure.core.flow_rows import ParentPage
from tenure.core.ids import Actor, JobId, Kind, LeaseId, QueueName, correlated_by
from tenure.core.instants import Duration, Instant
from tenure.core.job import Job, Progress
from tenure.core.leases import HeldLease
from tenure.core.verdicts import Grant, Verdict
from tenure.core.vocabulary import Cause, LeaseNews
from tenure.handlers.calls import JobSpec
from tenure.handlers.registry import Isolation
from tenure.telemetry.counts import CountsTaken
from tenure.telemetry.tracing import NO_TRACE, TraceContext
from tenure.worker.outcomes import FromChild, Outcome

# --- frames from the supervisor to a child -------------------------------------------------------


class Setup(msgspec.Struct, frozen=True, tag=True, kw_only=True):
    """The first frame: what the child serves and within which limits."""

    app: str
    lane: Isolation
    path: tuple[str, ...]
    body_bytes: int
    depth: int
    memory_bytes: int | None = None
    measures_memory: bool = False  # whether to say with each end how much is used


class Run(msgspec.Struct, frozen=True, tag=True, kw_only=True):
    """Run this attempt; `until` is when its lease ends unless it is renewed."""

    run: int
    job_id: JobId
    kind: Kind
    queue: QueueName
    attempt: int
    fence: int
    correlation_id: str | None
    checkpoint: bytes | None
    payload: bytes
    until: Boot
    trace_id: str | None = None
    scheduled_for: Instant | None = None

    @property
    def correlated_by(self) -> str:
        """The correlation id that its handler and log lines see. [OB26]"""
        return correlated_by(self.correlation_id, self.job_id)

    @staticmethod
    def of(run: int, grant: Grant, *, until: Boot) -> "Run":
        """The frame for a grant."""
        job = grant.job
        return Run(
            run=run,
            job_id=grant.job_id,
            kind=job.kind,
            queue=job.queue,
            attempt=grant.attempt,
            fence=grant.fence,
            correlation_id=job.correlation_id,
            trace_id=job.trace_id,
            scheduled_for=job.scheduled_for,
            checkpoint=job.checkpoint,
            payload=job.payload,
            until=until,
        )


class LeaseRenewed(msgspec.Struct, frozen=True, tag=True):
    """The lease now lasts until then."""

    run: int
    until: Boot


class AskToStop(msgspec.Struct, frozen=True, tag=True):
    """Ask the handler to stop, and say why."""

    run: int
    reason: str


class LeaseLost(msgspec.Struct, frozen=True, tag=True):
    """The attempt has lost its lease: stop it."""

    run: int


class LeaseLent(msgspec.Struct, frozen=True, tag=True):
    """The lease of an attempt whose handler completes it in a transaction of its own."""

    run: int
    lease_id: LeaseId
    actor: Actor


class ArtifactAnswer(msgspec.Struct, frozen=True, tag=True):
    """An artifact is stored; or why not: the lease, the artifact itself, or the store."""

    run: int
    number: int
    cause: Cause | None = None
    problem: str = ""
    failure: str = ""


class ParentsAnswer(msgspec.Struct, frozen=True, tag=True):
    """The page that was wanted, or why it could not be read."""

    run: int
    number: int
    page: ParentPage = ParentPage()
    failure: str = ""


class FollowUpAnswer(msgspec.Struct, frozen=True, tag=True):
    """A follow-up, or a flow, is stored; or why not: the lease, the call itself, the token, or the
    store. `job_id` is the follow-up's, or the flow's."""

    run: int
    number: int
    job_id: JobId | None = None
    is_new: bool = False
    cause: Cause | None = None
    field: str = ""
    problem: str = ""
    hint: str = ""
    refusal: str = ""
    failure: str = ""


class Retire(msgspec.Struct, frozen=True, tag=True):
    """Finish what runs, then exit."""


# --- frames from a child to its supervisor -------------------------------------------------------


class Ready(msgspec.Struct, frozen=True, tag=True):
    """The application is imported; attempts may come."""


class Ended(msgspec.Struct, frozen=True, tag=True, kw_only=True):
    """An attempt's handler is gone, and this is how it went."""

    run: int
    outcome: FromChild
    rss_bytes: int = 0


class CheckpointSaved(msgspec.Struct, frozen=True, tag=True):
    """A checkpoint for the next attempt."""

    run: int
    checkpoint: bytes


class ProgressMade(msgspec.Struct, frozen=True, tag=True):
    """How far the handler says it is."""

    run: int
    progress: Progress


class ArtifactPart(msgspec.Struct, frozen=True, tag=True):
    """A piece of an artifact."""

    run: int
    body: bytes


class ArtifactEnd(msgspec.Struct, frozen=True, tag=True):
    """The last piece was sent; answered with `ArtifactAnswer`."""

    run: int
    number: int
    name: str
    media_type: str


class FollowUpWanted(msgspec.Struct, frozen=True, tag=True):
    """A job that the handler enqueues; answered with `FollowUpAnswer`."""

    run: int
    number: int
    step: str
    call: JobSpec


class FlowPart(msgspec.Struct, frozen=True, tag=True):
    """A piece of a flow that the handler makes."""

    run: int
    body: bytes


class FlowEnd(msgspec.Struct, frozen=True, tag=True):
    """The last piece was sent; answered with `FollowUpAnswer`."""

    run: int
    number: int


class ParentsWanted(msgspec.Struct, frozen=True, tag=True):
    """A page of the results of the job's parents; answered with `ParentsAnswer`."""

    run: int
    number: int
    after: int


class LeaseWanted(msgspec.Struct, frozen=True, tag=True):
    """The handler is about to complete its attempt in a transaction of its own."""

    run: int


class SelfCompleted(msgspec.Struct, frozen=True, tag=True):
    """The handler has committed its attempt's success; the report will be a replay."""

    run: int
    result: bytes


class Printed(msgspec.Struct, frozen=True, tag=True):
    """Output of an attempt that shares its process with others."""

    run: int
    text: str


class LoopBlocked(msgspec.Struct, frozen=True, tag=True):
    """The event loop has not turned for this long; `stack` shows what it is doing."""

    for_us: Duration
    stack: str


class EventsCounted(msgspec.Struct, frozen=True, tag=True):
    """What the application committed in this child since the last such message. [OB24]"""

    counts: CountsTaken


ToAttempt = (
    LeaseRenewed
    | AskToStop
    | LeaseLost
    | LeaseLent
    | ArtifactAnswer
    | FollowUpAnswer
    | ParentsAnswer
)
ToChild = Setup | Run | ToAttempt | Retire
ToSupervisor = (
    Ready
    | Ended
    | CheckpointSaved
    | ProgressMade
    | ArtifactPart
    | ArtifactEnd
    | FollowUpWanted
    | FlowPart
    | FlowEnd
    | ParentsWanted
    | LeaseWanted
    | SelfCompleted
    | Printed
    | LoopBlocked
    | EventsCounted
)

# --- further events of the session ---------------------------------------------------------------


class Ticked(msgspec.Struct, frozen=True):
    """Time passed."""


class ChildrenReady(msgspec.Struct, frozen=True):
    """Every lane has a child that imported the application: work may be claimed."""


class ChildrenServing(msgspec.Struct, frozen=True):
    """So many children of this lane can run attempts now, and whether more can be started."""

    lane: Isolation
    children: int
    can_grow: bool = True


class Woken(msgspec.Struct, frozen=True):
    """Somebody says there may be work."""


class ClockJumped(msgspec.Struct, frozen=True):
    """The wall clock ran ahead: the leases may be older than they look."""


class LeasesPolled(msgspec.Struct, frozen=True):
    """What a poll of leases found, by run; None if it failed. [C2]"""

    news: dict[int, LeaseNews] | None


class ClaimAnswered(msgspec.Struct, frozen=True):
    """The coordinator answered a claim."""

    ticket: int
    answer: ClaimAnswer


class ClaimFailed(msgspec.Struct, frozen=True):
    """A claim got no answer; `why` is for the log. It is not repeated before `retry_after_us`."""

    ticket: int
    why: str
    retry_after_us: Duration = Duration(0)


class Answered(msgspec.Struct, frozen=True):
    """The coordinator answered a batch, in its order."""

    ticket: int
    verdicts: tuple[Verdict, ...]


class SendFailed(msgspec.Struct, frozen=True):
    """A batch got no answer; it may or may not have been carried out, and is not repeated before
    `retry_after_us`."""

    ticket: int
    why: str
    retry_after_us: Duration = Duration(0)


class SendRefused(msgspec.Struct, frozen=True):
    """A batch was not sent because a field of it is out of bounds."""

    ticket: int
    why: str


class Prepared(msgspec.Struct, frozen=True):
    """A child has room for this attempt."""

    run: int


class Finished(msgspec.Struct, frozen=True):
    """The attempt's handler is gone, for certain; this is how."""

    run: int
    outcome: Outcome


class DrainRequested(msgspec.Struct, frozen=True):
    """Finish within the grace, then stop."""

    grace_us: Duration
    by_signal: bool = True  # the next signal stops at once; False: an operator asked


class StopRequested(msgspec.Struct, frozen=True):
    """Stop now: kill, hand back what can be handed back quickly."""


class Broken(msgspec.Struct, frozen=True):
    """The worker cannot go on: its children do not start, or claims are refused."""

    why: str


Event = (
    Ticked
    | ChildrenReady
    | ChildrenServing
    | Woken
    | ClockJumped
    | LeasesPolled
    | ClaimAnswered
    | ClaimFailed
    | Answered
    | SendFailed
    | SendRefused
    | Prepared
    | Finished
    | CheckpointSaved
    | ProgressMade
    | LeaseWanted
    | SelfCompleted
    | DrainRequested
    | StopRequested
    | Broken
)

# --- further actions of the session --------------------------------------------------------------


class SendClaim(msgspec.Struct, frozen=True):
    """Send this claim; answer with `ClaimAnswered` or `ClaimFailed`. It may be held open for
    `wait_us` while there is no work."""

    ticket: int
    request: ClaimRequest
    wait_us: Duration = Duration(0)


class EndWaits(msgspec.Struct, frozen=True):
    """End a claim that is held open, without an answer."""


class Send(msgspec.Struct, frozen=True):
    """Send these together; answer with `Answered`, `SendFailed` or `SendRefused`."""

    ticket: int
    commands: tuple[WorkerCommand, ...]
    traced: TraceContext = NO_TRACE
    """The ids of the jobs that they are about. [OB6]"""


class PollLeases(msgspec.Struct, frozen=True):
    """Poll these leases, by run; answer with `LeasesPolled`. [C2]"""

    leases: dict[int, HeldLease]
    traced: TraceContext = NO_TRACE


class Prepare(msgspec.Struct, frozen=True):
    """Find a child for this grant; answer with `Prepared`. With a frame it is already started, and
    runs there without further ado."""

    run: int
    grant: Grant
    frame: Run | None = None


class Kill(msgspec.Struct, frozen=True):
    """Kill the handler, or free its reserved child; answer with `Finished`."""

    run: int


class Draining(msgspec.Struct, frozen=True):
    """Log this line. While jobs are running, tell the coordinator too that this worker drains."""

    text: str
    running: int


class Note(msgspec.Struct, frozen=True):
    """A line for the log."""

    text: str
    is_error: bool = False
    job: Job | None = None  # the one it is about
    is_routine: bool = False  # nothing went wrong: logged only on request
    below: str = ""  # lines that belong to it, such as a traceback


Action = (
    SendClaim
    | EndWaits
    | Send
    | PollLeases
    | Prepare
    | Run
    | LeaseRenewed
    | LeaseLent
    | AskToStop
    | Kill
    | Draining
    | Note
)
