"""The recipes of ARCHITECTURE.md name the files that a change really touches."""

import re
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[1]
ARCHITECTURE = (ROOT / "ARCHITECTURE.md").read_text(encoding="utf-8")


def recipe(title: str) -> set[str]:
    """The files that a recipe lists."""
    section = (
        ARCHITECTURE.split(f"### … {title}\n", 1)[1].split("\n## ", 1)[0].split("\n### ", 1)[0]
    )
    lines = [line.partition(": ")[0] for line in section.splitlines() if line.startswith("- ")]
    return {path for line in lines for path in re.findall(r"`([^`]+)`", line)}


@pytest.mark.parametrize(
    ("title", "fields"),
    [
        ("an optional field of a job", "priority|correlation_id|correlated_by"),
        ("a criterion of the claim order", "priority"),
    ],
)
def test_each_file_of_a_recipe_has_to_do_with_fields_that_were_added_like_that(
    title: str, fields: str
) -> None:
    word = re.compile(rf"\b({fields})\b")
    modules = [ROOT / path for path in recipe(title) if path.startswith("src/")]

    assert modules
    assert not [str(path) for path in modules if not word.search(path.read_text("utf-8"))]


@pytest.mark.parametrize(
    "title",
    [
        "a read-only list",
        "an optional field of a job",
        "an event type",
        "a SQL dialect",
        "a criterion of the claim order",
    ],
)
def test_a_recipe_names_files_that_exist(title: str) -> None:
    listed = recipe(title)

    assert listed
    for path in listed:
        for dialect in ("sqlite", "postgres"):
            where = ROOT / path.replace("NAME", dialect)
            beside = ROOT / "src/tenure/stores" / dialect / path  # `health.sql` beside `health.py`
            assert where.is_file() or beside.is_file(), path


def test_where_things_are_names_every_package() -> None:
    packages = {path.parent.name for path in (ROOT / "src/tenure").glob("*/__init__.py")}
    table = ARCHITECTURE.split("## Where things are", 1)[1].split("\n## ", 1)[0]

    for package in packages:
        assert f"`src/tenure/{package}/`" in table, package


def test_the_picture_of_threads_names_every_thread() -> None:
    names = {
        name
        for path in (ROOT / "src/tenure").rglob("*.py")
        for name in re.findall(
            r'name(?:_prefix)?=f?"(tenure-[a-z-]+[a-z])', path.read_text(encoding="utf-8")
        )
    }
    picture = ARCHITECTURE.split("## Processes and threads", 1)[1].split("\n## ", 1)[0]

    assert "tenure-coordinator" in names
    for name in names | {"tenure-sweeper", "tenure-retention", "tenure-rollups"}:
        assert name in picture, name
