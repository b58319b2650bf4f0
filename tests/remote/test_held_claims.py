"""Claims that a server holds open: when a worker lets it, and what it does afterwards."""

from collections import Counter

from tenure.clock import Boot
from tenure.core.ids import DEFAULT_NAMESPACE, Kind, QueueName, WorkerId, worker_actor
from tenure.core.instants import seconds
from tenure.handlers.registry import Isolation
from tenure.worker.session.claims import AT_ONCE, ClaimPlanner, ClaimSettings

WAIT = seconds(10)


def claimer(**kinds: int | None) -> ClaimPlanner:
    settings = ClaimSettings(
        namespace=DEFAULT_NAMESPACE,
        worker=WorkerId("w"),
        actor=worker_actor("w"),
        queues={QueueName("a"): 1},
        kinds={Kind(kind): limit for kind, limit in kinds.items()},
        lanes={Kind(kind): Isolation.ASYNC for kind in kinds},
        wait_us=WAIT,
    )
    made = ClaimPlanner(settings, lambda: 0.5)
    assert made.ask(free=1, running=Counter(), ready=lambda lane: 1) is not None
    return made


def test_a_claim_may_wait_unless_another_kind_has_to_have_its_turn() -> None:
    assert claimer(one=None, two=None).wait_us == WAIT
    assert claimer(one=None, two=3).wait_us == AT_ONCE


def test_after_a_wait_there_is_no_pause_and_without_one_there_is() -> None:
    waited, answered = claimer(one=None), claimer(one=None)

    waited.answered(0, Boot(WAIT), waited_us=WAIT)
    answered.answered(0, Boot(WAIT), waited_us=0)

    assert waited.next_at == Boot(WAIT)
    assert answered.next_at > WAIT


def test_a_claim_is_not_repeated_before_it_may_be() -> None:
    refused = claimer(one=None)

    refused.failed(Boot(0), retry_after_us=seconds(7))

    assert refused.next_at >= seconds(7)
    assert refused.unanswered is not None
