"""One process that makes flows, works on them, cancels and redrives them, purges them or sweeps,
until it is killed.

Run as `python -m tests.chaos.flow_hand ROLE URL SEED`. URL names a store or, except for the roles
`purge` and `sweep`, a server. It prints `going` once it works.
"""

import os
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from random import Random
from typing import Any

from tenure.coordinator.service import Coordinator
from tenure.coordinator.sweeper import Sweeper
from tenure.core.claims import ClaimRequest
from tenure.core.commands import (
    Cancel,
    Complete,
    DeadLetter,
    Enqueue,
    EnqueueFlow,
    Fail,
    FlowMember,
    Parent,
    RedriveFlow,
)
from tenure.core.flow_rows import FlowView, in_order
from tenure.core.ids import (
    DEFAULT_NAMESPACE,
    FlowId,
    Kind,
    QueueName,
    RequestId,
    WorkerId,
    client_actor,
    new_job_id,
    operator_actor,
    worker_actor,
)
from tenure.core.instants import Instant, seconds
from tenure.core.job import JobError
from tenure.core.policy import Backoff, DeadLetterJob, LeaseBounds, Policy
from tenure.core.validation import Limits
from tenure.core.vocabulary import CancelMode, ErrorClass, JobStatus, ReasonCode
from tenure.errors import Contended, StoreUnavailable
from tenure.ports import Coordination
from tenure.settings import is_server
from tenure.wiring import open_remote, open_store
from tests.support.waiting import PATIENCE_S

QUEUE = QueueName("flows")
KIND, REPORT = Kind("part"), Kind("report")
LIMITS = Limits(lease=LeaseBounds(shortest_us=seconds(0.2), longest_us=seconds(120)))
POLICY = Policy(
    lease_us=seconds(1),
    max_attempts=2,
    backoff=Backoff(initial_us=seconds(0.01), cap_us=seconds(0.05)),
)
REPORTED = DeadLetterJob(kind=REPORT, queue=QUEUE, policy=POLICY)
PARENTS: dict[str, tuple[str, ...]] = {
    "top": (),
    "other": (),
    "left": ("top",),
    "right": ("top", "other"),
    "bottom": ("left", "right"),
    "last": ("bottom", "other"),
}
KEPT = seconds(2)
"""How long a purge keeps what has ended. Operators choose among the flows of the last four seconds,
so that they meet some at the moment of their purge."""
EXPIRES = seconds(0.02)
PURGED_TOGETHER = 50
FLOWS_LOOKED_AT = 20
PAUSE_S = {"make": 0.2}
"""After a round of a role; others go on at once."""


def new_flow(
    now: Instant,
    parents: Mapping[str, Sequence[str]],
    fields: Callable[[str], dict[str, Any]] = lambda step: {},
) -> EnqueueFlow:
    """A flow: each step with those that it waits for. `last` needs only that they have ended."""
    ids = {step: new_job_id(now, os.urandom(16)) for step in parents}
    return EnqueueFlow(
        flow_id=FlowId(new_job_id(now, os.urandom(16))),
        name="chaos",
        members=tuple(
            FlowMember(
                job=Enqueue(
                    job_id=ids[step],
                    namespace=DEFAULT_NAMESPACE,
                    queue=QUEUE,
                    kind=KIND,
                    actor=client_actor("chaos"),
                    policy=POLICY,
                    **fields(step),
                ),
                step=step,
                after=tuple(
                    Parent(
                        job_id=ids[each],
                        step=each,
                        needs=None if step == "last" else JobStatus.SUCCEEDED,
                    )
                    for each in after
                ),
            )
            for step, after in parents.items()
        ),
    )


