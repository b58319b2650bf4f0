"""Decorated functions: still callable as written, and enqueueable.

`enqueue` takes the function's own arguments and, beside them, options; `using(...)` takes the
options first, so that no name can mean two things and a type checker sees every argument. What a
checker sees is in `signatures`.
"""

import functools
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any, Generic, ParamSpec, TypeVar, Unpack, cast

import msgspec

from tenure.client.channel import Channel
from tenure.client.jobs import Job, refusal
from tenure.client.options import (
    INLINE_OPTION_NAMES,
    OPTION_NAMES,
    EnqueueOptions,
    check_known,
    naming_options,
    overrides_from,
    policy_from,
)
from tenure.client.signatures import takes_options, takes_own
from tenure.core.commands import Command, Enqueue
from tenure.core.ids import JobId, Kind, QueueName
from tenure.core.policy import Compensation, Policy
from tenure.core.verdicts import Answer, Reply
from tenure.errors import InvalidInput
from tenure.handlers.context import Call
from tenure.handlers.registry import Handler, Registry
from tenure.telemetry import tracing

P = ParamSpec("P")  # how the function is called
C = TypeVar("C")  # what a call returns: the result, or a coroutine of it
R = TypeVar("R")  # the job's result

COMPENSATION_PARAMETERS = ("job_id", "kind", "status", "payload")

CHUNK = 500
"""How many jobs of an `enqueue_many` are sent at once."""


class Prepared(Generic[R]):
    """A call that was checked and given its id, but not sent. Sending it twice makes one job."""

    def __init__(self, command: Enqueue, decode: Callable[[Kind, bytes], R]) -> None:
        self.command = command
        self.decode = decode

    @property
    def job_id(self) -> JobId:
        """The id the job will have."""
        return self.command.job_id

    def __repr__(self) -> str:
        return f"<Prepared {self.command.kind} {self.command.job_id}>"


class JobFunction(Generic[P, C, R]):
    """What `@app.job` makes of a function."""

    __name__: str
    __qualname__: str

    def __init__(
        self,
        function: Callable[P, C],
        *,
        handler: Handler,
        sender: "Sender",
        compensate: "str | JobFunction[..., Any, Any] | None" = None,
        inline_options: bool = True,
    ) -> None:
        functools.update_wrapper(self, function)
        self.handler = handler
        self.function = function
        self._sender = sender
        self._compensate = compensate
        self._inline_options = inline_options
        if inline_options:
            _refuse_collisions(handler)

    @property
    def kind(self) -> Kind:
        """The name under which its jobs are stored."""
        return self.handler.kind

    def __call__(self, *args: P.args, **kwargs: P.kwargs) -> C:
        """Call the function here and now, as if it were not decorated."""
        return self.function(*args, **kwargs)

    def __repr__(self) -> str:
        return f"<JobFunction {self.kind}>"

    @takes_options
    def enqueue(self, *args: Any, **kwargs: Any) -> Job[R]:
        """Make a job of this call. Options such as `key=`, `delay=` and `queue=` go beside the
        function's own arguments; `using(...)` keeps the two apart."""
        arguments, options = self._split(kwargs)
        return self._enqueue(args, arguments, options)

    @takes_options
    async def aenqueue(self, *args: Any, **kwargs: Any) -> Job[R]:
        """Make a job of this call, without blocking the loop."""
        arguments, options = self._split(kwargs)
        return await self._aenqueue(args, arguments, options)

    @takes_options
    def prepare(self, *args: Any, **kwargs: Any) -> Prepared[R]:
        """Check this call and give it an id, for `app.enqueue_many` to send."""
        arguments, options = self._split(kwargs)
        return self._prepare(args, arguments, options)

    @takes_options
    def call(self, *args: Any, **kwargs: Any) -> Call:
        """Check this call, for a handler to enqueue it: `ctx.enqueue(function.call(…))`."""
        arguments, options = self._split(kwargs)
        return self._call(args, arguments, options)

    def using(self, **options: Unpack[EnqueueOptions]) -> "Using[P, R]":
        """The same function with options set; what follows are its own arguments only."""
        check_known(dict(options), OPTION_NAMES)
        return Using(self, options)

    def enqueue_many(
        self, calls: Iterable[Mapping[str, Any] | Prepared[R]], **options: Unpack[EnqueueOptions]
    ) -> list[Job[R]]:
        """A job for each call: mappings of argument names to values, or prepared calls. Many at
        once are far cheaper than one by one; they are not one transaction."""
        prepared = self._prepare_all(calls, options)
        return self._sender.send(prepared, connection=options.get("connection"))

    async def aenqueue_many(
        self, calls: Iterable[Mapping[str, Any] | Prepared[R]], **options: Unpack[EnqueueOptions]
    ) -> list[Job[R]]:
        """A job for each call, without blocking the loop."""
        await self._sender.ready()
        prepared = self._prepare_all(calls, options)
        return await self._sender.asend(prepared, connection=options.get("connection"))

    # --- from a call to a command --------------------------------------------------------------

    def _split(self, kwargs: dict[str, Any]) -> tuple[dict[str, Any], EnqueueOptions]:
        if not self._inline_options:
            return kwargs, {}
        options = {name: kwargs.pop(name) for name in INLINE_OPTION_NAMES & kwargs.keys()}
        return kwargs, cast(EnqueueOptions, options)

    def _enqueue(
        self, args: tuple[Any, ...], arguments: dict[str, Any], options: EnqueueOptions
    ) -> Job[R]:
        prepared = self._prepare(args, arguments, options)
        [job] = self._sender.send([prepared], connection=options.get("connection"))
        return job

    async def _aenqueue(
        self, args: tuple[Any, ...], arguments: dict[str, Any], options: EnqueueOptions
    ) -> Job[R]:
        await self._sender.ready()
        prepared = self._prepare(args, arguments, options)
        [job] = await self._sender.asend([prepared], connection=options.get("connection"))
        return job

    def _prepare_all(
        self, calls: Iterable[Mapping[str, Any] | Prepared[R]], options: EnqueueOptions
    ) -> list[Prepared[R]]:
        check_known(dict(options), OPTION_NAMES)
        for name in ("key", "job_id"):
            if options.get(name) is not None:
                raise InvalidInput(
                    name,
                    "given once for many jobs, which would make them one",
                    hint=f"prepare each call with its own: {self.kind}.using({name}=…).prepare(…)",
                )
        return [
            call if isinstance(call, Prepared) else self._prepare((), dict(call), options)
            for call in calls
        ]

    def _prepare(
        self, args: tuple[Any, ...], arguments: dict[str, Any], options: EnqueueOptions
    ) -> Prepared[R]:
        return self.prepare_payload(self.handler.encode_arguments(args, arguments), options)

    def _call(
        self, args: tuple[Any, ...], arguments: dict[str, Any], options: EnqueueOptions
    ) -> Call:
        return self.call_payload(self.handler.encode_arguments(args, arguments), options)

    def call_payload(self, payload: bytes, options: EnqueueOptions) -> Call:
        """A call out of arguments that are already encoded."""
        refuse_own_id(options)
        return self._described(payload, options)

    def prepare_payload(self, payload: bytes, options: EnqueueOptions) -> Prepared[R]:
        """A prepared call out of arguments that are already encoded."""
        return self._sender.prepare(self._described(payload, options), options)

    def _described(self, payload: bytes, options: EnqueueOptions) -> Call:
        return call_of(
            kind=self.kind,
            payload=payload,
            queue=self.handler.queue,
            priority=self.handler.priority,
            policy=self._policy(),
            options=options,
        )

    def _policy(self) -> Policy:
        """The kind's policy with its compensation, which may be defined after this function."""
        if self._compensate is None:
            return self.handler.policy
        return self._sender.compensated(self.handler, self._compensate)


