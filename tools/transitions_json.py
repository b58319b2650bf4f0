"""Prints tenure/contract/transitions.json: the row table and the transition table as data.

Run as `python -m tools.transitions_json`. It is for readers in other languages;
docs/reference/contract.md describes its fields.
"""

import json
import sys

from tenure.core.events import EVENT_VERSION
from tenure.core.job import ROW_TABLE
from tenure.core.transitions import EDGES, ENDED, LIVE, TABLE, Transition
from tenure.core.vocabulary import RENEWALS, STATUS_ALIASES, EventType
from tools.transition_diagram import rule_order

Json = dict[str, object]


def contract() -> Json:
    """The whole file."""
    return {
        "about": "The lifecycle of a job. Ids are those of docs/spec. Generated.",
        "version": EVENT_VERSION,
        "live": list(LIVE),
        "terminal": list(ENDED),
        "aliases": dict(STATUS_ALIASES),
        "events": [each for each in EventType if each not in RENEWALS],
        "renewals": [each for each in EventType if each in RENEWALS],
        "rows": [
            {"id": rule.id, "status": status, "present": rule.present, "absent": rule.absent}
            for status, rule in ROW_TABLE.items()
        ],
        "transitions": [_transition(row) for row in TABLE],
        "edges": [
            {"from": source, "event": event, "to": target, "ids": sorted(ids, key=rule_order)}
            for (source, event, target), ids in EDGES.items()
        ],
    }


def _transition(row: Transition) -> Json:
    return {
        "id": row.id,
        "from": row.sources,
        "operation": row.operation,
        "guard": row.guard,
        "paths": [[{"event": event, "to": there} for event, there in path] for path in row.paths],
        "actors": row.actors,
        "raises_attempt": row.grants,
    }


def render(found: Json) -> str:
    """The file's text: one line per row of a table, so that a change is a readable diff."""
    members = [f"{json.dumps(name)}: {_value(value)}" for name, value in found.items()]
    return "{" + ",\n".join(members) + "}\n"


def _value(value: object) -> str:
    if isinstance(value, list) and value and isinstance(value[0], dict):
        return "[\n" + ",\n".join(f"  {json.dumps(row)}" for row in value) + "]"
    return json.dumps(value)


def main() -> None:
    """Write the file to standard output."""
    sys.stdout.write(render(contract()))


if __name__ == "__main__":
    main()
