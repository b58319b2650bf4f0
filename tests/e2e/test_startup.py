"""A `tenure worker` that is stopped before it has started."""

import os
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from tenure_conformance.spec import spec
from tests.support.waiting import PATIENCE_S, until

pytestmark = pytest.mark.process

APPLICATION = """
import time
from contextlib import suppress
from pathlib import Path

from tenure import Tenure

app = Tenure()


@app.job()
def nothing() -> None: ...


def wait():
    Path("importing").touch()
    end = time.monotonic() + 600
    while time.monotonic() < end and not Path("go_on").exists():
        time.sleep(0.01)


"""

Start = Callable[[str], "subprocess.Popen[str]"]


@pytest.fixture
def start(tmp_path: Path) -> Iterator[Start]:
    """Starts a worker whose application ends with these lines."""
    started: list[subprocess.Popen[str]] = []

    def work(lines: str) -> "subprocess.Popen[str]":
        (tmp_path / "slow.py").write_text(APPLICATION + lines)
        started.append(
            subprocess.Popen(
                [sys.executable, "-m", "tenure", "worker", "slow:app"],
                cwd=tmp_path,
                env=os.environ | {"TENURE_URL": f"sqlite:///{tmp_path / 'tenure.db'}"},
                stderr=subprocess.PIPE,
                text=True,
            )
        )
        until((tmp_path / "importing").exists, "the application is being imported")
        return started[-1]

    yield work
    for process in started:
        process.kill()
        process.communicate(timeout=PATIENCE_S)


@spec("WP19")
@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_a_worker_that_is_stopped_while_it_imports_ends_well(
    start: Start, number: signal.Signals
) -> None:
    worker = start("wait()\n")

    worker.send_signal(number)
    _, said = worker.communicate(timeout=PATIENCE_S)

    assert (worker.returncode, said) == (0, "")


@spec("WP19")
def test_a_worker_whose_application_swallows_the_stop_drains_when_it_has_begun(
    start: Start,
) -> None:
    worker = start("with suppress(BaseException):\n    wait()\n")

    worker.send_signal(signal.SIGTERM)
    _, said = worker.communicate(timeout=PATIENCE_S)

    assert worker.returncode == 0
    assert "stopped; it ran no jobs" in said


@spec("WP19")
def test_signal_handlers_are_installed_before_the_command_line_is_imported(tmp_path: Path) -> None:
    (tmp_path / "click.py").write_text(
        "import sys\nsys.stdout.write('imported')\nraise SystemExit\n"
    )
    program = (
        "import signal, sys; sys.path.insert(0, '.'); sys.argv[1:] = ['worker'];"
        "import atexit; atexit.register(lambda: print(callable(signal.getsignal(15))));"
        "from tenure.__main__ import main; main()"
    )

    ended = subprocess.run(
        [sys.executable, "-c", program], cwd=tmp_path, capture_output=True, text=True, check=True
    )

    assert ended.stdout.split() == ["importedTrue"]