def _refuse_collisions(handler: Handler) -> None:
    taken = sorted(INLINE_OPTION_NAMES & handler.signature.all_parameters.keys())
    if taken:
        name = taken[0]
        raise InvalidInput(
            handler.signature.name,
            f"its parameter {name} has the name of an option of enqueue",
            hint=f"rename the parameter, or decorate with inline_options=False and give options "
            f"by {handler.kind}.using({name}=…).enqueue(…)",
        )


def check_compensation(handler: Handler) -> None:
    """Raise `InvalidInput` unless the function takes what a compensation is told. [M1]"""
    missing = [name for name in COMPENSATION_PARAMETERS if name not in handler.parameters]
    if missing:
        raise InvalidInput(
            handler.signature.name,
            f"is to compensate, but has no parameter {missing[0]}",
            hint=f"it is called with {', '.join(COMPENSATION_PARAMETERS)}",
        )


class Using(Generic[P, R]):
    """A function with its options set: every argument of `enqueue` is the function's own."""

    def __init__(self, job_function: JobFunction[P, Any, R], options: EnqueueOptions) -> None:
        self.function = job_function.function
        self._job_function = job_function
        self._options = options

    def using(self, **options: Unpack[EnqueueOptions]) -> "Using[P, R]":
        """More options; the later ones count."""
        check_known(dict(options), OPTION_NAMES)
        return Using(self._job_function, cast(EnqueueOptions, {**self._options, **options}))

    @takes_own
    def enqueue(self, *args: Any, **kwargs: Any) -> Job[R]:
        """Make a job of this call."""
        return self._job_function._enqueue(args, kwargs, self._options)

    @takes_own
    async def aenqueue(self, *args: Any, **kwargs: Any) -> Job[R]:
        """Make a job of this call, without blocking the loop."""
        return await self._job_function._aenqueue(args, kwargs, self._options)

    @takes_own
    def prepare(self, *args: Any, **kwargs: Any) -> Prepared[R]:
        """Check this call and give it an id, for `app.enqueue_many` to send."""
        return self._job_function._prepare(args, kwargs, self._options)

    @takes_own
    def call(self, *args: Any, **kwargs: Any) -> Call:
        """Check this call, for a handler to enqueue it: `ctx.enqueue(function.call(…))`."""
        return self._job_function._call(args, kwargs, self._options)


