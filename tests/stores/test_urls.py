"""Stores by URL: those of other packages are found by their entry points."""

import json
import sqlite3
from collections.abc import Callable
from contextlib import closing
from importlib.metadata import PackageNotFoundError
from pathlib import Path

import pytest
from click.testing import CliRunner, Result

from tenure import StoreError, Tenure
from tenure.cli.main import main
from tenure.stores import urls
from tenure.stores.urls import StoreOptions, open_url
from tenure.wiring import open_store

SHELF = """
from pathlib import Path
from tenure.stores.sqlite.store import SqliteStore

def open_store(url, options):
    return SqliteStore(Path(url.removeprefix("shelf:")), timeout_s=options.timeout_s)
"""

Install = Callable[..., None]


@pytest.fixture
def install(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Install:
    """A package of somebody else, as an installer would leave it."""

    def installed(code: str, *, scheme: str = "shelf", name: str = "shelf_store") -> None:
        site = tmp_path / f"site-{name}"
        metadata = site / f"{name}-1.0.dist-info"
        metadata.mkdir(parents=True)
        (metadata / "METADATA").write_text(f"Metadata-Version: 2.1\nName: {name}\nVersion: 1.0\n")
        (metadata / "entry_points.txt").write_text(f"[tenure.stores]\n{scheme} = {name}\n")
        (site / f"{name}.py").write_text(code)
        monkeypatch.syspath_prepend(str(site))

    return installed


def _run(*arguments: str) -> Result:
    return CliRunner().invoke(main, [*arguments])


def test_a_store_of_another_package_is_used_by_its_url(install: Install, tmp_path: Path) -> None:
    install(SHELF)
    url = f"shelf:{tmp_path}/shelf.db"

    enqueued = _run("enqueue", "work", '{"n": 1}', "--url", url)
    listed = _run("jobs", "ls", "--url", url, "--json")
    with Tenure(url) as app:
        status = app.get(enqueued.stdout.strip()).status

    assert enqueued.exit_code == 0, enqueued.output
    assert [job["id"] for job in json.loads(listed.stdout)] == [enqueued.stdout.strip()]
    assert status == "queued"
    with closing(sqlite3.connect(tmp_path / "shelf.db")) as raw:
        assert raw.execute("SELECT count(*) FROM tenure_job").fetchall() == [(1,)]


def test_another_package_cannot_take_over_a_scheme_of_ours(
    install: Install, tmp_path: Path
) -> None:
    install("raise RuntimeError('taken over')", scheme="sqlite", name="taker")

    with closing(open_store(f"sqlite:///{tmp_path}/ours.db")) as store:
        assert store.parallelism == 1


@pytest.mark.parametrize(
    ("code", "problem"),
    [
        ("import a_module_that_is_not_there", "ModuleNotFoundError"),
        ("1 / 0", "ZeroDivisionError"),
        ("", "has no function open_store"),
    ],
)
def test_a_store_that_cannot_be_loaded_is_named_with_its_package(
    install: Install, code: str, problem: str, request: pytest.FixtureRequest
) -> None:
    name = f"broken_{abs(hash(request.node.name))}"
    install(code, name=name)

    with pytest.raises(StoreError, match=problem) as refusal:
        open_url("shelf:x", StoreOptions())

    assert "shelf:" in refusal.value.message
    assert name in refusal.value.hint


@pytest.mark.parametrize(
    ("body", "problem"),
    [
        ("raise RuntimeError(f'cannot reach {url}')", "cannot reach shelf://ann:[redacted]@host"),
        ("return None", "its open_store returned NoneType, which is not a store"),
        ("return {}", "its open_store returned dict, which is not a store"),
    ],
)
def test_a_store_that_cannot_be_opened_is_named_with_its_package(
    install: Install, body: str, problem: str, request: pytest.FixtureRequest
) -> None:
    name = f"closed_{abs(hash(request.node.name))}"
    install(f"def open_store(url, options):\n    {body}\n", name=name)

    result = _run("jobs", "ls", "--url", "shelf://ann:hunter2@host")

    assert (result.exit_code, result.stdout) == (2, "")
    assert result.stderr.startswith("tenure: the store for shelf: URLs cannot be used: ")
    assert problem in result.stderr
    assert f"registered by the package {name}" in result.stderr
    assert len(result.stderr.splitlines()) == 1


def test_a_schema_that_cannot_be_read_is_named_with_its_package(install: Install) -> None:
    install(f"{SHELF}\ndef schema_of(url, name):\n    return 1 / 0\n", name="without_schema")

    result = _run("migrate", "--url", "shelf:x")

    assert result.exit_code == 2
    assert "ZeroDivisionError" in result.stderr
    assert "registered by the package without_schema" in result.stderr


def test_the_error_about_missing_metadata_says_what_to_do(monkeypatch: pytest.MonkeyPatch) -> None:
    def not_found(name: str) -> None:
        raise PackageNotFoundError(name)

    monkeypatch.setattr(urls, "distribution", not_found)

    with pytest.raises(StoreError, match="metadata") as refusal:
        open_url("memory://", StoreOptions())

    assert "pip install" in refusal.value.hint


def test_a_store_without_a_schema_has_none_to_migrate(install: Install) -> None:
    install(SHELF)

    result = _run("migrate", "--url", "shelf:x")

    assert result.exit_code == 2
    assert "a store with a shelf: URL has no schema" in result.stderr
