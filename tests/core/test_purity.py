"""The core is pure: equal inputs give equal outcomes, in every process and in any order."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

from tests.test_tidy import RULES, sources

ROOT = Path(__file__).parents[2]
VECTORS = ROOT / "src" / "tenure" / "contract" / "responses.json"


def test_the_rules_about_purity_look_at_every_module_of_the_core() -> None:
    modules = {path.name for path in (ROOT / "src" / "tenure" / "core").rglob("*.py")}

    for rule, folders, exempt in RULES:
        if rule.__name__.startswith("core_"):
            seen = {source.path.name for source in sources(folders, exempt)}
            assert modules <= seen, rule.__name__  # and the worker's session
    assert {"lifecycle.py", "attempt_end.py", "leases.py", "requests.py"} <= modules


@pytest.mark.process
@pytest.mark.parametrize("seed", ["1", "2"])
def test_another_process_with_other_hashes_answers_the_same(seed: str) -> None:
    environment = os.environ | {"PYTHONHASHSEED": seed}

    run = subprocess.run(
        [sys.executable, "-m", "tools.vectors.generate"],
        cwd=ROOT,
        env=environment,
        capture_output=True,
        check=True,
    )

    assert run.stdout == VECTORS.read_bytes()
