"""Job functions: still callable as written, and enqueueable.

`enqueue` takes exactly the function's own arguments, so that type checkers compare them with its
signature. Options go to `using(...)`, so that no name can mean two things. [ADR 0034]
"""

import functools
import logging
from collections.abc import Callable, Iterable, Sequence
from itertools import islice
from typing import (
    TYPE_CHECKING,
    Any,
    Concatenate,
    Generic,
    Never,
    ParamSpec,
    Protocol,
    TypeAlias,
    TypeVar,
    Unpack,
    cast,
    overload,
)

import msgspec

from tenure.client.channel import Channel
from tenure.client.jobs import Job, refusal
from tenure.client.shells import Operation, Wait, arun, run
from tenure.core.commands import Enqueue, EnqueueFlow, JobSpec
from tenure.core.ids import JobId, Kind
from tenure.core.job import Job as StoredJob
from tenure.core.policy import Compensation, DeadLetterJob, Policy, policy_in_words
from tenure.core.verdicts import Answer, Reply
from tenure.errors import InvalidInput
from tenure.handlers.calls import Call
from tenure.handlers.context import Context
from tenure.handlers.json_values import encode
from tenure.handlers.options import (
    OPTION_NAMES,
    EnqueueOptions,
    as_option,
    check_known,
    naming_options,
    overrides_from,
    policy_from,
)
from tenure.handlers.registry import Handler, Registry
from tenure.telemetry import tracing

P = ParamSpec("P")  # how the function is called
E = ParamSpec("E")  # how it is enqueued, if the context is its first parameter
C = TypeVar("C")  # what calling it returns: the result, or a coroutine of it
R = TypeVar("R")  # the job's result

DEAD_LETTER_PARAMETER = "record"
COMPENSATION_PARAMETERS = ("job_id", "kind", "status", "payload")

CHUNK = 1000
"""How many jobs of an `enqueue_many` are sent at once: as many as a coordinator decides at once."""


# --- What type checkers see of the context -------------------------------------------------------
#
# They can take the first parameter out of a signature, and no other one. So where the context comes
# first, they compare the other arguments of `enqueue`; elsewhere, only Tenure does, at run time.


class _KeywordContext0(Protocol):
    def __call__(self, *, ctx: Context) -> Any: ...


class _KeywordContext1(Protocol):
    def __call__(self, first: Any, /, *, ctx: Context) -> Any: ...


class _KeywordContext2(Protocol):
    def __call__(self, first: Any, second: Any, /, *, ctx: Context) -> Any: ...


class _KeywordContext3(Protocol):
    def __call__(self, first: Any, second: Any, third: Any, /, *, ctx: Context) -> Any: ...


_ContextElsewhere: TypeAlias = (
    Callable[Concatenate[Any, Context, ...], Any]
    | Callable[Concatenate[Any, Any, Context, ...], Any]
    | Callable[Concatenate[Any, Any, Any, Context, ...], Any]
    | Callable[Concatenate[Any, Any, Any, Any, Context, ...], Any]
    | Callable[Concatenate[Any, Any, Any, Any, Any, Context, ...], Any]
    | _KeywordContext0
    | _KeywordContext1
    | _KeywordContext2
    | _KeywordContext3
)


class _TakesContextFirst(Protocol[E]):
    @property
    def function(self) -> Callable[Concatenate[Context, E], Any]: ...


class _TakesContextElsewhere(Protocol):
    @property
    def function(self) -> _ContextElsewhere: ...


# --- Functions -----------------------------------------------------------------------------------


INSTEAD_OF = {
    "delay": "use enqueue(…)",
    "apply_async": "use enqueue(…), with options using(queue=…, delay=…).enqueue(…)",
    "s": "use call(…)",
    "si": "use call(…)",
    "signature": "use call(…)",
}
"""What replaces the methods of Celery's tasks."""


