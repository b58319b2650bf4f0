"""A handler that takes its process down costs its own attempt and nobody else's."""

import os
import signal
from pathlib import Path

import pytest
from msgspec import json
from msgspec.structs import replace

from tenure.core.ids import JobId
from tenure.core.vocabulary import JobStatus
from tenure.telemetry.logs import TextFormatter
from tenure.worker.child.confinement import OOM_SCORE
from tenure_conformance.spec import spec
from tests.support.waiting import until
from tests.worker.harness import POLICY, Shop, is_alive, read_pids
from tests.worker.sample import SHARED

pytestmark = pytest.mark.process

ONCE = replace(POLICY, max_attempts=1)
CRASHES = {
    "exit": ("ProcessDied", "exited with code 3"),
    "segfault": ("ProcessDied", "killed by SIGSEGV"),
    "kill": ("ProcessDied", "killed by SIGKILL; if no process sent it, memory ran out"),
    "recursion": ("RecursionError", "maximum recursion depth"),
    "fork": ("ProcessDied", "exited with code 4"),
    "deaf": ("ProcessDied", "did not respond to its supervisor"),
    "thread": ("ProcessDied", "exited with code 1"),
}


def test_every_way_to_crash_is_named_and_neighbours_are_unharmed(
    shop: Shop, tmp_path: Path
) -> None:
    worker = shop.start(concurrency=2)
    neighbour_file = tmp_path / "neighbour"
    neighbour = shop.enqueue("nap", {"amount_s": 3, "file": str(neighbour_file)})
    read_pids(neighbour_file)
    crashed = {how: shop.enqueue("crash", {"how": how}, policy=ONCE) for how in CRASHES}

    for how, (name, message) in CRASHES.items():
        job = shop.wait(crashed[how])
        assert job.status is JobStatus.DEAD_LETTERED
        assert job.error is not None
        assert job.error.type == name
        assert message in job.error.message
    assert shop.wait(neighbour).status is JobStatus.SUCCEEDED
    assert shop.job(neighbour).attempt == 1
    assert shop.stop(worker).crashes == 6


def test_a_handler_that_takes_too_much_memory_fails_alone(shop: Shop, tmp_path: Path) -> None:
    worker = shop.start(concurrency=2, child_memory_bytes=256 * 1024 * 1024)
    file = tmp_path / "neighbour"
    neighbour = shop.enqueue("nap", {"amount_s": 1, "file": str(file)})
    read_pids(file)

    modest = shop.wait(shop.enqueue("eat", {"megabytes": 100}, policy=ONCE))
    greedy = shop.wait(shop.enqueue("eat", {"megabytes": 400}, policy=ONCE))

    assert modest.status is JobStatus.SUCCEEDED
    assert greedy.error is not None
    assert (greedy.status, greedy.error.type) == (JobStatus.DEAD_LETTERED, "MemoryError")
    assert shop.wait(neighbour).attempt == 1
    assert shop.stop(worker).succeeded == 2


def test_the_kernel_kills_a_child_before_its_supervisor_and_writes_no_core_dump(shop: Shop) -> None:
    shop.start(child_memory_bytes=2**30)

    result = shop.wait(shop.enqueue("standing")).result

    assert result is not None
    standing = json.decode(result)
    ours = int(Path("/proc/self/oom_score_adj").read_text())
    assert (standing["memory"], standing["core"]) == (2**30, 0)
    assert standing["oom"] == max(ours, OOM_SCORE)


def test_what_a_handler_changes_in_its_process_is_reset_for_the_next(shop: Shop) -> None:
    shop.start(concurrency=1)

    left = shop.wait(shop.enqueue("litter", policy=ONCE)).result
    found = shop.wait(shop.enqueue("find", policy=ONCE)).result

    assert left is not None
    assert found is not None
    assert json.decode(found) == [json.decode(left), str(Path.cwd())]


@pytest.mark.parametrize("kind", ["stop_loop", "cancel_all"])
def test_a_coroutine_that_breaks_its_loop_still_reports_what_it_returned(
    shop: Shop, kind: str
) -> None:
    shop.start(SHARED)

    broken = shop.wait(shop.enqueue(kind, policy=ONCE))
    after = shop.wait(shop.enqueue("anap", {"amount_s": 0}))

    assert broken.status is JobStatus.SUCCEEDED
    assert after.status is JobStatus.SUCCEEDED


def test_coroutines_fail_together_when_their_process_dies(shop: Shop) -> None:
    worker = shop.start(SHARED, concurrency=3)
    jobs = [
        shop.enqueue("acrash", policy=ONCE),
        shop.enqueue("anap", {"amount_s": 30}, policy=ONCE),
    ]

    for job in [shop.wait(job_id) for job_id in jobs]:
        assert job.error is not None
        assert "exited with code 5" in job.error.message
    assert shop.wait(shop.enqueue("anap", {"amount_s": 0})).status is JobStatus.SUCCEEDED
    assert shop.stop(worker).crashes == 2


