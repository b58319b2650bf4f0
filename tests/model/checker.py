"""The model checker: every state one job can reach within bounds, with the real core deciding.

Breadth first over `steps.Stepper`, so that the first violation found has a shortest trace. A state
is the job's row, its log, the clock, the epoch, what every caller was told, and, with a bounded
network, what each worker process believes and which requests are on their way. Two states are the
same when `world.key_of` says so: time counts from now, a deadline that has passed is just passed,
revisions and message texts are left out, because no decision reads them. The space is finite.

What is explored: one job with two workers of different principals, two attempts, all lease-bound
requests duplicated, delayed past the end of their lease, reordered and lost with their answers;
reused request ids; worker crashes; sweeps at any time; soft and hard cancels; dead-lettering and
requeuing operators; releases, snoozes, grants taken back; outage credits; an epoch raise; all
recovery policies; a job that is a compensation; and decisions that reach the store late.

What is not: several jobs (dedupe keys, queue limits, fairness of claims), a clock that steps back,
backoff jitter, budgets above two attempts, purges, and any store: saving is compare-and-swap here
by definition. The conformance kits and the simulator look there.

Besides safety, `stuck` finds the states from which time, the system and the workers alone, without
any help of people, cannot bring the job to an end. [V4]
"""

import time
from array import array
from collections import Counter, deque
from collections.abc import Iterator

import msgspec

from tenure.core.vocabulary import JobStatus, OnLost
from tests.model.properties import Violation, judge_state
from tests.model.steps import Step, Stepper
from tests.model.world import Bounds, State, birth, key_of

MAX_STATES = 3_000_000  # far above every configuration: a leak in the key would run for ever


class Finding(msgspec.Struct, frozen=True):
    """Something that must not be, and the shortest way there."""

    violations: tuple[Violation, ...]
    trace: tuple[str, ...]

    @property
    def kinds(self) -> frozenset[str]:
        """The kinds of everything that was wrong."""
        return frozenset(violation.kind for violation in self.violations)

    def __str__(self) -> str:
        steps = [f"{number:3}. {label}" for number, label in enumerate(self.trace, start=1)]
        return "\n".join([*steps, *(f"  !! {violation}" for violation in self.violations)])


class Report(msgspec.Struct, frozen=True, kw_only=True):
    """What a search saw."""

    name: str
    states: int
    transitions: int
    depth: int
    seconds: float
    statuses: frozenset[JobStatus]
    rows: frozenset[str]
    finding: Finding | None
    stuck: Counter[JobStatus]
    stuck_without_people: Counter[JobStatus]
    stuck_trace: tuple[str, ...] = ()

    def __str__(self) -> str:
        return (
            f"{self.name:<28}{self.states:>10,}{self.transitions:>13,}{self.depth:>7}"
            f"{self.seconds:>9.1f}{self.transitions / max(self.seconds, 1e-9):>11,.0f}"
        )


HEADER = f"{'bounds':<28}{'states':>10}{'transitions':>13}{'depth':>7}{'cpu s':>9}{'per s':>11}"


