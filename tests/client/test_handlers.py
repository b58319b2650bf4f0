"""Handlers: which functions can be jobs, and how arguments and results travel."""

import dataclasses
import functools
from collections.abc import Callable, Iterable, Sequence
from datetime import UTC, date, datetime, time, timedelta, timezone
from decimal import Decimal
from enum import Enum, IntEnum, StrEnum
from pathlib import Path
from typing import (
    Annotated,
    Any,
    Generic,
    Literal,
    NamedTuple,
    NewType,
    NoReturn,
    Optional,
    TypedDict,
    TypeVar,
    Union,
)
from uuid import UUID

import attrs
import msgspec
import pydantic
import pytest

from tenure import Context, InvalidInput, ValidationError
from tenure.core.validation import Limits, check_body
from tenure.handlers.registry import Handler, Isolation, Registry, make_handler
from tests.support.cases import each_case

UserId = NewType("UserId", int)
T = TypeVar("T")


class Colour(Enum):
    RED = "red"


class Size(IntEnum):
    BIG = 3


class Word(StrEnum):
    YES = "yes"


@dataclasses.dataclass
class Line:
    sku: str
    count: int = 1


@attrs.define
class Parcel:
    weight: float
    lines: list[Line] = attrs.field(factory=list)


class Point(NamedTuple):
    x: int
    y: int


class Options(TypedDict, total=False):
    deep: bool


class Node(msgspec.Struct):
    value: int
    children: "list[Node]" = []


class Customer(pydantic.BaseModel):
    name: str = pydantic.Field(min_length=1)
    born: date | None = None


class Order(msgspec.Struct):
    customer: Customer
    lines: tuple[Line, ...]


class Box(msgspec.Struct, Generic[T]):
    content: T


def taking(hint: Any) -> Handler:
    """A handler whose only parameter has this annotation."""

    def take(value): ...  # type: ignore[no-untyped-def]  # annotated in the next line

    take.__annotations__ = {"value": hint}
    return make_handler(take, kind="take")


def giving(hint: Any) -> Handler:
    """A handler whose result has this annotation."""

    def give(): ...  # type: ignore[no-untyped-def]  # annotated in the next line

    give.__annotations__ = {"return": hint}
    return make_handler(give, kind="give")


def name_of(value: object) -> str:
    """A test id without addresses and set order: every test process must make the same."""
    return str(getattr(value, "__name__", type(value).__name__))


UTC_2 = timezone(timedelta(hours=2))

VALUES: list[tuple[Any, Any]] = [
    (str, "grüße \U0001f600"),
    (int, 2**53 - 1),
    (float, 1.5),
    (float, 3),
    (bool, True),
    (type(None), None),
    (bytes, b"\x00\xff"),
    (datetime, datetime(2030, 1, 2, 3, 4, 5, 6, tzinfo=UTC)),
    (datetime, datetime(2030, 1, 2, tzinfo=UTC_2)),
    (date, date(2030, 1, 2)),
    (time, time(3, 4, 5)),
    (timedelta, timedelta(days=1, microseconds=7)),
    (UUID, UUID(int=7)),
    (Decimal, Decimal("1.10")),
    (Colour, Colour.RED),
    (Size, Size.BIG),
    (Word, Word.YES),
    (Literal["a", 1, None], 1),
    (UserId, UserId(7)),
    (int | str | None, None),
    (Optional[Line], Line("a", 2)),  # noqa: UP045 - the old spelling is what is tested
    (Union[int, str, None], "x"),  # noqa: UP007 - the old spelling is what is tested
    (list[dict[str, tuple[int, ...]]], [{"a": (1, 2)}, {}]),
    (dict[int, str], {1: "a"}),
    (dict[UUID, Decimal], {UUID(int=1): Decimal(2)}),
    (set[int], {1, 2}),
    (frozenset[str], frozenset({"a"})),
    (Sequence[int], [1, 2]),
    (tuple[int, str], (1, "a")),
    (Point, Point(1, 2)),
    (Line, Line("a")),
    (Parcel, Parcel(1.5, [Line("a", 2)])),
    (Options, {"deep": True}),
    (Node, Node(1, [Node(2)])),
    (Customer, Customer(name="Ann", born=date(1990, 1, 2))),
    (Customer | None, None),
    (list[Customer], [Customer(name="Ann")]),
    (Order, Order(Customer(name="Ann"), (Line("a"),))),
    (Box[int], Box(1)),
    (Annotated[int, msgspec.Meta(ge=1)], 1),
    (Any, {"anything": [1, None, "x"]}),
    (object, ["anything"]),
    (dict, {"a": 1}),
    (list, [1]),
]