def call_of(
    *,
    kind: Kind,
    payload: bytes,
    queue: QueueName,
    priority: int,
    policy: Policy,
    options: EnqueueOptions,
) -> Call:
    """A call with its options, which go before what its kind says."""
    with naming_options():
        said = overrides_from(options)
        policy = policy_from(options, policy)
    traced = tracing.enqueued(kind, said.queue or queue)
    return Call(
        queue=said.queue or queue,
        kind=kind,
        payload=payload,
        priority=priority if said.priority is None else said.priority,
        delay_us=said.delay_us,
        run_at=said.run_at,
        dedupe_key=said.key,
        correlation_id=said.correlation_id or traced.correlation_id,
        trace_id=said.trace_id or traced.traceparent,
        policy=policy,
    )


def refuse_own_id(options: EnqueueOptions) -> None:
    """Raise for what a job that a handler enqueues cannot have."""
    if options.get("job_id") is not None:
        problem = "the id of a job that a handler enqueues follows from the handler's own job"
        raise InvalidInput("job_id", problem, hint="leave it out")
    if options.get("connection") is not None:
        raise InvalidInput(
            "connection",
            "the worker enqueues this job, not this process",
            hint="in a transaction of your own write function.enqueue(…, connection=…)",
        )


class Sender:
    """From prepared calls to handles. Shared by an application's functions."""

    def __init__(self, channel: Channel, registry: Registry) -> None:
        self._channel = channel
        self._registry = registry

    async def ready(self) -> None:
        """Have the link open, so that nothing after it blocks the loop."""
        await self._channel.alink()

    def decode(self, kind: Kind, body: bytes) -> Any:
        """A result, typed if the kind is known here."""
        handler = self._registry.get(kind)
        return msgspec.json.decode(body) if handler is None else handler.decode_result(body)

    def compensated(
        self, handler: Handler, compensate: "str | JobFunction[..., Any, Any]"
    ) -> Policy:
        """`handler`'s policy naming what undoes it; a kind unknown here runs in the same queue
        under the default policy."""
        if isinstance(compensate, JobFunction):
            other: Handler | None = compensate.handler
        else:
            other = self._registry.get(Kind(compensate))
        if other is not None:
            check_compensation(other)
        undo = Compensation(
            kind=Kind(compensate) if isinstance(compensate, str) else compensate.kind,
            queue=handler.queue if other is None else other.queue,
            policy=Policy() if other is None else other.policy,
        )
        return msgspec.structs.replace(handler.policy, compensation=undo)

    def prepare(self, call: Call, options: EnqueueOptions) -> Prepared[Any]:
        """A command with an id, ready to be sent any number of times."""
        self._channel.link()  # ids are dated by the store's clock
        job_id = options.get("job_id")
        command = Enqueue(
            job_id=self._channel.new_job_id() if job_id is None else JobId(str(job_id)),
            namespace=self._channel.namespace,
            actor=self._channel.actor,
            **msgspec.structs.asdict(call),
        )
        return Prepared(command, self.decode)

    def send(self, prepared: Sequence[Prepared[R]], *, connection: Any = None) -> list[Job[R]]:
        """Enqueue all of them, `CHUNK` at a time, or within the caller's transaction."""
        jobs: list[Job[R]] = []
        for chunk in _chunks(prepared):
            with naming_options():
                answers: Sequence[Answer]
                if connection is None:
                    answers = self._channel.send(_commands(chunk))
                else:
                    link = self._channel.link()
                    answers = link.enqueue_within(connection, [each.command for each in chunk])
            jobs += self._handles(chunk, answers)
        return jobs

    async def asend(
        self, prepared: Sequence[Prepared[R]], *, connection: Any = None
    ) -> list[Job[R]]:
        """Enqueue all of them without blocking the loop."""
        jobs: list[Job[R]] = []
        for chunk in _chunks(prepared):
            with naming_options():
                answers: Sequence[Answer]
                if connection is None:
                    answers = await self._channel.asend(_commands(chunk))
                else:
                    link = await self._channel.alink()
                    commands = [each.command for each in chunk]
                    answers = await link.aenqueue_within(connection, commands)
            jobs += self._handles(chunk, answers)
        return jobs

    def _handles(self, prepared: Sequence[Prepared[R]], answers: Sequence[Answer]) -> list[Job[R]]:
        jobs = []
        for each, answer in zip(prepared, answers, strict=True):
            assert isinstance(answer, Reply)
            if answer.cause is not None or answer.job is None:
                raise refusal(each.job_id, answer)
            jobs.append(
                Job(
                    self._channel,
                    answer.job.id,
                    record=answer.job,
                    decode=each.decode,
                    deduplicated=answer.deduplicated,
                )
            )
        return jobs


def _commands(prepared: Sequence[Prepared[Any]]) -> list[Command]:
    return [each.command for each in prepared]


def _chunks(prepared: Sequence[Prepared[R]]) -> Iterable[Sequence[Prepared[R]]]:
    return (prepared[start : start + CHUNK] for start in range(0, len(prepared), CHUNK))
