"""A server without sockets: the ASGI application over a memory store in virtual time."""

import asyncio
import json
from collections.abc import Awaitable, Callable, Coroutine
from itertools import count
from typing import Any, TypeVar
from urllib.parse import unquote

import msgspec
from starlette.types import ASGIApp, Message

from tenure.coordinator.service import Coordinator
from tenure.core.events import Event
from tenure.core.ids import JobId, Namespace
from tenure.core.job import Job
from tenure.core.tokens import TOKEN_ENTROPY_BYTES, NewToken, Token, mint
from tenure.core.vocabulary import Role
from tenure.deadlines import CALL_TIMEOUT_S
from tenure.protocol.routes import BY_NAME
from tenure.server.app import make_app
from tenure.server.lifetime import MakePages
from tenure.server.limits import ServerSettings
from tenure.server.services import Services
from tenure.stores.sqlite.memory import MemoryStore
from tenure.telemetry.security import SecurityLog
from tests.support.coordinators import VirtualClock

_T = TypeVar("_T")

JOB = "01900000-0000-7000-8000-{:012x}"
SETTINGS = ServerSettings(recheck_token_s=0.02, poll_every_s=0.01)


class Answer(msgspec.Struct, frozen=True):
    """What a caller received."""

    status: int
    headers: dict[str, str]
    body: bytes
    cookies: tuple[str, ...] = ()

    @property
    def text(self) -> str:
        return self.body.decode()

    @property
    def json(self) -> Any:
        return json.loads(self.body)

    @property
    def code(self) -> str:
        """The word of a problem."""
        return str(self.json["code"])


class Caller:
    """One request in progress: its pieces are handed over as the application asks for them."""

    def __init__(self, scope: dict[str, Any], pieces: list[bytes]) -> None:
        self.scope = scope
        self.pieces = list(pieces)
        self._hung_up = asyncio.Event()
        self._sent: list[Message] = []

    def hang_up(self) -> None:
        """Go away without waiting for the answer."""
        self._hung_up.set()

    async def receive(self) -> Message:
        if self.pieces:
            piece = self.pieces.pop(0)
            return {"type": "http.request", "body": piece, "more_body": bool(self.pieces)}
        await self._hung_up.wait()
        return {"type": "http.disconnect"}

    async def send(self, message: Message) -> None:
        self._sent.append(message)

    async def run(self, app: ASGIApp) -> Answer:
        await app(self.scope, self.receive, self.send)
        start, *bodies = self._sent
        headers = {name.decode(): text.decode() for name, text in start["headers"]}
        cookies = tuple(t.decode() for name, t in start["headers"] if name == b"set-cookie")
        return Answer(start["status"], headers, b"".join(part["body"] for part in bodies), cookies)


