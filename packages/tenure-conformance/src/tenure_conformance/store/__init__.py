"""The store kit: what every store must do, as tests split by subject.

    pytest --pyargs tenure_conformance.store --tenure-store mypackage.testing:factory

or, inside a test suite, a module that takes all tests over and says which store they are for:

    from tenure_conformance.store import all_tests

    globals().update(all_tests())

    @pytest.fixture
    def tenure_store_factory(tmp_path):
        return MyFactory(tmp_path)

The tests know `tenure.ports.Store` and nothing of any one store.
"""

import importlib
import pkgutil

from tenure_conformance.harness import kit


def all_tests() -> dict[str, object]:
    """Every test of the kit by its name, and the fixture they use."""
    found: dict[str, object] = {"kit": kit}
    for module in pkgutil.iter_modules(__path__):
        if module.name.startswith("test_"):
            imported = importlib.import_module(f"{__name__}.{module.name}")
            for name, value in vars(imported).items():
                if name.startswith("test_"):
                    assert name not in found, f"two tests of the kit are called {name}"
                    found[name] = value
    return found
