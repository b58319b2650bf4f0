"""Where the jobs of an application are: the worker and the commands look where it enqueues."""

import os
import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from tenure import Tenure
from tenure.cli import worker as worker_command
from tenure.worker.supervisor.options import WorkerOptions
from tenure_conformance.spec import spec
from tests.cli.harness import tenure
from tests.support.waiting import PATIENCE_S, answer_of

pytestmark = pytest.mark.process

TENURE = [sys.executable, "-m", "tenure"]
SOURCE = """
import os
from tenure import Tenure

app = Tenure({arguments})

@app.job
def first() -> str:
    return app.enqueue("second").id

@app.job
def second() -> None:
    pass

@app.job(queue="post")
def third() -> None:
    pass
"""


@pytest.fixture
def place(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A directory of its own, in an environment that names another store."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(str(tmp_path))
    monkeypatch.setenv("TENURE_URL", "sqlite:///other.db")
    return tmp_path


@pytest.fixture
def write(place: Path, request: pytest.FixtureRequest) -> Callable[[str], str]:
    """Writes an application with these arguments, in a module that no other test has imported."""

    def write(arguments: str) -> str:
        name = f"where_{abs(hash(request.node.nodeid)):x}"
        (place / f"{name}.py").write_text(SOURCE.format(arguments=arguments))
        return f"{name}:app"

    return write


@pytest.fixture
def chosen(monkeypatch: pytest.MonkeyPatch) -> list[tuple[str, WorkerOptions]]:
    """What a worker would have been run with."""
    given: list[tuple[str, WorkerOptions]] = []

    def run(url: str, _app: str, options: WorkerOptions, **_more: object) -> int:
        given.append((url, options))
        return 0

    monkeypatch.setattr(worker_command, "run_worker", run)
    return given


@contextmanager
def serving(*words: str) -> Iterator["subprocess.Popen[str]"]:
    """A command that runs until the block ends; what it says can be read then."""
    process = subprocess.Popen(
        [*TENURE, *words], env=dict(os.environ), stderr=subprocess.PIPE, text=True
    )
    try:
        yield process
    finally:
        process.terminate()
        process.wait(PATIENCE_S)


@pytest.mark.parametrize(
    ("arguments", "words", "url"),
    [
        ("", [], "sqlite:///other.db"),
        ("'sqlite:///own.db'", [], "sqlite:///own.db"),
        ("'sqlite:///own.db'", ["--url", "sqlite:///given.db"], "sqlite:///given.db"),
        ("", ["--url", "sqlite:///given.db"], "sqlite:///given.db"),
    ],
)
def test_the_command_line_goes_before_the_application_and_that_before_the_environment(
    write: Callable[[str], str],
    chosen: list[tuple[str, WorkerOptions]],
    arguments: str,
    words: list[str],
    url: str,
) -> None:
    result = tenure("worker", write(arguments), *words)

    assert (result.exit_code, [each[0] for each in chosen]) == (0, [url])


@pytest.mark.parametrize(("given", "lines"), [("sqlite:///given.db", 1), ("sqlite:///./own.db", 0)])
def test_a_url_that_differs_from_the_applications_is_logged(
    write: Callable[[str], str],
    chosen: list[tuple[str, WorkerOptions]],
    place: Path,
    given: str,
    lines: int,
) -> None:
    app = write("'sqlite:///own.db'")

    said = [tenure("worker", app, "--url", given), tenure("enqueue", "second", "--app", app)]

    told = f"what the application enqueues goes to sqlite:///{place / 'own.db'}"
    assert said[0].stderr.count(told) == lines
    assert told not in said[1].stderr


def test_a_worker_serves_the_namespace_of_its_application(
    write: Callable[[str], str], chosen: list[tuple[str, WorkerOptions]]
) -> None:
    app = write("namespace='shop'")

    tenure("worker", app)
    tenure("worker", app, "--namespace", "other")

    assert [options.namespace for _, options in chosen] == ["shop", "other"]


def test_enqueue_uses_the_applications_own_store(write: Callable[[str], str], place: Path) -> None:
    app = write("'sqlite:///own.db'")

    result = tenure("enqueue", "second", "--app", app)

    with Tenure("sqlite:///own.db") as client:
        assert client.get(result.stdout.strip()).refresh().kind == "second"
    assert not (place / "other.db").exists()


@pytest.mark.parametrize("command", ["worker", "dev"])
@pytest.mark.parametrize(
    ("arguments", "words"), [("'sqlite:///own.db'", []), ("", ["--url", "sqlite:///own.db"])]
)
def test_what_a_handler_enqueues_is_run_by_the_same_worker(
    write: Callable[[str], str], place: Path, command: str, arguments: str, words: list[str]
) -> None:
    with serving(command, write(arguments), *words) as process, Tenure("sqlite:///own.db") as app:
        second = app.enqueue("first").result(timeout=PATIENCE_S)
        app.get(second).wait(timeout=PATIENCE_S)

    assert process.stderr is not None
    said = answer_of(process.stderr.read, "nobody writes to its stderr any more")
    process.stderr.close()
    assert not (place / "other.db").exists()
    assert ("does not serve the queues" in said) == (command == "worker")


DECLARING = """
from tenure import Tenure

app = Tenure("sqlite:///own.db")

@app.job
def first() -> None:
    pass

@app.job(queue="post")
def third() -> None:
    pass

app.schedule("nightly", first.using(queue="night").call(), every="1d")
"""


@pytest.fixture
def declaring(place: Path) -> str:
    """An application that declares the queues default, post and night."""
    (place / "declaring.py").write_text(DECLARING)
    return "declaring:app"


@spec("Z9")
@pytest.mark.parametrize(
    ("words", "served"),
    [
        ([], {"default": 1}),
        (["-q", "post=2"], {"post": 2}),
        (["--declared-queues"], {"default": 1, "night": 1, "post": 1}),
    ],
)
def test_a_worker_serves_the_queues_it_is_given_or_in_development_all_that_are_declared(
    declaring: str,
    chosen: list[tuple[str, WorkerOptions]],
    words: list[str],
    served: dict[str, int],
) -> None:
    tenure("worker", declaring, *words)

    assert [options.queues for _, options in chosen] == [served]


@spec("Z9")
def test_in_development_declared_queues_are_added_to_those_of_the_project(
    declaring: str, chosen: list[tuple[str, WorkerOptions]], place: Path
) -> None:
    (place / "pyproject.toml").write_text('[tool.tenure]\nqueues = ["mail=3"]\n')

    tenure("worker", declaring, "--declared-queues")

    assert [options.queues for _, options in chosen] == [
        {"mail": 3, "default": 1, "night": 1, "post": 1}
    ]


@spec("Z9")
def test_dev_runs_jobs_of_every_queue_that_the_application_declares(declaring: str) -> None:
    with serving("dev", declaring, "--no-dashboard") as process, Tenure("sqlite:///own.db") as app:
        app.enqueue("third", queue="post").wait(timeout=PATIENCE_S)

    assert process.stderr is not None
    process.stderr.close()


@spec("Z9")
def test_a_worker_says_with_which_options_it_would_serve_all_of_its_kinds(declaring: str) -> None:
    with (
        serving("worker", declaring, "-q", "default=2") as process,
        Tenure("sqlite:///own.db") as app,
    ):
        app.enqueue("first").wait(timeout=PATIENCE_S)

    assert process.stderr is not None
    said = answer_of(process.stderr.read, "nobody writes to its stderr any more")
    process.stderr.close()
    assert (
        "this worker does not serve the queues of third (queue post); to serve them too, start it"
        " with -q default=2 -q post\n" in said
    )
