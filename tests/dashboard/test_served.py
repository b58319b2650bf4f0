"""`tenure serve` with and without its dashboard, as processes."""

import stat
from collections.abc import Iterator
from pathlib import Path

import pytest

from tenure_conformance.spec import spec
from tests.server.harness import Answer
from tests.server.processes import House, Process, read

pytestmark = pytest.mark.process


@pytest.fixture
def house(tmp_path: Path) -> Iterator[House]:
    house = House(f"sqlite:///{tmp_path / 'house.db'}", tmp_path)
    yield house
    house.close()


def open_page(server: Process, path: str) -> Answer:
    """A page, as a browser asks for it."""
    connection = server.connect()
    try:
        connection.request("GET", path, headers={"Accept": "text/html"})
        return read(connection)
    finally:
        connection.close()


@spec("DB1")
@spec("DB12")
def test_a_server_serves_pages_and_keeps_its_key_to_itself(house: House, tmp_path: Path) -> None:
    server = house.serve()

    page, form = open_page(server, "/"), open_page(server, "/sign-in")

    assert (page.status, page.headers["location"]) == (303, "/sign-in")
    assert (form.status, "<h1>Sign in</h1>" in form.text) == (200, True)
    key = tmp_path / "house.db.session-key"
    assert stat.S_IMODE(key.stat().st_mode) == 0o600
    assert key.read_text().strip() not in server.log


@spec("DB12")
def test_a_server_with_an_exposed_key_does_not_start(house: House, tmp_path: Path) -> None:
    key = tmp_path / "key"
    key.write_text("00" * 32)
    key.chmod(0o644)

    refused = house.tenure("serve", "--port", "0", "--session-key", str(key))

    assert refused.returncode != 0
    assert f"others can read or write {key}" in refused.stderr


@spec("DB1")
def test_a_server_can_be_started_without_pages(house: House, tmp_path: Path) -> None:
    server = house.serve("--no-dashboard")

    answer = open_page(server, "/")

    assert (answer.status, answer.code) == (404, "unknown_route")
    assert not (tmp_path / "house.db.session-key").exists()


@spec("DB11")
def test_a_server_without_tokens_asks_nobody_to_sign_in(house: House, tmp_path: Path) -> None:
    server = house.serve("--no-auth")

    assert open_page(server, "/queues").status == 200
    assert not (tmp_path / "house.db.session-key").exists()
