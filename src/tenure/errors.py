"""Every error of Tenure, one tree. Each says what happened, to what, and what to do.

    TenureError
    ├── InvalidInput            a field breaks a limit; nothing was written
    │   └── MalformedBody       the body is not JSON
    ├── StoreError
    │   ├── UnknownStoreUrl     no store understands this URL
    │   ├── StoreUnavailable    the store did not answer; retrying the same request id is safe
    │   │   ├── OutcomeUnknown  the connection was lost at commit; retry with the same request id
    │   │   ├── ServerBehind    an old primary that another server has taken over from
    │   │   └── StoreRestored   the database was restored: run `tenure raise-epoch`
    │   ├── SchemaTooOld        run `tenure migrate`
    │   ├── SchemaTooNew        upgrade Tenure
    │   ├── SchemaDiffers       an unreleased state of Tenure made the store: make a new one
    │   ├── StoreRefused        a guard of the schema refused the write: a bug, or a change by hand
    │   ├── NotSupported        this store leaves out a part that a store may leave out
    │   └── UnreadableRow       a row holds what this version cannot read
    ├── RequestRefused          a server refused it: no valid token, out of scope, or unsupported
    ├── UnknownJob              no job, or flow, has this id here
    ├── Conflict                the job is not as the request needs it; its status is in the error
    ├── NoResult                asked for a result that will not come
    │   ├── JobFailed           an attempt failed for good
    │   ├── JobCancelled        the job was cancelled
    │   └── JobDeadLettered     the job was taken out of circulation
    ├── WaitTimeout             the job did not end within the time given (also a TimeoutError)
    ├── Contended               too many lost races in a row; nothing changed, ask again
    ├── Closed                  the coordinator is shutting down
    └── HandlerSignal           what a handler raises to say how its attempt ended
        ├── ValidationError     the input is wrong: at stage `input` a dead letter, else permanent
        ├── TransientError      try again, by the job's backoff (as any other exception)
        ├── PermanentError      do not try again
        ├── DeadLetter          do not try again, and make it a dead letter with this reason
        ├── LeaseConflictError  the attempt lost its authority: nothing is reported
        ├── Cancelled           the job was asked to stop, or its lease is gone
        └── Snooze              hand the job back for a while; costs nothing

Facts are attributes, `code` is stable, and `str()` never contains a password or a payload.
"""

import shlex
from typing import ClassVar, Literal, get_args


def install_hint(extra: str) -> str:
    """How to install the packages of an extra. Tenure is installed from a clone: no package index
    has it."""
    return f"install Tenure again with it: `pip install 'path/to/the/clone[{extra}]'`"


class TenureError(Exception):
    """The root: a stable `code`, a message, and a hint at what to do."""

    code: ClassVar[str] = "error"
    nothing_changed: ClassVar[bool] = False
    """Whether it is certain that what was asked for was not carried out, not even in part."""

    def __init__(self, message: str, *, hint: str = "") -> None:
        super().__init__(f"{message}; {hint}" if hint else message)
        self.message = message
        self.hint = hint


class InvalidInput(TenureError):
    """A field of a request breaks a documented limit. [J6]"""

    code = "invalid_input"
    nothing_changed = True

    def __init__(self, field: str, problem: str, *, hint: str = "", written: str = "") -> None:
        """`written` is how the caller wrote the field, where that is not its name: `lease=…`."""
        super().__init__(f"{written or field}: {problem}", hint=hint)
        self.field = field
        self.problem = problem


class MalformedBody(InvalidInput):
    """A body that cannot be read: not JSON, or not UTF-8. [H8]"""

    code = "malformed"

    def __init__(self, problem: str) -> None:
        super().__init__("body", problem)


class StoreError(TenureError):
    """A problem with the store."""

    code = "store_error"


class UnknownStoreUrl(StoreError):
    """A URL that names no store."""

    code = "unknown_store_url"

    def __init__(self, problem: str) -> None:
        super().__init__(
            problem,
            hint="use sqlite:///file.db, postgresql://user@host/database,"
            " http(s)://host:port or memory://",
        )


class StoreUnavailable(StoreError):
    """The store or the server before it could not be reached, or did not answer in time.

    `retry_after_s` is how long the caller should wait before it tries again.
    """

    code = "store_unavailable"
    nothing_changed = True

    def __init__(self, message: str, *, hint: str = "", retry_after_s: float = 0.0) -> None:
        super().__init__(message, hint=hint)
        self.retry_after_s = retry_after_s


