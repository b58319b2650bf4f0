"""Handlers of workers that know only a server make flows within flows, while workers and the server
are killed."""

import signal
from collections.abc import Iterator
from functools import partial
from pathlib import Path

import pytest

from tenure.client.channel import Link
from tenure.verify import assert_holds
from tenure_conformance.spec import spec
from tests.e2e.app import app
from tests.e2e.test_flows import has_succeeded, not_done_once, settled
from tests.remote.sites import RemoteSite
from tests.support.waiting import until

pytestmark = pytest.mark.process

WIDTH, DEPTH, ROOTS = 2, 1, 2
FLOWS = ROOTS * (DEPTH + 1)
JOBS = ROOTS * ((DEPTH + 1) * (WIDTH + 2) + DEPTH)


@pytest.fixture
def site(tmp_path: Path) -> Iterator[RemoteSite]:
    site = RemoteSite(f"sqlite:///{tmp_path / 'remote.db'}", tmp_path)
    with app.channel.diverted(Link(coordination=site.coordinator, close=lambda: None)):
        yield site
    site.close()


@spec("FL13", "FL5", "D12", "I32", "I33")
def test_nested_flows_survive_workers_and_a_server_that_are_killed(site: RemoteSite) -> None:
    """The handler of `nest` also dies once after it made its flow, and fails once."""
    server = site.serve()
    for name in ("one", "two"):
        site.work(name, server.address)
    for _ in range(ROOTS):
        app.enqueue("nest", {"depth": DEPTH, "width": WIDTH})

    for number, name in enumerate(("one", "two", "one"), start=1):
        until(partial(has_succeeded, site, 3 * number), f"{3 * number} jobs succeeded")
        site.signal(name, signal.SIGKILL)
        site.workers[name].wait()
        if number == 2:
            server.popen.kill()
            server.popen.wait()
            server = site.serve(server.port)
        site.work(name, server.address)

    views = settled(site)
    assert len(views) == FLOWS
    assert sum(len(view.steps) for view in views) == JOBS
    assert not_done_once(site, views) == {}
    assert_holds(site.store)
