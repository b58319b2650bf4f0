"""Health: a store says what is true of it, and what to do about it."""

from tenure.core.vocabulary import HealthState
from tenure_conformance.harness import Kit
from tenure_conformance.spec import spec


@spec("B14")
def test_each_fact_has_a_name_of_its_own_and_advice_where_it_is_needed(kit: Kit) -> None:
    facts = kit.store.health()

    names = [fact.name for fact in facts]
    assert names
    assert len(set(names)) == len(names)
    assert [fact for fact in facts if bool(fact.advice) is (fact.state is HealthState.OK)] == []


@spec("B14", "A5")
def test_health_shows_the_epoch(kit: Kit) -> None:
    before = {fact.name: fact.value for fact in kit.store.health()}

    raised = kit.store.raise_epoch()

    after = {fact.name: fact.value for fact in kit.store.health()}
    assert (before["epoch"], after["epoch"]) == (1, raised)
