"""Rates of queues and kinds from the command line."""

import json
from pathlib import Path

import pytest

from tenure.coordinator.service import Coordinator
from tenure_conformance.spec import spec
from tests.cli.harness import Run, claimed


def enqueued(run: Run, *words: str) -> str:
    result = run("enqueue", *words)
    assert result.exit_code == 0, result.stderr
    return result.stdout.strip()


@spec("RL4")
def test_the_rate_of_a_queue_is_set_shown_and_removed(run: Run) -> None:
    enqueued(run, "letter", "-q", "mail")
    run("queues", "limit", "mail", "3")

    set_to = run("queues", "limit", "mail", "--rate", "100/m", "--burst", "20")
    (shown,) = json.loads(run("queues", "ls", "--json").stdout)
    table = run("queues", "ls").stdout
    removed = run("queues", "limit", "mail", "--rate", "none")

    assert set_to.stdout == (
        "mail: at most 3 at a time, at most 100/m, up to 20 at once, 0 running\n"
    )
    assert (shown["limit"], shown["rate"], shown["burst"]) == (3, "100/m", 20)
    assert "100/m" in table
    assert removed.stdout == "mail: at most 3 at a time, 0 running\n"


@spec("RL4")
def test_the_rate_of_a_kind_is_set_shown_and_removed(run: Run) -> None:
    enqueued(run, "letter")

    set_to = run("kinds", "limit", "letter", "--rate", "10/s", "--create")
    (shown,) = json.loads(run("kinds", "ls", "--json").stdout)
    table = run("kinds", "ls").stdout
    removed = run("kinds", "limit", "letter", "--rate", "none")
    (left,) = json.loads(run("kinds", "ls", "--json").stdout)

    assert set_to.stdout == "letter: at most 10/s, up to 1 at once\n"
    assert (shown["kind"], shown["rate"], shown["burst"]) == ("letter", "10/s", 1)
    assert table.splitlines()[-1].split() == ["letter", "10/s", "1", "-", "-"]
    assert removed.stdout == "letter: no rate\n"
    assert (left["kind"], left["rate"], left["rate_since"]) == ("letter", None, None)


@spec("RL4")
@pytest.mark.parametrize("what", ["queues", "kinds"])
@pytest.mark.parametrize(
    ("words", "said"),
    [
        (("--rate", "0/s"), "rate: 0/s is not from 1"),
        (("--rate", "ten"), "rate: 'ten' is not a rate"),
        (("--rate", "10/w"), "write 10/s, 100/m, 5/h or 1000/d"),
        (("--rate", "10/s", "--burst", "0"), "burst: 0 is not from 1"),
        (("--burst", "3"), "give"),
        (("--rate", "none", "--burst", "3"), "burst: belongs to a rate"),
        ((), "give one of them"),
    ],
)
def test_what_is_no_rate_is_refused_and_nothing_is_written(
    run: Run, what: str, words: tuple[str, ...], said: str
) -> None:
    enqueued(run, "letter", "-q", "mail")

    refused = run(what, "limit", "mail", *words)

    assert refused.exit_code == 2, refused
    assert said in refused.stderr
    assert json.loads(run("kinds", "ls", "--json").stdout) == []
    assert json.loads(run("queues", "ls", "--json").stdout)[0]["rate"] is None


APPLICATION = """
from tenure import Tenure
app = Tenure()

@app.job(rate="10/s", burst=3)
def letter() -> None: ...

@app.job
def plain() -> None: ...
"""


@spec("RL6")
def test_sync_writes_what_the_application_declares(
    run: Run, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "declared_rates.py").write_text(APPLICATION)
    monkeypatch.syspath_prepend(tmp_path)
    enqueued(run, "letter")
    run("kinds", "limit", "letter", "--rate", "1/h", "--create")
    run("kinds", "limit", "plain", "--rate", "5/m", "--create")
    run("kinds", "limit", "foreign", "--rate", "2/s", "--create")

    first = run("kinds", "sync", "declared_rates:app")
    again = run("kinds", "sync", "declared_rates:app")
    pruned = run("kinds", "sync", "declared_rates:app", "--prune")
    found = json.loads(run("kinds", "ls", "--json").stdout)

    policy = "15 attempts, lease 1m, timeout 1h"
    assert first.stdout == (
        f"letter: rate 10/s, burst 3, {policy} (was rate 1/h, burst 1, no policy)\n"
        f"plain: {policy} (was no policy)\n"
    )
    assert again.stdout == (
        f"letter: rate 10/s, burst 3, {policy}, as before\nplain: {policy}, as before\n"
    )
    assert "plain: no rate (was rate 5/m, burst 1)\n" in pruned.stdout
    assert [(each["kind"], each["rate"]) for each in found] == [
        ("foreign", "2/s"),
        ("letter", "10/s"),
        ("plain", None),
    ]


