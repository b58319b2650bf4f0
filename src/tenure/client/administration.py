"""What operators do, from Python: `app.queues`, `app.kinds`, `app.workers`, `app.dead_letters`.

The same requests as those of the commands. Over HTTP they are within the permissions of the token,
and refused with `RequestRefused` otherwise. Decides nothing itself.
"""

from collections.abc import Callable, Collection, Iterable, Mapping
from datetime import datetime
from typing import Any, Literal, TypedDict, TypeVar, Unpack

import msgspec
from msgspec import UNSET, UnsetType

from tenure.client.channel import Channel
from tenure.client.functions import Sender
from tenure.client.jobs import Job, RequestOptions, commanding, requested
from tenure.client.records import DeadLetterRecord, dead_letter_of
from tenure.client.shells import Operation, awaiting, blocking
from tenure.core.checks import check_job_id, check_name
from tenure.core.commands import Discard, Redrive
from tenure.core.concurrency import check_concurrency_limit
from tenure.core.ids import JobId, Kind, Namespace, QueueName, WorkerId
from tenure.core.instants import Instant
from tenure.core.kind_settings import KindChange
from tenure.core.rates import Rate, parse_rate
from tenure.core.views.dead_letter_groups import DeadLetterGroupFilter
from tenure.core.views.event_counts import EventSpan, Grouping, count_all
from tenure.core.views.events import EventFilter, full_page, key_of, parse_type_filter
from tenure.core.views.job_search import JobFilter
from tenure.core.views.overview import OverviewFilter, TimeRange
from tenure.core.vocabulary import JobStatus, ReasonCode, Stage, did_you_mean
from tenure.errors import InvalidInput
from tenure.handlers.options import check_known, duration, instant, meta_from, plain, word
from tenure.ports import JobStore
from tenure.protocol.records import (
    DeadLetterGroupsReply,
    EventRecord,
    KindRecord,
    OverviewReply,
    QueueRecord,
    WorkerRecord,
    event_of,
    event_record,
    kind_record,
    queue_record,
    worker_record,
)
from tenure.protocol.translation import to_wire
from tenure.telemetry.kind_names import is_known_kind, meant_kind

MAX_LIMIT = 1_000_000
MAX_LISTED = 500

_T = TypeVar("_T")


class _Operator:
    """Asks the store of a channel about its namespace."""

    def __init__(self, channel: Channel) -> None:
        self._channel = channel

    def _asking(self, question: Callable[[JobStore, Namespace], _T]) -> Operation[_T]:
        namespace = self._channel.namespace
        return self._channel.asking(lambda store: question(store, namespace))


class Queues(_Operator):
    """List, pause, resume and limit queues."""

    @blocking
    def ls(self) -> Operation[list[QueueRecord]]:
        """Every queue that has jobs or settings, by name."""
        return self._asking(lambda store, space: [*map(queue_record, store.settings.queues(space))])

    als = awaiting(ls)

    @blocking
    def pause(self, queue: str, *, create: bool = False) -> Operation[QueueRecord]:
        """Grant nothing from the queue until it is resumed; running jobs continue. A queue that no
        job has used so far is refused without `create`: more often it is a mistyped name."""
        return self._setting(queue, create, paused=True)

    apause = awaiting(pause)

    @blocking
    def resume(self, queue: str, *, create: bool = False) -> Operation[QueueRecord]:
        """Grant from the queue again."""
        return self._setting(queue, create, paused=False)

    aresume = awaiting(resume)

    @blocking
    def limit(
        self,
        queue: str,
        jobs: int | UnsetType | None = UNSET,
        *,
        rate: str | UnsetType | None = UNSET,
        burst: int | None = None,
        create: bool = False,
    ) -> Operation[QueueRecord]:
        """Let at most `jobs` of the queue run at a time, on all workers together; None: any number.
        With `rate`, such as `"100/m"`, at most that many begin per second, minute, hour or
        day, and up to `burst` at once; None: any number. What is not given stays unchanged."""
        if jobs is UNSET and rate is UNSET:
            raise InvalidInput("jobs", "is missing, and so is rate", hint="give one of them")
        limit = None if isinstance(jobs, UnsetType) else _limit(jobs)
        return self._setting(queue, create, limit=limit, rate=changed_rate(rate, burst))

    alimit = awaiting(limit)

    def _setting(self, queue: str, create: bool, **settings: Any) -> Operation[QueueRecord]:
        name = QueueName(plain(queue))
        check_name("queue", name)
        fields: Any = {"paused": None, "limit": None, "rate": UNSET} | settings

        def put(store: JobStore, space: Namespace) -> QueueRecord:
            if not create:
                known = [each.name for each in store.settings.queues(space)]
                if name not in known:
                    hint = f"{did_you_mean(name, known)} `create` makes the queue".lstrip()
                    raise InvalidInput("queue", f"no job has used {name} so far", hint=hint)
            return queue_record(store.settings.put_queue(space, name, **fields))

        return self._asking(put)


