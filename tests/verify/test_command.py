"""`tenure verify` as a user meets it: tables, JSON, exit codes, and no surprise on the terminal."""

import json
import sqlite3
import subprocess
import sys
from collections.abc import Callable
from contextlib import closing
from pathlib import Path

import pytest
from click.testing import CliRunner, Result
from msgspec.structs import replace

from tenure.cli import verify as command
from tenure.cli.main import main
from tenure.cli.verify import Document
from tenure.core.ids import JobId
from tenure.core.outcomes import Change
from tenure.core.vocabulary import JobStatus
from tenure.errors import SchemaTooOld, StoreUnavailable
from tenure.ports import JobHistory
from tenure.stores.sqlite.memory import MemoryStore
from tenure.stores.sqlite.store import SqliteStore
from tenure.verify import INVARIANTS, AckWriter
from tenure_conformance.spec import spec
from tests.support.histories import RecordedStore, World

pytestmark = pytest.mark.process

Run = Callable[..., Result]

ALL = len(INVARIANTS)
CHECKED = ALL - 5  # without acknowledgements and metrics


class Closable(RecordedStore):
    """Records behind the command."""

    def close(self) -> None:
        pass


@pytest.fixture
def run(monkeypatch: pytest.MonkeyPatch) -> Run:
    """Runs `tenure verify` over these records."""

    def run_over(records: list[JobHistory], *arguments: str) -> Result:
        store = Closable(records)
        monkeypatch.setattr(command, "open_store", lambda _, **__: store)
        return CliRunner().invoke(main, ["verify", "--url", "memory://", *arguments])

    return run_over


def broken(record: JobHistory) -> JobHistory:
    assert record.job is not None
    return JobHistory(record.job_id, replace(record.job, status=JobStatus.FAILED), record.events)


@spec("X3", "X2")
def test_a_correct_history_exits_with_0_and_says_what_was_not_checked(run: Run) -> None:
    result = run(World(1).run(60).records())

    lines = result.stdout.splitlines()
    assert result.exit_code == 0
    assert any(line.startswith("I1 ") and line.endswith("  holds") for line in lines)
    for rule in ("I13", "I14", "I16", "I21"):
        [line] = [line for line in lines if line.startswith(f"{rule} ")]
        assert line.endswith("  not checked [1]")
    [line] = [line for line in lines if line.startswith("I23 ")]
    assert line.endswith("  not checked [2]")
    assert lines[-3:-1] == [
        "[1] needs the callers' acknowledgements: --acks FILE (docs/reference/acks.md)",
        "[2] needs the metrics of every process that wrote, which no store has",
    ]
    assert lines[-1].endswith(f" events: no violation; {CHECKED} of {ALL} invariants were checked")
    assert max(map(len, lines)) <= 80


@spec("X2")
def test_a_violation_exits_with_1_and_names_invariant_job_and_seq(run: Run) -> None:
    records = World(1).run(60).records()
    records[0] = broken(records[0])
    job = records[0].job
    assert job is not None

    result = run(records)

    lines = result.stdout.splitlines()
    at = next(n for n, line in enumerate(lines) if line.startswith("I3 "))
    assert result.exit_code == 1
    assert "VIOLATED, 1 found" in lines[at]
    assert f" violated; {CHECKED} of {ALL} invariants were checked" in lines[-1]
    assert lines[at + 1].strip().startswith(f"job {job.id} seq {job.rev}: the log leads to")


