"""A handler looks for its worker's token where the system shows one process to another."""

import os
import subprocess
import sys
from pathlib import Path

import msgspec
import pytest

from tenure.core.commands import Enqueue
from tenure.core.ids import DEFAULT_NAMESPACE, DEFAULT_QUEUE, Kind, client_actor, new_job_id
from tenure.core.vocabulary import JobStatus
from tenure.wiring import open_coordinator
from tests.support.waiting import until

pytestmark = pytest.mark.process

TOKEN = "tenure_0123456789abcdef_the-token-of-the-worker"
SPY = """
import os
from pathlib import Path

from tenure import Tenure

app = Tenure()


@app.job()
def spy() -> dict[str, list[str]]:
    supervisor = os.getppid()
    children = Path(f"/proc/{supervisor}/task/{supervisor}/children").read_text().split()
    family = {pid: Path(f"/proc/{pid}/cmdline").read_bytes() for pid in children}
    keepers = [pid for pid, command in family.items() if b"keeper.py" in command]
    return {"supervisor": seen(str(supervisor)), "keeper": seen(*keepers), "found": keepers}


def seen(*pids: str) -> list[str]:
    found = []
    for pid in pids:
        try:
            found.append(Path(f"/proc/{pid}/environ").read_text().replace(chr(0), ' '))
            found.append(open(f"/proc/{pid}/mem", "rb").name)
        except PermissionError:
            pass
    return found
"""
UNPRIVILEGED = """
import ctypes, os, sys
for capability in range(64):  # root without capabilities is a user like any other
    ctypes.CDLL(None).prctl(24, capability, 0, 0, 0)
os.execv(sys.executable, [sys.executable, *sys.argv[1:]])
"""


def test_a_handler_cannot_read_its_workers_token_from_proc(tmp_path: Path) -> None:
    (tmp_path / "spying.py").write_text(SPY)
    url = f"sqlite:///{tmp_path / 'tenure.db'}"
    worker = subprocess.Popen(
        [sys.executable, "-c", UNPRIVILEGED, "-m", "tenure", "worker", "spying:app"],
        cwd=tmp_path,
        env=os.environ | {"TENURE_URL": url, "TENURE_TOKEN": TOKEN},
    )
    try:
        with open_coordinator(url) as coordinator:
            job_id = new_job_id(coordinator.store.now(), os.urandom(16))
            coordinator.execute(
                Enqueue(
                    job_id=job_id,
                    namespace=DEFAULT_NAMESPACE,
                    queue=DEFAULT_QUEUE,
                    kind=Kind("spy"),
                    actor=client_actor("tests"),
                    payload=b"{}",
                )
            )

            def has_ended() -> bool:
                return coordinator.store.jobs.read([job_id])[job_id].status.is_terminal

            until(has_ended, "the spy is back", within_s=120)
            job = coordinator.store.jobs.read([job_id])[job_id]
    finally:
        worker.terminate()
        code = worker.wait(120)

    assert (job.status, code) == (JobStatus.SUCCEEDED, 0), job.error
    assert job.result is not None
    report = msgspec.json.decode(job.result)
    assert len(report["found"]) == 1
    assert (report["supervisor"], report["keeper"]) == ([], [])
