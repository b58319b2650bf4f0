"""Applications on the command line: found in the project, loaded, and broken ones shown briefly."""

import json
import sys
from collections.abc import Callable
from contextlib import closing
from pathlib import Path

import pytest
from click.testing import Result

from tenure.cli import worker as worker_command
from tenure.core.ids import JobId, Namespace, ScheduleName
from tenure.stores.sqlite.store import SqliteStore
from tenure.worker.supervisor.options import WorkerOptions
from tenure_conformance.spec import spec
from tests.cli.harness import Run, tenure

SOURCE = """
from tenure import Retry, Tenure

app = Tenure(namespace="{namespace}")

@app.job(queue="research", priority=3, timeout="2h", retry=Retry(max_attempts=2))
def read(topic: str, depth: int = 1) -> str:
    return topic

class Registered:
    registry = app.registry
"""

PARAMETERS = """
from __future__ import annotations

from typing import Annotated, Any
from msgspec import Meta, Struct
from tenure import Context, Tenure

app = Tenure()
second = Tenure()

class Size(Struct, forbid_unknown_fields=True):
    width: int

@app.job
def read(ctx: Context, topic: Annotated[str, Meta(max_length=9)], size: Size = None, more=1): ...

@app.job
def relaxed(rate: float = 0.5) -> None: ...

@app.job
def bare() -> None: ...
"""


