"""Hooks in a real worker: in every lane, when a job is cancelled, and when its handler is killed.
All tests of this file share the worker: no hook may stop it."""

from collections.abc import Iterator
from contextlib import closing
from pathlib import Path

import pytest

from tenure.core.ids import JobId
from tenure.core.vocabulary import CancelMode, JobStatus, Stage
from tenure_conformance.spec import spec
from tests.e2e.workers import Site
from tests.support.waiting import until

pytestmark = pytest.mark.process

LANES = ["process", "thread", "coroutine", "own_loop"]


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Site]:
    url = f"sqlite:///{tmp_path_factory.mktemp('hooks') / 'e2e.db'}"
    with closing(Site(url)) as site:
        site.deploy("tests.e2e.hooked:app")
        site.start("worker", concurrency=4)
        yield site


def begun(site: Site, kind: str, note: Path) -> JobId:
    job_id = site.enqueue(kind, note=str(note), how="wait")
    until(Path(f"{note}.ready").exists, f"{kind} runs")
    return job_id


def seen(note: Path) -> list[str]:
    return Path(f"{note}.hooks").read_text().splitlines()


@spec("HK1", "HK2")
@pytest.mark.parametrize("kind", LANES)
def test_hooks_run_in_every_lane(site: Site, tmp_path: Path, kind: str) -> None:
    note = tmp_path / kind

    job = site.until_ended(site.enqueue(kind, note=str(note), how="return"))

    assert job.status is JobStatus.SUCCEEDED
    assert seen(note) == ["outer in", "inner in", "inner out", "outer out NoneType return"]


@spec("HK7")
@pytest.mark.parametrize("kind", LANES)
def test_a_soft_cancel_leaves_the_hooks(site: Site, tmp_path: Path, kind: str) -> None:
    note = tmp_path / kind
    job_id = begun(site, kind, note)

    site.cancel(job_id, CancelMode.SOFT)

    assert site.until_ended(job_id).status is JobStatus.CANCELLED
    until(lambda: len(seen(note)) == 4, "the outer hook has ended")
    error = "Cancelled" if kind in ("process", "thread") else "CancelledError"
    assert seen(note) == ["outer in", "inner in", "inner out", f"outer out {error} None"]


@spec("HK7")
def test_a_kill_leaves_no_hook(site: Site, tmp_path: Path) -> None:
    note = tmp_path / "killed"
    job_id = begun(site, "process", note)

    site.cancel(job_id, CancelMode.HARD)
    site.until_ended(job_id)
    beside = tmp_path / "beside"
    site.until_ended(site.enqueue("process", note=str(beside), how="return"))

    assert seen(note) == ["outer in", "inner in"]


@spec("HK5")
@pytest.mark.parametrize("kind", LANES)
def test_a_hook_that_raises_fails_its_attempt_and_not_the_worker(
    site: Site, tmp_path: Path, kind: str
) -> None:
    note, after = tmp_path / "refused", tmp_path / "after"

    refused = site.until_ended(site.enqueue(kind, note=str(note), how="refuse"))
    later = site.until_ended(site.enqueue(kind, note=str(after), how="return"))

    assert refused.status is JobStatus.DEAD_LETTERED
    assert refused.error is not None
    assert (refused.error.type, refused.error.stage) == ("SystemExit", Stage.EXEC)
    assert seen(note) == ["outer in", "inner in", "outer out SystemExit None"]
    assert not Path(f"{note}.ready").exists(), "the handler did not run"
    assert later.status is JobStatus.SUCCEEDED
