"""The heap of deadlines against a plain dictionary."""

import tracemalloc

from hypothesis import given
from hypothesis import strategies as st

from tenure.clock import NEVER, Boot
from tenure.worker.session.timers import SPARE_ENTRIES, LatestOf, Timers

NUMBERS = st.integers(0, 5)
INSTANTS = st.integers(0, 20)
CHANGES = st.lists(
    st.one_of(
        st.tuples(st.just("put"), NUMBERS, INSTANTS),
        st.tuples(st.just("by"), NUMBERS, INSTANTS),
        st.tuples(st.just("drop"), NUMBERS, st.just(0)),
        st.tuples(st.just("due"), st.just(0), INSTANTS),
    ),
    max_size=200,
)


@given(changes=CHANGES)
def test_it_agrees_with_a_dictionary(changes: list[tuple[str, int, int]]) -> None:
    timers, latest = Timers(), LatestOf()
    plain: dict[int, int] = {}
    for what, number, at in changes:
        match what:
            case "put":
                timers.put(number, Boot(at))
                plain[number] = at
            case "by":
                timers.by(number, Boot(at))
                plain[number] = min(at, plain.get(number, at))
            case "drop":
                timers.drop(number)
                plain.pop(number, None)
            case _:
                due = {each for each, by in plain.items() if by <= at}
                assert set(timers.due(Boot(at))) == due
                plain = {each: by for each, by in plain.items() if each not in due}
        for each in range(6):
            if each in plain:
                latest.put(each, Boot(plain[each]))
            else:
                latest.drop(each)

        assert timers.next_at == min(plain.values(), default=NEVER)
        assert latest.latest == max(plain.values(), default=None)
        assert [each in timers for each in range(6)] == [each in plain for each in range(6)]


def test_what_was_replaced_or_dropped_does_not_pile_up() -> None:
    timers = Timers()
    tracemalloc.start()
    try:
        for at in range(10_000):
            timers.put(at % 10, Boot(at))
            timers.put(1_000 + at, Boot(at))
            timers.drop(1_000 + at)
        kept_bytes, _ = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()

    assert kept_bytes <= 100 * (2 * len(timers) + SPARE_ENTRIES) + 10_000