class Kinds(_Operator):
    """List what is set for kinds, and set it."""

    def __init__(self, channel: Channel, declared: Callable[[], Collection[Kind]]) -> None:
        """`declared` are the kinds of the application itself."""
        super().__init__(channel)
        self._declared = declared

    @blocking
    def ls(self) -> Operation[list[KindRecord]]:
        """Every kind that something was set for, by name."""
        return self._asking(lambda store, space: [*map(kind_record, store.settings.kinds(space))])

    als = awaiting(ls)

    @blocking
    def limit(
        self,
        kind: str,
        *,
        rate: str | UnsetType | None = UNSET,
        burst: int | None = None,
        concurrency_limit: int | UnsetType | None = UNSET,
        create: bool = False,
    ) -> Operation[KindRecord]:
        """Limit how many jobs of the kind begin: with a `rate` such as `"10/s"` (or `/m`, `/h`,
        `/d`), and up to `burst` at once, on all workers together; None: any number. Of each
        concurrency key at most `concurrency_limit` jobs run at a time; None: one. What is not given
        stays unchanged. A kind that no job, worker, setting or function has is refused without
        `create`: more often it is a mistyped name."""
        name = Kind(plain(kind))
        check_name("kind", name)
        wanted = changed_rate(rate, burst)
        if rate is UNSET and concurrency_limit is UNSET:
            hint = "give one of them"
            raise InvalidInput("rate", "is missing, as is concurrency_limit", hint=hint)
        if concurrency_limit is not None and concurrency_limit is not UNSET:
            check_concurrency_limit("concurrency_limit", concurrency_limit)
        change = KindChange(kind=name, rate=wanted, concurrency_limit=concurrency_limit)

        def put(store: JobStore, space: Namespace) -> KindRecord:
            if not create and name not in self._declared():
                _check_known(store, space, name)
            return kind_record(store.settings.put_kind(space, change))

        return self._asking(put)

    alimit = awaiting(limit)


def _check_known(store: JobStore, namespace: Namespace, kind: Kind) -> None:
    if is_known_kind(store, namespace, kind):
        return
    close = meant_kind(store, namespace, kind)
    meant = "" if close is None else f"did you mean {close}? "
    raise InvalidInput(
        "kind",
        f"no job, worker, setting or function has kind {kind} so far",
        hint=f"{meant}`create` sets it anyway",
    )


def changed_rate(rate: str | UnsetType | None, burst: int | None) -> Rate | UnsetType | None:
    """A rate as the port has it: UNSET leaves it unchanged, None removes it. [RL4]"""
    if rate is not None and rate is not UNSET:
        return parse_rate("rate", plain(rate), burst)
    if burst is not None:
        raise InvalidInput("burst", "belongs to a rate", hint="give both: rate and burst")
    return rate


def _limit(jobs: int | None) -> int:
    """As the port has it: 0 means no limit."""
    if jobs is None:
        return 0
    if type(jobs) is not int or not 1 <= jobs <= MAX_LIMIT:
        raise InvalidInput(
            "jobs",
            f"{str(jobs)[:40]!a} is not a number of jobs from 1 to {MAX_LIMIT:,}",
            hint="None removes the limit; pause(queue) stops it",
        )
    return jobs


class Workers(_Operator):
    """List worker processes, and ask one to drain."""

    @blocking
    def ls(self) -> Operation[list[WorkerRecord]]:
        """The worker processes that were seen lately, by name."""

        def read(store: JobStore, space: Namespace) -> list[WorkerRecord]:
            now = store.now()
            return [worker_record(seen, now=now) for seen in store.workers.page(space)]

        return self._asking(read)

    als = awaiting(ls)

    @blocking
    def drain(self, worker: str) -> Operation[None]:
        """Ask the processes of this name to claim nothing more, finish what they run, and end. They
        notice within seconds. Raises `InvalidInput` if there is none."""
        name = WorkerId(plain(worker))
        check_name("worker", name)
        if not (yield from self._asking(lambda store, space: store.workers.drain(space, name))):
            raise InvalidInput(
                "worker", f"there is no worker {name}", hint="`workers ls` lists them"
            )

    adrain = awaiting(drain)


