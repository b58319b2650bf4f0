"""The contract as a library: what each function accepts, finds and refuses."""

import json
import re
from pathlib import Path

import msgspec
import pytest

from tenure import contract
from tenure.core.evolution import fold
from tenure.errors import InvalidInput
from tenure_conformance.golden import GoldenLog, golden_logs
from tenure_conformance.spec import spec
from tests.support.cases import each_case
from tests.support.evidence import defined_ids

SPEC = Path(__file__).parents[2] / "docs" / "spec"
ROW: dict[str, object] = {
    "id": "job-1",
    "status": "queued",
    "attempt": 0,
    "rev": 1,
    "owner": None,
    "lease_id": None,
    "lease_expires_at": None,
    "result": None,
    "error": None,
}
LEASED: dict[str, object] = ROW | {
    "status": "claimed",
    "attempt": 1,
    "rev": 2,
    "owner": "w1",
    "lease_id": "lease-1",
    "lease_expires_at": 30,
}
ENQUEUED: dict[str, object] = {
    "seq": 1,
    "type": "enqueued",
    "from_status": None,
    "to_status": "queued",
    "attempt": 0,
}
CLAIMED: dict[str, object] = {
    "seq": 2,
    "type": "claimed",
    "from_status": "queued",
    "to_status": "claimed",
    "attempt": 1,
}
UNDER_A_LEASE: dict[str, object] = {
    "ts": 0,
    "actor": "worker:w1",
    "request_id": "r",
    "owner": "w1",
    "lease_id": "lease-1",
    "lease_expires_at": 30,
}

# --- The table -----------------------------------------------------------------------------------


@spec("N1", "I4")
def test_an_edge_is_lawful_if_the_table_has_it() -> None:
    assert contract.is_allowed(None, "enqueued", "queued")
    assert contract.is_allowed("stalled", "requeued", "queued")
    assert not contract.is_allowed("running", "requeued", "queued")
    assert not contract.is_allowed("failed", "succeeded", "succeeded")
    assert not contract.is_allowed("stalled", "failed", "failed")


@spec("S12", "E30")
def test_the_documents_own_words_are_understood_in_any_case() -> None:
    assert contract.is_allowed("queued", "job_claimed", "assigned")
    assert contract.is_allowed("QUEUED", "claimNext", "CLAIMED")
    assert contract.is_allowed("running", "JOB_SUCCEEDED", "COMPLETED")
    assert contract.is_allowed("RUNNING", "stall", "stalled")
    assert contract.is_allowed("stalled", "requeueStalled", "queued")
    assert not contract.is_allowed("running", "requeueStalled", "queued")


def test_a_word_that_no_list_has_is_an_error_and_not_an_unlawful_edge() -> None:
    for words in (("queued", "picked", "claimed"), ("done", "claimed", "claimed"), (None, "x", "")):
        with pytest.raises(InvalidInput):
            contract.is_allowed(*words)


def test_a_finished_row_that_keeps_its_owner_is_warned_of_and_not_refused() -> None:
    ended = LEASED | {"status": "COMPLETED", "result": "1", "rev": 4}
    kept = [
        f"{name} is present while succeeded" for name in ("lease_expires_at", "lease_id", "owner")
    ]

    assert contract.check_row(ended) == []
    assert sorted(contract.row_warnings(ended)) == kept
    assert contract.row_warnings(LEASED) == []


@spec("E30")
def test_a_log_in_the_documents_words_is_read() -> None:
    lease = {name: value for name, value in UNDER_A_LEASE.items() if name != "ts"} | {"at": 1}
    nothing = dict.fromkeys(UNDER_A_LEASE) | {"at": 0, "actor": "client:c", "request_id": "e"}
    del nothing["ts"]
    log = [ENQUEUED | nothing | {"to_status": "QUEUED"}]
    log += [CLAIMED | lease | {"type": "job_claimed", "to_status": "assigned"}]

    assert contract.check_log(LEASED | {"status": "ASSIGNED"}, log) == []


def test_the_names_of_the_library_are_those_that_it_says_it_has() -> None:
    assert contract.__all__ == sorted(contract.__all__, key=_as_ruff_sorts)
    assert all(hasattr(contract, name) for name in contract.__all__)


def _as_ruff_sorts(name: str) -> tuple[int, str]:
    return (0 if name.isupper() else 1 if name[0].isupper() else 2), name


# --- Rows ----------------------------------------------------------------------------------------


