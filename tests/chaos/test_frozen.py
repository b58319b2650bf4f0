"""A process that is frozen inside a transaction on PostgreSQL: others soon continue, and it does
its own work when it wakes up."""

import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import closing, contextmanager
from itertools import count

import pytest

from tenure.coordinator.schedules import Firer
from tenure.coordinator.service import Coordinator
from tenure.core.ids import DEFAULT_NAMESPACE, Kind, ScheduleName, operator_actor
from tenure.core.instants import seconds
from tenure.core.schedules import PutSchedule, ScheduleSpec
from tenure.core.views.job_search import JobFilter
from tenure.core.vocabulary import Overlap
from tenure.stores.postgres.store import PostgresStore
from tenure_conformance.spec import spec
from tests.chaos.frozen_hand import TIMEOUT_S
from tests.stores.lives import QUEUE, claim_request, enqueue
from tests.support.commands import ROOT
from tests.support.freezing import is_frozen
from tests.support.waiting import answer_of, until

pytestmark = pytest.mark.process

WAITS_AT_MOST_S = TIMEOUT_S / 2
"""The server ends the transaction after 2 s; without that, after the time-out of the store."""


@pytest.fixture
def coordinator(postgres_url: str) -> Iterator[Coordinator]:
    with (
        closing(PostgresStore(postgres_url, migrate=True, timeout_s=TIMEOUT_S)) as store,
        closing(Coordinator(store)) as coordinator,
    ):
        yield coordinator


@contextmanager
def frozen_in_a_transaction(url: str, what: str) -> Iterator["subprocess.Popen[bytes]"]:
    command = [sys.executable, "-m", "tests.chaos.frozen_hand", url, what]
    with subprocess.Popen(command, cwd=ROOT, stdout=subprocess.PIPE) as process:
        try:
            until(lambda: is_frozen(process.pid), "it has frozen itself")
            yield process
        finally:
            process.kill()


def thaw(process: "subprocess.Popen[bytes]") -> int:
    """How many jobs it granted or made."""
    os.kill(process.pid, signal.SIGCONT)
    made, _ = answer_of(process.communicate, "it has ended")
    assert process.returncode == 0
    return int(made)


@spec("K16", "Z4")
def test_a_process_that_is_frozen_inside_a_claim_keeps_a_limit_for_two_seconds(
    coordinator: Coordinator, postgres_url: str
) -> None:
    store = coordinator.store
    store.settings.put_queue(DEFAULT_NAMESPACE, QUEUE, paused=None, limit=10)
    enqueue(store, 2)
    numbers = count(1)
    with frozen_in_a_transaction(postgres_url, "claim") as process:
        began = time.monotonic()

        own = until(
            lambda: coordinator.claim(claim_request(1, seq=next(numbers))).grants,
            "a claim counts under the limit",
        )
        store.settings.put_queue(DEFAULT_NAMESPACE, QUEUE, paused=None, limit=20)
        waited_s = time.monotonic() - began

        assert thaw(process) == 1
    assert len(own) == 1
    assert waited_s < WAITS_AT_MOST_S
    assert len({job.lease_id for job in store.views.jobs(_all()).jobs} - {None}) == 2


@spec("K16", "SC2")
def test_another_process_fires_a_schedule_whose_firer_is_frozen(
    coordinator: Coordinator, postgres_url: str
) -> None:
    reply = coordinator.change_schedule(
        PutSchedule(
            namespace=DEFAULT_NAMESPACE,
            name=ScheduleName("tick"),
            actor=operator_actor("tests"),
            spec=ScheduleSpec(
                kind=Kind("tick"), queue=QUEUE, every_us=seconds(1), overlap=Overlap.ALLOW
            ),
        )
    )
    assert reply.schedule is not None
    due_at = reply.schedule.next_at
    assert due_at is not None
    until(lambda: coordinator.store.now() >= due_at, "the schedule is due")
    with frozen_in_a_transaction(postgres_url, "fire") as process:
        began = time.monotonic()

        fired = Firer(coordinator).fire_due().fired
        waited_s = time.monotonic() - began

        made = thaw(process)
    assert fired >= 1
    assert waited_s < WAITS_AT_MOST_S
    assert len(coordinator.store.views.jobs(_all()).jobs) == fired + made


def _all() -> JobFilter:
    return JobFilter(namespace=DEFAULT_NAMESPACE, limit=100)
