"""Pages of a server whose store hangs: every visitor hears so in time. [H31]"""

import asyncio
from collections.abc import Iterator
from threading import Event
from typing import Any

import pytest

from tenure.core.vocabulary import Role
from tenure_conformance.spec import spec
from tests.dashboard.harness import DashboardStage
from tests.server.harness import Answer, together
from tests.support.doubles import instead

LATEST_S = 20.0


@pytest.fixture
def over() -> Iterator[Event]:
    """Ends the waits of the store."""
    over = Event()
    yield over
    over.set()


@spec("H31", "DB2")
def test_every_page_is_answered_in_time_while_the_store_hangs(
    over: Event, monkeypatch: pytest.MonkeyPatch
) -> None:
    stage = DashboardStage(timeout_s=0.2)
    browser = stage.browser(Role.VIEWER)

    def hang(*_: Any, **__: Any) -> Any:
        over.wait()

    monkeypatch.setattr(stage.store, "now", hang)
    for method in ("tokens.load", "settings.queues"):
        instead(stage.store, method, hang)
    stage.clock.advance(11)  # the last reading of the store's clock is too old
    settings = stage.services.settings
    more_than_threads = 3 * (settings.blocking_calls + settings.listing_calls)

    async def ask_together() -> list[Answer]:
        async with asyncio.timeout(LATEST_S):
            return await together(
                *[browser.aask("GET", "/queues") for _ in range(more_than_threads)]
            )

    try:
        answers = stage.run(ask_together())
    finally:
        over.set()
        stage.close()

    assert {answer.status for answer in answers} == {503}
    assert all("did not answer in time" in answer.text for answer in answers)
