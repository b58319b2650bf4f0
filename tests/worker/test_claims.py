"""When a worker claims jobs, and which."""

from collections import Counter

import pytest

from tenure.clock import Boot
from tenure.core.claims import RateLimited
from tenure.core.ids import DEFAULT_NAMESPACE, Actor, Kind, QueueName, WorkerId
from tenure.core.instants import seconds
from tenure.core.policy import delay_us
from tenure.handlers.registry import Isolation
from tenure.worker.session.claims import (
    LONGEST_HOLD,
    MAX_CLAIM_TRIES,
    RETRY,
    ClaimPlanner,
    ClaimSettings,
)
from tenure_conformance.spec import spec

HIGH, LOW = QueueName("high"), QueueName("low")
PLAIN, SCARCE = Kind("plain"), Kind("scarce")


def plenty(lane: Isolation) -> int:
    """How many attempts could begin at once."""
    return 1000


def claimer(
    queues: dict[QueueName, int] | None = None, kinds: dict[Kind, int | None] | None = None
) -> ClaimPlanner:
    settings = ClaimSettings(
        namespace=DEFAULT_NAMESPACE,
        worker=WorkerId("w1"),
        actor=Actor("worker:w1"),
        queues=queues or {HIGH: 1},
        kinds=kinds or {PLAIN: None},
        lanes=dict.fromkeys([PLAIN, SCARCE], Isolation.ASYNC),
    )
    return ClaimPlanner(settings, lambda: 0.5)


def answered(
    each: ClaimPlanner, *, free: int = 1, grants: int | None = None
) -> tuple[QueueName, ...]:
    """One claim and its answer, full unless said otherwise; which queues it named."""
    request = each.ask(free=free, running=Counter(), ready=plenty)
    assert request is not None
    each.answered(request.limit if grants is None else grants, Boot(0))
    return request.queues


def test_under_a_backlog_queues_are_claimed_by_weight() -> None:
    each = claimer({HIGH: 3, LOW: 1})
    answered(each)

    asked = Counter(answered(each)[0] for _ in range(400))

    assert asked == {HIGH: 300, LOW: 100}


def test_an_idle_limited_kind_does_not_hide_the_backlog_of_the_others() -> None:
    each = claimer({HIGH: 3, LOW: 1}, kinds={PLAIN: None, SCARCE: 2})
    asked: Counter[QueueName] = Counter()
    for turn in range(401):
        request = each.ask(free=1, running=Counter(), ready=plenty)
        assert request is not None
        assert request.kinds == (PLAIN,)
        if turn:
            asked.update(request.queues)
        each.answered(request.limit, Boot(0))
        answered(each, grants=0)  # the turn of the limited kind

    assert asked == {HIGH: 300, LOW: 100}


def test_without_a_backlog_all_queues_are_claimed_together() -> None:
    each = claimer({HIGH: 3, LOW: 1})

    assert [set(answered(each, grants=0)) for _ in range(3)] == [{HIGH, LOW}] * 3


def test_after_an_empty_favoured_queue_all_queues_are_claimed_at_once() -> None:
    each = claimer({HIGH: 3, LOW: 1})
    answered(each)
    assert answered(each, grants=0) == (HIGH,)

    assert each.next_at == 0
    assert set(answered(each)) == {HIGH, LOW}


def test_equal_weights_need_no_turns() -> None:
    each = claimer({HIGH: 2, LOW: 2})

    assert {answered(each) for _ in range(5)} == {(HIGH, LOW)}


def test_a_limited_kind_is_claimed_alone_and_only_while_it_has_room() -> None:
    each = claimer(kinds={PLAIN: None, SCARCE: 2})

    seen = []
    for _ in range(4):
        request = each.ask(free=10, running=Counter({SCARCE: 1}), ready=plenty)
        assert request is not None
        seen.append((request.kinds, request.limit))
        each.answered(request.limit, Boot(0))
    request = each.ask(free=10, running=Counter({SCARCE: 2}), ready=plenty)

    assert seen == [((PLAIN,), 10), ((SCARCE,), 1)] * 2
    assert request is not None
    assert request.kinds == (PLAIN,)


