"""Sixteen claimers in one process, each with connections of its own.

Run as `python -m tests.chaos.claimer URL NAME BATCH HOLDS`: claims until the queue stays empty
and prints one JSON line per grant. With `HOLDS` = 1 it completes what it claimed, so that limited
queues move on.
"""

import sys
from threading import Lock, Thread

import msgspec

from tenure.coordinator.service import Coordinator
from tenure.core.claims import ClaimRequest
from tenure.core.commands import Complete
from tenure.core.ids import DEFAULT_NAMESPACE, QueueName, RequestId, WorkerId, worker_actor
from tenure.core.verdicts import Verdict
from tenure.core.vocabulary import VerdictKind
from tenure.wiring import open_store

THREADS = 16
QUEUE = QueueName("race")
EMPTY_ANSWERS = 10


def claim_all(url: str, name: str, batch: int, completes: bool, lock: Lock) -> None:
    """Claim until nothing comes any more."""
    store = open_store(url)
    coordinator = Coordinator(store, threads=1)
    actor = worker_actor(name)
    number = empty = 0
    while empty < EMPTY_ANSWERS:
        number += 1
        request = ClaimRequest(
            namespace=DEFAULT_NAMESPACE,
            worker=WorkerId(name),
            actor=actor,
            queues=(QUEUE,),
            limit=batch,
            claim_seq=number,
            request_id=RequestId(f"{name}:{number}"),
        )
        grants = coordinator.claim(request).grants
        empty = 0 if grants else empty + 1
        lines = [
            msgspec.json.encode({"job": grant.job_id, "attempt": grant.attempt, "by": name})
            for grant in grants
        ]
        with lock:
            sys.stdout.buffer.write(b"%d\n" % len(grants) + b"".join(li + b"\n" for li in lines))
            sys.stdout.buffer.flush()
        if completes and grants:
            reports = [
                Complete(
                    job_id=grant.job_id,
                    lease_id=grant.lease_id,
                    actor=actor,
                    request_id=RequestId(f"{name}:{number}:done"),
                )
                for grant in grants
            ]
            for verdict in coordinator.submit_many(reports).result():
                assert isinstance(verdict, Verdict)
                assert verdict.kind is VerdictKind.COMMITTED
    coordinator.close()
    store.close()


if __name__ == "__main__":
    url, name, batch, completes = sys.argv[1:]
    lock = Lock()
    threads = [
        Thread(target=claim_all, args=(url, f"{name}-{number}", int(batch), completes == "1", lock))
        for number in range(THREADS)
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
