"""Errors as HTTP responses: one shape for all of them, and never a traceback. [H8]"""

import logging
import os

import msgspec
from starlette.responses import Response

from tenure.core.ids import JobId
from tenure.core.vocabulary import VerdictKind
from tenure.errors import (
    Closed,
    Contended,
    InvalidInput,
    MalformedBody,
    OutcomeUnknown,
    SchemaDiffers,
    SchemaTooNew,
    SchemaTooOld,
    StoreError,
    StoreUnavailable,
    TenureError,
    UnknownJob,
    UnreadableRow,
)
from tenure.protocol.codec import InvalidMessage, encode
from tenure.protocol.replies import Problem, ProblemCode

_log = logging.getLogger("tenure.server")

_TRANSPORT = frozenset({408, 425, 429})
RETRY_AFTER_S = 1


class RefusedRequest(TenureError):
    """The server refuses the request before it asks the coordinator."""

    nothing_changed = True

    def __init__(
        self,
        status: int,
        code: ProblemCode,
        message: str,
        *,
        hint: str = "",
        field: str | None = None,
        headers: dict[str, str] | None = None,
    ) -> None:
        super().__init__(message, hint=hint)
        self.status = status
        self.code = code  # type: ignore[misc]  # one class, many refusals
        self.field = field
        self.headers = headers or {}


def unauthenticated(message: str) -> RefusedRequest:
    """401, for a missing and for an invalid token alike: the caller does not learn which."""
    return RefusedRequest(
        401,
        ProblemCode.UNAUTHENTICATED,
        message,
        hint="send `Authorization: Bearer TOKEN`; `tenure tokens create` makes one",
        headers={"WWW-Authenticate": "Bearer"},
    )


def out_of_scope(
    message: str, *, field: str | None = None, hint: str = "see `tenure tokens ls`"
) -> RefusedRequest:
    """403: the token may not do this."""
    return RefusedRequest(403, ProblemCode.OUT_OF_SCOPE, message, field=field, hint=hint)


def too_many(code: ProblemCode, message: str, *, hint: str) -> RefusedRequest:
    """429: too much at once; the same request can be sent again."""
    return RefusedRequest(429, code, message, hint=hint, headers=_retry())


def too_many_unknown_tokens() -> RefusedRequest:
    """503: too many tokens that this server does not know yet wait to be looked up. [H30]"""
    return _unavailable(ProblemCode.BUSY, "too many unknown tokens wait to be looked up")


def shutting_down() -> RefusedRequest:
    """503: the server is shutting down."""
    return _unavailable(ProblemCode.SHUTTING_DOWN, "this server is shutting down")


def not_ready() -> RefusedRequest:
    """503: the store cannot be written."""
    return _unavailable(ProblemCode.NOT_READY, "the store cannot be written")


def busy() -> RefusedRequest:
    """503: no memory left for another large body. [H45]"""
    message = "this server has no memory left for another large body"
    return _unavailable(ProblemCode.BUSY, message, Connection="close")


def _unavailable(code: ProblemCode, message: str, **headers: str) -> RefusedRequest:
    hint = "send the same request again later"
    return RefusedRequest(503, code, message, hint=hint, headers=_retry() | headers)


def new_request_id() -> str:
    """An id for a request that has none. [H9]"""
    return os.urandom(8).hex()


def response(problem: BaseException, request_id: str) -> Response:
    """The response to a request that failed with `problem`."""
    status, body, headers = describe(problem)
    log(problem, status, request_id)
    if status not in _TRANSPORT and status < 500:
        body = msgspec.structs.replace(body, verdict=VerdictKind.REJECTED)
    body = msgspec.structs.replace(body, request_id=request_id)
    return Response(encode(body), status, headers, media_type="application/json")


def log(problem: BaseException, status: int, request_id: str) -> None:
    """Log what the answer leaves out: the caller gets the request id, under which it is here."""
    about = {"request_id": request_id}
    if status == 500:
        _log.error("request %s failed", request_id, exc_info=problem, extra=about)
    elif isinstance(problem, StoreError):
        _log.warning("request %s: %s", request_id, problem, extra=about)


def describe(problem: BaseException) -> tuple[int, Problem, dict[str, str]]:
    """Status, body and headers for an error."""
    match problem:
        case RefusedRequest():
            body = msgspec.structs.replace(_plain(problem), field=problem.field)
            return problem.status, body, problem.headers
        case InvalidInput():
            is_on_the_wire = isinstance(problem, InvalidMessage)
            field = problem.field if is_on_the_wire else wire_field(problem.field)
            said = f"{field}: {problem.problem}"
            body = msgspec.structs.replace(_plain(problem), message=said, field=field)
            return 400 if isinstance(problem, MalformedBody) else 422, body, {}
        case UnknownJob():
            return 404, _plain(problem), {}
        case StoreUnavailable() | SchemaTooOld() | SchemaTooNew() | SchemaDiffers():
            return 503, _about_store(problem), _retry()
        case UnreadableRow():
            # A row of a newer version may be read by another server of this store. [Y5]
            body = msgspec.structs.replace(_plain(problem), job_id=JobId(problem.job_id))
            return 503, body, _retry()
        case Contended() | Closed():
            return 503, _plain(problem), _retry()
        case _:
            body = Problem(
                code=ProblemCode.INTERNAL_ERROR,
                message="the server failed",
                hint="the server's log has the details under this request id",
            )
            return 500, body, {}


def wire_field(field: str) -> str:
    """The wire name of a command's field."""
    renamed = {
        "error.error_class": "error.class",
        "error.stage": "stage",
        "error.reason_code": "reason_code",
    }
    field = renamed.get(field, field)
    return f"{field[:-3]}_s" if field.endswith("_us") else field


def _plain(problem: TenureError) -> Problem:
    return Problem(
        code=problem.code,
        message=problem.message,
        hint=problem.hint,
        nothing_changed=problem.nothing_changed,
    )


def _about_store(problem: StoreError) -> Problem:
    """The problem for a store that failed. Its address and the exact error are only logged, because
    this response also goes to callers whose token could not be checked. [H33]"""
    message, hint = (
        "the store cannot be reached or did not answer in time",
        "send the same request again",
    )
    if isinstance(problem, OutcomeUnknown):
        message = "the store did not say whether it carried this out"
    elif isinstance(problem, SchemaTooOld | SchemaTooNew | SchemaDiffers):
        message, hint = "the store's schema does not fit this server", "see the server's log"
    return Problem(
        code=problem.code, message=message, hint=hint, nothing_changed=problem.nothing_changed
    )


def _retry() -> dict[str, str]:
    return {"Retry-After": str(RETRY_AFTER_S)}
