"""The table of routes is whole, and what is made of it says what it says."""

from datetime import UTC, datetime
from functools import cache
from pathlib import Path

import pytest

from tenure.core.instants import Duration, Instant, seconds
from tenure.core.vocabulary import Role
from tenure.errors import InvalidInput
from tenure.protocol import codec, fields, requests
from tenure.protocol.openapi import STATUS_TEXT, openapi, statuses
from tenure.protocol.routes import BY_NAME, ROUTES, Route, Shape
from tenure_conformance.spec import spec
from tests.support.cases import each_case
from tools.http_reference import page

ROOT = Path(__file__).parents[2]
PUBLIC = {"healthz", "readyz"}

whole_description = cache(openapi)


def name_of(route: Route) -> str:
    return route.name


def test_no_two_routes_share_a_name_or_an_address() -> None:
    assert len(BY_NAME) == len(ROUTES)
    assert len({(route.method, route.path) for route in ROUTES}) == len(ROUTES)


def test_only_routes_that_reveal_nothing_are_public() -> None:
    assert {route.name for route in ROUTES if route.is_public} == PUBLIC


@each_case("route", ROUTES)
def test_a_viewer_changes_nothing(route: Route) -> None:
    is_a_look = route.method == "GET" or route.name == "lookup"

    assert is_a_look or Role.VIEWER not in route.roles


@each_case("route", ROUTES)
def test_a_route_with_a_body_says_what_it_is_and_how_large(route: Route) -> None:
    has_body = route.request_shape is not Shape.NONE

    assert has_body == (route.max_body_bytes > 0)
    assert (route.request_shape is Shape.JSON) == (route.request is not None)


@spec("H1")
@each_case("route", ROUTES)
def test_the_description_has_every_route_with_every_status(route: Route) -> None:
    described = whole_description()["paths"][route.path][route.method.lower()]

    assert described["operationId"] == route.name
    assert {int(status) for status in described["responses"]} == set(statuses(route))
    assert set(statuses(route)) <= STATUS_TEXT.keys()


def test_the_description_has_nothing_else_and_every_reference_leads_somewhere() -> None:
    description = openapi()

    operations = [each for path in description["paths"].values() for each in path]
    named = {
        f"#/components/{sort}/{name}"
        for sort, parts in description["components"].items()
        for name in parts
    }
    assert len(operations) == len(ROUTES)
    assert set(references(description)) <= named


@spec("H1")
def test_the_reference_page_is_that_of_the_table() -> None:
    written = (ROOT / "docs/reference/http.md").read_text(encoding="utf-8")

    assert written == page(), "run `make docs-generated`, and look at what changed"
    assert all(f"`{route.method} {route.path}`" in written for route in ROUTES)


def references(part: object) -> list[str]:
    if isinstance(part, list):
        return [found for each in part for found in references(each)]
    if not isinstance(part, dict):
        return []
    own = [part["$ref"]] if "$ref" in part else []
    return own + [found for each in part.values() for found in references(each)]


def test_parts_of_a_path_are_encoded() -> None:
    assert BY_NAME["pause"].url(queue="a/b c") == "/v1/queues/a%2Fb%20c/pause"


@spec("H3")
def test_an_instant_travels_with_its_offset_and_comes_back_to_the_microsecond() -> None:
    at = datetime(2030, 1, 2, 3, 4, 5, 678901, tzinfo=UTC)
    body = b'{"queue":"q","kind":"k","run_at":"2030-01-02T05:04:05.678901+02:00"}'

    message = codec.decode(requests.EnqueueMessage, body)

    assert message.run_at == at
    assert fields.moment(fields.instant(at)) == at
    assert [fields.moment(Instant(far)).year for far in (-(10**18), 10**18)] == [1, 9999]
    with pytest.raises(InvalidInput, match="timezone") as refused:
        codec.decode(requests.EnqueueMessage, body.replace(b"+02:00", b""))
    assert refused.value.field == "run_at"


@spec("H3")
@pytest.mark.parametrize("microseconds", [0, 1, 999_999, 31_622_400_000_000])
def test_a_duration_comes_back_to_the_microsecond(microseconds: int) -> None:
    travelled = fields.in_seconds(Duration(microseconds))

    assert seconds(travelled) == microseconds


@pytest.mark.parametrize(
    ("pairs", "field"),
    [
        ([("limit", "many")], "limit"),
        ([("limit", "501")], "limit"),
        ([("status", "asleep")], "status[0]"),
        ([("colour", "red")], "colour"),
        ([("queue", "a"), ("queue", "b")], "queue"),
        ([("before", "not-an-id")], "before"),
    ],
)
def test_a_query_that_is_wrong_names_its_field(pairs: list[tuple[str, str]], field: str) -> None:
    with pytest.raises(InvalidInput) as refused:
        codec.decode_query(requests.JobsQuery, pairs)

    assert refused.value.field == field


def test_a_query_comes_back_as_it_was() -> None:
    query = requests.JobsQuery(status=("queued", "failed"), limit=7, bodies=True)

    pairs = codec.encode_query(query)

    assert codec.encode_query(codec.decode_query(requests.JobsQuery, pairs)) == pairs


@pytest.mark.parametrize(
    ("body", "code", "field"),
    [
        (b"", "malformed", "body"),
        (b"{", "malformed", "body"),
        (b"\xff\xfe", "malformed", "body"),
        (b"[]", "invalid_input", "body"),
        (b'{"reports":[]}', "invalid_input", "reports"),
        (b'{"reports":[{"op":"explode"}]}', "invalid_input", "reports[0].op"),
        (b'{"reports":[{"op":"start"}]}', "invalid_input", "reports[0].job_id"),
        (b'{"reports":' + b"[" * 100_000, "invalid_input", "reports[0]"),
    ],
)
def test_a_body_that_is_wrong_names_its_field(body: bytes, code: str, field: str) -> None:
    with pytest.raises(InvalidInput) as refused:
        codec.decode(requests.ReportsMessage, body)

    assert (refused.value.code, refused.value.field) == (code, field)


def test_a_body_of_endless_brackets_is_refused() -> None:
    body = b'{"queue":"q","kind":"k","payload":' + b"[" * 200_000

    with pytest.raises(InvalidInput):
        codec.decode(requests.EnqueueMessage, body)