def test_the_payload_of_a_call_does_not_depend_on_how_its_arguments_were_given() -> None:
    """Otherwise a call that is repeated in other words would be another request."""

    def book(room: int, guest: str, ctx: Context) -> None: ...

    handler = make_handler(book)

    payloads = {
        handler.encode_arguments((1, "ann"), {}),
        handler.encode_arguments((1,), {"guest": "ann"}),
        handler.encode_arguments((), {"room": 1, "guest": "ann"}),
        handler.encode_arguments((), {"guest": "ann", "room": 1}),
    }

    assert payloads == {b'{"room":1,"guest":"ann"}'}


@each_case(("hint", "value"), VALUES)
def test_what_is_given_arrives_equal(hint: Any, value: Any) -> None:
    handler = taking(hint)

    payload = handler.encode_arguments((value,), {})

    check_body("payload", payload, Limits())
    [(name, arrived)] = handler.decode_arguments(payload).items()
    assert name == "value"
    assert arrived == value
    assert type(arrived) is type(value) or isinstance(value, int)


@each_case(("hint", "value"), VALUES)
def test_what_is_returned_arrives_equal(hint: Any, value: Any) -> None:
    handler = giving(hint)

    assert handler.decode_result(handler.encode_result(value)) == value


WRONG: list[tuple[Any, Any, str]] = [
    (str, 1, "Expected `str`, got `int` at value"),
    (int, "1", "Expected `int`, got `str` at value"),
    (int, True, "Expected `int`, got `bool` at value"),
    (int, None, "Expected `int`, got `null` at value"),
    (bytes, "aGk=", "Expected `bytes`, got `str` at value"),
    (datetime, "2030-01-01T00:00:00Z", "Expected `datetime`, got `str` at value"),
    (Literal["a", "b"], "c", "at value"),
    (Colour, "blue", "Invalid enum value 'blue' at value"),
    (list[int], [1, "2"], r"at value\[1\]"),
    (dict[str, list[Line]], {"a": [Line("x"), Line(7)]}, r"at value\[\.\.\.\]\[1\]\.sku"),  # type: ignore[arg-type]  # the mistake
    (dict[int, str], {"a": "b"}, "as a key at value"),
    (Line, {"count": 1}, "missing required field `sku` at value.sku"),
    (Parcel, {"weight": "heavy"}, r"at value\.weight"),
    (Options, {"deep": "very"}, r"at value\.deep"),
    (Point, Point(1, "up"), r"at value\[1\]"),  # type: ignore[arg-type]  # the mistake
    (Node, {"value": 1, "children": [{"value": "x"}]}, r"at value\.children\[0\]\.value"),
    (Customer, {"name": ""}, "at least 1 .*its name at value"),
    (Order, {"customer": {"name": ""}, "lines": []}, r"at least 1 .*its name at value\.customer"),
    (Annotated[int, msgspec.Meta(ge=1)], 0, ">= 1 at value"),
]


@each_case(("hint", "value", "message"), WRONG)
def test_what_does_not_fit_is_refused_with_its_path(hint: Any, value: Any, message: str) -> None:
    with pytest.raises(ValidationError, match=message) as caught:
        taking(hint).encode_arguments((value,), {})

    assert caught.value.path.startswith("value")
    with pytest.raises(ValidationError, match=message.replace("at value", "at return")):
        giving(hint).encode_result(value)


@pytest.mark.parametrize(
    ("value", "path"),
    [
        (float("nan"), "value"),
        ([1.0, float("inf")], "value[1]"),
        ({"a": {"b": -float("inf")}}, "value.a.b"),
        (Parcel(float("nan")), "value.weight"),
    ],
)
def test_a_number_that_json_cannot_carry_is_not_turned_into_nothing(value: Any, path: str) -> None:
    with pytest.raises(ValidationError, match="JSON cannot carry the number") as caught:
        taking(Any).encode_arguments((value,), {})

    assert caught.value.path == path


def test_nan_is_refused_where_null_would_fit() -> None:
    with pytest.raises(ValidationError):
        taking(float | None).encode_arguments((float("nan"),), {})


def test_a_huge_integer_is_refused_by_the_core_with_a_way_out() -> None:
    payload = taking(int).encode_arguments((2**53,), {})

    with pytest.raises(InvalidInput, match=r"outside ±\(2\^53 - 1\); send it as a string"):
        check_body("payload", payload, Limits())


@pytest.mark.parametrize(
    "value", [object(), Path("x"), 1j, {(1, 2): 3}, lambda: None, [object()]], ids=name_of
)
def test_what_has_no_json_form_is_refused(value: Any) -> None:
    with pytest.raises(ValidationError):
        taking(Any).encode_arguments((value,), {})
    with pytest.raises(ValidationError):
        giving(Any).encode_result(value)


