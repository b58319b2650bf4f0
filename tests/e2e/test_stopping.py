"""Soft cancels, drains and recycled children of real workers, on both databases."""

import os
from pathlib import Path

from msgspec import json

from tenure.core.vocabulary import CancelMode, JobStatus
from tests.e2e.workers import Site, is_gone


def test_a_soft_cancel_reaches_every_kind_of_handler_and_ends_the_deaf(
    site: Site, tmp_path: Path
) -> None:
    site.start("worker", concurrency=3)
    kinds = ("attentive", "dream", "obstinate")
    jobs = {kind: site.enqueue(kind, note=str(tmp_path / kind)) for kind in kinds}
    for kind in kinds:
        site.until((tmp_path / f"{kind}.ready").exists, f"{kind} runs")
    deaf = int((tmp_path / "obstinate.ready").read_text())

    for job_id in jobs.values():
        site.cancel(job_id, CancelMode.SOFT)
    ended = {kind: site.until_ended(job_id) for kind, job_id in jobs.items()}

    assert {job.status for job in ended.values()} == {JobStatus.CANCELLED}
    for kind in ("attentive", "dream"):
        site.until((tmp_path / f"{kind}.told").exists, f"{kind} was told")
    site.until(lambda: is_gone(deaf), "the deaf one is gone")


def test_a_worker_is_drained_by_name(site: Site) -> None:
    running = site.enqueue("fragile", seconds=2)
    site.start("worker", grace="60s")
    site.until_status(running, JobStatus.RUNNING)

    drained = site.tenure("workers", "drain", "worker")
    code = site.workers["worker"].wait(timeout=120)

    [view] = json.decode(site.tenure("workers", "ls", "--json").stdout)
    assert (drained.returncode, code) == (0, 0)
    assert (view["worker"], view["state"]) == ("worker", "draining")
    assert (site.job(running).status, site.job(running).failures) == (JobStatus.SUCCEEDED, 0)


def test_children_are_replaced_after_so_many_jobs(site: Site) -> None:
    site.start("worker", "--recycle-after", "1", concurrency=1)

    results = [site.until_ended(site.enqueue("pid")).result for _ in range(3)]

    assert len(set(results)) == 3
    assert str(os.getpid()).encode() not in results
