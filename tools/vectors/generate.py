"""Prints `responses.json`: every cell of the response matrices, as the core answers it now.

Run as `python -m tools.vectors.generate`. `matrix` has each cell once, with the answers of all
situations of its row. Per situation the file has the steps that lead to it (commands with their
instant, epoch and random bytes, or the deletion of renewals or of the whole job), the instant and
epoch of what follows, and per cell the requests with their answers; what all requests of a
situation share stands in `common`. Bodies are JSON text in strings, durations and instants are
microseconds, null members and false flags are left out.
"""

import json
import re
import sys
from collections.abc import Iterator
from enum import Enum
from typing import Any, cast

import msgspec

from tenure.core.commands import Command
from tenure.core.events import EVENT_VERSION
from tenure.core.outcomes import Applied, Moment, Outcome, Refused, Replayed
from tenure.core.verdicts import Verdict
from tools.driver import Prune, Purge, Step
from tools.vectors.exchanges import Exchange, exchanges
from tools.vectors.situations import SITUATIONS, Situation

Json = dict[str, object]


def plain(value: object) -> object:
    """A value as JSON can say it: structs by field name, bodies as text, absent fields absent."""
    match value:
        case msgspec.Struct():
            members = {name: getattr(value, name) for name in value.__struct_fields__}
            return {name: plain(each) for name, each in members.items() if each is not None}
        case bytes():
            return value.decode()
        case Enum():
            return value.value
        case tuple():
            return [plain(each) for each in value]
        case _:
            return value


def _members(value: msgspec.Struct) -> Json:
    found = plain(value)
    assert isinstance(found, dict)
    return {name: each for name, each in found.items() if each is not False}


def operation(command: Command) -> str:
    """A command's name on the wire: `dead_letter` for DeadLetter."""
    return re.sub(r"(?<!^)(?=[A-Z])", "_", type(command).__name__).lower()


def request(command: Command) -> Json:
    """A command with its name and every field that has a value."""
    return {"operation": operation(command)} | _members(command)


def _moment(at: Moment) -> Json:
    return {"now_us": at.now, "epoch": at.epoch, "entropy": at.entropy.hex()}


def _step(step: Step | Prune | Purge) -> Json:
    if isinstance(step, Step):
        return _moment(step.at) | {"request": request(step.command)}
    return {"deletion": "renewals" if isinstance(step, Prune) else "job"}


def _answer(outcome: Outcome) -> Json:
    assert isinstance(outcome, Applied | Replayed | Refused)
    assert isinstance(outcome.answer, Verdict)
    found = _members(outcome.answer)
    if isinstance(outcome, Applied):
        found["applied"] = outcome.rule
    if isinstance(outcome, Refused) and outcome.observation is not None:
        found["observed"] = outcome.observation.type.value
    return found


COMMON = ("job_id", "lease_id", "actor")


def _cell(situation: Situation, exchange: Exchange) -> Json:
    driver = situation.build()
    sent: list[Json] = []
    for each in exchange.requests:
        asked = {name: value for name, value in request(each).items() if name not in COMMON}
        sent.append({"request": asked, "answer": _answer(driver.do(each))})
    return {"operation": exchange.operation, "column": exchange.column, "sent": sent}


def _situation(situation: Situation) -> Json:
    driver = situation.build()
    cells = list(exchanges(situation, driver))
    asked = request(cells[0].requests[0])
    return {
        "situation": situation.name,
        "complete_fail_release": situation.settle_row,
        "heartbeat_start": situation.live_row,
        "at": _moment(driver.at()),
        "common": {name: asked[name] for name in COMMON},
        "steps": [_step(step) for step in driver.script],
        "cells": [_cell(situation, exchange) for exchange in cells],
    }


def vectors() -> Json:
    """The whole file."""
    situations = [_situation(situation) for situation in SITUATIONS]
    return {
        "about": "What a worker hears. Rows are ids of docs/spec/responses.md. Generated.",
        "version": EVENT_VERSION,
        "matrix": _matrix(situations),
        "situations": situations,
    }


def _matrix(situations: list[Json]) -> list[Json]:
    """Every cell once, with the answers that the situations of its row get."""
    found: dict[tuple[str, str, str], set[str]] = {}
    for situation in situations:
        for cell in cast(list[Any], situation["cells"]):
            is_live = cell["operation"] in ("heartbeat", "start")
            row = situation["heartbeat_start" if is_live else "complete_fail_release"]
            heard = cell["sent"][-1]["answer"]
            answer = {"verdict": heard["kind"]}
            answer |= {name: heard[name] for name in ("cause", "disposition") if name in heard}
            key = (str(row), cell["operation"], cell["column"])
            found.setdefault(key, set()).add(_line(answer))
    return [
        {"row": row, "operation": operation, "column": column, "answers": _answers(answers)}
        for (row, operation, column), answers in sorted(found.items(), key=_cell_order)
    ]


def _answers(lines: set[str]) -> list[object]:
    return [json.loads(line) for line in sorted(lines)]


def _cell_order(item: tuple[tuple[str, str, str], object]) -> tuple[int, str, str]:
    (row, operation_, column), _ = item
    return int(row[1:]), operation_, column


def render(found: Json) -> str:
    """The file's text: one line per step and per cell, so that a change is a readable diff."""
    return "".join(_lines(found))


def _lines(found: Json) -> Iterator[str]:
    situations = found["situations"]
    assert isinstance(situations, list)
    yield f'{{"about": {json.dumps(found["about"])},\n"version": {found["version"]},\n'
    matrix = found["matrix"]
    assert isinstance(matrix, list)
    yield '"matrix": [\n' + ",\n".join(map(_line, matrix)) + "],\n"
    yield '"situations": [\n'
    for number, situation in enumerate(situations):
        head = {key: value for key, value in situation.items() if not isinstance(value, list)}
        yield _line(head)[:-1] + ",\n"
        for name, end in (("steps", ",\n"), ("cells", "}")):
            rows = ",\n".join("  " + _line(each) for each in situation[name])
            yield f' "{name}": [\n{rows}]{end}' if rows else f' "{name}": []{end}'
        yield ",\n" if number + 1 < len(situations) else "\n"
    yield "]}\n"


def _line(value: object) -> str:
    return json.dumps(value, separators=(",", ":"))


def main() -> None:
    """Write the file to standard output."""
    sys.stdout.write(render(vectors()))


if __name__ == "__main__":
    main()
