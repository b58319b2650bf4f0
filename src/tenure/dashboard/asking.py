"""Asks the handlers of `/v1` within the process, as the principal of a session.

A page gets exactly what a client with the same token gets over HTTP: the answer is encoded and read
again, so no page can see a field that the protocol does not have. [DB2]
"""

from collections.abc import Mapping, Sequence
from typing import Any, TypeVar

import msgspec
from starlette.requests import Request
from starlette.responses import Response

from tenure.core.ids import Namespace
from tenure.protocol.codec import decode, encode
from tenure.protocol.routes import BY_NAME, Route
from tenure.server.audit import RequestAudit
from tenure.server.handling import Asked, carry_out
from tenure.server.memory import RequestMemory
from tenure.server.principals import Principal
from tenure.server.problems import unauthenticated
from tenure.server.services import Services
from tenure.telemetry.tracing import RequestSpan

_R = TypeVar("_R")

Query = Mapping[str, str | int | bool | Sequence[str] | None]


class Asker:
    """Asks for one visit. Without a token, `namespace` is the one that the visitor chose. A visitor
    who has to sign in first has no principal and can ask nothing."""

    def __init__(
        self,
        *,
        services: Services,
        principal: Principal | None,
        namespace: Namespace,
        http: Request,
        request_id: str,
        span: RequestSpan,
        memory: RequestMemory,
    ) -> None:
        self._services = services
        self._principal = principal
        self._namespace = namespace
        self._http = http
        self._request_id = request_id
        self._span = span
        self._memory = memory

    def may(self, name: str) -> bool:
        """Whether a token of this role and with these limits may use a route; what it asks for may
        still be out of its scope."""
        return self._principal is not None and self._principal.may_use(BY_NAME[name])

    async def ask(
        self,
        name: str,
        reply: type[_R],
        *,
        path: Mapping[str, str] | None = None,
        query: Query | None = None,
        body: Mapping[str, Any] | None = None,
    ) -> _R:
        """The reply of a route, which by the table of routes is of this type. Raises what the
        handler raises."""
        assert BY_NAME[name].reply is reply
        response = await self.response(name, path=path, query=query, body=body)
        answer = bytes(response.body)
        return await self._services.blocking(lambda: decode(reply, answer))

    async def response(
        self,
        name: str,
        *,
        path: Mapping[str, str] | None = None,
        query: Query | None = None,
        body: Mapping[str, Any] | None = None,
    ) -> Response:
        """The response of a route as it would be sent: for files."""
        if self._principal is None:
            raise unauthenticated("sign in first")
        route, given = BY_NAME[name], dict(path or {})
        # The security log names the parts of the route's path, not those of the page's.
        http = Request({**self._http.scope, "path_params": given})
        audit = RequestAudit(self._services.security, route, http, self._request_id)
        audit.principal = self._principal
        message = b"" if route.request is None else encode(dict(body or {}))

        async def read() -> bytes:
            return message

        try:
            self._principal.check_route(route)
            return await carry_out(
                self._services,
                Asked(
                    route=route,
                    http=http,
                    path=given,
                    query=self._pairs(self._principal, route, query or {}),
                    body=read,
                    request_id=self._request_id,
                    span=self._span,
                    memory=self._memory,
                    audit=audit,
                ),
            )
        except Exception as problem:
            audit.refused(problem)
            raise

    def _pairs(self, principal: Principal, route: Route, query: Query) -> list[tuple[str, str]]:
        pairs = []
        given: dict[str, Any] = dict(query)
        if principal.token is None and _has_namespace(route):
            given["namespace"] = self._namespace
        for name, value in given.items():
            several = value if isinstance(value, list | tuple) else [value]
            pairs += [(name, _text(each)) for each in several if each is not None]
        return pairs


def _has_namespace(route: Route) -> bool:
    return route.query is not None and any(
        field.name == "namespace" for field in msgspec.structs.fields(route.query)
    )


def _text(value: str | int | bool) -> str:
    return str(value).lower() if isinstance(value, bool) else str(value)
