"""The dashboard on a real socket, for a real browser.

All of it happens in a thread of its own: Playwright has the event loop of the test's thread.
"""

import http.client
import json
import socket
import threading
from collections.abc import Callable
from typing import Any

import uvicorn

from tenure.core.ids import QueueName
from tenure.core.vocabulary import Role
from tenure.protocol.routes import BY_NAME
from tests.dashboard.harness import DashboardStage
from tests.dashboard.shop import Shop, ShopClock

START_WITHIN_S = 120.0
STOP_WITHIN_S = 30.0


def fill_shop(stage: DashboardStage) -> None:
    """An hour of a shop's jobs."""
    Shop(stage).fill()


class Site:
    """A server that is filled in virtual time and then runs by the host's clock."""

    def __init__(
        self,
        fill: Callable[[DashboardStage], object] = fill_shop,
        *,
        authenticated: bool = True,
    ) -> None:
        self._fill = fill
        self._authenticated = authenticated
        self._socket = socket.create_server(("127.0.0.1", 0))
        self.host = f"localhost:{self._socket.getsockname()[1]}"
        self.address = f"http://{self.host}"
        self.tokens: dict[Role, str] = {}
        self.limited = ""
        """The token of an operator of one queue."""
        self._server: uvicorn.Server | None = None
        self._is_up = threading.Event()
        self._problem: BaseException | None = None
        self._thread = threading.Thread(target=self._run, name="site")

    def _run(self) -> None:
        try:
            self._serve()
        except BaseException as problem:  # raised again by the test's thread
            self._problem = problem
        finally:
            self._is_up.set()

    def _serve(self) -> None:
        clock = ShopClock()
        stage = DashboardStage(authenticated=self._authenticated, clock=clock)
        try:
            self.tokens = {role: stage.of(role) for role in Role}
            self.limited = stage.token(
                Role.OPERATOR, "of-payments", queues=(QueueName("payments"),)
            )
            self._fill(stage)
            clock.is_live = True
            config = uvicorn.Config(
                stage.app, ws="none", lifespan="off", log_config=None, access_log=False
            )
            self._server = _Announced(config, self._is_up.set)
            stage.run(self._server.serve(sockets=[self._socket]))
        finally:
            stage.close()

    def __enter__(self) -> "Site":
        self._thread.start()
        assert self._is_up.wait(START_WITHIN_S), "the server did not start"
        if self._problem is not None:
            raise self._problem
        return self

    def __exit__(self, *problem: object) -> None:
        if self._server is not None:
            self._server.should_exit = True
        self._thread.join(STOP_WITHIN_S)
        self._socket.close()

    def call(self, name: str, message: object = None, /, *, role: Role, **path: str) -> Any:
        """Ask a route over HTTP, as a client of this role."""
        route = BY_NAME[name]
        connection = http.client.HTTPConnection(self.host, timeout=STOP_WITHIN_S)
        try:
            headers = {"Authorization": f"Bearer {self.tokens[role]}"}
            if message is not None:
                headers["Content-Type"] = "application/json"
            body = None if message is None else json.dumps(message)
            connection.request(route.method, route.url(**path), body, headers)
            response = connection.getresponse()
            answer = json.loads(response.read())
            assert response.status < 300, answer
            return answer
        finally:
            connection.close()


class _Announced(uvicorn.Server):
    """Says when it listens."""

    def __init__(self, config: uvicorn.Config, started: Callable[[], None]) -> None:
        super().__init__(config)
        self._started = started

    async def startup(self, sockets: list[socket.socket] | None = None) -> None:
        await super().startup(sockets)
        self._started()
