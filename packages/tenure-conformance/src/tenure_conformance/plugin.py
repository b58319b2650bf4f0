"""The pytest plugin of the kit: the `spec` marker, and a way to name a store.

    pytest --pyargs tenure_conformance.store --tenure-store mypackage.testing:factory

It is loaded into every pytest run of every project that has the kit installed, so it must stay
cheap to import and must not change how other people's tests behave.
"""

import pkgutil
from collections.abc import Generator
from typing import Any

import pytest

OPTION = "--tenure-store"

# Failing assertions of the kit must show values, also when another project's tests import it.
pytest.register_assert_rewrite("tenure_conformance.harness", "tenure_conformance.store")


def pytest_addoption(parser: pytest.Parser) -> None:
    group = parser.getgroup("tenure", "Tenure's conformance kit")
    group.addoption(
        OPTION,
        metavar="MODULE:FACTORY",
        help="the store under test: a callable that returns a tenure_conformance StoreFactory",
    )


def pytest_configure(config: pytest.Config) -> None:
    config.addinivalue_line(
        "markers", "spec(*ids): this test is evidence for these rules of Tenure's docs/spec"
    )


@pytest.fixture
def tenure_store_factory(request: pytest.FixtureRequest) -> object:
    """The StoreFactory of the store under test. Override it, or name one by --tenure-store."""
    name = request.config.getoption(OPTION)
    if not name:
        pytest.fail(
            f"no store to test: give {OPTION} module:factory, or override the fixture "
            "tenure_store_factory (tenure_conformance.harness.StoreFactory says what it returns)",
            pytrace=False,
        )
    try:
        make = pkgutil.resolve_name(name)
    except (ImportError, AttributeError, ValueError) as wrong:
        pytest.fail(f"{OPTION} {name}: {wrong}", pytrace=False)
    return make()


@pytest.hookimpl(wrapper=True)
def pytest_pyfunc_call(pyfuncitem: pytest.Function) -> Generator[None, Any, Any]:
    """A store may leave out `views`, `workers`, `artifacts` or `tokens`: tests of the kit that need
    one of them are skipped."""
    try:
        return (yield)
    except Exception as wrong:
        if "kit" in pyfuncitem.fixturenames and getattr(wrong, "code", None) == "not_supported":
            pytest.skip(str(wrong))
        raise
