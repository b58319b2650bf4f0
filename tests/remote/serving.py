"""A server in a thread of the test's own process, on a real socket, over any coordinator.

The clocks are the coordinator's, so that leases end when a test says so and not by the way.
"""

import asyncio
import socket
import threading
from collections.abc import Coroutine, Iterator
from contextlib import contextmanager
from itertools import count
from typing import Any, TypeVar

import uvicorn
from starlette.types import ASGIApp, Receive, Scope, Send

from tenure.clock import Monotonic, boot_now
from tenure.coordinator.service import Coordinator
from tenure.core.ids import DEFAULT_NAMESPACE, Namespace, QueueName
from tenure.core.instants import seconds
from tenure.core.policy import Backoff
from tenure.core.tokens import TOKEN_ENTROPY_BYTES, NewToken, mint
from tenure.core.vocabulary import Role
from tenure.ports import Store
from tenure.remote.caller import Caller
from tenure.remote.coordinator import RemoteCoordinator
from tenure.remote.settings import Patience, parse_address, trust_from_environment
from tenure.server.app import make_app
from tenure.server.connections import guarded
from tenure.server.lifetime import ServeOptions, listen
from tenure.server.limits import ServerSettings
from tenure.server.services import Services
from tests.support.waiting import PATIENCE_S

SETTINGS = ServerSettings(poll_every_s=0.02)
PATIENCE = Patience(
    backoff=Backoff(initial_us=seconds(0.01), cap_us=seconds(0.02), floor=0.0),
    answer_s=10.0,
    retry_for_s=10.0,
)

_numbers = count(1)
_T = TypeVar("_T")


def new_token(
    store: Store,
    role: Role,
    name: str,
    namespace: Namespace = DEFAULT_NAMESPACE,
    queues: tuple[QueueName, ...] = (),
) -> str:
    """The text of a new token; a worker's may declare kinds and schedules."""
    entropy = next(_numbers).to_bytes(8) * (TOKEN_ENTROPY_BYTES // 8)
    token_id, digest, text = mint(entropy)
    store.tokens.create(
        NewToken(
            id=token_id,
            secret_sha256=digest,
            name=name,
            role=role,
            namespace=namespace,
            queues=queues,
            may_declare=role is Role.WORKER,
        )
    )
    return text


def connect(url: str, token: str, patience: Patience = PATIENCE) -> RemoteCoordinator:
    """A coordinator far away, for the holder of a token."""
    return RemoteCoordinator(
        Caller(parse_address(url), trust_from_environment({}, token), patience)
    )


class Mounted:
    """One coordinator behind the server; there is one at a time."""

    def __init__(self, server: "ThreadedServer", services: Services) -> None:
        self.services = services
        self._server = server

    def close(self) -> None:
        self._server.unmount(self.services)


class ThreadedServer:
    """One socket and one loop for as many coordinators as come, one after the other: starting a
    server takes longer than most tests do."""

    def __init__(self) -> None:
        self._listening = listen(ServeOptions(port=0))
        self._started = threading.Event()
        self._app: ASGIApp | None = None
        self._loop = asyncio.new_event_loop()
        app, http = guarded(self._dispatch, SETTINGS)
        config = uvicorn.Config(
            app,
            interface="asgi3",
            http=http,
            ws="none",
            lifespan="off",
            log_config=None,
            proxy_headers=False,
            # As `tenure serve`: else it waits without end for a connection that does not close.
            timeout_graceful_shutdown=SETTINGS.shutdown_within_s,
        )
        self._server = _Quiet(config, self._started)
        self._thread = threading.Thread(target=self._serve, daemon=True)
        self._thread.start()
        assert self._started.wait(PATIENCE_S)

    @property
    def port(self) -> int:
        return int(self._listening.getsockname()[1])

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.port}"

    def mount(self, coordinator: Coordinator, monotonic: Monotonic = boot_now) -> Mounted:
        """Serve this coordinator from now on."""
        assert self._app is None, "another one is served"

        async def make() -> Services:
            services = Services(coordinator, SETTINGS, monotonic=monotonic)
            self._app = make_app(services, authenticated=True)
            return services

        return Mounted(self, self._on_loop(make()))

    def unmount(self, services: Services) -> None:
        async def stop() -> None:
            services.stop()
            self._app = None

        self._on_loop(stop())
        services.close()

    def _on_loop(self, work: Coroutine[Any, Any, _T]) -> _T:
        return asyncio.run_coroutine_threadsafe(work, self._loop).result(PATIENCE_S)

    async def _dispatch(self, scope: Scope, receive: Receive, send: Send) -> None:
        assert self._app is not None, "nothing is served"
        await self._app(scope, receive, send)

    def _serve(self) -> None:
        with asyncio.Runner(loop_factory=lambda: self._loop) as runner:
            runner.run(self._server.serve(sockets=[self._listening]))

    def close(self) -> None:
        self._server.should_exit = True
        self._thread.join(PATIENCE_S)
        assert not self._thread.is_alive()
        self._listening.close()


class _Quiet(uvicorn.Server):
    """Without signals, which belong to the main thread."""

    def __init__(self, config: uvicorn.Config, started: threading.Event) -> None:
        super().__init__(config)
        self._told = started

    @contextmanager
    def capture_signals(self) -> Iterator[None]:
        yield

    async def startup(self, sockets: list[socket.socket] | None = None) -> None:
        await super().startup(sockets)
        self._told.set()
