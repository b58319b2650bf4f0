"""How a dashboard is set up: its origin, and what is said where jinja2 is missing."""

import pytest

from tenure.dashboard.settings import check_origin
from tenure.errors import InvalidInput
from tenure_conformance.spec import spec
from tests.server.harness import Stage


@spec("DB7")
@pytest.mark.parametrize(
    ("given", "origin"),
    [
        ("https://Jobs.Example.com/", "https://jobs.example.com"),
        ("http://localhost:8080", "http://localhost:8080"),
        ("https://[::1]:7717", "https://[::1]:7717"),
        ("https://jobs.example.com:443", "https://jobs.example.com"),
        ("http://jobs.example.com:80/", "http://jobs.example.com"),
        ("https://jobs.example.com:80", "https://jobs.example.com:80"),
    ],
)
def test_an_origin_is_written_as_browsers_send_it(given: str, origin: str) -> None:
    assert check_origin(given) == origin


@spec("DB7")
@pytest.mark.parametrize(
    "given",
    [
        "jobs.example.com",
        "https://x/y",
        "https://u@x",
        "ftp://x",
        "https://",
        "",
        "null",
        "https://x:0",
        "https://x:70000",
        "https://x:0443",
    ],
)
def test_what_is_no_origin_is_refused(given: str) -> None:
    with pytest.raises(InvalidInput, match="--public-origin"):
        check_origin(given)


@spec("DB1")
def test_a_server_without_pages_answers_as_before() -> None:
    stage = Stage()
    try:
        assert stage.ask("GET", "/", headers={"accept": "text/html"}).code == "unknown_route"
    finally:
        stage.close()
