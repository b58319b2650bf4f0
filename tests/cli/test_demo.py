"""The demo, as `make demo` runs it: real processes, a real kill, and a proof at the end."""

import subprocess
import sys


def test_the_demo_survives_its_kills_and_proves_its_history() -> None:
    shown = subprocess.run(
        [sys.executable, "-m", "tenure.cli.main", "demo"],
        capture_output=True,
        text=True,
        timeout=240,
        check=False,
    )

    assert shown.returncode == 0, shown.stdout + shown.stderr
    assert "anna is killed with SIGKILL" in shown.stdout
    assert "boris  reports long: COMMITTED (succeeded)" in shown.stdout
    assert "boris  asks about precious: CANCELLED (superseded)" in shown.stdout
    assert "violated" not in shown.stdout
    assert shown.stdout.endswith("Every job ended, every invariant holds.\n")
