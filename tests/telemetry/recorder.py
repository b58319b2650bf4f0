"""A proxy that writes down what a server is asked: every request, with its headers."""

import json
from typing import Any

import msgspec

from tenure.protocol.routes import ROUTES
from tenure.telemetry.tracing import TraceContext, trace_from_headers
from tests.remote.proxy import SwallowingProxy


class Heard(msgspec.Struct, frozen=True):
    """One request."""

    method: str
    path: str
    headers: dict[str, str]
    body: bytes

    @property
    def route(self) -> str:
        """The name of the route that it is for."""
        path = self.path.partition("?")[0].split("/")
        for route in ROUTES:
            parts = route.path.split("/")
            fits = len(parts) == len(path) and all(
                part == word or part.startswith("{") for part, word in zip(parts, path, strict=True)
            )
            if fits and route.method == self.method:
                return route.name
        raise AssertionError(f"there is no route for {self.method} {self.path}")

    @property
    def json(self) -> Any:
        return json.loads(self.body)

    def asks_as(self, token: str) -> bool:
        return self.headers.get("authorization") == f"Bearer {token}"

    @property
    def told(self) -> TraceContext:
        """What its headers say of traces and correlation ids."""
        return trace_from_headers(
            lambda name: [self.headers[name.lower()]] if self.has(name) else []
        )

    def has(self, header: str) -> bool:
        return header.lower() in self.headers


class Recorder(SwallowingProxy):
    """Forwards everything to `port`; what was answered is in `heard`."""

    def __init__(self, port: int) -> None:
        self.heard: list[Heard] = []
        super().__init__(port, lambda number, name: False)

    def _passes(self, request: bytes) -> bool:
        head, _, body = request.partition(b"\r\n\r\n")
        first, *lines = head.decode().split("\r\n")
        method, path, _ = first.split(" ")
        pairs = (line.split(": ", 1) for line in lines)
        headers = {name.lower(): text for name, text in pairs}
        self.heard.append(Heard(method, path, headers, body))
        return super()._passes(request)