def test_a_worker_whose_children_cannot_start_claims_nothing_and_ends(
    shop: Shop, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.handler.setFormatter(TextFormatter())
    caplog.set_level("INFO", "tenure")
    source = "import os\nos.environ['SECRET_SETTING']\nfrom tests.worker.sample import app\n"
    (tmp_path / "needy.py").write_text(source)
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.setenv("SECRET_SETTING", "1")
    job_id = shop.enqueue("add", {"a": 1, "b": 2})

    worker = shop.start("needy:app", only_environment=("NOTHING",))
    shop.join(worker)

    assert shop.types(job_id) == ["enqueued"]
    assert caplog.text.count("\n  KeyError: 'SECRET_SETTING'") == 1
    assert "children cannot start needy:app" in caplog.text
    assert "stopped after an error that it cannot recover from" in caplog.text


def test_a_segfault_leaves_its_stack_in_the_output(shop: Shop) -> None:
    worker = shop.start()
    job_id = shop.enqueue("crash", {"how": "segfault"}, policy=ONCE)

    shop.wait(job_id)
    shop.stop(worker)

    assert b"Segmentation fault" in shop.output_of(job_id)
    assert b"in crash" in shop.output_of(job_id)


def test_a_crash_is_retried_like_any_failure(shop: Shop) -> None:
    shop.start()

    job = shop.wait(shop.enqueue("crash", {"how": "exit"}))

    assert (job.status, job.failures) == (JobStatus.DEAD_LETTERED, 3)


def test_what_a_dead_handler_started_dies_with_it(shop: Shop, tmp_path: Path) -> None:
    shop.start()
    file = tmp_path / "pids"
    shop.enqueue("forever", {"file": str(file)}, policy=ONCE)
    handler, program = read_pids(file)

    os.kill(handler, signal.SIGKILL)

    until(lambda: not is_alive(program), "the program it started is gone")


def test_children_are_recycled_after_so_many_jobs(shop: Shop) -> None:
    worker = shop.start(concurrency=1, jobs_per_child=2)

    pids = [shop.wait(shop.enqueue("pid")).result for _ in range(6)]

    assert len(set(pids)) == 3
    assert pids[0] == pids[1]
    assert shop.stop(worker).children_recycled == 3


def test_children_above_their_memory_are_recycled(shop: Shop) -> None:
    shop.start(concurrency=1, child_rss_bytes=1)

    pids = [shop.wait(shop.enqueue("pid")).result for _ in range(3)]

    assert len(set(pids)) == 3


def test_a_shared_child_above_its_memory_works_until_its_successor_is_ready(shop: Shop) -> None:
    worker = shop.start(SHARED, concurrency=1, child_rss_bytes=1)
    first = shop.wait(shop.enqueue("apid")).result

    began_before = worker.stats.children_recycled
    pids = {first}
    while len(pids) < 2:
        pids.add(shop.wait(shop.enqueue("apid")).result)

    assert began_before == 0, "it was asked to go only after another one was ready"
    until(lambda: worker.stats.children_recycled, "the first one has retired")


def test_shared_children_are_not_recycled_by_count(shop: Shop) -> None:
    worker = shop.start(SHARED, concurrency=1, jobs_per_child=1)

    pids = {shop.wait(shop.enqueue("apid")).result for _ in range(3)}

    assert len(pids) == 1
    assert shop.stop(worker).children_recycled == 0


def test_a_handler_sees_the_workers_environment_without_tenures_own_secrets(
    shop: Shop, monkeypatch: pytest.MonkeyPatch
) -> None:
    secrets = {
        "TENURE_TOKEN": "tnr_secret",
        "TENURE_URL": "postgresql://tenure:hunter2@db/tenure",
    }
    for name, value in {**secrets, "SHOP_COLOUR": "green"}.items():
        monkeypatch.setenv(name, value)
    shop.start()

    result = shop.wait(shop.enqueue("environment")).result

    assert result is not None
    assert b"SHOP_COLOUR" in result
    assert b"PATH" in result
    assert b"withheld" in result, "a handler that enqueues must fail, not write somewhere else"
    for name, value in secrets.items():
        assert name == "TENURE_URL" or name.encode() not in result
        assert value.encode() not in result


@spec("OB13")
def test_a_reported_error_has_no_secret_and_its_traceback_can_be_read(shop: Shop) -> None:
    shop.start()
    job_id = shop.enqueue("leak", {"url": "postgresql://app:hunter2@db/app"}, policy=ONCE)

    error = shop.wait(job_id).error

    assert error is not None
    assert "hunter2" not in error.message + error.traceback
    assert error.message == "cannot connect to postgresql://app:[redacted]@db/app"
    assert f"ConnectionError: {error.message}" in error.traceback
    assert "    token = _connect(url)\n" in error.traceback


def test_a_child_has_no_descriptors_but_its_own(shop: Shop, tmp_path: Path) -> None:
    with (tmp_path / "secret").open("w") as open_file:
        open_file.write("x")
        shop.start()
        file = tmp_path / "pid"
        job_id: JobId = shop.enqueue("nap", {"amount_s": 1, "file": str(file)})
        (handler,) = read_pids(file)

        targets = [link.readlink().name for link in Path(f"/proc/{handler}/fd").iterdir()]

        assert "secret" not in targets
        assert len(targets) < 8
        shop.wait(job_id)