class Enqueueable(Generic[P, R]):
    """A job function with the options of its next jobs: what `using(...)` returns."""

    def __init__(
        self, definition: "Definition", function: Callable[P, Any], options: EnqueueOptions
    ) -> None:
        self._definition = definition
        self._function = function
        self._options = options

    @property
    def function(self) -> Callable[P, Any]:
        """The function as it was written."""
        return self._function

    @property
    def kind(self) -> Kind:
        """The name under which its jobs are stored."""
        return self._definition.handler.kind

    def using(self, **options: Unpack[EnqueueOptions]) -> "Enqueueable[P, R]":
        """The same function with options for its jobs: `using(key="x", delay="5m").enqueue(…)`.
        If an option is given twice, the later value counts."""
        check_known(dict(options), OPTION_NAMES, of="using()")
        merged = cast(EnqueueOptions, {**self._options, **options})
        return Enqueueable(self._definition, self._function, merged)

    @overload
    def enqueue(self: _TakesContextFirst[E], *args: E.args, **kwargs: E.kwargs) -> Job[R]: ...
    @overload
    def enqueue(self: _TakesContextElsewhere, *args: Any, **kwargs: Any) -> Job[R]: ...
    @overload
    def enqueue(self, *args: P.args, **kwargs: P.kwargs) -> Job[R]: ...
    def enqueue(self, *args: Any, **kwargs: Any) -> Job[R]:
        """Make a job of this call. Takes the function's own arguments, without the context."""
        spec = self._spec("enqueue", args, kwargs)
        return self._definition.sender.enqueue(spec, self._options)

    @overload
    async def aenqueue(
        self: _TakesContextFirst[E], *args: E.args, **kwargs: E.kwargs
    ) -> Job[R]: ...
    @overload
    async def aenqueue(self: _TakesContextElsewhere, *args: Any, **kwargs: Any) -> Job[R]: ...
    @overload
    async def aenqueue(self, *args: P.args, **kwargs: P.kwargs) -> Job[R]: ...
    async def aenqueue(self, *args: Any, **kwargs: Any) -> Job[R]:
        """`enqueue` for async code."""
        spec = self._spec("aenqueue", args, kwargs)
        return await arun(self._definition.sender.enqueuing(spec, self._options))

    @overload
    def call(self: _TakesContextFirst[E], *args: E.args, **kwargs: E.kwargs) -> Call[R]: ...
    @overload
    def call(self: _TakesContextElsewhere, *args: Any, **kwargs: Any) -> Call[R]: ...
    @overload
    def call(self, *args: P.args, **kwargs: P.kwargs) -> Call[R]: ...
    def call(self, *args: Any, **kwargs: Any) -> Call[R]:
        """Check this call without sending it, for `app.enqueue_many` or a handler's
        `ctx.enqueue`."""
        spec = self._spec("call", args, kwargs)
        return self._definition.sender.call(spec, self._options)

    if not TYPE_CHECKING:  # a type checker would believe that every attribute exists

        def __getattr__(self, name: str) -> Never:
            """Raise `AttributeError`; for a method of Celery's it says what to use instead."""
            said = f"{type(self).__name__!r} object has no attribute {name!r}"
            hint = INSTEAD_OF.get(name)
            raise AttributeError(f"{said}; {hint}" if hint else said, name=name, obj=self)

    def _spec(self, method: str, args: tuple[Any, ...], kwargs: dict[str, Any]) -> JobSpec:
        handler = self._definition.handler
        if kwargs:
            _refuse_options(handler, method, kwargs)
        return self._definition.spec(handler.encode_arguments(args, kwargs), self._options)


class JobFunction(Enqueueable[P, R], Generic[P, C, R]):
    """What `@app.job` makes of a function."""

    __name__: str
    __qualname__: str

    def __init__(self, function: Callable[P, C], definition: "Definition") -> None:
        super().__init__(definition, function, {})
        functools.update_wrapper(self, function)
        self.handler = definition.handler

    def __call__(self, *args: P.args, **kwargs: P.kwargs) -> C:
        """Call the function here and now, as if it were not decorated."""
        return cast(C, self._function(*args, **kwargs))

    def __repr__(self) -> str:
        return f"<JobFunction {self.kind}>"


def _refuse_options(handler: Handler, method: str, kwargs: dict[str, Any]) -> None:
    options = [name for name in kwargs if name in OPTION_NAMES and name not in handler.parameters]
    if options:
        given = ", ".join(f"{name}=…" for name in options)
        name = handler.signature.name.rpartition(".")[2]
        raise InvalidInput(
            options[0],
            f"is an option of the job, and {name} has no parameter of that name",
            hint=f"use {name}.using({given}).{method}(…)",
        )


def check_compensation(handler: Handler) -> None:
    """Raise `InvalidInput` unless the function takes the arguments of a compensation. [M1]"""
    missing = [name for name in COMPENSATION_PARAMETERS if name not in handler.parameters]
    if missing:
        raise InvalidInput(
            handler.signature.name,
            f"compensates another job, but has no parameter {missing[0]}",
            hint=f"a compensation is called with {', '.join(COMPENSATION_PARAMETERS)}",
        )


