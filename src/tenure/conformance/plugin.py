"""The pytest plugin that comes with Tenure: it registers the `spec` marker and nothing else.

It is loaded into every pytest run of every project that has Tenure installed, so it must stay
cheap to import and must not change how other people's tests behave.
"""

import pytest


def pytest_configure(config: pytest.Config) -> None:
    config.addinivalue_line(
        "markers", "spec(*ids): this test is evidence for these sentences of Tenure's docs/spec"
    )
