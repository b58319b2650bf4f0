"""The `code` of problems that the server itself raises. [H8]

Errors with a class of their own bring their own code, such as `invalid_input`.
"""

from enum import StrEnum


class ProblemCode(StrEnum):
    """Why a request was refused before the coordinator was asked."""

    BUSY = "busy"
    HEAD_TOO_LARGE = "head_too_large"
    INTERNAL_ERROR = "internal_error"
    MALFORMED = "malformed"
    METHOD_NOT_ALLOWED = "method_not_allowed"
    NOT_READY = "not_ready"
    OUT_OF_SCOPE = "out_of_scope"
    SHUTTING_DOWN = "shutting_down"
    TOO_LARGE = "too_large"
    TOO_MANY_CONNECTIONS = "too_many_connections"
    TOO_MANY_KINDS = "too_many_kinds"
    TOO_MANY_LEASES = "too_many_leases"
    TOO_MANY_POLLS = "too_many_polls"
    TOO_MANY_QUEUES = "too_many_queues"
    TOO_MANY_SCHEDULES = "too_many_schedules"
    TOO_MANY_WORKERS = "too_many_workers"
    TOO_SLOW = "too_slow"
    UNAUTHENTICATED = "unauthenticated"
    UNKNOWN_ARTIFACT = "unknown_artifact"
    UNKNOWN_ROUTE = "unknown_route"
    UNKNOWN_SCHEDULE = "unknown_schedule"
    UNKNOWN_WORKER = "unknown_worker"
    UNSUPPORTED_MEDIA_TYPE = "unsupported_media_type"
    UNSUPPORTED_PROTOCOL = "unsupported_protocol"
