"""Bodies in large requests: found beside the message, without parsing them."""

import json

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tenure.core.validation import Limits
from tenure.errors import InvalidInput
from tenure.protocol.codec import InvalidMessage, _duplicate_finder, decode, find_embedded
from tenure.protocol.requests import EnqueueManyMessage
from tenure.protocol.routes import ROUTES
from tenure_conformance.spec import spec

SPACE = st.sampled_from(["", " ", "\n\t"])
BODIES = st.sampled_from(
    ["1", "12", "null", '"a"', '"}"', '"\\""', '{"payload":1}', '["]",{}]', " [ 1 ] ", "[]"]
)
FIELDS = st.one_of(
    st.tuples(st.sampled_from(['"payload"', '"pay\\u006coad"']), BODIES),
    st.tuples(st.just('"priority"'), st.sampled_from(["1", "12", "0"])),
    st.tuples(
        st.just('"policy"'), st.sampled_from(["{}", '{"lease_s":60}', '{ "max_attempts" : 2 }'])
    ),
    st.tuples(st.just('"dedupe_key"'), st.sampled_from(["null", '"a\\"b"', '"payload"'])),
)


@st.composite
def requests(draw: st.DrawFn) -> str:
    """Batches of jobs, in which fields may be given twice."""

    def spaced(text: str) -> str:
        return draw(SPACE) + text + draw(SPACE)

    jobs = []
    for fields in draw(st.lists(st.lists(FIELDS, max_size=4), min_size=1, max_size=3)):
        pairs = draw(st.permutations([('"queue"', '"q"'), ('"kind"', '"k"'), *fields]))
        members = [f"{spaced(name)}:{spaced(value)}" for name, value in pairs]
        jobs.append(spaced("{" + ",".join(members) + "}"))
    return spaced('{"jobs":' + spaced("[" + ",".join(jobs) + "]") + "}")


@spec("H2", "H85")
@given(requests())
def test_a_walk_finds_what_a_parser_finds(text: str) -> None:
    message = decode(EnqueueManyMessage, text.encode())
    try:
        _duplicate_finder.decode(text.strip())
        is_given_twice = False
    except InvalidMessage:
        is_given_twice = True

    try:
        found = find_embedded(message, text.encode(), Limits())._found
    except InvalidInput:
        assert is_given_twice
        return

    assert not is_given_twice
    payloads = [each["payload"] for each in json.loads(text)["jobs"] if "payload" in each]
    assert [json.loads(body) for _, body in found] == payloads


@spec("H85")
def test_a_walk_names_the_place_of_a_field() -> None:
    text = b'{"jobs":[{"queue":"q","kind":"k"},{"queue":"q","kind":"k","payload":%s}]}'
    body = text % (b"[" * 65 + b"]" * 65)

    with pytest.raises(InvalidMessage) as refused:
        find_embedded(decode(EnqueueManyMessage, body), body, Limits())

    assert refused.value.field == "jobs[1].payload"


def test_requests_have_no_types_that_a_walk_does_not_know() -> None:
    """Lists are tuples and objects are structs, or a walk would take them for duplicates."""
    kinds = {route.request for route in ROUTES if route.request is not None}
    seen: set[type] = set()

    def check(info: object) -> None:
        match info:
            case msgspec.inspect.Metadata():
                check(info.type)
            case msgspec.inspect.UnionType():
                for each in info.types:
                    check(each)
            case msgspec.inspect.VarTupleType():
                check(info.item_type)
            case msgspec.inspect.StructType():
                if info.cls not in seen:
                    seen.add(info.cls)
                    for field in info.fields:
                        check(field.type)
            case (
                msgspec.inspect.DictType()
                | msgspec.inspect.ListType()
                | msgspec.inspect.SetType()
                | msgspec.inspect.FrozenSetType()
                | msgspec.inspect.AnyType()
            ):
                pytest.fail(f"{info} in a request")
            case _:
                pass

    for kind in kinds:
        check(msgspec.inspect.type_info(kind))

    assert len(seen) > 20