class OutcomeUnknown(StoreUnavailable):
    """The connection was lost while committing: the change may or may not have been written."""

    code = "outcome_unknown"
    nothing_changed = False


class ServerBehind(StoreUnavailable):
    """Another server has taken over from this one: what is written here will be lost. [A11]"""

    code = "server_behind"

    def __init__(self, *, found: int, newest: int) -> None:
        super().__init__(
            f"this PostgreSQL server is an old primary: it is on timeline {found}, and this store"
            f" was on {newest} already",
            hint="stop that server, or point the URL at the new primary",
        )
        self.found = found
        self.newest = newest


class StoreRestored(StoreUnavailable):
    """The database is on another cluster than the one it was last used on. [A12]"""

    code = "store_restored"

    def __init__(self, *, found: int, recorded: int) -> None:
        super().__init__(
            f"this store was restored: it was used on the PostgreSQL system {recorded}, and is on"
            f" {found} now",
            hint="run `tenure raise-epoch` before anything else uses it: what was granted after the"
            " backup would be granted again under the same fencing tokens",
        )
        self.found = found
        self.recorded = recorded


class SchemaTooOld(StoreError):
    """The store was made by an older Tenure, or nothing was made in it yet. [Y3]"""

    code = "schema_too_old"
    nothing_changed = True

    def __init__(
        self, *, found: int, needed: int, url: str = "", is_whole_url: bool = True
    ) -> None:
        """`url` is what may be shown of the store's URL; not `is_whole_url` if it lacks a password
        or options, without which the command might reach no store, or another one."""
        what = f"the store's schema is version {found}, this Tenure needs {needed}"
        if not found:
            what = (
                f"the database has no tables of Tenure yet: its schema is version 0, not {needed}"
            )
        which = f" --url {shlex.quote(url)}" if url else ""
        hint = f"run `tenure migrate{which}`"
        if not is_whole_url:
            hint = f"run `tenure migrate` with the same URL, as --url or in TENURE_URL ({url})"
        super().__init__(what, hint=hint)
        self.found = found
        self.needed = needed


class SchemaTooNew(StoreError):
    """The store was made by a newer Tenure. [Y3]"""

    code = "schema_too_new"
    nothing_changed = True

    def __init__(self, *, found: int, needed: int) -> None:
        what = f"the store's schema is version {found}, this Tenure knows up to {needed}"
        super().__init__(what, hint="upgrade Tenure, or use the store it was made for")
        self.found = found
        self.needed = needed


class SchemaDiffers(StoreError):
    """The store's schema was made by migrations that this Tenure does not have. [Y7]"""

    code = "schema_differs"
    nothing_changed = True

    def __init__(self, *, found: int, needed: int) -> None:
        super().__init__(
            f"another state of Tenure, from before the first release, made this store: its schema"
            f" calls itself version {found}, but is not one that this Tenure can use or migrate"
            f" (it needs its own version {needed})",
            hint="make a new store, or use the Tenure that made this one",
        )
        self.found = found
        self.needed = needed


class StoreRefused(StoreError):
    """A guard of the schema refused a write."""

    code = "store_refused"


class NotSupported(StoreError):
    """The store has no `part`: a store of a third party may leave it out."""

    code = "not_supported"

    def __init__(self, part: str) -> None:
        super().__init__(f"this store has no {part}", hint="use a store that has them")
        self.part = part


class UnreadableRow(StoreError):
    """A row has a value that this version cannot read; `job_id` is its job."""

    code = "unreadable_row"

    def __init__(self, job_id: str, problem: str) -> None:
        super().__init__(
            f"job {job_id} cannot be read: {problem}",
            hint="upgrade this process if a newer version of Tenure wrote it; if it was written by"
            " hand, run `tenure verify`",
        )
        self.job_id = job_id
        self.problem = problem


class RequestRefused(TenureError):
    """A server refused a request before deciding about it. `reason` is the code of the problem,
    `field` the field it is about."""

    code = "request_refused"

    def __init__(self, message: str, *, reason: str, field: str | None, hint: str = "") -> None:
        super().__init__(f"{reason}: {message}", hint=hint)
        self.reason = reason
        self.field = field

    @property
    def is_about_all(self) -> bool:
        """Whether the token may send no request of this sort, whatever it is about."""
        return self.reason == "out_of_scope" and self.field is None


