"""What an answer means: a message, an error, or that nothing can be said.

Only a body of the protocol's own can refuse anything. A 5xx, a proxy's page or a body that cannot
be read says nothing about the request: that is `StoreUnavailable`, and never a verdict. [H8]
"""

from typing import TypeVar

from tenure.core.vocabulary import VerdictKind
from tenure.errors import (
    InvalidInput,
    MalformedBody,
    OutcomeUnknown,
    RequestRefused,
    StoreUnavailable,
    TenureError,
)
from tenure.protocol import TOKEN_VARIABLE
from tenure.protocol.codec import decode
from tenure.protocol.replies import Problem
from tenure.protocol.routes import Route
from tenure.remote.settings import Address
from tenure.remote.transport import Response

_M = TypeVar("_M")

LONGEST_RETRY_AFTER_S = 30.0

_FIELD_REFUSED = frozenset({400, 413, 422})


class NotFound(RequestRefused):
    """There is no such thing; what, the caller knows."""


class Reader:
    """Reads the answers of one server."""

    def __init__(self, address: Address) -> None:
        self._address = address

    def message(self, route: Route, response: Response, kind: type[_M]) -> _M:
        """The message of a success or of a conflict; raises for everything else."""
        self.check(route, response)
        try:
            return decode(kind, response.body)
        except InvalidInput as wrong:
            raise self._unreadable(response) from wrong

    def check(self, route: Route, response: Response) -> None:
        """Raise unless the answer is what the route promises."""
        if 200 <= response.status < 300 or (response.status == 409 and route.conflict):
            return
        problem = self._problem(response)
        if problem is None:
            raise self._unreadable(response)
        raise self._error(response, problem)

    def _problem(self, response: Response) -> Problem | None:
        if not response.media_type.startswith("application/json"):
            return None
        try:
            return decode(Problem, response.body)
        except InvalidInput:
            return None

    def _error(self, response: Response, problem: Problem) -> TenureError:
        if problem.verdict is not VerdictKind.REJECTED:
            return self._no_verdict(response, problem)
        if response.status in _FIELD_REFUSED and problem.code == MalformedBody.code:
            return MalformedBody(problem.message.removeprefix("body: "))
        if response.status in _FIELD_REFUSED:
            field = problem.field or "body"
            said = problem.message.removeprefix(f"{field}: ")
            return InvalidInput(field, said, hint=problem.hint)
        kind = NotFound if response.status == 404 else RequestRefused
        hint = problem.hint
        if response.status == 401:
            hint = f"set {TOKEN_VARIABLE}, or give the application a token; handlers get none"
        return kind(problem.message, reason=problem.code, field=problem.field, hint=hint)

    def _no_verdict(self, response: Response, problem: Problem) -> StoreUnavailable:
        kind = StoreUnavailable if problem.nothing_changed else OutcomeUnknown
        exchange = f" (request {problem.request_id})" if problem.request_id else ""
        return kind(
            f"{self._address} answered {response.status}{exchange}: {problem.message}",
            hint=problem.hint,
            retry_after_s=_bounded(response.retry_after_s),
        )

    def _unreadable(self, response: Response) -> StoreUnavailable:
        return OutcomeUnknown(
            f"{self._address} answered {response.status} in words that are not the protocol's",
            hint="is this the address of `tenure serve`, and is there a proxy between?",
            retry_after_s=_bounded(response.retry_after_s),
        )


def _bounded(retry_after_s: float) -> float:
    return min(retry_after_s, LONGEST_RETRY_AFTER_S)
