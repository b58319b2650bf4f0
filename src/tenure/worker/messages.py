"""What the session hears and what it wants done: its whole surface, as values.

Events come with the supervisor's clock; actions are carried out by the supervisor, in order.
"""

import msgspec

from tenure.core.beside import HeldLease
from tenure.core.claims import ClaimAnswer, ClaimRequest
from tenure.core.commands import WorkerCommand
from tenure.core.ids import Actor, LeaseId
from tenure.core.instants import Duration
from tenure.core.job import Job, Progress
from tenure.core.verdicts import Grant, Verdict
from tenure.core.vocabulary import LeaseNews
from tenure.telemetry.tracing import UNTRACED, Traced
from tenure.worker.clock import Boot
from tenure.worker.outcomes import Outcome

# --- events ------------------------------------------------------------------------------------


class Ticked(msgspec.Struct, frozen=True):
    """Time passed."""


class Began(msgspec.Struct, frozen=True):
    """The children are up: work may be asked for."""


class Woken(msgspec.Struct, frozen=True):
    """Somebody says there may be work."""


class ClockJumped(msgspec.Struct, frozen=True):
    """The wall clock ran ahead: the leases may be older than they look."""


class Looked(msgspec.Struct, frozen=True):
    """What a look at leases found, by run; None if it failed. [C2]"""

    news: dict[int, LeaseNews] | None


class ClaimAnswered(msgspec.Struct, frozen=True):
    """The coordinator answered a claim."""

    ticket: int
    answer: ClaimAnswer


class ClaimFailed(msgspec.Struct, frozen=True):
    """A claim got no answer; `why` is for people. It is not repeated before `retry_after_us`."""

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


class CheckpointSaved(msgspec.Struct, frozen=True):
    """The handler saved a checkpoint."""

    run: int
    checkpoint: bytes


class ProgressMade(msgspec.Struct, frozen=True):
    """The handler said how far it is."""

    run: int
    progress: Progress


class LeaseAsked(msgspec.Struct, frozen=True):
    """The handler wants to complete its attempt itself."""

    run: int


class SelfCompleted(msgspec.Struct, frozen=True):
    """The handler has: its success is committed."""

    run: int
    result: bytes


class DrainAsked(msgspec.Struct, frozen=True):
    """Finish within the grace, then stop."""

    grace_us: Duration


class StopAsked(msgspec.Struct, frozen=True):
    """Stop now: kill, hand back what can be handed back quickly."""


class Broken(msgspec.Struct, frozen=True):
    """The worker cannot work at all: its children do not start, its coordinator is closed."""

    why: str


Event = (
    Ticked
    | Began
    | Woken
    | ClockJumped
    | Looked
    | ClaimAnswered
    | ClaimFailed
    | Answered
    | SendFailed
    | SendRefused
    | Prepared
    | Finished
    | CheckpointSaved
    | ProgressMade
    | LeaseAsked
    | SelfCompleted
    | DrainAsked
    | StopAsked
    | Broken
)

# --- actions -----------------------------------------------------------------------------------


class SendClaim(msgspec.Struct, frozen=True):
    """Send this claim; answer with `ClaimAnswered` or `ClaimFailed`. It may be held open for
    `wait_us` while there is no work."""

    ticket: int
    request: ClaimRequest
    wait_us: Duration = Duration(0)


class EndWaits(msgspec.Struct, frozen=True):
    """Let a claim that is held open end without an answer."""


class Send(msgspec.Struct, frozen=True):
    """Send these together; answer with `Answered`, `SendFailed` or `SendRefused`."""

    ticket: int
    commands: tuple[WorkerCommand, ...]
    traced: Traced = UNTRACED
    """The ids of the jobs that they are about. [OB6]"""


class Look(msgspec.Struct, frozen=True):
    """Look at these leases, by run; answer with `Looked`. [C2]"""

    leases: dict[int, HeldLease]
    traced: Traced = UNTRACED


class Prepare(msgspec.Struct, frozen=True):
    """Find a child for this grant; answer with `Prepared`."""

    run: int
    grant: Grant


class RunHandler(msgspec.Struct, frozen=True):
    """Run it now, under a lease that ends at `until`; answer with `Finished`."""

    run: int
    grant: Grant
    until: Boot


class Renew(msgspec.Struct, frozen=True):
    """Tell the handler that its lease lasts until then."""

    run: int
    until: Boot


class Lend(msgspec.Struct, frozen=True):
    """Give the handler the lease of its own attempt."""

    run: int
    lease_id: LeaseId
    actor: Actor


class AskToStop(msgspec.Struct, frozen=True):
    """Ask the handler to stop."""

    run: int
    reason: str


class Kill(msgspec.Struct, frozen=True):
    """Stop the handler, or give its reserved place up; answer with `Finished`."""

    run: int


class Note(msgspec.Struct, frozen=True):
    """Something people should read."""

    text: str
    is_error: bool = False
    job: Job | None = None  # the one it is about
    is_routine: bool = False  # nothing went wrong: for those who want to read everything


Action = (
    SendClaim
    | EndWaits
    | Send
    | Look
    | Prepare
    | RunHandler
    | Renew
    | Lend
    | AskToStop
    | Kill
    | Note
)