class DeadLetters(_Operator):
    """List dead letters, make new jobs of them, or put them away."""

    def __init__(self, channel: Channel, sender: Sender) -> None:
        super().__init__(channel)
        self._sender = sender

    @blocking
    def ls(
        self,
        *,
        kind: str | None = None,
        queue: str | None = None,
        reason: ReasonCode | str | None = None,
        stage: Stage | str | None = None,
        resolved: bool = False,
        before: str | None = None,
        limit: int = 50,
    ) -> Operation[list[DeadLetterRecord]]:
        """Dead letters that are not resolved, newest first, or with `resolved` the others;
        without their payloads. `before` is the last job id of the previous page."""
        wanted = job_filter(
            self._channel,
            statuses=(JobStatus.DEAD_LETTERED,),
            kind=kind,
            queue=queue,
            reason_code=None if reason is None else word("reason", ReasonCode, reason),
            stage=None if stage is None else word("stage", Stage, stage),
            resolved=resolved,
            before=before,
            limit=limit,
        )
        return self._asking(
            lambda store, _: [*map(dead_letter_of, store.views.dead_letters(wanted))]
        )

    als = awaiting(ls)

    @blocking
    def groups(
        self,
        range: Literal["15m", "1h", "6h", "24h", "7d"] = "24h",
        *,
        kind: str | None = None,
        queue: str | None = None,
        key: str | None = None,
    ) -> Operation[DeadLetterGroupsReply]:
        """Unresolved dead letters counted by kind and error, the largest group first, and over
        time. With the `key` of a group: only this one, with the ids of its letters."""
        wanted = DeadLetterGroupFilter(
            namespace=self._channel.namespace,
            range=word("range", TimeRange, range),
            queues=() if queue is None else (QueueName(plain(queue)),),
            kinds=() if kind is None else (Kind(plain(kind)),),
            key=plain(key),
        )
        return self._asking(
            lambda store, _: to_wire(DeadLetterGroupsReply, store.views.dead_letter_groups(wanted))
        )

    agroups = awaiting(groups)

    @blocking
    def redrive(
        self,
        job_id: str,
        *,
        payload: Any = msgspec.UNSET,
        again: bool = False,
        **request: Unpack[RequestOptions],
    ) -> Operation[Job[Any]]:
        """Make a new job of a dead letter, with its own payload or this one. One that was redriven
        or discarded before raises `Conflict`; `again` makes another job of it anyway."""
        asked = requested(self._channel, request, of="redrive()")
        letter = yield from self._loading(job_id)
        body = None
        if payload is not msgspec.UNSET:
            body = self._sender.checked_payload(letter.kind, payload)
        command = Redrive(
            job_id=letter.id,
            actor=self._channel.operator,
            payload=body,
            again=again,
            expected_status=JobStatus.DEAD_LETTERED,
            **asked,
        )
        made = yield from commanding(self._channel, command)
        return self._sender.handle(made)

    aredrive = awaiting(redrive)

    @blocking
    def discard(
        self, job_id: str, *, note: str = "", **request: Unpack[RequestOptions]
    ) -> Operation[None]:
        """Put a dead letter away. It is kept with its history, and the note, until it is purged."""
        asked = requested(self._channel, request, of="discard()")
        letter = yield from self._loading(job_id)
        actor = self._channel.operator
        command = Discard(job_id=letter.id, actor=actor, note=plain(note), **asked)
        yield from commanding(self._channel, command)

    adiscard = awaiting(discard)

    def _loading(self, job_id: str) -> Operation[Any]:
        """The job, which must be one of the application's namespace."""
        check_job_id("job_id", job_id)
        return (yield from self._channel.loading(JobId(job_id)))


