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
`derived` gives a message its fields, at import. `to_wire` and `to_core` translate: the first call
for a pair of types makes the function that does it, later ones only read the attributes, convert
the ones that need it and make the other struct. Required fields of a message come first, so that it
can be made of values by position, which takes half the time of names.
"""

from collections.abc import Callable, Collection, Iterable, Iterator, Mapping
from datetime import datetime
from enum import StrEnum
from functools import cache, partial
from operator import attrgetter, itemgetter
from types import NoneType, UnionType
from typing import (
    TYPE_CHECKING,
    Annotated,
    Any,
    NamedTuple,
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

_messages: dict[tuple[type, bool], type[msgspec.Struct]] = {}
"""The message of a core struct, for answers and for requests (True)."""
_plans: "dict[type, _Plan]" = {}


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


class _Plan(NamedTuple):
    """Of a message: the wire's names of core fields, where they differ by more than their unit, and
    the parts of the core value whose fields it has too."""

    names: Mapping[str, str]
    via: tuple[str, ...]


def derived(
    core: type[msgspec.Struct],
    *,
    only: str = "",
    without: Iterable[str] = (),
    via: tuple[str, ...] = (),
    names: Mapping[str, str] | None = None,
) -> Callable[[type[_S]], type[_S]]:
    """Give a message the fields of a core struct but for `without`, the required ones first. A
    field that the message declares itself stays as declared. In the place of a field in `via` come
    the fields of its struct. With `only` it has these fields and properties, in this order, of the
    struct or of those in `via`."""

    def derive(declared: Any) -> Any:
        own = dict(_declared_fields(declared))
        fields: list[Any] = []
        found = _chosen_fields(core, only.split(), via) if only else _core_fields(core, via)
        for field, annotation, default in found:
            name = wire_name(field, names or {})
            if name in own:
                fields.append(own.pop(name))
            elif field not in without:
                fields.append(_derived_field(name, annotation, default, declared))
        fields += own.values()
        made = msgspec.defstruct(
            declared.__name__,
            sorted(fields, key=_has_default),
            bases=declared.__bases__,
            module=declared.__module__,
            namespace={name: each for name, each in vars(declared).items() if _stays(name, each)},
            frozen=True,
            omit_defaults=declared.__struct_config__.omit_defaults,
        )
        _messages.setdefault((core, is_request(made)), made)
        _plans[made] = _Plan(names or {}, via)
        return made

    return derive


def _plan(message: type) -> _Plan:
    return next((_plans[each] for each in message.__mro__ if each in _plans), _Plan({}, ()))


def _stays(name: str, member: Any) -> bool:
    return name == "__doc__" or isinstance(member, property)


def sent_unchanged(core: type[msgspec.Struct]) -> None:
    """Let answers have this core struct itself."""
    _messages[core, False] = core


def _message_of(core: Any, outer: Any) -> Any:
    """The message of a core struct within a message: the one that was declared for it, or one with
    its fields and its documentation."""
    strict = is_request(outer)
    if (core, strict) not in _messages and _is_a(core, msgspec.Struct):
        root = outer.__mro__[outer.__mro__.index(msgspec.Struct) - 1]
        declared = msgspec.defstruct(
            f"{core.__name__}{'Message' if strict else 'Record'}",
            (),
            bases=(root,),
            module=outer.__module__,
            namespace={"__doc__": core.__doc__},
            frozen=True,
            omit_defaults=outer.__struct_config__.omit_defaults,
        )
        derived(core)(declared)
    return _messages.get((core, strict), core)


_Field = tuple[str, Any, Any]


def _struct_fields(struct: Any) -> Iterator[tuple[str, Any]]:
    """Names and defaults, without resolving annotations that may name later classes."""
    names, defaults = struct.__struct_fields__, struct.__struct_defaults__
    first = len(names) - len(defaults)
    for position, name in enumerate(names):
        yield name, msgspec.NODEFAULT if position < first else defaults[position - first]


def _core_fields(core: Any, via: Collection[str]) -> Iterator[_Field]:
    """Names, types and defaults."""
    hints = _hints(core)
    for name, default in _struct_fields(core):
        if name in via:
            yield from _core_fields(hints[name], ())
        else:
            yield name, hints[name], default


def _chosen_fields(core: Any, chosen: Iterable[str], via: Iterable[str]) -> Iterator[_Field]:
    parts = [core, *(_type_at(core, path) for path in via)]
    for name in chosen:
        part = next(each for each in parts if name in _sources(each))
        yield name, _sources(part)[name], dict(_struct_fields(part)).get(name, msgspec.NODEFAULT)


def _declared_fields(declared: Any) -> Iterator[tuple[str, _Field]]:
    encoded = dict(zip(declared.__struct_fields__, declared.__struct_encode_fields__, strict=True))
    for name, default in _struct_fields(declared):
        annotation = declared.__annotations__[name]
        if hasattr(default, "factory"):
            value = msgspec.field(name=encoded[name], default_factory=default.factory)
        else:
            value = msgspec.field(name=encoded[name], default=default)
        yield name, (name, annotation, value)


def _has_default(field: Any) -> bool:
    value = field[2]
    return (value.default, value.default_factory) != (msgspec.NODEFAULT, msgspec.NODEFAULT)


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
    return _message_of(bare, message)


def _wire_default(default: Any, annotation: Any, wire: Any) -> Any:
    bare, _ = _without_none(annotation)
    if default is None:
        return None
    if bare is Duration:
        return in_seconds(default)
    if isinstance(default, msgspec.Struct) and _without_none(wire)[0] is not type(default):
        return to_wire(_without_none(wire)[0], default)
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


# --- Values --------------------------------------------------------------------------------------


class _Change(NamedTuple):
    """How the value of a field becomes that of the other side."""

    convert: Callable[[Any], Any]
    of_none: Any = None


_Sources = dict[str, tuple[str, _Change | None]]
"""By field: the path of the attribute that its value is read from, and how the value changes."""

_Translation = Callable[[Any, Mapping[str, Any]], Any]
"""Makes the other side's struct from a struct and the fields that are given."""

