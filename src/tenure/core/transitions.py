"""THE table: every allowed change of a job, as data.

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
_StatusEdge = tuple[JobStatus | None, EventType, JobStatus]
_RulePath = tuple[str, JobStatus | None, Path]


class Transition(msgspec.Struct, frozen=True):
    """One row: from where, by which operation, along which paths, by whom."""

    id: str
    sources: tuple[JobStatus | None, ...]
    operation: str
    guard: str
    paths: tuple[Path, ...]
    actors: tuple[str, ...]
    grants: bool = False  # the only rows that raise `attempt`


_REQUEUED: Step = (EventType.REQUEUED, Q)
_STALLED: Step = (EventType.STALLED, S)
_SUCCEEDED: Step = (EventType.SUCCEEDED, OK)
_FAILED: Step = (EventType.FAILED, F)
_CANCELLED: Step = (EventType.CANCELLED, X)
_DEAD_LETTERED: Step = (EventType.DEAD_LETTERED, D)
_CLAIMED: Step = (EventType.CLAIMED, C)
_STARTED: Step = (EventType.STARTED, R)

_ENQUEUE: tuple[Path, ...] = (((EventType.ENQUEUED, Q),), ((EventType.ENQUEUED, W),))
_GRANT: tuple[Path, ...] = ((_CLAIMED,), (_CLAIMED, _STARTED))
_RENEWAL: tuple[Path, ...] = tuple(
    ((renewal, here),)
    for renewal in (EventType.LEASE_RENEWED, EventType.HEARTBEAT)
    for here in (C, R)
)
_RETRY: Path = (_STALLED, _REQUEUED)
_LOSS: tuple[Path, ...] = ((_STALLED,), _RETRY, (_STALLED, _DEAD_LETTERED), (_STALLED, _CANCELLED))
_CANCEL: tuple[Path, ...] = ((_CANCELLED,),)
_DEAD_LETTER: tuple[Path, ...] = ((_DEAD_LETTERED,),)
_NONE: tuple[Path, ...] = ((),)

_WORKER, _SYSTEM, _OPERATOR = ("worker",), ("system",), ("operator",)
_REQUESTERS = ("system", "client", "operator")
_ALL = ("client", "operator", "worker", "system")

TABLE: tuple[Transition, ...] = (
    # A job of a flow that has parents waits for them. [FL1]
    Transition("T1", (None,), "enqueue", "size, dedupe key free", _ENQUEUE, _ALL),
    Transition("T2", (Q,), "claim", "ready", _GRANT, _WORKER, grants=True),
    Transition("T3", (C,), "start", "valid", ((_STARTED,),), _WORKER),
    Transition("T4", (C, R), "heartbeat", "valid, newer hb_seq", _RENEWAL, _WORKER),
    Transition("T5", (R,), "complete", "valid", ((_SUCCEEDED,),), _WORKER),
    Transition(
        "T6",
        (C,),
        "complete, fail",
        "valid",
        (
            (_STARTED, _SUCCEEDED),
            (_STARTED, _FAILED),
            (_STARTED, *_RETRY),
            (_STARTED, _DEAD_LETTERED),
        ),
        _WORKER,
    ),
    # A compensation never ends failed: its permanent failure is a dead letter. [M2]
    Transition("T7", (R,), "fail", "valid, permanent", ((_FAILED,), (_DEAD_LETTERED,)), _WORKER),
    Transition(
        "T8", (R,), "fail", "valid, retryable, budget left, no cancel request", (_RETRY,), _WORKER
    ),
    Transition(
        "T9",
        (R,),
        "fail",
        "valid, retryable, exhausted, no cancel request",
        ((_DEAD_LETTERED,), (_FAILED,)),
        _WORKER,
    ),
    Transition(
        "T9b",
        (R,),
        "fail",
        "valid, validation or parse error at stage input",
        _DEAD_LETTER,
        _WORKER,
    ),
    Transition(
        "T34",
        (R,),
        "fail",
        "valid, reported with the reason policy_violation or infrastructure_failure",
        _DEAD_LETTER,
        _WORKER,
    ),
    Transition(
        "T10", (R,), "fail, release", "valid, retryable, cancel requested", _CANCEL, _WORKER
    ),
    Transition(
        "T11",
        (C, R),
        "release",
        "valid, no cancel request",
        (_RETRY, (_STALLED, _DEAD_LETTERED)),
        ("worker", "system"),
    ),
    Transition("T12", (C, R), "expire", "lease_expires_at reached", _LOSS, _SYSTEM),
    Transition("T13", (C, R), "time out", "timeout or start_within reached", _LOSS, _SYSTEM),
    Transition(
        "T14",
        (S,),
        "requeue",
        "budget left, no cancel request",
        ((_REQUEUED,),),
        ("system", "operator"),
    ),
    Transition("T15", (S,), "dead-letter", "exhausted", _DEAD_LETTER, _SYSTEM),
    Transition("T16", (S,), "cancel", "", _CANCEL, _REQUESTERS),
    Transition("T17", (W, Q), "cancel", "soft or hard", _CANCEL, _REQUESTERS),
    Transition("T18", (C,), "cancel", "soft or hard", _CANCEL, _REQUESTERS),
    Transition("T19", (R,), "cancel", "soft", (((EventType.CANCEL_REQUESTED, R),),), _REQUESTERS),
    Transition(
        "T20", (R,), "cancel", "hard, or the soft cancel's grace is over", _CANCEL, _REQUESTERS
    ),
    Transition(
        "T21",
        LIVE,
        "dead-letter",
        "policy violation, corrupt payload, infrastructure",
        _DEAD_LETTER,
        ("system", "operator"),
    ),
    Transition(
        "T22",
        (S,),
        "reclaim",
        "on_lost is reclaim, budget left, no cancel request, ready",
        _GRANT,
        _WORKER,
        grants=True,
    ),
    Transition("T33", (C, R), "stall", "", ((_STALLED,), (_STALLED, _CANCELLED)), _OPERATOR),
    Transition(
        "T28",
        (W,),
        "unblock",
        "every parent has ended as the job needs it",
        (((EventType.READY, Q),),),
        _SYSTEM,
    ),
    Transition(
        "T29",
        (W,),
        "unblock",
        "a parent has ended otherwise than the job needs it",
        _CANCEL,
        _SYSTEM,
    ),
    Transition(
        "T31",
        (Q, S),
        "expire unstarted",
        "start_by reached, no attempt has started",
        _CANCEL,
        _SYSTEM,
    ),
    # The rows below leave the job unchanged: a redrive is T1 of another job, `compensated` is an
    # observation, T25 refuses, and a purge takes row and events away together.
    Transition(
        "T27",
        ENDED,
        "redrive, rerun",
        "its compensation is over; a dead letter is unresolved, or another job is asked for",
        _NONE,
        _OPERATOR,
    ),
    Transition("T24", ENDED, "compensate", "", _NONE, _SYSTEM),
    Transition("T25", ENDED, "anything else", "", _NONE, _ALL),
    Transition("T26", ENDED, "purge", "retention over", _NONE, _SYSTEM),
)

BY_ID: dict[str, Transition] = {row.id: row for row in TABLE}


_RULE_PATHS: dict[_RulePath, None] = {
    (row.id, source, path): None
    for row in TABLE
    for source in row.sources
    for path in row.paths
    # A renewal does not change the status: claimed stays claimed, running stays running.
    if not path or path[0][0] not in RENEWALS or path[0][1] is source
}


def _edges() -> dict[_StatusEdge, frozenset[str]]:
    found: dict[_StatusEdge, frozenset[str]] = {}
    for rule, here, path in _RULE_PATHS:
        for event_type, there in path:
            edge = (here, event_type, there)
            found[edge] = found.get(edge, frozenset()) | {rule}
            here = there
    return found


EDGES: dict[_StatusEdge, frozenset[str]] = _edges()
"""Every allowed (from, event, to) and the rows that allow it. [I4]"""


def is_allowed(source: str | None, event_type: str, target: str) -> bool:
    """Whether a job may go from `source` to `target` by this event; None is before its enqueue.
    A value that is in no list is in no row of the table. [N1] [I4]"""
    return (source, event_type, target) in EDGES


def allows(rule: str, source: JobStatus | None, path: Path) -> bool:
    """Whether the row `rule` allows this path out of `source`."""
    return (rule, source, path) in _RULE_PATHS  # one look-up: asked for every change of every job


def roles(*rules: str) -> frozenset[str]:
    """The roles that any of these rows allows."""
    return frozenset(role for rule in rules for role in BY_ID[rule].actors)
