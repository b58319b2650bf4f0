"""Handlers that complete their job in a transaction of their own, with real workers."""

import signal
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path

import pytest

from tenure.core.vocabulary import CancelMode, JobStatus, Stage
from tests.e2e.ledger import DEBTS, NO_BOOKS, TABLE, attempts_that_posted, connect
from tests.e2e.workers import EACH_DATABASE, Site
from tests.support.waiting import until

pytestmark = pytest.mark.process


def set_up_ledger(site: Site) -> None:
    """A ledger beside the jobs, and books that no debt of it can name."""
    with closing(connect(site.url)) as connection:
        for statement in (TABLE, NO_BOOKS, DEBTS):
            connection.execute(statement)
        connection.commit()


@pytest.fixture(scope="module", params=["sqlite", "postgres"])
def books(
    request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[Site]:
    """A site with a ledger, and a worker that the tests share: each has an entry of its own."""
    if request.param == "sqlite":
        url = f"sqlite:///{tmp_path_factory.mktemp('books') / 'e2e.db'}"
    else:
        # Not `postgres_url`, which is a new one for each test. The server drops it at its end.
        url = request.getfixturevalue("postgres").create_database()
    with closing(Site(url)) as site:
        set_up_ledger(site)
        site.start("worker")
        yield site
        drain(site)


def drain(site: Site) -> None:
    """The worker ends without a fault. Every report was answered by then: those after a commit,
    too."""
    site.signal("worker", signal.SIGTERM)
    assert site.workers["worker"].wait(timeout=120) == 0


@pytest.fixture
def own_books(site: Site) -> Site:
    """A site with a ledger, whose worker the test may freeze or stop."""
    set_up_ledger(site)
    return site


WITH_AND_WITHOUT_DJANGO = pytest.mark.parametrize("kind", ["post", "post_by_django"])


@WITH_AND_WITHOUT_DJANGO
def test_the_entry_and_the_success_are_committed_together(books: Site, kind: str) -> None:
    job = books.until_ended(books.enqueue(kind, entry=f"rent by {kind}", how="well"))

    said = f'"posted rent by {kind}"'.encode()
    assert (job.status, job.result, job.error) == (JobStatus.SUCCEEDED, said, None)
    assert attempts_that_posted(books.url, f"rent by {kind}") == [1]


@WITH_AND_WITHOUT_DJANGO
def test_a_block_that_raises_rolls_both_back(books: Site, kind: str) -> None:
    job = books.until_ended(books.enqueue(kind, entry=f"fine by {kind}", how="raises"))

    assert job.status is JobStatus.FAILED
    assert attempts_that_posted(books.url, f"fine by {kind}") == []


@EACH_DATABASE
def test_what_happens_after_the_commit_undoes_nothing(own_books: Site) -> None:
    ways = ("raises later", "dies later")
    jobs = [own_books.enqueue("post", entry=how, how=how) for how in ways]
    own_books.start("worker")

    ended = [own_books.until_ended(job_id) for job_id in jobs]

    drain(own_books)
    for how, job in zip(ways, ended, strict=True):
        assert own_books.job(job.id) == job
        assert (job.status, job.attempt, job.failures) == (JobStatus.SUCCEEDED, 1, 0)
        assert attempts_that_posted(own_books.url, how) == [1]


@WITH_AND_WITHOUT_DJANGO
@EACH_DATABASE
def test_an_expired_lease_rolls_the_entry_back_and_the_next_attempt_posts_it(
    own_books: Site, tmp_path: Path, kind: str
) -> None:
    note = tmp_path / "note"
    job_id = own_books.enqueue(kind, entry="rent", how="frozen", note=str(note))
    own_books.start("worker")
    until(Path(f"{note}.ready").exists, "the handler has frozen its supervisor")
    due_at = own_books.job(job_id).due_at
    assert due_at is not None

    until(lambda: own_books.store.now() > due_at, "the lease has expired")
    note.touch()
    until(Path(f"{note}.conflict").exists, "the handler was refused")
    posted_meanwhile = attempts_that_posted(own_books.url, "rent")
    own_books.signal("worker", signal.SIGCONT)
    job = own_books.until_ended(job_id)

    assert posted_meanwhile == []
    assert (job.status, job.attempt) == (JobStatus.SUCCEEDED, 2)
    assert attempts_that_posted(own_books.url, "rent") == [2]


def test_what_is_refused_at_the_end_of_the_block_says_at_which_stage(books: Site) -> None:
    uncommittable = books.enqueue("post", entry="debt", how="cannot be committed")
    unencodable = books.enqueue("post", entry="fuel", how="has no result")

    again, never = books.until_ended(uncommittable), books.until_ended(unencodable)

    assert again.last_error is not None
    assert (again.status, again.attempt) == (JobStatus.SUCCEEDED, 2)
    assert again.last_error.type in ("IntegrityError", "ForeignKeyViolation")
    assert again.last_error.stage is Stage.COMMIT
    assert never.error is not None
    assert (never.status, never.error.stage) == (JobStatus.FAILED, Stage.OUTPUT)
    assert attempts_that_posted(books.url, "debt") == [2]
    assert attempts_that_posted(books.url, "fuel") == []


ON_POSTGRESQL = pytest.mark.parametrize("site", ["postgres"], indirect=True)


@ON_POSTGRESQL
def test_a_hard_cancel_in_the_middle_rolls_the_entry_back(own_books: Site, tmp_path: Path) -> None:
    """Not on SQLite, where the open transaction holds the one write lock: the cancel waits."""
    site = own_books
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
    assert attempts_that_posted(site.url, "rent") == []


@pytest.mark.parametrize("books", ["postgres"], indirect=True)
def test_an_async_handler_commits_both_or_neither(books: Site) -> None:
    good = books.until_ended(books.enqueue("apost", entry="tax", how="well"))
    bad = books.until_ended(books.enqueue("apost", entry="toll", how="raises"))

    assert (good.status, good.result) == (JobStatus.SUCCEEDED, b'"posted tax"')
    assert bad.status is JobStatus.FAILED
    assert attempts_that_posted(books.url, "tax") == [1]
    assert attempts_that_posted(books.url, "toll") == []
