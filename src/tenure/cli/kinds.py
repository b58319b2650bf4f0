"""`tenure kinds …`: list what is set for kinds, and set it."""

from collections.abc import Collection, Sequence

import click
from msgspec import UNSET, UnsetType

from tenure.cli.application import app_value, load_app, token_for, url_for
from tenure.cli.common import (
    app_url_option,
    coordination,
    json_option,
    namespace_option,
    refuse,
    url_option,
)
from tenure.cli.kind_suggestions import kind_suggestion
from tenure.cli.live_declarations import live_workers, undeclared_kinds
from tenure.cli.output import print_json, print_table, printable, say
from tenure.cli.rates import given_rate, rate_in_words, rate_options
from tenure.core.checks import check_name
from tenure.core.concurrency import check_concurrency_limit
from tenure.core.ids import Kind, Namespace
from tenure.core.kind_settings import KindChange, KindSettings
from tenure.core.policy import policy_in_words
from tenure.errors import InvalidInput
from tenure.ports import Coordination
from tenure.protocol.records import KindRecord, kind_record
from tenure.telemetry.kind_names import is_known_kind
from tenure.worker.supervisor.declarations import change_in_words, settings_of, without_limits


@click.group()
def kinds() -> None:
    """List what is set for kinds, and set it."""


@kinds.command(name="ls")
@url_option
@json_option(list[KindRecord])
@namespace_option
def list_kinds(url: str | None, as_json: bool, namespace: str) -> None:
    """List kinds with their rates and limits, and the policy of jobs that are enqueued without one.

    Workers declare it. A kind without a policy has not been declared by any worker: its jobs get
    the default policy, unless their enqueue brings one.
    """
    with coordination(url) as serving:
        check_name("namespace", namespace)
        found = serving.store.settings.kinds(Namespace(namespace))
    if as_json:
        print_json([kind_record(each) for each in found])
        return
    print_table(
        ["KIND", "RATE", "BURST", "PER KEY", "FAIR", "POLICY"],
        [
            (
                each.kind,
                each.rate,
                None if each.rate is None else each.rate.burst,
                each.concurrency_limit,
                "yes" if each.fair else None,
                None if each.policy is None else policy_in_words(each.policy),
            )
            for each in found
        ],
    )


@kinds.command(name="sync")
@app_url_option
@click.option(
    "--prune",
    is_flag=True,
    help="Also remove what is set for kinds of the application that declare nothing.",
)
@click.option(
    "--from",
    "former",
    metavar="KIND",
    multiple=True,
    help="A former kind of the application: --prune removes what is set for it. May be repeated.",
)
@click.argument("app", metavar="MODULE:APP", required=False, callback=app_value)
def sync_kinds(url: str | None, prune: bool, former: tuple[str, ...], app: str) -> None:
    """Write what the application declares for its kinds: a step of a deploy.

    A worker writes only what the store has never seen. Kinds that already have what is declared
    stay as they are. Kinds that workers declared before, and that neither the application nor a
    live worker has, are named.
    """
    found = load_app(app)
    declared = {each.kind: each for each in settings_of(found.registry)}
    chosen = url_for(found, url, tell=say)
    with coordination(chosen, create=True, token=token_for(found, url)) as serving:
        stored = {each.kind: each for each in serving.store.settings.kinds(found.namespace)}
        for kind, wanted in sorted(declared.items()):
            before = stored.get(kind)
            removes = prune and before is not None and before.has_limits and not wanted.has_limits
            if before is not None and before.is_declared_as(wanted) and not removes:
                click.echo(f"{kind}: {wanted}, as before")
                continue
            change = without_limits(wanted) if removes else wanted.as_change()
            kept = serving.store.settings.put_kind(found.namespace, change)
            click.echo(f"{kind}: {change_in_words(before, kept)}")
        others = [each for each in stored.values() if each.kind not in declared]
        for gone in _gone(serving, found.namespace, others, former):
            if prune and gone in former:
                nothing = KindChange(
                    kind=gone, rate=None, concurrency_limit=None, fair=False, policy=None
                )
                serving.store.settings.put_kind(found.namespace, nothing)
                click.echo(f"{gone}: removed")
            elif gone in former:
                click.echo(f"{gone}: kept, --prune removes it")
            else:
                click.echo(
                    f"{gone}: kept: neither the application nor a live worker has this kind;"
                    f" --prune --from {gone} removes it"
                )
    for name in sorted(set(former) - stored.keys()):
        say(f"nothing is set for kind {name}")
    if not declared:
        click.echo("the application has no kinds", err=True)


def _gone(
    serving: Coordination,
    namespace: Namespace,
    others: Sequence[KindSettings],
    former: Collection[str],
) -> list[Kind]:
    """Former kinds of the application, and kinds that neither it nor a live worker has. `others`
    are the stored kinds that it does not have."""
    workers = live_workers(serving.store, namespace, serving.store.now())
    undeclared = undeclared_kinds(others, workers)
    return [each.kind for each in others if each.kind in former or each.kind in undeclared]


@kinds.command(name="limit")
@url_option
@namespace_option
@rate_options
@click.option(
    "--concurrency-limit",
    metavar="JOBS",
    help="At most so many jobs of each concurrency key run at a time; none means 1.",
)
@click.option(
    "--fair/--not-fair",
    default=None,
    help="Whether the concurrency keys of KIND take turns.",
)
@click.option("--create", is_flag=True, help="Set it even if no worker or job has KIND yet.")
@click.argument("kind")
def limit_kind(
    url: str | None,
    namespace: str,
    rate: str | None,
    burst: int | None,
    concurrency_limit: str | None,
    fair: bool | None,
    create: bool,
    kind: str,
) -> None:
    """Limit how many jobs of KIND begin per second, in all queues and on all workers together, and
    how many of each concurrency key run at a time.

    --rate 10/s lets at most 10 jobs begin per second, --burst 5 up to 5 of them at once; --rate
    none removes the rate. If jobs have a rate key, the rate counts for each key alone.
    --concurrency-limit 2 lets two jobs of each concurrency key run, --fair lets these keys take
    turns; KIND may also be the name of a group of keys. What is not given stays as it is.
    """
    if rate is None and concurrency_limit is None and fair is None:
        raise click.UsageError("give --rate, --concurrency-limit, --fair or --not-fair")
    wanted = given_rate(rate, burst)
    limit = _given_limit(concurrency_limit)
    with coordination(url) as serving:
        check_name("namespace", namespace)
        check_name("KIND", kind)
        if not create and not is_known_kind(serving.store, Namespace(namespace), kind):
            meant = kind_suggestion(serving, Namespace(namespace), kind)
            refuse(f"no worker or job has kind {kind} so far.{meant} --create sets it anyway")
        change = KindChange(
            kind=Kind(kind),
            rate=wanted,
            concurrency_limit=limit,
            fair=UNSET if fair is None else fair,
        )
        kept = serving.store.settings.put_kind(Namespace(namespace), change)
    said = "no rate" if kept.rate is None else rate_in_words(kept.rate)
    if kept.concurrency_limit is not None:
        said += f", at most {kept.concurrency_limit} at a time for each key"
    if kept.fair:
        said += ", keys take turns"
    click.echo(f"{printable(kind)}: {said}")


def _given_limit(text: str | None) -> int | UnsetType | None:
    if text is None:
        return UNSET
    if text.strip().lower() == "none":
        return None
    number = int(text) if text.isascii() and text.isdecimal() else text
    try:
        check_concurrency_limit("--concurrency-limit", number)
    except InvalidInput as wrong:
        raise click.UsageError(str(wrong)) from wrong
    return int(number)
