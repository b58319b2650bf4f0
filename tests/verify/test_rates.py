"""A rate that was exceeded is noticed by the grants in the log, and nothing else is."""

from collections.abc import Iterator, Sequence

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tenure.core.ids import DEFAULT_NAMESPACE, JobId, Kind, Namespace, QueueName
from tenure.core.instants import Instant
from tenure.core.rates import (
    GrantMade,
    Meter,
    Rate,
    RateInForce,
    kind_meter,
    parse_rate,
    queue_meter,
)
from tenure.verify import verify
from tenure_conformance.harness import Kit, MemoryFactory
from tenure_conformance.spec import spec
from tests.conformance.wrong_stores import Wrong
from tests.core.test_rates import grant_greedily, most_in_any_window, rates
from tests.support.histories import BEGINNING, RecordedAudit, RecordedStore

SECOND = 1_000_000
MAIL = queue_meter(QueueName("mail"))


class Granted(RecordedAudit):
    """These grants under one rate."""

    def __init__(
        self,
        rate: Rate,
        at: Sequence[int],
        *,
        meter: Meter = MAIL,
        since: int = 0,
        namespace: Namespace = DEFAULT_NAMESPACE,
        keys: Sequence[str | None] = (),
        before: Sequence[int | None] = (),
    ) -> None:
        super().__init__([])
        self._keys = [*keys, *[None] * len(at)]
        self._before = [*before, *[None] * len(at)]
        self._rate = RateInForce(namespace=namespace, meter=meter, rate=rate, since=Instant(since))
        self._at = at

    def rates_in_force(self) -> list[RateInForce]:
        return [self._rate]

    def grants(self, *, since: Instant) -> Iterator[GrantMade]:
        for number, ts in enumerate(self._at):
            if ts > since:
                yield GrantMade(
                    job_id=JobId(f"job-{number}"),
                    seq=2,
                    ts=Instant(ts),
                    namespace=DEFAULT_NAMESPACE,
                    queue=QueueName("mail"),
                    kind=Kind("letter"),
                    rate_key=self._keys[number],
                    before_ts=self._before[number],  # type: ignore[arg-type]  # a plain int
                )


def violating(granted: Granted) -> list[str]:
    """The jobs of the grants that break I30."""
    store = RecordedStore([])
    store.audit = granted
    [found] = [each for each in verify(store).findings if each.id == "I30"]
    return [violation.job_id for violation in found.first]


@spec("I30")
@given(rate=rates, steps=st.lists(st.integers(0, 3 * SECOND), max_size=12))
def test_what_is_granted_by_the_rule_holds(rate: Rate, steps: list[int]) -> None:
    assert violating(Granted(rate, grant_greedily(rate, steps))) == []


@spec("I30")
@given(
    rate=st.builds(parse_rate, st.just("rate"), st.sampled_from(["1/s", "3/s", "7/m"]), st.just(2)),
    steps=st.lists(st.integers(0, 2 * SECOND), min_size=1, max_size=8),
)
def test_it_breaks_exactly_where_a_window_has_too_many(rate: Rate, steps: list[int]) -> None:
    at = [BEGINNING + sum(steps[: end + 1]) for end in range(len(steps))]

    assert bool(violating(Granted(rate, at))) == (most_in_any_window(rate, at) > 0)


@spec("I30")
def test_the_grant_that_is_one_too_many_is_named() -> None:
    rate = parse_rate("rate", "1/s", 2)
    at = [BEGINNING, BEGINNING + 1, BEGINNING + 2, BEGINNING + SECOND + 1]

    assert violating(Granted(rate, at)) == ["job-2"]
    assert violating(Granted(rate, at, meter=kind_meter(Kind("letter")))) == ["job-2"]
    assert violating(Granted(rate, at, meter=kind_meter(Kind("other")))) == []
    assert violating(Granted(rate, at, namespace=Namespace("elsewhere"))) == []


@spec("I30", "RL3")
def test_a_window_with_a_backward_step_of_the_clock_is_left_out() -> None:
    rate = parse_rate("rate", "1/s", 2)
    first = [BEGINNING + 5 * SECOND] * 2
    after_the_step = [BEGINNING + SECOND] * 2

    assert violating(Granted(rate, [*first, *after_the_step])) == []
    assert violating(Granted(rate, [*first, *after_the_step, BEGINNING + SECOND])) == ["job-4"]


@spec("I30", "RL11")
def test_each_rate_key_has_the_rate_of_its_kind() -> None:
    rate = parse_rate("rate", "1/s", 2)
    at = [BEGINNING + number for number in range(7)]
    keys = ["a", "a", "b", None, None, "b", "a"]

    found = Granted(rate, at, meter=kind_meter(Kind("letter")), keys=keys)

    assert violating(found) == ["job-6"]


@spec("I30", "RL3")
def test_a_grant_that_may_be_later_than_the_clock_is_left_out() -> None:
    """After a backward step of the clock, events of older jobs are dated as before the step."""
    rate = parse_rate("rate", "1/s", 1)
    at = [BEGINNING + 5 * SECOND] * 4

    assert violating(Granted(rate, at)) == ["job-1", "job-2", "job-3"]
    assert violating(Granted(rate, at, before=[None, *at[:2]])) == []


@spec("I30", "RL3")
@pytest.mark.parametrize("step_s", [5, 30, 3600])
def test_verify_holds_after_the_clock_was_set_back_under_a_rate(step_s: int) -> None:
    kit = Kit(MemoryFactory())
    for number in range(12):
        kit.enqueue(rate_key=None if number % 2 else "a")
    kit.rate(parse_rate("rate", "1/s", 2))
    kit.rate_of_kind(parse_rate("rate", "1/s", 2))
    kit.advance(seconds=1)
    assert kit.claimed(limit=2)
    kit.step_back(seconds=step_s)

    granted = 0
    while granted < 10:
        granted += len(kit.claimed(limit=2))
        kit.advance(seconds=0.5)

    found = verify(kit.store)
    kit.close()
    assert found.violated == []


@spec("I30", "RL5")
def test_what_was_granted_before_the_rate_was_set_does_not_count() -> None:
    rate = parse_rate("rate", "1/s", 1)
    at = [BEGINNING] * 3 + [BEGINNING + 1]

    assert violating(Granted(rate, at, since=BEGINNING)) == []
    assert violating(Granted(rate, [*at, BEGINNING + 1], since=BEGINNING)) == ["job-4"]


@spec("I30")
@pytest.mark.parametrize("forgets", [False, True])
def test_verify_finds_a_store_that_forgets_what_it_granted(forgets: bool) -> None:
    kit = Kit(Wrong("forgets_rates") if forgets else MemoryFactory())
    for _ in range(6):
        kit.enqueue()
    kit.rate(parse_rate("rate", "1/m", 2))
    for _ in range(3):
        kit.advance(seconds=1)
        kit.claim(limit=2)

    found = verify(kit.store)
    kit.close()

    assert found.violated == (["I30"] if forgets else [])
