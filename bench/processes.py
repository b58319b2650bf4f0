"""Processes of a benchmark: started in a session of their own, frozen, measured, and stopped.

CPU comes from the kernel's accounting of processes, so only where there is one (Linux).
"""

import os
import signal
import subprocess
import time
from collections.abc import Iterable, Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Self

import msgspec

from bench.harness import Unavailable

STOP_WITHIN_S = 20.0
LOOK_EVERY_S = 0.02
MAX_LINES_SHOWN = 5
_PROCESSES = Path("/proc")


class ProcessCpu(msgspec.Struct, frozen=True, kw_only=True):
    """What a process has used so far; `reaped_s` is what its children had used that have ended."""

    parent: int
    own_s: float
    reaped_s: float


def require_accounting() -> None:
    """Refuse to measure where the kernel does not say how much CPU a process used."""
    if not (_PROCESSES / "self" / "stat").exists():
        raise Unavailable("this system does not say how much CPU a process used")


def process_table() -> dict[int, ProcessCpu]:
    """Every process of this machine."""
    tick_s = 1 / os.sysconf("SC_CLK_TCK")
    table: dict[int, ProcessCpu] = {}
    for status in _PROCESSES.glob("[0-9]*/stat"):
        try:
            fields = status.read_text().rpartition(")")[2].split()
        except OSError:
            continue  # it ended meanwhile, and is now part of what its parent reaped
        user, system, reaped_user, reaped_system = map(int, fields[11:15])
        table[int(status.parent.name)] = ProcessCpu(
            parent=int(fields[1]),
            own_s=(user + system) * tick_s,
            reaped_s=(reaped_user + reaped_system) * tick_s,
        )
    return table


def tree(roots: Iterable[int], table: Mapping[int, ProcessCpu]) -> list[int]:
    """These processes and all that descend from them, parents first."""
    found = [pid for pid in roots if pid in table]
    for pid in found:  # grows while it is read
        found += [child for child, cpu in table.items() if cpu.parent == pid]
    return found


def tree_cpu_s(roots: Iterable[int]) -> float:
    """CPU of these processes and all that descend from them, those that have ended included."""
    table = process_table()
    return sum(table[pid].own_s + table[pid].reaped_s for pid in tree(roots, table))


class Started:
    """Processes that leave no trace: leaving the `with` block ends them and their descendants."""

    def __init__(self, directory: Path) -> None:
        self._directory = directory
        self._processes: list[subprocess.Popen[bytes]] = []
        self._logs: list[Path] = []

    def start(
        self, command: Sequence[str], variables: Mapping[str, str], *, cwd: Path
    ) -> "subprocess.Popen[bytes]":
        """Start one; what it says goes to a file that is shown if it fails."""
        log = self._directory / f"process-{len(self._logs)}.log"
        with log.open("wb") as sink:
            process = subprocess.Popen(
                list(command),
                cwd=cwd,
                env=os.environ | dict(variables),
                stdin=subprocess.DEVNULL,
                stdout=sink,
                stderr=subprocess.STDOUT,
                start_new_session=True,
            )
        self._processes.append(process)
        self._logs.append(log)
        return process

    @property
    def pids(self) -> list[int]:
        """Of those that were started, not of their children."""
        return [process.pid for process in self._processes]

    def output(self) -> str:
        """The last lines that they wrote."""
        lines = [
            line for log in self._logs for line in log.read_text("utf-8", "replace").split("\n")
        ]
        return " / ".join([line.strip() for line in lines if line.strip()][-MAX_LINES_SHOWN:])

    def line_that_begins_with(self, beginning: str) -> str | None:
        """The first such line that the first of them has written."""
        lines = self._logs[0].read_text("utf-8", "replace").splitlines()
        return next((line for line in lines if line.startswith(beginning)), None)

    def check(self) -> None:
        """Refuse to go on if one of them has ended."""
        for process in self._processes:
            if process.poll() is not None:
                raise Unavailable(f"a process ended with {process.returncode}: {self.output()}")

    def send(self, number: signal.Signals) -> None:
        """A signal to all of them and their descendants."""
        for pid in tree(self.pids, process_table()):
            with suppress(ProcessLookupError):
                os.kill(pid, number)

    def stop(self) -> list[int]:
        """Ask them to end; their exit codes. Those that do not are killed with their children."""
        for process in self._processes:
            process.send_signal(signal.SIGTERM)
        give_up_at_s = time.monotonic() + STOP_WITHIN_S
        while any(process.poll() is None for process in self._processes):
            if time.monotonic() > give_up_at_s:
                break
            time.sleep(LOOK_EVERY_S)
        self._kill()
        return [process.returncode for process in self._processes]

    def _kill(self) -> None:
        self.send(signal.SIGKILL)
        for process in self._processes:
            with suppress(ProcessLookupError, PermissionError):
                os.killpg(process.pid, signal.SIGKILL)  # children whose parent has ended
            process.wait()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self._kill()