def test_the_worker_pauses_only_after_every_group_was_empty() -> None:
    each = claimer(kinds={PLAIN: None, SCARCE: 2})

    answered(each, grants=0)
    assert each.next_at == 0
    answered(each, grants=0)
    assert each.next_at == Boot(seconds(0.05))


@pytest.mark.parametrize("tries", [1, 5, 50])
def test_transport_retries_have_full_jitter_below_a_ceiling(tries: int) -> None:
    assert delay_us(RETRY, failures=tries, fraction=0.0) == 0
    assert 0 < delay_us(RETRY, failures=tries, fraction=0.999) <= seconds(5)


def unanswered(each: ClaimPlanner) -> str:
    """One claim that gets no answer; its request id."""
    request = each.ask(free=1, running=Counter(), ready=plenty)
    assert request is not None
    each.failed(Boot(0))
    return request.request_id


@spec("WP20")
def test_a_claim_without_an_answer_is_sent_so_often_and_then_a_new_one() -> None:
    each = claimer()

    sent = [unanswered(each) for _ in range(2 * MAX_CLAIM_TRIES + 1)]

    assert sent == ["claim-1"] * MAX_CLAIM_TRIES + ["claim-2"] * MAX_CLAIM_TRIES + ["claim-3"]


@spec("WP20")
def test_a_hint_of_work_does_not_hurry_the_claim_after_one_that_was_given_up() -> None:
    each = claimer()
    for _ in range(MAX_CLAIM_TRIES):
        unanswered(each)
    due_at = each.next_at

    each.wake(Boot(0))

    assert each.unanswered is None
    assert due_at > 0
    assert each.next_at == due_at


@spec("WP20")
def test_a_claim_that_is_answered_starts_the_count_anew() -> None:
    each = claimer()
    for _ in range(MAX_CLAIM_TRIES - 1):
        unanswered(each)
    answered(each)

    assert [unanswered(each) for _ in range(MAX_CLAIM_TRIES)] == ["claim-2"] * MAX_CLAIM_TRIES


@spec("RL9")
def test_a_worker_sleeps_until_a_rate_that_holds_back_everything_has_room() -> None:
    each = claimer()
    answered(each, grants=0)
    each.ask(free=1, running=Counter(), ready=plenty)
    each.answered(0, Boot(0), held=RateLimited(seconds(20), is_all=True))

    assert each.next_at == Boot(seconds(20))

    each.ask(free=1, running=Counter(), ready=plenty)
    each.answered(0, Boot(0), held=RateLimited(seconds(3600), is_all=True))

    assert each.next_at == Boot(LONGEST_HOLD)


@spec("RL9")
def test_a_worker_asks_when_a_rate_has_room_and_polls_for_the_rest_meanwhile() -> None:
    each = claimer()
    each.ask(free=1, running=Counter(), ready=plenty)
    each.answered(0, Boot(0), held=RateLimited(seconds(0.01), is_all=False))
    soon = each.next_at
    each.ask(free=1, running=Counter(), ready=plenty)
    each.answered(0, Boot(0), held=RateLimited(seconds(20), is_all=False))

    assert soon == Boot(seconds(0.01))
    assert each.next_at < seconds(0.75)


@spec("RL9")
def test_one_group_of_kinds_that_is_not_held_is_polled_for() -> None:
    each = claimer(kinds={PLAIN: None, SCARCE: 2})
    for held in (None, RateLimited(seconds(20), is_all=True)):
        each.ask(free=1, running=Counter(), ready=plenty)
        each.answered(0, Boot(0), held=held)

    assert each.next_at < seconds(0.75)

    for held in (RateLimited(seconds(20), is_all=True), RateLimited(seconds(7), is_all=True)):
        each.ask(free=1, running=Counter(), ready=plenty)
        each.answered(0, Boot(0), held=held)

    assert each.next_at == Boot(seconds(7))