@spec("I8", "S1", "S2")
@each_case(
    ("change", "complaint"),
    [
        ({}, []),
        ({"owner": "w1"}, ["owner is present while queued"]),
        ({"lease_id": "x"}, ["lease_id is present while queued"]),
        ({"result": "1"}, ["result is present while queued"]),
        ({"run_at": None}, ["run_at is absent while queued"]),
        ({"run_at": 5}, []),
        ({"finished_at": 5}, ["finished_at is present while queued"]),
        ({"status": "claimed"}, [f"{name} is absent while claimed" for name in
                                 ("lease_id", "owner", "lease_expires_at")]),
        ({"status": "succeeded", "result": "null"}, []),
        ({"status": "COMPLETED"}, ["result is absent while succeeded"]),
        ({"rev": 0}, ["counters: attempt 0, rev 0, failures 0"]),
        ({"failures": 1}, ["counters: attempt 0, rev 1, failures 1"]),
        ({"colour": "red"}, []),
    ],
)  # fmt: skip
def test_a_row_is_checked_in_the_fields_that_it_has(
    change: dict[str, object], complaint: list[str]
) -> None:
    assert contract.check_row(ROW | change) == complaint


def test_a_status_that_no_list_has_is_reported_with_the_words_that_are_expected() -> None:
    [complaint] = contract.check_row(ROW | {"status": "done"})

    assert complaint.startswith("status is 'done', one of waiting, queued, claimed")


@pytest.mark.parametrize("name", contract.ROW_FIELDS)
def test_a_row_without_a_field_of_the_contract_is_refused_not_passed(name: str) -> None:
    row = {each: value for each, value in ROW.items() if each != name}

    for check in (contract.check_row, lambda row: contract.check_log(row, [ENQUEUED])):
        with pytest.raises(InvalidInput) as refused:
            check(row)

        assert refused.value.field == name


def test_a_counter_that_is_no_integer_is_refused() -> None:
    with pytest.raises(InvalidInput, match="'1' is not an integer"):
        contract.check_row(ROW | {"rev": "1"})


# --- Logs ----------------------------------------------------------------------------------------


def rules_broken(row: dict[str, object], *events: dict[str, object]) -> set[str]:
    return {each.invariant for each in contract.check_log(row, events, contract.ORDER_RULES)}


@spec("I1", "I2", "I3", "I4", "I7")
def test_the_order_of_a_log_is_checked_without_anything_about_leases() -> None:
    assert rules_broken(ROW, ENQUEUED) == set()
    assert rules_broken(LEASED, ENQUEUED, CLAIMED) == set()
    assert "I1" in rules_broken(LEASED, ENQUEUED, CLAIMED | {"seq": 3})
    assert "I2" in rules_broken(LEASED, CLAIMED)
    assert "I3" in rules_broken(ROW, ENQUEUED, CLAIMED)
    assert "I4" in rules_broken(LEASED, ENQUEUED, CLAIMED | {"type": "started"})
    assert "I7" in rules_broken(LEASED, ENQUEUED, CLAIMED | {"attempt": 2})


@spec("I9", "I10", "P1", "P3")
def test_the_rules_about_leases_need_events_that_name_their_lease() -> None:
    without_lease = dict.fromkeys(UNDER_A_LEASE)
    log = [ENQUEUED | without_lease | {"ts": 0, "actor": "client:c", "request_id": "e"}]
    log += [CLAIMED | UNDER_A_LEASE]

    assert contract.check_log(LEASED, log) == []
    assert {each.invariant for each in contract.check_log(LEASED | {"lease_id": "2"}, log)} == {
        "I9"
    }
    with pytest.raises(InvalidInput, match="event number 1 does not have it") as refused:
        contract.check_log(LEASED, [ENQUEUED, CLAIMED])
    assert refused.value.field == "ts"


def test_a_violation_names_the_rule_the_job_and_the_first_offending_seq() -> None:
    [found] = contract.check_log(ROW | {"rev": 2}, [ENQUEUED], ["I1"])

    assert (found.invariant, found.job_id, found.seq) == ("I1", "job-1", 2)
    assert found.message == "the row's rev is 2, the log ends at 1"


@spec("I24")
@pytest.mark.parametrize(
    "change",
    [
        {"type": "picked"},
        {"to_status": "taken"},
        {"attempt": "one"},
        {"type": None},
        {"type": "\ud800"},
    ],
)
def test_a_word_that_no_list_has_is_reported_alone(change: dict[str, object]) -> None:
    found = contract.check_log(LEASED, [ENQUEUED, CLAIMED | change], contract.ORDER_RULES)

    assert [(each.invariant, each.seq) for each in found] == [("I24", 2)]


