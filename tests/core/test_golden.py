"""Golden logs of version 1 fold to the rows they folded to when they were written."""

import json
from pathlib import Path

import msgspec
from msgspec.structs import replace

from tenure.core.events import EVENT_VERSION, Event
from tenure.core.evolution import fold
from tenure.core.job import row_violations
from tenure.core.vocabulary import EventType, JobStatus
from tenure_conformance.golden import FOLDER, GoldenLog, golden_logs, row_as_json
from tenure_conformance.spec import spec
from tests.support.cases import each_case
from tools.golden_logs import LIVES, log_of, write_missing

LOGS = list(golden_logs(1))


def name_of(log: GoldenLog) -> str:
    return log.name


@spec("Y1", "I12")
@each_case("log", LOGS)
def test_a_log_of_version_1_folds_to_the_row_it_always_folded_to(log: GoldenLog) -> None:
    events = log.read_events()

    row = fold(events)

    assert row is not None
    assert row_as_json(row) == log.row
    assert row_violations(row) == []
    assert {event.version for event in events} == {1}


@spec("Y2")
@each_case("log", LOGS)
def test_a_reader_ignores_fields_it_does_not_know(log: GoldenLog) -> None:
    events = json.loads(json.dumps(log.events))
    for event in events:
        event["added_in_version_9"] = {"nested": [1, 2]}
        event["payload"]["another"] = "field"
        if error := event["payload"].get("error"):
            error["hint"] = "new"
        if progress := event["payload"].get("progress"):
            progress["unit"] = "pages"
        if policy := event["payload"].get("policy"):
            policy.append("a field appended later")

    row = fold(msgspec.json.decode(json.dumps(events), type=list[Event]))

    assert row is not None
    assert row_as_json(row) == log.row


WORDS = {"type": "split", "cause": "weather", "to_status": "waiting"}


@spec("Y4")
@each_case("log", LOGS)
def test_a_reader_keeps_words_it_does_not_know(log: GoldenLog) -> None:
    last = log.events[-1]
    newer = {**last, "seq": int(str(last["seq"])) + 1, "from_status": last["to_status"], **WORDS}
    newer["payload"] = {"reason_code": "bankruptcy", "error": {"error_class": "overload"}}
    longer = replace(log, events=[*log.events, newer])

    *_, read = longer.read_events()
    row = fold(longer.read_events())

    assert {name: str(getattr(read, name)) for name in WORDS} == WORDS
    assert (read.payload.reason_code, read.event_class) == ("bankruptcy", "transition")
    assert read.payload.error is not None
    assert msgspec.to_builtins(read)["payload"] == newer["payload"]
    assert row is not None
    assert (row.status, row.rev, row.status.is_terminal) == ("waiting", newer["seq"], False)


@spec("Y1")
def test_every_event_states_the_version_it_was_written_in() -> None:
    assert EVENT_VERSION == 1
    assert all(event["version"] == 1 for log in LOGS for event in log.events)


def test_the_golden_logs_show_every_event_type_every_status_and_pruned_renewals() -> None:
    events = [event for log in LOGS for event in log.read_events()]

    assert {event.type for event in events} == set(EventType)
    assert {log.row["status"] for log in LOGS} == set(JobStatus) - {JobStatus.CLAIMED}
    assert any(len(log.events) < int(str(log.row["rev"])) for log in LOGS)
    assert {log.name for log in LOGS} == LIVES.keys()


def test_a_golden_log_is_never_overwritten(tmp_path: Path) -> None:
    kept = tmp_path / "held.json"
    kept.write_text("as it was", encoding="utf-8")

    written = write_missing(tmp_path)
    again = write_missing(tmp_path)

    assert kept.read_text(encoding="utf-8") == "as it was"
    assert kept not in written
    assert len(written) == len(LIVES) - 1
    assert again == []


def stored(name: str) -> GoldenLog:
    return msgspec.json.decode((FOLDER / "v1" / f"{name}.json").read_bytes(), type=GoldenLog)


@each_case("name", sorted(LIVES))
def test_today_s_core_still_writes_what_version_1_wrote(name: str) -> None:
    """While the schema is at version 1, writers have not changed either: if this fails, decide
    whether the new log needs a new version, and never edit the golden file."""
    assert log_of(name) == stored(name)
