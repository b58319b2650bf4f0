"""The kit has teeth: every store that is wrong on purpose is caught by the subject it offends."""

import importlib
import inspect
import re
from collections.abc import Callable, Iterator
from contextlib import suppress
from pathlib import Path

import pytest

from tenure.errors import Closed
from tenure_conformance.harness import Kit
from tenure_conformance.store import all_tests
from tests.conformance.factories import ModelFactory
from tests.conformance.walk import walk
from tests.conformance.wrong_stores import WRONG, Mistake, Wrong

pytestmark = pytest.mark.slow


def subject_tests(subject: str) -> Iterator[tuple[str, Callable[[Kit], None]]]:
    """The tests of one subject that need nothing but the kit."""
    module = importlib.import_module(f"tenure_conformance.store.test_{subject}")
    for name, value in vars(module).items():
        if name.startswith("test_") and list(inspect.signature(value).parameters) == ["kit"]:
            yield name, value


def passes(kit: Kit, test: Callable[[Kit], None], directory: Path) -> bool:
    """Whether a store passes a test, and verify finds nothing afterwards."""
    try:
        test(kit)
        with suppress(Closed):  # a test of closing has closed it
            kit.verify(directory)
    except (Exception, pytest.fail.Exception):  # whatever it is, the store did not pass
        return False
    finally:
        kit.close()
    return True


@pytest.mark.parametrize("wrong", WRONG)
def test_the_kit_catches_a_wrong_store(wrong: str, tmp_path: Path) -> None:
    for name, test in subject_tests(WRONG[wrong].subject):
        (tmp_path / name).mkdir()
        if not passes(Kit(Wrong(wrong)), test, tmp_path / name):
            return
    pytest.fail("it passes every test")


@pytest.mark.proof
@pytest.mark.parametrize("subject", sorted({each.subject for each in WRONG.values()}))
def test_the_kit_passes_a_store_without_a_mistake(
    subject: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(WRONG, "right", Mistake("right", subject, lambda store: None, {}))

    for name, test in subject_tests(subject):
        (tmp_path / name).mkdir()
        assert passes(Kit(Wrong("right")), test, tmp_path / name), name


def test_the_tests_of_every_subject_are_part_of_the_kit() -> None:
    tests = all_tests()

    assert "kit" in tests
    for mistake in WRONG.values():
        assert {name for name, _ in subject_tests(mistake.subject)} <= tests.keys()


def _walk_beside(wrong: str) -> None:
    for seed in range(3, 8):  # one of them may go where the mistake does not show
        walk({"model": ModelFactory, "wrong": lambda: Wrong(wrong)}, seed=seed, steps=1000)


@pytest.mark.parametrize(
    "wrong",
    [
        "first_come_first_served",
        "forgets_spawned_jobs",
        "purges_too_early",
        "shares_keys_across_kinds",
    ],
)
def test_a_wrong_store_differs_from_the_model(wrong: str) -> None:
    with pytest.raises(AssertionError) as difference:
        _walk_beside(wrong)

    (program,) = difference.value.__notes__
    assert re.match(r"the program, seed [3-7]:\n  some_jobs\(\)\n", program)
