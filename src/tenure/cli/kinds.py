"""`tenure kinds …`: list what is set for kinds, and set it."""

import click
from msgspec import UNSET, UnsetType

from tenure.cli.invocation import Invocation, Listing, command, list_command
from tenure.cli.options import app_argument, app_url_option, flag
from tenure.cli.output import printable
from tenure.cli.queues import given_rate, rate_in_words, rate_options
from tenure.core.kind_settings import KindSettings
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
@app_argument
def sync_kinds(cli: Invocation, prune: bool, app: str) -> None:
    """Write what the application declares for its kinds: a step of a deploy.

    A worker writes only what the store has never seen. Kinds that already have what is declared
    stay unchanged, and so do kinds that the application does not have.
    """
    # Here: they take as long to import as all the rest.
    from tenure.cli.application import load_app, open_for
    from tenure.worker.supervisor.declarations import change_in_words, settings_of, without_limits

    found = load_app(app)
    declared = {each.kind: each for each in settings_of(found.registry)}
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
    if not declared:
        click.echo("the application has no kinds", err=True)


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
