"""Fixtures of the worker's tests."""

from collections.abc import Iterator

import pytest

from tests.worker.harness import Shop, open_shop


@pytest.fixture
def shop() -> Iterator[Shop]:
    """A store with a coordinator and a sweeper; its history is verified after the test."""
    with open_shop() as shop:
        yield shop