class UnknownJob(TenureError):
    """There is no such job, or flow: never enqueued here, rolled back, or purged."""

    code = "unknown_job"
    nothing_changed = True

    def __init__(self, job_id: str, *, noun: str = "job") -> None:
        super().__init__(
            f"there is no {noun} {job_id}",
            hint="it was never committed, it was purged, or it is in another store or namespace",
        )
        self.job_id = job_id


class Conflict(TenureError):
    """The job, or flow, is not, or no longer, in the state that the request needs. `status` and
    `rev` are those of the job now."""

    code = "conflict"

    def __init__(
        self,
        *,
        job_id: str,
        cause: str,
        status: str | None,
        rev: int | None = None,
        hint: str = "",
        noun: str = "job",
    ) -> None:
        super().__init__(f"refused with {cause}: {noun} {job_id}", hint=hint)
        self.job_id = job_id
        self.cause = cause
        self.status = status
        self.rev = rev


class NoResult(TenureError):
    """A job ended without a result. `reason` is a word of a closed set, `error_type` and
    `error_message` are what the last attempt reported."""

    code = "no_result"

    def __init__(
        self,
        *,
        job_id: str,
        kind: str,
        status: str,
        reason: str = "",
        error_type: str = "",
        error_message: str = "",
    ) -> None:
        ended = status if status == "failed" else f"was {status}"
        cause = f" ({reason})" if reason else ""
        said = [part for part in (error_type, error_message.partition("\n")[0]) if part]
        super().__init__(": ".join([f"job {job_id} ({kind}) {ended}{cause}", *said]))
        self.job_id = job_id
        self.kind = kind
        self.status = status
        self.reason = reason
        self.error_type = error_type
        self.error_message = error_message


class JobFailed(NoResult):
    """The job failed for good."""

    code = "job_failed"


class JobCancelled(NoResult):
    """The job was cancelled; `reason` is what the caller of cancel gave."""

    code = "job_cancelled"


class JobDeadLettered(NoResult):
    """The job is a dead letter; `reason` says why."""

    code = "job_dead_lettered"


class WaitTimeout(TenureError, TimeoutError):
    """A job was still unfinished when the time to wait was over. The job itself continues."""

    code = "wait_timeout"

    def __init__(self, *, job_id: str, status: str, waited_s: float, reason: str = "") -> None:
        why = f": {reason}" if reason else ""
        super().__init__(
            f"job {job_id} is still {status} after {waited_s:g} s{why}",
            hint="the job itself continues",
        )
        self.job_id = job_id
        self.status = status
        self.waited_s = waited_s
        self.reason = reason
        """Why, if known: failed attempts, not due yet, or no worker takes it."""


class Contended(TenureError):
    """A command lost its race too often and changed nothing. [K8]"""

    code = "contended"
    nothing_changed = True

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
    nothing_changed = True

    def __init__(self) -> None:
        super().__init__("the coordinator is closed", hint="open a new one")


class HandlerSignal(TenureError):
    """What a handler raises to say how its attempt ended. Strings travel, never classes."""

    code = "handler_signal"

    def __init__(self, message: str = "", *, hint: str = "") -> None:
        super().__init__(message, hint=hint)


class ValidationError(HandlerSignal):
    """The input or output does not fit its type. `path` says where. [F13]"""

    code = "validation_failed"

    def __init__(self, message: str = "", *, path: str = "") -> None:
        super().__init__(f"{message} at {path}" if path else message)
        self.path = path


class TransientError(HandlerSignal):
    """Worth another attempt, not before `retry_after_s` if it is given. [F2] [F13]

    With `dependency_unavailable`, an exhausted job carries that reason.
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
    """No further attempt can help. [F13]"""

    code = "permanent"


DeadLetterReason = Literal["policy_violation", "infrastructure_failure"]


class DeadLetter(HandlerSignal):
    """This job must not run again: it becomes a dead letter at once, with this reason, whatever
    attempts are left. The reason is policy_violation or infrastructure_failure. [F13] [T34]"""

    code = "dead_letter"

    def __init__(self, reason: DeadLetterReason, message: str = "") -> None:
        if reason not in get_args(DeadLetterReason):
            raise InvalidInput(
                "reason",
                f"{reason!r} is not a reason that a handler can give for a dead letter",
                hint=f"one of {', '.join(get_args(DeadLetterReason))}",
            )
        super().__init__(message)
        self.reason = reason


class LeaseConflictError(HandlerSignal):
    """An outside system saw a newer fence: this attempt lost its lease. The worker reports nothing.
    [F8]"""

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
