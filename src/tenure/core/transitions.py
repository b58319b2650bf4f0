"""THE table: every lawful change of a job, as data. Nothing else is legal.

`lifecycle.decide` names the row it applies, and `changes.apply` refuses a path that row does not
have, so the table is not a picture of the code: the code cannot leave it. `verify` and the
conformance kit read the same rows; the diagram in docs/spec is generated from them.
"""

import msgspec

from tenure.core.vocabulary import RENEWALS, EventType, JobStatus

W, Q, C = JobStatus.WAITING, JobStatus.QUEUED, JobStatus.CLAIMED
R, S = JobStatus.RUNNING, JobStatus.STALLED
OK, F = JobStatus.SUCCEEDED, JobStatus.FAILED
X, D = JobStatus.CANCELLED, JobStatus.DEAD_LETTERED
LIVE = (W, Q, C, R, S)
ENDED = (OK, F, X, D)

Step = tuple[EventType, JobStatus]
Path = tuple[Step, ...]
Edge = tuple[JobStatus | None, EventType, JobStatus]
Way = tuple[str, JobStatus | None, Path]

_REQUEUED: Step = (EventType.REQUEUED, Q)
_STALLED: Step = (EventType.STALLED, S)
_SUCCEEDED: Step = (EventType.SUCCEEDED, OK)
_FAILED: Step = (EventType.FAILED, F)
_CANCELLED: Step = (EventType.CANCELLED, X)
_DEAD_LETTERED: Step = (EventType.DEAD_LETTERED, D)
_CLAIMED: Step = (EventType.CLAIMED, C)
_STARTED: Step = (EventType.STARTED, R)


class Transition(msgspec.Struct, frozen=True, kw_only=True):
    """One row: from where, by which operation, along which paths, by whom."""

    id: str
    sources: tuple[JobStatus | None, ...]
    operation: str
    guard: str
    paths: tuple[Path, ...]
    actors: tuple[str, ...]
    grants: bool = False  # the only rows that raise `attempt`


_WORKER = ("worker",)
_SYSTEM = ("system",)
_PEOPLE = ("client", "operator")

