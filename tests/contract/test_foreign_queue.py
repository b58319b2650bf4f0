"""Another queue, checked with `tenure.contract`: its rows, its log, its answers and its bugs."""

import random

import pytest

from tenure import contract
from tenure_conformance.spec import spec
from tests.contract.foreign_queue import LEASE, ForeignQueue, Task, Unlawful, log_of, row_of
from tests.support.cases import each_case


def problems(queue: ForeignQueue) -> list[str]:
    """What the contract finds wrong with a queue."""
    found: list[str] = []
    for task in queue.tasks.values():
        found += [f"I8 {each}" for each in contract.check_row(row_of(task))]
        log = contract.check_log(row_of(task), log_of(task))
        found += [f"{each.invariant} {each.message}" for each in log]
    return found


def walk(queue: ForeignQueue, seed: int, *, steps: int = 60) -> ForeignQueue:
    """A random life of three tasks: workers die, report late and report twice."""
    chance = random.Random(seed)
    leases: list[tuple[str, str]] = []
    now = 0
    for key in ("a", "b", "c"):
        queue.enqueue(key, at=now)
    for _ in range(steps):
        now += chance.choice((0, 1, 1, 5, 5, LEASE // 2, LEASE + 1))
        claimed = queue.claim_next(f"w{chance.randrange(3)}", at=now)
        if claimed is not None and claimed.lease is not None:
            leases.append((claimed.key, claimed.lease[0]))
        key, lease = chance.choice(leases[-4:]) if leases else ("a", "none")
        is_claimed = queue.tasks[key].state == "claimed"
        what = chance.choice(("begin", "begin", "beat", "end", "fail", "stall", "requeue"))
        if what == "begin" and is_claimed:
            queue.start(key, lease, at=now)
        elif what == "beat":
            queue.heartbeat(key, lease, at=now)
        elif what == "end" and not is_claimed:
            queue.complete(key, lease, '"done"', at=now)
        elif what == "fail" and not is_claimed:
            queue.fail(key, lease, "broken", at=now)
        elif what == "stall":
            queue.stall_expired(at=now)
        elif what == "requeue":
            queue.requeue_stalled(at=now)
    return queue


@spec("N1", "I4", "I8", "P4")
@each_case("seed", range(20))
def test_a_queue_that_follows_the_plan_is_found_lawful(seed: int) -> None:
    queue = walk(ForeignQueue(), seed)

    assert problems(queue) == []
    assert sum(len(task.history) for task in queue.tasks.values()) > 10


def test_the_random_lives_contain_every_event_of_the_plan() -> None:
    queues = [walk(ForeignQueue(), seed) for seed in range(20)]
    events = {
        each["event"] for queue in queues for task in queue.tasks.values() for each in task.history
    }

    assert events == {
        "enqueued",
        "claimed",
        "started",
        "heartbeat",
        "succeeded",
        "failed",
        "stalled",
        "requeued",
    }


# --- What another queue may get wrong ------------------------------------------------------------


class KeepsTheOwner(ForeignQueue):
    """Leaves the worker in the row when an attempt ends."""

    def _clear(self, task: Task) -> None:
        task.lease = None


class AcceptsLateReports(ForeignQueue):
    """Compares the lease's id and forgets its end."""

    def _is_valid(self, task: Task, at: int) -> bool:
        return True


class GoesBack(ForeignQueue):
    """Requeues a lost task without passing through `stalled`, and asks nobody."""

    def stall_expired(self, *, at: int) -> None:
        for task in self.tasks.values():
            if task.lease is not None and at >= task.lease[1]:
                self.write(task, "requeued", "queued", at=at, actor="system")

    def _may_write(self, before: str | None, event: str, state: str) -> bool:
        return True


class ForgetsAnEvent(ForeignQueue):
    """Raises rev for a heartbeat and writes no event."""

    def heartbeat(self, key: str, lease: str, *, at: int) -> str:
        self.tasks[key].rev += 1
        return "OK"


class CountsAtStart(ForeignQueue):
    """Counts the attempt once more when it starts."""

    def start(self, key: str, lease: str, *, at: int) -> str:
        self.tasks[key].attempt += 1
        return super().start(key, lease, at=at)


@pytest.mark.parametrize(
    ("buggy", "rule"),
    [
        (KeepsTheOwner, "I8"),
        (AcceptsLateReports, "I10"),
        (GoesBack, "I4"),
        (ForgetsAnEvent, "I1"),
        (CountsAtStart, "I7"),
    ],
)
def test_a_bug_of_another_queue_is_found(buggy: type[ForeignQueue], rule: str) -> None:
    found = {
        each.split()[0] for seed in range(20) for each in problems(walk(buggy(), seed, steps=20))
    }

    assert rule in found


def test_a_queue_that_asks_first_does_not_write_what_the_contract_refuses() -> None:
    queue = ForeignQueue()
    task = queue.enqueue("a", at=0)
    before = row_of(task), log_of(task)

    with pytest.raises(Unlawful, match="queued by succeeded to succeeded"):
        queue.write(task, "succeeded", "succeeded", at=1, actor="system")

    assert (row_of(task), log_of(task)) == before


# --- Its answers against the matrices ------------------------------------------------------------


def heard(row: str, operation: str, column: str = "new id") -> set[str]:
    """What the contract lets a worker hear in this cell."""
    answers = contract.response_matrix()[row, operation, column]
    return {" ".join(filter(None, (each.verdict, each.cause))) for each in answers}


@spec("R5", "R6", "R8", "R10", "R12")
def test_the_answers_of_another_queue_are_those_of_the_matrices() -> None:
    queue = ForeignQueue()
    queue.enqueue("a", at=0)
    first = queue.claim_next("w1", at=0)
    assert first is not None
    assert queue.start("a", "a#1", at=1) in heard("R17", "start")
    assert queue.heartbeat("a", "a#1", at=2) in heard("R18", "heartbeat", "newer hb_seq")

    assert queue.complete("b", "b#1", "1", at=3) in heard("R5", "complete")
    assert queue.complete("a", "a#9", "1", at=3) in heard("R6", "complete")
    assert queue.complete("a", "a#1", "1", at=2 + LEASE) in heard("R10", "complete")
    queue.stall_expired(at=2 + LEASE)
    assert queue.complete("a", "a#1", "1", at=3 + LEASE) in heard("R11", "complete")
    queue.claim_next("w2", at=4 + LEASE)
    assert queue.complete("a", "a#1", "1", at=5 + LEASE) in heard("R12", "complete")
    queue.start("a", "a#2", at=5 + LEASE)
    assert queue.complete("a", "a#2", "1", at=6 + LEASE) in heard("R8", "complete")
    assert queue.complete("a", "a#2", "1", at=7 + LEASE) in heard("R15", "complete")


@spec("R10")
def test_a_wrong_answer_of_another_queue_is_not_in_the_matrix() -> None:
    queue = AcceptsLateReports()
    queue.enqueue("a", at=0)
    queue.claim_next("w1", at=0)
    queue.start("a", "a#1", at=1)

    assert queue.complete("a", "a#1", "1", at=2 + LEASE) not in heard("R10", "complete")