class Search:
    """One breadth-first search. Keeps keys, parents and edges; states only while they wait."""

    def __init__(self, bounds: Bounds) -> None:
        self._stepper = Stepper(bounds)
        self._bounds = bounds
        self._numbers: dict[bytes, int] = {}
        self._parents = array("l")
        self._labels: list[str] = []
        self._names: dict[str, str] = {}
        self._ended = bytearray()
        self._waiting = bytearray()  # ended, or held until an operator decides
        self._holds = bounds.policy.on_lost is OnLost.HOLD or "stall" in bounds.asked
        self._statuses: list[JobStatus] = []
        self._edges = {True: (array("l"), array("l")), False: (array("l"), array("l"))}
        self._queue: deque[tuple[int, State]] = deque()

    def run(self) -> Report:
        """Explore until nothing is new, or until something is wrong."""
        began = time.process_time()
        first, outcome = birth(self._bounds)
        self._stepper.rows.add(outcome.rule)
        self._add(key_of(first), first, -1, "enqueue")
        finding = self._explore()
        stuck, helpless = Counter[JobStatus](), Counter[JobStatus]()
        trace: tuple[str, ...] = ()
        if finding is None:
            stuck, _ = self._stuck(with_people=True)
            helpless, trace = self._stuck(with_people=False)
        return Report(
            name=self._bounds.name,
            states=len(self._parents),
            transitions=self._stepper.transitions,
            depth=len(self._trace(len(self._parents) - 1)),
            seconds=time.process_time() - began,
            statuses=frozenset(self._statuses),
            rows=frozenset(self._stepper.rows),
            finding=finding,
            stuck=stuck,
            stuck_without_people=helpless,
            stuck_trace=trace,
        )

    def _add(self, key: bytes, state: State, parent: int, label: str) -> int:
        number = self._numbers[key] = len(self._parents)
        self._parents.append(parent)
        self._labels.append(self._names.setdefault(label, label))
        self._statuses.append(state.job.status)
        self._ended.append(state.job.status.is_terminal)
        is_held = state.job.status is JobStatus.STALLED and self._holds
        self._waiting.append(state.job.status.is_terminal or is_held)
        self._queue.append((number, state))
        assert number < MAX_STATES, f"{self._bounds.name}: more states than foreseen"
        return number

    def _explore(self) -> Finding | None:
        while self._queue:
            number, state = self._queue.popleft()
            for step in self._stepper.steps(state):
                if step.wrong:
                    return self._found(number, step.label, step.wrong)
                if step.state is state:
                    continue
                finding = self._follow(number, step)
                if finding is not None:
                    return finding
        return None

    def _follow(self, number: int, step: Step) -> Finding | None:
        key = key_of(step.state)
        there = self._numbers.get(key)
        if there is None:
            there = self._add(key, step.state, number, step.label)
            wrong = list(judge_state(step.state))
            if wrong:
                return self._found(number, step.label, wrong)
        if there != number:
            sources, targets = self._edges[step.is_helpful]
            sources.append(number)
            targets.append(there)
        return None

    def _found(self, number: int, label: str, wrong: list[Violation]) -> Finding:
        return Finding(tuple(wrong), (*self._trace(number), label))

    def _trace(self, number: int) -> tuple[str, ...]:
        def backwards() -> Iterator[str]:
            here = number
            while here >= 0:
                yield self._labels[here]
                here = self._parents[here]

        return tuple(backwards())[::-1]

    def _stuck(self, *, with_people: bool) -> tuple[Counter[JobStatus], tuple[str, ...]]:
        """The states from which no end can be reached, by status, and the way to the first."""
        count = len(self._parents)
        edges = [self._edges[True], self._edges[False]] if with_people else [self._edges[True]]
        starts = array("l", bytes(8 * (count + 1)))
        for _, targets in edges:
            for target in targets:
                starts[target + 1] += 1
        for number in range(count):
            starts[number + 1] += starts[number]
        backwards = array("l", bytes(8 * starts[count]))
        fill = array("l", starts)
        for sources, targets in edges:
            for source, target in zip(sources, targets, strict=True):
                backwards[fill[target]] = source
                fill[target] += 1
        reached = bytearray(self._ended if with_people else self._waiting)
        todo = [number for number in range(count) if reached[number]]
        while todo:
            here = todo.pop()
            for source in backwards[starts[here] : starts[here + 1]]:
                if not reached[source]:
                    reached[source] = 1
                    todo.append(source)
        stuck = [number for number in range(count) if not reached[number]]
        trace = self._trace(stuck[0]) if stuck else ()
        return Counter(self._statuses[number] for number in stuck), trace


def check(bounds: Bounds) -> Report:
    """Explore one configuration."""
    return Search(bounds).run()


def merged_wrongly(bounds: Bounds, *, sample: int) -> list[tuple[str, ...]]:
    """Pairs of states that `key_of` calls the same although not the same can follow from them.

    Every `sample`-th arrival at a known state is compared with the first one, step by step.
    """
    stepper = Stepper(bounds)
    first, _ = birth(bounds)
    known = {key_of(first): first}
    todo, arrivals, wrong = deque([first]), 0, []
    while todo:
        here = todo.popleft()
        for step in stepper.steps(here):
            if step.state is here:
                continue
            key = key_of(step.state)
            if key not in known:
                known[key] = step.state
                todo.append(step.state)
                continue
            arrivals += 1
            if arrivals % sample == 0 and step.state != known[key]:
                odd = _futures(stepper, step.state) ^ _futures(stepper, known[key])
                if odd:
                    wrong.append((step.label, *sorted(label for label, _ in odd)))
    return wrong


def _futures(stepper: Stepper, state: State) -> set[tuple[str, bytes]]:
    return {(step.label, key_of(step.state)) for step in stepper.steps(state)}
