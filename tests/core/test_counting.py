"""Counts in words."""

import pytest

from tenure.core.vocabulary import counted, noun_after


@pytest.mark.parametrize(
    ("count", "words"),
    [(0, "0 jobs"), (1, "1 job"), (2, "2 jobs"), (1_000, "1,000 jobs"), (-1, "-1 jobs")],
)
def test_one_has_a_singular_and_every_other_number_a_plural(count: int, words: str) -> None:
    assert counted(count, "job") == words


def test_a_plural_that_is_more_than_an_s_is_given() -> None:
    assert counted(1, "reply is", "replies are") == "1 reply is"
    assert counted(3, "reply is", "replies are") == "3 replies are"


def test_only_the_number_has_the_separator_of_thousands() -> None:
    assert counted(2_000_000, "job, or so", "jobs, or so", thousands=" ") == "2 000 000 jobs, or so"


def test_a_noun_can_stand_apart_from_its_count() -> None:
    assert noun_after(1, "live worker") == "live worker"
    assert noun_after(0, "it", "them") == "them"
