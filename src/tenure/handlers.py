"""Handlers: what a job function looks like to the client that enqueues and the worker that runs.

A registry of names, never a dotted path out of a payload. Arguments travel as one JSON object by
parameter name, so a worker in another language needs no Python. Types are checked by msgspec;
pydantic models are checked by pydantic when the user has it. Runs nothing itself.
"""

import asyncio
import datetime
import decimal
import inspect
import math
import re
import typing
import uuid
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Mapping
from contextlib import AbstractAsyncContextManager, AbstractContextManager, suppress
from enum import StrEnum
from types import MappingProxyType, NoneType, TracebackType
from typing import Any, TypeVar

import msgspec

from tenure.core.ids import JobId, Kind, QueueName
from tenure.core.instants import Duration, Instant
from tenure.core.policy import Policy
from tenure.errors import InvalidInput, ValidationError

DEFAULT_QUEUE = QueueName("default")

# Python values that JSON carries as text. While arguments are still Python they are compared as
# what they are: a str is no bytes, although both would arrive as a JSON string.
_RICH_TYPES = (
    bytes,
    bytearray,
    datetime.datetime,
    datetime.date,
    datetime.time,
    datetime.timedelta,
    uuid.UUID,
    decimal.Decimal,
)
_FIELD = re.compile(r"^Object (?:missing required|contains unknown) field `(.+)`$")
# Return annotations that say nothing about a JSON value.
_NO_VALUE = (typing.NoReturn, typing.Never)


# --- Options, as users write them ----------------------------------------------------------------

_OPTIONS = frozenset(
    {
        *("queue", "priority", "lease", "timeout", "start_within", "grace", "retry", "on_lost"),
        *("key", "delay", "run_at", "correlation_id", "trace_id", "job_id", "connection"),
    }
)
_FIELDS = {
    "dedupe_key": "key",
    "policy.max_attempts": "retry.max_attempts",
    "policy.max_releases": "retry.max_releases",
    "policy.on_exhausted": "retry.on_exhausted",
    "policy.backoff.initial": "retry.initial",
    "policy.backoff.factor": "retry.factor",
    "policy.backoff.cap": "retry.cap",
}
"""Options whose fields have other names in commands and in the messages of a server."""

_POSITION = re.compile(r"^jobs\[[0-9]+\]\.|^job\.")
_UNIT = re.compile(r"_u?s$")
_UNDO = "policy.compensation."


def as_option(wrong: InvalidInput) -> InvalidInput:
    """The error as it is said to whoever wrote options: `lease=…`, not `policy.lease_us`. One that
    is about something else is returned as it is."""
    field = _POSITION.sub("", wrong.field)
    whose = " of the compensation" if field.startswith(_UNDO) else ""
    field = _UNIT.sub("", field.removeprefix(_UNDO))
    option = _FIELDS.get(field, field.removeprefix("policy."))
    name, _, part = option.partition(".")
    if name not in _OPTIONS or type(wrong) is not InvalidInput:
        return wrong
    written = f"Retry({part}=…)" if part else f"{name}=…"
    return InvalidInput(option, wrong.problem, hint=wrong.hint, written=written + whose)


class Isolation(StrEnum):
    """Where a handler runs."""

    PROCESS = "process"
    ASYNC = "async"
    THREAD = "thread"


_R = TypeVar("_R")


def file_of(data: bytes | str, media_type: str | None) -> tuple[bytes, str]:
    """An artifact's body and media type."""
    if isinstance(data, str):
        try:
            return data.encode(), media_type or "text/plain; charset=utf-8"
        except UnicodeEncodeError as wrong:
            raise InvalidInput("data", f"is no text that UTF-8 can hold: {wrong.reason}") from wrong
    if not isinstance(data, bytes):
        raise InvalidInput("data", f"{type(data).__name__} is neither bytes nor str")
    return data, media_type or "application/octet-stream"


