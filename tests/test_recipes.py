"""The recipes of ARCHITECTURE.md name the files that a change really touches."""

import re
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[1]
ARCHITECTURE = (ROOT / "ARCHITECTURE.md").read_text(encoding="utf-8")

PRIORITY = {
    "src/tenure/client/app.py": "a kind has a default",
    "src/tenure/handlers/registry.py": "a kind has a default",
    "src/tenure/core/changes.py": "a compensation has that of the job it undoes",
    "src/tenure/stores/sql/admission.py": "jobs are claimed in its order",
    "src/tenure/stores/sql/candidates.py": "jobs are claimed in its order",
    "src/tenure/core/concurrency.py": "jobs are claimed in its order",
    "src/tenure/stores/sql/common.sql": "jobs are claimed in its order",
    "src/tenure/stores/postgres/statements.sql": "delayed jobs are searched by it",
    "src/tenure/stores/sqlite/statements.sql": "delayed jobs are searched by it",
    "src/tenure/protocol/replies.py": "grants have it",
    "src/tenure/core/schedules.py": "a schedule says which job it makes",
    "src/tenure/cli/schedules.py": "a schedule says which job it makes",
}
"""Where `priority` is besides the recipe, and why."""
PRIORITY_LACKS = {"src/tenure/cli/job_view.py"}
"""`tenure jobs show` does not show it."""

CORRELATION_ID = {
    **dict.fromkeys(
        (
            "src/tenure/cli/events.py",
            "src/tenure/client/administration.py",
            "src/tenure/core/views/events.py",
            "src/tenure/core/views/job_search.py",
            "src/tenure/protocol/requests.py",
            "src/tenure/server/job_routes.py",
            "src/tenure/stores/sql/events.py",
            "src/tenure/stores/sql/views.py",
        ),
        "lists of jobs and events are filtered by it",
    ),
    **dict.fromkeys(
        (
            "src/tenure/core/ids.py",
            "src/tenure/client/records.py",
            "src/tenure/protocol/records.py",
        ),
        "others see the job's own id where none was given",
    ),
    "src/tenure/dashboard/pages/jobs.py": "the list of jobs is filtered by it",
    "src/tenure/core/changes.py": "each event of a job has it",
    "src/tenure/core/requests.py": "a job that a handler enqueues has that of the handler's job",
    "src/tenure/stores/sql/rows.py": "only the first event of a job is stored with it",
    "src/tenure/verify/records.py": "each event of a job has it",
    **dict.fromkeys(
        (
            "src/tenure/client/functions.py",
            "src/tenure/handlers/context.py",
            "src/tenure/protocol/replies.py",
            "src/tenure/telemetry/log_lines.py",
            "src/tenure/telemetry/logs.py",
            "src/tenure/telemetry/tracing.py",
            "src/tenure/testing/context.py",
            "src/tenure/worker/child/context.py",
            "src/tenure/worker/frames.py",
            "src/tenure/worker/child/execution.py",
        ),
        "it goes with the trace into handlers, log lines and what they enqueue",
    ),
}
"""Where `correlation_id` is besides the recipe, and why."""
CORRELATION_ID_LACKS = {"src/tenure/cli/job_view.py"}
"""`tenure jobs show` shows what the job is `correlated_by`."""


def recipe(title: str) -> set[str]:
    """The files that a recipe lists."""
    section = (
        ARCHITECTURE.split(f"### … {title}\n", 1)[1].split("\n## ", 1)[0].split("\n### ", 1)[0]
    )
    lines = [line.partition(": ")[0] for line in section.splitlines() if line.startswith("- ")]
    return {path for line in lines for path in re.findall(r"`([^`]+)`", line)}


def modules_that_mention(field: str) -> set[str]:
    """The modules and statements of the package that name a field."""
    word = re.compile(rf"\b{field}\b")
    return {
        str(path.relative_to(ROOT))
        for path in (ROOT / "src" / "tenure").rglob("*")
        if path.suffix in (".py", ".sql") and word.search(path.read_text(encoding="utf-8"))
    }


def test_the_recipe_for_a_field_is_where_priority_is() -> None:
    listed = recipe("an optional field of a job")

    assert len(listed) == 10
    assert modules_that_mention("priority") == listed - PRIORITY_LACKS | PRIORITY.keys()


def test_the_recipe_for_a_field_is_where_the_correlation_id_is() -> None:
    listed = recipe("an optional field of a job")

    assert (
        modules_that_mention("correlation_id")
        == listed - CORRELATION_ID_LACKS | CORRELATION_ID.keys()
    )


def test_the_recipe_for_the_claim_order_is_where_jobs_are_ordered_by_priority() -> None:
    ordering = {"jobs are claimed in its order", "delayed jobs are searched by it"}
    listed = recipe("a criterion of the claim order")

    code = {path for path in listed if path.startswith("src/") and "/migrations/" not in path}
    assert code == {path for path, why in PRIORITY.items() if why in ordering}


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
