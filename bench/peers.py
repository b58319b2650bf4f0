"""Peers: other projects' queues, each in a virtual environment and a process of its own.

Nothing of theirs is imported here. A peer is a script of ours that runs in their environment and
speaks JSON lines: it says `ready`, waits for a line, does the timed part and says when it began
and ended on the machine's monotonic clock. Versions are pinned in requirements-NAME.txt.
"""

import hashlib
import os
import subprocess
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import IO, Self

import msgspec

from bench.harness import Unavailable, say

HERE = Path(__file__).parent
ENVIRONMENTS = HERE.parent / ".venv-bench"
PATIENCE_S = 300.0
_MAX_LINES_SHOWN = 3


class Timing(msgspec.Struct, frozen=True):
    """What a peer reports: its timed part on CLOCK_MONOTONIC, its CPU in it, its jobs."""

    began_s: float
    ended_s: float
    jobs: int
    cpu_s: float


def script_of(name: str) -> Path:
    """What runs in a peer's environment; in a folder of its own, because Python looks for modules
    beside a script first, and ours have their names."""
    return HERE / "peer" / f"drive_{name}.py"


def environment(name: str) -> Path:
    """The Python of a peer's environment, made on first use and again when its pins change."""
    requirements = HERE / f"requirements-{name}.txt"
    home = ENVIRONMENTS / name
    python = home / "bin" / "python"
    stamp = home / "installed"
    wanted = hashlib.sha256(requirements.read_bytes()).hexdigest()
    if stamp.exists() and stamp.read_text() == wanted:
        return python
    say(f"installing {requirements.name} into an environment of its own")
    _run(name, [sys.executable, "-m", "venv", "--clear", str(home)])
    pip = [str(python), "-m", "pip", "--disable-pip-version-check", "--quiet"]
    _run(name, [*pip, "install", "--requirement", str(requirements)])
    stamp.write_text(wanted)
    return python


def _run(name: str, command: Sequence[str]) -> None:
    try:
        done = subprocess.run(command, capture_output=True, text=True, check=False)
    except OSError as failure:
        raise Unavailable(f"{name} cannot be installed: {failure}") from failure
    if done.returncode != 0:
        lines = [line for line in done.stderr.splitlines() if line.startswith("ERROR")]
        why = "; ".join(lines[-_MAX_LINES_SHOWN:]) or f"exit code {done.returncode}"
        raise Unavailable(f"{name} cannot be installed: {why}")


class Peer:
    """One process of a peer's script. Leaving the `with` block ends it, whatever happened."""

    def __init__(self, name: str, arguments: Sequence[str], variables: Mapping[str, str]) -> None:
        python = environment(name)
        self._name = name
        self._process = subprocess.Popen(
            [str(python), str(script_of(name)), *arguments],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            env=os.environ | dict(variables),
            text=True,
        )

    def _hear(self) -> str:
        line = _stream(self._process.stdout).readline()
        if not line:
            code = self._process.wait(PATIENCE_S)
            raise Unavailable(f"{self._name} ended with {code} before it was done; see above")
        return line

    def wait_until_ready(self) -> None:
        """Everything that is not timed has been done: connecting, importing, loading."""
        heard = self._hear().strip()
        assert heard == '"ready"', heard

    def go(self) -> None:
        """Begin the timed part."""
        stream = _stream(self._process.stdin)
        stream.write("go\n")
        stream.flush()

    def timing(self) -> Timing:
        """Wait for the end of the timed part."""
        return msgspec.json.decode(self._hear(), type=Timing)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        _stream(self._process.stdin).close()
        try:
            self._process.wait(5)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()
        _stream(self._process.stdout).close()


def _stream(stream: IO[str] | None) -> IO[str]:
    assert stream is not None, "opened as a pipe"
    return stream