TABLE: tuple[Transition, ...] = (
    Transition(
        id="T1",
        sources=(None,),
        operation="enqueue",
        guard="size, dedupe key free",
        # A job of a flow that has parents waits for them. [FL1]
        paths=(((EventType.ENQUEUED, Q),), ((EventType.ENQUEUED, W),)),
        actors=("client", "operator", "worker", "system"),
    ),
    Transition(
        id="T2",
        sources=(Q,),
        operation="claim",
        guard="ready",
        paths=((_CLAIMED,), (_CLAIMED, _STARTED)),
        actors=_WORKER,
        grants=True,
    ),
    Transition(
        id="T3",
        sources=(C,),
        operation="start",
        guard="valid",
        paths=((_STARTED,),),
        actors=_WORKER,
    ),
    Transition(
        id="T4",
        sources=(C, R),
        operation="heartbeat",
        guard="valid, newer hb_seq",
        paths=(
            ((EventType.LEASE_RENEWED, C),),
            ((EventType.LEASE_RENEWED, R),),
            ((EventType.HEARTBEAT, C),),
            ((EventType.HEARTBEAT, R),),
        ),
        actors=_WORKER,
    ),
    Transition(
        id="T5",
        sources=(R,),
        operation="complete",
        guard="valid",
        paths=((_SUCCEEDED,),),
        actors=_WORKER,
    ),
    Transition(
        id="T6",
        sources=(C,),
        operation="complete, fail",
        guard="valid",
        paths=(
            (_STARTED, _SUCCEEDED),
            (_STARTED, _FAILED),
            (_STARTED, _STALLED, _REQUEUED),
            (_STARTED, _DEAD_LETTERED),
        ),
        actors=_WORKER,
    ),
    Transition(
        id="T7",
        sources=(R,),
        operation="fail",
        guard="valid, permanent",
        # A compensation never ends failed: its permanent failure is a dead letter. [M2]
        paths=((_FAILED,), (_DEAD_LETTERED,)),
        actors=_WORKER,
    ),
    Transition(
        id="T8",
        sources=(R,),
        operation="fail",
        guard="valid, retryable, budget left, no cancel request",
        paths=((_STALLED, _REQUEUED),),
        actors=_WORKER,
    ),
    Transition(
        id="T9",
        sources=(R,),
        operation="fail",
        guard="valid, retryable, exhausted, no cancel request",
        paths=((_DEAD_LETTERED,), (_FAILED,)),
        actors=_WORKER,
    ),
    Transition(
        id="T9b",
        sources=(R,),
        operation="fail",
        guard="valid, validation or parse error at stage input",
        paths=((_DEAD_LETTERED,),),
        actors=_WORKER,
    ),
    Transition(
        id="T34",
        sources=(R,),
        operation="fail",
        guard="valid, reported with the reason policy_violation or infrastructure_failure",
        paths=((_DEAD_LETTERED,),),
        actors=_WORKER,
    ),
    Transition(
        id="T10",
        sources=(R,),
        operation="fail, release",
        guard="valid, retryable, cancel requested",
        paths=((_CANCELLED,),),
        actors=_WORKER,
    ),
    Transition(
        id="T11",
        sources=(C, R),
        operation="release",
        guard="valid, no cancel request",
        paths=((_STALLED, _REQUEUED), (_STALLED, _DEAD_LETTERED)),
        actors=("worker", "system"),
    ),
    Transition(
        id="T12",
        sources=(C, R),
        operation="expire",
        guard="lease_expires_at reached",
        paths=(
            (_STALLED,),
            (_STALLED, _REQUEUED),
            (_STALLED, _DEAD_LETTERED),
            (_STALLED, _CANCELLED),
        ),
        actors=_SYSTEM,
    ),
    Transition(
        id="T13",
        sources=(C, R),
        operation="time out",
        guard="timeout or start_within reached",
        paths=(
            (_STALLED,),
            (_STALLED, _REQUEUED),
            (_STALLED, _DEAD_LETTERED),
            (_STALLED, _CANCELLED),
        ),
        actors=_SYSTEM,
    ),
    Transition(
        id="T14",
        sources=(S,),
        operation="requeue",
        guard="budget left, no cancel request",
        paths=((_REQUEUED,),),
        actors=("system", "operator"),
    ),
    Transition(
        id="T15",
        sources=(S,),
        operation="dead-letter",
        guard="exhausted",
        paths=((_DEAD_LETTERED,),),
        actors=_SYSTEM,
    ),
    Transition(
        id="T16",
        sources=(S,),
        operation="cancel",
        guard="",
        paths=((_CANCELLED,),),
        actors=("system", *_PEOPLE),
    ),
    Transition(
        id="T17",
        sources=(W, Q),
        operation="cancel",
        guard="soft or hard",
        paths=((_CANCELLED,),),
        actors=("system", *_PEOPLE),
    ),
    Transition(
        id="T18",
        sources=(C,),
        operation="cancel",
        guard="soft or hard",
        paths=((_CANCELLED,),),
        actors=("system", *_PEOPLE),
    ),
    Transition(
        id="T19",
        sources=(R,),
        operation="cancel",
        guard="soft",
        paths=(((EventType.CANCEL_REQUESTED, R),),),
        actors=("system", *_PEOPLE),
    ),
    Transition(
        id="T20",
        sources=(R,),
        operation="cancel",
        guard="hard, or the soft cancel's grace is over",
        paths=((_CANCELLED,),),
        actors=("system", *_PEOPLE),
    ),
    Transition(
        id="T21",
        sources=LIVE,
        operation="dead-letter",
        guard="policy violation, corrupt payload, infrastructure",
        paths=((_DEAD_LETTERED,),),
        actors=("system", "operator"),
    ),
    Transition(
        id="T22",
        sources=(S,),
        operation="reclaim",
        guard="on_lost is reclaim, budget left, no cancel request, ready",
        paths=((_CLAIMED,), (_CLAIMED, _STARTED)),
        actors=_WORKER,
        grants=True,
    ),
    Transition(
        id="T33",
        sources=(C, R),
        operation="stall",
        guard="",
        paths=((_STALLED,), (_STALLED, _CANCELLED)),
        actors=("operator",),
    ),
    Transition(
        id="T28",
        sources=(W,),
        operation="unblock",
        guard="every parent has ended as the job needs it",
        paths=(((EventType.READY, Q),),),
        actors=_SYSTEM,
    ),
    Transition(
        id="T29",
        sources=(W,),
        operation="unblock",
        guard="a parent has ended otherwise than the job needs it",
        paths=((_CANCELLED,),),
        actors=_SYSTEM,
    ),
    Transition(
        id="T31",
        sources=(Q, S),
        operation="expire unstarted",
        guard="start_by reached, no attempt has started",
        paths=((_CANCELLED,),),
        actors=_SYSTEM,
    ),
    # The rows below leave the job unchanged: a redrive is T1 of another job, `compensated` is an
    # observation, T25 refuses, and a purge takes row and events away together.
    Transition(
        id="T27",
        sources=ENDED,
        operation="redrive, rerun",
        guard="its compensation is over; a dead letter is unresolved, or another job is asked for",
        paths=((),),
        actors=("operator",),
    ),
    Transition(
        id="T24", sources=ENDED, operation="compensate", guard="", paths=((),), actors=_SYSTEM
    ),
    Transition(
        id="T25",
        sources=ENDED,
        operation="anything else",
        guard="",
        paths=((),),
        actors=("client", "operator", "worker", "system"),
    ),
    Transition(
        id="T26",
        sources=ENDED,
        operation="purge",
        guard="retention over",
        paths=((),),
        actors=_SYSTEM,
    ),
)

