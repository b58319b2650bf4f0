"""The response matrices as data: what a worker hears, by situation, operation and column.

Read from `responses.json`, which is generated from the core. A cell does not say why an answer is
right: docs/spec/responses.md does.
"""

from collections.abc import Mapping
from functools import cache
from pathlib import Path
from types import MappingProxyType
from typing import Any

import msgspec

from tenure.core.vocabulary import Cause, Disposition, VerdictKind

TRANSITIONS_JSON = Path(__file__).parent / "transitions.json"
"""Statuses, the row table, the transition table and its edges, for other languages."""

RESPONSES_JSON = Path(__file__).parent / "responses.json"
"""The response matrices, and how each situation comes about, for other languages."""


class Answer(msgspec.Struct, frozen=True):
    """One answer that a worker may hear: `cause` where it is refused, `disposition` where its
    report was accepted."""

    verdict: VerdictKind
    cause: Cause | None = None
    disposition: Disposition | None = None


class _Cell(msgspec.Struct, frozen=True):
    row: str
    operation: str
    column: str
    answers: frozenset[Answer]


class _Matrix(msgspec.Struct, frozen=True):
    matrix: list[_Cell]


@cache
def response_matrix() -> Mapping[tuple[str, str, str], frozenset[Answer]]:
    """The answers that each cell of the response matrices allows, by row (`R10`), operation
    (`complete`) and column (`new id`). [R1]"""
    found = msgspec.json.decode(RESPONSES_JSON.read_bytes(), type=_Matrix)
    return MappingProxyType(
        {(cell.row, cell.operation, cell.column): cell.answers for cell in found.matrix}
    )


def response_vectors() -> list[dict[str, Any]]:
    """Every situation of the matrices: the steps that lead to it, and what is sent and answered
    in each cell. The reference page of the contract describes the fields."""
    found: list[dict[str, Any]] = msgspec.json.decode(RESPONSES_JSON.read_bytes())["situations"]
    return found