@spec("X2")
@pytest.mark.parametrize(
    "problem",
    [
        SchemaTooOld(found=1, needed=2),
        StoreUnavailable("the store does not answer"),
        ValueError("a row that nobody can read"),
        KeyboardInterrupt(),
    ],
)
def test_what_could_not_be_checked_exits_with_2_in_one_line(
    problem: BaseException, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail(_: str, **__: object) -> None:
        raise problem

    monkeypatch.setattr(command, "open_store", fail)

    result = CliRunner().invoke(main, ["verify", "--url", "memory://"])

    assert result.exit_code == 2
    assert result.stdout == ""
    assert result.stderr.startswith("tenure: ")
    assert len(result.stderr.splitlines()) == 1


@spec("X2")
@pytest.mark.parametrize(
    "arguments",
    [
        ["--url", "carrier-pigeon://coop"],
        ["--url", "sqlite:///does-not-exist.db"],
        ["--acks", "does-not-exist.jsonl"],
        ["--limit", "-1"],
        ["--retention", "1h"],
        ["--retention", "soon"],
        ["--retention", "0s"],
    ],
)
def test_a_wrong_argument_exits_with_2_and_makes_no_file(
    arguments: list[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)

    result = CliRunner().invoke(main, ["verify", *arguments])

    assert result.exit_code == 2
    assert result.stderr
    assert list(tmp_path.iterdir()) == []


@spec("X2")
def test_a_report_that_cannot_be_written_is_no_violation(tmp_path: Path) -> None:
    url = f"sqlite:///{tmp_path / 'tenure.db'}"
    assert CliRunner().invoke(main, ["migrate", "--url", url]).exit_code == 0
    words = [sys.executable, "-m", "tenure", "verify", "--url", url]

    with Path("/dev/full").open("wb") as full:
        done = subprocess.run(words, stdout=full, stderr=subprocess.PIPE, check=False)

    assert done.returncode == 2
    assert done.stderr.decode().splitlines()[0].startswith("tenure: the report cannot be written")


@spec("X3")
def test_acks_are_read_and_their_rules_checked(run: Run, tmp_path: Path) -> None:
    world = World(1).run(60)
    with AckWriter(tmp_path / "acks") as writer:
        writer.write(*world.acks)

    result = run(world.records(), "--acks", str(tmp_path / "acks"))
    lossy = run(world.records()[1:], "--acks", str(tmp_path / "acks"))

    assert result.exit_code == 0
    assert f"{len(world.acks)} acks: no violation; {ALL - 1} of {ALL} invariants" in result.stdout
    assert lossy.exit_code == 1
    assert "its enqueue was acknowledged, it has no row" in lossy.stdout


@spec("X3")
@pytest.mark.parametrize("text", ["", "\n", '{"op":"enqueue"'])
def test_a_file_without_an_acknowledgement_checks_nothing_and_says_so(
    run: Run, tmp_path: Path, text: str
) -> None:
    (tmp_path / "acks").write_text(text)

    result = run(World(1).run(60).records(), "--acks", str(tmp_path / "acks"))

    lines = result.stdout.splitlines()
    assert result.exit_code == 0
    for rule in ("I13", "I14", "I16", "I21"):
        [line] = [line for line in lines if line.startswith(f"{rule} ")]
        assert line.endswith("  not checked [1]")
    assert "[1] the --acks files contain no acknowledgement" in lines
    assert "1 --acks file contains no acknowledgement" in lines
    assert ("never finished" in result.stdout) == ("{" in text)


def test_a_torn_file_among_others_is_named_as_such(run: Run, tmp_path: Path) -> None:
    world = World(1).run(60)
    whole, torn = tmp_path / "whole", tmp_path / "torn"
    with AckWriter(whole) as writer:
        writer.write(*world.acks)
    torn.write_bytes(whole.read_bytes()[:-5])

    result = run(world.records(), "--acks", str(whole), "--acks", str(torn), "--json")

    document = json.loads(result.stdout)
    assert (document["empty"], document["torn"]) == (0, 1)
    assert document["acks"] == 2 * len(world.acks) - 1


def test_an_unreadable_ack_file_exits_with_2(run: Run, tmp_path: Path) -> None:
    (tmp_path / "acks").write_text("no json\n")

    result = run([], "--acks", str(tmp_path / "acks"))

    assert result.exit_code == 2
    assert result.stderr.startswith("tenure: acks, line 1: ")


def test_json_is_one_document_of_the_documented_shape(run: Run) -> None:
    records = World(1).run(60).records()
    records[0] = broken(records[0])

    result = run(records, "--json", "--limit", "1")

    document = json.loads(result.stdout)
    assert result.exit_code == 1
    assert document.keys() == set(Document.__struct_fields__)
    assert (document["holds"], document["acks"], document["jobs"]) == (False, None, len(records))
    i3 = next(each for each in document["invariants"] if each["id"] == "I3")
    assert i3.keys() == {"id", "title", "state", "violations", "first", "why"}
    assert (i3["state"], i3["violations"]) == ("violated", 1)
    assert i3["first"][0].keys() == {"invariant", "job_id", "seq", "message"}
    i13 = next(each for each in document["invariants"] if each["id"] == "I13")
    assert (i13["state"], i13["why"]) == ("not checked", "needs the callers' acknowledgements")


@pytest.mark.parametrize("arguments", [[], ["--json"]])
def test_no_control_character_of_the_data_reaches_the_terminal(
    run: Run, arguments: list[str]
) -> None:
    record = broken(World(1).run(60).records()[0])
    nasty = "\x1b[2J\x07\r\n\x9b31m\u202eevil\U000e0001"

    result = run([JobHistory(JobId(nasty), record.job, record.events)], *arguments)

    assert result.exit_code == 1
    assert "evil" in result.stdout
    assert all(char.isprintable() for char in result.stdout.replace("\n", ""))
    if arguments:
        [violation] = json.loads(result.stdout)["invariants"][2]["first"]
        assert violation["job_id"] == nasty


def test_the_table_has_no_colour_where_there_is_no_terminal(run: Run) -> None:
    result = run([broken(World(1).run(60).records()[0])])

    assert "\x1b" not in result.stdout


def test_only_the_first_violations_are_shown(run: Run) -> None:
    world = World(0)
    for _ in range(5):
        world.enqueue()

    result = run([broken(record) for record in world.records()], "--limit", "2")

    [_, after] = result.stdout.split("I3 ")
    assert after.split("I4 ")[0].count("job ") == 2
    assert "… and 3 more" in after.split("I4 ")[0]


@spec("X2")
def test_a_sqlite_store_is_verified_by_its_url(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    SqliteStore("tenure.db").close()

    by_default = CliRunner().invoke(main, ["verify"], env={"TENURE_URL": ""})
    by_name = CliRunner().invoke(main, ["verify", "--url", "sqlite:///tenure.db"])

    assert by_default.exit_code == 0
    assert by_default.stdout == by_name.stdout
    assert "0 jobs, 0 events" in by_default.stdout


@spec("X2", "I12")
def test_a_row_that_was_edited_by_hand_is_noticed(tmp_path: Path) -> None:
    path = tmp_path / "tenure.db"
    store = SqliteStore(path)
    world = World(0)
    job_id = world.enqueue()
    change = Change(job=world.rows[job_id], expected_rev=0, events=tuple(world.logs[job_id]))
    store.jobs.save([change], epoch=world.epoch)
    store.close()

    before = CliRunner().invoke(main, ["verify", "--url", f"sqlite:///{path}"])
    with closing(sqlite3.connect(path)) as database:
        for (trigger,) in database.execute(
            "SELECT name FROM sqlite_master WHERE type = 'trigger'"
        ).fetchall():
            database.execute(f"DROP TRIGGER {trigger}")
        database.execute("UPDATE tenure_job SET priority = priority + 1")
        database.commit()
    after = CliRunner().invoke(main, ["verify", "--url", f"sqlite:///{path}"])

    assert before.exit_code == 0
    assert after.exit_code == 1
    assert f"job {job_id} seq 1: the fold differs from the row in priority" in after.stdout


@spec("X2", "I24")
@pytest.mark.parametrize(
    ("change", "named"),
    [
        ("UPDATE tenure_job SET status = 'lost'", "status is 'lost'"),
        ("UPDATE tenure_job SET policy = '{}x'", "policy is not the document it should be"),
        ("UPDATE tenure_job_event SET type = 'vanished'", "an event's type is 'vanished'"),
    ],
)
def test_an_unreadable_row_is_named(tmp_path: Path, change: str, named: str) -> None:
    path = tmp_path / "tenure.db"
    enqueued = CliRunner().invoke(main, ["enqueue", "work", "--url", f"sqlite:///{path}"])
    with closing(sqlite3.connect(path)) as database:
        for (trigger,) in database.execute(
            "SELECT name FROM sqlite_master WHERE type = 'trigger'"
        ).fetchall():
            database.execute(f"DROP TRIGGER {trigger}")
        database.execute("PRAGMA ignore_check_constraints = ON")
        database.execute(change)
        database.commit()

    result = CliRunner().invoke(main, ["verify", "--url", f"sqlite:///{path}"])

    job_id = enqueued.stdout.strip()
    assert result.exit_code == 1
    assert f"job {job_id} seq 1: {named}" in result.stdout
    assert "1 violated" in result.stdout


def test_a_store_is_closed_after_verifying(monkeypatch: pytest.MonkeyPatch) -> None:
    store = MemoryStore()
    monkeypatch.setattr(command, "open_store", lambda _, **__: store)

    CliRunner().invoke(main, ["verify", "--url", "memory://"])

    assert store.database.closed


@spec("X4")
def test_one_job_is_checked_by_itself(tmp_path: Path) -> None:
    url = f"sqlite:///{tmp_path / 'tenure.db'}"
    sound, broken = (
        CliRunner().invoke(main, ["enqueue", "work", "--url", url]).stdout.strip() for _ in range(2)
    )
    with closing(sqlite3.connect(tmp_path / "tenure.db")) as database:
        database.execute(
            "UPDATE tenure_job SET priority = 9, rev = rev + 1 WHERE id = ?", (broken,)
        )
        database.commit()

    well = CliRunner().invoke(main, ["verify", "--url", url, "--job", sound])
    ill = CliRunner().invoke(main, ["verify", "--url", url, "--job", broken])
    unknown = CliRunner().invoke(main, ["verify", "--url", url, "--job", sound[:-4] + "0000"])

    assert well.exit_code == 0
    assert "1 job, 1 event:" in well.stdout
    assert "is about several jobs: verify the whole store" in well.stdout
    assert ill.exit_code == 1
    assert "the fold differs from the row in priority" in ill.stdout
    assert unknown.exit_code == 2
