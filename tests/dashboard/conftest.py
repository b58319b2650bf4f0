"""A dashboard for each test, closed after it."""

from collections.abc import Iterator

import pytest

from tests.dashboard.harness import DashboardStage


@pytest.fixture
def stage() -> Iterator[DashboardStage]:
    stage = DashboardStage()
    yield stage
    stage.close()


@pytest.fixture
def open_stage() -> Iterator[DashboardStage]:
    """A dashboard that requires no tokens."""
    stage = DashboardStage(authenticated=False)
    yield stage
    stage.close()
