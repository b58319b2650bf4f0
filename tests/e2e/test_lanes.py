"""One worker with processes and threads side by side, on each database: what one handler does, its
neighbours do not notice. All tests of this file share the worker, as jobs do."""

import os
import re
import signal
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path

import pytest

from tenure.core.artifacts import MAX_ATTEMPT_LOG_BYTES
from tenure.core.ids import JobId
from tenure.core.vocabulary import CancelMode, JobStatus, ReasonCode, Stage
from tenure_conformance.spec import spec
from tests.e2e.workers import Site
from tests.support.waiting import until

pytestmark = pytest.mark.process

LANES = "tests.e2e.lanes:app"
NOISE_KIB = 32 * 1024
MOST_GROWTH_KIB = NOISE_KIB // 4  # of a supervisor that two handlers shout at
NOISE_BYTES = len("begins\n") + NOISE_KIB * 1024 + len("ends\n")
NOTE = re.compile(rb"\n\[\.\.\. (\d+) bytes left out \.\.\.\]\n")


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Site]:
    url = f"sqlite:///{tmp_path_factory.mktemp('lanes') / 'e2e.db'}"
    with closing(Site(url, settings={"E2E_SEASON": "winter"})) as site:
        site.deploy(LANES)
        site.start("worker", "--only-env", "LEDGER_*", concurrency=6)
        yield site


class Waiting:
    """A job that waits for its note, and where it runs."""

    def __init__(self, site: Site, kind: str, note: Path) -> None:
        self._site, self._note = site, note
        self.told = Path(f"{note}.told")
        self.job_id: JobId = site.enqueue(kind, note=str(note))
        ready = Path(f"{note}.ready")
        until(ready.exists, f"{note.name} runs")
        self.process, self.thread = map(int, ready.read_text().split())

    def ends_well_at_once(self) -> bool:
        """Let it go on: whether it was there all the time, and succeeds in its only attempt."""
        was_running = self._site.job(self.job_id).status is JobStatus.RUNNING
        self._note.touch()
        job = self._site.until_ended(self.job_id)
        return was_running and (job.status, job.attempt) == (JobStatus.SUCCEEDED, 1)


def test_a_thread_is_cancelled_and_fails_alone(site: Site, tmp_path: Path) -> None:
    unwanted = Waiting(site, "patient", tmp_path / "unwanted")
    beside = Waiting(site, "patient", tmp_path / "beside")
    apart = Waiting(site, "steady", tmp_path / "apart")

    failed = site.until_ended(site.enqueue("stumble"))
    site.cancel(unwanted.job_id, CancelMode.SOFT)
    cancelled = site.until_ended(unwanted.job_id)

    assert unwanted.process == beside.process != apart.process
    assert len({beside.process, beside.thread, unwanted.thread}) == 3, "threads, not the main one"
    assert failed.last_error is not None
    assert (failed.status, failed.last_error.type) == (JobStatus.DEAD_LETTERED, "ValueError")
    assert failed.last_error.message.startswith("tripped")
    assert cancelled.status is JobStatus.CANCELLED
    assert unwanted.told.exists()
    assert beside.ends_well_at_once()
    assert apart.ends_well_at_once()


@spec("T34", "F12")
@pytest.mark.parametrize(
    ("kind", "reason"),
    [
        ("bury", ReasonCode.POLICY_VIOLATION),
        ("bury_in_thread", ReasonCode.INFRASTRUCTURE_FAILURE),
        ("bury_in_loop", ReasonCode.POLICY_VIOLATION),
    ],
)
def test_a_handler_in_any_lane_makes_its_job_a_dead_letter(
    site: Site, kind: str, reason: ReasonCode
) -> None:
    job = site.until_ended(site.enqueue(kind))

    assert (job.status, job.reason_code) == (JobStatus.DEAD_LETTERED, reason)
    assert (job.attempt, job.failures, job.stage) == (1, 0, Stage.EXEC)


def test_a_handler_that_its_child_does_not_have_fails_at_fetch(site: Site) -> None:
    enqueued = site.tenure("enqueue", "seasonal", "{}", "--app", LANES)
    assert enqueued.returncode == 0, enqueued.stderr

    job = site.until_ended(JobId(enqueued.stdout.decode().strip()))

    assert (job.status, job.reason_code) == (JobStatus.DEAD_LETTERED, ReasonCode.EXHAUSTED_RETRIES)
    assert job.error is not None
    assert (job.error.stage, job.error.type) == (Stage.FETCH, "LookupError")
    assert b"fetch" in site.tenure("jobs", "show", job.id).stdout


def test_what_handlers_print_is_bounded_and_says_so(site: Site, tmp_path: Path) -> None:
    neighbour = Waiting(site, "steady", tmp_path / "neighbour")
    kinds = ("shout", "shout_in_thread")
    for kind in kinds:  # whatever is loaded for this is loaded now
        kept_output(site, site.enqueue(kind, kibibytes=1), b"ends\n")
    before_kib = peak_kib(site.workers["worker"].pid)

    noise = [site.enqueue(kind, kibibytes=NOISE_KIB) for kind in kinds]
    kept = [kept_output(site, job_id, b"ends\n") for job_id in noise]

    assert [site.job(job_id).result for job_id in noise] == [str(NOISE_KIB).encode()] * 2
    for text in kept:
        beginning, left_out, end = NOTE.split(text)
        assert (beginning[:10], end[-8:]) == (b"begins\nxxx", b"xx\nends\n")
        assert len(beginning) + int(left_out) + len(end) == NOISE_BYTES
        assert len(text) <= MAX_ATTEMPT_LOG_BYTES
    assert peak_kib(site.workers["worker"].pid) - before_kib < MOST_GROWTH_KIB
    assert neighbour.ends_well_at_once()


def kept_output(site: Site, job_id: JobId, ending: bytes) -> bytes:
    """What `tenure jobs logs` prints of a job that has ended, once its output has arrived."""
    site.until_ended(job_id)
    texts = [b""]

    def has_arrived() -> bool:
        texts.append(site.tenure("jobs", "logs", job_id).stdout)
        return texts[-1].endswith(ending)

    until(has_arrived, f"the output of {job_id} is kept")
    return texts[-1]


def peak_kib(pid: int) -> int:
    """The most memory that a process has held so far."""
    status = Path(f"/proc/{pid}/status").read_text()
    return next(int(line.split()[1]) for line in status.splitlines() if line.startswith("VmHWM"))


def test_a_handler_killed_as_for_lack_of_memory_is_named_and_is_killed_first(
    site: Site, tmp_path: Path
) -> None:
    """The signal is the test's: a machine that runs out of memory would take the tests with it."""
    victim = Waiting(site, "steady", tmp_path / "victim")
    neighbour = Waiting(site, "steady", tmp_path / "neighbour")
    goes_first = willingness(victim.process) > willingness(site.workers["worker"].pid)

    os.kill(victim.process, signal.SIGKILL)
    job = site.until_ended(victim.job_id)

    assert goes_first
    assert job.status is JobStatus.DEAD_LETTERED
    assert job.last_error is not None
    assert (job.last_error.type, job.last_error.stage) == ("ProcessDied", Stage.EXEC)
    assert "was killed by SIGKILL; if no process sent it, memory ran out" in job.last_error.message
    assert neighbour.ends_well_at_once()


def willingness(pid: int) -> int:
    """How soon the kernel takes this process when memory runs out."""
    return int(Path(f"/proc/{pid}/oom_score_adj").read_text())
