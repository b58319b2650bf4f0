"""`tenure kinds …`: list what is set for kinds, and set it."""

from collections.abc import Collection, Sequence

import click
from msgspec import UNSET, UnsetType

from tenure.cli.invocation import Invocation, Listing, command, list_command
from tenure.cli.options import app_argument, app_url_option, flag
from tenure.cli.output import printable, say
from tenure.cli.queues import given_rate, rate_in_words, rate_options
from tenure.cli.schedules import live_workers
from tenure.core.ids import Kind, Namespace
from tenure.core.kind_settings import KindChange, KindSettings
from tenure.core.policy import policy_in_words
from tenure.protocol.records import KindRecord, kind_record


@click.group()
def kinds() -> None:
    """List what is set for kinds, and set it."""


@list_command(kinds, json=list[KindRecord])
def list_kinds(cli: Invocation) -> Listing[KindSettings]:
    """List kinds with their rates and limits, and the policy of jobs that are enqueued without one.

    Workers declare it. A kind without a policy has not been declared by any worker: its jobs get
    the default policy, unless their enqueue brings one.
    """
    return Listing(
        cli.store.settings.kinds(cli.namespace),
        {
            "KIND": lambda each: each.kind,
            "RATE": lambda each: each.rate,
            "BURST": lambda each: None if each.rate is None else each.rate.burst,
            "PER KEY": lambda each: each.concurrency_limit,
            "POLICY": lambda each: None if each.policy is None else policy_in_words(each.policy),
        },
        document=kind_record,
    )


@command(kinds, "sync", url=app_url_option, namespace=None)
@flag("--prune", help="Also remove what is set for kinds of the application that declare nothing.")
@click.option(
    "--from",
    "former",
    metavar="KIND",
    multiple=True,
    help="A former kind of the application: --prune removes what is set for it. May be repeated.",
)
@app_argument
def sync_kinds(cli: Invocation, prune: bool, former: tuple[str, ...], app: str) -> None:
    """Write what the application declares for its kinds: a step of a deploy.

    A worker writes only what the store has never seen. Kinds that already have what is declared
    stay unchanged. Kinds that workers declared before, and that neither the application nor a
    live worker has, are named.
    """
    # Here: they take as long to import as all the rest.
    from tenure.cli.application import load_app, open_for
    from tenure.worker.supervisor.declarations import change_in_words, without_limits

    found = load_app(app)
    declared = {each.kind: each.settings for each in found.registry}
    open_for(cli, found)
    stored = {each.kind: each for each in cli.store.settings.kinds(found.namespace)}
    for kind, wanted in sorted(declared.items()):
        before = stored.get(kind)
        removes = prune and before is not None and before.has_limits and not wanted.has_limits
        if before is not None and before.is_declared_as(wanted) and not removes:
            click.echo(f"{kind}: {wanted}, as before")
            continue
        change = without_limits(wanted) if removes else wanted.as_change()
        kept = cli.store.settings.put_kind(found.namespace, change)
        click.echo(f"{kind}: {change_in_words(before, kept)}")
    others = [each for each in stored.values() if each.kind not in declared]
    for gone in _gone(cli, found.namespace, others, former):
        if prune and gone in former:
            nothing = KindChange(kind=gone, rate=None, concurrency_limit=None, policy=None)
            cli.store.settings.put_kind(found.namespace, nothing)
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
    cli: Invocation,
    namespace: Namespace,
    others: Sequence[KindSettings],
    former: Collection[str],
) -> list[Kind]:
    """Former kinds of the application, and kinds that were declared and that neither it nor a live
    worker has, unless a worker runs all kinds. `others` are the stored kinds that it does not have;
    one without a policy, which only a declaration sets, was set by hand."""
    workers = live_workers(cli.store, namespace, cli.now)
    runs_all = workers is None or any(not each.kinds for each in workers)
    live = {kind for each in workers or () for kind in each.kinds}
    return [
        each.kind
        for each in others
        if each.kind in former or not (runs_all or each.policy is None or each.kind in live)
    ]


@command(kinds, "limit")
@rate_options
@click.option(
    "--concurrency-limit",
    metavar="JOBS",
    help="At most this many jobs of each concurrency key run at a time; none means 1.",
)
@flag("--create", help="Set it even if no worker or job has KIND yet.")
@click.argument("kind")
def limit_kind(
    cli: Invocation,
    rate: str | None,
    burst: int | None,
    concurrency_limit: str | None,
    create: bool,
    kind: str,
) -> None:
    """Limit how many jobs of KIND begin per second, in all queues and on all workers together, and
    how many of each concurrency key run at a time.

    --rate 10/s lets at most 10 jobs begin per second, --burst 5 up to 5 of them at once; --rate
    none removes the rate. If jobs have a rate key, the rate counts for each key alone.
    --concurrency-limit 2 lets two jobs of each concurrency key run. What is not given stays
    unchanged.
    """
    kept = cli.api.kinds.limit(
        kind,
        rate=given_rate(rate),
        burst=burst,
        concurrency_limit=_given_limit(concurrency_limit),
        create=create,
    )
    said = ", ".join(rate_in_words(kept) or ["no rate"])
    if kept.concurrency_limit is not None:
        said += f", at most {kept.concurrency_limit} at a time for each key"
    click.echo(f"{printable(kind)}: {said}")


def _given_limit(text: str | None) -> int | UnsetType | None:
    if text is None:
        return UNSET
    if text.strip().lower() == "none":
        return None
    if not (text.isascii() and text.isdecimal()):
        raise click.BadParameter("give a number of jobs, or none", param_hint="--concurrency-limit")
    return int(text)