@spec("G7", "F9")
def test_the_time_that_a_kind_keeps_its_jobs_is_shown_and_used_where_no_policy_is_given(
    run: Run, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "declared_keep.py").write_text(
        "from tenure import Tenure\napp = Tenure()\n"
        '@app.job(keep="7d")\ndef letter() -> None: ...\n'
    )
    monkeypatch.syspath_prepend(tmp_path)

    run("kinds", "sync", "declared_keep:app")
    job = enqueued(run, "letter")

    assert "keep 7d" in " ".join(run("kinds", "ls").stdout.split())
    (shown,) = json.loads(run("kinds", "ls", "--json").stdout)
    kept_s = json.loads(run("jobs", "show", job, "--json").stdout)["job"]["policy"]["keep_s"]
    assert shown["policy"]["keep_s"] == kept_s == 7 * 86400


@spec("SC22")
def test_sync_names_kinds_that_nobody_has_and_prunes_them_by_name(
    run: Run, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, serving: Coordinator
) -> None:
    (tmp_path / "before_rename.py").write_text(APPLICATION)
    renamed = APPLICATION.replace("letter", "postcard")
    (tmp_path / "after_rename.py").write_text(renamed)
    monkeypatch.syspath_prepend(tmp_path)
    run("kinds", "sync", "before_rename:app")
    run("kinds", "limit", "by-hand", "--rate", "2/s", "--create")

    named = run("kinds", "sync", "after_rename:app", "--prune").stdout
    pruned = run("kinds", "sync", "after_rename:app", "--prune", "--from", "letter").stdout
    again = run("kinds", "sync", "after_rename:app").stdout
    found = {each["kind"]: each for each in json.loads(run("kinds", "ls", "--json").stdout)}

    assert "letter: kept: neither the application nor a live worker has this kind" in named
    assert "--prune --from letter removes" in named
    assert "by-hand" not in named
    assert "letter: removed" in pruned
    assert "letter" not in again
    assert (found["letter"]["rate"], found["letter"]["policy"]) == (None, None)
    assert found["by-hand"]["rate"] == "2/s"


@spec("RL10")
def test_show_names_the_rate_that_a_job_waits_for(run: Run, serving: Coordinator) -> None:
    *_, waiting = [enqueued(run, "mail") for _ in range(3)]
    run("queues", "limit", "default", "--rate", "1/h", "--burst", "2")
    claimed(serving)
    run("kinds", "limit", "mail", "--rate", "2/m", "--create")
    claimed(serving, claim_seq=2)

    of_queue = run("jobs", "show", waiting).stdout
    run("queues", "limit", "default", "--rate", "none")
    of_kind = run("jobs", "show", waiting).stdout

    said = "it waits for the rate limit {}, which has room for the next job in about"
    assert said.format("1/h of queue default") in of_queue
    assert said.format("2/m of kind mail") in of_kind


def test_a_kind_that_nobody_knows_is_refused(run: Run) -> None:
    run("enqueue", "postcard")

    refused = run("kinds", "limit", "postcrd", "--rate", "5/s")
    known = run("kinds", "limit", "postcard", "--rate", "5/s")
    listed = run("jobs", "ls", "--kind", "postcrd")
    scheduled = run("schedules", "add", "often", "postcrd", "--every", "1h")

    unknown = "tenure: no worker or job has kind postcrd so far. Did you mean postcard?"
    assert (refused.exit_code, known.exit_code) == (2, 0)
    assert refused.stderr == (
        "tenure: kind: no job, worker, setting or function has kind postcrd so far; did you mean"
        " postcard? `create` sets it anyway\n"
    )
    assert [line["kind"] for line in json.loads(run("kinds", "ls", "--json").stdout)] == [
        "postcard"
    ]
    assert listed.stderr == f"{unknown}\n"
    assert (scheduled.exit_code, scheduled.stderr) == (
        0,
        f"{unknown} The schedule is made anyway\n",
    )
