"""The commands of this directory, asked of a real server instead of a file."""

import json
from collections.abc import Callable, Iterator
from pathlib import Path
from subprocess import CompletedProcess

import pytest

from tests.remote.sites import RemoteSite

Ask = Callable[..., "CompletedProcess[str]"]


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Iterator[RemoteSite]:
    """A server over a file."""
    directory: Path = tmp_path_factory.mktemp("http")
    site = RemoteSite(f"sqlite:///{directory / 'tenure.db'}", directory)
    site.serve()
    yield site
    site.close()


@pytest.fixture(scope="module")
def ask(site: RemoteSite) -> Ask:
    """A command of an operator who knows an address and a token, and no store."""
    token = site.token("operator", "ann")
    return lambda *words: site.ask(site.servers[0].address, token, *words)


def test_queues_are_listed_without_their_depth(ask: Ask) -> None:
    assert ask("enqueue", "mail", "-q", "post").returncode == 0

    remarked = ask("queues", "limit", "posts", "3")
    found = {each["name"]: each for each in json.loads(ask("queues", "ls", "--json").stdout)}

    assert remarked.stderr == "tenure: no job has used queue posts so far. Did you mean post?\n"
    assert (found["posts"]["limit"], found["post"]["live"]) == (3, 0)
    assert {found["post"][name] for name in ("ready", "scheduled", "oldest_ready_s")} == {None}


def test_a_kind_takes_its_settings_along(ask: Ask) -> None:
    made = ask("enqueue", "page", '{"text":"hello"}', "--app", "tests.remote.app:app", "--json")
    wrong = ask("enqueue", "page", '{"text":7}', "--app", "tests.remote.app:app")

    assert json.loads(made.stdout)["kind"] == "page"
    assert (wrong.returncode, "Expected `str`, got `int` at text" in wrong.stderr) == (2, True)


def test_a_dead_letter_is_redriven_once_and_not_requeued(ask: Ask) -> None:
    job_id = ask("enqueue", "mail").stdout.strip()
    ask("jobs", "dead-letter", job_id)

    first = ask("dlq", "redrive", job_id)
    second = ask("dlq", "redrive", job_id)
    requeued = ask("jobs", "requeue", job_id)

    assert (first.returncode, second.returncode, requeued.returncode) == (0, 1, 1)
    assert f"it was redriven as job {first.stdout.strip()} by operator:ann at" in second.stderr
    assert f"`tenure dlq redrive {job_id}` makes a new job of it" in requeued.stderr


def test_a_worker_that_would_be_refused_says_so_when_it_starts(site: RemoteSite, ask: Ask) -> None:
    made = site.tenure("tokens", "create", "post", "--role", "worker", "--queue", "mail")
    of_mail, address = made.stdout.decode().strip(), site.servers[0].address

    as_operator = ask("worker", "tests.remote.app:app")
    elsewhere = site.ask(address, of_mail, "worker", "tests.remote.app:app", "-q", "default")

    assert (as_operator.returncode, elsewhere.returncode) == (2, 2)
    assert "the server will not have this worker: alive is for worker" in as_operator.stderr
    assert "the queue default is not this token's" in elsewhere.stderr
    assert "it needs a worker's token" in elsewhere.stderr.splitlines()[-1]
