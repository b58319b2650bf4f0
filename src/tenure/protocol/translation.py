"""Translates between core values and wire messages, field by field.

A field has the same name and the same value on both sides, with these exceptions:

| in the core | on the wire |
|---|---|
| `Duration`, in a field `…_us` | seconds as a number, in a field `…_s` |
| `Instant` | `datetime` |
| `bytes`: a payload, result or checkpoint | embedded JSON (`msgspec.Raw`); None is left out |
| a struct that has a message of its own | that message |
| `JobId` in a request | any case |

Any other exception is an argument of `derived`: `names` maps a core field to its name on the wire.
`derived` gives a message its fields, `to_wire` and `to_core` write the functions that translate.
All three work at import, once per pair of types. The functions are generated source code, as those
of dataclasses are: a call costs what it would cost if it were written by hand.
"""

from collections.abc import Callable, Iterable, Iterator, Mapping
from datetime import datetime
from enum import StrEnum
from functools import cache, partial
from types import NoneType, UnionType
from typing import (
    TYPE_CHECKING,
    Annotated,
    Any,
    TypeVar,
    Union,
    get_args,
    get_origin,
    get_type_hints,
)

import msgspec

from tenure.core.ids import JobId
from tenure.core.instants import Duration, Instant, seconds
from tenure.protocol.fields import LIMITS_BY_NAME, LIMITS_BY_TYPE, in_seconds, instant, moment

_S = TypeVar("_S")

_hints: Callable[[type], dict[str, Any]] = cache(partial(get_type_hints, include_extras=True))
"""The types of a struct's fields. Cached, as `_sources` is: a core struct has several messages."""
_NULL = b"null"

_messages: dict[tuple[type, bool], type[msgspec.Struct]] = {}
"""The message of a core struct, for answers and for requests (True)."""
_names: dict[type, Mapping[str, str]] = {}
"""Of a message: the wire's names of core fields, where they differ by more than their unit."""
_functions: dict[tuple[type, type], Callable[..., Any]] = {}
"""From a type to another, for structs within structs."""


if TYPE_CHECKING:

    class AnyFields(Any):  # type: ignore[misc]  # on purpose
        """What type checkers see of a message whose fields are derived: any field, of any type."""

        def __init_subclass__(cls, **config: Any) -> None: ...


def is_request(message: Any) -> bool:
    """Whether a message is a request: requests are read strictly. [H2]"""
    return bool(message.__struct_config__.forbid_unknown_fields)


def wire_name(field: str, names: Mapping[str, str]) -> str:
    """A core field's name on the wire."""
    return names.get(field) or (f"{field[:-3]}_s" if field.endswith("_us") else field)


# --- Messages ----------------------------------------------------------------------------------


def derived(
    core: type[msgspec.Struct],
    *,
    without: Iterable[str] = (),
    names: Mapping[str, str] | None = None,
) -> Callable[[type[_S]], type[_S]]:
    """Give a message the fields of a core struct but for `without`, in the core's order. A field
    that the message declares itself stays as it is declared."""

    def derive(declared: Any) -> Any:
        own = dict(_declared_fields(declared))
        fields = []
        hints = _hints(core)
        for field, default in _struct_fields(core):
            name = wire_name(field, names or {})
            if name in own:
                fields.append(own.pop(name))
            elif field not in without:
                fields.append(_derived_field(name, hints[field], default, declared))
        made = msgspec.defstruct(
            declared.__name__,
            [*fields, *own.values()],
            bases=declared.__bases__,
            module=declared.__module__,
            namespace={"__doc__": declared.__doc__},
            frozen=True,
            kw_only=True,
            omit_defaults=declared.__struct_config__.omit_defaults,
        )
        _messages.setdefault((core, is_request(made)), made)
        _names[made] = names or {}
        return made

    return derive


_Field = tuple[str, Any, Any]


def _struct_fields(struct: Any) -> Iterator[tuple[str, Any]]:
    """Names and defaults, without resolving annotations that may name later classes."""
    names, defaults = struct.__struct_fields__, struct.__struct_defaults__
    first = len(names) - len(defaults)
    for position, name in enumerate(names):
        yield name, msgspec.NODEFAULT if position < first else defaults[position - first]


def _declared_fields(declared: Any) -> Iterator[tuple[str, _Field]]:
    encoded = dict(zip(declared.__struct_fields__, declared.__struct_encode_fields__, strict=True))
    for name, default in _struct_fields(declared):
        annotation = declared.__annotations__[name]
        if hasattr(default, "factory"):
            value = msgspec.field(name=encoded[name], default_factory=default.factory)
        else:
            value = msgspec.field(name=encoded[name], default=default)
        yield name, (name, annotation, value)


