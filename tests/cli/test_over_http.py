"""The commands of this directory, asked of a real server instead of a file."""

import json
import os
import subprocess
from collections.abc import Callable, Iterator
from pathlib import Path
from subprocess import CompletedProcess

import pytest

from tenure import Tenure, WaitTimeout
from tests.remote.sites import RemoteSite
from tests.server.processes import Process
from tests.support.commands import TENURE

pytestmark = pytest.mark.process

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


def test_queues_are_listed_with_their_depth(ask: Ask) -> None:
    assert ask("enqueue", "mail", "-q", "post").returncode == 0

    refused = ask("queues", "limit", "posts", "3")
    ask("queues", "limit", "posts", "3", "--create")
    found = {each["name"]: each for each in json.loads(ask("queues", "ls", "--json").stdout)}

    assert "did you mean post? `create` makes the queue" in refused.stderr
    assert (found["posts"]["limit"], found["post"]["live"]) == (3, 0)
    depth = [found["post"][name] for name in ("ready", "delayed", "waiting")]
    assert depth == [1, 0, 0]
    assert found["post"]["oldest_ready_s"] > 0


def test_enqueue_uses_the_settings_of_the_kind(ask: Ask) -> None:
    made = ask("enqueue", "page", '{"text":"hello"}', "--app", "tests.remote.app:app", "--json")
    wrong = ask("enqueue", "page", '{"text":7}', "--app", "tests.remote.app:app")

    assert json.loads(made.stdout)["kind"] == "page"
    assert (wrong.returncode, "text: expected str, got int" in wrong.stderr) == (2, True)


class Shop:
    """An application with a token of its own, on the machine of a person who may have another."""

    def __init__(self, site: RemoteSite, directory: Path) -> None:
        self.address = site.servers[0].address
        self.token = site.token("client", "shop")
        self._site = site
        self._directory = directory

    def enqueue(
        self, *words: str, url: str | None = None, theirs: str = ""
    ) -> "CompletedProcess[str]":
        """`tenure enqueue`, with the application made for this URL, or for that of the
        environment."""
        source = f"""
import os
from tenure import Tenure

app = Tenure({url!r}, token=os.environ["SHOP_TOKEN"])

@app.job
def page() -> None: ...
"""
        (self._directory / "shop.py").write_text(source)
        address = "sqlite:///none.db" if url else self.address
        environment = self._site.environment(address, theirs) | {"SHOP_TOKEN": self.token}
        done = subprocess.run(
            [*TENURE, "enqueue", "page", "--app", "shop:app", *words],
            cwd=self._directory,
            env=environment,
            capture_output=True,
            text=True,
            timeout=120,
            check=False,
        )
        assert self.token not in done.stdout + done.stderr
        return done


@pytest.fixture
def shop(site: RemoteSite, tmp_path: Path) -> Shop:
    """One of each test."""
    return Shop(site, tmp_path)


def asked_by(ask: Ask, done: "CompletedProcess[str]") -> str:
    assert done.returncode == 0, done.stderr
    [enqueued] = json.loads(ask("jobs", "events", done.stdout.strip(), "--json").stdout)["events"]
    return str(enqueued["actor"])


def test_an_applications_own_token_is_used_where_it_would_use_it(ask: Ask, shop: Shop) -> None:
    address = shop.address

    made = [
        shop.enqueue(),
        shop.enqueue(url=address),
        shop.enqueue("--url", address),
        shop.enqueue("--url", address, url=address),
    ]

    assert {asked_by(ask, each) for each in made} == {"client:shop"}


def test_the_users_own_token_goes_before_the_applications(
    site: RemoteSite, ask: Ask, shop: Shop
) -> None:
    done = shop.enqueue(theirs=site.token("client", "bob"))

    assert asked_by(ask, done) == "client:bob"


def test_an_applications_own_token_is_sent_to_no_other_server(shop: Shop) -> None:
    elsewhere = shop.address.replace("127.0.0.1", "localhost")

    refused = shop.enqueue("--url", elsewhere)

    assert refused.returncode == 2
    assert "unauthenticated: a token is required; set TENURE_TOKEN" in refused.stderr


@pytest.fixture(scope="module")
def look(site: RemoteSite) -> Ask:
    """A command of somebody who may look at jobs, but not into them."""
    token = site.token("viewer", "vera")
    return lambda *words: site.ask(site.servers[0].address, token, *words)


