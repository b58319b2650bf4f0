"""The contract as a library: check the rows, the log and the answers of any queue against it.

For queues that are not Tenure: rows and events are plain mappings, and nothing here needs a store
or a coordinator, but for `CoordinatedQueue`. The names below are stable. All of them come from the
core or run its checks; nothing is decided here. For other languages, `transitions.json` and
`responses.json` in this package say the same as data.
"""

from tenure.contract.checks import (
    EVENT_FIELDS,
    LEASE_EVENT_FIELDS,
    LEASE_RULES,
    ORDER_RULES,
    PLAN_OPERATIONS,
    ROW_FIELDS,
    check_log,
    check_row,
    is_lawful,
    row_warnings,
)
from tenure.contract.job_queue import CoordinatedQueue, DistributedJobQueue
from tenure.contract.responses import (
    RESPONSES_JSON,
    TRANSITIONS_JSON,
    Answer,
    response_matrix,
    response_vectors,
)
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
    "Answer",
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
    "is_lawful",
    "response_matrix",
    "response_vectors",
    "row_warnings",
]