BY_ID: dict[str, Transition] = {row.id: row for row in TABLE}


def _edges() -> dict[Edge, frozenset[str]]:
    found: dict[Edge, set[str]] = {}
    for row in TABLE:
        for source in row.sources:
            for path in row.paths:
                here = source
                for event_type, there in path:
                    if event_type in RENEWALS and here is not there:
                        break  # a renewal stays where it is; the row lists both homes
                    found.setdefault((here, event_type, there), set()).add(row.id)
                    here = there
    return {edge: frozenset(ids) for edge, ids in found.items()}


EDGES: dict[Edge, frozenset[str]] = _edges()
"""Every lawful (from, event, to) and the rows that allow it. [I4]"""


def _ways() -> frozenset[Way]:
    return frozenset(
        (row.id, source, path)
        for row in TABLE
        for source in row.sources
        for path in row.paths
        # A renewal stays where it is; the row lists both homes.
        if not path or path[0][0] not in RENEWALS or path[0][1] is source
    )


_WAYS = _ways()


def is_lawful(source: str | None, event_type: str, target: str) -> bool:
    """Whether a job may go from `source` to `target` by this event; None is before its enqueue.
    A word that is in no list is in no row of the table. [N1] [I4]"""
    return (source, event_type, target) in EDGES


def allows(rule: str, source: JobStatus | None, path: Path) -> bool:
    """Whether the row `rule` allows this path out of `source`."""
    return (rule, source, path) in _WAYS  # one look-up: asked for every change of every job


def roles(*rules: str) -> frozenset[str]:
    """Who may do what these rows do."""
    return frozenset(role for rule in rules for role in BY_ID[rule].actors)


def mermaid() -> str:
    """The state diagram of the documentation."""
    lines = ["stateDiagram-v2"]
    arrows: dict[tuple[str, str], list[str]] = {}
    for (source, event_type, target), rules in EDGES.items():
        arrow = (source.value if source else "[*]", target.value)
        label = f"{event_type.value} ({', '.join(sorted(rules, key=rule_order))})"
        arrows.setdefault(arrow, []).append(label)
    lines += [f"  {one} --> {two}: {' / '.join(labels)}" for (one, two), labels in arrows.items()]
    lines += [f"  {status.value} --> [*]" for status in ENDED]
    return "\n".join(lines) + "\n"


def rule_order(rule: str) -> tuple[int, str]:
    """Sorts T9 before T9b before T10."""
    return int(rule.strip("Tb")), rule
