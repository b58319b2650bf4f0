"""An application whose jobs run in the test."""

from collections.abc import Iterator

import pytest

from tenure import Tenure
from tenure.testing import Inline, inline
from tenure.verify import assert_holds


@pytest.fixture
def app() -> Tenure:
    return Tenure("sqlite:////nonexistent/never-opened.db")


@pytest.fixture
def jobs(app: Tenure) -> Iterator[Inline]:
    with inline(app) as made:
        yield made
        assert_holds(made.store)
