"""One authenticated request: who asks, for what, and how its response is made."""

import asyncio
from collections.abc import Awaitable, Callable, Iterable, Sequence
from concurrent.futures import Future
from functools import partial
from typing import Any, TypeVar

import msgspec
from starlette.requests import Request
from starlette.responses import Response
from starlette.types import Receive, Scope, Send

from tenure.coordinator.service import Coordinator
from tenure.core.commands import Command
from tenure.core.events import Event
from tenure.core.ids import Actor, JobId, Namespace
from tenure.core.job import Job, JobError
from tenure.core.validation import Limits, check_command
from tenure.core.verdicts import Answer
from tenure.core.views.events import EventFilter, EventKey, EventPage
from tenure.core.views.job_search import FoundJobs, JobFilter
from tenure.core.workers import WorkerKey
from tenure.errors import InvalidInput
from tenure.ports import Store
from tenure.protocol.codec import encode
from tenure.protocol.records import EventRecord, event_record
from tenure.protocol.requests import MAX_WITH_BODIES
from tenure.protocol.routes import Route
from tenure.server.audit import RequestAudit
from tenure.server.limits import RequestMemory
from tenure.server.principals import Principal
from tenure.server.problems import wire_field
from tenure.server.services import Services
from tenure.telemetry.tracing import RequestSpan

PIECE_BYTES = 64 << 10
SMALL_BYTES = 8 << 10
"""A body up to this size is read and checked on the event loop, which takes at most a few
milliseconds. A larger one goes to a thread: 60 KiB of empty objects took 31 ms. [H39]"""

JOBS_OF_SMALL_ANSWER = 10
"""Up to this many records without bodies are encoded on the event loop: 0.1 ms. A thread costs as
much."""

JOBS_AT_ONCE = 100
JOBS_WITH_BODIES_AT_ONCE = 5
EVENTS_AT_ONCE = 100
"""How many rows are read before their memory is counted: bodies of 15 MiB, error messages of a few
more. [H45]"""

MAX_PAGE_BYTES = 4 << 20
"""A page of named rows ends when its rows take more than this. [H86]"""

ROW_BYTES = 1 << 10
"""Memory of a row without its long texts."""

_M = TypeVar("_M")
_Row = TypeVar("_Row")
_Key = TypeVar("_Key", str, WorkerKey)


class RequestContext(msgspec.Struct, frozen=True, kw_only=True):
    """A request of a known caller: `audit.principal`."""

    route: Route
    http: Request
    span: RequestSpan
    memory: RequestMemory
    audit: RequestAudit
    is_encoded: bool = True
    """Whether the answer is sent. A page of this process takes the message of the response."""