def check_dead_letter_job(handler: Handler) -> None:
    """Raise `InvalidInput` unless the function takes the record of a dead letter. [HK9]"""
    if DEAD_LETTER_PARAMETER not in handler.parameters:
        raise InvalidInput(
            handler.signature.name,
            f"is named by on_dead_letter, but has no parameter {DEAD_LETTER_PARAMETER}",
            hint=f"it is called with {DEAD_LETTER_PARAMETER}, the record of the dead letter",
        )


class Definition:
    """A function's handler, what its end enqueues, and the way its jobs are sent."""

    def __init__(
        self,
        handler: Handler,
        sender: "Sender",
        compensate: "str | JobFunction[..., Any, Any] | None" = None,
        on_dead_letter: "str | JobFunction[..., Any, Any] | None" = None,
    ) -> None:
        self.handler = handler
        self.sender = sender
        self._compensate = compensate
        self._on_dead_letter = on_dead_letter
        self._prepared: JobSpec | None = None

    def spec(self, payload: bytes, options: EnqueueOptions) -> JobSpec:
        """A job with this payload."""
        spec = self._prepared or self._prepare()
        keys = self.handler.keys_of(payload) if self.handler.has_keys else {}
        return spec_of(msgspec.structs.replace(spec, payload=payload, **keys), options)

    def _prepare(self) -> JobSpec:
        """What all jobs of the kind have in common. Not before the first of them: what it names may
        be defined after its function, and is looked for again as long as it is unknown."""
        spec, is_whole = self.handler.spec, True
        if self._compensate is not None:
            policy, is_whole = self.sender.compensated(self.handler, self._compensate)
            spec = msgspec.structs.replace(spec, policy=policy)
        if self._on_dead_letter is not None:
            job = self.sender.dead_letter_job(self._on_dead_letter)
            spec = msgspec.structs.replace(spec, on_dead_letter=job)
        if is_whole:
            self._prepared = spec
        return spec


_DEFAULT_POLICY = Policy()
_log = logging.getLogger("tenure.client")
MAX_UNDECLARED = 1000
"""How many kinds one process warns of."""


def spec_of(kind: JobSpec, options: EnqueueOptions) -> JobSpec:
    """A job of a kind; options override what the kind says, and add to its `meta`."""
    said, policy = {}, kind.policy
    if options:
        with naming_options():
            said = overrides_from(options)
            if kind.meta and "meta" in said:
                said["meta"] = kind.meta | (said["meta"] or {})
            base = policy or _DEFAULT_POLICY
            stated = policy_from(options, base)
        if stated is not base:  # otherwise a kind that is unknown here keeps what workers declare
            policy = stated
    traced = tracing.enqueue_span(kind.kind, said.get("queue", kind.queue))
    if traced is tracing.NO_TRACE and not options:
        return kind  # as in most calls
    defaults = {"correlation_id": traced.correlation_id, "trace_id": traced.trace_id}
    return msgspec.structs.replace(kind, policy=policy, **{**defaults, **said})


# --- Sending -------------------------------------------------------------------------------------


