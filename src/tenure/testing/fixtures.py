"""A pytest fixture, for those who opt in: `pytest_plugins = ["tenure.testing.fixtures"]`.

It needs to know the application: define a fixture `tenure_app` that returns it.
"""

from collections.abc import Iterator

import pytest

from tenure.client.app import Application
from tenure.testing.inline import Inline, inline


@pytest.fixture
def tenure_inline(tenure_app: Application) -> Iterator[Inline]:
    """The application's jobs run in this process, for one test."""
    with inline(tenure_app) as jobs:
        yield jobs
