"""Tenure: a durable job queue and orchestrator whose history you can check.

This module holds the public names and nothing else. Errors and the context are there at once;
what needs a store is loaded when it is first named, so that `import tenure` stays cheap.
"""

from typing import TYPE_CHECKING, Any

from tenure.errors import (
    Cancelled,
    Closed,
    Conflict,
    Contended,
    DeadLetter,
    InvalidInput,
    JobCancelled,
    JobDeadLettered,
    JobFailed,
    LeaseConflictError,
    NoResult,
    OutcomeUnknown,
    PermanentError,
    SchemaDiffers,
    SchemaTooNew,
    SchemaTooOld,
    Snooze,
    StoreError,
    StoreUnavailable,
    TenureError,
    TransientError,
    UnknownJob,
    UnknownStoreUrl,
    ValidationError,
    WaitTimeout,
)

if TYPE_CHECKING:
    from tenure.app import Tenure
    from tenure.client.flows import Flow
    from tenure.client.functions import Enqueueable, JobFunction
    from tenure.client.jobs import Job
    from tenure.client.records import JobRecord
    from tenure.core.vocabulary import JobStatus
    from tenure.handlers.calls import Call, Enqueued
    from tenure.handlers.context import Context
    from tenure.handlers.flows import FlowJob, HandlerFlow
    from tenure.handlers.hooks import Attempt
    from tenure.handlers.options import Retry

_LAZY = {
    "Attempt": "tenure.handlers.hooks",
    "Call": "tenure.handlers.calls",
    "Context": "tenure.handlers.context",
    "Enqueueable": "tenure.client.functions",
    "Enqueued": "tenure.handlers.calls",
    "Flow": "tenure.client.flows",
    "FlowJob": "tenure.handlers.flows",
    "HandlerFlow": "tenure.handlers.flows",
    "Job": "tenure.client.jobs",
    "JobFunction": "tenure.client.functions",
    "JobRecord": "tenure.client.records",
    "JobStatus": "tenure.core.vocabulary",
    "Retry": "tenure.handlers.options",
    "Tenure": "tenure.app",
}

__all__ = [
    "Attempt",
    "Call",
    "Cancelled",
    "Closed",
    "Conflict",
    "Contended",
    "Context",
    "DeadLetter",
    "Enqueueable",
    "Enqueued",
    "Flow",
    "FlowJob",
    "HandlerFlow",
    "InvalidInput",
    "Job",
    "JobCancelled",
    "JobDeadLettered",
    "JobFailed",
    "JobFunction",
    "JobRecord",
    "JobStatus",
    "LeaseConflictError",
    "NoResult",
    "OutcomeUnknown",
    "PermanentError",
    "Retry",
    "SchemaDiffers",
    "SchemaTooNew",
    "SchemaTooOld",
    "Snooze",
    "StoreError",
    "StoreUnavailable",
    "Tenure",
    "TenureError",
    "TransientError",
    "UnknownJob",
    "UnknownStoreUrl",
    "ValidationError",
    "WaitTimeout",
]


if not TYPE_CHECKING:  # a type checker that saw this would believe in every misspelt name

    def __getattr__(name: str) -> Any:
        if name not in _LAZY:
            raise AttributeError(f"module 'tenure' has no attribute {name!r}")
        from importlib import import_module

        value = getattr(import_module(_LAZY[name]), name)
        globals()[name] = value
        return value


def __dir__() -> list[str]:
    return __all__