def test_show_says_that_bodies_are_hidden_from_a_viewer(ask: Ask, look: Ask) -> None:
    job_id = ask("enqueue", "mail", '{"to":"ada"}').stdout.strip()
    empty = ask("enqueue", "mail").stdout.strip()
    ask("jobs", "dead-letter", job_id)

    told = look("jobs", "show", job_id, "--bodies")
    read = json.loads(look("jobs", "show", job_id, "--bodies", "--json").stdout)["job"]
    known = [ask("jobs", "show", each, "--bodies").stdout for each in (job_id, empty)]

    assert "hidden: a token of this role sees no payload" in told.stdout
    assert "null" not in told.stdout
    assert "payload" not in read
    assert '{"to":"ada"}' in known[0]
    assert [line for line in known[1].splitlines() if line.split() == ["payload", "null"]]
    assert "hidden" not in known[0] + known[1]


def test_a_wait_in_python_gives_the_reason_if_its_token_may_see_it(site: RemoteSite) -> None:
    told = {}

    for role in ("producer", "client"):
        with Tenure(site.servers[0].address, token=site.token(role, "pat")) as app:
            with pytest.raises(WaitTimeout) as caught:
                app.enqueue("two").wait(timeout="1ms")
            told[role] = caught.value.reason

    assert told == {
        "producer": "",
        "client": "no worker is alive that takes kind two from queue default",
    }


def test_a_server_says_which_store_it_serves(site: RemoteSite) -> None:
    file = site.directory / "other.db"
    environment = {**os.environ, "TENURE_URL": f"sqlite:///{file}"}
    other = Process([*TENURE, "serve", "--port", "0"], environment, site.directory)
    other.close()

    assert f"store sqlite:///{site.directory / 'tenure.db'}\n" in site.servers[0].log
    assert f"store sqlite:///{file}, created\n" in other.log


def test_a_dead_letter_is_redriven_once_and_not_requeued(ask: Ask) -> None:
    job_id = ask("enqueue", "mail").stdout.strip()
    ask("jobs", "dead-letter", job_id)

    first = ask("dlq", "redrive", job_id)
    second = ask("dlq", "redrive", job_id)
    requeued = ask("jobs", "requeue", job_id)

    assert (first.returncode, second.returncode, requeued.returncode) == (0, 1, 1)
    assert f"it was redriven as job {first.stdout.strip()} by operator:ann at" in second.stderr
    assert "it is dead_lettered already" in requeued.stderr


def test_jobs_are_named_by_shortened_ids(ask: Ask) -> None:
    job_id = ask("enqueue", "mail", "--id", "0f890001-0000-7000-8000-000000000001").stdout.strip()
    ask("enqueue", "mail", "--id", "0f890002-0000-7000-8000-000000000001")

    shown = ask("jobs", "show", "0f890001", "--json")
    unknown = ask("jobs", "show", "0f890003")

    assert json.loads(shown.stdout)["job"]["id"] == job_id
    assert (unknown.returncode, "begins with 0f890003" in unknown.stderr) == (1, True)


def test_many_jobs_are_cancelled_and_rerun_once(ask: Ask) -> None:
    ids = {ask("enqueue", "mail", "-q", "bulk").stdout.strip() for _ in range(3)}
    words = ("jobs", "rerun", "--all", "-s", "cancelled", "-q", "bulk", "--yes")

    cancelled = ask("jobs", "cancel", "--all", "--queue", "bulk", "--yes", "--json")
    first, second = ask(*words), ask(*words)
    alone = ask("jobs", "rerun", min(ids))

    assert {each["job_id"] for each in json.loads(cancelled.stdout)} == ids
    assert (first.returncode, len(first.stdout.split())) == (0, 3)
    assert (second.returncode, second.stdout) == (0, "")
    assert alone.stdout.strip() not in ("", *ids, *first.stdout.split())


def test_a_worker_that_would_be_refused_says_so_when_it_starts(site: RemoteSite, ask: Ask) -> None:
    made = site.tenure("tokens", "create", "post", "--role", "worker", "--queue", "mail")
    of_mail, address = made.stdout.decode().strip(), site.servers[0].address

    as_operator = ask("worker", "tests.remote.app:app")
    elsewhere = site.ask(address, of_mail, "worker", "tests.remote.app:app", "-q", "default")

    assert (as_operator.returncode, elsewhere.returncode) == (2, 2)
    assert (
        "the server refuses this worker: only workers may report that a worker is"
        in as_operator.stderr
    )
    assert "is not for the queue default" in elsewhere.stderr
    assert "it needs a worker's token" in elsewhere.stderr.splitlines()[-1]
