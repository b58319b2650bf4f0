"""The root of the `tenure` command. Subcommands live in modules of their own, named in COMMANDS.

Data goes to stdout, messages to stderr. A command's module is imported when the command is used, so
that `tenure --help` loads neither drivers nor the coordinator. Nothing here knows a rule of the
lifecycle.
"""

import errno
import os
import sys
from importlib import import_module
from importlib.metadata import entry_points
from typing import Any

import click

from tenure.core.vocabulary import closest

ADDED = "tenure.commands"
"""The entry point group of commands that other packages bring."""

COMMANDS = {
    "demo": ("tenure.cli.demo:demo", "Watch jobs survive a killed and a frozen worker."),
    "worker": ("tenure.cli.worker:worker", "Run a worker."),
    "dev": (
        "tenure.cli.dev:dev",
        "Run a worker that restarts when the code changes, and a dashboard.",
    ),
    "serve": ("tenure.cli.serve:serve", "Run the HTTP server, for remote clients and workers."),
    "enqueue": ("tenure.cli.enqueue:enqueue", "Enqueue a job."),
    "jobs": ("tenure.cli.jobs:jobs", "Show jobs, cancel them, run them again."),
    "dlq": ("tenure.cli.dlq:dlq", "List dead letters, redrive them, discard them."),
    "queues": ("tenure.cli.queues:queues", "List queues, pause them, limit them."),
    "flows": ("tenure.cli.flows:flows", "List flows, show their jobs, cancel them, redrive them."),
    "kinds": ("tenure.cli.queues:kinds", "List what is set for kinds, and set it."),
    "schedules": (
        "tenure.cli.schedules:schedules",
        "Show schedules, make them, pause them, run them now.",
    ),
    "workers": ("tenure.cli.queues:workers", "List workers, ask them to stop."),
    "events": ("tenure.cli.events:events", "List the events of all jobs, or follow them."),
    "stats": ("tenure.cli.events:stats", "Count the events of a span of time."),
    "tokens": (
        "tenure.cli.tokens:tokens",
        "Create tokens for the HTTP server, list them, revoke them.",
    ),
    "doctor": ("tenure.cli.store:doctor", "Check the store and its settings for problems."),
    "migrate": ("tenure.cli.store:migrate", "Create the database schema or upgrade it."),
    "backup": ("tenure.cli.store:backup", "Copy a SQLite store while it is in use."),
    "raise-epoch": (
        "tenure.cli.store:raise_epoch",
        "End all leases after a restore from a backup.",
    ),
    "verify": (
        "tenure.cli.verify:verify_command",
        "Check every stored job and its history for violations.",
    ),
    "conform": (
        ADDED,
        "Test a worker or a store of your own against the contract.",
    ),
}


COULD_NOT_WRITE = 2
OUTPUT_ERRORS = (
    *(errno.ENOSPC, errno.EDQUOT, errno.EFBIG, errno.EIO),
    *(errno.EPIPE, errno.EBADF, errno.EACCES, errno.EPERM, errno.EROFS),
)


class LazyGroup(click.Group):
    """A group that imports a command when it is called, not when it is listed."""

    def main(self, *args: Any, **extra: Any) -> Any:
        """Run a command. A full disk or an unwritable file ends it with one line on stderr."""
        try:
            return super().main(*args, **extra)
        except OSError as error:  # from files and output; stores raise Tenure's own errors
            if error.errno is None:
                raise
            if error.filename is None and error.errno in OUTPUT_ERRORS:
                what = "the output cannot be written"
                from tenure.cli.errors import discard_output  # here: `--help` needs none of it

                discard_output()
            elif error.filename is None:
                what = "the operating system refused"
            else:
                what = ascii(os.fsdecode(error.filename))
            click.echo(f"tenure: {what}: {error.strerror}", err=True)
            sys.exit(COULD_NOT_WRITE)

    def list_commands(self, ctx: click.Context) -> list[str]:
        """The commands in the order in which people need them."""
        return list(COMMANDS)

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        """Import and return a command."""
        if cmd_name not in COMMANDS:
            return None
        target = COMMANDS[cmd_name][0]
        if target == ADDED:
            return _added_command(cmd_name)
        module, _, attribute = target.partition(":")
        command = getattr(import_module(module), attribute)
        assert isinstance(command, click.Command)
        return command

    def resolve_command(
        self, ctx: click.Context, args: list[str]
    ) -> tuple[str | None, click.Command | None, list[str]]:
        """Find the command, or suggest a similar name."""
        if args and args[0] not in COMMANDS and not args[0].startswith("-"):
            close = closest(args[0], COMMANDS)
            meant = "" if close is None else f" Did you mean {close!r}?"
            ctx.fail(f"No such command {args[0]!a}.{meant}")
        return super().resolve_command(ctx, args)

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        """List the commands for `--help` without importing them."""
        with formatter.section("Commands"):
            formatter.write_dl([(name, text) for name, (_, text) in COMMANDS.items()])


def _added_command(name: str) -> click.Command:
    """The command that an installed package brings."""
    for found in entry_points(group=ADDED, name=name):
        command = found.load()
        assert isinstance(command, click.Command)
        return command
    from tenure.cli.errors import CouldNotRun

    package = "tenure-conformance"
    raise CouldNotRun(
        f"tenure {name} is in the package {package}, which is not installed; install it: "
        f"`pip install 'path/to/the/clone/packages/{package}'`"
    )


@click.group(cls=LazyGroup, context_settings={"help_option_names": ["-h", "--help"]})
@click.version_option(package_name="tenure")
def main() -> None:
    """Tenure: a durable job queue and orchestrator whose history you can check."""


if __name__ == "__main__":
    main()
