"""Every error of Tenure, one tree. Each says what happened, to what, and what to do.

    TenureError
    ├── InvalidInput            a field breaks a limit; nothing was written
    ├── StoreError
    │   ├── UnknownStoreUrl     no store understands this URL
    │   ├── StoreUnavailable    the store did not answer; retrying the same request id is safe
    │   │   └── OutcomeUnknown  the connection died at commit; the same request id tells
    │   ├── SchemaTooOld        run `tenure migrate`
    │   ├── SchemaTooNew        upgrade Tenure
    │   └── StoreRefused        a guard of the schema refused the write: a bug, or a foreign hand
    ├── Contended               too many lost races in a row; nothing changed, ask again
    ├── Closed                  the coordinator is shutting down
    └── HandlerSignal           what a handler raises to say how its attempt ended
        ├── ValidationError     the input is wrong: at stage `input` a dead letter, else permanent
        ├── TransientError      try again, by the job's backoff (as any other exception)
        ├── PermanentError      do not try again
        ├── LeaseConflictError  the attempt lost its authority: nothing is reported
        ├── Cancelled           the job was asked to stop, or its lease is gone
        └── Snooze              hand the job back for a while; costs nothing

Facts are attributes, `code` is stable, and `str()` never contains a password or a payload.
"""

from typing import ClassVar


class TenureError(Exception):
    """The root: a stable `code`, a message, and a hint at what to do."""

    code: ClassVar[str] = "error"

    def __init__(self, message: str, *, hint: str = "") -> None:
        super().__init__(f"{message}; {hint}" if hint else message)
        self.message = message
        self.hint = hint


class InvalidInput(TenureError):
    """A field of a request breaks a documented limit. [J6]"""

    code = "invalid_input"

    def __init__(self, field: str, problem: str, *, hint: str = "") -> None:
        super().__init__(f"{field}: {problem}", hint=hint)
        self.field = field
        self.problem = problem


class StoreError(TenureError):
    """Something about the store."""

    code = "store_error"


class UnknownStoreUrl(StoreError):
    """A URL that names no store."""

    code = "unknown_store_url"

    def __init__(self, problem: str) -> None:
        super().__init__(
            problem,
            hint="use sqlite:///file.db, postgresql://user@host/database or memory://",
        )


class StoreUnavailable(StoreError):
    """The store could not be reached, or did not answer in time."""

    code = "store_unavailable"


class OutcomeUnknown(StoreUnavailable):
    """The connection was lost while committing: it may or may not have been written."""

    code = "outcome_unknown"


class SchemaTooOld(StoreError):
    """The store was made by an older Tenure. [Y3]"""

    code = "schema_too_old"

    def __init__(self, *, found: int, needed: int) -> None:
        what = f"the store's schema is version {found}, this Tenure needs {needed}"
        super().__init__(what, hint="run `tenure migrate`")
        self.found = found
        self.needed = needed


class SchemaTooNew(StoreError):
    """The store was made by a newer Tenure. [Y3]"""

    code = "schema_too_new"

    def __init__(self, *, found: int, needed: int) -> None:
        what = f"the store's schema is version {found}, this Tenure knows up to {needed}"
        super().__init__(what, hint="upgrade Tenure, or use the store it was made for")
        self.found = found
        self.needed = needed


class StoreRefused(StoreError):
    """A guard of the schema refused a write."""

    code = "store_refused"


class Contended(TenureError):
    """A command lost its race too often; nothing was changed by it. [K4]"""

    code = "contended"

    def __init__(self, *, job_id: str, tries: int) -> None:
        super().__init__(
            f"job {job_id} changed under this request {tries} times in a row",
            hint="nothing was written; send the same request again",
        )
        self.job_id = job_id
        self.tries = tries


class Closed(TenureError):
    """The coordinator no longer takes commands."""

    code = "closed"

    def __init__(self) -> None:
        super().__init__("the coordinator is closed", hint="open a new one")


class HandlerSignal(TenureError):
    """What a handler raises to say how its attempt ended. Strings travel, never classes."""

    code = "handler_signal"

    def __init__(self, message: str = "", *, hint: str = "") -> None:
        super().__init__(message, hint=hint)


class ValidationError(HandlerSignal):
    """The input or output does not fit its type. `path` says where. [F3]"""

    code = "validation_failed"

    def __init__(self, message: str = "", *, path: str = "") -> None:
        super().__init__(f"{message} at {path}" if path else message)
        self.path = path


class TransientError(HandlerSignal):
    """Worth another attempt, not before `retry_after_s` if it is given. [F2] [F3]

    `dependency_unavailable` says whose fault it is: an exhausted job then carries that reason.
    """

    code = "transient"

    def __init__(
        self,
        message: str = "",
        *,
        retry_after_s: float = 0.0,
        dependency_unavailable: bool = False,
    ) -> None:
        super().__init__(message)
        self.retry_after_s = retry_after_s
        self.dependency_unavailable = dependency_unavailable


class PermanentError(HandlerSignal):
    """No further attempt can help. [F3]"""

    code = "permanent"


class LeaseConflictError(HandlerSignal):
    """An outside system saw a newer fence: this attempt has lost. Nothing is reported."""

    code = "lease_conflict"


class Cancelled(HandlerSignal):
    """Raised by `ctx.check()` once the job was cancelled or its lease lost."""

    code = "cancelled"


class Snooze(HandlerSignal):
    """Not now: hand the job back and take it up again after `delay_s`. Costs no budget. [A4]"""

    code = "snooze"

    def __init__(self, delay_s: float, message: str = "") -> None:
        super().__init__(message)
        self.delay_s = delay_s
