"""Handlers: what a job function looks like to the client that enqueues and the worker that runs.

A registry of names, never a dotted path out of a payload. Arguments travel as one JSON object by
parameter name, so a worker in another language needs no Python. Types are checked by msgspec;
pydantic models are checked by pydantic when the user has it. Runs nothing itself.
"""

import inspect
import typing
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Mapping
from enum import StrEnum
from typing import Any

import msgspec

from tenure.core.ids import JobId, Kind, QueueName
from tenure.core.policy import Policy
from tenure.errors import InvalidInput, ValidationError


class Isolation(StrEnum):
    """Where a handler runs."""

    PROCESS = "process"
    ASYNC = "async"
    THREAD = "thread"


class Context(ABC):
    """What a handler knows about its attempt and may ask of it; injected by annotation."""

    job_id: JobId
    kind: Kind
    queue: QueueName
    attempt: int
    fence: int
    correlation_id: str | None
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


class Handler(msgspec.Struct, frozen=True, kw_only=True):
    """One registered job function: its name, where and how it runs, and its signature."""

    kind: Kind
    function: Callable[..., Any]
    queue: QueueName
    policy: Policy
    isolation: Isolation
    priority: int = 0
    concurrency: int | None = None
    context_parameter: str | None
    parameters: Mapping[str, inspect.Parameter]
    hints: Mapping[str, Any]

    @property
    def is_async(self) -> bool:
        """Whether calling it gives a coroutine."""
        return inspect.iscoroutinefunction(self.function)

    def encode_arguments(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> bytes:
        """The payload of a call; `ValidationError` names the argument that does not fit."""
        bound = self._bind(args, kwargs)
        for name, value in bound.items():
            if name in self.hints:
                convert(value, self.hints[name], path=name, is_python=True)
        return encode(bound, what="arguments")

    def _bind(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> dict[str, Any]:
        signature = inspect.Signature(list(self.parameters.values()))
        try:
            return dict(signature.bind(*args, **kwargs).arguments)
        except TypeError as wrong:
            raise ValidationError(f"{self.kind}: {wrong}") from wrong

    def decode_arguments(self, payload: bytes) -> dict[str, Any]:
        """The keyword arguments of a call, each checked against its type hint."""
        try:
            given = msgspec.json.decode(payload)
        except msgspec.DecodeError as wrong:
            raise ValidationError(f"the payload is not JSON: {wrong}", path="$") from wrong
        if given is None and not self.parameters:
            given = {}
        if not isinstance(given, dict):
            raise ValidationError("the payload is not an object of arguments", path="$")
        unknown = sorted(set(given) - set(self.parameters))
        if unknown:
            raise ValidationError(f"{self.kind} has no argument {unknown[0]!a}", path=unknown[0])
        for name, parameter in self.parameters.items():
            if name not in given and parameter.default is inspect.Parameter.empty:
                raise ValidationError(f"{self.kind} needs the argument {name!a}", path=name)
        return {
            name: convert(value, self.hints[name], path=name) if name in self.hints else value
            for name, value in given.items()
        }

    def encode_result(self, value: Any) -> bytes:
        """The result as JSON, checked against the return annotation."""
        if "return" in self.hints:
            convert(value, self.hints["return"], path="return", is_python=True)
        return encode(value, what="result")


def encode(value: Any, *, what: str) -> bytes:
    """JSON bytes; `ValidationError` for what JSON cannot carry."""
    try:
        body = msgspec.json.encode(value, enc_hook=_encode_foreign)
    except (TypeError, ValueError, OverflowError, RecursionError) as wrong:
        raise ValidationError(f"the {what} cannot be encoded as JSON: {wrong}") from wrong
    # msgspec writes NaN and Infinity as null; a number must not silently become nothing.
    if b"null" in body:
        _refuse_nan(value, what)
    return body


def _refuse_nan(value: Any, what: str) -> None:
    if isinstance(value, float) and (value != value or value in (float("inf"), float("-inf"))):
        raise ValidationError(f"the {what} contains {value}, which JSON cannot carry")
    if isinstance(value, dict):
        for item in value.values():
            _refuse_nan(item, what)
    elif isinstance(value, list | tuple | set | frozenset):
        for item in value:
            _refuse_nan(item, what)
    elif isinstance(value, msgspec.Struct):
        for field in value.__struct_fields__:
            _refuse_nan(getattr(value, field), what)


def _is_pydantic(kind: Any) -> bool:
    return isinstance(kind, type) and hasattr(kind, "model_validate")


def _encode_foreign(value: Any) -> Any:
    if _is_pydantic(type(value)):
        return value.model_dump(mode="json")
    raise TypeError(f"objects of type {type(value).__name__} have no JSON form")


def _decode_foreign(kind: Any, value: Any) -> Any:
    if _is_pydantic(kind):
        return value if isinstance(value, kind) else kind.model_validate(value)
    raise TypeError(f"arguments of type {kind!r} cannot be checked")


def convert(value: Any, kind: Any, *, path: str, is_python: bool = False) -> Any:
    """`value` as its annotation wants it; `ValidationError` with the failing path."""
    if kind is Any or isinstance(kind, typing.TypeVar):
        return value
    try:
        if is_python:
            value = msgspec.to_builtins(value, enc_hook=_encode_foreign)
        return msgspec.convert(value, kind, dec_hook=_decode_foreign)
    except msgspec.ValidationError as wrong:
        message, _, where = str(wrong).partition(" - at `$")
        raise ValidationError(message, path=path + where.rstrip("`")) from wrong
    except (TypeError, ValueError, RecursionError) as wrong:
        raise ValidationError(str(wrong), path=path) from wrong


def inspect_function(
    function: Callable[..., Any],
) -> tuple[dict[str, inspect.Parameter], dict[str, Any], str | None]:
    """Parameters by name, type hints, and which parameter takes the context."""
    name = getattr(function, "__qualname__", repr(function))
    try:
        hints = typing.get_type_hints(function, include_extras=True)
    except NameError as wrong:
        raise InvalidInput(name, f"its annotations cannot be resolved: {wrong}") from wrong
    context_parameter = None
    parameters: dict[str, inspect.Parameter] = {}
    for parameter in inspect.signature(function).parameters.values():
        if hints.get(parameter.name) is Context:
            context_parameter = parameter.name
            continue
        if parameter.kind not in (
            inspect.Parameter.POSITIONAL_OR_KEYWORD,
            inspect.Parameter.KEYWORD_ONLY,
        ):
            raise InvalidInput(
                name,
                f"the parameter {parameter.name} has no name of its own to travel under",
                hint="job functions take named parameters, no *args, **kwargs or positional-only",
            )
        parameters[parameter.name] = parameter
    return (
        parameters,
        {key: hint for key, hint in hints.items() if hint is not Context},
        context_parameter,
    )


class Registry:
    """Handlers by kind. The only way from a payload to code."""

    def __init__(self) -> None:
        self._handlers: dict[Kind, Handler] = {}

    def add(self, handler: Handler) -> None:
        """Register a handler; two of one kind are a mistake."""
        if handler.kind in self._handlers:
            raise InvalidInput("kind", f"{handler.kind} is registered twice")
        self._handlers[handler.kind] = handler

    def get(self, kind: Kind) -> Handler | None:
        """The handler of a kind, if this application has one."""
        return self._handlers.get(kind)

    def kinds(self) -> tuple[Kind, ...]:
        """Every kind this application can run, in order."""
        return tuple(sorted(self._handlers))

    def __iter__(self) -> Iterator[Handler]:
        return iter(self._handlers.values())