class Transaction(ABC):
    """A handler's own transaction, which the success of its attempt becomes part of."""

    @abstractmethod
    def complete(self, result: _R) -> _R:
        """Give the attempt's result. It is stored when the block ends, and committed with it."""


class TransactionScope:
    """`with` on a synchronous connection, `async with` on an asynchronous one."""

    def __init__(
        self,
        open_: Callable[[], AbstractContextManager[Transaction]],
        aopen: Callable[[], AbstractAsyncContextManager[Transaction]],
    ) -> None:
        self._open = open_
        self._aopen = aopen

    def __enter__(self) -> Transaction:
        self._opened = self._open()
        return self._opened.__enter__()

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> bool | None:
        return self._opened.__exit__(kind, error, traceback)

    async def __aenter__(self) -> Transaction:
        self._aopened = self._aopen()
        return await self._aopened.__aenter__()

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> bool | None:
        return await self._aopened.__aexit__(kind, error, traceback)


class Call(msgspec.Struct, frozen=True, kw_only=True):
    """A call of a job function, checked and encoded, for `ctx.enqueue`. It has no id yet: that
    follows from the job whose handler enqueues it. [D8]"""

    kind: Kind
    queue: QueueName
    payload: bytes
    priority: int = 0
    delay_us: Duration = Duration(0)
    run_at: Instant | None = None
    dedupe_key: str | None = None
    correlation_id: str | None = None
    trace_id: str | None = None
    policy: Policy = Policy()


class Enqueued(msgspec.Struct, frozen=True):
    """A job that a handler enqueued; `app.get(enqueued.id)` is a handle on it."""

    id: JobId
    is_new: bool
    """Whether this call made it: not if an earlier attempt did, or if another job has the key."""


class Context(ABC):
    """What a handler knows about its attempt and may ask of it; injected by annotation."""

    job_id: JobId
    kind: Kind
    queue: QueueName
    attempt: int
    fence: int
    correlation_id: str | None
    traceparent: str | None  # W3C's, to hand on to whatever the handler calls; None without one
    checkpoint: Any  # what the last attempt saved, decoded; None at first

    @abstractmethod
    def check(self) -> None:
        """Raise `Cancelled` if the job should stop or the lease is lost."""

    @abstractmethod
    def still_mine(self) -> bool:
        """Whether the lease is, as far as this worker knows, still valid."""

    @abstractmethod
    def save(self, checkpoint: Any) -> None:
        """Keep this for the next attempt; sent with the next heartbeat, at once if it is due."""

    @abstractmethod
    def progress(self, done: int, total: int | None = None, note: str = "") -> None:
        """Say how far the job is."""

    @abstractmethod
    def log(self, message: str) -> None:
        """A line for the attempt's log."""

    @abstractmethod
    def artifact(self, name: str, data: bytes | str, *, media_type: str | None = None) -> None:
        """Leave a file with the job, seen once this attempt has succeeded. Stored on return."""

    async def aartifact(
        self, name: str, data: bytes | str, *, media_type: str | None = None
    ) -> None:
        """Leave a file with the job, without blocking the loop."""
        await asyncio.to_thread(self.artifact, name, data, media_type=media_type)

    @abstractmethod
    def enqueue(self, call: Call, *, step: str | int = "") -> Enqueued:
        """Enqueue a job that follows from this one: `ctx.enqueue(function.call(argument))`.

        However often this job is attempted, it makes one such job; a later attempt receives the one
        that is there, even if it asks with other arguments. A second job of the same kind needs a
        `step`, which is the same in every attempt.
        """

    async def aenqueue(self, call: Call, *, step: str | int = "") -> Enqueued:
        """Enqueue a job that follows from this one, without blocking the loop."""
        return await asyncio.to_thread(self.enqueue, call, step=step)

    @abstractmethod
    def transaction(self, connection: Any) -> TransactionScope:
        """Complete the attempt in a transaction of your own: both are committed, or neither."""


# --- The signature of a job function -----------------------------------------------------------


