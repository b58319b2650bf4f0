"""Wiring: URLs and settings, and errors that never show a password."""

import sqlite3
from collections.abc import Callable
from contextlib import AbstractContextManager, closing
from pathlib import Path

import pytest
from msgspec.structs import replace

from tenure import wiring
from tenure.app import Tenure
from tenure.coordinator.retention import Retention, RetentionPolicy
from tenure.core.instants import parse_duration, seconds
from tenure.errors import InvalidInput, SchemaTooOld, StoreError, UnknownStoreUrl, WaitTimeout
from tenure.ports import Store
from tenure.server import lifetime
from tenure.settings import (
    ProjectSettings,
    artifact_quotas_from_environment,
    limits_from_environment,
    project_settings,
    retention_of,
    retry_for_from_environment,
    shown_url,
    store_timeout_from_environment,
    url_from_environment,
)
from tenure.stores.sqlite.memory import MemoryStore
from tenure.stores.sqlite.path import sqlite_path
from tenure.wiring import open_coordination, open_coordinator, open_link, open_store
from tenure.worker.supervisor import worker
from tenure.worker.supervisor.options import WITHHELD_URL, WorkerOptions
from tenure_conformance.spec import spec


def test_the_environment_selects_the_deployment() -> None:
    assert url_from_environment({}) == "sqlite:///tenure.db"
    assert url_from_environment({"TENURE_URL": "memory://"}) == "memory://"


