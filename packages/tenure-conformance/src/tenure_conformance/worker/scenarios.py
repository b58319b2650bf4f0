"""The scenarios: the job that a worker gets, and the faults it meets. Data, no behaviour."""

from collections.abc import Mapping
from typing import TypeAlias

import msgspec

from tenure.core.vocabulary import Cause, VerdictKind
from tenure_conformance.worker.obligations import NO_GUESS, REPORTS, Obligation
from tenure_conformance.worker.record import Op

QUEUE = "conform"
KIND = "conform"


class Lost(msgspec.Struct, frozen=True):
    """The request takes effect, but the connection is closed without an answer."""


class Unavailable(msgspec.Struct, frozen=True):
    """The answer is 503; the request has no effect."""

    retry_after_s: int | None = None


class Slow(msgspec.Struct, frozen=True):
    """The answer is sent after `delay_s`."""

    delay_s: float


class Twice(msgspec.Struct, frozen=True):
    """The answer is written to the connection twice."""


class Says(msgspec.Struct, frozen=True):
    """The answer is this verdict instead of the right one; it ends the lease."""

    verdict: VerdictKind
    cause: Cause


class Unknown(msgspec.Struct, frozen=True):
    """The answer is REJECTED; outside of a batch with status 404."""


class GrantAgain(msgspec.Struct, frozen=True):
    """The next claim receives the first claim's grant again."""


class CancelRequested(msgspec.Struct, frozen=True):
    """The answer is OK and asks the handler to stop within `remaining_s`."""

    remaining_s: float


Fault: TypeAlias = Lost | Unavailable | Slow | Twice | Says | Unknown | GrantAgain | CancelRequested


class Work(msgspec.Struct, frozen=True, kw_only=True):
    """What the handler must do: `effects` side effects, `every_s` apart, then succeed or fail."""

    effects: int = 2
    every_s: float = 0.2
    outcome: str = "succeed"


class Scenario(msgspec.Struct, frozen=True, kw_only=True):
    """One scenario. `faults` lists what happens to the first requests of each operation, one entry
    per request; with `goes_on` the last entry applies to all later ones too.

    A scenario ends `watch_s` after the first final verdict, or `patience_s` after the grant; if no
    claim is ever answered, after the first claim.
    """

    name: str
    plays: str
    faults: Mapping[Op, tuple[Fault | None, ...]] = {}
    goes_on: bool = False
    work: Work = Work()
    lease_s: float = 9.0
    watch_s: float = 2.0
    patience_s: float = 25.0
    expects: Op | None = None
    expects_for: Obligation = REPORTS
    outlives_a_lease: bool = False
    terminates: bool = False  # SIGTERM while the handler runs

    @property
    def grants(self) -> bool:
        """Whether the worker receives the job: some claim is answered."""
        return not (self.goes_on and Op.CLAIM in self.faults)


_CANCELLED = Says(VerdictKind.CANCELLED, Cause.SUPERSEDED)
_EXPIRED = Says(VerdictKind.CANCELLED, Cause.LEASE_EXPIRED)
_REJECTED = Says(VerdictKind.REJECTED, Cause.INVALID_LEASE)
_LONG = Work(effects=60, every_s=0.5)
_FAILING = Work(outcome="fail")
# Covers an effect that was under way, and several more that a wrong worker would cause.
_EFFECTS_S = 4.0

