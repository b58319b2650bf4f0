"""The kit has teeth: every store that is wrong on purpose is caught by the subject it offends."""

import importlib
import inspect
import re
from collections.abc import Callable, Iterator
from contextlib import suppress
from pathlib import Path

import pytest

from tenure.errors import Closed
from tenure_conformance.harness import Kit, StoreFactory
from tenure_conformance.store import all_tests
from tests.conformance.reference.store import ReferenceStore
from tests.conformance.walk import walk
from tests.conformance.wrong_stores import (
    WRONG,
    FirstComeFirstServed,
    ForgetsSpawnedJobs,
    PurgesTooEarly,
    Reference,
    SharesKeysAcrossKinds,
    Wrong,
)

pytestmark = pytest.mark.slow


def subject_tests(subject: str) -> Iterator[tuple[str, Callable[[Kit], None]]]:
    """The tests of one subject that need nothing but the kit."""
    module = importlib.import_module(f"tenure_conformance.store.test_{subject}")
    for name, value in vars(module).items():
        if name.startswith("test_") and list(inspect.signature(value).parameters) == ["kit"]:
            yield name, value


def caught_by(factory: Callable[[], StoreFactory], subject: str, directory: Path) -> list[str]:
    """The tests that a store fails, in their own words or by what verify finds afterwards."""
    failed = []
    for name, test in subject_tests(subject):
        kit = Kit(factory())
        (directory / name).mkdir()
        try:
            test(kit)
            with suppress(Closed):  # a test of closing has closed it
                kit.verify(directory / name)
        except Exception:  # whatever it is, the store did not pass
            failed.append(name)
        finally:
            kit.close()
    return failed


@pytest.mark.parametrize(("wrong", "subject"), WRONG.items())
def test_the_kit_catches_a_wrong_store(
    wrong: type[ReferenceStore], subject: str, tmp_path: Path
) -> None:
    assert caught_by(lambda: Wrong(wrong), subject, tmp_path)


@pytest.mark.parametrize("subject", sorted(set(WRONG.values())))
def test_the_kit_passes_the_right_store(subject: str, tmp_path: Path) -> None:
    assert caught_by(Reference, subject, tmp_path) == []


def test_the_tests_of_every_subject_are_part_of_the_kit() -> None:
    tests = all_tests()

    assert "kit" in tests
    for subject in WRONG.values():
        assert {name for name, _ in subject_tests(subject)} <= tests.keys()


def _walk_beside(wrong: type[ReferenceStore]) -> None:
    for seed in range(3, 8):  # one of them may go where the mistake does not show
        walk({"right": Reference, "wrong": lambda: Wrong(wrong)}, seed=seed, steps=1000)


@pytest.mark.parametrize(
    "wrong",
    [FirstComeFirstServed, ForgetsSpawnedJobs, PurgesTooEarly, SharesKeysAcrossKinds],
)
def test_a_wrong_store_differs_from_the_right_one(wrong: type[ReferenceStore]) -> None:
    with pytest.raises(AssertionError) as difference:
        _walk_beside(wrong)

    (program,) = difference.value.__notes__
    assert re.match(r"the program, seed [3-7]:\n  some_jobs\(\)\n", program)
