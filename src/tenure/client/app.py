"""The application: the functions that are jobs, and the connection to their coordinator.

Importing a module and decorating a function open nothing: the first call that needs the coordinator
connects to it. `tenure.app` says to which one.
"""

import asyncio
import inspect
from collections.abc import AsyncIterator, Awaitable, Callable, Coroutine, Iterable, Mapping
from contextlib import asynccontextmanager
from types import FrameType
from typing import Any, Literal, ParamSpec, Self, TypeVar, Unpack, overload

from tenure.client.administration import ApplicationViews, DeadLetters, Jobs, Kinds, Queues, Workers
from tenure.client.channel import Channel, Link
from tenure.client.flows import Flow, Flows, chain_of
from tenure.client.functions import (
    Definition,
    JobFunction,
    Sender,
    check_compensation,
    check_dead_letter_job,
    spec_of,
)
from tenure.client.jobs import Job
from tenure.client.schedules import Schedules
from tenure.client.shells import Operation, awaiting, blocking
from tenure.core.checks import check_job_id, check_name
from tenure.core.commands import Complete, Enqueue, JobSpec
from tenure.core.ids import DEFAULT_QUEUE, JobId, Kind, Namespace
from tenure.core.policy import Policy
from tenure.core.rates import Rate, parse_rate
from tenure.core.verdicts import Verdict
from tenure.errors import InvalidInput, ValidationError
from tenure.handlers.calls import Call
from tenure.handlers.hooks import AnyHook
from tenure.handlers.options import (
    OPTION_NAMES,
    SCHEDULE_OPTION_NAMES,
    CatchUpWord,
    EnqueueOptions,
    OverlapWord,
    PolicyOptions,
    ScheduleOptions,
    Span,
    called,
    called_schedule,
    check_known,
    meta_from,
    naming_options,
    plain,
    policy_from,
    positive_duration,
    queue_name,
    schedule_name,
    schedule_spec,
    word,
)
from tenure.handlers.registry import Handler, Isolation, KeySource, Registry, make_handler
from tenure.ports import Coordination, Scope, Transactions

P = ParamSpec("P")
R = TypeVar("R")
H = TypeVar("H", bound=AnyHook)


class JobOptions(PolicyOptions, total=False):
    """What `@app.job` takes."""

    name: str
    isolation: Literal["process", "async", "thread"] | Isolation
    concurrency: int
    concurrency_key: KeySource
    concurrency_limit: int
    rate: str
    burst: int
    rate_key: KeySource
    compensate: str | JobFunction[..., Any, Any]
    on_dead_letter: str | JobFunction[..., Any, Any]
    schedule: str
    tz: str
    every: Span
    catch_up: CatchUpWord
    overlap: OverlapWord
    jitter: Span


JOB_OPTION_NAMES = frozenset(JobOptions.__annotations__)
_TIMING = SCHEDULE_OPTION_NAMES - {"cron"}