class Stage:
    """A store, a coordinator, the application, and short words for what callers do."""

    def __init__(
        self,
        *,
        authenticated: bool = True,
        settings: ServerSettings = SETTINGS,
        metrics: Callable[[Namespace | None], bytes] | None = None,
        store: Callable[..., MemoryStore] = MemoryStore,
        timeout_s: float = CALL_TIMEOUT_S,
        pages: MakePages | None = None,
        clock: VirtualClock | None = None,
    ) -> None:
        self.clock = clock or VirtualClock()
        self.store = store(clock=self.clock)
        self.coordinator = Coordinator(self.store, monotonic=self.clock, timeout_s=timeout_s)
        self._runner = asyncio.Runner()
        self._numbers = count(1)
        self.noted: list[str] = []
        self.security = SecurityLog(self.noted.append, clock=lambda: 1.8e9)
        given: dict[str, Any] = {"security": self.security}
        if metrics is not None:
            given["metrics"] = metrics
        self.services: Services = self.run(_make(self.coordinator, settings, self.clock, given))
        self.app = make_app(
            self.services,
            authenticated=authenticated,
            pages=None if pages is None else pages(self.services),
        )
        self._everybody: dict[Role, str] = {}

    def close(self) -> None:
        self._runner.close()
        self.services.close()
        self.security.close()
        self.coordinator.close()

    def run(self, work: Coroutine[Any, Any, _T]) -> _T:
        """Run a scenario on the server's own loop."""
        return self._runner.run(work)

    # --- tokens

    def token(self, role: Role, name: str | None = None, **fields: Any) -> str:
        """The text of a new token."""
        return self.new_token(role, name, **fields)[1]

    def new_token(self, role: Role, name: str | None = None, **fields: Any) -> tuple[Token, str]:
        number = next(self._numbers)
        token_id, digest, text = mint(number.to_bytes(2) * (TOKEN_ENTROPY_BYTES // 2))
        new = NewToken(
            id=token_id, secret_sha256=digest, name=name or f"{role}-1", role=role, **fields
        )
        return self.store.tokens.create(new), text

    def of(self, role: Role) -> str:
        """The token of this role that everybody uses."""
        if role not in self._everybody:
            self._everybody[role] = self.token(role, may_declare=role is Role.WORKER)
        return self._everybody[role]

    # --- requests

    def caller(
        self,
        method: str,
        path: str,
        message: object = None,
        *,
        token: str | None = None,
        headers: dict[str, str] | None = None,
        pieces: list[bytes] | None = None,
    ) -> Caller:
        """A request that is ready to go."""
        given = {"host": "localhost:7717"}
        if message is not None:
            given["content-type"] = "application/json"
        if token is not None:
            given["authorization"] = f"Bearer {token}"
        given |= headers or {}
        body = [b"" if message is None else json.dumps(message).encode()]
        plain, _, query = path.partition("?")
        scope = {
            "type": "http",
            "http_version": "1.1",
            "method": method,
            "path": unquote(plain),  # as servers do
            "raw_path": plain.encode(),
            "query_string": query.encode(),
            "root_path": "",
            "scheme": "http",
            "headers": [(name.lower().encode(), text.encode()) for name, text in given.items()],
            "client": ("127.0.0.1", 1),
            "server": ("127.0.0.1", 7717),
        }
        return Caller(scope, pieces if pieces is not None else body)

    async def aask(self, method: str, path: str, message: object = None, **more: Any) -> Answer:
        return await self.caller(method, path, message, **more).run(self.app)

    def ask(self, method: str, path: str, message: object = None, **more: Any) -> Answer:
        """Send a request and wait for the answer."""
        return self.run(self.aask(method, path, message, **more))

    def call(self, name: str, message: object = None, /, *, role: Role, **more: Any) -> Answer:
        """Ask by a route's name, as somebody of this role; words in braces are in `more`."""
        route = BY_NAME[name]
        parts = {field: str(more.pop(field)) for field in route.path_fields}
        return self.ask(
            route.method, route.path.format(**parts), message, token=self.of(role), **more
        )

    # --- jobs

    def enqueue(self, number: int = 1, *, token: str | None = None, **fields: Any) -> str:
        """A job made over the wire; its id."""
        job_id = JOB.format(number)
        message = {"job_id": job_id, "queue": "q", "kind": "k", **fields}
        made = self.ask("POST", "/v1/jobs", message, token=token or self.of(Role.CLIENT))
        assert made.status == 201, made
        return job_id

    def claim_message(self, **fields: Any) -> dict[str, Any]:
        number = next(self._numbers)
        defaults = {"worker": "w", "queues": ["q"], "claim_seq": number}
        return {**defaults, "request_id": f"claim-{number}", **fields}

    def claim(self, *, token: str | None = None, **fields: Any) -> list[dict[str, Any]]:
        """The grants of a claim."""
        message = self.claim_message(**fields)
        found = self.ask("POST", "/v1/claim", message, token=token or self.of(Role.WORKER))
        assert found.status == 200, found
        return list(found.json["grants"])

    def leased(self, number: int = 1, **fields: Any) -> dict[str, Any]:
        """A job that the worker everybody uses has claimed; what a report needs."""
        self.enqueue(number, **fields)
        [grant] = self.claim()
        return {"job_id": grant["job_id"], "lease_id": grant["lease_id"]}

    def job(self, job_id: str) -> Job:
        """The row."""
        return self.store.jobs.load([JobId(job_id)]).jobs[JobId(job_id)]

    def events(self, job_id: str) -> list[Event]:
        """The log."""
        return self.store.events.load([JobId(job_id)])[JobId(job_id)]


async def _make(
    coordinator: Coordinator, settings: ServerSettings, clock: VirtualClock, given: dict[str, Any]
) -> Services:
    return Services(coordinator, settings, monotonic=clock, **given)


async def together(*work: Awaitable[_T]) -> list[_T]:
    """Run several at a time."""
    return list(await asyncio.gather(*work))
