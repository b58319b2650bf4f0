"""How the tests of this directory run commands: in this process, or at a terminal."""

import errno
import os
import pty
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

from click.testing import CliRunner, Result

from tenure.cli.main import main
from tenure.coordinator.service import Coordinator
from tenure.core.claims import ClaimRequest
from tenure.core.commands import Start
from tenure.core.ids import DEFAULT_NAMESPACE, QueueName, RequestId, WorkerId, worker_actor
from tenure.core.verdicts import Grant
from tests.support.waiting import PATIENCE_S

TENURE = [sys.executable, "-m", "tenure"]
Run = Callable[..., Result]


def tenure(*words: str, typed: str | None = None) -> Result:
    """`tenure WORDS…`; `typed` is what the user answers to questions."""
    return CliRunner().invoke(main, list(words), input=typed, catch_exceptions=False)


WORKER = worker_actor("cli")


def claimed(serving: Coordinator, queue: str = "default", claim_seq: int = 1) -> Grant:
    """The next job of a queue, claimed by WORKER."""
    (grant,) = serving.claim(
        ClaimRequest(
            namespace=DEFAULT_NAMESPACE,
            worker=WorkerId("w"),
            actor=WORKER,
            queues=(QueueName(queue),),
            limit=1,
            claim_seq=claim_seq,
            request_id=RequestId(f"claim-{claim_seq}"),
        )
    ).grants
    return grant


def started(serving: Coordinator, queue: str = "default", claim_seq: int = 1) -> dict[str, Any]:
    """The next job of a queue, running: how its worker names it in reports."""
    grant = claimed(serving, queue, claim_seq)
    held: dict[str, Any] = {"job_id": grant.job_id, "lease_id": grant.lease_id, "actor": WORKER}
    serving.execute(Start(**held, request_id=RequestId("start")))
    return held


def at_a_terminal(directory: Path, *words: str, stream: str = "stderr", columns: int = 80) -> str:
    """What a command says to a person on this stream, which is a terminal."""
    theirs, ours = pty.openpty()
    streams = {"stdout": subprocess.DEVNULL, "stderr": subprocess.DEVNULL, stream: ours}
    done = subprocess.run(
        [*TENURE, *words],
        cwd=directory,
        env=os.environ | {"COLUMNS": str(columns)},
        check=False,
        timeout=PATIENCE_S,
        stdout=streams["stdout"],
        stderr=streams["stderr"],
    )
    os.close(ours)
    try:
        said = os.read(theirs, 10_000).decode()
    except OSError as ended:  # this is how a terminal ends to which nothing was written
        if ended.errno != errno.EIO:
            raise
        said = ""
    os.close(theirs)

    assert done.returncode == 0
    return said


def enqueued(run: Run, *words: str) -> str:
    """The id of a new job."""
    result = run("enqueue", *words)
    assert result.exit_code == 0, result.stderr
    return result.stdout.strip()
