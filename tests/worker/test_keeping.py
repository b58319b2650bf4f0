"""The keeper: kills what is left when its supervisor goes, and goes itself."""

import os
import signal
import subprocess
import sys

import pytest

from tenure.worker import keeping
from tenure.worker.keeping import Keeper


def test_a_group_that_is_left_is_killed_and_one_that_was_forgotten_is_not() -> None:
    asleep = [sys.executable, "-c", "import time; time.sleep(600)"]
    left, forgotten = [subprocess.Popen(asleep, start_new_session=True) for _ in range(2)]
    keeper = Keeper()
    keeper.watch(left.pid)
    keeper.watch(forgotten.pid)
    keeper.forget(forgotten.pid)

    keeper.close()

    assert left.wait(60) == -signal.SIGKILL
    assert forgotten.poll() is None
    forgotten.kill()
    forgotten.wait()


def test_a_keeper_that_is_stopped_does_not_hold_up_its_supervisor(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(keeping, "WAIT_S", 0.1)
    keeper = Keeper()
    os.kill(keeper._process.pid, signal.SIGSTOP)

    keeper.close()

    assert keeper._process.poll() == -signal.SIGKILL
