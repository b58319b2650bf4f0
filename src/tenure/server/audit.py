"""Writes what one request did to the security log. [OB11]"""

import json

import msgspec
from starlette.requests import Request

from tenure.core.ids import JobId, LeaseId, short_lease
from tenure.core.tokens import TOKEN_PATTERN
from tenure.core.vocabulary import Role
from tenure.protocol.replies import ProblemCode
from tenure.protocol.routes import Route
from tenure.server.principals import Principal
from tenure.server.problems import RefusedRequest
from tenure.telemetry.security import SecurityEvent, SecurityLog

MAX_REQUESTED = 1000
MAX_LISTED = 20
"""A longer list, such as the ids of many jobs, is described by its length."""

_LEFT_OUT = frozenset({"payload", "result", "checkpoint", "token", "secret", "lease_id"})


def _described(message: msgspec.Struct) -> str | None:
    """What a message asks for, as JSON without payloads and secrets; None for nothing. [OB41]"""
    described = _without_bodies(message)
    return json.dumps(described, separators=(",", ":"))[:MAX_REQUESTED] if described else None


def _without_bodies(value: object) -> object:
    match value:
        case msgspec.Struct():
            fields = {name: getattr(value, name) for name in value.__struct_fields__}
            return {
                name: _without_bodies(each)
                for name, each in fields.items()
                if name not in _LEFT_OUT and each not in (None, msgspec.UNSET, ())
            }
        case list() | tuple():
            is_long = len(value) > MAX_LISTED
            return len(value) if is_long else [_without_bodies(each) for each in value]
        case bool() | int() | float():
            return value
        case _:
            return str(value)[:MAX_REQUESTED]


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
        self.done: int | None = None
        """How many of several things were done, where an action is about several."""
        self._requested: str | None = None

    def requested(self, message: object) -> None:
        """Keep what the request asks for, for the line of an operator's action."""
        if self._is_action and isinstance(message, msgspec.Struct):
            self._requested = _described(message)

    def signed_in(self) -> None:
        """A visitor has sent a token and starts a session."""
        self._note(SecurityEvent.SIGNED_IN)

    def signed_out(self) -> None:
        """A visitor has ended its session."""
        self._note(SecurityEvent.SIGNED_OUT)

    def refused(self, problem: Exception) -> None:
        """The request failed."""
        if not isinstance(problem, RefusedRequest):
            return
        if problem.code is ProblemCode.UNAUTHENTICATED:
            self._note(SecurityEvent.TOKEN_REFUSED, reason=problem.message)
        elif problem.code is ProblemCode.OUT_OF_SCOPE:
            self._note(SecurityEvent.SCOPE_VIOLATION, reason=problem.message, field=problem.field)

    def hidden_job(self, job_id: JobId, *, number: int) -> None:
        """The caller asked about jobs out of its scope; the answer is that they are unknown.
        [H41]"""
        reason = "a job of another namespace, queue or kind"
        self._note(SecurityEvent.SCOPE_VIOLATION, reason=reason, job_id=job_id, number=number)

    def foreign_lease(self, job_id: JobId, lease_id: LeaseId, *, number: int) -> None:
        """The caller reported under leases of another principal, or of none. [R16]"""
        lease = short_lease(lease_id)
        self._note(SecurityEvent.FOREIGN_LEASE, job_id=job_id, lease=lease, number=number)

    def answered(self, status: int) -> None:
        """The request was carried out, or refused by the coordinator."""
        if self._is_action:
            self._note_action(status=status)

    def outcome_unknown(self) -> None:
        """It is not known whether the request was carried out. [K16]"""
        if self._is_action:
            self._note_action(outcome="unknown")

    @property
    def _is_action(self) -> bool:
        assert self._route is not None
        token = self.principal.token
        roles = self._route.roles if token is None else (token.role,)
        return set(roles) == {Role.OPERATOR} and not self._route.only_reads

    def _note_action(self, **facts: str | int) -> None:
        self._note(
            SecurityEvent.OPERATOR_ACTION,
            **{name: str(part) for name, part in self._http.path_params.items()},
            **facts,
            asked=self._requested,
            done=self.done,
        )

    def _note(self, event: SecurityEvent, **facts: str | int | None) -> None:
        route, token = self._route, self.principal.token
        client = self._http.client
        who = None if token is None else token.actor
        if token is None and route is not None and not route.is_public:
            who = self.principal.actor(route)
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
