"""Runs a worker through the scenarios, each with its own process and scripted coordinator.

`TENURE_URL` and `TENURE_TOKEN` tell the process where the coordinator is. When the scenario is
over, the kit ends the process and everything it started.
"""

import os
import signal
import subprocess
import tempfile
import time
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from typing import IO

from tenure.core.tokens import TOKEN_ENTROPY_BYTES, mint
from tenure.protocol import TOKEN_VARIABLE, URL_VARIABLE
from tenure_conformance.worker.http_server import Listener
from tenure_conformance.worker.judge import MAX_TRIES, Judgement, judge
from tenure_conformance.worker.record import Op, Record
from tenure_conformance.worker.report import CouldNotJudge, Report, summarise
from tenure_conformance.worker.scenarios import KIND, QUEUE, Scenario

CLAIM_WITHIN_S = 60.0
STOP_WITHIN_S = 10.0
TERMINATE_AFTER_S = 1.0
POLL_S = 0.02
MAX_OUTPUT_BYTES = 256 << 10
SHOWN_OUTPUT = 400
UNBOUNDED = 3 * MAX_TRIES
"""A worker that retries this often will not stop: the scenario ends."""


def conform(
    command: Sequence[str],
    scenarios: Sequence[Scenario],
    *,
    at_once: int,
    progress: Callable[[Scenario], None] = lambda _: None,
) -> Report:
    """Run the worker that `command` starts through the scenarios. Raises `CouldNotJudge`."""

    def play(scenario: Scenario) -> list[Judgement]:
        judgements = judge(scenario, _play(command, scenario))
        progress(scenario)
        return judgements

    with ThreadPoolExecutor(at_once) as pool:
        longest_first = sorted(scenarios, key=_length_s, reverse=True)
        judged = {scenario.name: pool.submit(play, scenario) for scenario in longest_first}
        try:
            return summarise({each.name: judged[each.name].result() for each in scenarios})
        finally:
            for future in judged.values():
                future.cancel()


def _length_s(scenario: Scenario) -> float:
    """Estimate how long a scenario takes: the longest start first."""
    work_s = scenario.work.effects * scenario.work.every_s
    return min(
        scenario.patience_s, work_s + scenario.watch_s + scenario.goes_on * scenario.patience_s
    )


def _play(command: Sequence[str], scenario: Scenario) -> Record:
    record = Record()
    token = mint(os.urandom(TOKEN_ENTROPY_BYTES))[2]
    listener = Listener(scenario, record, token=token)
    try:
        with tempfile.TemporaryFile() as output:
            environment = os.environ | {URL_VARIABLE: listener.url, TOKEN_VARIABLE: token}
            worker = _start(command, environment, output)
            try:
                _watch(worker, scenario, record, listener)
            finally:
                record.close(time.monotonic())
                _end(worker)
            record.output = _read(output)
    finally:
        listener.close()
    if not record.all(Op.CLAIM):
        ended = "" if record.exit_code is None else f", it exited with code {record.exit_code}"
        raise CouldNotJudge(
            f"the worker never sent a claim{ended}",
            hint=f"it has to ask {URL_VARIABLE}; its output: {record.output[-SHOWN_OUTPUT:]!r}",
        )
    if listener.script.granted_at is None and listener.script.other_claims:
        asked = "; ".join(sorted(listener.script.other_claims))
        raise CouldNotJudge(
            f"the worker claims other queues or kinds: {asked}",
            hint=f"it has to run jobs of kind {KIND!r} from the queue {QUEUE!r}",
        )
    return record


def _start(
    command: Sequence[str], environment: dict[str, str], output: IO[bytes]
) -> "subprocess.Popen[bytes]":
    try:
        return subprocess.Popen(
            command,
            env=environment,
            stdin=subprocess.DEVNULL,
            stdout=output,
            stderr=subprocess.STDOUT,
            start_new_session=True,
        )
    except OSError as wrong:
        raise CouldNotJudge(
            f"cannot start {command[0]!a}: {wrong.strerror}",
            hint="give the command that starts a worker after `--`",
        ) from wrong


def _watch(
    worker: "subprocess.Popen[bytes]", scenario: Scenario, record: Record, listener: Listener
) -> None:
    """Wait until the scenario is over or the worker has exited."""
    began_at = time.monotonic()
    while time.monotonic() < _over_at(scenario, record, listener, began_at):
        if worker.poll() is not None:
            if record.signalled_at is None:
                record.exit_code = worker.returncode
            return
        is_due = record.effects and time.monotonic() > record.effects[0] + TERMINATE_AFTER_S
        if scenario.terminates and is_due and record.signalled_at is None:
            record.signalled_at = time.monotonic()
            worker.send_signal(signal.SIGTERM)
        time.sleep(POLL_S)


def _over_at(scenario: Scenario, record: Record, listener: Listener, began_at: float) -> float:
    if len(record.reports()) > UNBOUNDED:
        return 0.0
    for request in record.all():
        if request.is_final and request.answered_at is not None:
            return request.answered_at + scenario.watch_s
    asked_at = listener.script.granted_at
    if not scenario.grants:
        asked_at = next((claim.at for claim in record.all(Op.CLAIM)), None)
    return began_at + CLAIM_WITHIN_S if asked_at is None else asked_at + scenario.patience_s


def _end(worker: "subprocess.Popen[bytes]") -> None:
    """Send SIGTERM, then kill the worker and every process of its group."""
    if worker.poll() is None:
        worker.send_signal(signal.SIGTERM)
        try:
            worker.wait(STOP_WITHIN_S)
        except subprocess.TimeoutExpired:
            worker.kill()
    with suppress(ProcessLookupError):  # no process of the group is left
        os.killpg(worker.pid, signal.SIGKILL)
    worker.wait()


def _read(output: IO[bytes]) -> str:
    size = output.seek(0, os.SEEK_END)
    output.seek(max(0, size - MAX_OUTPUT_BYTES))
    return output.read().decode("utf-8", "replace")