def test_a_value_that_contains_itself_is_refused() -> None:
    loop: list[Any] = []
    loop.append(loop)

    with pytest.raises(ValidationError):
        taking(Any).encode_arguments((loop,), {})


def test_subclasses_of_plain_types_travel_as_plain_values() -> None:
    class Markup(str):
        pass

    assert taking(Any).encode_arguments((Markup("<b>"),), {}) == b'{"value":"<b>"}'


# --- signatures --------------------------------------------------------------------------------


def test_defaults_are_left_to_the_worker_whatever_they_are() -> None:
    def work(a: int, b: list[int] = [], c: object = object()) -> None: ...  # noqa: B006 - such functions exist

    handler = make_handler(work)

    assert handler.encode_arguments((1,), {}) == b'{"a":1}'
    assert handler.decode_arguments(b'{"a":1}') == {"a": 1}


def test_without_annotations_anything_that_json_carries_is_taken() -> None:
    def work(a, b=2): ...  # type: ignore[no-untyped-def]  # the point of the test

    handler = make_handler(work)

    assert handler.decode_arguments(handler.encode_arguments(({"x": [1]},), {"b": "y"})) == {
        "a": {"x": [1]},
        "b": "y",
    }
    assert handler.decode_result(handler.encode_result([1])) == [1]


@pytest.mark.parametrize(
    ("args", "kwargs", "message"),
    [
        ((), {}, "its parameter a is missing"),
        ((1, 2, 3), {}, "too many positional"),
        ((1,), {"a": 1}, "multiple values"),
        ((1,), {"z": 1}, "it has no parameter z"),
    ],
)
def test_a_call_that_python_would_refuse_is_refused(
    args: tuple[Any, ...], kwargs: dict[str, Any], message: str
) -> None:
    def work(a: int, b: int = 0) -> None: ...

    with pytest.raises(ValidationError, match=f"work: .*{message}"):
        make_handler(work).encode_arguments(args, kwargs)


@pytest.mark.parametrize(
    ("payload", "message", "path"),
    [
        (b'{"b":1}', "missing required field `a`", "a"),
        (b'{"a":1,"z":1}', "unknown field `z`", "z"),
        (b'{"a":"x"}', "Expected `int`, got `str`", "a"),
        (b"[1]", "Expected `object`, got `array`", "$"),
        (b"null", "Expected `object`, got `null`", "$"),
        (b"{", "not JSON", "$"),
        (b"\xff", "not JSON", "$"),
    ],
)
def test_a_payload_from_elsewhere_is_checked_before_it_runs(
    payload: bytes, message: str, path: str
) -> None:
    def work(a: int, b: int = 0) -> None: ...

    with pytest.raises(ValidationError, match=message) as caught:
        make_handler(work).decode_arguments(payload)

    assert caught.value.path == path


def test_a_function_without_parameters_takes_an_empty_object_or_null() -> None:
    def work() -> None: ...

    handler = make_handler(work)

    assert handler.encode_arguments((), {}) == b"{}"
    assert handler.decode_arguments(b"{}") == handler.decode_arguments(b"null") == {}


def test_the_context_is_found_by_its_annotation_wherever_it_stands() -> None:
    def first(ctx: Context, a: int) -> None: ...
    def last(a: int, me: Context) -> None: ...
    def keyword(a: int, *, me: "Context") -> None: ...
    def optional(a: int, me: Context | None = None) -> None: ...
    def old_optional(a: int, me: Optional[Context] = None) -> None: ...  # noqa: UP045 - old spelling
    def annotated(a: int, me: Annotated[Context, "mine"]) -> None: ...
    def none(a: int) -> None: ...

    found = [
        make_handler(each).context_parameter
        for each in (first, last, keyword, optional, old_optional, annotated, none)
    ]

    assert found == ["ctx", "me", "me", "me", "me", "me", None]
    for function in (first, last, keyword, optional, annotated):
        assert make_handler(function).encode_arguments((1,), {}) == b'{"a":1}'


def test_two_contexts_are_refused() -> None:
    def work(one: Context, two: Context) -> None: ...

    with pytest.raises(InvalidInput, match="one and two both take the context"):
        make_handler(work)


def test_annotations_may_name_what_is_defined_further_down() -> None:
    namespace: dict[str, Any] = {"__name__": "later"}
    exec("def work(a: 'Later') -> 'Later': return a", namespace)  # noqa: S102 - a module in small
    handler = make_handler(namespace["work"])
    with pytest.raises(InvalidInput, match=r"name 'Later' is not defined; import the type"):
        handler.encode_arguments((1,), {})

    namespace["Later"] = int

    assert handler.encode_arguments((1,), {}) == b'{"a":1}'


