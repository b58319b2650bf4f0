"""Job functions by kind, and where and how each runs.

The registry is the only way from a job's kind to code: a payload never names a module or a dotted
path. Arguments are one JSON object by parameter name, so a worker in another language needs no
Python.
"""

import inspect
from collections.abc import Callable, Iterator, Mapping
from enum import StrEnum
from typing import Any, TypeAlias

import msgspec

from tenure.core.checks import MAX_DEDUPE_KEY, check_label
from tenure.core.commands import JobSpec
from tenure.core.concurrency import check_concurrency_limit
from tenure.core.ids import DEFAULT_QUEUE, Kind, QueueName, ScheduleName
from tenure.core.instants import Duration
from tenure.core.kind_settings import KindSettings
from tenure.core.policy import Policy
from tenure.core.rates import Rate
from tenure.core.schedules import ScheduleSpec
from tenure.core.vocabulary import did_you_mean
from tenure.errors import InvalidInput, ValidationError
from tenure.handlers.hooks import Hook, make_hook
from tenure.handlers.json_values import check_value, decode, encode
from tenure.handlers.options import job_key, plain
from tenure.handlers.signature import Signature, Types, check_function, function_name


class Isolation(StrEnum):
    """Where a handler runs."""

    PROCESS = "process"
    ASYNC = "async"
    THREAD = "thread"


_NO_ARGUMENTS = b"{}"

KeySource: TypeAlias = str | Callable[..., str | int | None]
"""The name of an argument, or a function that takes some of the arguments by their names."""


class KeyRule(msgspec.Struct, frozen=True, kw_only=True):
    """How the calls of one kind get the key that `option` is about."""

    option: str
    kind: Kind
    source: KeySource
    names: tuple[str, ...]
    """The arguments that the key is made of."""

    def key_of(self, arguments: Mapping[str, Any]) -> str | None:
        """The key of a call with these arguments; None if it has none. [CK5] [RL12]"""
        for name in self.names:
            if name not in arguments:  # the context, which is known only when the job runs
                raise InvalidInput(self.option, f"{name} of {self.kind} is not enqueued")
        chosen = {name: arguments[name] for name in self.names}
        if isinstance(self.source, str):
            value = chosen[self.source]
        else:
            try:
                value = self.source(**chosen)
            except Exception as failure:
                what = f"the key function of {self.kind} raised {type(failure).__name__}"
                hint = "make it return a key, or None, for every call of this kind"
                raise InvalidInput(self.option, f"{what}: {failure}", hint=hint) from failure
        key = job_key(self.option, value)
        if key is not None:
            check_label(self.option, key, most=MAX_DEDUPE_KEY)
        return key


def key_rule(
    option: str, kind: Kind, parameters: Mapping[str, inspect.Parameter], source: Any
) -> KeyRule | None:
    """How a kind's calls get a key; `InvalidInput` if that names no argument. [CK5] [RL12]"""
    source = plain(source)
    if source is None:
        return None
    if isinstance(source, str):
        names: tuple[str, ...] = (source,)
    elif callable(source):
        names = tuple(inspect.signature(source).parameters)
    else:
        raise InvalidInput(
            option,
            f"{type(source).__name__} is neither an argument's name nor a function",
            hint=f'write {option}="customer_id"',
        )
    for name in names:
        if name not in parameters:
            raise InvalidInput(
                option,
                f"{kind} has no argument {name[:60]!a}",
                hint=f"its arguments are {', '.join(parameters) or 'none'}",
            )
    return KeyRule(option=option, kind=kind, source=source, names=names)


def concurrency_fields(
    kind: Kind,
    parameters: Mapping[str, inspect.Parameter],
    *,
    source: Any,
    limit: Any,
) -> dict[str, Any]:
    """The fields of `Handler` that say what a kind declares about concurrency keys. [CK5] [CK7]"""
    rule = key_rule("concurrency_key", kind, parameters, source)
    if rule is None:
        if limit is not None:
            raise InvalidInput(
                "concurrency_limit", "given without a key", hint="give concurrency_key= too"
            )
        return {}
    if limit is not None:
        check_concurrency_limit("concurrency_limit", limit)
    return {"key_rule": rule, "concurrency_limit": limit}


