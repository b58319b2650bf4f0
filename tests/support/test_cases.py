"""A table of cases in one test: every case runs, and a failing one is named."""

from pathlib import Path

import pytest

from tests.support.cases import MAX_SHOWN, each_case


def test_every_case_runs_and_those_that_fail_are_named() -> None:
    seen = []

    @each_case(("number", "text"), [(1, "one"), (2, "two"), (3, "three")])
    def check(number: int, text: str) -> None:
        seen.append(text)
        assert number != 2

    with pytest.raises(BaseExceptionGroup, match="1 of 3 cases fail") as failed:
        check()

    assert seen == ["one", "two", "three"]
    (failure,) = failed.value.exceptions
    assert failure.__notes__ == ["the case: {'number': 2, 'text': 'two'}"]


def test_only_the_first_failures_are_shown() -> None:
    @each_case("number", range(3 * MAX_SHOWN))
    def check(number: int) -> None:
        pytest.fail(f"{number}")

    with pytest.raises(BaseExceptionGroup) as failed:
        check()

    assert len(failed.value.exceptions) == MAX_SHOWN


def test_a_table_without_cases_fails() -> None:
    @each_case("number", [])
    def check(number: int) -> None: ...

    with pytest.raises(AssertionError, match="no cases"):
        check()


@each_case("letter", "ab")
@each_case("number", (1, 2))
@pytest.mark.parametrize("sign", ["+", "-"])
def test_tables_combine_with_each_other_parameters_and_fixtures(
    letter: str, number: int, sign: str, tmp_path: Path
) -> None:
    place = tmp_path / f"{letter}{number}{sign}"

    assert not place.exists()
    place.touch()
