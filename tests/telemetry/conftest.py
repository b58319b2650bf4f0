"""Fixtures of the observing tests: the stores of the conformance tests."""

from tests.conformance.conftest import postgres_databases, tenure_store_factory

__all__ = ["postgres_databases", "tenure_store_factory"]