def test_a_registry_can_be_asked_to_resolve_everything_at_once() -> None:
    namespace: dict[str, Any] = {"__name__": "never"}
    exec("def work(a: 'Never'): ...", namespace)  # noqa: S102 - a module in small
    registry = Registry()
    registry.add(make_handler(namespace["work"]))

    with pytest.raises(InvalidInput, match="Never"):
        registry.check()


def positional_only(a: int, /) -> None: ...
def star_args(*args: int) -> None: ...
def star_kwargs(**kwargs: int) -> None: ...
def context_positional(ctx: Context, /) -> None: ...


@pytest.mark.parametrize("function", [positional_only, star_args, star_kwargs, context_positional])
def test_parameters_without_a_name_are_refused(function: Callable[..., Any]) -> None:
    with pytest.raises(InvalidInput, match="named parameters"):
        make_handler(function)


class Service:
    def method(self, a: int) -> None: ...

    @staticmethod
    def static(a: int) -> None: ...

    def __call__(self) -> None: ...


def generator() -> Iterable[int]:
    yield 1


async def async_generator() -> Any:
    yield 1


@pytest.mark.parametrize(
    ("function", "message"),
    [
        (Service.method, "is a method"),
        (Service().method, "is a method"),
        (staticmethod(positional_only), "is a method"),
        (Service(), "is not a function"),
        (Service, "is not a function"),
        (functools.partial(star_args, 1), "is not a function"),
        (7, "is not a function"),
        (generator, "is a generator"),
        (async_generator, "is a generator"),
    ],
    ids=name_of,
)
def test_only_functions_that_a_worker_can_call_by_name_become_jobs(
    function: Any, message: str
) -> None:
    with pytest.raises(InvalidInput, match=message):
        make_handler(function, kind="x")


def test_static_methods_and_closures_are_functions() -> None:
    outer = 1

    def inner(a: int) -> int:
        return a + outer

    assert make_handler(inner).kind == "inner"
    assert make_handler(Service.static).kind == "static"


def test_a_wrapped_function_shows_its_own_signature() -> None:
    def log(function: Callable[..., Any]) -> Callable[..., Any]:
        @functools.wraps(function)
        def wrapper(*args: Any, **kwargs: Any) -> Any:
            return function(*args, **kwargs)

        return wrapper

    @log
    def work(a: int) -> int:
        return a

    assert make_handler(work).encode_arguments((1,), {}) == b'{"a":1}'


@pytest.mark.parametrize(
    "hint",
    [
        Path,
        list[Path],
        dict[str, Path | None],
        Callable[[int], int],
        type[int],
        complex,
        Iterable[int],
        Box[Path],
    ],
    ids=name_of,
)
def test_an_annotation_without_json_form_is_refused_at_decoration(hint: Any) -> None:
    with pytest.raises(InvalidInput, match="has no JSON form"):
        taking(hint)
    with pytest.raises(InvalidInput, match="its result"):
        giving(hint)


def test_a_union_that_json_cannot_tell_apart_is_refused_at_decoration() -> None:
    with pytest.raises(InvalidInput, match=r"cannot be checked: .*or with Any"):
        taking(datetime | str)


def test_a_function_that_never_returns_has_no_result_to_check() -> None:
    assert giving(NoReturn).encode_result(None) == b"null"


def test_a_result_of_the_wrong_type_is_refused_at_return() -> None:
    with pytest.raises(ValidationError, match=r"at return\[0\]\.count"):
        giving(list[Line]).encode_result([Line("a", "two")])  # type: ignore[arg-type]  # the mistake


# --- isolation and registration ----------------------------------------------------------------


def test_isolation_follows_from_the_kind_of_function() -> None:
    def sync() -> None: ...
    async def coroutine() -> None: ...

    assert make_handler(sync).isolation is Isolation.PROCESS
    assert make_handler(coroutine).isolation is Isolation.ASYNC
    assert make_handler(coroutine).is_async
    assert make_handler(sync, isolation=Isolation.THREAD).isolation is Isolation.THREAD
    with pytest.raises(InvalidInput, match="not an async def"):
        make_handler(sync, isolation=Isolation.ASYNC)


def test_two_functions_of_one_kind_are_a_mistake_that_names_both() -> None:
    def one() -> None: ...
    def two() -> None: ...

    registry = Registry()
    registry.add(make_handler(one, kind="same"))

    two.__module__ = "shop.mail"
    with pytest.raises(InvalidInput, match=r"twice, by tests\..*\.one and shop\.mail\..*two"):
        registry.add(make_handler(two, kind="same"))
    assert [handler.function for handler in registry] == [one]
    assert registry.get(make_handler(one, kind="same").kind) is not None
