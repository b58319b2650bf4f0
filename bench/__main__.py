"""`python -m bench`: measure, print one table on standard output, talk on standard error."""

import argparse
import importlib
import sys
import time

from bench import harness, profiling
from bench.harness import BrokenHistory, Options, Row, Unavailable, say

SCENARIOS = {
    "drain-postgres": "bench.drain_postgres",
    "drain-cost": "bench.costs",
    "enqueue-postgres": "bench.enqueue_postgres",
    "callers-postgres": "bench.callers_postgres",
    "claim-depth": "bench.claim_depth",
    "sqlite": "bench.sqlite",
    "worker-memory": "bench.worker_memory",
    "worker-drain": "bench.worker_drain",
}
DEFAULT_ROUNDS = 5
PROFILES = {"drain-postgres": "drain", "enqueue-postgres": "enqueue"}


def _parse(arguments: list[str]) -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m bench", description=__doc__)
    parser.add_argument("scenarios", nargs="*", metavar="scenario", help=", ".join(SCENARIOS))
    parser.add_argument("--rounds", type=int, default=DEFAULT_ROUNDS, help="default: %(default)s")
    parser.add_argument("--quick", action="store_true", help="small sizes: does it work at all?")
    parser.add_argument("--write", action="store_true", help="put the table into bench/README.md")
    parser.add_argument("--profile", action="store_true", help="show where Python's time goes")
    asked = parser.parse_args(arguments)
    for name in asked.scenarios:
        if name not in SCENARIOS:
            parser.error(f"there is no scenario {name!r}; there are {', '.join(SCENARIOS)}")
    if asked.rounds < 1:
        parser.error("at least one round is needed")
    return asked


def _measure(names: list[str], options: Options) -> tuple[list[Row], list[str]]:
    rows: list[Row] = []
    problems: list[str] = []
    for name in names:
        say(name)
        scenario = importlib.import_module(SCENARIOS[name])
        try:
            rows += scenario.run(options)
        except (Unavailable, BrokenHistory) as problem:
            problems.append(f"{name}: {problem}")
            say(f"  {problem}")
    return rows, problems


def main(arguments: list[str]) -> int:
    """0: measured; 1: a scenario could not be measured, or its history was broken."""
    asked = _parse(arguments)
    options = Options(rounds=asked.rounds, is_quick=asked.quick)
    if asked.profile:
        for name in asked.scenarios or ["drain-postgres"]:
            profiling.run(options, phase=PROFILES[name])
        return 0
    load_before = harness.load()
    rows, problems = _measure(asked.scenarios or list(SCENARIOS), options)
    today = time.strftime("%Y-%m-%d", time.gmtime())
    facts = (
        f"{today}, {asked.rounds} rounds; {harness.machine_facts()}; "
        f"load {load_before:.1f} before the first round, {harness.load():.1f} after the last."
    )
    text = "\n".join([harness.table(rows), *[f"\nNot measured: {each}" for each in problems]])
    print(f"{text}\n\n{facts}")
    if asked.write:
        harness.write_readme(f"{text}\n\n{facts}")
    return 1 if problems else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