class ServerCall(RequestContext, frozen=True, kw_only=True):
    """A request that was authenticated, allowed and read."""

    services: Services
    path: dict[str, str]
    parameters: Any
    """The query, as a message."""
    body: Any
    """A message, or the bytes of a file."""
    is_small: bool
    bodies_are_checked: bool

    @property
    def principal(self) -> Principal:
        """The caller."""
        return self.audit.principal

    @property
    def coordinator(self) -> Coordinator:
        """The coordinator that decides."""
        return self.services.coordinator

    @property
    def store(self) -> Store:
        """The store, for reads."""
        return self.services.coordinator.store

    @property
    def actor(self) -> Actor:
        """The actor that the caller's commands are recorded under."""
        return self.principal.actor(self.route)

    @property
    def job_id(self) -> JobId:
        """The job that the path names."""
        return JobId(self.path["job_id"])

    def message(self, kind: type[_M]) -> _M:
        """The body, which by the table of routes is of this kind."""
        assert isinstance(self.body, kind)
        return self.body

    @property
    def waits_s(self) -> float:
        """How long the caller is ready to wait: a claim has it in its body, a reader of the tail
        in its query."""
        return max(float(getattr(part, "wait_s", 0.0)) for part in (self.parameters, self.body))

    def query(self, kind: type[_M]) -> _M:
        """The query, which by the table of routes is of this kind."""
        assert isinstance(self.parameters, kind)
        return self.parameters

    def check_bodies_wanted(self) -> bool:
        """Whether the caller wants payloads and results. Raises if it may not see them. [H46]"""
        wanted = bool(getattr(self.parameters, "bodies", False))
        self.principal.check_bodies(wanted=wanted)
        return wanted

    def check_with_bodies(self, field: str, count: int) -> bool:
        """Whether the caller wants the bodies of `count` jobs. Raises if those are too many.
        [H43]"""
        wanted = self.check_bodies_wanted()
        if wanted and count > MAX_WITH_BODIES:
            raise InvalidInput(field, f"with bodies at most {MAX_WITH_BODIES} at a time")
        return wanted

    def namespace(self) -> Namespace:
        """The caller's namespace; one that the query or body names must be the same."""
        for part in (self.parameters, self.body):
            believed = getattr(part, "namespace", None)
            if believed is not None:
                return self.principal.namespace(believed)
        return self.principal.namespace(None)

    async def job(self, *, bodies: bool = False) -> Job:
        """The job that the path names. Raises `UnknownJob`."""
        found = await self.jobs([self.job_id], bodies=bodies)
        return self.principal.find(found[0] if found else None, self.job_id)

    async def jobs(
        self, ids: Sequence[JobId], *, bodies: bool, are_named: bool = True
    ) -> list[Job]:
        """Those of these jobs that the caller may see, in this order. [H45] Unless the caller named
        them, the security log has nothing of the others. [OB41]"""
        at_once = JOBS_WITH_BODIES_AT_ONCE if bodies else JOBS_AT_ONCE
        seen: list[Job] = []
        for begin in range(0, len(ids), at_once):
            some = ids[begin : begin + at_once]
            found = await self.services.blocking(
                partial(self.coordinator.read_jobs, some, bodies=bodies)
            )
            here = [found[each] for each in some if each in found]
            hidden = [job for job in here if not self.principal.sees(job)]
            if hidden and are_named:
                self.audit.hidden_job(hidden[0].id, number=len(hidden))
            seen += self._kept([job for job in here if self.principal.sees(job)])
        return seen

    async def listed_jobs(self, wanted: JobFilter) -> FoundJobs:
        """A page of jobs. Lists them without their bodies, then reads the bodies a few at a time,
        if they are wanted. [H45]"""
        page = FoundJobs([], wanted.before)
        while len(page.jobs) < wanted.limit:
            limit = min(JOBS_AT_ONCE, wanted.limit - len(page.jobs))
            part = msgspec.structs.replace(
                wanted, before=page.next_before, limit=limit, bodies=False
            )
            found = await self.services.listing(partial(self.coordinator.list_jobs, part))
            page = FoundJobs(
                page.jobs + (found.jobs if wanted.bodies else self._kept(found.jobs)),
                found.next_before,
                page.resolutions | found.resolutions,
                page.previews | found.previews,
            )
            if len(found.jobs) < limit:
                break
        if wanted.bodies:
            jobs = await self.jobs([job.id for job in page.jobs], bodies=True)
            page = msgspec.structs.replace(page, jobs=jobs)
        return page

    async def events(self, wanted: EventFilter) -> EventPage:
        """A page of events, read a few at a time. [H45] It ends where the store stopped reading, so
        that a caller who may see few of many events delays no other. [E8]"""
        page: list[Event] = []
        rest: EventKey | None = wanted.after
        while len(page) < wanted.limit:
            limit = min(EVENTS_AT_ONCE, wanted.limit - len(page))
            part = msgspec.structs.replace(wanted, after=rest, limit=limit)
            found = await self.services.listing(partial(self.store.events.page, part))
            self.count_events(found.events)
            page += found.events
            rest = found.next
            if rest is None or len(found.events) < limit:
                break
        return EventPage(events=tuple(page), next=rest)

    async def page(
        self,
        read: Callable[[_Key, int], list[_Row]],
        first: _Key,
        *,
        key: Callable[[_Row], _Key],
        limit: int,
        at_once: int,
        sees: Callable[[_Row], bool],
        size_of: Callable[[_Row], int],
    ) -> tuple[list[_Row], _Key | None]:
        """Up to `limit` rows that the caller may see, fewer if they are large, read a few at a
        time, and the key after which the next page starts if there may be more. `read` gets the key
        after which to read. The next page starts after a row that the caller sees, so that it names
        nothing of others. [H86]"""
        page: list[_Row] = []
        after = first
        while True:
            wanted = at_once if self.principal.is_limited else min(at_once, limit - len(page))
            rows = await self.services.listing(partial(read, after, wanted))
            seen = [row for row in rows if sees(row)]
            self.memory.read(sum(map(size_of, seen)))
            page += seen
            if len(page) > limit or (len(page) == limit and len(rows) == wanted):
                return page[:limit], key(page[limit - 1])
            if len(rows) < wanted:
                return page, None
            if sum(map(size_of, page)) > MAX_PAGE_BYTES:
                return page, key(page[-1])
            after = key(rows[-1])

    def event_record(self, event: Event) -> EventRecord:
        """An event as this caller may see it."""
        return event_record(event, digests=self.principal.sees_bodies)

    def count_events(self, events: Sequence[Event]) -> None:
        """Count the memory of events that were read. [H45]"""
        self.memory.read(sum(map(_event_bytes, events)))

    def _kept(self, jobs: list[Job]) -> list[Job]:
        self.memory.read(sum(map(_job_bytes, jobs)))
        return jobs

    async def decide(self, commands: Sequence[Command], *, within: str = "") -> list[Answer]:
        """The coordinator's answers; the commands are carried out even if the caller has gone.
        `within` names the list that they came in, for errors that name a field."""

        def submit() -> "Future[list[Answer]]":
            try:
                return self.coordinator.submit_many(
                    commands, bodies_are_checked=self.bodies_are_checked
                )
            except InvalidInput as wrong:
                if not within:
                    raise
                raise _located(wrong, within, commands, self.coordinator.limits) from wrong

        future = await self.work(submit)
        return await asyncio.shield(asyncio.wrap_future(future))

    async def work(self, build: Callable[[], _M]) -> _M:
        """Run work whose cost grows with the request: on a thread unless it is small. [H39]"""
        return build() if self.is_small else await self.services.blocking(build)

    async def answer_about(self, build: Callable[[], object], jobs: int) -> Response:
        """A message about `jobs` jobs, without their bodies, as a response; a large one is encoded
        on a thread."""
        return answer(build()) if jobs <= JOBS_OF_SMALL_ANSWER else await self.large_answer(build)

    async def list_answer(
        self,
        reply: type[msgspec.Struct],
        record: Callable[[Any], Any],
        rows: Iterable[_Row],
        **more: Any,
    ) -> Response:
        """A reply whose first field has these rows as records, as a response."""
        first = reply.__struct_fields__[0]
        return await self.large_answer(lambda: reply(**{first: tuple(map(record, rows))}, **more))

    async def large_answer(self, build: Callable[[], object]) -> Response:
        """A large message as a response, built and encoded on a thread so that the event loop is
        not blocked."""

        def made() -> Message:
            message = Message(build())
            return message.encoded() if self.is_encoded else message

        return await self.services.blocking(made)