class Hand:
    """What one process does, a round at a time."""

    def __init__(self, serving: Coordination, name: str, seed: int) -> None:
        self._serving = serving
        self._random = Random(seed)
        self._name = name
        self._numbers = iter(range(1, 10**9))

    def _request_id(self) -> RequestId:
        return RequestId(f"{self._name}:{next(self._numbers)}")

    def make(self) -> None:
        """A flow whose first jobs may expire, and some of whose dead letters are reported."""

        def fields(step: str) -> dict[str, Any]:
            expires_us = None if PARENTS[step] else self._random.choice([None, EXPIRES])
            reported = self._random.choice([None, REPORTED])
            return {"expires_us": expires_us, "on_dead_letter": reported}

        self._serving.execute(new_flow(self._serving.store.now(), PARENTS, fields))

    def work(self) -> None:
        """Claim a few jobs; some succeed, some fail, some are forgotten."""
        actor, number = worker_actor("chaos"), next(self._numbers)
        request = ClaimRequest(
            namespace=DEFAULT_NAMESPACE,
            worker=WorkerId(self._name),
            actor=actor,
            queues=(QUEUE,),
            limit=4,
            claim_seq=number,
            request_id=RequestId(f"{self._name}:{number}"),
        )
        for grant in self._serving.submit_claim(request).result().grants:
            luck = self._random.random()
            held: dict[str, Any] = {
                "job_id": grant.job_id,
                "lease_id": grant.lease_id,
                "actor": actor,
            }
            if luck < 0.7:
                self._serving.execute(Complete(**held, request_id=self._request_id()))
            elif luck < 0.95:
                found = ErrorClass.PERMANENT if luck < 0.85 else ErrorClass.TRANSIENT
                error = JobError(error_class=found, type="E", message="chaos")
                self._serving.execute(Fail(**held, request_id=self._request_id(), error=error))

    def operate(self) -> None:
        """Cancel or redrive a flow, or dead-letter one of its jobs, whatever it is doing now."""
        found = self._serving.store.flows.page(
            DEFAULT_NAMESPACE, before=None, limit=FLOWS_LOOKED_AT
        )
        if not found:
            return
        flow_id = self._random.choice(found).flow.id
        view = self._serving.store.flows.load(DEFAULT_NAMESPACE, flow_id)
        if view is None:
            return
        act = self._random.choice([self._redrive, self._redrive, self._cancel, self._bury])
        act(view)

    def _redrive(self, view: FlowView) -> None:
        self._serving.execute(
            RedriveFlow(
                flow_id=view.flow.id,
                namespace=DEFAULT_NAMESPACE,
                actor=operator_actor("chaos"),
                request_id=self._request_id(),
            )
        )

    def _cancel(self, view: FlowView) -> None:
        live = [step for step in view.steps if not step.status.is_terminal]
        request_id, mode = self._request_id(), self._random.choice(list(CancelMode))
        self._serving.execute_many(
            [
                Cancel(
                    job_id=step.job_id,
                    actor=operator_actor("chaos"),
                    request_id=request_id,
                    mode=mode,
                )
                for step in in_order(live)[::-1]
            ]
        )

    def _bury(self, view: FlowView) -> None:
        step = self._random.choice(view.steps)
        self._serving.execute(
            DeadLetter(
                job_id=step.job_id,
                actor=operator_actor("chaos"),
                request_id=self._request_id(),
                reason_code=ReasonCode.POLICY_VIOLATION,
            )
        )


def main(role: str, url: str, seed: int) -> None:
    """Do it until this process is killed."""
    round_of = _rounds(role, url, seed)
    has_begun = False
    until = time.monotonic() + PATIENCE_S
    while has_begun or time.monotonic() < until:
        # A server that was killed, a store that is busy; any other error ends this process.
        with suppress(StoreUnavailable, Contended):
            round_of()
            if not has_begun:
                has_begun = True
                sys.stdout.write("going\n")
                sys.stdout.flush()
        time.sleep(PAUSE_S.get(role, 0.01))


def _rounds(role: str, url: str, seed: int) -> Callable[[], object]:
    if is_server(url):
        serving: Coordination = open_remote(url)
    else:
        store = open_store(url)
        coordinator = Coordinator(store, limits=LIMITS)
        if role == "purge":
            return lambda: (
                store.upkeep.delete("jobs", older_than_us=KEPT, limit=PURGED_TOGETHER).deleted
            )
        if role == "sweep":
            return Sweeper(coordinator).sweep_once
        serving = coordinator
    hand = Hand(serving, f"{role}-{os.getpid()}", seed)
    rounds: dict[str, Callable[[], object]] = {
        "make": hand.make,
        "work": hand.work,
        "operate": hand.operate,
    }
    return rounds[role]


if __name__ == "__main__":
    main(sys.argv[1], sys.argv[2], int(sys.argv[3]))
