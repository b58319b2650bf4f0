"""`tenure tokens …`: who may use the HTTP server, and for what."""

import os
from typing import NoReturn

import click
import msgspec

from tenure.cli.common import (
    coordinator,
    duration_value,
    json_option,
    namespace_option,
    refuse,
    store_url_option,
)
from tenure.cli.output import ago, print_json, print_table, printable, say
from tenure.core.checks import check_name
from tenure.core.counting import counted
from tenure.core.ids import SHORTEST_PREFIX, Kind, Namespace, QueueName
from tenure.core.instants import Duration, Instant
from tenure.core.tokens import (
    DEFAULT_MAX_LEASES,
    DEFAULT_MAX_POLLS,
    TOKEN_ENTROPY_BYTES,
    NewToken,
    Token,
    check_new_token,
    mint,
)
from tenure.core.vocabulary import Role
from tenure.protocol.fields import iso


class TokenView(msgspec.Struct, frozen=True, kw_only=True):
    """A token as it is shown: everything but its secret, which is not stored."""

    id: str
    state: str
    role: str
    name: str
    namespace: str
    queues: tuple[str, ...]
    kinds: tuple[str, ...]
    max_leases: int
    max_polls: int
    may_declare: bool
    created_at: str | None
    expires_at: str | None
    revoked_at: str | None
    last_used_at: str | None
    token: str | msgspec.UnsetType = msgspec.UNSET


def _view(token: Token, now: Instant, *, text: str | None = None) -> TokenView:
    state = "valid" if token.is_valid(now) else "expired"
    return TokenView(
        id=token.id,
        state=state if token.revoked_at is None else "revoked",
        role=token.role,
        name=token.name,
        namespace=token.namespace,
        queues=token.queues,
        kinds=token.kinds,
        max_leases=token.max_leases,
        max_polls=token.max_polls,
        may_declare=token.may_declare,
        created_at=iso(token.created_at),
        expires_at=iso(token.expires_at),
        revoked_at=iso(token.revoked_at),
        last_used_at=iso(token.last_used_at),
        token=msgspec.UNSET if text is None else text,
    )


@click.group()
def tokens() -> None:
    """Create tokens for the HTTP server, list them, revoke them."""


@tokens.command(name="create")
@store_url_option
@json_option(TokenView)
@namespace_option
@click.option(
    "--role",
    type=click.Choice([role.value for role in Role]),
    required=True,
    help="What its holder may do.",
)
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
    callback=duration_value,
    help="Valid for this long, as in 90d. [default: until it is revoked]",
)
@click.option(
    "--max-leases",
    type=click.IntRange(1),
    default=DEFAULT_MAX_LEASES,
    show_default=True,
    help="Its holder may have this many leases at the same time.",
)
@click.option(
    "--max-polls",
    type=click.IntRange(1),
    default=DEFAULT_MAX_POLLS,
    show_default=True,
    help="Its holder may have this many waiting claims at the same time.",
)
@click.option(
    "--may-declare",
    is_flag=True,
    help="For a worker: it may write what its code declares, which is new schedules and, unless the"
    " token is limited to queues, rates, limits and policies of kinds.",
)
@click.argument("name")
def create_token(
    url: str | None,
    as_json: bool,
    namespace: str,
    role: str,
    queues: tuple[str, ...],
    kinds: tuple[str, ...],
    expires: Duration | None,
    max_leases: int,
    max_polls: int,
    may_declare: bool,
    name: str,
) -> None:
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
    new = NewToken(
        id=token_id,
        secret_sha256=digest,
        name=name,
        role=Role(role),
        namespace=Namespace(namespace),
        queues=tuple(QueueName(queue) for queue in queues),
        kinds=tuple(Kind(kind) for kind in kinds),
        expires_in_us=expires,
        max_leases=max_leases,
        max_polls=max_polls,
        may_declare=may_declare,
    )
    with coordinator(url, create=True) as serving:
        check_new_token(new)
        made = serving.store.tokens.create(new)
    if as_json:
        print_json(_view(made, made.created_at, text=text))
        return
    click.echo(text)
    click.echo(
        f"token {made.id} acts as {printable(made.actor)}; save it, it is not shown again",
        err=True,
    )


@tokens.command(name="ls")
@store_url_option
@json_option(list[TokenView])
def list_tokens(url: str | None, as_json: bool) -> None:
    """List tokens, oldest first, without their secrets."""
    with coordinator(url) as serving:
        now = serving.store.now()
        found = serving.store.tokens.all()
    views = [_view(token, now) for token in found]
    if as_json:
        print_json(views)
        return
    print_table(
        [
            *("ID", "STATE", "ROLE", "NAME", "NAMESPACE", "QUEUES", "KINDS", "DECLARES"),
            *("EXPIRES", "LAST USED"),
        ],
        [
            (
                view.id,
                view.state,
                view.role,
                view.name,
                view.namespace,
                ",".join(view.queues) or "all",
                ",".join(view.kinds) or "all",
                "yes" if view.may_declare else None,
                ago(token.expires_at, now),
                ago(token.last_used_at, now),
            )
            for token, view in zip(found, views, strict=True)
        ],
        optional=("NAMESPACE", "QUEUES", "KINDS", "DECLARES", "LAST USED"),
    )


@tokens.command(name="revoke")
@store_url_option
@click.argument("token_id", metavar="ID")
def revoke_token(url: str | None, token_id: str) -> None:
    """Revoke the token ID for good; servers refuse it within five seconds.

    Unless its holder has another valid token (same role, name and namespace), the schedules that
    the holder changed last are paused. A token that only expires pauses nothing.
    """
    if token_id.startswith("tenure_"):
        _refuse_secret()
    with coordinator(url) as serving:
        check_name("ID", token_id)
        begun = [token.id for token in serving.store.tokens.all() if token.id.startswith(token_id)]
        if len(token_id) < SHORTEST_PREFIX or not begun:
            refuse(f"there is no token {token_id}; see `tenure tokens ls`")
        if len(begun) > 1:
            refuse(f"{counted(len(begun), 'token')} have an id that begins with {token_id}:", begun)
        paused = serving.store.tokens.revoke(begun[0])
    if not paused:
        click.echo(f"{begun[0]}: revoked")
        return
    names = ", ".join(map(printable, paused))
    click.echo(f"{begun[0]}: revoked; {counted(len(paused), 'schedule')} paused: {names}")
    say("`tenure schedules resume SCHEDULE` fires one again, on behalf of who resumes it")


def _refuse_secret() -> NoReturn:
    # The message does not repeat the secret: it may end up in a log.
    refuse("give the token's id, not the token; the id is the part between the underscores")