@pytest.fixture
def run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Run:
    """Commands in a directory of their own, whose modules are forgotten afterwards."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(str(tmp_path))
    monkeypatch.delenv("TENURE_URL", raising=False)

    return tenure


@pytest.fixture
def module(run: Run, tmp_path: Path, request: pytest.FixtureRequest) -> Callable[[str], str]:
    """Writes a module under a name that no other test has imported."""

    def write(source: str) -> str:
        name = f"app_{abs(hash(request.node.nodeid)):x}"
        (tmp_path / f"{name}.py").write_text(source)
        return name

    return write


def shown(run: Run, result: Result) -> dict[str, object]:
    assert result.exit_code == 0, result.stderr
    found = json.loads(run("jobs", "show", result.stdout.strip(), "--json", "--bodies").stdout)
    job: dict[str, object] = found["job"]
    return job


def test_enqueue_uses_the_settings_of_the_kind(run: Run, module: Callable[[str], str]) -> None:
    name = module(SOURCE.format(namespace="lab"))

    job = shown(run, run("enqueue", "read", '{"topic":"leases"}', "--app", f"{name}:app"))

    assert (job["queue"], job["priority"], job["namespace"]) == ("research", 3, "lab")
    assert isinstance(job["policy"], dict)
    assert (job["policy"]["max_attempts"], job["policy"]["timeout_s"]) == (2, 7200)
    assert job["payload"] == {"topic": "leases"}


def test_options_of_the_command_line_go_before_the_kinds_own(
    run: Run, module: Callable[[str], str]
) -> None:
    name = module(SOURCE.format(namespace="lab"))
    job_id = "01890000-0000-7000-8000-000000000007"
    said = ["-q", "now", "--priority", "0", "--namespace", "other", "--key", "k", "--id", job_id]
    more = ["--delay", "1h", "--correlation-id", "order-7"]

    job = shown(run, run("enqueue", "read", '{"topic":"x"}', "--app", f"{name}:app", *said, *more))

    assert (job["id"], job["queue"], job["priority"]) == (job_id, "now", 0)
    assert (job["namespace"], job["dedupe_key"]) == ("other", "k")
    assert job["correlation_id"] == "order-7"
    assert str(job["run_at"]) > str(job["enqueued_at"])


@pytest.mark.parametrize(
    ("payload", "said"),
    [
        ('{"topic":3}', "topic: expected str, got int"),
        ("null", "no payload was given"),
        ("[1]", "the payload is an array, not an object"),
        ("{}", "its parameter topic is missing"),
        ('{"topc":"x"}', "it has no parameter topc (did you mean topic?)"),
        ('{"topic":"x","size":{"width":1,"hight":2}}', "size has no field hight"),
        ('{"topic":"x","size":{}}', "size.width is missing"),
        ('{"topic":"x","size":{"width":"7"}}', "size.width: expected int, got str"),
    ],
)
def test_a_payload_that_does_not_fit_its_function_is_refused_in_plain_words(
    run: Run, module: Callable[[str], str], tmp_path: Path, payload: str, said: str
) -> None:
    name = module(PARAMETERS)

    result = run("enqueue", "read", payload, "--app", f"{name}:app")

    takes = "its payload is an object of topic (str), size (Size, optional), more (optional)"
    assert (result.exit_code, result.stdout) == (2, "")
    assert result.stderr == f"tenure: kind read: {said}; {takes}\n"
    assert not (tmp_path / "tenure.db").exists()


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (("bare", '{"x":1}'), "kind bare: it has no parameter x; it takes no payload"),
        (("bare", "[" * 5000), "payload: nested deeper than 64"),
        (("bare", "{"), "payload: not JSON: "),
    ],
)
def test_a_refused_payload_is_explained_with_what_the_function_takes(
    run: Run, module: Callable[[str], str], words: tuple[str, ...], said: str
) -> None:
    name = module(PARAMETERS)

    result = run("enqueue", *words, "--app", f"{name}:app")

    assert (result.exit_code, result.stderr.count("\n")) == (2, 1)
    assert said in result.stderr


@pytest.mark.parametrize("with_app", [True, False])
@spec("J1")
def test_a_payload_is_stored_as_it_was_typed_and_a_duplicate_key_is_refused(
    run: Run, module: Callable[[str], str], tmp_path: Path, with_app: bool
) -> None:
    typed = '{"topic": "x",  "more": 1.50e1}'
    app = ["--app", f"{module(PARAMETERS)}:app"] if with_app else []

    twice = run("enqueue", "read", '{"topic":"a","topic":"b"}', *app)
    scheduled = run("schedules", "add", "s", "read", '{"a":1,"a":2}', "--every", "1h", *app)
    created = (tmp_path / "tenure.db").exists()
    made = run("enqueue", "read", typed, *app)
    run("schedules", "add", "nightly", "read", typed, "--every", "1h", *app)

    for refused in (twice, scheduled):
        assert refused.exit_code == 2
        assert refused.stderr == "tenure: payload: an object has a duplicate key\n"
    assert not created
    with closing(SqliteStore(tmp_path / "tenure.db")) as store:
        job_id = JobId(made.stdout.strip())
        assert store.jobs.load([job_id]).jobs[job_id].payload == typed.encode()
        nightly = store.schedules.load(Namespace("default"), ScheduleName("nightly")).schedule
    assert nightly is not None
    assert nightly.spec.payload == typed.encode()


@pytest.mark.parametrize("kind", ["relaxed", "bare"])
def test_a_kind_that_needs_no_arguments_needs_no_payload(
    run: Run, module: Callable[[str], str], kind: str
) -> None:
    name = module(PARAMETERS)

    result = run("enqueue", kind, "--app", f"{name}:app", "--json")

    assert result.exit_code == 0, result.stderr
    handler = getattr(sys.modules[name], kind).handler
    assert handler.decode_arguments(b"null") == {}


def test_a_setting_of_the_kind_is_named_as_its_code_writes_it(
    run: Run, module: Callable[[str], str]
) -> None:
    declared = "@app.job(lease='5s')\ndef hasty() -> None: ...\n"
    name = module(f"from tenure import Tenure\napp = Tenure()\n{declared}")

    result = run("enqueue", "hasty", "--app", f"{name}:app")

    assert result.exit_code == 2
    assert "tenure: lease=…: 5 s is outside 30 s to 120 s; TENURE_LEASE_BOUNDS" in result.stderr


def test_an_application_without_jobs_creates_no_store_and_says_what_to_name(
    run: Run, tmp_path: Path
) -> None:
    (tmp_path / "parcels.py").write_text("from tenure import Tenure\n\napp = Tenure()\n")

    served = run("worker", "parcels:app")

    assert served.exit_code == 2
    assert served.stderr == (
        "tenure: parcels:app has no jobs; decorate a function with @app.job, and name here"
        " a module that imports app and the module of the function\n"
    )
    assert list(tmp_path.glob("tenure.db*")) == []


@pytest.mark.parametrize(
    ("attribute", "said"),
    [
        ("appp", "module {name} has no attribute appp; did you mean app?"),
        (
            "jobs",
            "module {name} has no attribute jobs; name the Tenure object of your application, as"
            " in myapp.jobs:app",
        ),
    ],
)
def test_a_missing_attribute_and_an_application_without_jobs_have_different_messages(
    run: Run, module: Callable[[str], str], attribute: str, said: str
) -> None:
    name = module(PARAMETERS)

    enqueued = run("enqueue", "read", "--app", f"{name}:{attribute}")
    served = run("worker", f"{name}:{attribute}")

    assert (enqueued.exit_code, served.exit_code) == (2, 2)
    assert enqueued.stderr == served.stderr == f"tenure: {said.format(name=name)}\n"


@pytest.mark.parametrize(
    ("kind", "guess"), [("reed", "did you mean read?"), ("x", "it has read, write")]
)
def test_a_kind_that_the_named_application_does_not_have_is_refused(
    run: Run, module: Callable[[str], str], tmp_path: Path, kind: str, guess: str
) -> None:
    more = "\n@app.job\ndef write() -> None: ...\n"
    name = module(SOURCE.format(namespace="lab") + more)

    result = run("enqueue", kind, "--app", f"{name}:app")

    assert (result.exit_code, result.stdout) == (2, "")
    assert f"{name}:app has no kind {kind}; {guess}" in result.stderr
    assert "another application runs, omit --app" in result.stderr
    assert not (tmp_path / "tenure.db").exists()


def test_a_kind_unknown_to_the_projects_application_is_enqueued_with_a_message(
    run: Run, module: Callable[[str], str], tmp_path: Path
) -> None:
    name = module(SOURCE.format(namespace="lab"))
    (tmp_path / "pyproject.toml").write_text(f'[tool.tenure]\napp = "{name}:app"\n')

    result = run("enqueue", "thumbnail")

    assert "the application has no kind thumbnail" in result.stderr
    assert (shown(run, result)["queue"], shown(run, result)["namespace"]) == ("default", "lab")


def test_an_object_that_is_no_application_is_refused(
    run: Run, module: Callable[[str], str]
) -> None:
    name = module(SOURCE.format(namespace="lab"))

    no_jobs = run("enqueue", "read", "--app", f"{name}:Retry")
    no_client = run("enqueue", "read", "--app", f"{name}:Registered")

    assert "has no handlers" in no_jobs.stderr
    assert "is not a Tenure application" in no_client.stderr
    assert (no_jobs.exit_code, no_client.exit_code) == (2, 2)


def test_a_project_names_its_application_and_queues(
    run: Run, module: Callable[[str], str], monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    name = module(SOURCE.format(namespace="default"))
    project = f'[tool.tenure]\napp = "{name}:app"\nqueues = ["research=3", "mail"]\n'
    (tmp_path / "pyproject.toml").write_text(project)
    given: list[tuple[str, WorkerOptions]] = []

    def work(_url: str, app: str, options: WorkerOptions, **_more: object) -> int:
        given.append((app, options))
        return 0

    monkeypatch.setattr(worker_command, "run_worker", work)
    assert run("worker").exit_code == run("worker", "-q", "other").exit_code == 0
    job = shown(run, run("enqueue", "read", '{"topic":"x"}'))

    assert job["queue"] == "research"
    assert [(app, options.queues) for app, options in given] == [
        (f"{name}:app", {"research": 3, "mail": 1}),
        (f"{name}:app", {"other": 1}),
    ]


@pytest.mark.parametrize(
    "words",
    [("worker", "x:app"), ("enqueue", "x"), ("enqueue", "bare", "--app", "{app}"), ("jobs", "ls")],
)
def test_an_invalid_project_file_is_one_clear_line(
    run: Run, module: Callable[[str], str], tmp_path: Path, words: tuple[str, ...]
) -> None:
    app = module(PARAMETERS) + ":app"
    (tmp_path / "pyproject.toml").write_text('[tool.tenure]\nurk = "sqlite:///x.db"\n')

    result = run(*(word.format(app=app) for word in words))

    assert (result.exit_code, result.stdout) == (2, "")
    assert "allowed are url, app, queues" in result.stderr
    assert result.stderr.count("\n") == 1


def test_a_syntax_error_is_shown_where_it_is_and_nothing_else(
    run: Run, module: Callable[[str], str], tmp_path: Path
) -> None:
    name = module("from tenure import Tenure\napp = Tenure(\ndef f():\n")

    result = run("worker", f"{name}:app")

    first, place, *rest = result.stderr.splitlines()
    assert result.exit_code == 2
    assert first == f"tenure: {name}:app cannot be imported"
    assert f"{name}.py" in place
    assert rest[-1].startswith("SyntaxError: ")
    assert len(rest) <= 3
    assert not (tmp_path / "tenure.db").exists()


def test_a_failed_import_shows_only_the_users_own_frames(
    run: Run, module: Callable[[str], str], tmp_path: Path
) -> None:
    (tmp_path / "broken_settings.py").write_text("import json\nVALUE = json.loads('{')\n")
    name = module("from tenure import Tenure\nimport broken_settings\napp = Tenure()\n")

    result = run("worker", f"{name}:app")

    frames = [line for line in result.stderr.splitlines() if line.startswith("  File ")]
    assert result.exit_code == 2
    assert [frame.partition(".py")[0].rpartition("/")[2] for frame in frames] == [
        name,
        "broken_settings",
    ]
    assert result.stderr.splitlines()[-1].startswith("json.decoder.JSONDecodeError: ")


def test_an_invalid_job_declaration_is_shown_with_its_line(
    run: Run, module: Callable[[str], str]
) -> None:
    name = module("from tenure import Tenure\napp = Tenure()\n@app.job(lease='x')\ndef f(): ...\n")

    result = run("worker", f"{name}:app")

    assert f'{name}.py", line 3' in result.stderr
    assert "lease" in result.stderr.splitlines()[-1]