@spec("I24")
def test_a_row_with_an_unknown_status_is_reported_alone() -> None:
    assert rules_broken(ROW | {"status": "done"}, ENQUEUED) == {"I24"}


@spec("I24")
@pytest.mark.parametrize("change", [{"lease_id": 7}, {"owner": b"host"}, {"lease_id": []}])
def test_a_lease_of_a_row_that_is_not_text_is_reported(change: dict[str, object]) -> None:
    assert rules_broken(LEASED | change, ENQUEUED, CLAIMED) == set(), "the order needs no leases"

    found = contract.check_log(LEASED | change, [], contract.LEASE_RULES)

    assert {each.invariant for each in found} == {"I24"}


@spec("S12")
def test_the_other_documents_words_for_statuses_are_read() -> None:
    row = LEASED | {"status": "assigned"}

    assert rules_broken(row, ENQUEUED, CLAIMED | {"to_status": "assigned"}) == set()
    assert contract.is_allowed("running", "stalled", "orphaned")  # [L19]


def test_fields_that_are_the_other_queues_own_are_not_read() -> None:
    own = {"ts": "2026-01-01T00:00:00Z", "version": "v1", "cause": "because", "payload": "text"}

    assert rules_broken(LEASED, ENQUEUED | own, CLAIMED | own) == set()


@spec("I1", "G1")
def test_a_log_that_dropped_its_heartbeats_says_how_many_there_were() -> None:
    stalled = {"type": "stalled", "from_status": "claimed", "to_status": "stalled", "attempt": 1}
    row = ROW | {"status": "stalled", "attempt": 1, "rev": 5}
    end = stalled | {"seq": 5}

    assert rules_broken(row, ENQUEUED, CLAIMED, end | {"payload": {"renewals": 2}}) == set()
    assert rules_broken(row, ENQUEUED, CLAIMED, end) == {"I1"}


def test_a_rule_that_cannot_be_checked_here_is_refused_not_passed() -> None:
    with pytest.raises(InvalidInput, match="I12 is neither in ORDER_RULES nor in LEASE_RULES"):
        contract.check_log(ROW, [ENQUEUED], ["I12"])


GOLDEN = [each for each in golden_logs() if fold(each.read_events()) is not None]


@spec("I1", "I10", "P1", "P2", "P3")
@each_case("golden", GOLDEN)
def test_the_logs_that_tenure_itself_wrote_are_lawful_as_mappings(golden: GoldenLog) -> None:
    job = fold(golden.read_events())
    assert job is not None
    row = msgspec.structs.asdict(job)
    nothing = dict.fromkeys(contract.LEASE_EVENT_FIELDS)

    assert contract.check_row(row) == []
    assert contract.check_log(row, [nothing | event for event in golden.events]) == []


# --- Data for other languages --------------------------------------------------------------------


@spec("N1")
def test_transitions_json_has_the_whole_table_and_cites_rules_of_the_spec() -> None:
    found = json.loads(contract.TRANSITIONS_JSON.read_text(encoding="utf-8"))
    defined = {
        each for page in SPEC.glob("*.md") for each in defined_ids(page.read_text(encoding="utf-8"))
    }

    assert {(each["from"], each["event"], each["to"]) for each in found["edges"]} == set(
        contract.EDGES
    )
    assert {each["status"] for each in found["rows"]} == set(contract.JobStatus)
    assert [each["id"] for each in found["transitions"]] == [row.id for row in contract.TABLE]
    assert {each["id"] for name in ("rows", "transitions") for each in found[name]} <= defined
    assert [each["id"] for each in found["transitions"] if each["raises_attempt"]] == ["T2", "T22"]


@spec("R1")
def test_the_matrix_has_the_answers_of_all_its_vectors_and_no_others() -> None:
    matrix = contract.response_matrix()
    seen = set()
    for situation in contract.response_vectors():
        for cell in situation["cells"]:
            is_live = cell["operation"] in ("heartbeat", "start")
            row = situation["heartbeat_start" if is_live else "complete_fail_release"]
            said = cell["sent"][-1]["answer"]
            answer = msgspec.convert(said | {"verdict": said["kind"]}, contract.AllowedAnswer)
            key = (row, cell["operation"], cell["column"])
            assert answer in matrix[key]
            seen.add((key, answer))

    assert seen == {(key, answer) for key, answers in matrix.items() for answer in answers}
    rows = {row for row, _, _ in matrix}
    page = (SPEC / "responses.md").read_text(encoding="utf-8")
    in_tables = set(re.findall(r"^\| \*\*\[(R[0-9]+)\]", page, re.MULTILINE))
    assert rows == in_tables | {"R2"}
