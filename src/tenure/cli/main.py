"""The root of the `tenure` command. Subcommands live in modules of their own, named in COMMANDS.

Data goes to stdout, talk to stderr. A command's module is imported when the command is used, so
that `tenure --help` loads neither drivers nor the coordinator. Nothing here knows a rule of the
lifecycle.
"""

import os
import sys
from difflib import get_close_matches
from importlib import import_module
from typing import Any

import click

COMMANDS = {
    "demo": ("tenure.cli.demo:demo", "Watch jobs survive a killed and a frozen worker."),
    "worker": ("tenure.cli.worker:worker", "Run jobs until told to stop."),
    "dev": ("tenure.cli.dev:dev", "Run jobs, and start anew when their code changes."),
    "serve": ("tenure.cli.serve:serve", "Serve the store over HTTP."),
    "enqueue": ("tenure.cli.enqueue:enqueue", "Enqueue a job."),
    "jobs": ("tenure.cli.jobs:jobs", "Look at jobs and decide about them."),
    "dlq": ("tenure.cli.dlq:dlq", "Look at dead letters, redrive them, discard them."),
    "queues": ("tenure.cli.queues:queues", "Look at queues, pause them, limit them."),
    "workers": ("tenure.cli.workers:workers", "Look at workers, ask them to stop."),
    "tokens": ("tenure.cli.tokens:tokens", "Make tokens for a server, list them, revoke them."),
    "doctor": ("tenure.cli.doctor:doctor", "Examine the store, and say what to do."),
    "migrate": ("tenure.cli.migrate:migrate", "Create the store's schema or bring it up to date."),
    "raise-epoch": ("tenure.cli.epoch:raise_epoch", "End all leases of a store that was restored."),
    "verify": ("tenure.cli.verify:verify_command", "Prove the invariants over the live history."),
    "conform": ("tenure.cli.conform:conform_command", "Hold a worker or a store to the contract."),
}


COULD_NOT_WRITE = 2


class LazyGroup(click.Group):
    """A group that imports a command when it is called, not when it is listed."""

    def main(self, *args: Any, **extra: Any) -> Any:
        """Run a command; a full disk or a file that cannot be written ends it in one line."""
        try:
            return super().main(*args, **extra)
        except OSError as error:  # of files and of output: a store's errors are Tenure's own
            if error.errno is None:
                raise
            if error.filename is None:
                what = "the output cannot be written"
                _forget_output()
            else:
                what = ascii(os.fsdecode(error.filename))
            click.echo(f"tenure: {what}: {error.strerror}", err=True)
            sys.exit(COULD_NOT_WRITE)

    def list_commands(self, ctx: click.Context) -> list[str]:
        """The commands in the order people meet them."""
        return list(COMMANDS)

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        """Import and return a command."""
        if cmd_name not in COMMANDS:
            return None
        module, _, attribute = COMMANDS[cmd_name][0].partition(":")
        command = getattr(import_module(module), attribute)
        assert isinstance(command, click.Command)
        return command

    def resolve_command(
        self, ctx: click.Context, args: list[str]
    ) -> tuple[str | None, click.Command | None, list[str]]:
        """Find the command, or say which one was probably meant."""
        if args and args[0] not in COMMANDS and not args[0].startswith("-"):
            close = get_close_matches(args[0], COMMANDS, n=1)
            meant = f" Did you mean {close[0]!r}?" if close else ""
            ctx.fail(f"No such command {args[0]!a}.{meant}")
        return super().resolve_command(ctx, args)

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        """The list of `--help`, without importing anything."""
        with formatter.section("Commands"):
            formatter.write_dl([(name, text) for name, (_, text) in COMMANDS.items()])


def _forget_output() -> None:
    """What is still buffered has nowhere to go: Python would try once more when it ends, and say
    so in its own words and with an exit code of its own."""
    nowhere = os.open(os.devnull, os.O_WRONLY)
    os.dup2(nowhere, sys.stdout.fileno())


@click.group(cls=LazyGroup, context_settings={"help_option_names": ["-h", "--help"]})
@click.version_option(package_name="tenure")
def main() -> None:
    """Tenure: a durable job queue and orchestrator whose history you can check."""


if __name__ == "__main__":
    main()
