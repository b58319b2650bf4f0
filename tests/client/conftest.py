"""What the client's tests share: a scene, closed at the end."""

from collections.abc import Iterator

import pytest

from tenure.client.app import Application
from tests.client.scene import Scene


@pytest.fixture
def scene() -> Iterator[Scene]:
    """A coordinator over a memory store, in virtual time."""
    made = Scene()
    yield made
    made.world.coordinator.close()


@pytest.fixture
def app(scene: Scene) -> Application:
    """An application connected to the scene."""
    return scene.app()