def _derived_field(name: str, annotation: Any, default: Any, message: type) -> _Field:
    wire = _wire_type(name, annotation, message)
    if _is_body(wire):
        default = msgspec.UNSET
    elif default is not msgspec.NODEFAULT:
        default = _wire_default(default, annotation, wire)
    return name, wire, msgspec.field(default=default)


def _wire_type(name: str, annotation: Any, message: type) -> Any:
    bare, optional = _without_none(annotation)
    if bare is bytes:
        return msgspec.Raw | msgspec.UnsetType
    wire = _of_family(name, bare, message)
    return wire | None if optional else wire


def _of_family(name: str, bare: Any, message: type) -> Any:
    strict = is_request(message)
    if strict and name in LIMITS_BY_NAME:
        return LIMITS_BY_NAME[name]
    if get_origin(bare) is tuple:
        return tuple[_of_family("", get_args(bare)[0], message), ...]  # type: ignore[misc]  # at run time
    if strict and bare in LIMITS_BY_TYPE:
        return LIMITS_BY_TYPE[bare]
    if bare is Instant:
        return datetime
    if bare is Duration:
        return float
    return _messages.get((bare, strict), bare)


def _wire_default(default: Any, annotation: Any, wire: Any) -> Any:
    bare, _ = _without_none(annotation)
    if default is None:
        return None
    if bare is Duration:
        return in_seconds(default)
    if isinstance(default, msgspec.Struct) and _without_none(wire)[0] is not type(default):
        return to_wire(type(default), _without_none(wire)[0])(default)
    return default


def _without_none(annotation: Any) -> tuple[Any, bool]:
    """A type without `Annotated` and without None, and whether it had None."""
    if get_origin(annotation) is Annotated:
        return _without_none(get_args(annotation)[0])
    if get_origin(annotation) in (Union, UnionType):
        rest = [each for each in get_args(annotation) if each not in (NoneType, msgspec.UnsetType)]
        if len(rest) == 1:
            return _without_none(rest[0])[0], True
        return annotation, False
    return annotation, False


def _is_body(wire: Any) -> bool:
    return _without_none(wire)[0] is msgspec.Raw


# --- Functions ---------------------------------------------------------------------------------


def to_wire(
    core: type,
    wire: type[_S],
    *,
    given: Iterable[str] = (),
    without: Iterable[str] = (),
    via: Iterable[str] = (),
    names: Mapping[str, str] | None = None,
) -> Callable[..., _S]:
    """The function that makes a message of a core value.

    Fields of the message that are `given`, and required ones that the core does not have, are
    arguments of the function, by keyword; those in `without` keep their defaults. `via` are parts
    of the value whose fields the message has too, such as `job.policy` of a grant.
    """
    writer = _Writer()
    hints = _hints(wire)
    places = [("value", core, _sources(core))]
    for path in via:
        part = _type_at(core, path)
        places.append((f"value.{path}", part, _sources(part)))
    renamed = _names.get(wire, {}) if names is None else names
    core_names = {on_wire: field for field, on_wire in renamed.items()}
    for name, default in _struct_fields(wire):
        if name in without:
            continue
        if name in given:
            writer.argument(name)
            continue
        for where, _, sources in places:
            found = next((each for each in _core_names(name, core_names) if each in sources), None)
            if found is not None:
                source = f"{where}.{found}"
                writer.add(name, _shown(writer, source, sources[found], hints[name]))
                break
        else:
            if default is msgspec.NODEFAULT:
                writer.argument(name)
    return writer.function(wire)


def to_core(
    wire: type,
    core: type[_S],
    *,
    given: Iterable[str] = (),
    without: Iterable[str] = (),
    names: Mapping[str, str] | None = None,
) -> Callable[..., _S]:
    """The function that makes a core value of a message. Fields that are `given`, and required
    ones that the message does not have, are arguments of the function, by keyword, and None if not
    given where the core has it so; those in `without` keep their defaults."""
    writer = _Writer()
    renamed = _names.get(wire, {}) if names is None else names
    sources = _hints(wire)
    hints = _hints(core)
    for field, default in _struct_fields(core):
        name = wire_name(field, renamed)
        if field in without:
            continue
        if field in given:
            writer.argument(field)
        elif name in sources:
            writer.add(field, _read(writer, f"value.{name}", sources[name], hints[field], wire))
        elif default is msgspec.NODEFAULT:
            writer.argument(field, optional=_without_none(hints[field])[1])
    return writer.function(core)


def _within(write: Callable[..., Callable[..., Any]], one: type, other: type) -> Callable[..., Any]:
    """The function for a struct within a struct. A policy may hold a policy: until a function is
    written, those that need it look it up when they are called."""
    if (one, other) not in _functions:
        _functions[one, other] = lambda value: _functions[one, other](value)
        _functions[one, other] = write(one, other)
    return _functions[one, other]


