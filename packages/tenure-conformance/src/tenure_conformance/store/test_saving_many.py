"""Many changes at once, offered one by one while the later ones are still being decided."""

from collections.abc import Iterator

import pytest
from msgspec.structs import replace

from tenure.core.ids import Fingerprint, RequestId
from tenure.core.lifecycle import decide
from tenure.core.outcomes import Applied, Change, DecisionContext
from tenure.core.verdicts import Observation, Resolution
from tenure.core.vocabulary import ObservationType, ResolutionKind
from tenure_conformance.harness import OPERATOR, Kit
from tenure_conformance.spec import spec

MANY = 600  # several pieces of whatever size a store writes at a time


def _births(kit: Kit, **last: str) -> list[Change]:
    """New jobs; the last of them as `last` says."""
    loaded = kit.store.jobs.load([])
    context = DecisionContext(now=loaded.now, epoch=loaded.epoch, entropy=b"")
    commands = [*(kit.new() for _ in range(MANY - 1)), kit.new(**last)]
    outcomes = [decide(command, context) for command in commands]
    return [outcome.change for outcome in outcomes if isinstance(outcome, Applied)]


def _offer(kit: Kit, changes: Iterator[Change]) -> frozenset[str]:
    return frozenset(kit.store.jobs.save(changes, epoch=kit.store.jobs.load([]).epoch).applied)


@spec("K1", "K3")
@pytest.mark.parametrize("last", [{}, {"dedupe_key": "k"}], ids=["plain", "with a key"])
def test_many_new_jobs_are_saved_together(kit: Kit, last: dict[str, str]) -> None:
    births = _births(kit, **last)

    applied = _offer(kit, iter(births))

    assert applied == {birth.job.id for birth in births}
    for birth in (births[0], births[MANY // 2], births[-1]):
        assert kit.reload(birth.job) == birth.job
        assert kit.events(birth.job) == list(birth.events)


@spec("K3", "B17", "M1", "U1")
@pytest.mark.parametrize("place", [0, MANY // 2, MANY - 1], ids=["first", "middle", "last"])
def test_a_new_job_in_a_large_batch_is_saved_with_all_that_belongs_to_it(
    kit: Kit, place: int
) -> None:
    dead = kit.dead_letter_job()
    *births, spawned = _births(kit)
    job = births[place - 1 if place == MANY - 1 else place].job
    kept = Resolution(
        job_id=dead.id,
        kind=ResolutionKind.REDRIVEN,
        ts=job.enqueued_at,
        actor=OPERATOR,
        request_id=RequestId("again"),
        fingerprint=Fingerprint("f"),
        new_job_id=job.id,
    )
    seen = Observation(
        job_id=job.id, type=ObservationType.COMPENSATED, ts=job.enqueued_at, actor=OPERATOR
    )
    with_more = [
        replace(each, resolution=kept, observations=(seen,), spawned=(spawned,))
        if each.job is job
        else each
        for each in births
    ]

    applied = _offer(kit, iter(with_more))

    assert applied == {birth.job.id for birth in births}
    assert kit.store.jobs.resolutions([dead.id]) == {dead.id: kept}
    assert kit.store.jobs.observations(job.id) == [seen]
    assert kit.reload(spawned.job) == spawned.job


@spec("K1", "D3")
def test_of_many_new_jobs_only_those_with_free_ids_and_keys_are_saved(kit: Kit) -> None:
    births = _births(kit, dedupe_key="k")
    known = kit.enqueue(job_id=births[-2].job.id, payload=b'"mine"')
    holder = kit.enqueue(dedupe_key="k")

    applied = _offer(kit, iter(births))

    assert applied == {birth.job.id for birth in births[:-2]}
    assert (kit.reload(known), kit.reload(holder)) == (known, holder)
    assert kit.reload(births[-3].job) == births[-3].job


@spec("A5")
def test_many_new_jobs_of_another_epoch_are_refused(kit: Kit) -> None:
    births = _births(kit)
    epoch = kit.store.jobs.load([]).epoch
    kit.store.raise_epoch()

    assert kit.store.jobs.save(iter(births), epoch=epoch).applied == frozenset()
    assert not kit.exists(births[0].job.id)


@spec("K3")
def test_nothing_is_saved_if_the_iterator_of_changes_raises(kit: Kit) -> None:
    births = _births(kit)

    def failing() -> Iterator[Change]:
        yield from births[:-1]
        raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError):
        _offer(kit, failing())

    assert not kit.exists(births[0].job.id)
    assert kit.enqueue().rev == 1  # and the store still works


def test_a_few_changes_may_come_from_an_iterator(kit: Kit) -> None:
    changes = [kit.change(kit.completion(kit.running_job())) for _ in range(3)]

    assert _offer(kit, iter(changes)) == {change.job.id for change in changes}
    assert _offer(kit, iter([])) == frozenset()