class Sender:
    """Sends calls and returns handles on their jobs. An application's functions share one."""

    def __init__(self, channel: Channel, registry: Registry) -> None:
        self._channel = channel
        self._registry = registry
        self._undeclared: set[Kind] = set()  # kinds that a warning was logged about

    @property
    def channel(self) -> Channel:
        """The way to the coordinator."""
        return self._channel

    def decode(self, kind: Kind, body: bytes) -> Any:
        """A result, typed if the kind is known here."""
        handler = self._registry.get(kind)
        return msgspec.json.decode(body) if handler is None else handler.decode_result(body)

    def checked_payload(self, kind: Kind, payload: Any) -> bytes:
        """A payload as JSON, checked against the parameters of the function if it is known."""
        body = encode(payload, what="payload")
        handler = self._registry.get(kind)
        if handler is not None:
            handler.decode_arguments(body)
        return body

    def compensated(
        self, handler: Handler, compensate: "str | JobFunction[..., Any, Any]"
    ) -> tuple[Policy, bool]:
        """`handler`'s policy naming what undoes it, and whether that is known here. A kind unknown
        here runs in the same queue under the default policy."""
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
        return msgspec.structs.replace(handler.policy, compensation=undo), other is not None

    def dead_letter_job(self, named: "str | JobFunction[..., Any, Any]") -> DeadLetterJob:
        """What is enqueued for a dead letter. Its function may be defined after the one that names
        it, but must be known here: an error now is better than an unreported dead letter."""
        kind = Kind(named) if isinstance(named, str) else named.kind
        handler = self._registry.get(kind)
        if handler is None:
            raise InvalidInput(
                "on_dead_letter",
                f"this application has no kind {kind}",
                hint="declare its function in this application, or correct the name",
            )
        check_dead_letter_job(handler)
        return DeadLetterJob(kind=kind, queue=handler.queue, policy=handler.policy)

    def call(self, spec: JobSpec, options: EnqueueOptions) -> Call[Any]:
        """A call with an id. Opens no link: a handler makes calls where there is none."""
        if options.get("connection") is not None:
            raise InvalidInput(
                "connection",
                "a call is not sent yet",
                hint="use function.using(connection=…).enqueue(…), or app.enqueue_many(…,"
                " connection=…)",
            )
        has_chosen_id = options.get("job_id") is not None
        return Call(spec, self._job_id(options), has_chosen_id=has_chosen_id)

    def _job_id(self, options: EnqueueOptions) -> JobId:
        chosen = options.get("job_id")
        return self._channel.new_job_id() if chosen is None else JobId(str(chosen))

    def command(self, call: Call[Any]) -> Enqueue:
        """What is sent for a call; the same each time."""
        return self._command(call.spec, call.job_id)

    def _command(self, spec: JobSpec, job_id: JobId) -> Enqueue:
        return Enqueue(
            job_id=job_id,
            namespace=self._channel.namespace,
            actor=self._channel.actor,
            **msgspec.structs.asdict(spec),
        )

    def enqueue(self, spec: JobSpec, options: EnqueueOptions) -> Job[Any]:
        """`enqueuing` in this thread. Without generators: no call is made as often as this one."""
        if "connection" in options or "notify" in options:
            return run(self.enqueuing(spec, options))
        link = self._channel.link()  # first: new ids are dated by the store's clock
        command = self._command(spec, self._job_id(options))
        try:
            [answer] = self._channel.submit(link, [command])
        except InvalidInput as wrong:
            raise as_option(wrong) from wrong
        return self._handle_of(command, answer)

    def enqueuing(self, spec: JobSpec, options: EnqueueOptions) -> Operation[Job[Any]]:
        """Enqueue one job."""
        yield from self._channel.linking()  # first: new ids are dated by the store's clock
        command = self._command(spec, self._job_id(options))
        connection, notify = options.get("connection"), options.get("notify", False)
        [job] = yield from self.sending([command], connection, notify=notify)
        return job

    def sending(
        self, commands: Iterable[Enqueue], connection: Any, *, notify: bool = False
    ) -> Operation[list[Job[Any]]]:
        """Enqueue all of them, `CHUNK` at a time, or within the caller's transaction."""
        if notify and connection is None:
            raise InvalidInput(
                "notify",
                "is for a transaction of your own, by connection=",
                hint="omit it: without a connection waiting workers are notified anyway",
            )
        jobs: list[Job[Any]] = []
        left = iter(commands)
        while chunk := list(islice(left, CHUNK)):
            with naming_options():
                answers = yield from self.submitting(chunk, connection, notify=notify)
            jobs += map(self._handle_of, chunk, answers)
        return jobs

    def submitting(
        self, commands: Sequence[Enqueue | EnqueueFlow], connection: Any, *, notify: bool = False
    ) -> Operation[Sequence[Answer]]:
        """Send commands to the coordinator, or write them within the caller's transaction."""
        if connection is None:
            return (yield from self._channel.submitting(commands))
        link = yield from self._channel.linking()
        own = link.transactions
        answers: list[Answer] = yield Wait(
            lambda: own.execute(connection, commands, notify=notify),
            lambda: own.aexecute(connection, commands, notify=notify),
        )
        return answers

    def _handle_of(self, command: Enqueue, answer: Answer) -> Job[Any]:
        """A handle on the job of this command; raises why it was refused."""
        assert isinstance(answer, Reply)
        job = answer.job
        if answer.cause is not None or job is None:
            raise refusal(command.job_id, answer)
        if answer.undeclared:
            self._warn_of_undeclared(command.kind)
        made = answer.deduplicated
        return Job(self._channel, job.id, stored=job, decode=self.decode, deduplicated=made)

    def _warn_of_undeclared(self, kind: Kind) -> None:
        """Once for each kind. [F11]"""
        if kind in self._undeclared or len(self._undeclared) >= MAX_UNDECLARED:
            return
        self._undeclared.add(kind)
        _log.warning(
            "no worker has declared kind %s: its jobs are enqueued with the default policy (%s)",
            *(kind, policy_in_words(_DEFAULT_POLICY)),
        )

    def handle(self, job: StoredJob, *, deduplicated: bool = False) -> Job[Any]:
        """A handle on a job that was just read."""
        return Job(self._channel, job.id, stored=job, decode=self.decode, deduplicated=deduplicated)