class Application(ApplicationViews):
    """Job functions by kind, and a connection that is opened when needed. See `tenure.Tenure`."""

    def __init__(self, connect: Callable[[], Link], *, namespace: str, name: str) -> None:
        namespace, name = plain(namespace), plain(name)
        check_name("namespace", namespace)
        check_name("name", name)
        self.registry = Registry()
        self.namespace = Namespace(namespace)
        self.channel = Channel(connect, namespace=self.namespace, name=name)
        self._sender = Sender(self.channel, self.registry)
        self.jobs = Jobs(self.channel)
        self.queues = Queues(self.channel)
        self.kinds = Kinds(self.channel, self._declared_kinds)
        self.workers = Workers(self.channel)
        self.schedules = Schedules(self.channel, self._sender)
        self.flows = Flows(self.channel)
        self.dead_letters = DeadLetters(self.channel, self._sender)
        self._definitions: dict[Kind, Definition] = {}

    def _declared_kinds(self) -> set[Kind]:
        """The kinds of the application."""
        return set(self.registry.kinds())

    @property
    def coordination(self) -> Coordination:
        """The coordinator; connects to it first if necessary."""
        return self.channel.link().coordination

    def close(self) -> None:
        """Close the connection. A later call opens a new one."""
        self.channel.close()

    # --- for a worker's child, which completes a job in the handler's own transaction ------------

    def _transactions(self) -> Transactions:
        return self.channel.link().transactions

    def transaction_on(self, connection: Any) -> Scope:
        """A transaction on a connection to this application's database; see `ctx.transaction`."""
        return self._transactions().transaction_on(connection)

    @asynccontextmanager
    async def atransaction_on(
        self, connection: Any
    ) -> AsyncIterator[Callable[[Complete], Awaitable[Verdict]]]:
        """`transaction_on` for an asynchronous connection."""
        own = await asyncio.to_thread(self._transactions)
        async with own.atransaction_on(connection) as settle:
            yield settle

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    # --- declaring -----------------------------------------------------------------------------

    @overload
    def job(
        self, function: Callable[P, Coroutine[Any, Any, R]], /
    ) -> JobFunction[P, Coroutine[Any, Any, R], R]: ...
    @overload
    def job(self, function: Callable[P, R], /) -> JobFunction[P, R, R]: ...
    @overload
    def job(self, /, **options: Unpack[JobOptions]) -> "JobDecorator": ...
    def job(self, function: Any = None, /, **options: Unpack[JobOptions]) -> Any:
        """Make a function a job, with or without options.

        Its kind is the function's own name, without the module. With `name=`, jobs that are stored
        already stay valid when the function is renamed or moved.
        """
        check_known(dict(options), JOB_OPTION_NAMES, of="@app.job", elsewhere=OPTION_NAMES)
        decorator = JobDecorator(self, options)
        if function is None:
            return decorator
        return decorator.decorate(function, inspect.currentframe())

    def around_attempt(self, function: H, /) -> H:
        """Run this around every attempt of every job of this application, in the worker's child.

        `function` takes the `Attempt` and returns a context manager, or is a generator with one
        `yield`; both may be asynchronous. The hook that is declared first is the outermost one.
        """
        self.registry.add_hook(function)
        return function

    def _add(
        self, function: Callable[..., Any], options: JobOptions, local_names: Mapping[str, Any]
    ) -> JobFunction[..., Any, Any]:
        compensate = _named_job(options, "compensate", check_compensation)
        on_dead_letter = _named_job(options, "on_dead_letter", check_dead_letter_job)
        isolation = options.get("isolation")
        with naming_options():
            queue = queue_name("queue", options.get("queue", DEFAULT_QUEUE))
            policy = policy_from(options, Policy())
            expires = options.get("expires")
            expires_us = None if expires is None else positive_duration("expires", expires)
            meta = meta_from("meta", options["meta"]) if "meta" in options else None
        handler = make_handler(
            function,
            kind=plain(options.get("name")),
            queue=queue,
            policy=policy,
            isolation=None if isolation is None else word("isolation", Isolation, isolation),
            priority=options.get("priority", 0),
            concurrency=_concurrency(options),
            concurrency_key=options.get("concurrency_key"),
            concurrency_limit=options.get("concurrency_limit"),
            expires_us=expires_us,
            meta=meta,
            rate=_rate(options),
            rate_key=options.get("rate_key"),
            local_names=local_names,
        )
        if options.get("name") is None and handler.kind == "<lambda>":
            raise InvalidInput("name", "a lambda has none", hint='give it a name: name="…"')
        check_name("name", handler.kind)
        if on_dead_letter == handler.kind:
            raise InvalidInput(
                "on_dead_letter", f"{handler.kind} names itself", hint="name another kind"
            )
        definition = Definition(handler, self._sender, compensate, on_dead_letter)
        timing = _timing(options)
        job: JobFunction[..., Any, Any] = JobFunction(function, definition)
        if timing is not None:
            _check_timing(job, timing)
            name = schedule_name(handler.kind)
            self.registry.declare(name, lambda: schedule_spec(_call_of(job), timing))
        self.registry.add(handler)
        self._definitions[handler.kind] = definition
        return job

    def schedule(self, name: str, call: Call[Any], /, **options: Unpack[ScheduleOptions]) -> None:
        """Declare a schedule: `schedule("nightly", report.call(full=True), cron="15 3 * * *",
        tz="Europe/Berlin")`. A worker that starts writes it if the store has never had one of this
        name; `tenure schedules sync` writes every change."""
        spec = called_schedule(call, options, of="app.schedule()")
        self.registry.declare(schedule_name(name), lambda: spec)

    # --- enqueueing and finding ----------------------------------------------------------------

    @blocking
    def enqueue(
        self, kind: str, payload: Any = None, /, **options: Unpack[EnqueueOptions]
    ) -> Operation[Job[Any]]:
        """A job of a kind that need not be defined here; its payload is checked only if it is."""
        return self._sender.enqueuing(self._spec(kind, payload, options), options)

    aenqueue = awaiting(enqueue)

    def call(
        self, kind: str, payload: Any = None, /, **options: Unpack[EnqueueOptions]
    ) -> Call[Any]:
        """Check a call of a kind that need not be defined here, for `enqueue_many` or a handler's
        `ctx.enqueue`."""
        return self._sender.call(self._spec(kind, payload, options), options)

    def command(self, call: Call[Any]) -> Enqueue:
        """What `enqueue_many` would send for a call."""
        return self._sender.command(call)

    def _spec(self, kind: str, payload: Any, options: EnqueueOptions) -> JobSpec:
        check_known(dict(options), OPTION_NAMES, of="app.enqueue()")
        kind = plain(kind)
        check_name("kind", kind)
        body = self._sender.checked_payload(Kind(kind), payload)
        known = self._definitions.get(Kind(kind))
        if known is not None:
            return known.spec(body, options)
        return spec_of(JobSpec(kind=Kind(kind), queue=DEFAULT_QUEUE, payload=body), options)

    @blocking
    def enqueue_many(
        self, calls: Iterable[Call[R]], *, connection: Any = None, notify: bool = False
    ) -> Operation[list[Job[R]]]:
        """A job for each call: `enqueue_many(f.call(n) for n in numbers)`. Far cheaper than one by
        one; one transaction only if it is yours, by `connection`. With `notify` your commit also
        tells waiting workers; on PostgreSQL such commits wait for each other."""
        commands = map(self._sender.command, list(calls))
        return self._sender.sending(commands, connection, notify=notify)

    aenqueue_many = awaiting(enqueue_many)

    def flow(self, name: str, *, connection: Any = None) -> Flow:
        """Jobs that wait for other jobs: `with app.flow("import") as flow: flow.add(…, after=…)`.
        All of them are made in one transaction when the block ends, or in yours, by `connection`.
        """
        return Flow(self._sender, name, connection)

    @blocking
    def chain(self, *calls: Call[Any], name: str = "chain") -> Operation[Flow]:
        """A flow in which each job waits for the one before it."""
        return chain_of(self.flow(name), calls).sending()

    achain = awaiting(chain)

    def get(self, job_id: str) -> Job[Any]:
        """A handle on a job. Asks nothing yet: an unknown id is noticed at the first question."""
        check_job_id("job_id", job_id)
        return Job(self.channel, JobId(job_id), decode=self._sender.decode)


