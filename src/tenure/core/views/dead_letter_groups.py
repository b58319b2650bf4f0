"""Dead letters grouped by kind and error: what went wrong how often, since when, and lately. Pure.

A store reads the newest dead letters without a resolution, a bounded number, and `group` counts
them. Errors of one type whose first lines differ only in numbers and ids are one group. [OB31]
"""

import hashlib
import re
from collections.abc import Iterable, Sequence

import msgspec

from tenure.core.ids import FlowId, JobId, Kind, QueueName
from tenure.core.instants import Duration, Instant
from tenure.core.views.job_search import Scope
from tenure.core.views.overview import TimeRange, Window, window_of
from tenure.core.vocabulary import ReasonCode, Stage
from tenure.errors import InvalidInput

MAX_GROUPED = 10_000
"""How many dead letters are read, last enqueued first. From these, unresolved ones in scope are
grouped."""

MAX_GROUPS = 100
"""Groups in one answer, the largest first."""

MAX_GROUP_IDS = 500
"""How many dead letters a group names: the most that an operator redrives or discards at once."""

MAX_GROUP_FLOWS = 20
"""Flows that a group names."""

MAX_HEADLINE = 300
"""Characters of an error's type and first line that tell groups apart."""

_NUMBERS_AND_IDS = re.compile(r"\b[0-9a-f]{8}(-[0-9a-f]{4}){3}-[0-9a-f]{12}\b|0x[0-9a-f]+|\d+")
_KEY = re.compile(r"[0-9a-f]{16}")


def error_signature(headline: str) -> str:
    """An error's type and first line, without what differs from job to job."""
    return _NUMBERS_AND_IDS.sub("#", headline[:MAX_HEADLINE])


class DeadLetterGroupFilter(Scope, frozen=True, kw_only=True):
    """Which dead letters are grouped, and how far back they are counted over time. `key`: only this
    group, with the ids of its letters."""

    range: TimeRange = TimeRange.DAY
    key: str | None = None

    def __post_init__(self) -> None:
        """Refuse names that nothing can have [J6], and keys that no group has."""
        super().__post_init__()
        if self.key is not None and _KEY.fullmatch(self.key) is None:
            raise InvalidInput(
                "key", f"{self.key[:40]!a} is not the key of a group", hint="list the groups first"
            )


class Letter(msgspec.Struct, frozen=True):
    """What grouping needs of a dead letter; `headline` is its error's type and first line."""

    job_id: JobId
    queue: QueueName
    kind: Kind
    reason_code: ReasonCode
    stage: Stage | None
    finished_at: Instant
    headline: str
    flow_id: FlowId | None = None


class DeadLetterGroup(msgspec.Struct, frozen=True, kw_only=True):
    """Dead letters of one kind with one error: how many, since when, until when, and how many in
    each bucket. `headline` is that of the newest one. `job_ids` are the newest letters, which ended
    last: one, or up to `MAX_GROUP_IDS` if the group was asked for by its key. `in_flows` of the
    letters belong to flows and are redriven with these [FL12]; `redrivable_ids` are the newest of
    the others, with the same limit as `job_ids`. Asked for by its key, the group names the newest
    flows.
    """

    key: str
    kind: Kind
    reason_code: ReasonCode
    stage: Stage | None
    error: str
    headline: str
    letters: int
    first_at: Instant
    last_at: Instant
    queues: tuple[QueueName, ...]
    buckets: tuple[int, ...]
    job_ids: tuple[JobId, ...]
    in_flows: int
    redrivable_ids: tuple[JobId, ...]
    flow_ids: tuple[FlowId, ...]


class DeadLetterGroups(msgspec.Struct, frozen=True, kw_only=True):
    """Groups, the largest first. The buckets start at `since` and are `bucket_us` long. If they are
    not `complete`, there are older dead letters that were not read. [OB31]"""

    now: Instant
    since: Instant
    bucket_us: Duration
    groups: tuple[DeadLetterGroup, ...]
    groups_left_out: int
    letters: int
    complete: bool


def group(
    letters: Iterable[Letter], wanted: DeadLetterGroupFilter, *, now: Instant, complete: bool
) -> DeadLetterGroups:
    """Group dead letters."""
    window = window_of(wanted.range, now)
    found: dict[tuple[str, ...], list[Letter]] = {}
    for letter in letters:
        if wanted.has(letter.queue, letter.kind):
            found.setdefault(_identity(letter), []).append(letter)
    groups = [
        _group(_key(identity), members, window, by_key=wanted.key is not None)
        for identity, members in found.items()
        if wanted.key in (None, _key(identity))
    ]
    groups.sort(key=lambda each: (-each.letters, -each.last_at, each.key))
    return DeadLetterGroups(
        now=now,
        since=window.since,
        bucket_us=window.bucket_us,
        groups=tuple(groups[:MAX_GROUPS]),
        groups_left_out=max(0, len(groups) - MAX_GROUPS),
        letters=sum(each.letters for each in groups),
        complete=complete,
    )


def _identity(letter: Letter) -> tuple[str, ...]:
    signature = error_signature(letter.headline)
    return (letter.kind, letter.reason_code, letter.stage or "", signature)


def _key(identity: tuple[str, ...]) -> str:
    return hashlib.sha256("\x00".join(identity).encode()).hexdigest()[:16]


def _group(key: str, letters: Sequence[Letter], window: Window, *, by_key: bool) -> DeadLetterGroup:
    buckets = [0] * window.buckets
    for letter in letters:
        place = window.position(letter.finished_at)
        if 0 <= place < window.buckets:
            buckets[place] += 1
    # By the end, not by the id: a job that was enqueued long ago may have failed just now.
    ordered = sorted(letters, key=lambda letter: (letter.finished_at, letter.job_id), reverse=True)
    newest = ordered[0]
    alone = [letter.job_id for letter in ordered if letter.flow_id is None]
    flow_ids = dict.fromkeys(letter.flow_id for letter in ordered if letter.flow_id is not None)
    ids = MAX_GROUP_IDS if by_key else 1
    return DeadLetterGroup(
        key=key,
        kind=newest.kind,
        reason_code=newest.reason_code,
        stage=newest.stage,
        error=error_signature(newest.headline),
        headline=newest.headline[:MAX_HEADLINE],
        letters=len(letters),
        first_at=ordered[-1].finished_at,
        last_at=newest.finished_at,
        queues=tuple(sorted({letter.queue for letter in letters})),
        buckets=tuple(buckets),
        job_ids=tuple(letter.job_id for letter in ordered[:ids]),
        in_flows=len(letters) - len(alone),
        redrivable_ids=tuple(alone[:ids]),
        flow_ids=tuple(flow_ids)[:MAX_GROUP_FLOWS] if by_key else (),
    )
