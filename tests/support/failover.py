"""A primary with a standby, and programs that use them, for tests of failovers.

A "process" here is a coordinator over a store of its own: what it remembers is its own.
"""

import os
from contextlib import ExitStack
from itertools import count

import psycopg

from tenure.coordinator.service import Coordinator
from tenure.core.claims import ClaimRequest
from tenure.core.commands import Command, Complete, Enqueue, Heartbeat
from tenure.core.failover import SETTLING
from tenure.core.ids import (
    DEFAULT_NAMESPACE,
    Epoch,
    JobId,
    Kind,
    QueueName,
    RequestId,
    WorkerId,
    client_actor,
    new_job_id,
    worker_actor,
)
from tenure.core.policy import Policy
from tenure.core.verdicts import Grant, Verdict
from tenure.stores.postgres.store import PostgresStore
from tests.support.postgres import PostgresCluster

SMALL = {"max_connections": "30", "shared_buffers": "16MB", "max_wal_size": "64MB"}
QUEUE = QueueName("mail")
WORKER = worker_actor("w")
_numbers = count(1)


class Process:
    """What a program with a store of its own does."""

    def __init__(self, url: str) -> None:
        self.store = PostgresStore(url)
        self.coordinator = Coordinator(self.store)

    def enqueue(self) -> JobId:
        job_id = new_job_id(self.store.now(), os.urandom(16))
        self.coordinator.execute(
            Enqueue(
                job_id=job_id,
                namespace=DEFAULT_NAMESPACE,
                queue=QUEUE,
                kind=Kind("send"),
                actor=client_actor("c"),
                policy=Policy(max_attempts=1),
            )
        )
        return job_id

    def claim(self, limit: int) -> tuple[Grant, ...]:
        number = next(_numbers)
        request = ClaimRequest(
            namespace=DEFAULT_NAMESPACE,
            worker=WorkerId("w"),
            actor=WORKER,
            queues=(QUEUE,),
            limit=limit,
            claim_seq=number,
            request_id=RequestId(f"claim-{number}"),
        )
        return self.coordinator.claim(request).grants

    def heartbeat(self, grant: Grant) -> Verdict:
        return self._verdict(
            Heartbeat(job_id=grant.job_id, lease_id=grant.lease_id, actor=WORKER, hb_seq=1)
        )

    def complete(self, grant: Grant) -> Verdict:
        return self._verdict(
            Complete(
                job_id=grant.job_id,
                lease_id=grant.lease_id,
                actor=WORKER,
                request_id=RequestId(f"done-{next(_numbers)}"),
            )
        )

    def _verdict(self, command: Command) -> Verdict:
        answer = self.coordinator.execute(command)
        assert isinstance(answer, Verdict)
        return answer

    def epoch(self) -> Epoch:
        return self.store.jobs.load([]).epoch

    def close(self) -> None:
        self.coordinator.close()
        self.store.close()


class Pair:
    """A primary and a standby, and the programs that use them."""

    def __init__(self) -> None:
        self._opened = ExitStack()
        self._processes: list[Process] = []
        self.primary = PostgresCluster.start(durable=False, settings=SMALL)
        self._opened.callback(self.primary.stop)
        self.database = self.primary.create_database().rpartition("/")[2]
        PostgresStore(self.url(self.primary), migrate=True).close()
        self.standby = PostgresCluster.standby_of(self.primary)
        self._opened.callback(self.standby.stop)

    def url(self, *clusters: PostgresCluster) -> str:
        return PostgresCluster.url_of(*clusters, database=self.database)

    def process(self, *clusters: PostgresCluster) -> Process:
        process = Process(self.url(*(clusters or (self.primary, self.standby))))
        self._opened.callback(process.close)
        self._processes.append(process)
        return process

    def catch_up(self) -> None:
        """Wait until the standby has everything."""
        position = self.primary.run("SELECT pg_current_wal_lsn()")
        self.standby.wait_until(f"SELECT pg_last_wal_replay_lsn() >= '{position}'")

    def fail_over(self) -> None:
        """The primary dies, the standby takes over. No process has a hint left to send then: its
        thread would be the first to ask the new primary."""
        for process in self._processes:
            process.store.database.notifier.close()
        self.primary.kill()
        self.standby.promote()

    def follow_again(self) -> None:
        """The new primary gets a standby of its own."""
        self.primary = self.standby
        self.standby = PostgresCluster.standby_of(self.primary)
        self._opened.callback(self.standby.stop)

    def run(self, cluster: PostgresCluster, statement: str) -> None:
        with psycopg.connect(self.url(cluster), autocommit=True) as connection:
            connection.execute(statement.encode())

    def settle(self) -> None:
        """Let the time pass in which nothing is granted: by as much as it is long."""
        change = f"UPDATE tenure.meta SET settling_since = settling_since - {SETTLING}"
        self.run(self.standby, change)

    def close(self) -> None:
        self._opened.close()
