"""Tokens: kept by digest, found by id, ended for good."""

from typing import Any

from tenure.core.ids import DEFAULT_NAMESPACE, Kind, Namespace, QueueName, worker_actor
from tenure.core.instants import Instant, seconds
from tenure.core.tokens import (
    TOKEN_ENTROPY_BYTES,
    LoadedToken,
    NewToken,
    Token,
    TokenId,
    mint,
    read_token,
)
from tenure.core.vocabulary import Role
from tenure_conformance.harness import WORKER, Kit
from tenure_conformance.spec import spec


def _create(kit: Kit, number: int = 1, **fields: Any) -> tuple[Token, str]:
    token_id, digest, text = mint(bytes([number]) * TOKEN_ENTROPY_BYTES)
    defaults: dict[str, Any] = {"name": "w", "role": Role.WORKER}
    new = NewToken(id=token_id, secret_sha256=digest, **(defaults | fields))
    return kit.store.tokens.create(new), text


@spec("H20")
def test_a_token_is_kept_with_its_scope_and_the_stores_instants(kit: Kit) -> None:
    now = kit.now()
    queues, kinds = (QueueName("a"), QueueName("b")), (Kind("mail"),)

    token, text = _create(
        kit,
        namespace=Namespace("other"),
        queues=queues,
        kinds=kinds,
        expires_in_us=seconds(60),
        max_leases=3,
        max_polls=2,
        may_declare=True,
    )

    presented = read_token(text)
    assert presented is not None
    assert token == Token(
        id=presented.id,
        secret_sha256=presented.digest,
        name="w",
        role=Role.WORKER,
        namespace=Namespace("other"),
        queues=queues,
        kinds=kinds,
        max_leases=3,
        max_polls=2,
        may_declare=True,
        created_at=now,
        expires_at=Instant(now + seconds(60)),
    )
    assert kit.store.tokens.load(token.id) == LoadedToken(now, token)


@spec("H20")
def test_an_unknown_token_is_not_found(kit: Kit) -> None:
    found = kit.store.tokens.load(TokenId("00" * 8))

    assert found.token is None
    assert kit.store.tokens.revoke(TokenId("00" * 8)) is None
    kit.store.tokens.use(TokenId("00" * 8))
    assert kit.store.tokens.all() == []


@spec("H20")
def test_a_token_is_valid_until_it_expires(kit: Kit) -> None:
    token, _ = _create(kit, expires_in_us=seconds(60))
    before = token.is_valid(kit.now())

    kit.advance(seconds=60)

    assert before
    assert not token.is_valid(kit.store.tokens.load(token.id).now)


@spec("H20")
def test_a_revoked_token_stays_revoked_at_the_first_instant(kit: Kit) -> None:
    token, _ = _create(kit)
    at = kit.now()
    first = kit.store.tokens.revoke(token.id)
    kit.advance(seconds=5)
    again = kit.store.tokens.revoke(token.id)

    found = kit.store.tokens.load(token.id)

    assert first == again == ()
    assert found.token is not None
    assert found.token.revoked_at == at
    assert not found.token.is_valid(found.now)


def test_tokens_are_listed_oldest_first_and_remember_their_last_use(kit: Kit) -> None:
    old, _ = _create(kit, 1)
    kit.advance(seconds=1)
    new, _ = _create(kit, 2, role=Role.VIEWER)
    kit.store.tokens.use(old.id)

    listed = kit.store.tokens.all()

    assert [token.id for token in listed] == [old.id, new.id]
    assert [token.last_used_at for token in listed] == [kit.now(), None]


def test_the_leases_of_a_principal_are_counted(kit: Kit) -> None:
    kit.enqueue()
    kit.enqueue()
    kit.enqueue()
    before = kit.store.tokens.count_leases(DEFAULT_NAMESPACE, WORKER)

    kit.claim(limit=2)

    assert before == 0
    assert kit.store.tokens.count_leases(DEFAULT_NAMESPACE, WORKER) == 2
    assert kit.store.tokens.count_leases(DEFAULT_NAMESPACE, worker_actor("another")) == 0
    assert kit.store.tokens.count_leases(Namespace("elsewhere"), WORKER) == 0


@spec("H20")
def test_a_token_of_every_role_is_kept(kit: Kit) -> None:
    made = [_create(kit, number + 1, role=role)[0] for number, role in enumerate(Role)]

    assert [kit.store.tokens.load(token.id).token for token in made] == made
    assert [token.role for token in made] == list(Role)
