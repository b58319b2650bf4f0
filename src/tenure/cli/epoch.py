"""`tenure raise-epoch`: begin a new epoch in a store that may have lost commits. [A5]

Exit codes: 0 raised, 1 not confirmed, 2 the store could not be reached.
"""

import click

from tenure.cli.common import coordinator, store_url_option

QUESTION = "This ends every lease: running jobs stop and run again. Raise the epoch?"


@click.command("raise-epoch")
@store_url_option
@click.option("--yes", "-y", is_flag=True, help="Do not ask.")
def raise_epoch(url: str | None, yes: bool) -> None:
    """End all leases after a restore from a backup; prints the new epoch.

    Run it after a restore that lost commits, before workers and servers start. Workers that
    have an earlier lease can then report nothing, and new fencing tokens are higher than theirs.
    Tenure refuses to use a PostgreSQL database that was restored to another cluster until you have
    run this. After a failover to a standby, Tenure notices lost commits and does this itself.
    """
    with coordinator(url, accept_restored=True) as serving:
        if not yes:
            click.confirm(QUESTION, abort=True, err=True)
        click.echo(serving.store.raise_epoch())
