"""Fields that are given twice: found without parsing payloads, results and checkpoints."""

import json

import msgspec
import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from tenure.core.validation import Limits
from tenure.protocol.codec import EmbeddedBodies, InvalidMessage, decode_request
from tenure.protocol.requests import EnqueueManyMessage
from tenure.protocol.routes import ROUTES
from tenure_conformance.spec import spec

SPACE = st.sampled_from(["", " ", "\n\t"])
BODIES = st.sampled_from(
    ["1", "12", "null", '"a"', '"}"', '"\\""', '{"payload":1}', '["]",{}]', " [ 1 ] ", "[]"]
)
FIELDS = st.one_of(
    st.tuples(st.just('"payload"'), BODIES),
    st.tuples(st.just('"priority"'), st.sampled_from(["1", "12", "0"])),
    st.tuples(
        st.just('"policy"'), st.sampled_from(["{}", '{"lease_s":60}', '{ "max_attempts" : 2 }'])
    ),
    st.tuples(
        st.just('"meta"'),
        st.sampled_from(["{}", '{"a":"}"}', '{"a":"1","b":""}', '{"a":"","a":""}']),
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


def names_outside_payloads(text: str) -> list[list[str]]:
    """The names in each object of a request, as a parser finds them; not those in payloads."""
    found: list[list[str]] = []

    def note(pairs: list[tuple[str, object]]) -> dict[str, object]:
        if {"jobs", "queue", "lease_s", "max_attempts", "a"}.intersection(
            name for name, _ in pairs
        ):
            found.append([name for name, _ in pairs])
        return dict(pairs)

    json.loads(text, object_pairs_hook=note)
    return found


@spec("H2", "H89")
@given(requests())
@example('{"jobs":[{"queue":"q","kind":"k","payload":1,"dedupe_key":"payload","dedupe_key":null}]}')
def test_a_field_is_found_twice_where_a_parser_finds_it(text: str) -> None:
    twice = {
        name for names in names_outside_payloads(text) for name in names if names.count(name) > 1
    }

    if twice:
        with pytest.raises(InvalidMessage) as refused:
            decode_request(EnqueueManyMessage, text.encode())
        assert refused.value.field.rpartition(".")[2] in twice
        return
    message = decode_request(EnqueueManyMessage, text.encode())

    payloads = [each["payload"] for each in json.loads(text)["jobs"] if "payload" in each]
    sent = [each.payload for each in message.jobs if each.payload is not msgspec.UNSET]
    assert [json.loads(bytes(body)) for body in sent] == payloads


@spec("H2")
def test_a_name_with_escapes_is_refused_because_it_may_be_there_twice() -> None:
    body = b'{"jobs":[{"queue":"q","kind":"k","pay\\u006coad":1}]}'

    with pytest.raises(InvalidMessage, match="escapes") as refused:
        decode_request(EnqueueManyMessage, body)

    assert refused.value.field == "jobs[0]"


@spec("H2", "H39")
def test_objects_in_objects_have_a_limit() -> None:
    policy = b'{"compensation":{"kind":"k","queue":"q","policy":' * 40 + b"{}" + b"}}" * 40
    body = b'{"jobs":[{"queue":"q","kind":"k","policy":%s}]}' % policy

    with pytest.raises(InvalidMessage, match="nested too deeply"):
        decode_request(EnqueueManyMessage, body)


@spec("H89")
def test_the_place_of_a_payload_is_named() -> None:
    text = b'{"jobs":[{"queue":"q","kind":"k"},{"queue":"q","kind":"k","payload":%s}]}'
    body = text % (b"[" * 65 + b"]" * 65)

    with pytest.raises(InvalidMessage) as refused:
        EmbeddedBodies(decode_request(EnqueueManyMessage, body), Limits())

    assert refused.value.field == "jobs[1].payload"


def test_requests_have_no_types_in_which_a_field_could_hide() -> None:
    """Lists are tuples: nothing else is searched, besides structs and maps of texts."""
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
            case msgspec.inspect.DictType():
                check(info.value_type)
            case (
                msgspec.inspect.ListType()
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