class Types(msgspec.Struct, frozen=True, kw_only=True):
    """A function's annotations, resolved: what it takes and gives."""

    parameters: Mapping[str, inspect.Parameter]  # without the context's
    hints: Mapping[str, Any]
    context_parameter: str | None
    arguments: type[msgspec.Struct]


class Signature:
    """What a function takes and gives. Annotations are resolved when the function is decorated or,
    where they name something that is defined further down, at the first use."""

    def __init__(
        self, function: Callable[..., Any], *, local_names: Mapping[str, Any] | None = None
    ) -> None:
        self.name = function_name(function)
        self.all_parameters = _named_parameters(function, self.name)
        self._function = function
        self._local_names = dict(local_names or {})
        self._types: Types | None = None
        with suppress(NameError):
            self._types = self._resolve()

    @property
    def types(self) -> Types:
        """The resolved annotations."""
        return self._types or self.resolve()

    def resolve(self) -> Types:
        """Resolve the annotations; `InvalidInput` if a name in them is still unknown."""
        if self._types is None:
            try:
                self._types = self._resolve()
            except NameError as wrong:
                raise InvalidInput(
                    self.name,
                    f"its annotations cannot be resolved: {wrong}",
                    hint="import the type where the function is defined, also at run time",
                ) from wrong
        return self._types

    def _resolve(self) -> Types:
        hints = typing.get_type_hints(
            self._function, localns=self._local_names or None, include_extras=True
        )
        contexts = [name for name in self.all_parameters if _is_context(hints.get(name))]
        if len(contexts) > 1:
            raise InvalidInput(self.name, f"{' and '.join(contexts)} both take the context")
        context_parameter = contexts[0] if contexts else None
        if hints.get("return") in _NO_VALUE:
            del hints["return"]
        parameters = {
            name: parameter
            for name, parameter in self.all_parameters.items()
            if name != context_parameter
        }
        hints = {
            name: Any if hint is object else hint
            for name, hint in hints.items()
            if name in parameters or name == "return"
        }
        for name, hint in hints.items():
            _check_hint(self.name, name, hint)
        return Types(
            parameters=MappingProxyType(parameters),
            hints=MappingProxyType(hints),
            context_parameter=context_parameter,
            arguments=_arguments_type(self.name, parameters, hints),
        )


def function_name(function: Callable[..., Any]) -> str:
    """What errors call a function."""
    return str(getattr(function, "__qualname__", None) or repr(function))


def check_function(function: object) -> None:
    """Raise `InvalidInput` unless a worker could call this by its kind alone."""
    name = str(getattr(function, "__qualname__", None) or repr(function))
    if isinstance(function, staticmethod | classmethod) or inspect.ismethod(function):
        problem, hint = "is a method", "decorate a plain function; a worker has no instance to call"
    elif not inspect.isroutine(function):
        problem, hint = "is not a function", "decorate a def or an async def"
    elif inspect.isgeneratorfunction(function) or inspect.isasyncgenfunction(function):
        problem = "is a generator, and calling it would run nothing"
        hint = "return the values, or enqueue a job for each"
    elif _is_defined_in_class(function):
        problem, hint = "is a method", "decorate a plain function; a worker has no instance to call"
    else:
        return
    raise InvalidInput(name, problem, hint=hint)


def _is_defined_in_class(function: Any) -> bool:
    """Whether `def` stood in a class body: its qualified name then has a class before it."""
    owner, _, _ = str(getattr(function, "__qualname__", "")).rpartition(".")
    first = next(iter(inspect.signature(function).parameters), "")
    return bool(owner) and not owner.endswith("<locals>") and first in ("self", "cls")


def _named_parameters(function: Callable[..., Any], name: str) -> dict[str, inspect.Parameter]:
    parameters = dict(inspect.signature(function).parameters)
    for parameter in parameters.values():
        if parameter.kind not in (
            inspect.Parameter.POSITIONAL_OR_KEYWORD,
            inspect.Parameter.KEYWORD_ONLY,
        ):
            raise InvalidInput(
                name,
                f"the parameter {parameter.name} has no name of its own to travel under",
                hint="job functions take named parameters, no *args, **kwargs or positional-only",
            )
    return parameters