def job_filter(
    channel: Channel,
    *,
    kind: str | None,
    queue: str | None,
    before: str | None,
    limit: int,
    **filters: Any,
) -> JobFilter:
    """Which jobs of the application's namespace a list shows, without their bodies."""
    if type(limit) is not int or not 1 <= limit <= MAX_LISTED:
        raise InvalidInput("limit", f"{str(limit)[:40]!a} is not a number from 1 to {MAX_LISTED}")
    if before is not None:
        check_job_id("before", before)
    return JobFilter(
        namespace=channel.namespace,
        kind=None if kind is None else Kind(plain(kind)),
        queue=None if queue is None else QueueName(plain(queue)),
        before=None if before is None else JobId(before),
        limit=limit,
        bodies=False,
        **filters,
    )


class JobSearch(TypedDict, total=False):
    """Further filters of a list of jobs: the worker that holds or held them, the schedule that made
    them, text in the type or message of their last error, one entry of their `meta`, when they were
    enqueued and finished, and whether their worker has been silent for two heartbeats. [J12]"""

    worker: str
    schedule: str
    error: str
    meta: Mapping[str, str]
    enqueued_since: datetime
    enqueued_until: datetime
    finished_since: datetime
    finished_until: datetime
    orphaned: bool


_SEARCHES = frozenset(JobSearch.__annotations__)


def searched(search: JobSearch) -> dict[str, Any]:
    """The fields of a filter that a search asks for."""
    check_known(dict(search), _SEARCHES, of="app.jobs()")
    return {name: _searched(name, value) for name, value in search.items() if value is not None}


def _searched(name: str, value: Any) -> Any:
    if name.endswith(("_since", "_until")):
        return instant(name, value)
    if name != "meta":
        return plain(value)
    entries = [f"{key}={text}" for key, text in meta_from(name, value).items()]
    if len(entries) != 1:
        raise InvalidInput(name, f"has {len(entries)} entries", hint="search by one of them")
    return entries[0]


def events(
    channel: Channel,
    *,
    job_id: str | None,
    type: str | Iterable[str],
    since: object,
    until: datetime | None,
    correlation_id: str | None,
    oldest_first: bool,
    after: EventRecord | None,
    limit: int,
) -> Operation[list[EventRecord]]:
    """Events of all jobs of the application's namespace, by time. [E8]"""
    words = [type] if isinstance(type, str) else list(type)
    begin = None
    if since is not None:
        now = yield from channel.asking(lambda store: store.now())
        begin = _since(since, now)
    wanted = EventFilter(
        namespace=channel.namespace,
        job_id=None if job_id is None else JobId(plain(job_id)),
        types=tuple(parse_type_filter(str(word)) for word in words),
        correlation_id=plain(correlation_id),
        since=begin,
        until=None if until is None else instant("until", until),
        newest_first=not oldest_first,
        after=None if after is None else key_of(event_of(after)),
        limit=limit,
    )
    page = yield from channel.asking(lambda store: full_page(store.events.page, wanted))
    return [event_record(event) for event in page.events]


def _since(since: object, now: Instant) -> Instant:
    """A time, or how long ago."""
    if isinstance(since, datetime):
        return instant("since", since)
    return Instant(now - duration("since", since))


def overview(
    channel: Channel, *, range: str, queue: str | None, kind: str | None
) -> Operation[OverviewReply]:
    """What the namespace is doing. [OB28]"""
    wanted = OverviewFilter(
        namespace=channel.namespace,
        range=word("range", TimeRange, range),
        queues=() if queue is None else (QueueName(queue),),
        kinds=() if kind is None else (Kind(kind),),
    )
    found = yield from channel.asking(lambda store: store.views.overview(wanted))
    return to_wire(OverviewReply, found)


def stats(
    channel: Channel, *, since: object, until: datetime | None, by: str
) -> Operation[dict[str, int]]:
    """The number of events in a span of time, read from the log. [OB25]"""
    try:
        group = Grouping(plain(by))
    except ValueError as wrong:
        raise InvalidInput("by", f"{by[:40]!a} is not one of {', '.join(Grouping)}") from wrong
    now = yield from channel.asking(lambda store: store.now())
    end = now if until is None else instant("until", until)
    begin = _since(since, now)
    if begin >= end:
        raise InvalidInput("since", "is not before until")
    span = EventSpan(namespace=channel.namespace, since=begin, until=end)
    totals = yield from channel.asking(lambda store: count_all(store.events.count, span, [group]))
    if totals.until < end:
        raise InvalidInput("since", "the log has too many events in this span", hint="ask for less")
    return {name: events for (name,), events in sorted(totals.events.items())}
