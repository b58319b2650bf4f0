"""The `tenure` program, asked by tests of something else than its command line.

A command runs in this process: to start another one takes half a second of a core, longer than
nearly every command. `serve` and `worker` run until they are stopped, and `--app` imports modules
that may read the environment: these get a process.
"""

import os
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path

from click.testing import CliRunner

from tenure.cli.main import main
from tests.support.waiting import PATIENCE_S

ROOT = Path(__file__).resolve().parents[2]
TENURE = (sys.executable, "-m", "tenure")
_NEED_A_PROCESS = {"serve", "worker", "--app"}


def command(*words: str, environment: Mapping[str, str]) -> "subprocess.CompletedProcess[bytes]":
    """`tenure WORDS…` with these variables, and none of Tenure's but these."""
    if not _NEED_A_PROCESS.isdisjoint(words):
        return subprocess.run(
            [*TENURE, *words],
            cwd=ROOT,
            env=environment,
            capture_output=True,
            timeout=PATIENCE_S,
            check=False,
        )
    ours = dict.fromkeys(name for name in os.environ if name.startswith("TENURE_"))
    texts = [str(word) for word in words]  # as a process gets them: a word may be an enumeration's
    done = CliRunner().invoke(main, texts, env={**ours, **environment}, catch_exceptions=False)
    return subprocess.CompletedProcess(words, done.exit_code, done.stdout_bytes, done.stderr_bytes)


def text_command(*words: str, environment: Mapping[str, str]) -> "subprocess.CompletedProcess[str]":
    """The same, with what it printed as text."""
    done = command(*words, environment=environment)
    return subprocess.CompletedProcess(
        done.args, done.returncode, done.stdout.decode(), done.stderr.decode()
    )
