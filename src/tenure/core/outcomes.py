"""What a decision reads, and its outcome: what must be done. Decide first, then act.

`Applied` is the only one that writes history; it can only be built along a path of THE table.
"""

from collections.abc import Mapping, Sequence
from types import MappingProxyType
from typing import Any, TypeAlias

import msgspec

from tenure.core.events import Event
from tenure.core.flow_rows import Edge, FlowRedrive, FlowRow, FlowView
from tenure.core.ids import (
    Actor,
    Epoch,
    Fingerprint,
    JobId,
    Kind,
    Namespace,
    RequestId,
    WorkerId,
)
from tenure.core.instants import Instant
from tenure.core.job import Job
from tenure.core.policy import Policy
from tenure.core.transitions import Path
from tenure.core.verdicts import Answer, Observation, Resolution
from tenure.core.vocabulary import JobStatus


class AllowedPath(msgspec.Struct, frozen=True, gc=False):
    """A path that a change may take, as found in THE table."""

    rule: str
    source: JobStatus | None
    actor: Actor
    path: Path
    drafts: Sequence[Any]


DeclaredPolicies: TypeAlias = Mapping[tuple[Namespace, Kind], Policy]
"""What workers declared for kinds; a kind that no worker declared is missing. [F9]"""
NO_POLICIES: DeclaredPolicies = {}


class Shared:
    """Memo shared by the decisions of one batch. Only what follows from their own inputs is kept,
    so that it never changes a decision."""

    __slots__ = ("completion", "last_path", "policies")

    def __init__(self, policies: DeclaredPolicies = NO_POLICIES) -> None:
        self.policies = policies  # of kinds whose enqueues bring none
        self.last_path: AllowedPath | None = None  # of the last decision
        self.completion: tuple[bytes, list[Any]] | None = None  # the last result and its drafts


class Moment(msgspec.Struct, frozen=True, kw_only=True, gc=False):
    """Time, epoch and random bytes for one decision. All of it comes from outside the core."""

    now: Instant
    epoch: Epoch
    entropy: bytes
    is_settling: bool = False
    """Whether a standby took over so recently that a loss may not have been noticed yet. [A10]"""
    shared: Shared | None = None
    """All moments of a batch share it."""


History: TypeAlias = Sequence[Event]


class SessionKey(msgspec.Struct, frozen=True, kw_only=True):
    """A worker session: the worker's label under the principal it acts as."""

    namespace: Namespace
    actor: Actor
    worker: WorkerId


class Session(msgspec.Struct, frozen=True, kw_only=True):
    """What is remembered of a session's last claim that was not empty, and whether that claim came
    again: then its grants are never taken back. [Q8]"""

    key: SessionKey
    claim_seq: int
    request_id: RequestId
    fingerprint: Fingerprint
    claimed_at: Instant
    is_repeated: bool = False


def session_of(job: Job | None) -> SessionKey | None:
    """The session that a leased job was granted to."""
    if job is None or job.principal is None or job.owner is None:
        return None
    return SessionKey(namespace=job.namespace, actor=job.principal, worker=job.owner)


class FlowToRedrive(msgspec.Struct, frozen=True, kw_only=True, gc=False):
    """A flow that is to be redriven, and the jobs that a redrive replaces."""

    view: FlowView
    jobs: dict[JobId, Job] = {}  # jobs that did not succeed and that no other job replaces
    edges: tuple[Edge, ...] = ()  # of these
    compensations: dict[JobId, Job] = {}  # of these, by the job that they compensate
    present: frozenset[JobId] = frozenset()  # parents of these that exist


_NONE: Mapping[JobId, Any] = MappingProxyType({})


class DecisionContext(Moment, frozen=True, kw_only=True, gc=False):
    """A moment, and everything that was read for one decision: the command's own job, and what the
    command needs (`commands.Needs`)."""

    job: Job | None = None
    history: History | None = None  # the job's events; None: not read, a decision may ask for them
    others: Mapping[JobId, Job] = _NONE  # rows of other jobs that exist
    histories: Mapping[JobId, History] = _NONE  # of other jobs, if a decision asked for them
    key_holder: Job | None = None  # the job because of whose dedupe key a new one was not saved
    resolution: Resolution | None = None
    session: Session | None = None
    flow: FlowToRedrive | None = None
    flow_exists: bool = False  # a flow of this id, or one of its jobs


class Change(msgspec.Struct, frozen=True, kw_only=True, gc=False):
    """One job's next row and the events that lead to it: what a store saves, or refuses to.

    The store applies it iff the stored rev is still `expected_rev` (0: there is no such job) and
    the store's clock is still before `not_after`. [K1] [K2] A change with a resolution is applied
    only if the dead letter has no resolution yet. [B17] A new job that takes its key from another
    one frees it there in the same transaction. [D14]
    """

    job: Job
    expected_rev: int
    events: tuple[Event, ...]
    not_after: Instant | None = None
    observations: tuple[Observation, ...] = ()
    spawned: tuple["Change", ...] = ()
    resolution: Resolution | None = None  # of another job: the dead letter this one was made from
    takes_key_from: JobId | None = None  # a job that has ended and still has this one's key
    flow: FlowRow | None = None  # a new one: its first job is this one, the others are spawned
    edges: tuple[Edge, ...] = ()  # of that flow, or of the jobs that a redrive makes
    redrive: FlowRedrive | None = None  # of a flow: its first new job is this one [FL10]
    resolutions: tuple[Resolution, ...] = ()  # of dead letters that a redrive of a flow replaces

    @property
    def ends_member(self) -> bool:
        """Whether a job of a flow ends here: the store writes that on the edges from it. [FL4]"""
        return self.job.flow_id is not None and self.job.finished_at is not None

    @property
    def needed(self) -> set[JobId]:
        """The jobs without which it is not applied: the parents of new edges that were there before
        [FL3], and what a redrive of a flow replaces. [FL10]"""
        needed = {edge.parent_id for edge in self.edges if edge.is_outside}
        if self.redrive is not None:
            made = (self.job, *[spawned.job for spawned in self.spawned])
            needed.update(job.origin_id for job in made if job.origin_id is not None)
        return needed

    @property
    def may_unblock(self) -> list[JobId]:
        """The jobs whose wait may be over, or whose children's may. [FL5]"""
        if self.ends_member:
            return [self.job.id]
        return list(dict.fromkeys(edge.child_id for edge in self.edges if edge.is_outside))


class Applied(msgspec.Struct, frozen=True, kw_only=True, gc=False):
    """Write this change, then give this answer."""

    rule: str
    change: Change
    answer: Answer


class Resolved(msgspec.Struct, frozen=True, kw_only=True, gc=False):
    """Write this resolution unless the job has one by then, then give this answer. [B1]"""

    resolution: Resolution
    answer: Answer


class Replayed(msgspec.Struct, frozen=True, kw_only=True, gc=False):
    """Nothing to write: the request was answered before, or asks for what is already so."""

    answer: Answer


class Refused(msgspec.Struct, frozen=True, kw_only=True, gc=False):
    """Nothing changes; at most an observation of the refusal is written."""

    answer: Answer
    observation: Observation | None = None


class NeedsHistory(msgspec.Struct, frozen=True, kw_only=True, gc=False):
    """The row is not enough to decide; decide again with the job's events."""

    job_id: JobId


Outcome = Applied | Resolved | Replayed | Refused | NeedsHistory
