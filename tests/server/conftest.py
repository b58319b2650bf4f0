"""A stage for each test, closed after it."""

from collections.abc import Iterator

import pytest

from tests.server.harness import Stage


@pytest.fixture
def stage() -> Iterator[Stage]:
    stage = Stage()
    yield stage
    stage.close()