class Handler(msgspec.Struct, frozen=True, kw_only=True):
    """One registered job function: its name, where and how it runs, and its signature."""

    kind: Kind
    function: Callable[..., Any]
    signature: Signature
    queue: QueueName = DEFAULT_QUEUE
    policy: Policy = Policy()
    isolation: Isolation = Isolation.PROCESS
    is_async: bool = False  # whether calling it gives a coroutine
    priority: int = 0
    concurrency: int | None = None
    key_rule: KeyRule | None = None
    concurrency_limit: int | None = None
    expires_us: Duration | None = None
    rate: Rate | None = None
    rate_rule: KeyRule | None = None
    meta: dict[str, str] | None = None

    @property
    def settings(self) -> KindSettings:
        """What is declared for all jobs of this kind. [RL6] [F10]"""
        return KindSettings(
            kind=self.kind,
            rate=self.rate,
            concurrency_limit=self.concurrency_limit,
            policy=self.policy,
        )

    @property
    def spec(self) -> JobSpec:
        """A job of this kind without arguments, before the options of a call."""
        return JobSpec(
            kind=self.kind,
            queue=self.queue,
            payload=b"null",
            priority=self.priority,
            expires_us=self.expires_us,
            policy=self.policy,
            meta=self.meta,
        )

    @property
    def has_keys(self) -> bool:
        """Whether arguments say a job's concurrency key or rate key."""
        return self.key_rule is not None or self.rate_rule is not None

    def keys_of(self, payload: bytes) -> dict[str, str | None]:
        """The keys that these arguments say, as fields of a `JobSpec`."""
        given = self.decode_arguments(payload)
        rules = {"concurrency_key": self.key_rule, "rate_key": self.rate_rule}
        return {field: self._key(given, rule) for field, rule in rules.items() if rule is not None}

    def _key(self, given: Mapping[str, Any], rule: KeyRule) -> str | None:
        defaults = {
            name: parameter.default
            for name, parameter in self.parameters.items()
            if name in rule.names and name not in given and not _is_required(parameter)
        }
        return rule.key_of(defaults | dict(given))

    @property
    def parameters(self) -> Mapping[str, inspect.Parameter]:
        """The parameters that are sent, by name: all except the context."""
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
        if not (args or kwargs or types.parameters):
            return _NO_ARGUMENTS
        bound = self._bind(types, args, kwargs)
        try:
            check_value(bound, types.arguments)
            body = encode(bound, what="arguments")
            decode(body, types.arguments)  # what is enqueued must be what the worker can read
        except ValidationError as wrong:
            said = wrong.message.removesuffix(f" at {wrong.path}")
            raise ValidationError(f"kind {self.kind}: {said}", path=wrong.path) from wrong.__cause__
        return body

    def _bind(
        self, types: Types, args: tuple[Any, ...], kwargs: Mapping[str, Any]
    ) -> dict[str, Any]:
        if not args and kwargs.keys() == types.parameters.keys():
            # Every argument by its name, as most calls are written: a fifth of what `bind` takes.
            return {name: kwargs[name] for name in types.parameters}
        if not kwargs and len(args) == len(types.parameters) == types.positional:
            return dict(zip(types.parameters, args, strict=True))  # or every one by its place
        try:
            return dict(types.call.bind(*args, **kwargs).arguments)
        except TypeError as wrong:
            problem = self._misnamed(args, kwargs) or str(wrong)
            takes = ", ".join(self.parameters) or "no arguments"
            ctx = self.context_parameter
            filled = "" if ctx is None else f", and the worker fills in {ctx}"
            raise ValidationError(
                f"kind {self.kind}: {problem}; it takes {takes}{filled}"
            ) from wrong

    def _misnamed(self, args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> str | None:
        """Which argument has a wrong name, or is missing; None if it is something else."""
        known = self.parameters
        unknown = next((name for name in kwargs if name not in known), None)
        if unknown is not None:
            return self.unknown_parameter(unknown)
        given = {*kwargs, *list(known)[: len(args)]}
        lacks = [name for name, each in known.items() if _is_required(each) and name not in given]
        return missing_parameter(lacks[0]) if lacks else None

    def unknown_parameter(self, name: str) -> str:
        """Says that there is no such parameter, and which one may have been meant."""
        meant = did_you_mean(name, self.parameters)
        return f"it has no parameter {name}" + (meant and f" ({meant})")

    def decode_arguments(self, payload: bytes) -> dict[str, Any]:
        """The keyword arguments of a call, each checked against its type hint."""
        types = self.signature.types
        if payload == b"null" and not any(map(_is_required, types.parameters.values())):
            return {}  # no payload at all, such as that of `tenure enqueue KIND`
        arguments = decode(payload, types.arguments)
        given = {name: getattr(arguments, name) for name in types.parameters}
        return {name: value for name, value in given.items() if value is not msgspec.UNSET}

    def encode_result(self, value: Any) -> bytes:
        """The result as JSON, checked against the return annotation."""
        hints = self.hints
        if "return" in hints:
            check_value(value, hints["return"], within="return")
        return encode(value, what="result")

    def decode_result(self, body: bytes) -> Any:
        """The result, converted to the type of the return annotation."""
        return decode(body, self.hints.get("return", Any), within="return")


def missing_parameter(name: str) -> str:
    """Says that this parameter was not given."""
    return f"its parameter {name} is missing"


def _is_required(parameter: inspect.Parameter) -> bool:
    return parameter.default is inspect.Parameter.empty


def _place(handler: Handler) -> str:
    """The function's name with its module: two modules may each have a function of this name."""
    return f"{handler.function.__module__}.{function_name(handler.function)}"


def make_handler(
    function: Callable[..., Any],
    *,
    kind: str | None = None,
    isolation: Isolation | None = None,
    concurrency_key: object = None,
    concurrency_limit: object = None,
    rate_key: object = None,
    local_names: Mapping[str, Any] | None = None,
    **fields: Any,
) -> Handler:
    """A handler for `function`; its kind is the function's own name unless one is given. `fields`
    are other fields of `Handler`, already checked."""
    check_function(function)
    is_async = inspect.iscoroutinefunction(function)
    if isolation is Isolation.ASYNC and not is_async:
        raise InvalidInput(
            "isolation",
            f"{function_name(function)} is not an async def",
            hint='use isolation="process" or "thread", or make it an async def',
        )
    default = Isolation.ASYNC if is_async else Isolation.PROCESS
    name = Kind(kind if kind is not None else function.__name__)
    signature = Signature(function, local_names=local_names)
    return Handler(
        kind=name,
        function=function,
        signature=signature,
        isolation=isolation or default,
        is_async=is_async,
        **concurrency_fields(
            name,
            signature.all_parameters,
            source=concurrency_key,
            limit=concurrency_limit,
        ),
        rate_rule=key_rule("rate_key", name, signature.all_parameters, rate_key),
        **fields,
    )


class Registry:
    """Handlers by kind, the only way from a job to code; and the schedules of their application."""

    def __init__(self) -> None:
        self._handlers: dict[Kind, Handler] = {}
        self._schedules: dict[ScheduleName, Callable[[], ScheduleSpec]] = {}
        self.hooks: tuple[Hook, ...] = ()
        """What runs around every attempt, the outermost first. [HK2]"""

    def add_hook(self, function: object) -> None:
        """Run this around every attempt, within the hooks that were added before."""
        self.hooks = (*self.hooks, make_hook(function))

    def add(self, handler: Handler) -> None:
        """Register a handler; `InvalidInput` if its kind is registered already."""
        known = self._handlers.get(handler.kind)
        if known is not None:
            raise InvalidInput(
                "kind",
                f"{handler.kind} is registered twice, by {_place(known)} and {_place(handler)}",
                hint="give one of them another name=",
            )
        self._handlers[handler.kind] = handler

    def get(self, kind: Kind) -> Handler | None:
        """The handler of a kind, if this application has one."""
        return self._handlers.get(kind)

    def declare(self, name: ScheduleName, spec: Callable[[], ScheduleSpec]) -> None:
        """Declare a schedule; `InvalidInput` if one of this name is declared already. `spec` is
        called when the schedule is needed: its job may name what is defined later."""
        if name in self._schedules:
            raise InvalidInput(
                "schedule", f"{name} is declared twice", hint="give one of them another name"
            )
        self._schedules[name] = spec

    def schedules(self) -> dict[ScheduleName, ScheduleSpec]:
        """The schedules that the application declares, by name."""
        return {name: spec() for name, spec in sorted(self._schedules.items())}

    def kinds(self) -> tuple[Kind, ...]:
        """Every kind this application can run, in order."""
        return tuple(sorted(self._handlers))

    def check(self) -> None:
        """Resolve every annotation now: a worker should refuse to start, not fail its jobs."""
        for handler in self._handlers.values():
            handler.signature.resolve()
        self.schedules()

    def __iter__(self) -> Iterator[Handler]:
        return iter(self._handlers.values())
