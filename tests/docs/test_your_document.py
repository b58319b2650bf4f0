"""The page that leads from each of the four documents to the rules that carry it."""

import re
from pathlib import Path

from tests.support.evidence import defined_ids

ROOT = Path(__file__).parents[2]
SPEC = ROOT / "docs" / "spec"
TEXT = (SPEC / "your-document.md").read_text(encoding="utf-8")
_RULE = r"\[([A-Z]+[0-9]+[a-z]?)\](?!\()"

SECTIONS = {
    "The invariants": ["1", "2", "3", "4", "5"],
    "The state machine, long text": [
        "Purpose, Scope",
        "States",
        "Allowed Transitions",
        "Invariants",
        "Lease & Heartbeats",
        "Retries & Backoff",
        "Cancellation",
        "DLQ",
        "Events",
        "Concurrency Rules",
        "Observability",
        "Compliance Checklist",
        "Appendix",
    ],
    "The state machine, short text": [
        "Purpose",
        "States",
        "Valid Transitions",
        "Invariants",
        "Leases",
        "Retries / Backoff / DLQ",
        "Observability",
        "Error Classes",
        "Versioning",
    ],
    "The worker contract": [
        "1 Design Principle",
        "2 Worker Lifecycle Overview",
        "3 Coordinator Responses",
        "3.1 COMMITTED",
        "3.2 CANCELLED",
        "3.3 REJECTED",
        "4 After CANCELLED",
        "5 Heartbeat Rules",
        "6.1 What the Worker May Retry",
        "6.2 What the Worker Must Never Retry",
        "6.3 Execution Failures",
        "7 Idempotency Requirements",
        "8 Mental Model Summary",
    ],
    "The lifecycle plan": [
        "Goal, Scope",
        "Out of scope, Integration points",
        "Status meanings",
        "Required invariants per status",
        "Allowed transitions",
        "Concurrency, CAS",
        "Idempotent retries",
        "Attempt and revision",
        "Event semantics",
        "Acceptance criteria",
    ],
}
"""The documents and their sections, as the documents have them."""


def rows(text: str) -> list[list[str]]:
    """The rows of the tables of a text, without their heads."""
    lines = [line.strip("| ").split(" | ") for line in text.splitlines() if line.startswith("| ")]
    return [cells for cells in lines if cells[0] not in ("section", "plan", "the document says")]


def cited(text: str) -> set[str]:
    """The rules that a text cites, those between the ends of "[R10] to [R14]" included."""
    found = set(re.findall(_RULE, text))
    for first, last in re.findall(rf"{_RULE} to {_RULE}", text):
        letters = first.rstrip("0123456789")
        numbers = range(int(first[len(letters) :]), int(last[len(letters) :]) + 1)
        found |= {f"{letters}{number}" for number in numbers}
    return found


def test_every_rule_that_the_page_cites_is_a_sentence_of_the_specification() -> None:
    defined = {
        each
        for page in sorted(SPEC.glob("*.md"))
        for each in defined_ids(page.read_text(encoding="utf-8"))
    }

    assert len(cited(TEXT)) > 100
    assert cited(TEXT) - defined == set()


def test_every_rule_that_the_page_cites_has_evidence() -> None:
    folders = (ROOT / "tests", ROOT / "packages" / "tenure-conformance")
    evidence = {
        each
        for folder in folders
        for path in sorted(folder.rglob("test_*.py"))
        for marks in re.findall(r"\bspec\(([^)]*)\)", path.read_text(encoding="utf-8"))
        for each in re.findall(r'"([^"]+)"', marks)
    }

    assert cited(TEXT) - evidence == set()


def test_every_section_of_the_four_documents_has_a_row_with_a_rule() -> None:
    for document, sections in SECTIONS.items():
        part = TEXT.split(f"\n## {document}\n", 1)[1].split("\n## ", 1)[0]
        found = rows(part)
        for cells in found:
            assert len(cells) >= 2, cells
            assert cited(" ".join(cells[1:])), cells
        missing = [
            section for section in sections if not any(_is_of(cells[0], section) for cells in found)
        ]

        assert not missing, document


def _is_of(place: str, section: str) -> bool:
    return place == section or place.startswith((f"{section}:", f"{section},"))


def test_every_reading_names_its_document_and_its_rules() -> None:
    readings = rows(TEXT.split("\n## Readings\n", 1)[1].split("\n## ", 1)[0])

    assert len(readings) >= 10
    for said, reading, rules in readings:
        document = said.partition(":")[0]
        assert any(name.lower().startswith(document) for name in SECTIONS), said
        assert reading
        assert cited(rules), said


def test_each_plan_that_the_lifecycle_borders_on_has_its_rules() -> None:
    part = TEXT.split("\n### Its boundaries with the other plans\n", 1)[1]
    plans = [each for each in part.split("\n\n") if each.strip()]

    assert [each.strip()[:9] for each in plans] == ["**Plan 01", "**Plan 03", "**Plan 04"]
    assert all(cited(plan) for plan in plans)


def test_the_index_leads_to_the_page() -> None:
    assert "(your-document.md)" in (SPEC / "index.md").read_text(encoding="utf-8")
