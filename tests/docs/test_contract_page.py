"""The reference page of the contract: its examples run, in Python and in JavaScript."""

import json
import os
import re
import subprocess
from pathlib import Path

import pytest

from tenure import contract
from tests.docs.test_examples import run_page

PAGE = Path(__file__).parents[2] / "docs" / "reference" / "contract.md"
TEXT = PAGE.read_text(encoding="utf-8")


def test_the_python_examples_run() -> None:
    run_page(TEXT, str(PAGE))


def event(seq: int, type_: str, source: str | None, target: str) -> dict[str, object]:
    return {"seq": seq, "type": type_, "from_status": source, "to_status": target}


LAWFUL = [
    event(1, "enqueued", None, "queued"),
    event(2, "claimed", "queued", "claimed"),
    event(3, "started", "claimed", "running"),
]
GOES_BACK = [*LAWFUL, event(5, "requeued", "running", "queued")]


@pytest.mark.process
def test_the_javascript_example_finds_what_the_table_does_not_have() -> None:
    [code] = re.findall(r"^```js\n(.*?)^```$", TEXT, re.MULTILINE | re.DOTALL)
    logs = json.dumps([LAWFUL, GOES_BACK])
    asked = f"console.log(JSON.stringify({logs}.map(problems)))"

    done = subprocess.run(
        ["node", "-e", code + asked],
        env={**os.environ, "TRANSITIONS_JSON": str(contract.TRANSITIONS_JSON)},
        capture_output=True,
        text=True,
        timeout=60,
        check=True,
    )

    assert json.loads(done.stdout) == [
        [],
        ["seq 5 is not 4", "not in the table: running requeued queued"],
    ]


def test_the_page_has_the_rules_and_fields_of_the_code() -> None:
    for name in (*contract.ROW_FIELDS, *contract.LEASE_EVENT_FIELDS):
        assert re.search(rf"[`\"]{name}[`\"]", TEXT), name
    order, lease = re.findall(r"^\| `(?:ORDER|LEASE)_RULES`: (.*?) \|", TEXT, re.MULTILINE)
    assert rules(order) == set(contract.ORDER_RULES)
    assert rules(lease) == set(contract.LEASE_RULES)


def rules(text: str) -> set[str]:
    """The rules of a list such as "I1 to I3, P2"."""
    found: set[str] = set()
    for part in text.split(", "):
        first, _, last = part.partition(" to ")
        numbers = range(int(first[1:]), int((last or first)[1:]) + 1)
        found |= {f"{first[0]}{number}" for number in numbers}
    return found
