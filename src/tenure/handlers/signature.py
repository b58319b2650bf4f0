"""What a job function takes and returns: its parameters and annotations, checked at decoration."""

import inspect
import typing
from collections.abc import Callable, Iterator, Mapping
from contextlib import suppress
from types import MappingProxyType, NoneType
from typing import Any

import msgspec

from tenure.errors import InvalidInput
from tenure.handlers.context import Context
from tenure.handlers.json_values import is_pydantic

# Return annotations that say nothing about a JSON value.
_NO_VALUE = (typing.NoReturn, typing.Never)


class Types(msgspec.Struct, frozen=True, kw_only=True):
    """A function's annotations, resolved."""

    parameters: Mapping[str, inspect.Parameter]  # without the context's
    call: inspect.Signature  # how it is enqueued: with these parameters
    positional: int  # how many of them can be given by their place
    hints: Mapping[str, Any]
    context_parameter: str | None
    arguments: type[msgspec.Struct]


class Signature:
    """What a function takes and returns. Annotations are resolved when the function is decorated,
    or at the first use if they name something that is defined later in the module."""

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
    def is_resolved(self) -> bool:
        """Whether every name in the annotations is known by now."""
        return self._types is not None

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
            call=inspect.Signature(list(parameters.values())),
            positional=sum(
                each.kind is inspect.Parameter.POSITIONAL_OR_KEYWORD for each in parameters.values()
            ),
            hints=MappingProxyType(hints),
            context_parameter=context_parameter,
            arguments=_arguments_type(self.name, parameters, hints),
        )


def function_name(function: object) -> str:
    """The name of a function in error messages."""
    return str(getattr(function, "__qualname__", None) or repr(function))


def check_function(function: object) -> None:
    """Raise `InvalidInput` unless a worker could call this by its kind alone."""
    name = function_name(function)
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
    """Whether the function was defined in a class body: its qualified name then has a class."""
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
                f"the parameter {parameter.name} cannot be given by name",
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
    """Every class in a type that neither msgspec nor pydantic can convert."""
    if id(info) in seen:
        return
    seen.add(id(info))
    if isinstance(info, msgspec.inspect.CustomType):
        if not is_pydantic(info.cls):
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
