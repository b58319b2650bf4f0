"""Writes what one request did to the security log. [OB11]"""

from starlette.requests import Request

from tenure.core.ids import JobId, LeaseId, shown_lease
from tenure.core.tokens import TOKEN_PATTERN
from tenure.core.vocabulary import Role
from tenure.protocol.problem_codes import ProblemCode
from tenure.protocol.routes import Route
from tenure.server.principals import Principal
from tenure.server.problems import Refused
from tenure.telemetry.security import SecurityEvent, SecurityLog


class RequestAudit:
    """Writes the security events of one request; `principal` is set when its token is checked."""

    def __init__(
        self, log: SecurityLog, route: Route | None, http: Request, request_id: str
    ) -> None:
        self._log = log
        self._route = route
        self._http = http
        self._request_id = request_id
        self.principal = Principal()

    def refused(self, problem: Exception) -> None:
        """The request failed."""
        if not isinstance(problem, Refused):
            return
        if problem.code is ProblemCode.UNAUTHENTICATED:
            self._note(SecurityEvent.TOKEN_REFUSED, reason=problem.message)
        elif problem.code is ProblemCode.OUT_OF_SCOPE:
            self._note(SecurityEvent.SCOPE_VIOLATION, reason=problem.message, field=problem.field)

    def hidden_job(self, job_id: JobId, *, number: int) -> None:
        """The caller asked about jobs out of its scope; the answer says they are unknown. [H41]"""
        reason = "a job of another namespace, queue or kind"
        self._note(SecurityEvent.SCOPE_VIOLATION, reason=reason, job_id=job_id, number=number)

    def foreign_lease(self, job_id: JobId, lease_id: LeaseId, *, number: int) -> None:
        """The caller reported under leases of another principal, or of none. [R16]"""
        shown = shown_lease(lease_id)
        self._note(SecurityEvent.FOREIGN_LEASE, job_id=job_id, lease=shown, number=number)

    def answered(self, status: int) -> None:
        """The request was carried out, or refused by the coordinator."""
        assert self._route is not None
        token = self.principal.token
        roles = self._route.roles if token is None else (token.role,)
        if set(roles) == {Role.OPERATOR} and not self._route.only_reads:
            self._note(
                SecurityEvent.OPERATOR_ACTION,
                **{name: str(part) for name, part in self._http.path_params.items()},
                status=status,
            )

    def _note(self, event: SecurityEvent, **facts: str | int | None) -> None:
        route, token = self._route, self.principal.token
        client = self._http.client
        who = None if route is None or route.is_public else self.principal.actor(route)
        self._log.note(
            event,
            {
                "request_id": self._request_id,
                "address": None if client is None else client.host,
                "route": None if route is None else route.name,
                "actor": None if event is SecurityEvent.TOKEN_REFUSED else who,
                "namespace": None if token is None else token.namespace,
                "token_id": token.id if token is not None else self._shown_id(),
                **facts,
            },
        )

    def _shown_id(self) -> str | None:
        """The id of the token that the caller showed, if it looks like one; never its secret."""
        found = TOKEN_PATTERN.search(self._http.headers.get("authorization", ""))
        return None if found is None else found[1]
