"""`tenure tokens …`: who may use the HTTP server, and for what."""

import os
from typing import Any

import click
from msgspec import UNSET, UnsetType

from tenure.cli.errors import refuse
from tenure.cli.invocation import Invocation, Listing, command, list_command
from tenure.cli.options import choice, duration_value, flag, store_url_option, whole_number
from tenure.cli.output import ago, print_json, printable, say
from tenure.core.checks import check_name
from tenure.core.ids import SHORTEST_PREFIX
from tenure.core.instants import Instant
from tenure.core.tokens import (
    DEFAULT_MAX_LEASES,
    DEFAULT_MAX_POLLS,
    TOKEN_ENTROPY_BYTES,
    NewToken,
    Token,
    check_new_token,
    mint,
)
from tenure.core.vocabulary import Role, counted
from tenure.protocol.records import DerivedRecord
from tenure.protocol.translation import derived, to_wire


@derived(Token, without=("secret_sha256",))
class TokenView(DerivedRecord, frozen=True, kw_only=True):
    """A token without its secret, which is not stored."""

    state: str
    token: str | UnsetType = UNSET


def _state(token: Token, now: Instant) -> str:
    if token.revoked_at is not None:
        return "revoked"
    return "valid" if token.is_valid(now) else "expired"


def _view(token: Token, now: Instant, text: str | UnsetType = UNSET) -> TokenView:
    return to_wire(TokenView, token, state=_state(token, now), token=text)


@click.group()
def tokens() -> None:
    """Create tokens for the HTTP server, list them, revoke them."""


@command(tokens, "create", json=TokenView, url=store_url_option)
@choice("--role", words_of=Role, required=True, help="What its holder may do.")
@click.option(
    "--queue",
    "-q",
    "queues",
    multiple=True,
    help="Only jobs of this queue; may be repeated. [default: all]",
)
@click.option(
    "--kind",
    "-k",
    "kinds",
    multiple=True,
    help="Only jobs of this kind; may be repeated. [default: all]",
)
@click.option(
    "--expires",
    "expires_in_us",
    callback=duration_value,
    help="Valid for this long, as in 90d. [default: until it is revoked]",
)
@whole_number(
    "--max-leases",
    least=1,
    default=DEFAULT_MAX_LEASES,
    help="Its holder may have this many leases at the same time.",
)
@whole_number(
    "--max-polls",
    least=1,
    default=DEFAULT_MAX_POLLS,
    help="Its holder may have this many waiting claims at the same time.",
)
@flag(
    "--may-declare",
    help="For a worker: it may write what its code declares, which is new schedules and, unless the"
    " token is limited to queues, rates, limits and policies of kinds.",
)
@click.argument("name")
def create_token(cli: Invocation, **fields: Any) -> None:
    """Create a token for NAME and print it.

    It is shown only once. Tokens of the same role, name and namespace belong to the same principal.
    To replace one without losing leases, create a second one, use it everywhere, then revoke the
    first.

    \b
    Examples:
      tenure tokens create shop --role client
      tenure tokens create fleet --role worker --queue mail --expires 90d
    """
    token_id, digest, text = mint(os.urandom(TOKEN_ENTROPY_BYTES))
    new = NewToken(id=token_id, secret_sha256=digest, namespace=cli.namespace, **fields)
    check_new_token(new)
    made = cli.open_store(create=True).tokens.create(new)
    if cli.as_json:
        print_json(_view(made, made.created_at, text))
        return
    click.echo(text)
    click.echo(
        f"token {made.id} acts as {printable(made.actor)}; save it, it is not shown again",
        err=True,
    )


@list_command(tokens, json=list[TokenView], url=store_url_option, namespace=None)
def list_tokens(cli: Invocation) -> Listing[Token]:
    """List tokens, oldest first, without their secrets."""
    store = cli.own_store
    now = store.now()
    return Listing(
        store.tokens.all(),
        {
            "ID": lambda token: token.id,
            "STATE": lambda token: _state(token, now),
            "ROLE": lambda token: token.role,
            "NAME": lambda token: token.name,
            "NAMESPACE": lambda token: token.namespace,
            "QUEUES": lambda token: ",".join(token.queues) or "all",
            "KINDS": lambda token: ",".join(token.kinds) or "all",
            "DECLARES": lambda token: "yes" if token.may_declare else None,
            "EXPIRES": lambda token: ago(token.expires_at, now),
            "LAST USED": lambda token: ago(token.last_used_at, now),
        },
        document=lambda token: _view(token, now),
        optional=("NAMESPACE", "QUEUES", "KINDS", "DECLARES", "LAST USED"),
    )


@command(tokens, "revoke", url=store_url_option, namespace=None)
@click.argument("token_id", metavar="ID")
def revoke_token(cli: Invocation, token_id: str) -> None:
    """Revoke the token ID for good; servers refuse it within five seconds.

    Unless its holder has another valid token (same role, name and namespace), the schedules that
    the holder changed last are paused. A token that only expires pauses nothing.
    """
    if token_id.startswith("tenure_"):
        # The message does not repeat the secret: it may end up in a log.
        refuse("give the token's id, not the token; the id is the part between the underscores")
    check_name("ID", token_id)
    store = cli.own_store
    begun = [token.id for token in store.tokens.all() if token.id.startswith(token_id)]
    if len(token_id) < SHORTEST_PREFIX or not begun:
        refuse(f"there is no token {token_id}; see `tenure tokens ls`")
    if len(begun) > 1:
        refuse(f"{counted(len(begun), 'token')} have an id that begins with {token_id}:", begun)
    paused = store.tokens.revoke(begun[0])
    if not paused:
        click.echo(f"{begun[0]}: revoked")
        return
    names = ", ".join(map(printable, paused))
    click.echo(f"{begun[0]}: revoked; {counted(len(paused), 'schedule')} paused: {names}")
    say("`tenure schedules resume SCHEDULE` fires one again, on behalf of who resumes it")
