"""How far a job is, during `jobs wait` and `enqueue --wait`."""

import fcntl
import os
import pty
import re
import struct
import subprocess
import termios
from pathlib import Path
from typing import Any

import pytest

from tenure.cli import following
from tenure.cli.output import ProgressLine
from tenure.coordinator.service import Coordinator
from tenure.core.commands import Complete, Heartbeat
from tenure.core.ids import RequestId
from tenure.core.job import Progress
from tenure_conformance.spec import spec
from tests.cli.harness import TENURE, Run, enqueued, started
from tests.support.terminals import CTRL_C, Terminal
from tests.support.waiting import PATIENCE_S

HOSTILE = "\x1b[2J\u202e9"
SHOWN = "\\x1b[2J\\u202e9"

process = pytest.mark.process


def progress(serving: Coordinator, held: dict[str, Any], done: int, note: str = "") -> None:
    said = Progress(done=done, total=4, note=note)
    serving.execute(Heartbeat(**held, hb_seq=done, progress=said))


def complete(serving: Coordinator, held: dict[str, Any]) -> None:
    serving.execute(Complete(**held, request_id=RequestId("end"), result=b"7"))


@process
@spec("LV3", "LV8")
def test_ctrl_c_ends_a_wait_and_says_which_job_keeps_running(run: Run, store_path: Path) -> None:
    words = ("enqueue", "mail", "--wait")

    with Terminal(*words, directory=store_path.parent, columns=140) as terminal:
        [job_id] = re.findall(r"waiting for job (\S{36})", terminal.until("queued  no worker"))
        terminal.type(CTRL_C)
        code = terminal.ended()
        shown = terminal.until("shows it")

    assert code == 130
    assert f"job {job_id} keeps running; `tenure jobs wait {job_id}` shows it" in shown
    assert "Aborted" not in shown


@spec("LV8")
def test_a_wait_that_gives_up_says_that_the_job_keeps_running(run: Run) -> None:
    job_id = enqueued(run, "mail")

    too_long = run("jobs", "wait", job_id, "--timeout", "0s")

    assert too_long.exit_code == 1
    assert too_long.stderr.splitlines()[1:] == [
        f"tenure: job {job_id} keeps running; `tenure jobs wait {job_id}` shows it"
    ]


@process
@spec("LV9")
def test_a_wait_ends_without_a_message_when_nobody_reads_it(run: Run) -> None:
    job_id = enqueued(run, "mail")

    with subprocess.Popen(
        [*TENURE, "jobs", "wait", job_id],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    ) as view:
        assert view.stdout is not None
        view.stdout.close()
        try:
            ended = view.wait(PATIENCE_S)
        finally:
            view.kill()
        assert view.stderr is not None
        said = view.stderr.read()

    assert (ended, said) == (141, "")


@process
@spec("LV2", "LV3")
def test_whoever_waits_at_a_terminal_sees_how_far_the_job_is(
    run: Run, serving: Coordinator, store_path: Path
) -> None:
    with Terminal(
        "enqueue", "mail", "--wait", directory=store_path.parent, columns=120
    ) as terminal:
        terminal.until("queued  no worker is alive")
        held = started(serving)
        progress(serving, held, 2, note=HOSTILE)
        terminal.until(f"running  2/4  {SHOWN}")
        complete(serving, held)
        code = terminal.ended()
        shown = terminal.until_gone("2/4")

    assert code == 0
    assert shown.splitlines()[-1] == "7"


def test_the_line_that_changes_fits_the_terminal_that_shows_it(
    monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    shows, sees = pty.openpty()  # of stderr; stdout is a file
    fcntl.ioctl(sees, termios.TIOCSWINSZ, struct.pack("HHHH", 24, 30, 0, 0))
    with os.fdopen(sees, "w") as stderr:
        monkeypatch.setattr("sys.stderr", stderr)
        monkeypatch.setattr(ProgressLine, "FIRST_AFTER_S", -1.0)
        monkeypatch.setattr(ProgressLine, "TERMINAL_EVERY_S", -1.0)
        ProgressLine().show("x" * 100)
        stderr.flush()
        shown = os.read(shows, 1000).decode()
    os.close(shows)

    assert shown.count("x") in range(25, 30)


@spec("LV1")
def test_a_wait_asks_again_why_only_if_the_job_changed_or_after_a_while(
    run: Run, serving: Coordinator, monkeypatch: pytest.MonkeyPatch
) -> None:
    job_id = enqueued(run, "mail")
    asked: list[int] = []
    looks = iter(
        [lambda: None] * 4
        + [lambda: started(serving)]
        + [lambda: None] * 4
        + [lambda: run("jobs", "cancel", job_id, "--hard")]
    )
    monkeypatch.setattr(ProgressLine, "FIRST_AFTER_S", 0.0)
    monkeypatch.setattr(following, "LINE_EVERY_S", 0.0)
    monkeypatch.setattr(following, "pause", lambda _: next(looks)())
    monkeypatch.setattr(Coordinator, "why_waiting", lambda _, job: asked.append(job.rev))

    run("jobs", "wait", job_id)

    assert len(asked) == len(set(asked)) == 2


@spec("LV1", "LV3")
def test_in_a_pipe_a_wait_writes_a_line_to_stderr_for_each_change(
    run: Run, serving: Coordinator, monkeypatch: pytest.MonkeyPatch
) -> None:
    job_id = enqueued(run, "mail")
    held = started(serving)
    looks = iter(
        (
            lambda: progress(serving, held, 2),
            lambda: None,
            lambda: progress(serving, held, 3, note=HOSTILE),
            lambda: complete(serving, held),
        )
    )
    monkeypatch.setattr(ProgressLine, "FIRST_AFTER_S", 0.0)
    monkeypatch.setattr(following, "LINE_EVERY_S", 0.0)
    monkeypatch.setattr(following, "pause", lambda _: next(looks)())

    waited = run("jobs", "wait", job_id)

    lines = waited.stderr.splitlines()
    assert [line.split()[:2] for line in lines] == [[job_id, "running"]] * 3
    assert ["2/4" in lines[1], f"3/4  {SHOWN}" in lines[2]] == [True, True]
    assert (waited.exit_code, waited.stdout, "\x1b" in waited.stderr) == (0, "7\n", False)
