"""How long `import tenure` and `tenure --help` take, the start of the interpreter included.

Each command runs often, in turns; the median counts. Modules are compiled before. CPU is what the
kernel charges to the process.
"""

import os
import statistics
import subprocess
import sys
import time
from collections.abc import Sequence

from bench.harness import Figure, Options, Row, say

NAME = "commands"
RUNS = 20
TARGET_MS = 100.0
COMMANDS = {
    "`import tenure`": ("-c", "import tenure"),
    "`tenure --help`": ("-m", "tenure", "--help"),
    "an interpreter alone": ("-c", "pass"),
}


def run(options: Options) -> list[Row]:
    """Two rows for each command: time and CPU."""
    del options  # it takes seconds
    for words in COMMANDS.values():
        _took_ms(words)  # compiles
    taken: dict[str, list[tuple[float, float]]] = {name: [] for name in COMMANDS}
    for _ in range(RUNS):
        for name, words in COMMANDS.items():
            taken[name].append(_took_ms(words))
    rows = []
    for name, runs in taken.items():
        for position, what in enumerate(("time", "CPU")):
            values = [each[position] for each in runs]
            say(f"  {name}, {what}: {statistics.median(values):.0f} ms")
            rows.append(
                Row(
                    scenario=f"{name}: {what}, median of {RUNS} runs",
                    ours=Figure((statistics.median(values),)),
                    theirs=Figure((TARGET_MS,)),
                    unit="ms",
                    peer="the target",
                    at_most=1.0,
                )
            )
    return rows


def _took_ms(words: Sequence[str]) -> tuple[float, float]:
    """Time and CPU of one run."""
    began_s = time.perf_counter()
    process = subprocess.Popen([sys.executable, *words], stdout=subprocess.DEVNULL)
    _, status, usage = os.wait4(process.pid, 0)
    elapsed_s = time.perf_counter() - began_s
    process.returncode = os.waitstatus_to_exitcode(status)
    assert process.returncode == 0, f"{words} ended with {process.returncode}"
    return elapsed_s * 1e3, (usage.ru_utime + usage.ru_stime) * 1e3
