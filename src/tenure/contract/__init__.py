"""The contract as a library: check the rows, the log and the answers of any queue against it.

For queues that are not Tenure: rows and events are plain mappings, and nothing here needs a store
or a coordinator, but for `CoordinatedQueue`. The names below are stable. All of them come from the
core or run its checks; nothing is decided here. For other languages, `transitions.json` and
`responses.json` in this package have the same as data.
"""

from collections.abc import Mapping
from functools import cache
from pathlib import Path
from types import MappingProxyType
from typing import Any

import msgspec

from tenure.contract.checks import (
    EVENT_FIELDS,
    LEASE_EVENT_FIELDS,
    LEASE_RULES,
    ORDER_RULES,
    PLAN_OPERATIONS,
    ROW_FIELDS,
    check_log,
    check_row,
    is_allowed,
    row_warnings,
)
from tenure.contract.job_queue import CoordinatedQueue, DistributedJobQueue
from tenure.core.job import ROW_TABLE, RowRule
from tenure.core.transitions import EDGES, TABLE, Transition
from tenure.core.vocabulary import Cause, Disposition, EventType, JobStatus, VerdictKind
from tenure.verify import Violation

__all__ = [
    "EDGES",
    "EVENT_FIELDS",
    "LEASE_EVENT_FIELDS",
    "LEASE_RULES",
    "ORDER_RULES",
    "PLAN_OPERATIONS",
    "RESPONSES_JSON",
    "ROW_FIELDS",
    "ROW_TABLE",
    "TABLE",
    "TRANSITIONS_JSON",
    "AllowedAnswer",
    "Cause",
    "CoordinatedQueue",
    "Disposition",
    "DistributedJobQueue",
    "EventType",
    "JobStatus",
    "RowRule",
    "Transition",
    "VerdictKind",
    "Violation",
    "check_log",
    "check_row",
    "is_allowed",
    "response_matrix",
    "response_vectors",
    "row_warnings",
]

TRANSITIONS_JSON = Path(__file__).parent / "transitions.json"
"""Statuses, the row table, the transition table and its edges, for other languages."""

RESPONSES_JSON = Path(__file__).parent / "responses.json"
"""The response matrices, and how each situation comes about, for other languages."""


class AllowedAnswer(msgspec.Struct, frozen=True):
    """One answer that a worker may get: `cause` where it is refused, `disposition` where its
    report was accepted."""

    verdict: VerdictKind
    cause: Cause | None = None
    disposition: Disposition | None = None


class _Cell(msgspec.Struct, frozen=True):
    row: str
    operation: str
    column: str
    answers: frozenset[AllowedAnswer]


class _Matrix(msgspec.Struct, frozen=True):
    matrix: list[_Cell]


@cache
def response_matrix() -> Mapping[tuple[str, str, str], frozenset[AllowedAnswer]]:
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
