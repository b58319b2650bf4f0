"""`tenure raise-epoch`: a store that may have lost acknowledged work begins a new epoch. [A5]

Exit codes: 0 raised, 1 not confirmed, 2 the store could not be asked.
"""

import click

from tenure.cli.common import coordinator, url_option

QUESTION = "Every lease of this store ends now, and running jobs run again. Raise the epoch?"


@click.command("raise-epoch")
@url_option
@click.option("--yes", "-y", is_flag=True, help="Do not ask.")
def raise_epoch(url: str | None, yes: bool) -> None:
    """Begin a new epoch, after a restore or a failover that may have lost commits; print it.

    All leases of earlier epochs are lost, so that no worker from before can report, and fencing
    tokens are higher than theirs. Do it before workers and servers start: a PostgreSQL database
    that was restored to another cluster refuses them until then. After a failover to a standby
    Tenure notices by itself what is missing.
    """
    with coordinator(url, accept_restored=True) as serving:
        if not yes:
            click.confirm(QUESTION, abort=True, err=True)
        click.echo(serving.store.raise_epoch())