Handler = Callable[[ServerCall], Awaitable[Response]]
"""What answers the calls of one route."""


def _job_bytes(job: Job) -> int:
    """About how much memory a row takes."""
    bodies = (job.payload, job.checkpoint, job.result)
    errors = (job.error, job.last_error)
    return (
        ROW_BYTES
        + sum(len(body) for body in bodies if body is not None)
        + sum(map(_error_bytes, errors))
    )


def _event_bytes(event: Event) -> int:
    """About how much memory an event takes."""
    return ROW_BYTES + _error_bytes(event.payload.error)


def _error_bytes(error: JobError | None) -> int:
    return 0 if error is None else len(error.message) + len(error.traceback)


def _located(
    wrong: InvalidInput, within: str, commands: Sequence[Command], limits: Limits
) -> InvalidInput:
    """The same error, with the position of its command in the request."""
    for position, command in enumerate(commands):
        try:
            check_command(command, limits)
        except InvalidInput as found:
            field = f"{within}[{position}].{wire_field(found.field)}"
            return InvalidInput(field, found.problem, hint=found.hint)
    return wrong


class ResponseInPieces(Response):
    """A response that is sent piece by piece, waiting for each to be read, so that a slow reader
    costs the memory of one piece, not of the whole file."""

    holds_end_back = False
    """Whether `last` has something to do before the response ends."""

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Send it."""
        start = {"status": self.status_code, "headers": self.raw_headers}
        await send({"type": "http.response.start", **start})
        if len(self.body) <= PIECE_BYTES and not self.holds_end_back:
            await send({"type": "http.response.body", "body": self.body, "more_body": False})
            return
        body = memoryview(self.body)
        for begin in range(0, len(body), PIECE_BYTES):
            piece = bytes(body[begin : begin + PIECE_BYTES])
            await send({"type": "http.response.body", "body": piece, "more_body": True})
        await self.last(send)

    async def last(self, send: Send) -> None:
        """End the response."""
        await send({"type": "http.response.body", "body": b"", "more_body": False})


class Message(ResponseInPieces):
    """A message, sent as JSON once it is encoded. A page of this process takes it unencoded."""

    media_type = "application/json"

    def __init__(self, message: object, status: int = 200) -> None:
        self.message = message
        self.status_code = status
        self.background = None
        self.body = b""

    def encoded(self) -> "Message":
        """This message with its JSON, if it has none yet."""
        if not self.body:
            self.body = encode(self.message)
            self.init_headers()
        return self


def answer(message: object, status: int = 200) -> Response:
    """A small message as a response."""
    return Message(message, status)
