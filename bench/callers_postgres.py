"""64 callers with one job each at a time: coalesced by the coordinator, or each on its own.

"Direct" is the same core and the same store with the same pool, without the coordinator's queue:
every call decides in its caller's thread and commits a transaction of its own. It has less to do
in Python than the coordinator has; what it lacks is company in its transactions.
"""

import os
from collections.abc import Sequence

from bench.harness import Options, Row, interleave
from bench.servers import coordinator_of, durable_postgres, fresh_store
from bench.workload import Coordinated, Service, check_history, drain, enqueue
from tenure.clock import boot_now
from tenure.coordinator.batches import Executor, LastWritten, PendingCommand
from tenure.coordinator.outages import OutageWatch
from tenure.coordinator.service import LAST_WRITTEN
from tenure.core.claims import ClaimAnswer, ClaimPlan, ClaimRequest, ClaimView, plan_claims
from tenure.core.commands import Command
from tenure.core.ids import ENTROPY_BYTES
from tenure.core.verdicts import Answer
from tenure.core.vocabulary import JobStatus
from tenure.ports import Store
from tests.support.postgres import PostgresServer

NAME = "callers-postgres"
CALLERS = 64


class Direct:
    """One transaction per call, in the caller's thread."""

    def __init__(self, store: Store) -> None:
        self._store = store
        self._watch = OutageWatch(boot_now)
        self._last_written = LastWritten(LAST_WRITTEN)
        self._executor = Executor(
            store, entropy=os.urandom, watch=self._watch, last_written=self._last_written
        )

    def report(self, commands: Sequence[Command]) -> list[Answer]:
        """Decide and save."""
        batch = [PendingCommand(command) for command in commands]
        self._executor.run(batch)
        answers: list[Answer] = []
        for pending in batch:
            if pending.error is not None:
                raise pending.error
            assert pending.answer is not None
            answers.append(pending.answer)
        return answers

    def claim(self, request: ClaimRequest) -> ClaimAnswer:
        """Claim for one session."""
        sent_us = self._watch.monotonic()

        def plan(view: ClaimView) -> ClaimPlan:
            self._watch.read_clock(view.now, sent_us=sent_us, epoch=view.epoch)
            luck = [os.urandom(ENTROPY_BYTES) for _ in view.candidates]
            return plan_claims([request], view, luck)

        planned = self._store.claims.claim(request.scope, [request.session], request.limit, plan)
        self._last_written.remember(planned.changes)
        return planned.answers[0]


def run(options: Options) -> list[Row]:
    """Coalesced beside direct."""
    jobs = options.sized(10_000, 2_000)
    few = options.sized(2_000, 500)
    with durable_postgres() as server:
        figures = interleave(
            {
                "coalesced": lambda: measured(server, jobs=jobs, is_direct=False),
                "direct": lambda: measured(server, jobs=few, is_direct=True),
            },
            rounds=options.rounds,
        )
    return [
        Row(
            scenario=f"PostgreSQL: {CALLERS} callers, one job at a time",
            ours=figures["coalesced"],
            theirs=figures["direct"],
            unit="jobs/s",
            peer="the same without coalescing",
            at_least=5.0,
        )
    ]


def measured(server: PostgresServer, *, jobs: int, is_direct: bool) -> float:
    """Jobs per second from queued to succeeded."""
    with fresh_store(server) as (store, settle):
        with coordinator_of(store) as coordinator:
            coordinated = Coordinated(coordinator)
            enqueue(coordinated, jobs=jobs, batch=1000)
            settle()
            service: Service = Direct(store) if is_direct else coordinated
            elapsed_s = drain(service, jobs=jobs, threads=CALLERS, batch=1)
        check_history(store, jobs=jobs, status=JobStatus.SUCCEEDED)
    return jobs / elapsed_s
