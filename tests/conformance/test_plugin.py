"""The plugin: a stranger can point the kit at a store, and a wrong store does not pass it."""

from pathlib import Path

import pytest

pytestmark = pytest.mark.process

ROOT = Path(__file__).parents[2]
KIT = ("--pyargs", "tenure_conformance.store", "-p", "no:cacheprovider", "-q")
ONE_SUBJECT = ("--pyargs", "tenure_conformance.store.test_queues", "-p", "no:cacheprovider", "-q")

THIRD_PARTY = '''
"""A store of a third party: somebody else's package, our interface."""
from tenure_conformance.harness import MemoryFactory
from tenure.stores.sqlite.memory import MemoryStore

class TheirStore(MemoryStore):
    pass

class TheirFactory(MemoryFactory):
    def make(self, clock):
        return TheirStore(clock=clock)

def factory():
    return TheirFactory()
'''


def test_a_third_party_runs_the_kit_by_naming_its_factory(pytester: pytest.Pytester) -> None:
    pytester.makepyfile(theirs=THIRD_PARTY)
    pytester.syspathinsert()

    result = pytester.runpytest_subprocess(
        *KIT, "--tenure-store", "theirs:factory", "-k", "claiming or queues"
    )

    outcomes = result.parseoutcomes()
    assert set(outcomes) == {"passed", "deselected"}
    assert outcomes["passed"] > 40
    assert outcomes["passed"] + outcomes["deselected"] > 200


def test_tests_of_a_part_that_a_store_leaves_out_are_skipped(pytester: pytest.Pytester) -> None:
    pytester.makepyfile(
        theirs=THIRD_PARTY.replace(
            "    pass",
            """
    def __init__(self, *, clock):
        super().__init__(clock=clock)
        del self.tokens

    def __getattr__(self, name):
        return getattr(Store, name).fget(self)
""",
        ).replace("import MemoryStore", "import MemoryStore\nfrom tenure.ports import Store")
    )
    pytester.syspathinsert()

    result = pytester.runpytest_subprocess(
        *KIT, "--tenure-store", "theirs:factory", "-k", "token or paused"
    )

    outcomes = result.parseoutcomes()
    assert set(outcomes) == {"passed", "skipped", "deselected"}
    assert outcomes["skipped"] > 5


def test_a_third_party_takes_the_tests_into_its_own_suite(pytester: pytest.Pytester) -> None:
    pytester.makepyfile(theirs=THIRD_PARTY)
    pytester.makepyfile(
        test_theirs="""
        import pytest
        from tenure_conformance.store import all_tests
        from theirs import factory

        globals().update(all_tests())

        @pytest.fixture
        def tenure_store_factory():
            return factory()
        """
    )

    result = pytester.runpytest_subprocess("-q", "-k", "paused or limit", "-p", "no:cacheprovider")

    outcomes = result.parseoutcomes()
    assert set(outcomes) == {"passed", "deselected"}
    assert outcomes["passed"] > 8


def test_without_a_store_the_kit_says_what_to_do(pytester: pytest.Pytester) -> None:
    result = pytester.runpytest_subprocess(*ONE_SUBJECT, "-x")

    assert result.ret == pytest.ExitCode.TESTS_FAILED
    result.stdout.fnmatch_lines(["*no store to test: give --tenure-store module:factory*"])


def test_a_factory_that_cannot_be_found_is_named(pytester: pytest.Pytester) -> None:
    result = pytester.runpytest_subprocess(*ONE_SUBJECT, "-x", "--tenure-store", "nowhere:factory")

    result.stdout.fnmatch_lines(["*--tenure-store nowhere:factory: No module named 'nowhere'*"])


def test_a_wrong_store_does_not_pass(
    pytester: pytest.Pytester, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PYTHONPATH", str(ROOT))

    result = pytester.runpytest_subprocess(
        *ONE_SUBJECT, "--tenure-store", "tests.conformance.wrong_stores:Wrong"
    )

    assert result.ret == pytest.ExitCode.TESTS_FAILED
    result.stdout.fnmatch_lines(["*the history is broken*"])
