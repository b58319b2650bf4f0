"""The demo, as `make demo` runs it: real workers, a real kill, and a proof at the end."""

import io
import os
import re
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from tenure.cli.demo import Demo
from tenure.protocol import URL_VARIABLE
from tenure.settings import LEASE_BOUNDS_VARIABLE
from tenure.verify import INVARIANTS
from tests.support.waiting import answer_of
from tests.worker.harness import is_alive

pytestmark = pytest.mark.process

DEMO = [sys.executable, "-m", "tenure", "demo"]


def test_the_demo_survives_its_kills_and_proves_its_history() -> None:
    shown = subprocess.run(DEMO, capture_output=True, text=True, timeout=400, check=False)

    said = shown.stdout
    assert shown.returncode == 0, said + shown.stderr
    assert "\x1b" not in said
    for sentence in (
        r"poison is dead_lettered \(exhausted_retries\)",
        r"endless is cancelled \(acknowledged\)",
        r"flaky \(attempt 2\)",
    ):
        assert re.search(sentence, said), sentence
    killed = _found(r"(\w+) is killed: kill -9 \d+", said)
    heir = _found(rf"lease of {killed} on slow has expired\n.* (\w+) takes over slow", said)
    assert heir != killed
    assert re.search(rf"{heir} finishes slow: COMMITTED", said)
    steps = _found(r"which attempt did each step of slow: \[([12,]+)\]", said)
    assert re.fullmatch(r"(1,){4,11}(2,)*2", steps)  # continued from its checkpoint
    zombie = _found(r"(\w+) freezes: kill -STOP", said)
    other = _found(r"(\w+) takes over precious \(attempt 2\)", said)
    assert other != zombie
    assert re.search(rf"{zombie} logs: job precious .*CANCELLED \(superseded\)", said)
    assert f'{zombie}\'s late result refused (superseded): {{"from_attempt":1}}' in said
    assert f'the result of {other} stands: {{"from_attempt":2}}' in said
    rules = len(INVARIANTS)
    result = rf"7 jobs, \d+ events, 16 acks: no violation; {rules - 1} of {rules} invariants"
    assert re.search(result, said)
    assert "[1] needs the metrics" in said
    assert said.endswith("Every job ended, every invariant of the history holds.\n")


def _found(pattern: str, text: str) -> str:
    found = re.search(pattern, text)
    assert found is not None, f"{pattern} is not in:\n{text}"
    return found[1]


@pytest.mark.parametrize(("number", "code"), [(signal.SIGINT, 1), (signal.SIGTERM, 143)])
def test_an_interrupted_demo_leaves_nothing_behind(
    number: signal.Signals, code: int, tmp_path: Path
) -> None:
    demo = subprocess.Popen(
        DEMO, stdout=subprocess.PIPE, text=True, env=os.environ | {"TMPDIR": str(tmp_path)}
    )
    assert demo.stdout is not None
    workers: list[int] = []
    while line := answer_of(demo.stdout.readline, "the demo says what it does next"):
        workers += [int(pid) for pid in re.findall(r"is started: tenure worker, pid (\d+)", line)]
        if " takes endless " in line:
            break

    demo.send_signal(number)
    demo.send_signal(number)  # people press it twice
    answer_of(demo.stdout.read, "nobody writes to its stdout any more")
    demo.stdout.close()

    assert demo.wait(timeout=120) == code
    assert len(workers) == 2
    assert not any(map(is_alive, workers))
    assert list(tmp_path.iterdir()) == []


class FakeTerminal(io.StringIO):
    def isatty(self) -> bool:
        return True


@pytest.mark.parametrize(
    ("stdout", "line"),
    [
        (FakeTerminal(), r"\x1b\[31m    0\.\ds  it happens .{18}…\x1b\[0m\n"),
        (io.StringIO(), r"    0\.\ds  it happens x{50}\n"),
    ],
)
def test_only_on_a_terminal_lines_are_coloured_and_cut_to_its_width(
    stdout: io.StringIO, line: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for variable in (URL_VARIABLE, LEASE_BOUNDS_VARIABLE):
        monkeypatch.setenv(variable, "")  # the demo sets them; they are as before after the test
    monkeypatch.setattr(sys, "stdout", stdout)
    monkeypatch.setenv("COLUMNS", "40")

    demo = Demo(tmp_path)
    with demo.acks:
        demo.tell("it happens " + "x" * 50 + "\nand a second line", "red")

    assert re.fullmatch(line, stdout.getvalue())
