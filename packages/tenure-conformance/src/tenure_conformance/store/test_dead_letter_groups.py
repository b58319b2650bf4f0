"""Groups of dead letters: what went wrong how often, and which letters that is."""

from typing import Any

import pytest

from tenure.core.ids import DEFAULT_NAMESPACE, Kind, Namespace, QueueName
from tenure.core.instants import seconds
from tenure.core.job import Job, JobError
from tenure.core.views.dead_letter_groups import DeadLetterGroupFilter, DeadLetterGroups
from tenure.core.views.overview import TimeRange
from tenure.core.vocabulary import ErrorClass
from tenure.errors import InvalidInput
from tenure_conformance.harness import QUEUE, Kit, policy
from tenure_conformance.spec import spec

MAIL, BILL = Kind("mail"), Kind("bill")
SLOW = QueueName("slow")


def grouped(kit: Kit, **wanted: Any) -> DeadLetterGroups:
    """The groups of the default namespace."""
    return kit.store.views.dead_letter_groups(
        DeadLetterGroupFilter(namespace=DEFAULT_NAMESPACE, **wanted)
    )


def letter(kit: Kit, message: str, *, traceback: str = "", **fields: Any) -> Job:
    """A dead letter with this error."""
    job = kit.running_job(policy=policy(lease_s=60, max_attempts=1), **fields)
    error = JobError(
        error_class=ErrorClass.TRANSIENT, type="OSError", message=message, traceback=traceback
    )
    kit.fail(job, error=error)
    return kit.reload(job)


def sizes(found: DeadLetterGroups) -> dict[str, int]:
    """How many letters each error has."""
    return {each.error: each.letters for each in found.groups}


@spec("OB31")
def test_errors_that_differ_in_numbers_and_ids_are_one_group(kit: Kit) -> None:
    first = letter(kit, "no route to 10.0.0.7:5432", kind=MAIL)
    kit.advance(seconds=60)
    second = letter(kit, "no route to 10.0.0.8:5432\nsecond line", kind=MAIL)
    letter(kit, "refused", kind=MAIL)

    found = grouped(kit, range=TimeRange.QUARTER_HOUR)

    largest = found.groups[0]
    assert sizes(found) == {"OSError: no route to #.#.#.#:#": 2, "OSError: refused": 1}
    assert (largest.first_at, largest.last_at) == (first.finished_at, second.finished_at)
    assert largest.headline == "OSError: no route to 10.0.0.8:5432"
    assert (largest.kind, largest.queues) == (MAIL, (QUEUE,))
    assert largest.job_ids == (second.id,)
    assert (found.letters, found.groups_left_out, found.complete) == (3, 0, True)


@spec("OB31")
def test_letters_are_counted_in_the_bucket_of_their_end(kit: Kit) -> None:
    ends = []
    for _ in range(2):
        ends.append(letter(kit, "refused").finished_at)
        kit.advance(seconds=120)

    found = grouped(kit, range=TimeRange.QUARTER_HOUR)

    [group] = found.groups
    assert found.bucket_us == seconds(15)
    places = [((at or 0) - found.since) // found.bucket_us for at in ends]
    assert [place for place, number in enumerate(group.buckets) if number] == places
    assert sum(group.buckets) == 2


@spec("OB31")
def test_a_group_by_its_key_names_its_letters_newest_first(kit: Kit) -> None:
    letters = [letter(kit, f"refused {number}") for number in range(3)]
    letter(kit, "another")
    [group] = [each for each in grouped(kit).groups if each.letters == 3]

    [named] = grouped(kit, key=group.key).groups

    assert named.job_ids == tuple(each.id for each in reversed(letters))
    assert grouped(kit, key="0" * 16).groups == ()


@spec("OB31")
def test_the_newest_letter_of_a_group_is_the_one_that_ended_last(kit: Kit) -> None:
    first = kit.running_job(policy=policy(lease_s=60, max_attempts=1))
    second = letter(kit, "refused")
    kit.advance(seconds=1)
    error = JobError(error_class=ErrorClass.TRANSIENT, type="OSError", message="refused")
    kit.fail(first, error=error)

    [group] = grouped(kit).groups
    [named] = grouped(kit, key=group.key).groups

    assert group.job_ids == (first.id,)
    assert named.job_ids == (first.id, second.id)


@spec("OB31", "FL12")
def test_a_group_names_apart_what_only_the_redrive_of_a_flow_can_redrive(kit: Kit) -> None:
    alone = letter(kit, "refused")
    flows = []
    for _ in range(2):
        kit.advance(seconds=1)
        flow = kit.flow({"a": [], "b": []}, policy=policy(lease_s=60, max_attempts=1))
        for job in kit.claimed(limit=2):
            kit.start(job)
            error = JobError(error_class=ErrorClass.TRANSIENT, type="OSError", message="refused")
            kit.fail(job, error=error)
        flows.append(flow["a"].flow_id)

    [group] = grouped(kit).groups
    [named] = grouped(kit, key=group.key).groups

    assert (group.letters, group.in_flows) == (named.letters, named.in_flows) == (5, 4)
    assert len(named.job_ids) == 5
    assert group.redrivable_ids == named.redrivable_ids == (alone.id,)
    assert (group.flow_ids, named.flow_ids) == ((), tuple(reversed(flows)))


@spec("OB31")
def test_kinds_are_apart_and_resolved_letters_are_gone(kit: Kit) -> None:
    letter(kit, "refused", kind=MAIL)
    letter(kit, "refused", kind=BILL, queue=SLOW)
    kit.discard(letter(kit, "refused", kind=MAIL))
    kit.dead_letter_job(namespace=Namespace("other"))

    def shown(**wanted: Any) -> list[tuple[Kind, int]]:
        return sorted((each.kind, each.letters) for each in grouped(kit, **wanted).groups)

    assert shown() == [(BILL, 1), (MAIL, 1)]
    assert shown(kinds=(MAIL,)) == [(MAIL, 1)]
    assert shown(queues=(SLOW,)) == [(BILL, 1)]


@spec("OB31")
@pytest.mark.parametrize(
    "message",
    [
        'a "quoted" name\nand more',
        "a \\ backslash",
        "x" * 3000,
        "\\" * 1979 + "end",
        '"' * 1980,
        "grün " * 500,
        "\x01" * 700,
    ],
)
def test_the_first_line_of_a_long_error_is_read_whatever_is_in_it(kit: Kit, message: str) -> None:
    job = letter(kit, message, traceback='"message":"other"\n' * 300)
    assert job.error is not None

    [group] = grouped(kit).groups

    assert group.headline == job.error.headline[:300]


@spec("OB31")
def test_a_key_that_no_group_can_have_is_refused(kit: Kit) -> None:
    with pytest.raises(InvalidInput):
        grouped(kit, key="%")
