"""`python -m bench`: measure; write tables, a plot and JSON; talk on standard error."""

import argparse
import importlib
import sys
import time
from pathlib import Path

from bench import harness, profiling, queues
from bench.harness import BrokenHistory, Options, Row, Unavailable, say
from bench.report import Report, Section, as_json, as_markdown, as_svg, from_json, joined

SCENARIOS = {
    "drain-postgres": "bench.drain_postgres",
    "drain-cost": "bench.costs",
    "enqueue-postgres": "bench.enqueue_postgres",
    "callers-postgres": "bench.callers_postgres",
    "claim-depth": "bench.claim_depth",
    "claim-key": "bench.claim_key",
    "claim-pinned": "bench.claim_pinned",
    "growth": "bench.growth",
    "claim-held": "bench.claim_held",
    "pages": "bench.pages",
    "sqlite": "bench.sqlite",
    "worker-memory": "bench.worker_memory",
    "server-memory": "bench.server_memory",
    "worker-drain": "bench.worker_drain",
    "idle-worker": "bench.idle_worker",
    "heartbeats": "bench.heartbeats",
    "commands": "bench.commands",
}
"""The rows below the first ones, which are `queues`."""
FULL_ROUNDS = 3
QUICK_ROUNDS = 3
PROFILES = {"drain-postgres": "drain", "enqueue-postgres": "enqueue"}
OUTPUT = Path("build") / "bench"


def _parse(arguments: list[str]) -> argparse.Namespace:
    names = [queues.NAME, *SCENARIOS]
    parser = argparse.ArgumentParser(prog="python -m bench", description=__doc__)
    parser.add_argument("scenarios", nargs="*", metavar="scenario", help=", ".join(names))
    parser.add_argument("--rounds", type=int, help=f"default: {FULL_ROUNDS}, quick {QUICK_ROUNDS}")
    parser.add_argument("--quick", action="store_true", help="small sizes, only the first rows")
    parser.add_argument("--only", help="in the first rows, only queues with such a name (regex)")
    parser.add_argument("--no-peers", action="store_true", help="the first rows without others")
    parser.add_argument(
        "--store",
        action="append",
        default=[],
        metavar="URL",
        help="pages: measure this store, filled first if it has no jobs; may be repeated",
    )
    parser.add_argument("--output", type=Path, default=OUTPUT, help="default: %(default)s")
    parser.add_argument("--write", action="store_true", help="also put them into bench/")
    parser.add_argument(
        "--join",
        type=Path,
        nargs="+",
        metavar="FILE",
        help="measure nothing, but join the figures.json of several runs",
    )
    parser.add_argument("--profile", action="store_true", help="show where Python's time goes")
    asked = parser.parse_args(arguments)
    for name in asked.scenarios:
        if name not in names:
            parser.error(f"there is no scenario {name!r}; there are {', '.join(names)}")
    if asked.rounds is None:
        asked.rounds = QUICK_ROUNDS if asked.quick else FULL_ROUNDS
    if asked.rounds < 1:
        parser.error("at least one round is needed")
    asked.scenarios = asked.scenarios or ([queues.NAME] if asked.quick else names)
    return asked


def _measure(asked: argparse.Namespace) -> tuple[tuple[Section, ...], list[Row], list[str]]:
    options = Options(rounds=asked.rounds, is_quick=asked.quick, stores=tuple(asked.store))
    sections: tuple[Section, ...] = ()
    rows: list[Row] = []
    problems: list[str] = []
    for name in asked.scenarios:
        say(name)
        try:
            if name == queues.NAME:
                sections = queues.run(options, only=asked.only, with_peers=not asked.no_peers)
            else:
                rows += importlib.import_module(SCENARIOS[name]).run(options)
        except (Unavailable, BrokenHistory) as problem:
            problems.append(f"{name}: {problem}")
            say(f"  {problem}")
    return sections, rows, problems


def _write(report: Report, directory: Path) -> None:
    directory.mkdir(parents=True, exist_ok=True)
    (directory / "figures.md").write_text(as_markdown(report) + "\n", "utf-8")
    (directory / "figures.svg").write_text(as_svg(report), "utf-8")
    (directory / "figures.json").write_bytes(as_json(report))
    say(f"wrote {directory}/figures.md, figures.svg and figures.json")


def main(arguments: list[str]) -> int:
    """0: measured; 1: a scenario could not be measured, or its history was broken."""
    asked = _parse(arguments)
    if asked.profile:
        for name in asked.scenarios:
            if name in PROFILES:
                options = Options(rounds=asked.rounds, is_quick=asked.quick)
                profiling.run(options, phase=PROFILES[name])
        return 0
    report = (
        joined([from_json(each.read_bytes()) for each in asked.join])
        if asked.join
        else _measured_report(asked)
    )
    print(as_markdown(report))
    _write(report, asked.output)
    if asked.write:
        _write(report, harness.README.parent)
        harness.write_readme(
            f"![the medians and their spread](figures.svg)\n\n{as_markdown(report)}"
        )
    return 1 if report.problems else 0


def _measured_report(asked: argparse.Namespace) -> Report:
    load_before = harness.load()
    sections, rows, problems = _measure(asked)
    return Report(
        date=time.strftime("%Y-%m-%d", time.gmtime()),
        machine=harness.machine_facts(),
        rounds=asked.rounds,
        is_quick=asked.quick,
        load_before=load_before,
        load_after=harness.load(),
        versions=queues.versions(),
        sections=sections,
        explanations=tuple(rows),
        problems=tuple(problems),
    )


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
