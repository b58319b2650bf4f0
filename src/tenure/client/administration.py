"""What operators do, from Python: `app.jobs`, `app.queues`, `app.kinds`, `app.workers`,
`app.dead_letters`, and the views of `app` itself.

The same requests as those of the commands. Over HTTP they are within the permissions of the token,
and refused with `RequestRefused` otherwise. Decides nothing itself.
"""

from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from datetime import datetime, timedelta
from functools import partial
from typing import Any, Literal, TypeAlias, TypedDict, TypeVar, Unpack

import msgspec
from msgspec import UNSET, UnsetType

from tenure.client.channel import Channel
from tenure.client.functions import Sender
from tenure.client.jobs import (
    Job,
    RequestOptions,
    cancel_fields,
    commanding,
    dead_letter_fields,
    deciding_many,
    requested,
)
from tenure.client.records import DeadLetterRecord, JobRecord, dead_letter_of, record_of
from tenure.client.shells import Operation, awaiting, blocking, run
from tenure.core.checks import check_job_id, check_name
from tenure.core.commands import Cancel, DeadLetter, Discard, Redrive, Requeue, Stall, redriven_id
from tenure.core.concurrency import check_concurrency_limit
from tenure.core.ids import JobId, Kind, Namespace, QueueName, RequestId, WorkerId
from tenure.core.instants import Instant
from tenure.core.job import Job as StoredJob
from tenure.core.kind_settings import KindChange
from tenure.core.rates import Rate, parse_rate
from tenure.core.views.dead_letter_groups import DeadLetterGroupFilter
from tenure.core.views.event_counts import EventSpan, Grouping, count_all
from tenure.core.views.events import EventFilter, full_page, key_of, parse_type_filter
from tenure.core.views.job_search import JobFilter
from tenure.core.views.overview import OverviewFilter, TimeRange
from tenure.core.vocabulary import EventCause, JobStatus, ReasonCode, Stage, did_you_mean
from tenure.errors import InvalidInput
from tenure.handlers.json_values import encode
from tenure.handlers.options import check_known, duration, instant, meta_from, plain, word
from tenure.ports import JobStore
from tenure.protocol.records import (
    DeadLetterGroupsReply,
    EventRecord,
    JobOutcome,
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
MAX_IDS = 100_000
PER_PAGE = 500
"""Ids are read page by page."""

_T = TypeVar("_T")


class _Operator:
    """Asks the store of a channel about its namespace."""

    def __init__(self, channel: Channel) -> None:
        self._channel = channel

    def _ask(self, question: Callable[[JobStore, Namespace], _T]) -> _T:
        namespace = self._channel.namespace
        return self._channel.ask(lambda store: question(store, namespace))


# --- Jobs ----------------------------------------------------------------------------------------


Statuses: TypeAlias = JobStatus | str | Iterable[JobStatus | str]


class WhichJobs(TypedDict, total=False):
    """Which jobs are meant."""

    status: Statuses
    kind: str
    queue: str
    correlation_id: str


class JobSearch(WhichJobs, total=False):
    """Which jobs a list shows, also by what no index has: the worker that runs or ran them, the
    schedule that made them, text in the type or message of their last error, one entry of their
    `meta`, when they were enqueued and finished, and whether their worker has been silent for two
    heartbeats. [J12]"""

    worker: str
    schedule: str
    error: str
    meta: Mapping[str, str]
    enqueued_since: datetime
    enqueued_until: datetime
    finished_since: datetime
    finished_until: datetime
    orphaned: bool


class WhichDeadLetters(TypedDict, total=False):
    """Which dead letters are meant."""

    kind: str
    queue: str
    reason: ReasonCode | str
    stage: Stage | str


def _statuses(name: str, value: Statuses) -> tuple[JobStatus, ...]:
    several = [value] if isinstance(value, str) else value
    return tuple(word(name, JobStatus, each) for each in several)


def _meta_entry(name: str, value: object) -> str:
    entries = [f"{key}={text}" for key, text in (meta_from(name, value) or {}).items()]
    if len(entries) != 1:
        raise InvalidInput(name, f"has {len(entries)} entries", hint="search by one of them")
    return entries[0]


_FIELDS: Mapping[str, tuple[str, Callable[[str, Any], Any]]] = {
    "status": ("statuses", _statuses),
    "reason": ("reason_code", lambda name, value: word(name, ReasonCode, value)),
    "stage": ("stage", lambda name, value: word(name, Stage, value)),
    "meta": ("meta", _meta_entry),
    **{
        name: (name, instant)
        for name in JobSearch.__annotations__
        if name.endswith(("since", "until"))
    },
}
"""Options of a list whose field has another name or is not a text, and how its value is made."""


def _filter(
    channel: Channel,
    which: WhichJobs | WhichDeadLetters,
    options: type[WhichJobs] | type[WhichDeadLetters],
    of: str,
    *,
    before: str | None = None,
    limit: int | None = None,
    **fixed: Any,
) -> JobFilter:
    """Which jobs of the application's namespace are meant, without their bodies. `options` are what
    the method `of` the application takes."""
    check_known(dict(which), frozenset(options.__annotations__), of=of)
    if limit is None:
        limit = PER_PAGE
    elif type(limit) is not int or not 1 <= limit <= MAX_LISTED:
        raise InvalidInput("limit", f"{str(limit)[:40]!a} is not a number from 1 to {MAX_LISTED}")
    if before is not None:
        check_job_id("before", before)
    fields = dict(fixed)
    for name, value in which.items():
        if value is not None:
            field, parse = _FIELDS.get(name, (name, lambda _, given: plain(given)))
            fields[field] = parse(name, value)
    last = None if before is None else JobId(before)
    return JobFilter(namespace=channel.namespace, before=last, limit=limit, bodies=False, **fields)


def _listing_ids(channel: Channel, wanted: JobFilter) -> Operation[list[JobId]]:
    """The ids of all jobs that match, newest first, at most `MAX_IDS`."""
    ids: list[JobId] = []
    while len(ids) < MAX_IDS:
        page = yield from channel.listing(wanted)
        ids += [job.id for job in page.jobs]
        if page.next_before is None:
            break
        wanted = msgspec.structs.replace(wanted, before=page.next_before)
    return ids


class Jobs(_Operator):
    """List jobs, and decide about many at once. Requests are sent in batches under one
    `request_id`: repeated with it, nothing is done twice. Jobs are known by their ids alone,
    whatever their namespace."""

    @blocking
    def ls(
        self, *, before: str | None = None, limit: int = 50, **search: Unpack[JobSearch]
    ) -> Operation[list[JobRecord]]:
        """The records of jobs, newest first, without their payloads and results, by `status`,
        `kind`, `queue` and so on. `before` is the last job id of the previous page. By `worker`,
        `error`, `meta` and the time of their end jobs are searched, among the newest 10,000 before
        `before` that match the rest."""
        wanted = _filter(
            self._channel, search, JobSearch, "app.jobs.ls()", before=before, limit=limit
        )
        found = yield from self._channel.listing(wanted)
        now = yield from self._channel.asking(lambda store: store.now())
        return [record_of(job, now=now, bodies=False) for job in found.jobs]

    als = awaiting(ls)

    @blocking
    def ids(self, **which: Unpack[WhichJobs]) -> Operation[list[JobId]]:
        """The ids of all jobs of a `status`, `kind`, `queue` and `correlation_id`, newest first: at
        most 100,000."""
        wanted = _filter(self._channel, which, WhichJobs, "app.jobs.ids()")
        return _listing_ids(self._channel, wanted)

    aids = awaiting(ids)

    @blocking
    def cancel(
        self,
        job_ids: Iterable[str],
        *,
        hard: bool = False,
        reason: str = "",
        **request: Unpack[RequestOptions],
    ) -> Operation[list[JobOutcome]]:
        """Stop jobs, as `Job.cancel` does."""
        fields = cancel_fields(self._channel, hard=hard, reason=reason)
        return deciding_many(self._channel, job_ids, Cancel, request, **fields)

    acancel = awaiting(cancel)

    @blocking
    def stall(
        self, job_ids: Iterable[str], **request: Unpack[RequestOptions]
    ) -> Operation[list[JobOutcome]]:
        """Take jobs from workers that you no longer trust, as `Job.stall` does."""
        return deciding_many(self._channel, job_ids, Stall, request)

    astall = awaiting(stall)

    @blocking
    def requeue(
        self, job_ids: Iterable[str], **request: Unpack[RequestOptions]
    ) -> Operation[list[JobOutcome]]:
        """Send stalled jobs back to their queue."""
        return deciding_many(self._channel, job_ids, Requeue, request)

    arequeue = awaiting(requeue)

    @blocking
    def dead_letter(
        self,
        job_ids: Iterable[str],
        reason: ReasonCode | str = ReasonCode.POLICY_VIOLATION,
        message: str = "",
        *,
        stage: Stage | str | None = None,
        **request: Unpack[RequestOptions],
    ) -> Operation[list[JobOutcome]]:
        """Turn unfinished jobs into dead letters, as `Job.dead_letter` does."""
        fields = dead_letter_fields(reason, stage, message)
        return deciding_many(self._channel, job_ids, DeadLetter, request, **fields)

    adead_letter = awaiting(dead_letter)

    @blocking
    def rerun(
        self,
        job_ids: Iterable[str],
        *,
        again: bool = False,
        **request: Unpack[RequestOptions],
    ) -> Operation[list[JobOutcome]]:
        """Make new jobs like these, which have ended, as `Job.rerun` does."""
        cause = EventCause.RERUN
        return deciding_many(self._channel, job_ids, Redrive, request, cause=cause, again=again)

    arerun = awaiting(rerun)

    @blocking
    def not_rerun(self, job_ids: Iterable[str], request_id: str) -> Operation[list[JobId]]:
        """The ones of these jobs that were not rerun under this request id."""
        asked_as = RequestId(plain(request_id))
        ids = [JobId(plain(job_id)) for job_id in dict.fromkeys(job_ids)]
        left: list[JobId] = []
        for start in range(0, len(ids), PER_PAGE):
            page = ids[start : start + PER_PAGE]
            asked = [
                Redrive(job_id=each, actor=self._channel.operator, request_id=asked_as)
                for each in page
            ]
            new_ids = list(map(redriven_id, asked))
            known = yield from self._channel.asking(partial(_read_heads, new_ids))
            left += [old for old, new in zip(page, new_ids, strict=True) if new not in known]
        return left

    anot_rerun = awaiting(not_rerun)


def _read_heads(ids: Sequence[JobId], store: JobStore) -> dict[JobId, StoredJob]:
    return store.jobs.read(ids, bodies=False)


# --- Queues, kinds, workers ----------------------------------------------------------------------


class Queues(_Operator):
    """List, pause, resume and limit queues."""

    def ls(self) -> list[QueueRecord]:
        """Every queue that has jobs or settings, by name."""
        return self._ask(lambda store, space: [*map(queue_record, store.settings.queues(space))])

    als = awaiting(ls)

    def pause(self, queue: str, *, create: bool = False) -> QueueRecord:
        """Grant nothing from the queue until it is resumed; running jobs continue. A queue that no
        job has used so far is refused without `create`: more often it is a mistyped name."""
        return self._setting(queue, create, paused=True)

    apause = awaiting(pause)

    def resume(self, queue: str, *, create: bool = False) -> QueueRecord:
        """Grant from the queue again."""
        return self._setting(queue, create, paused=False)

    aresume = awaiting(resume)

    def limit(
        self,
        queue: str,
        jobs: int | UnsetType | None = UNSET,
        *,
        rate: str | UnsetType | None = UNSET,
        burst: int | None = None,
        create: bool = False,
    ) -> QueueRecord:
        """Let at most `jobs` of the queue run at a time, on all workers together; None: any number.
        With `rate`, such as `"100/m"`, at most that many start per second, minute, hour or
        day, and up to `burst` at once; None: any number. What is not given stays unchanged."""
        if jobs is UNSET and rate is UNSET:
            raise InvalidInput("jobs", "is missing, and so is rate", hint="give one of them")
        limit = None if isinstance(jobs, UnsetType) else _limit(jobs)
        return self._setting(queue, create, limit=limit, rate=changed_rate(rate, burst))

    alimit = awaiting(limit)

    def _setting(self, queue: str, create: bool, **settings: Any) -> QueueRecord:
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

        return self._ask(put)


class Kinds(_Operator):
    """List what is set for kinds, and set it."""

    def __init__(self, channel: Channel, declared: Callable[[], Collection[Kind]]) -> None:
        """`declared` are the kinds of the application itself."""
        super().__init__(channel)
        self._declared = declared

    def ls(self) -> list[KindRecord]:
        """Every kind that something was set for, by name."""
        return self._ask(lambda store, space: [*map(kind_record, store.settings.kinds(space))])

    als = awaiting(ls)

    def limit(
        self,
        kind: str,
        *,
        rate: str | UnsetType | None = UNSET,
        burst: int | None = None,
        concurrency_limit: int | UnsetType | None = UNSET,
        create: bool = False,
    ) -> KindRecord:
        """Limit how many jobs of the kind start: with a `rate` such as `"10/s"` (or `/m`, `/h`,
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

        return self._ask(put)

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

    def ls(self) -> list[WorkerRecord]:
        """The worker processes that were seen lately, by name."""

        def read(store: JobStore, space: Namespace) -> list[WorkerRecord]:
            now = store.now()
            return [worker_record(seen, now=now) for seen in store.workers.page(space)]

        return self._ask(read)

    als = awaiting(ls)

    def drain(self, worker: str) -> None:
        """Ask the processes of this name to claim nothing more, finish what they run, and end. They
        notice within seconds. Raises `InvalidInput` if there is none."""
        name = WorkerId(plain(worker))
        check_name("worker", name)
        if not self._ask(lambda store, space: store.workers.drain(space, name)):
            raise InvalidInput(
                "worker", f"there is no worker {name}", hint="`workers ls` lists them"
            )

    adrain = awaiting(drain)


class DeadLetters(_Operator):
    """List dead letters, make new jobs of them, or put them away."""

    def __init__(self, channel: Channel, sender: Sender) -> None:
        super().__init__(channel)
        self._sender = sender

    def ls(
        self,
        *,
        resolved: bool = False,
        before: str | None = None,
        limit: int = 50,
        **which: Unpack[WhichDeadLetters],
    ) -> list[DeadLetterRecord]:
        """Dead letters that are not resolved, newest first, or with `resolved` the others;
        without their payloads; by `kind`, `queue`, `reason` and `stage`. `before` is the last job
        id of the previous page."""
        wanted = self._wanted(which, "ls", resolved=resolved, before=before, limit=limit)

        def read(store: JobStore, _: Namespace) -> list[DeadLetterRecord]:
            found = store.views.jobs(wanted)
            return [dead_letter_of(job, found.resolutions.get(job.id)) for job in found.jobs]

        return self._ask(read)

    als = awaiting(ls)

    @blocking
    def ids(self, **which: Unpack[WhichDeadLetters]) -> Operation[list[JobId]]:
        """The ids of all dead letters of a `kind`, `queue`, `reason` and `stage` that are not
        resolved, newest first: at most 100,000."""
        return _listing_ids(self._channel, self._wanted(which, "ids", resolved=False))

    aids = awaiting(ids)

    def _wanted(self, which: WhichDeadLetters, method: str, **fields: Any) -> JobFilter:
        of = f"app.dead_letters.{method}()"
        dead = (JobStatus.DEAD_LETTERED,)
        return _filter(self._channel, which, WhichDeadLetters, of, statuses=dead, **fields)

    def groups(
        self,
        range: Literal["15m", "1h", "6h", "24h", "7d"] = "24h",
        *,
        kind: str | None = None,
        queue: str | None = None,
        key: str | None = None,
    ) -> DeadLetterGroupsReply:
        """Unresolved dead letters counted by kind and error, the largest group first, and over
        time. With the `key` of a group: only this one, with the ids of its letters."""
        wanted = DeadLetterGroupFilter(
            namespace=self._channel.namespace,
            range=word("range", TimeRange, range),
            queues=() if queue is None else (QueueName(plain(queue)),),
            kinds=() if kind is None else (Kind(plain(kind)),),
            key=plain(key),
        )
        return self._ask(
            lambda store, _: to_wire(DeadLetterGroupsReply, store.views.dead_letter_groups(wanted))
        )

    agroups = awaiting(groups)

    def redrive(
        self,
        job_id: str,
        *,
        payload: Any = msgspec.UNSET,
        again: bool = False,
        **request: Unpack[RequestOptions],
    ) -> Job[Any]:
        """Make a new job of a dead letter, with its own payload or this one. One that was redriven
        or discarded before raises `Conflict`; `again` makes another job of it anyway."""
        asked = requested(self._channel, request, of="redrive()")
        letter = self._load(job_id)
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
        made = run(commanding(self._channel, command))
        return self._sender.handle(made)

    aredrive = awaiting(redrive)

    def discard(self, job_id: str, *, note: str = "", **request: Unpack[RequestOptions]) -> None:
        """Put a dead letter away. It is kept with its history, and the note, until it is purged."""
        asked = requested(self._channel, request, of="discard()")
        letter = self._load(job_id)
        actor = self._channel.operator
        command = Discard(job_id=letter.id, actor=actor, note=plain(note), **asked)
        run(commanding(self._channel, command))

    adiscard = awaiting(discard)

    @blocking
    def redrive_many(
        self,
        job_ids: Iterable[str],
        *,
        payload: Any = msgspec.UNSET,
        again: bool = False,
        **request: Unpack[RequestOptions],
    ) -> Operation[list[JobOutcome]]:
        """Make new jobs of dead letters, with their own payloads, or each with this one, which is
        not compared with the parameters of its function."""
        return deciding_many(
            self._channel,
            job_ids,
            Redrive,
            request,
            payload=None if payload is msgspec.UNSET else encode(payload, what="payload"),
            again=again,
            expected_status=JobStatus.DEAD_LETTERED,
        )

    aredrive_many = awaiting(redrive_many)

    @blocking
    def discard_many(
        self, job_ids: Iterable[str], *, note: str = "", **request: Unpack[RequestOptions]
    ) -> Operation[list[JobOutcome]]:
        """Put dead letters away, as `discard` does."""
        return deciding_many(self._channel, job_ids, Discard, request, note=plain(note))

    adiscard_many = awaiting(discard_many)

    def _load(self, job_id: str) -> Any:
        """The job, which must be one of the application's namespace."""
        check_job_id("job_id", job_id)
        return run(self._channel.loading(JobId(job_id)))


class ApplicationViews:
    """What the jobs of an application's namespace are and were: its own lists."""

    channel: Channel

    def events(
        self,
        *,
        job_id: str | None = None,
        type: str | Iterable[str] = (),
        since: str | float | timedelta | datetime | None = None,
        until: datetime | None = None,
        correlation_id: str | None = None,
        oldest_first: bool = False,
        after: EventRecord | None = None,
        limit: int = 50,
    ) -> list[EventRecord]:
        """The events of all jobs by time, newest first. `type` is a type or a name, `claimed` or
        `job_claimed`, or several; `since` is a time, or how long ago; `after` is the last event of
        the previous page. Over HTTP it needs the token of an operator or a viewer. [E8]"""
        words = [type] if isinstance(type, str) else list(type)
        wanted = EventFilter(
            namespace=self.channel.namespace,
            job_id=None if job_id is None else JobId(plain(job_id)),
            types=tuple(parse_type_filter(str(word)) for word in words),
            correlation_id=plain(correlation_id),
            since=None if since is None else _since(since, self._now()),
            until=None if until is None else instant("until", until),
            newest_first=not oldest_first,
            after=None if after is None else key_of(event_of(after)),
            limit=limit,
        )
        page = self.channel.ask(lambda store: full_page(store.events.page, wanted))
        return [event_record(event) for event in page.events]

    aevents = awaiting(events)

    def stats(
        self,
        *,
        since: str | float | timedelta | datetime = "24h",
        until: datetime | None = None,
        by: Literal["type", "kind", "queue"] = "type",
    ) -> dict[str, int]:
        """How many events the log has by type, kind or queue, by whichever process. `since` is a
        time, or how long ago; `until` is now unless it is given. Over HTTP it needs the token of an
        operator or a viewer. [OB25]"""
        group = word("by", Grouping, by)
        now = self._now()
        end = now if until is None else instant("until", until)
        span = EventSpan(namespace=self.channel.namespace, since=_since(since, now), until=end)
        if span.since >= end:
            raise InvalidInput("since", "is not before until")
        totals = self.channel.ask(lambda store: count_all(store.events.count, span, [group]))
        if totals.until < end:
            problem = "the log has too many events in this span"
            raise InvalidInput("since", problem, hint="ask for less")
        return {name: events for (name,), events in sorted(totals.events.items())}

    astats = awaiting(stats)

    def overview(
        self,
        range: Literal["15m", "1h", "6h", "24h", "7d"] = "1h",
        *,
        queue: str | None = None,
        kind: str | None = None,
    ) -> OverviewReply:
        """What the jobs are doing and did lately: rates by outcome, how full queues are, how long
        jobs wait and run, workers, and what needs attention; of one queue or kind only, if given.
        Over HTTP it needs the token of an operator or a viewer. [OB28]"""
        wanted = OverviewFilter(
            namespace=self.channel.namespace,
            range=word("range", TimeRange, range),
            queues=() if queue is None else (QueueName(queue),),
            kinds=() if kind is None else (Kind(kind),),
        )
        found = self.channel.ask(lambda store: store.views.overview(wanted))
        return to_wire(OverviewReply, found)

    aoverview = awaiting(overview)

    def _now(self) -> Instant:
        return self.channel.ask(lambda store: store.now())


def _since(since: object, now: Instant) -> Instant:
    """A time, or how long ago."""
    if isinstance(since, datetime):
        return instant("since", since)
    return Instant(now - duration("since", since))
