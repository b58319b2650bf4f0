"""Tokens: what a holder may do, how the secret is made and how it is recognised. Pure.

A token is `tenure_ID_SECRET`. The id finds the row; only a digest of the secret is kept, so that
a reader of the store cannot use any token. Randomness is an argument. [H20]
"""

import hashlib
import hmac
import re
from typing import NewType

import msgspec

from tenure.core.checks import MAX_COUNT, check_duration, check_name
from tenure.core.ids import DEFAULT_NAMESPACE, Actor, Kind, Namespace, QueueName
from tenure.core.instants import Duration, Instant
from tenure.core.vocabulary import Role
from tenure.errors import InvalidInput

TokenId = NewType("TokenId", str)

ID_BYTES = 8
SECRET_BYTES = 32
TOKEN_ENTROPY_BYTES = ID_BYTES + SECRET_BYTES
MAX_TOKEN_NAME = 64
MAX_SCOPE_NAMES = 64
DEFAULT_MAX_LEASES = 10_000
DEFAULT_MAX_POLLS = 1_000

TOKEN_PATTERN = re.compile(r"tenure_([0-9a-f]{16})_([0-9a-f]{64})")
TOKEN_NAME_PATTERN = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]*")


class _Token(msgspec.Struct, frozen=True, kw_only=True):
    id: TokenId
    secret_sha256: str
    name: str
    role: Role
    namespace: Namespace = DEFAULT_NAMESPACE
    queues: tuple[QueueName, ...] = ()
    kinds: tuple[Kind, ...] = ()
    max_leases: int = DEFAULT_MAX_LEASES
    max_polls: int = DEFAULT_MAX_POLLS
    may_declare: bool = False
    """Whether a worker may write what its application declares: kinds and new schedules. [H78]"""


class NewToken(_Token, frozen=True, kw_only=True):
    """A token that is to be kept. No queues, or no kinds, means all of them."""

    expires_in_us: Duration | None = None


class Token(_Token, frozen=True, kw_only=True):
    """A token as the store keeps it."""

    created_at: Instant
    expires_at: Instant | None = None
    revoked_at: Instant | None = None
    last_used_at: Instant | None = None

    @property
    def actor(self) -> Actor:
        """The principal its holder acts as: tokens of one role, name and namespace share it, so
        that one can replace another without losing leases. A producer is a client that sees less,
        and has no leases. [H23]"""
        role = Role.CLIENT if self.role is Role.PRODUCER else self.role
        if self.namespace == DEFAULT_NAMESPACE:
            return Actor(f"{role}:{self.name}")
        # A token's name has no slash, so no token of another namespace is called the same.
        return Actor(f"{role}:{self.namespace}/{self.name}")

    def is_valid(self, now: Instant) -> bool:
        """Whether it is valid at `now`. [H20]"""
        return self.revoked_at is None and (self.expires_at is None or now < self.expires_at)

    def has_secret(self, digest: str) -> bool:
        """Whether this is the digest of its secret. A wrong digest takes the same time."""
        return hmac.compare_digest(self.secret_sha256, digest)


class LoadedToken(msgspec.Struct, frozen=True):
    """A token, if there is one, and the store's clock when it was read."""

    now: Instant
    token: Token | None


class Presented(msgspec.Struct, frozen=True):
    """A token as a caller sent it: its id, and the digest of the secret."""

    id: TokenId
    digest: str


def digest_of(secret: str) -> str:
    """What is kept of a secret: 256 random bits need no salt and no slow hash."""
    return hashlib.sha256(secret.encode()).hexdigest()


def mint(entropy: bytes) -> tuple[TokenId, str, str]:
    """A new token's id, the digest to keep, and the text to show once."""
    token_id, secret = entropy[:ID_BYTES].hex(), entropy[ID_BYTES:TOKEN_ENTROPY_BYTES].hex()
    return TokenId(token_id), digest_of(secret), f"tenure_{token_id}_{secret}"


def read_token(text: str) -> Presented | None:
    """Parse a token; None if the text is not one."""
    found = TOKEN_PATTERN.fullmatch(text)
    if found is None:
        return None
    return Presented(TokenId(found[1]), digest_of(found[2]))


def check_new_token(new: NewToken) -> None:
    """Raise `InvalidInput` unless every field is within its limits."""
    check_name("namespace", new.namespace)
    if len(new.name) > MAX_TOKEN_NAME or TOKEN_NAME_PATTERN.fullmatch(new.name) is None:
        raise InvalidInput(
            "name",
            f"{ascii(new.name)[:60]} is not a token's name",
            hint=f"up to {MAX_TOKEN_NAME} ASCII letters, digits and . _ -",
        )
    for field, names in (("queues", new.queues), ("kinds", new.kinds)):
        if len(names) > MAX_SCOPE_NAMES or len(set(names)) != len(names):
            raise InvalidInput(field, f"up to {MAX_SCOPE_NAMES} different names are allowed")
        for name in names:
            check_name(field, name)
    if new.expires_in_us is not None:
        check_duration("expires", new.expires_in_us)
        if new.expires_in_us == 0:
            raise InvalidInput("expires", "is 0: the token would never be valid")
    if new.may_declare and new.role is not Role.WORKER:
        raise InvalidInput("may_declare", "is for the tokens of workers", hint="leave it out")
    for field, limit in (("max_leases", new.max_leases), ("max_polls", new.max_polls)):
        if not 1 <= limit <= MAX_COUNT:
            raise InvalidInput(field, f"{limit} is outside 1 to {MAX_COUNT}")