def _core_names(name: str, names: Mapping[str, str]) -> Iterator[str]:
    if name in names:
        yield names[name]
    elif name.endswith("_s"):
        yield f"{name[:-2]}_us"
    yield name


@cache
def _sources(core: type) -> dict[str, Any]:
    """What can be read off a core value: its fields and its properties, with their types."""
    found = {
        name: get_type_hints(member.fget).get("return")
        for kind in core.__mro__
        for name, member in vars(kind).items()
        if isinstance(member, property)
    }
    return found | _hints(core)


def _type_at(core: type, path: str) -> Any:
    found: Any = core
    for part in path.split("."):
        found, _ = _without_none(get_type_hints(found)[part])
    return found


def _shown(writer: "_Writer", source: str, core: Any, wire: Any) -> str:
    """The expression for a core value on the wire."""
    bare, optional = _without_none(core)
    kind, _ = _without_none(wire)
    if kind is msgspec.Raw:
        raw = f"{writer.name(msgspec.Raw)}({source})"
        return _if_any(source, raw, "UNSET") if optional else raw
    if bare is Instant and kind is datetime:
        made = f"moment({source})"
    elif bare is Duration and kind is float:
        made = f"({source} / 1000000)"
    elif get_origin(bare) is tuple and get_args(bare)[0] is not get_args(kind)[0]:
        inner = _shown(writer, "each", get_args(bare)[0], get_args(kind)[0])
        return source if inner == "each" else f"tuple([{inner} for each in {source}])"
    elif _is_a(bare, msgspec.Struct) and _is_a(kind, msgspec.Struct) and bare is not kind:
        made = f"{writer.name(_within(to_wire, bare, kind))}({source})"
    else:
        return source
    return _if_any(source, made, "None") if optional else made


def _read(writer: "_Writer", source: str, wire: Any, core: Any, message: type) -> str:
    """The expression for what came over the wire as a core value."""
    bare, optional = _without_none(core)
    kind, may_lack = _without_none(wire)
    if kind is msgspec.Raw:
        absent = "None" if optional else "NULL"
        return f"({absent} if {source} is UNSET else bytes({source}))"
    if bare is Instant and kind is datetime:
        made = f"instant({source})"
    elif bare is Duration and kind is float:
        made = f"seconds({source})"
    elif bare is JobId and is_request(message):
        made = f"{source}.lower()"
    elif _is_a(bare, StrEnum) and kind is not bare:
        return f"{writer.name(bare)}({source})"
    elif bare is str and may_lack and not optional:
        return f"({source} or '')"  # hidden from this reader
    elif get_origin(bare) is tuple and get_args(bare)[0] is not get_args(kind)[0]:
        inner = _read(writer, "each", get_args(kind)[0], get_args(bare)[0], message)
        return source if inner == "each" else f"tuple([{inner} for each in {source}])"
    elif _is_a(bare, msgspec.Struct) and _is_a(kind, msgspec.Struct) and bare is not kind:
        made = f"{writer.name(_within(to_core, kind, bare))}({source})"
    else:
        return source
    return _if_any(source, made, "None") if optional or may_lack else made


def _if_any(source: str, made: str, otherwise: str) -> str:
    return f"({otherwise} if {source} is None else {made})"


def _is_a(kind: Any, base: type) -> bool:
    return isinstance(kind, type) and issubclass(kind, base)


class _Writer:
    """Collects the source of one function."""

    def __init__(self) -> None:
        self._arguments: list[str] = []
        self._fields: list[str] = []
        self._globals: dict[str, Any] = {
            "UNSET": msgspec.UNSET,
            "NULL": _NULL,
            "moment": moment,
            "instant": instant,
            "seconds": seconds,
        }

    def argument(self, name: str, *, optional: bool = False) -> None:
        self._arguments.append(f"{name}=None" if optional else name)
        self._fields.append(f"{name}={name}")

    def add(self, name: str, expression: str) -> None:
        self._fields.append(f"{name}={expression}")

    def name(self, value: Any) -> str:
        """A name for a value that the source uses."""
        name = f"used_{len(self._globals)}"
        self._globals[name] = value
        return name

    def function(self, made: type[_S]) -> Callable[..., _S]:
        arguments = ", ".join(["value", *(["*", *self._arguments] if self._arguments else [])])
        call = f"{self.name(made)}({', '.join(self._fields)})"
        source = f"def translate({arguments}):\n    return {call}\n"
        exec(source, self._globals)  # noqa: S102 - made of field names of our own types
        function: Callable[..., _S] = self._globals["translate"]
        return function
