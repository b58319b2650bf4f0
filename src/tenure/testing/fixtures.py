"""A pytest fixture. Enable it with `pytest_plugins = ["tenure.testing.fixtures"]`.

Define a fixture `tenure_app` that returns your application.
"""

from collections.abc import Iterator

import pytest

from tenure.client.app import Application
from tenure.testing.inline import Inline, inline


@pytest.fixture
def tenure_inline(tenure_app: Application) -> Iterator[Inline]:
    """Run the application's jobs in this process, for one test."""
    with inline(tenure_app) as jobs:
        yield jobs