SCENARIOS: tuple[Scenario, ...] = (
    Scenario(name="success", plays="nothing goes wrong", expects=Op.COMPLETE),
    Scenario(
        name="failure",
        plays="the handler fails; the coordinator schedules a retry",
        work=_FAILING,
        expects=Op.FAIL,
        watch_s=3.0,
    ),
    Scenario(
        name="long-run",
        plays="the handler runs for longer than a lease",
        work=Work(effects=18, every_s=0.5),
        lease_s=8.0,
        expects=Op.COMPLETE,
        outlives_a_lease=True,
    ),
    Scenario(
        name="quick-beats",
        plays="short leases, to see whether the worker stops its heartbeats",
        lease_s=6.0,
        watch_s=4.0,
        expects=Op.COMPLETE,
    ),
    Scenario(
        name="claim-lost",
        plays="the answer to the claim is lost",
        faults={Op.CLAIM: (Lost(),)},
        expects=Op.COMPLETE,
    ),
    Scenario(
        name="claim-never-answered",
        plays="every claim is answered 503",
        faults={Op.CLAIM: (Unavailable(),)},
        goes_on=True,
        patience_s=12.0,
    ),
    Scenario(
        name="start-lost",
        plays="the answer to the start is lost",
        faults={Op.START: (Lost(),)},
        expects=Op.COMPLETE,
    ),
    Scenario(
        name="complete-lost",
        plays="the answer to the completion is lost, twice",
        faults={Op.COMPLETE: (Lost(), Lost())},
        expects=Op.COMPLETE,
    ),
    Scenario(
        name="fail-lost",
        plays="the answer to the failure is lost",
        faults={Op.FAIL: (Lost(),)},
        work=_FAILING,
        expects=Op.FAIL,
    ),
    Scenario(
        name="retry-after",
        plays="the completion is answered 503 with Retry-After: 2",
        faults={Op.COMPLETE: (Unavailable(retry_after_s=2),)},
        expects=Op.COMPLETE,
    ),
    Scenario(
        name="never-answered",
        plays="the completion is answered 503, again and again",
        faults={Op.COMPLETE: (Unavailable(),)},
        goes_on=True,
        expects=Op.COMPLETE,
        patience_s=12.0,
    ),
    Scenario(
        name="heartbeat-fails",
        plays="a heartbeat is answered 503, the next one is lost",
        faults={Op.HEARTBEAT: (Unavailable(), Lost())},
        work=Work(effects=18, every_s=0.5),
        expects=Op.COMPLETE,
        expects_for=NO_GUESS,
        patience_s=16.0,
    ),
    Scenario(
        name="slow-answers",
        plays="claim, start and completion are answered late",
        faults={Op.CLAIM: (Slow(1.0),), Op.START: (Slow(1.0),), Op.COMPLETE: (Slow(3.0),)},
        expects=Op.COMPLETE,
    ),
    Scenario(
        name="answers-twice",
        plays="answers come twice, and so does the grant",
        faults={
            Op.CLAIM: (GrantAgain(),),
            Op.START: (Twice(),),
            Op.COMPLETE: (Twice(),),
        },
        expects=Op.COMPLETE,
        watch_s=3.0,
    ),
    Scenario(
        name="claim-rejected",
        plays="the claim is REJECTED",
        faults={Op.CLAIM: (Says(VerdictKind.REJECTED, Cause.STALE_CLAIM),)},
    ),
    Scenario(
        name="start-cancelled",
        plays="the start is CANCELLED",
        faults={Op.START: (_EXPIRED,)},
        watch_s=_EFFECTS_S,
    ),
    Scenario(
        name="heartbeat-cancelled",
        plays="a heartbeat is CANCELLED while the handler runs",
        faults={Op.HEARTBEAT: (_CANCELLED,)},
        work=_LONG,
        watch_s=_EFFECTS_S,
    ),
    Scenario(
        name="complete-cancelled",
        plays="the completion is CANCELLED",
        faults={Op.COMPLETE: (_CANCELLED,)},
        watch_s=_EFFECTS_S,
        expects=Op.COMPLETE,
    ),
    Scenario(
        name="fail-cancelled",
        plays="the failure is CANCELLED",
        faults={Op.FAIL: (_CANCELLED,)},
        work=_FAILING,
        watch_s=_EFFECTS_S,
        expects=Op.FAIL,
    ),
    Scenario(
        name="release-cancelled",
        plays="SIGTERM; the release is CANCELLED",
        faults={Op.RELEASE: (_CANCELLED,)},
        work=_LONG,
        terminates=True,
    ),
    Scenario(
        name="start-rejected",
        plays="the start is REJECTED",
        faults={Op.START: (_REJECTED,)},
        watch_s=_EFFECTS_S,
    ),
    Scenario(
        name="heartbeat-rejected",
        plays="a heartbeat is REJECTED while the handler runs",
        faults={Op.HEARTBEAT: (_REJECTED,)},
        work=_LONG,
        watch_s=_EFFECTS_S,
    ),
    Scenario(
        name="complete-rejected",
        plays="the completion is REJECTED",
        faults={Op.COMPLETE: (_REJECTED,)},
        expects=Op.COMPLETE,
    ),
    Scenario(
        name="complete-unknown",
        plays="the completion is answered 404: REJECTED, the job is unknown",
        faults={Op.COMPLETE: (Unknown(),)},
        expects=Op.COMPLETE,
    ),
    Scenario(
        name="silence",
        plays="every heartbeat is answered 503, until the lease is over",
        faults={Op.HEARTBEAT: (Unavailable(),)},
        goes_on=True,
        work=_LONG,
        lease_s=5.0,
        watch_s=_EFFECTS_S,
        patience_s=10.0,
    ),
    Scenario(
        name="cancel-requested",
        plays="a heartbeat is answered OK, with the request to stop within 5 s",
        faults={Op.HEARTBEAT: (CancelRequested(5.0),)},
        goes_on=True,
        work=_LONG,
        lease_s=6.0,
        patience_s=14.0,
    ),
)

BY_NAME: Mapping[str, Scenario] = {scenario.name: scenario for scenario in SCENARIOS}