class JobDecorator:
    """`@app.job(...)`: the options, without the function yet."""

    def __init__(self, app: Application, options: JobOptions) -> None:
        self._app = app
        self._options = options

    @overload
    def __call__(
        self, function: Callable[P, Coroutine[Any, Any, R]], /
    ) -> JobFunction[P, Coroutine[Any, Any, R], R]: ...
    @overload
    def __call__(self, function: Callable[P, R], /) -> JobFunction[P, R, R]: ...
    def __call__(self, function: Any, /) -> Any:
        """Decorate."""
        return self.decorate(function, inspect.currentframe())

    def decorate(
        self, function: Callable[..., Any], frame: FrameType | None
    ) -> JobFunction[..., Any, Any]:
        """Make the job function. `frame` is that of the decorator: its caller's local names are
        needed to resolve text annotations of a function that is defined inside another one."""
        local_names: Mapping[str, Any] = {}
        is_nested = "<locals>" in str(getattr(function, "__qualname__", ""))
        if is_nested and frame is not None and frame.f_back is not None:
            local_names = frame.f_back.f_locals
        return self._app._add(function, self._options, local_names)


def _concurrency(options: JobOptions) -> int | None:
    most = options.get("concurrency")
    if most is not None and (type(most) is not int or most < 1):
        raise InvalidInput("concurrency", f"{str(most)[:40]!a} is not a number of jobs from 1 up")
    return most


def _rate(options: JobOptions) -> Rate | None:
    if "rate" not in options:
        if "burst" in options:
            raise InvalidInput("burst", "belongs to a rate", hint='give rate="10/s" too')
        if options.get("rate_key") is not None:
            raise InvalidInput("rate_key", "belongs to a rate", hint='give rate="10/s" too')
        return None
    return parse_rate("rate", plain(options["rate"]), options.get("burst"))


def _timing(options: JobOptions) -> ScheduleOptions | None:
    """The schedule of a kind, if its options declare one."""
    given: Any = {name: value for name, value in options.items() if name in _TIMING}
    if "schedule" in options:
        given["cron"] = options["schedule"]
    if given and not given.keys() & {"cron", "every"}:
        raise InvalidInput(
            next(iter(given)),
            "is about a schedule, and none is given",
            hint="add schedule= or every=",
        )
    return given or None


def _check_timing(job: JobFunction[..., Any, Any], timing: ScheduleOptions) -> None:
    """Refuse at decoration what could only fail when a worker starts. The arguments too, unless
    an annotation names what is defined later."""
    handler = job.handler
    schedule_spec(_call_of(job) if handler.signature.is_resolved else handler.spec, timing)


def _call_of(job: JobFunction[..., Any, Any]) -> JobSpec:
    """The job that the schedule of a kind makes: a call without arguments."""
    try:
        call: Call[Any] = job.call()
    except ValidationError as wrong:
        raise InvalidInput(
            "schedule",
            f"calls the function without arguments: {wrong}",
            hint="give them defaults, or use app.schedule(name, function.call(…), cron=…)",
        ) from wrong
    return called(call)


def _named_job(
    options: JobOptions,
    option: Literal["compensate", "on_dead_letter"],
    check: Callable[[Handler], None],
) -> str | JobFunction[..., Any, Any] | None:
    """The job that an option names, by its kind or its function."""
    wanted = options.get(option)
    if isinstance(wanted, str):
        wanted = str.__str__(wanted)
        check_name(option, wanted)
    elif wanted is not None and not isinstance(wanted, JobFunction):
        raise InvalidInput(
            option, "is neither a kind nor a job", hint="decorate the function first"
        )
    elif wanted is not None:
        check(wanted.handler)
    return wanted