def test_a_project_says_what_the_environment_does_not(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.delenv("TENURE_URL", raising=False)
    Path("pyproject.toml").write_text(
        '[tool.tenure]\nurl = "sqlite:///project.db"\napp = "jobs:app"\nqueues = ["a", "b=2"]\n'
    )

    with Tenure() as app:
        app.enqueue("mail")

    assert project_settings() == ProjectSettings(
        url="sqlite:///project.db", app="jobs:app", queues=("a", "b=2")
    )
    assert url_from_environment({"TENURE_URL": "memory://"}) == "memory://"
    assert Path("project.db").exists()
    assert not Path("tenure.db").exists()


@pytest.mark.parametrize("scheme", ["memory", "sqlite", "postgresql"])
def test_a_wait_that_is_over_says_that_no_worker_takes_the_job(
    scheme: str, tmp_path: Path, request: pytest.FixtureRequest
) -> None:
    urls = {"memory": "memory://", "sqlite": f"sqlite:///{tmp_path / 'tenure.db'}"}
    url = urls.get(scheme) or str(request.getfixturevalue("postgres_url"))
    with closing(open_store(url, migrate=True)), Tenure(url) as app:
        job = app.enqueue("two")

        with pytest.raises(WaitTimeout) as caught:
            job.result(timeout="1ms")

    told = "no worker is alive that takes kind two from queue default"
    assert caught.value.reason == told
    assert f"is still queued after 0.001 s: {told}; the job itself continues" in str(caught.value)


def test_a_project_without_settings_leaves_the_defaults(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "pyproject.toml").write_text('[tool.tenure]\nurl = "memory://"\n')
    inner = tmp_path / "inner"
    inner.mkdir()
    (inner / "pyproject.toml").write_text('[project]\nname = "other"\n')
    (inner / "deeper").mkdir()

    assert project_settings(inner) == project_settings(inner / "deeper") == ProjectSettings()


@pytest.mark.parametrize(
    "text",
    ["[tool.tenure", "[tool.tenure]\nurk = 1", "[tool.tenure]\nurl = 1", "[tool]\ntenure = 1"],
)
def test_settings_that_make_no_sense_are_refused_by_name(tmp_path: Path, text: str) -> None:
    (tmp_path / "pyproject.toml").write_text(text)

    with pytest.raises(
        InvalidInput,
        match=r"pyproject\.toml.*allowed are url, app, queues, keep_finished, keep_refused",
    ):
        project_settings(tmp_path)


@pytest.mark.parametrize(
    ("url", "shown"),
    [
        ("postgresql://ann:hunter2@db:5432/jobs", "postgresql://ann@db:5432/jobs"),
        ("postgresql://db/jobs?password=hunter2&user=ann", "postgresql://db/jobs"),
        ("postgresql://ann:hunter2%40@[::1]/jobs", "postgresql://ann@[::1]/jobs"),
        ("postgresql://ann:hunt@er2@db/jobs", "postgresql://ann@db/jobs"),
        ("https://ann:hunter2@queue.example:7717", "https://ann@queue.example:7717"),
        ("postgresql://ann:hunter2@[db/jobs", "a store whose URL cannot be read"),
        ("sqlite:////var/lib/tenure.db", "sqlite:////var/lib/tenure.db"),
    ],
)
def test_a_url_is_shown_without_its_secrets(url: str, shown: str) -> None:
    assert shown_url(url) == shown


def test_memory_urls_open_a_memory_store() -> None:
    assert isinstance(open_store("memory://"), MemoryStore)


@pytest.mark.parametrize(
    ("url", "path"),
    [
        ("sqlite:///tenure.db", "tenure.db"),
        ("sqlite:////var/lib/tenure.db", "/var/lib/tenure.db"),
        ("sqlite:///a%20b.db", "a b.db"),
    ],
)
def test_sqlite_urls_name_a_relative_or_absolute_file(url: str, path: str) -> None:
    assert sqlite_path(url) == Path(path)


@pytest.mark.parametrize(
    "url",
    [
        "sqlite:",
        "sqlite://",
        "sqlite:///",
        "sqlite://host/file.db",
        "sqlite:///x.db?mode=ro",
        "sqlite://[::1",
        "sqlite:///a%00b",
    ],
)
def test_a_sqlite_url_that_is_none_says_how_one_looks(url: str) -> None:
    with pytest.raises(UnknownStoreUrl, match=r"sqlite:///file\.db"):
        open_store(url)


@pytest.mark.parametrize(
    "url", ["redis://:hunter2@host", "", "hunter2", "mysql://root:hunter2@h/d", "HTTP2:hunter2"]
)
def test_an_unknown_url_is_named_by_its_scheme_only(url: str) -> None:
    with pytest.raises(UnknownStoreUrl, match="postgresql://") as caught:
        open_store(url)

    assert "hunter2@" not in str(caught.value)


@spec("L2")
def test_lease_bounds_come_from_the_environment_and_errors_name_the_variable() -> None:
    lower = limits_from_environment({"TENURE_LEASE_BOUNDS": "500ms,120s"})

    assert lower.lease.shortest_us == seconds(0.5)
    assert limits_from_environment({}).lease.shortest_us == seconds(30)
    for wrong in ("5s", "5s,", "120s,5s", "fast,slow", "0s,1s", "5,120"):
        with pytest.raises(InvalidInput, match="TENURE_LEASE_BOUNDS"):
            limits_from_environment({"TENURE_LEASE_BOUNDS": wrong})


@spec("J9")
def test_artifact_quotas_come_from_the_environment_and_errors_name_the_variable() -> None:
    job, namespace = "TENURE_ARTIFACT_QUOTA_PER_JOB", "TENURE_ARTIFACT_QUOTA_PER_NAMESPACE"

    by_default = artifact_quotas_from_environment({})
    set_both = artifact_quotas_from_environment({job: "512M", namespace: "2 GiB"})
    without = artifact_quotas_from_environment({job: "0", namespace: "None"})

    assert (by_default.job_bytes, by_default.namespace_bytes) == (2**30, 100 * 2**30)
    assert (set_both.job_bytes, set_both.namespace_bytes) == (2**29, 2**31)
    assert (without.job_bytes, without.namespace_bytes) == (None, None)
    for variable in (job, namespace):
        for wrong in ("much", "-1", "1.5G", "1P"):
            with pytest.raises(InvalidInput, match=variable):
                artifact_quotas_from_environment({variable: wrong})


@pytest.mark.parametrize(
    ("text", "amount_s"), [("250ms", 0.25), ("90s", 90), ("1.5h", 5400), ("7d", 604800)]
)
def test_durations_are_written_with_a_unit(text: str, amount_s: float) -> None:
    assert parse_duration(text) == seconds(amount_s)


@pytest.mark.parametrize("text", ["", "5", "s", "-5s", "1e9s", "5 minutes", "1_0s", "nan s", "٣s"])
def test_anything_else_is_no_duration(text: str) -> None:
    with pytest.raises(ValueError, match="250ms, 90s, 5m, 2h or 7d"):
        parse_duration(text)


def test_a_withheld_url_says_who_keeps_it_and_what_to_do() -> None:
    with pytest.raises(StoreError, match="a variable of its own"):
        open_store(WITHHELD_URL)


def refuse(*_: object, **__: object) -> None:
    raise RuntimeError("no coordinator today")


@pytest.mark.parametrize("opening", [open_coordinator, open_coordination, open_link])
def test_a_store_is_closed_if_no_coordinator_can_be_made_over_it(
    opening: Callable[[str], AbstractContextManager[object]], monkeypatch: pytest.MonkeyPatch
) -> None:
    closed: list[str] = []
    store = MemoryStore()
    monkeypatch.setattr(store, "close", lambda: closed.append("store"))
    monkeypatch.setattr(wiring, "open_store", lambda *_, **__: store)
    monkeypatch.setattr(wiring, "Coordinator", refuse)

    with pytest.raises(RuntimeError, match="no coordinator today"), opening("sqlite:///any.db"):
        pass

    assert closed == ["store"]


def test_settings_that_are_refused_leave_no_store_behind(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("TENURE_LEASE_BOUNDS", "never")

    with (
        pytest.raises(InvalidInput, match="TENURE_LEASE_BOUNDS"),
        open_coordinator(f"sqlite:///{tmp_path / 'new.db'}"),
    ):
        pass

    assert list(tmp_path.iterdir()) == []


def test_finished_jobs_are_kept_as_the_command_line_says_then_the_project(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    by_default = retention_of()
    Path("pyproject.toml").write_text('[tool.tenure]\nkeep_finished = "90d"\n')

    assert by_default.finished_us == seconds(30 * 86400)
    assert retention_of().finished_us == seconds(90 * 86400)
    assert retention_of({"keep_finished": "36h"}).finished_us == seconds(36 * 3600)


@spec("G6")
@pytest.mark.parametrize("text", ["23h", "0s", "367d", "long"])
def test_a_retention_that_makes_no_sense_is_refused_by_the_name_it_was_given_by(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, text: str
) -> None:
    monkeypatch.chdir(tmp_path)
    Path("pyproject.toml").write_text(f'[tool.tenure]\nkeep_finished = "{text}"\n')

    with pytest.raises(InvalidInput, match=r"^--keep-finished: .*1d to 366d"):
        retention_of({"keep_finished": text})
    with pytest.raises(InvalidInput, match=r"^pyproject\.toml, \[tool\.tenure\] keep_finished: "):
        retention_of()


@spec("E31")
@pytest.mark.parametrize(
    ("name", "field", "default_s"),
    [("keep_refused", "refused_us", 7 * 86400), ("keep_renewals", "renewals_us", 0)],
)
def test_renewals_and_refused_bodies_are_kept_as_the_command_line_says_then_the_project(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, name: str, field: str, default_s: int
) -> None:
    monkeypatch.chdir(tmp_path)
    by_default = retention_of()
    Path("pyproject.toml").write_text(f'[tool.tenure]\n{name} = "3d"\n')

    assert getattr(by_default, field) == seconds(default_s)
    assert retention_of() == replace(by_default, **{field: seconds(3 * 86400)})
    assert getattr(retention_of({name: "0s"}), field) == 0
    with pytest.raises(InvalidInput, match=rf"^--{name.replace('_', '-')}: .*0s to 366d"):
        retention_of({name: "367d"})


def test_a_worker_and_a_server_purge_as_they_are_told(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    kept: list[RetentionPolicy | None] = []

    class Noting(Retention):
        def __init__(self, store: Store, policy: RetentionPolicy | None = None) -> None:
            kept.append(policy)
            super().__init__(store, policy)

    monkeypatch.setattr("tenure.coordinator.retention.Retention", Noting)
    monkeypatch.setattr(lifetime, "serve", lambda *_, **__: None)
    monkeypatch.setattr(worker, "run_worker", lambda *_, **__: 0)
    url, policy = f"sqlite:///{tmp_path / 'tenure.db'}", retention_of({"keep_finished": "2d"})

    wiring.run_worker(url, "any:app", WorkerOptions(), retention=policy)
    wiring.run_server(url, lifetime.ServeOptions(), lambda _: None, retention=policy, name="a test")

    assert kept == [policy, policy]


@spec("Y3")
def test_an_old_store_is_named_where_it_is_said_how_to_mend_it(tmp_path: Path) -> None:
    url = f"sqlite:///{tmp_path / 'my store.db'}"
    open_store(url).close()
    with closing(sqlite3.connect(tmp_path / "my store.db", isolation_level=None)) as raw:
        raw.execute("UPDATE tenure_meta SET schema_version = 0")

    with pytest.raises(SchemaTooOld) as refusal:
        open_store(url)

    assert refusal.value.hint == f"run `tenure migrate --url '{url}'`"


@spec("Y3")
def test_the_command_for_an_old_store_works_although_it_shows_no_password(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def old_store(url: str, options: object) -> None:
        raise SchemaTooOld(found=0, needed=1)

    monkeypatch.setattr("tenure.wiring.open_url", old_store)

    hints = {}
    for url in ("postgresql://ada:secret@db/jobs", "postgresql://ada@db/jobs?sslmode=require"):
        with pytest.raises(SchemaTooOld) as refusal:
            open_store(url)
        hints[url] = refusal.value.hint

    same = "run `tenure migrate` with the same URL, as --url or in TENURE_URL (postgresql://ada@db/jobs)"
    assert list(hints.values()) == [same, same]


def test_the_default_file_is_named_when_it_is_made(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.delenv("TENURE_URL", raising=False)
    for _ in range(2):
        with Tenure() as app:
            app.enqueue("mail")
    with Tenure("sqlite:///chosen.db") as chosen:
        chosen.enqueue("mail")

    said = [record.getMessage() for record in caplog.records if record.name == "tenure.app"]

    assert said == [f"no URL is set, so jobs go to a new file: sqlite:///{tmp_path / 'tenure.db'}"]


@spec("K16")
def test_the_environment_says_how_long_a_call_waits_for_its_store() -> None:
    assert store_timeout_from_environment({}) == 10.0
    assert store_timeout_from_environment({"TENURE_STORE_TIMEOUT": "500ms"}) == 0.5
    for wrong in ("soon", "0s", "11m"):
        with pytest.raises(InvalidInput, match="TENURE_STORE_TIMEOUT"):
            store_timeout_from_environment({"TENURE_STORE_TIMEOUT": wrong})


@spec("H54")
def test_how_long_a_client_retries_is_read_from_the_environment() -> None:
    assert retry_for_from_environment({}) == 60
    assert retry_for_from_environment({"TENURE_RETRY_FOR": "5s"}) == 5
    assert retry_for_from_environment({"TENURE_RETRY_FOR": "0s"}) == 0
    for wrong in ("5", "11m", "soon"):
        with pytest.raises(InvalidInput, match="TENURE_RETRY_FOR"):
            retry_for_from_environment({"TENURE_RETRY_FOR": wrong})
    with pytest.raises(InvalidInput, match="retry_for"):
        Tenure("http://127.0.0.1:1", retry_for="a while")
