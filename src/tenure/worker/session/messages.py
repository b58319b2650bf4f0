"""What a session wants done, how attempts end, and what is counted.

The supervisor carries out the session's actions in order. Two of them are frames, which pass to the
child unchanged.
"""

import msgspec

from tenure.clock import Boot
from tenure.core.claims import ClaimRequest
from tenure.core.commands import WorkerCommand
from tenure.core.instants import Duration
from tenure.core.job import Job
from tenure.core.leases import LeaseRef
from tenure.core.verdicts import Grant
from tenure.core.vocabulary import Disposition
from tenure.telemetry.tracing import NO_TRACE, TraceContext
from tenure.worker.frames import (
    AskToStop,
    FromChild,
    LeaseRenewed,
)

# --- how an attempt ended: as its child or its supervisor saw it ---------------------------------


class Died(msgspec.Struct, frozen=True, tag="died"):
    """Its process ended by itself, and `how` names the signal or the exit code."""

    how: str


class Killed(msgspec.Struct, frozen=True, tag="killed"):
    """The supervisor killed it because this attempt had to stop."""


class Displaced(msgspec.Struct, frozen=True, tag="displaced"):
    """The supervisor killed its process because a neighbour in it did not stop."""


class Unstarted(msgspec.Struct, frozen=True, tag="unstarted"):
    """No process could be started for it, and `why` names what the system refused."""

    why: str


Outcome = FromChild | Died | Killed | Displaced | Unstarted

# --- actions -------------------------------------------------------------------------------------


class SendClaim(msgspec.Struct, frozen=True):
    """Send this claim; answer with `claim_answered` or `unanswered`. It may be kept open for
    `wait_us` while there is no work."""

    ticket: int
    request: ClaimRequest
    wait_us: Duration = Duration(0)


class EndWaits(msgspec.Struct, frozen=True):
    """End a claim that is kept open, without an answer."""


class Send(msgspec.Struct, frozen=True):
    """Send these together; answer with `answered` or `unanswered`."""

    ticket: int
    commands: tuple[WorkerCommand, ...]
    traced: TraceContext = NO_TRACE
    """The ids of the jobs that they are about. [OB6]"""


class PollLeases(msgspec.Struct, frozen=True):
    """Poll these leases, by run; answer with `leases_polled`. [C2]"""

    leases: dict[int, LeaseRef]
    traced: TraceContext = NO_TRACE


class Begin(msgspec.Struct, frozen=True):
    """Call the handler of this attempt; answer with `finished`. `until` is when its lease ends
    unless renewed."""

    run: int
    grant: Grant
    until: Boot


class Kill(msgspec.Struct, frozen=True):
    """Kill the handler; answer with `finished`."""

    run: int


class Draining(msgspec.Struct, frozen=True):
    """Log this line. While jobs are running, notify the coordinator too that this worker drains."""

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
    | Begin
    | LeaseRenewed
    | AskToStop
    | Kill
    | Draining
    | Note
)


# --- counters ------------------------------------------------------------------------------------


class Stats(msgspec.Struct):
    """Counters that only rise. Written by the supervisor's thread, read by anyone."""

    claims: int = 0
    granted: int = 0
    started: int = 0
    heartbeats: int = 0
    succeeded: int = 0
    failed: int = 0
    retried: int = 0
    dead_lettered: int = 0
    released: int = 0
    acknowledged_cancels: int = 0
    cancelled: int = 0  # reports, starts and heartbeats answered CANCELLED
    rejected: int = 0
    fenced: int = 0  # leases that this worker gave up by its own clock, not renewed in time
    timed_out: int = 0  # handlers stopped because their time, or that of their cancel, was up
    conflicts: int = 0
    unreported: int = 0  # reports given up after the last transport retry
    transport_failures: int = 0
    crashes: int = 0
    kills: int = 0
    displaced: int = 0
    leaked: int = 0
    children_started: int = 0
    children_recycled: int = 0
    blocked_loops: int = 0

    def summary(self) -> str:
        """One line: every counter of how jobs ended or what went wrong."""
        quiet = ("claims", "granted", "heartbeats", "children_started", "children_recycled")
        shown = {name: getattr(self, name) for name in self.__struct_fields__ if name not in quiet}
        parts = [f"{count} {name.replace('_', ' ')}" for name, count in shown.items() if count]
        return ", ".join(parts) or "it ran no jobs"

    def count(self, disposition: Disposition | None) -> None:
        """Count one accepted report."""
        counter = _COUNTERS.get(disposition)
        if counter is not None:  # else one of a newer server [Y4]
            setattr(self, counter, getattr(self, counter) + 1)


_COUNTERS: dict[Disposition | None, str] = {
    Disposition.SUCCEEDED: "succeeded",
    Disposition.FAILED: "failed",
    Disposition.RETRY_SCHEDULED: "retried",
    Disposition.DEAD_LETTERED: "dead_lettered",
    Disposition.CANCELLED: "acknowledged_cancels",
    Disposition.RELEASED: "released",
}
