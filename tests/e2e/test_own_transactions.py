"""Handlers that complete their job in a transaction of their own, with real workers."""

import signal
from contextlib import closing
from pathlib import Path

import pytest

from tenure.core.vocabulary import CancelMode, JobStatus, Stage
from tests.e2e.ledger import DEBTS, NO_BOOKS, TABLE, connect, entries
from tests.e2e.workers import EACH_DATABASE, Site
from tests.support.waiting import until

pytestmark = pytest.mark.process


@pytest.fixture
def books(site: Site) -> Site:
    """A site with a ledger beside the jobs."""
    with closing(connect(site.url)) as connection:
        connection.execute(TABLE)
        connection.commit()
    return site


WITH_AND_WITHOUT_DJANGO = pytest.mark.parametrize("kind", ["post", "post_by_django"])


@WITH_AND_WITHOUT_DJANGO
@EACH_DATABASE
def test_the_entry_and_the_success_are_committed_together(books: Site, kind: str) -> None:
    job_id = books.enqueue(kind, entry="rent", how="well")
    books.start("worker")

    job = books.until_ended(job_id)

    assert (job.status, job.result, job.error) == (JobStatus.SUCCEEDED, b'"posted rent"', None)
    assert entries(books.url) == [("rent", 1)]
    _drains_without_a_fault(books)


@WITH_AND_WITHOUT_DJANGO
@EACH_DATABASE
def test_a_block_that_raises_rolls_both_back(books: Site, kind: str) -> None:
    job_id = books.enqueue(kind, entry="rent", how="raises")
    books.start("worker")

    job = books.until_ended(job_id)

    assert job.status is JobStatus.FAILED
    assert entries(books.url) == []


@pytest.mark.parametrize("how", ["raises later", "dies later"])
@EACH_DATABASE
def test_what_happens_after_the_commit_undoes_nothing(books: Site, how: str) -> None:
    job_id = books.enqueue("post", entry="rent", how=how)
    books.start("worker")

    job = books.until_ended(job_id)

    _drains_without_a_fault(books)
    assert books.job(job_id) == job
    assert (job.status, job.attempt, job.failures) == (JobStatus.SUCCEEDED, 1, 0)
    assert entries(books.url) == [("rent", 1)]


@WITH_AND_WITHOUT_DJANGO
@EACH_DATABASE
def test_an_expired_lease_rolls_the_entry_back_and_the_next_attempt_posts_it(
    books: Site, tmp_path: Path, kind: str
) -> None:
    note = tmp_path / "note"
    job_id = books.enqueue(kind, entry="rent", how="frozen", note=str(note))
    books.start("worker")
    until(Path(f"{note}.ready").exists, "the handler has frozen its supervisor")
    due_at = books.job(job_id).due_at
    assert due_at is not None

    until(lambda: books.store.now() > due_at, "the lease has expired")
    note.touch()
    until(Path(f"{note}.conflict").exists, "the handler was refused")
    posted_meanwhile = entries(books.url)
    books.signal("worker", signal.SIGCONT)
    job = books.until_ended(job_id)

    assert posted_meanwhile == []
    assert (job.status, job.attempt) == (JobStatus.SUCCEEDED, 2)
    assert entries(books.url) == [("rent", 2)]


@EACH_DATABASE
def test_what_is_refused_at_the_end_of_the_block_says_at_which_stage(books: Site) -> None:
    with closing(connect(books.url)) as connection:
        connection.execute(NO_BOOKS)
        connection.execute(DEBTS)
        connection.commit()
    uncommittable = books.enqueue("post", entry="rent", how="cannot be committed")
    unencodable = books.enqueue("post", entry="fuel", how="has no result")
    books.start("worker")

    again, never = books.until_ended(uncommittable), books.until_ended(unencodable)

    assert again.last_error is not None
    assert (again.status, again.attempt) == (JobStatus.SUCCEEDED, 2)
    assert again.last_error.type in ("IntegrityError", "ForeignKeyViolation")
    assert again.last_error.stage is Stage.COMMIT
    assert never.error is not None
    assert (never.status, never.error.stage) == (JobStatus.FAILED, Stage.OUTPUT)
    assert entries(books.url) == [("rent", 2)]


def test_a_hard_cancel_in_the_middle_rolls_the_entry_back(
    postgres_url: str, tmp_path: Path
) -> None:
    """Not on SQLite, where the open transaction holds the one write lock: the cancel waits."""
    site = Site(postgres_url)
    with closing(connect(site.url)) as connection:
        connection.execute(TABLE)
        connection.commit()
    note = tmp_path / "note"
    job_id = site.enqueue("post", entry="rent", how="frozen", note=str(note))
    site.start("worker")
    until(Path(f"{note}.ready").exists, "the handler has frozen its supervisor")

    site.cancel(job_id, CancelMode.HARD)
    note.touch()
    until(Path(f"{note}.conflict").exists, "the handler was refused")
    site.signal("worker", signal.SIGCONT)

    assert site.job(job_id).status is JobStatus.CANCELLED
    assert "job_cancelled" in Path(f"{note}.conflict").read_text()
    assert entries(site.url) == []
    site.close()


def test_an_async_handler_commits_both_or_neither(postgres_url: str) -> None:
    site = Site(postgres_url)
    with closing(connect(site.url)) as connection:
        connection.execute(TABLE)
        connection.commit()
    site.start("worker")

    good = site.until_ended(site.enqueue("apost", entry="rent", how="well"))
    bad = site.until_ended(site.enqueue("apost", entry="fuel", how="raises"))

    assert (good.status, good.result) == (JobStatus.SUCCEEDED, b'"posted rent"')
    assert bad.status is JobStatus.FAILED
    assert entries(site.url) == [("rent", 1)]
    site.close()


def _drains_without_a_fault(site: Site) -> None:
    """Every report was answered by then: the one after the commit, too."""
    site.signal("worker", signal.SIGTERM)
    assert site.workers["worker"].wait(timeout=120) == 0
