"""A store that lived on while its database lost the last of what was written. [A5]"""

from tenure.core.ids import DEFAULT_NAMESPACE, Epoch
from tenure_conformance.spec import spec
from tests.stores.hands import ForeignHand
from tests.stores.lives import QUEUE, enqueue, enqueue_changes


@spec("A5")
def test_a_queue_that_was_lost_in_a_failover_is_recorded_again(hand: ForeignHand) -> None:
    store = hand.store
    enqueue(store)
    hand.run("DELETE FROM {t}queue")
    store.raise_epoch()

    saved = store.jobs.save(enqueue_changes(store, 1), epoch=Epoch(2))

    assert len(saved.applied) == 1
    assert [state.name for state in store.settings.queues(DEFAULT_NAMESPACE)] == [QUEUE]
