"""`tenure conform worker`, `tenure conform store`: test a worker or a store of your own.

Exit codes: 0 it keeps the contract, 1 it breaks obligations, which are named, 2 it could not be
tested.
"""

import subprocess
import sys

import click

from tenure.cli.errors import DONE, REFUSED, CouldNotRun
from tenure.cli.options import json_option
from tenure.cli.output import print_json, print_table, printable
from tenure.core.vocabulary import counted
from tenure.errors import TenureError
from tenure_conformance.worker.obligations import OBLIGATIONS
from tenure_conformance.worker.report import Report, State
from tenure_conformance.worker.runner import conform
from tenure_conformance.worker.scenarios import BY_NAME, SCENARIOS, Scenario

KIT = "tenure_conformance.store"
PYTEST_FAILED = 1

_COLOURS = {State.KEPT: "green", State.BROKEN: "red", State.NOT_SEEN: "yellow"}
_WORDS = {State.KEPT: "kept", State.BROKEN: "BROKEN", State.NOT_SEEN: "not tested"}


@click.group(name="conform")
def conform_command() -> None:
    """Test a worker or a store of your own against the contract."""


def _scenarios(_: click.Context, __: click.Parameter, names: tuple[str, ...]) -> list[Scenario]:
    for name in names:
        if name not in BY_NAME:
            raise click.BadParameter(f"there is no scenario {name[:40]!a}; `--list` shows them")
    return [each for each in SCENARIOS if each.name in names] if names else list(SCENARIOS)


def _list(context: click.Context, _: click.Parameter, wanted: bool) -> None:
    if not wanted:
        return
    print_table(("scenario", "what happens"), [(each.name, each.plays) for each in SCENARIOS])
    click.echo()
    rows = [(each.name, each.sentence, each.asks) for each in OBLIGATIONS]
    print_table(("obligation", "sentence", "a worker…"), rows)
    context.exit(DONE)


@conform_command.command(context_settings={"ignore_unknown_options": True})
@json_option(Report)
@click.option(
    "--scenario",
    "scenarios",
    multiple=True,
    callback=_scenarios,
    help="Run only this scenario; may be repeated.",
)
@click.option(
    "--at-once",
    type=click.IntRange(1, 64),
    default=8,
    show_default=True,
    help="Run this many scenarios at the same time, each with a worker of its own.",
)
@click.option(
    "--list",
    is_flag=True,
    is_eager=True,
    expose_value=False,
    callback=_list,
    help="List scenarios and obligations, and run nothing.",
)
@click.argument("command", nargs=-1, required=True, type=click.UNPROCESSED)
def worker(
    as_json: bool, scenarios: list[Scenario], at_once: int, command: tuple[str, ...]
) -> None:
    """Test the worker that COMMAND starts.

    Each scenario plays a coordinator with certain faults, and the report names the obligations that
    the worker breaks. COMMAND is started once for each scenario, with TENURE_URL and TENURE_TOKEN
    set to a scripted coordinator on this machine. Write it after two dashes:

    \b
      tenure conform worker -- node worker.mjs conform handlers.mjs

    The worker has to run jobs of the kind `conform` from the queue `conform`: as often as the
    payload's `effects` says, POST to `effect_url` and wait `every_s` seconds; then succeed or fail,
    as `outcome` says (`succeed`, `fail`).

    Exits with 0 if it keeps every obligation that was tested, 1 if it breaks some, 2 if the worker
    did not run.
    """
    done = 0

    def progress(scenario: Scenario) -> None:
        nonlocal done
        done += 1
        click.echo(f"conform: {done} of {len(scenarios)}: {scenario.name}", err=True)

    try:
        report = conform(command, scenarios, at_once=at_once, progress=progress)
    except TenureError as problem:
        raise CouldNotRun(str(problem)) from problem
    except KeyboardInterrupt as interrupted:
        raise CouldNotRun("interrupted before the test was complete") from interrupted
    if as_json:
        print_json(report)
    else:
        _print(report)
    sys.exit(DONE if report.passed else REFUSED)


def _print(report: Report) -> None:
    rows = []
    for each in report.obligations:
        state = click.style(_WORDS[each.state], fg=_COLOURS[each.state])
        rows.append((each.obligation, each.sentence, each.asks, state))
    widths = [max(len(row[column]) for row in rows) for column in range(3)]
    for each, row in zip(report.obligations, rows, strict=True):
        head = "  ".join(text.ljust(width) for text, width in zip(row[:3], widths, strict=True))
        click.echo(f"{head}  {row[3]}")
        for breach in each.breaches:
            click.echo(f"    {breach.scenario}: {printable(breach.what)}")
    states = [each.state for each in report.obligations]
    click.echo()
    click.echo(
        f"{counted(len(report.scenarios), 'scenario')}:"
        f" {counted(states.count(State.KEPT), 'obligation')} kept, "
        f"{states.count(State.BROKEN)} broken, {states.count(State.NOT_SEEN)} not tested"
    )


@conform_command.command()
@click.argument("factory", required=False, metavar="[MODULE:FACTORY]")
@click.argument("pytest_options", nargs=-1, type=click.UNPROCESSED)
def store(factory: str | None, pytest_options: tuple[str, ...]) -> None:
    """Test the stores that MODULE:FACTORY makes.

    FACTORY is called without arguments and returns a tenure_conformance.harness.StoreFactory.
    Without it, the command explains how to write one. Arguments after two dashes go to pytest.
    docs/reference/conformance.md has the details.
    """
    if factory is None:
        click.echo(
            "Write a callable that returns a tenure_conformance.harness.StoreFactory. The\n"
            "smallest example is MemoryFactory in the same module. Then run one of\n\n"
            "  tenure conform store mypackage.testing:factory\n"
            f"  pytest --pyargs {KIT} --tenure-store mypackage.testing:factory"
        )
        return
    words = ["--pyargs", KIT, "--tenure-store", factory, *pytest_options]
    ran = subprocess.run([sys.executable, "-m", "pytest", *words], check=False)
    if ran.returncode not in (DONE, PYTEST_FAILED):
        raise CouldNotRun(f"the kit did not run: pytest ended with code {ran.returncode}")
    sys.exit(ran.returncode)