_translations: dict[tuple[object, ...], _Translation] = {}


def to_wire(message: type[_S], value: object, **given: Any) -> _S:
    """A core value as a message. Fields that the core does not have are `given`, or keep their
    defaults."""
    key = (message, type(value), *given)
    translate = _translations.get(key)
    if translate is None:
        sources = _wire_sources(message, type(value), given)
        translate = _translations[key] = _translation(message, sources, given)
    made: _S = translate(value, given)
    return made


def to_core(core: type[_S], message: object, **given: Any) -> _S:
    """The core value that a message stands for. Fields that the message does not have are `given`,
    or keep their defaults, or are None."""
    key = (core, type(message), *given)
    translate = _translations.get(key)
    if translate is None:
        translate = _translations[key] = _core_translation(core, type(message), given)
    made: _S = translate(message, given)
    return made


def _core_translation(core: Any, message: Any, given: Collection[str]) -> _Translation:
    via = [name for name in _plan(message).via if name in _hints(core) and name not in given]
    parts = {name: _type_at(core, name) for name in via}
    known = (*given, *parts)
    sources = _core_sources(core, message, known)
    may_lack = [name for name, hint in _hints(core).items() if _without_none(hint)[1]]
    made_of = _translation(core, sources, known, may_lack)
    if not parts:
        return made_of
    return lambda value, given: made_of(
        value, {**given, **{name: to_core(part, value) for name, part in parts.items()}}
    )


def _wire_sources(message: Any, core: Any, given: Collection[str]) -> _Sources:
    hints, plan = _hints(message), _plan(message)
    places = [("", _sources(core))]
    places += [(f"{path}.", _sources(_type_at(core, path))) for path in plan.via]
    core_names = {on_wire: field for field, on_wire in plan.names.items()}
    found: _Sources = {}
    for name in message.__struct_fields__:
        for place, sources in places if name not in given else ():
            fields = _core_names(name, core_names)
            field = next((each for each in fields if each in sources), None)
            if field is not None:
                found[name] = (place + field, _encoding_of(sources[field], hints[name]))
                break
    return found


def _core_sources(core: Any, message: Any, given: Collection[str]) -> _Sources:
    sources, hints, names = _hints(message), _hints(core), _plan(message).names
    return {
        field: (name, _decoding_of(sources[name], hints[field], message))
        for field in core.__struct_fields__
        if field not in given and (name := wire_name(field, names)) in sources
    }


