"""A small queue that is not Tenure: somebody else's, written from the lifecycle plan.

It has its own names, its own storage and its own clock (a number that the caller passes). All it
takes from Tenure is `tenure.contract.is_allowed`, which it asks before each write. `row_of` and
`log_of` translate its records into the contract's words, as any other queue would have to.
"""

from dataclasses import dataclass, field
from typing import Any

from tenure import contract

LEASE = 30


class Unlawful(Exception):
    """The queue was about to write a change that the contract does not have."""


@dataclass
class Task:
    """One record, with the events that led to it."""

    key: str
    state: str = "queued"
    attempt: int = 0
    rev: int = 0
    worker: str | None = None
    lease: tuple[str, int] | None = None
    output: str | None = None
    problem: str | None = None
    history: list[dict[str, Any]] = field(default_factory=list)


class ForeignQueue:
    """The operations of the lifecycle plan."""

    def __init__(self) -> None:
        self.tasks: dict[str, Task] = {}

    def enqueue(self, key: str, *, at: int) -> Task:
        task = self.tasks[key] = Task(key)
        self.write(task, "enqueued", "queued", before=None, at=at, actor="client:shop")
        return task

    def claim_next(self, worker: str, *, at: int) -> Task | None:
        for task in self.tasks.values():
            if task.state in ("queued", "stalled"):
                cause = "reclaim" if task.state == "stalled" else None
                task.attempt += 1
                task.worker, task.lease = worker, (f"{task.key}#{task.attempt}", at + LEASE)
                actor = f"worker:{worker}"
                self.write(task, "claimed", "claimed", at=at, actor=actor, cause=cause)
                return task
        return None

    def start(self, key: str, lease: str, *, at: int) -> str:
        return self._report(key, lease, "started", "running", at=at)

    def heartbeat(self, key: str, lease: str, *, at: int) -> str:
        return self._report(key, lease, "heartbeat", self.tasks[key].state, at=at)

    def complete(self, key: str, lease: str, output: str, *, at: int) -> str:
        return self._report(key, lease, "succeeded", "succeeded", at=at, output=output)

    def fail(self, key: str, lease: str, problem: str, *, at: int) -> str:
        return self._report(key, lease, "failed", "failed", at=at, problem=problem)

    def stall_expired(self, *, at: int) -> None:
        for task in self.tasks.values():
            if task.lease is not None and at >= task.lease[1]:
                self.write(task, "stalled", "stalled", at=at, actor="system")

    def requeue_stalled(self, *, at: int) -> None:
        for task in self.tasks.values():
            if task.state == "stalled":
                self.write(task, "requeued", "queued", at=at, actor="system")

    def _report(self, key: str, lease: str, event: str, state: str, *, at: int, **end: str) -> str:
        task = self.tasks.get(key)
        if task is None:
            return "REJECTED unknown_job"
        if task.lease is None or task.lease[0] != lease:
            known = [each for each in task.history if each["lease"][0] == lease]
            if not known:
                return "REJECTED invalid_lease"
            if any(each["event"] in ("succeeded", "failed") for each in known):
                return "REJECTED duplicate_completion"
            is_held = task.state in ("claimed", "running", "succeeded", "failed")
            return "CANCELLED superseded" if is_held else "CANCELLED lease_expired"
        if not self._is_valid(task, at):
            return "CANCELLED lease_expired"
        if event in ("started", "heartbeat"):
            task.lease = (lease, at + LEASE)
        task.output, task.problem = end.get("output"), end.get("problem")
        self.write(task, event, state, at=at, actor=f"worker:{task.worker}")
        return "COMMITTED" if end else "OK"

    def _is_valid(self, task: Task, at: int) -> bool:
        return task.lease is not None and at < task.lease[1]

    def write(
        self, task: Task, event: str, state: str, *, at: int, actor: str, **more: str | None
    ) -> None:
        before = more.get("before", task.state)
        if not self._may_write(before, event, state):
            raise Unlawful(f"{task.key}: {before} by {event} to {state}")
        task.state, task.rev = state, task.rev + 1
        task.history.append(
            {
                "rev": task.rev,
                "event": event,
                "before": before,
                "after": state,
                "at": at,
                "actor": actor,
                "attempt": task.attempt,
                "worker": task.worker,
                "lease": task.lease or (None, None),
                "cause": more.get("cause"),
            }
        )
        if state not in ("claimed", "running"):
            self._clear(task)

    def _may_write(self, before: str | None, event: str, state: str) -> bool:
        return contract.is_allowed(before, event, state)

    def _clear(self, task: Task) -> None:
        task.worker = task.lease = None


def row_of(task: Task) -> dict[str, object]:
    """A task as a row of the contract."""
    lease_id, expires_at = task.lease or (None, None)
    return {
        "id": task.key,
        "status": task.state,
        "attempt": task.attempt,
        "rev": task.rev,
        "owner": task.worker,
        "lease_id": lease_id,
        "lease_expires_at": expires_at,
        "result": task.output,
        "error": task.problem,
    }


def log_of(task: Task) -> list[dict[str, object]]:
    """A task's history as a log of the contract."""
    return [
        {
            "seq": each["rev"],
            "type": each["event"],
            "from_status": each["before"],
            "to_status": each["after"],
            "attempt": each["attempt"],
            "ts": each["at"],
            "actor": each["actor"],
            "request_id": f"{task.key}/{each['rev']}",
            "owner": each["worker"],
            "lease_id": each["lease"][0],
            "lease_expires_at": each["lease"][1],
            "cause": each["cause"],
        }
        for each in task.history
    ]
