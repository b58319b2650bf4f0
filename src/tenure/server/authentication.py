"""From the `Authorization` header to a principal. [H20] [H25]

Tokens are cached for two seconds after they were read, so that a busy worker costs no reads and a
revoked token is refused soon. The secret is compared by digest, in constant time; a 401 is the same
whether the id exists or not. A made-up token costs a read, so only a few unknown tokens are looked
up at a time, and known ones never wait behind them. [H30]
"""

import asyncio
import hmac
import logging
from collections import OrderedDict

import msgspec

from tenure.core.instants import Instant, seconds
from tenure.core.tokens import LoadedToken, Presented, Token, TokenId, read_token
from tenure.errors import TenureError
from tenure.ports import Store
from tenure.server.principals import Principal
from tenure.server.problems import too_many_unknown_tokens, unauthenticated
from tenure.server.settings import ServerSettings
from tenure.server.threads import Blocking

_log = logging.getLogger("tenure.server")

SCHEME = "bearer "
NOBODY = "0" * 64
LAST_USED_EVERY = seconds(60)


class _Remembered(msgspec.Struct):
    """A cached token, and when this process read it."""

    loaded: LoadedToken
    at_s: float
    is_use_noted: bool = False

    def now(self, at_s: float) -> Instant:
        """The store's clock, estimated without asking the store."""
        return Instant(self.loaded.now + seconds(at_s - self.at_s))


class Authenticator:
    """Checks tokens. Only the event loop's thread uses it."""

    def __init__(self, store: Store, settings: ServerSettings, blocking: Blocking) -> None:
        self._store = store
        self._settings = settings
        self._blocking = blocking
        self._remembered: OrderedDict[TokenId, _Remembered] = OrderedDict()
        self._asking: dict[TokenId, asyncio.Task[_Remembered]] = {}
        self.notes: set[asyncio.Task[None]] = set()
        """Uses of tokens that are being recorded."""
        self._strangers: set[TokenId] = set()
        self._door = asyncio.Semaphore(settings.strangers_at_once)

    async def principal(self, *headers: str) -> Principal:
        """The principal of the `Authorization` header. Raises a 401 problem. Two of them are
        refused: a proxy in front may have checked the other one. [H73]"""
        if not headers:
            raise unauthenticated("a token is required")
        if len(headers) > 1:
            raise unauthenticated("the request has more than one Authorization header")
        [header] = headers
        is_bearer = header[: len(SCHEME)].lower() == SCHEME
        presented = read_token(header[len(SCHEME) :].strip()) if is_bearer else None
        if presented is None:
            raise unauthenticated("this is not a Tenure token")
        token = await self._valid(presented)
        if token is None:
            raise unauthenticated("this token is not valid")
        return Principal(token)

    async def principal_of(self, token_id: TokenId) -> Principal | None:
        """The principal of a token that was shown before, as a signed session says; None if the
        token is no longer valid. [DB4]"""
        remembered = await self._recent(token_id)
        token = remembered.loaded.token
        now = remembered.now(asyncio.get_running_loop().time())
        if token is None or not token.is_valid(now):
            return None
        self._note_use(remembered)
        return Principal(token)

    async def check_still_valid(self, principal: Principal, *, ask: bool = False) -> None:
        """Raise a 401 problem if the token is no longer valid. For requests that take long, and, if
        the store is to be asked now, for requests with lasting effects. [H79]"""
        token = principal.token
        if token is None:
            return
        if ask:
            await self._ask(token.id)
        if await self._valid(Presented(token.id, token.secret_sha256)) is None:
            raise unauthenticated("this token is no longer valid")

    async def _valid(self, presented: Presented) -> Token | None:
        remembered = await self._recent(presented.id)
        token = remembered.loaded.token
        if token is None:
            # Takes as long as for a token that exists, so that timing does not reveal ids.
            hmac.compare_digest(NOBODY, presented.digest)
            return None
        if not token.has_secret(presented.digest):
            return None
        now = remembered.now(asyncio.get_running_loop().time())
        if not token.is_valid(now):
            return None
        self._note_use(remembered)
        return token

    async def _recent(self, token_id: TokenId) -> _Remembered:
        """The token as it was read within the last two seconds."""
        remembered = self._remembered.get(token_id)
        now_s = asyncio.get_running_loop().time()
        if remembered is None or now_s - remembered.at_s > self._settings.recheck_token_s:
            return await self._ask(token_id)
        return remembered

    async def _ask(self, token_id: TokenId) -> _Remembered:
        """Read a token; callers that ask for it meanwhile wait for the same read."""
        task = self._asking.get(token_id)
        if task is None:
            is_known = token_id in self._remembered
            if not is_known and len(self._strangers) >= self._settings.max_strangers:
                raise too_many_unknown_tokens()
            load = self._load if is_known else self._load_stranger
            task = asyncio.create_task(load(token_id))
            self._asking[token_id] = task
            if not is_known:
                self._strangers.add(token_id)
            task.add_done_callback(lambda _: self._asked(token_id))
        return await asyncio.shield(task)

    def _asked(self, token_id: TokenId) -> None:
        del self._asking[token_id]
        self._strangers.discard(token_id)

    async def _load_stranger(self, token_id: TokenId) -> _Remembered:
        async with self._door:
            return await self._load(token_id)

    async def _load(self, token_id: TokenId) -> _Remembered:
        loaded = await self._blocking(lambda: self._store.tokens.load(token_id))
        remembered = _Remembered(loaded, asyncio.get_running_loop().time())
        if loaded.token is not None:  # made-up ids must not evict real ones
            self._remembered[token_id] = remembered
            self._remembered.move_to_end(token_id)
            if len(self._remembered) > self._settings.max_remembered_tokens:
                self._remembered.popitem(last=False)
        return remembered

    def _note_use(self, remembered: _Remembered) -> None:
        """Record the use of a valid token, once for each time that it was read. [H72]"""
        token = remembered.loaded.token
        if token is None or remembered.is_use_noted:
            return
        remembered.is_use_noted = True
        last_at = token.last_used_at
        if last_at is not None and remembered.loaded.now - last_at < LAST_USED_EVERY:
            return
        task = asyncio.create_task(self._write_use(token.id))
        self.notes.add(task)
        task.add_done_callback(self.notes.discard)

    async def _write_use(self, token_id: TokenId) -> None:
        try:
            await self._blocking(lambda: self._store.tokens.use(token_id))
        except TenureError as failure:
            _log.warning("could not record the use of token %s: %s", token_id, failure)
