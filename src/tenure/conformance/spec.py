"""The `spec` decorator: a test names the sentences of docs/spec it is evidence for."""

import pytest

MAX_IDS_PER_TEST = 5
"""A test that cites more proves nothing in particular."""


def spec(*ids: str) -> pytest.MarkDecorator:
    """Mark a test as evidence for the sentences with these ids, for example `@spec("L9")`."""
    if not 1 <= len(ids) <= MAX_IDS_PER_TEST:
        raise ValueError(
            f"spec() was given {len(ids)} ids: cite 1 to {MAX_IDS_PER_TEST} sentences per test, "
            "split the test if it shows more"
        )
    return pytest.mark.spec(*ids)
