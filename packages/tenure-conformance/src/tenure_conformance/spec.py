"""The `spec` decorator: a test cites the rules of docs/spec that it is evidence for."""

import pytest

MAX_IDS_PER_TEST = 5
"""A test that cites more rules is too broad to be evidence for any of them."""


def spec(*ids: str) -> pytest.MarkDecorator:
    """Mark a test as evidence for the rules with these ids, for example `@spec("L9")`."""
    if not 1 <= len(ids) <= MAX_IDS_PER_TEST:
        raise ValueError(
            f"spec() was given {len(ids)} ids: cite 1 to {MAX_IDS_PER_TEST} rules per test; "
            "split the test if it needs more"
        )
    return pytest.mark.spec(*ids)
