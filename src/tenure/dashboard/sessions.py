"""Sessions of browsers: what a cookie says, and its signature. Pure. [DB3]

A cookie names a token by its id and never holds the token. It is signed with the key of this
installation, so nothing is stored for a session. A visitor who has not signed in has a session
too, without a token: forms are bound to it. [DB6]
"""

import base64
import hashlib
import hmac
import re

import msgspec

from tenure.core.instants import Instant, seconds
from tenure.core.tokens import TokenId

KEY_BYTES = 32
NONCE_BYTES = 16
SESSION_LENGTH = seconds(12 * 3600)
MAX_COOKIE = 512
NOTICE_LENGTH = seconds(60)
MAX_NOTICE = 400
"""Characters of a message that the next page shows."""

_COOKIE = re.compile(r"([0-9a-f]{16}|-)\.(\d{1,18})\.([0-9a-f]{32})\.([0-9a-f]{64})")
_NOTICE = re.compile(r"([A-Za-z0-9_=-]{1,4000})\.(\d{1,18})\.([0-9a-f]{64})")


class BrowserSession(msgspec.Struct, frozen=True, kw_only=True):
    """A browser that visits; `token_id` is None until it signs in."""

    token_id: TokenId | None
    expires_at: Instant
    nonce: str


class Notice(msgspec.Struct, frozen=True):
    """A message for the next page: what an action did, and where that leads on."""

    text: str
    is_good: bool = True
    link_text: str = ""
    link_path: str = ""


class Signer:
    """Signs cookies and form tokens with the key of this installation."""

    def __init__(self, key: bytes) -> None:
        assert len(key) >= KEY_BYTES
        self._key = key

    def cookie(self, session: BrowserSession) -> str:
        """The text of a session's cookie."""
        text = f"{session.token_id or '-'}.{session.expires_at}.{session.nonce}"
        return f"{text}.{self._mac('session', text)}"

    def session(self, cookie: str | None, *, now: Instant) -> BrowserSession | None:
        """The session of a cookie; None if it was not signed here or is over."""
        found = None if cookie is None else _COOKIE.fullmatch(cookie[:MAX_COOKIE])
        if found is None:
            return None
        text = f"{found[1]}.{found[2]}.{found[3]}"
        if not hmac.compare_digest(self._mac("session", text), found[4]):
            return None
        expires_at = Instant(int(found[2]))
        token_id = None if found[1] == "-" else TokenId(found[1])
        if now >= expires_at:
            return None
        return BrowserSession(token_id=token_id, expires_at=expires_at, nonce=found[3])

    def form_token(self, session: BrowserSession) -> str:
        """What a form of this session has to send back. [DB6]"""
        return self._mac("form", session.nonce)

    def is_form_token(self, session: BrowserSession, text: str) -> bool:
        """Whether a form was made for this session."""
        return hmac.compare_digest(self.form_token(session).encode(), text.encode())

    def notice(self, notice: Notice, session: BrowserSession, *, now: Instant) -> str:
        """The text of a notice's cookie."""
        cut = msgspec.structs.replace(notice, text=notice.text[:MAX_NOTICE])
        text = base64.urlsafe_b64encode(msgspec.json.encode(cut)).decode()
        until = now + NOTICE_LENGTH
        return f"{text}.{until}.{self._mac('notice', session.nonce, text, str(until))}"

    def read_notice(
        self, cookie: str | None, session: BrowserSession, *, now: Instant
    ) -> Notice | None:
        """The notice of a cookie; None if it is not of this session or is over."""
        found = None if cookie is None else _NOTICE.fullmatch(cookie)
        if found is None or now >= int(found[2]):
            return None
        expected = self._mac("notice", session.nonce, found[1], found[2])
        if not hmac.compare_digest(expected, found[3]):
            return None
        return msgspec.json.decode(base64.urlsafe_b64decode(found[1]), type=Notice)

    def _mac(self, purpose: str, *parts: str) -> str:
        """A MAC over the purpose and the parts, which contain no line feed."""
        return hmac.new(
            self._key, "\n".join((purpose, *parts)).encode(), hashlib.sha256
        ).hexdigest()


def new_session(token_id: TokenId | None, *, now: Instant, entropy: bytes) -> BrowserSession:
    """A session that starts now."""
    assert len(entropy) == NONCE_BYTES
    return BrowserSession(
        token_id=token_id, expires_at=Instant(now + SESSION_LENGTH), nonce=entropy.hex()
    )