def _translation(
    made: Any, sources: _Sources, given: Collection[str], may_lack: Collection[str] = ()
) -> _Translation:
    """The function that makes a struct of the values of these sources, of the given values and of
    defaults; fields in `may_lack` are None if they have none of these."""
    rest = {
        name: None if default is msgspec.NODEFAULT and name in may_lack else default
        for name, default in _struct_fields(made)
        if name not in sources and name not in given
    }
    wrong = set(given).difference(made.__struct_fields__)
    wrong |= {name for name, default in rest.items() if default is msgspec.NODEFAULT}
    if wrong:
        raise TypeError(f"{made.__name__} lacks, or does not have: {', '.join(sorted(wrong))}")
    names, values_of = (*sources, *given), _reader(sources)
    if made.__match_args__ != made.__struct_fields__:
        absent = {name: None for name in rest if rest[name] is None}

        def by_name(value: Any, given: Mapping[str, Any]) -> Any:
            return made(**absent, **given, **dict(zip(sources, values_of(value), strict=True)))

        return by_name
    defaults = list(rest.values())
    if (*names, *rest) == made.__struct_fields__:
        return lambda value, given: made(*values_of(value), *given.values(), *defaults)
    arrange = itemgetter(*((*names, *rest).index(name) for name in made.__struct_fields__))
    return lambda value, given: made(*arrange([*values_of(value), *given.values(), *defaults]))


def _reader(sources: _Sources) -> Callable[[Any], list[Any]]:
    """The function that reads the values of these sources."""
    paths = [path for path, _ in sources.values()]
    if not paths:
        return lambda value: []
    read = attrgetter(*paths) if len(paths) > 1 else lambda value: [getattr(value, *paths)]
    changes = [(at, *change) for at, (_, change) in enumerate(sources.values()) if change]

    def values_of(value: Any) -> list[Any]:
        values = list(read(value))
        for at, convert, of_none in changes:
            each = values[at]
            values[at] = of_none if each is None else convert(each)
        return values

    return values_of


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


def _encoding_of(core: Any, wire: Any) -> _Change | None:
    """How a core value becomes one of the wire."""
    bare, _ = _without_none(core)
    kind, _ = _without_none(wire)
    if kind is msgspec.Raw:
        return _Change(msgspec.Raw, of_none=msgspec.UNSET)
    if bare is Instant and kind is datetime:
        return _Change(moment)
    if bare is Duration and kind is float:
        return _Change(in_seconds)
    return _change_within(bare, kind, _encoding_of, to_wire)


def _decoding_of(wire: Any, core: Any, message: type) -> _Change | None:
    """How what came over the wire becomes a core value."""
    bare, optional = _without_none(core)
    kind, may_lack = _without_none(wire)
    if kind is msgspec.Raw:
        absent = None if optional else b"null"
        return _Change(lambda raw: absent if raw is msgspec.UNSET else bytes(raw))
    if bare is Instant and kind is datetime:
        return _Change(instant)
    if bare is Duration and kind is float:
        return _Change(seconds)
    if bare is JobId and is_request(message):
        return _Change(str.lower)
    if _is_a(bare, StrEnum) and kind is not bare:
        return _Change(bare)
    if bare is str and may_lack and not optional:
        return _Change(str, of_none="")  # hidden from this reader
    return _change_within(kind, bare, lambda one, other: _decoding_of(one, other, message), to_core)


def _change_within(
    one: Any,
    other: Any,
    change_of: Callable[[Any, Any], _Change | None],
    translated: Callable[[Any, Any], Any],
) -> _Change | None:
    """How a list or a struct within a struct becomes that of the other side."""
    if get_origin(one) is tuple and get_args(one)[0] is not get_args(other)[0]:
        change = change_of(get_args(one)[0], get_args(other)[0])
        if change is None:
            return None
        convert = change.convert
        return _Change(lambda values: tuple([convert(each) for each in values]))
    if not (_is_a(one, msgspec.Struct) and _is_a(other, msgspec.Struct)) or one is other:
        return None
    return _Change(partial(translated, other))


def _is_a(kind: Any, base: type) -> bool:
    return isinstance(kind, type) and issubclass(kind, base)