def _is_context(hint: Any) -> bool:
    """`Context`, a subclass of it, and either of them annotated or optional."""
    if typing.get_origin(hint) is typing.Annotated:
        return _is_context(typing.get_args(hint)[0])
    options = [option for option in typing.get_args(hint) if option is not NoneType] or [hint]
    return len(options) == 1 and isinstance(options[0], type) and issubclass(options[0], Context)


def _check_hint(function: str, name: str, hint: Any) -> None:
    """Refuse at decoration what could only fail at run time, after the work was done."""
    what = "its result" if name == "return" else f"the parameter {name}"
    try:
        foreign = next(_foreign_types(msgspec.inspect.type_info(hint), set()), None)
    except TypeError as wrong:
        raise InvalidInput(
            function,
            f"{what} has an annotation that cannot be checked: {wrong}",
            hint="annotate it with what travels in JSON, or with Any",
        ) from wrong
    if foreign is not None:
        raise InvalidInput(
            function,
            f"{what} is annotated with {foreign.__name__}, which has no JSON form",
            hint="use plain types, dataclasses, TypedDict, attrs, msgspec or pydantic, or Any",
        )


def _foreign_types(info: Any, seen: set[int]) -> Iterator[type]:
    """Every class in a type that neither msgspec nor pydantic can carry."""
    if id(info) in seen:
        return
    seen.add(id(info))
    if isinstance(info, msgspec.inspect.CustomType):
        if not _is_pydantic(info.cls):
            yield info.cls
    elif isinstance(info, msgspec.inspect.Type | msgspec.inspect.Field):
        for field in info.__struct_fields__:
            yield from _foreign_types(getattr(info, field), seen)
    elif isinstance(info, tuple):
        for each in info:
            yield from _foreign_types(each, seen)


def _arguments_type(
    name: str, parameters: Mapping[str, inspect.Parameter], hints: Mapping[str, Any]
) -> type[msgspec.Struct]:
    """One struct for all arguments; UNSET stands for a default that the worker fills in."""
    fields: list[tuple[str, Any, Any]] = []
    for parameter in parameters.values():
        is_required = parameter.default is inspect.Parameter.empty
        default = msgspec.NODEFAULT if is_required else msgspec.UNSET
        hint = hints.get(parameter.name, Any)
        fields.append((parameter.name, hint, msgspec.field(default=default, name=parameter.name)))
    return msgspec.defstruct(
        "Arguments", fields, forbid_unknown_fields=True, kw_only=True, module=name
    )


# --- One handler -------------------------------------------------------------------------------


