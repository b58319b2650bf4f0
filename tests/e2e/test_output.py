"""What handlers write, read while they run and shown as they write it."""

from pathlib import Path

import pytest
from msgspec import json

from tenure.core.ids import JobId
from tenure.core.vocabulary import JobStatus
from tenure_conformance.spec import spec
from tests.e2e.workers import Site
from tests.support.waiting import until

pytestmark = pytest.mark.process


def written(site: Site, job_id: JobId) -> str:
    return "".join(log.text for log in site.store.artifacts.logs(job_id))


@spec("B20")
def test_the_output_of_a_running_job_can_be_read(site: Site, tmp_path: Path) -> None:
    note = tmp_path / "note"
    job_id = site.enqueue("chat", name="ada", note=str(note))
    site.start("worker")

    until(lambda: "ada says 19" in written(site, job_id), "its output is there")
    status = site.job(job_id).status
    running = site.tenure("jobs", "logs", job_id)
    note.touch()
    site.until_ended(job_id)
    until(lambda: "ada is done" in written(site, job_id), "the rest is there")
    ended = site.tenure("jobs", "logs", job_id)

    assert status is JobStatus.RUNNING
    assert running.stdout.startswith(b"ada says 0\nada says 1\n")
    assert running.stderr == b"attempt 1, so far\n"
    assert ended.stdout.endswith(b"ada says 19\nada is done\n")
    assert ended.stdout.count(b"ada says 0\n") == 1
    assert ended.stderr == b"attempt 1\n"


def test_missing_output_is_explained(site: Site, tmp_path: Path) -> None:
    note = tmp_path / "note"
    job_id = site.enqueue("write", how="waits", note=str(note))

    def logs(*words: str) -> str:
        shown = site.tenure("jobs", "logs", job_id, *words)
        assert (shown.returncode, shown.stdout) == (0, b"")
        return shown.stderr.decode()

    assert logs() == f"tenure: job {job_id} is queued and has had 0 attempts\n"
    site.start("worker")
    until(Path(f"{note}.ready").exists, "the handler runs")
    nothing = logs()
    assert nothing.startswith(f"tenure: job {job_id} runs on ")
    assert nothing.endswith(
        " and has written nothing so far; its output is shown a few seconds after it is written\n"
    )
    assert "is running and has had 1 attempt\n" in logs("--attempt", "3")
    note.touch()
    site.until_ended(job_id)
    assert logs() == f"tenure: job {job_id} has written nothing\n"


@spec("OB23")
@pytest.mark.parametrize("site", ["sqlite"], indirect=True)
@pytest.mark.parametrize("form", ["json", "text"])
def test_output_of_concurrent_handlers_is_shown_in_whole_lines(
    site: Site, tmp_path: Path, form: str
) -> None:
    note, talk = tmp_path / "note", tmp_path / "talk"
    note.touch()
    names = ("ada", "bob")
    jobs = [site.enqueue("chat", name=name, note=str(note)) for name in names]
    site.start("worker", "--show-output", "--log-format", form, talk=talk)
    for job_id in jobs:
        site.until_ended(job_id)
    site.workers["worker"].terminate()
    site.workers["worker"].wait(60)

    lines = talk.read_text().splitlines()
    if form == "json":
        records = [json.decode(line) for line in lines]
        of_handlers = [each for each in records if each["logger"] == "tenure.output"]
        lines = [each["message"] for each in of_handlers]
        assert {each["job_id"] for each in of_handlers} == set(jobs)
    for name in names:
        said = [line for line in lines if line.startswith(name)]
        assert said == [*(f"{name} says {number}" for number in range(20)), f"{name} is done"]
