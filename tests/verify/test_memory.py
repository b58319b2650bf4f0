"""Verifying ten times the history takes no more memory: everything is a stream."""

import subprocess
import sys
from pathlib import Path

import pytest
from msgspec.structs import replace

from tenure.core.commands import Complete, Heartbeat, Start
from tenure.core.ids import JobId, LeaseId
from tenure.core.instants import seconds
from tenure.core.outcomes import Change
from tenure.core.policy import Policy
from tenure.stores.sqlite.store import SqliteStore
from tenure.verify import Ack, AckWriter
from tests.support.histories import World

pytestmark = pytest.mark.process

BATCH = 250
MOST_GROWTH = 1.2

MEASURE = """
import sys
from pathlib import Path
from tenure.verify import verify
from tenure.wiring import open_store

store = open_store(sys.argv[1])
report = verify(store, [Path(sys.argv[2])])
store.close()
assert report.holds and report.not_checked == ["I23"], report
# Not ru_maxrss: it remembers the size of the process that started this one.
peak = next(line for line in open("/proc/self/status") if line.startswith("VmHWM"))
print(report.jobs, report.events, report.acks, peak.split()[1])
"""


def fill(folder: Path, jobs: int) -> tuple[str, Path]:
    """A store and an ack file of this many jobs, each with a lease and renewals, half ended."""
    world = World(0, lost_answers=0)
    for _ in range(BATCH):
        work_on_a_job(world)
    path = folder / f"{jobs}.db"
    store = SqliteStore(path)
    epoch = store.jobs.load([]).epoch
    with AckWriter(folder / f"{jobs}.acks") as writer:
        for copy in range(jobs // BATCH):
            changes = [changed_ids(world, job_id, copy) for job_id in world.rows]
            assert len(store.jobs.save(changes, epoch=epoch).applied) == BATCH
            writer.write(*(acknowledged(ack, copy) for ack in world.acks))
    store.close()
    return f"sqlite:///{path}", folder / f"{jobs}.acks"


def work_on_a_job(world: World) -> None:
    job_id = world.enqueue(Policy(lease_us=seconds(30)), dedupe_key=f"{world.luck.random()}")
    world.advance(seconds_=10)
    assert world.claim(job_id) is not None
    _, lease_id, actor = world.leases[-1]
    world.submit(
        Start(job_id=job_id, lease_id=lease_id, actor=actor, request_id=world.request_id())
    )
    for hb_seq in (1, 2, 3):
        world.submit(Heartbeat(job_id=job_id, lease_id=lease_id, actor=actor, hb_seq=hb_seq))
    if len(world.rows) % 2:
        done = world.request_id()
        world.submit(Complete(job_id=job_id, lease_id=lease_id, actor=actor, request_id=done))


def of_copy(copy: int, text: str) -> str:
    """An id that belongs to this copy of the world: deciding each job anew would take minutes."""
    return f"{text[:-4]}{copy:04x}"


def changed_ids(world: World, job_id: JobId, copy: int) -> Change:
    row, copied_id = world.rows[job_id], JobId(of_copy(copy, job_id))
    key = f"{row.dedupe_key}-{copy}"
    events = [
        replace(
            event,
            job_id=copied_id,
            lease_id=event.lease_id and LeaseId(of_copy(copy, event.lease_id)),
            payload=replace(event.payload, dedupe_key=key)
            if event.payload.dedupe_key
            else event.payload,
        )
        for event in world.logs[job_id]
    ]
    lease_id = row.lease_id and LeaseId(of_copy(copy, row.lease_id))
    copied = replace(row, id=copied_id, dedupe_key=key, lease_id=lease_id)
    return Change(job=copied, expected_rev=0, events=tuple(events))


def acknowledged(ack: Ack, copy: int) -> Ack:
    lease_id = ack.lease_id and LeaseId(of_copy(copy, ack.lease_id))
    return replace(ack, job_id=JobId(of_copy(copy, ack.job_id)), lease_id=lease_id)


def measure(url: str, acks: Path) -> list[int]:
    """Jobs, events, acks, and the peak memory in KiB of a process that verifies them."""
    done = subprocess.run(
        [sys.executable, "-c", MEASURE, url, str(acks)], capture_output=True, text=True, check=True
    )
    return [int(word) for word in done.stdout.split()]


@pytest.mark.skipif(not Path("/proc/self/status").exists(), reason="reads Linux's own measure")
@pytest.mark.parametrize("jobs", [250, pytest.param(1000, marks=pytest.mark.proof)])
def test_ten_times_the_history_takes_no_more_memory(tmp_path: Path, jobs: int) -> None:
    few = measure(*fill(tmp_path, jobs))
    many = measure(*fill(tmp_path, 10 * jobs))

    assert few[0] == jobs
    assert [count / 10 for count in many[:3]] == few[:3]
    assert many[3] <= few[3] * MOST_GROWTH, f"{few[3]} KiB became {many[3]} KiB"