class Handler(msgspec.Struct, frozen=True, kw_only=True):
    """One registered job function: its name, where and how it runs, and its signature."""

    kind: Kind
    function: Callable[..., Any]
    signature: Signature
    queue: QueueName = DEFAULT_QUEUE
    policy: Policy = Policy()
    isolation: Isolation = Isolation.PROCESS
    priority: int = 0
    concurrency: int | None = None

    @property
    def is_async(self) -> bool:
        """Whether calling it gives a coroutine."""
        return inspect.iscoroutinefunction(self.function)

    @property
    def parameters(self) -> Mapping[str, inspect.Parameter]:
        """What travels, by name: every parameter but the context's."""
        return self.signature.types.parameters

    @property
    def hints(self) -> Mapping[str, Any]:
        """The type hints of the parameters, and of the result under `return`."""
        return self.signature.types.hints

    @property
    def context_parameter(self) -> str | None:
        """Which parameter takes the context, if any does."""
        return self.signature.types.context_parameter

    def encode_arguments(self, args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> bytes:
        """The payload of a call; `ValidationError` names the argument that does not fit."""
        types = self.signature.types
        bound = self._bind(args, kwargs)
        _check_python(bound, types.arguments)
        body = encode(bound, what="arguments")
        _decode(body, types.arguments)  # what is enqueued must be what the worker can read
        return body

    def _bind(self, args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> dict[str, Any]:
        try:
            signature = inspect.Signature(list(self.parameters.values()))
            return dict(signature.bind(*args, **kwargs).arguments)
        except TypeError as wrong:
            raise ValidationError(f"{self.kind}: {wrong}") from wrong

    def decode_arguments(self, payload: bytes) -> dict[str, Any]:
        """The keyword arguments of a call, each checked against its type hint."""
        types = self.signature.types
        if payload == b"null" and not any(map(_is_required, types.parameters.values())):
            return {}  # no payload at all, as of `tenure enqueue KIND`
        arguments = _decode(payload, types.arguments)
        given = {name: getattr(arguments, name) for name in types.parameters}
        return {name: value for name, value in given.items() if value is not msgspec.UNSET}

    def encode_result(self, value: Any) -> bytes:
        """The result as JSON, checked against the return annotation."""
        if "return" in self.hints:
            _check_python(value, self.hints["return"], within="return")
        return encode(value, what="result")

    def decode_result(self, body: bytes) -> Any:
        """A result as its annotation wants it."""
        return _decode(body, self.hints.get("return", Any), within="return")


def _is_required(parameter: inspect.Parameter) -> bool:
    return parameter.default is inspect.Parameter.empty


def make_handler(
    function: Callable[..., Any],
    *,
    kind: str | None = None,
    queue: str = DEFAULT_QUEUE,
    policy: Policy | None = None,
    isolation: Isolation | None = None,
    priority: int = 0,
    concurrency: int | None = None,
    local_names: Mapping[str, Any] | None = None,
) -> Handler:
    """A handler for `function`; its kind is the function's own name unless one is given."""
    check_function(function)
    is_async = inspect.iscoroutinefunction(function)
    if isolation is Isolation.ASYNC and not is_async:
        raise InvalidInput(
            "isolation",
            f"{function_name(function)} is no async def",
            hint='use isolation="process" or "thread", or make it an async def',
        )
    default = Isolation.ASYNC if is_async else Isolation.PROCESS
    return Handler(
        kind=Kind(kind if kind is not None else function.__name__),
        function=function,
        signature=Signature(function, local_names=local_names),
        queue=QueueName(queue),
        policy=policy or Policy(),
        isolation=isolation or default,
        priority=priority,
        concurrency=concurrency,
    )


# --- JSON and types ----------------------------------------------------------------------------


def encode(value: Any, *, what: str) -> bytes:
    """JSON bytes; `ValidationError` for what JSON cannot carry."""
    try:
        body = msgspec.json.encode(value, enc_hook=_encode_foreign)
        # msgspec writes NaN and Infinity as null; a number must not silently become nothing.
        if b"null" in body:
            _refuse_nan(msgspec.to_builtins(value, enc_hook=_encode_foreign), what)
    except (TypeError, ValueError, OverflowError, RecursionError) as wrong:
        raise ValidationError(f"the {what} cannot be encoded as JSON: {wrong}") from wrong
    return body


def _refuse_nan(value: Any, what: str, path: str = "") -> None:
    if isinstance(value, float) and not math.isfinite(value):
        problem = f"JSON cannot carry the number {value} of the {what}"
        raise ValidationError(problem, path=path.removeprefix("."))
    if isinstance(value, dict):
        for key, item in value.items():
            _refuse_nan(item, what, f"{path}.{key}")
    elif isinstance(value, list | tuple):
        for position, item in enumerate(value):
            _refuse_nan(item, what, f"{path}[{position}]")


def _is_pydantic(kind: Any) -> bool:
    return isinstance(kind, type) and hasattr(kind, "model_validate_json")


def _encode_foreign(value: Any) -> Any:
    if _is_pydantic(type(value)):
        return value.model_dump(mode="json")
    for plain in (str, int, float):  # subclasses, such as markup or numpy's float64
        if isinstance(value, plain):
            return plain(value)
    raise TypeError(f"objects of type {type(value).__name__} have no JSON form")


def _decode_foreign(kind: Any, value: Any) -> Any:
    if not _is_pydantic(kind):
        raise TypeError(f"values of type {kind!r} cannot be checked")
    if isinstance(value, kind):
        return value
    try:
        # As JSON, because that is what it is: a strict model then takes a date written as text.
        return kind.model_validate_json(msgspec.json.encode(value))
    except ValueError as wrong:
        raise ValueError(_first_pydantic_error(wrong)) from wrong


def _first_pydantic_error(wrong: Any) -> str:
    first = wrong.errors(include_url=False, include_input=False)[0]
    where = ".".join(str(part) for part in first["loc"])
    return f"{first['msg']}, in its {where}" if where else str(first["msg"])


def _check_python(value: Any, kind: Any, *, within: str = "") -> None:
    """Whether a value that is still Python fits its annotation."""
    try:
        plain = msgspec.to_builtins(value, builtin_types=_RICH_TYPES, enc_hook=_encode_foreign)
    except (TypeError, ValueError, OverflowError, RecursionError) as wrong:
        raise ValidationError(str(wrong), path=within) from wrong
    convert(plain, kind, path=within, is_python=True)


def _decode(body: bytes, kind: Any, *, within: str = "") -> Any:
    """`body` as its annotation wants it; `ValidationError` with the failing path."""
    try:
        return msgspec.json.decode(body, type=kind, dec_hook=_decode_foreign)
    except msgspec.ValidationError as wrong:
        raise _with_path(wrong, within) from wrong
    except (msgspec.DecodeError, RecursionError) as wrong:
        raise ValidationError(f"not JSON: {wrong}", path=within or "$") from wrong


def convert(value: Any, kind: Any, *, path: str, is_python: bool = False) -> Any:
    """`value` as its annotation wants it; `ValidationError` with the failing path."""
    try:
        return msgspec.convert(
            value,
            kind,
            builtin_types=_RICH_TYPES if is_python else None,
            str_keys=not is_python,
            dec_hook=_decode_foreign,
        )
    except msgspec.ValidationError as wrong:
        raise _with_path(wrong, path) from wrong


def _with_path(wrong: msgspec.ValidationError, within: str) -> ValidationError:
    """msgspec says `… - at `$.order.lines[0]``; a job says `… at order.lines[0]`."""
    message, _, where = str(wrong).partition(" - at `")
    _, is_key, where = where.rpartition("key` in `")
    path = within + where.rstrip("`").removeprefix("$")
    field = _FIELD.search(message)
    if field is not None:  # a missing or unknown field is named, not pointed at
        path = f"{path}.{field[1]}"
    path = path.removeprefix(".") or "$"
    return ValidationError(f"{message} as a key" if is_key else message, path=path)


class Registry:
    """Handlers by kind. The only way from a payload to code."""

    def __init__(self) -> None:
        self._handlers: dict[Kind, Handler] = {}

    def add(self, handler: Handler) -> None:
        """Register a handler; two of one kind are a mistake."""
        known = self._handlers.get(handler.kind)
        if known is not None:
            raise InvalidInput(
                "kind",
                f"{handler.kind} is registered twice, by {function_name(known.function)} "
                f"and {function_name(handler.function)}",
                hint="give one of them another name=",
            )
        self._handlers[handler.kind] = handler

    def get(self, kind: Kind) -> Handler | None:
        """The handler of a kind, if this application has one."""
        return self._handlers.get(kind)

    def kinds(self) -> tuple[Kind, ...]:
        """Every kind this application can run, in order."""
        return tuple(sorted(self._handlers))

    def check(self) -> None:
        """Resolve every annotation now: a worker should refuse to start, not fail its jobs."""
        for handler in self._handlers.values():
            handler.signature.resolve()

    def __iter__(self) -> Iterator[Handler]:
        return iter(self._handlers.values())
