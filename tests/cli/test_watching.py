"""`tenure jobs watch`, `jobs logs -f` and the progress of `enqueue --wait`."""

import json
import re
import subprocess
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from tenure.cli import following, job_view, output
from tenure.cli.job_view import unseen
from tenure.coordinator.service import Coordinator
from tenure.core.artifacts import AttemptLog, AttemptOutput
from tenure.core.commands import Cancel, Complete, Heartbeat
from tenure.core.ids import JobId, RequestId, client_actor
from tenure.core.job import Progress
from tenure.worker.supervisor.output import BoundedOutput
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


def write(serving: Coordinator, held: dict[str, Any], text: str, part: int) -> None:
    assert serving.store.artifacts.put_log(AttemptOutput(**held, text=text, part=part)) is None


def in_background(work: Callable[[], None]) -> threading.Thread:
    thread = threading.Thread(target=work, daemon=True)
    thread.start()
    return thread


@process
@spec("LV1", "LV3", "LV2")
def test_a_job_is_watched_on_a_terminal_in_one_line_until_its_end(
    run: Run, serving: Coordinator, store_path: Path
) -> None:
    job_id = enqueued(run, "mail")
    words = ("jobs", "watch", job_id)

    with Terminal(*words, directory=store_path.parent, columns=100, rows=6) as terminal:
        terminal.until("no worker is alive that takes kind mail from queue default")
        held = started(serving)
        progress(serving, held, 1, note=f"page {HOSTILE}")
        shown = terminal.until("█████░░░░░░░░░░░░░░░  25%  1/4")
        progress(serving, held, 3)
        terminal.until("███████████████░░░░░  75%  3/4")
        one_line = terminal.lines
        complete(serving, held)
        code = terminal.ended()
        last = terminal.until("succeeded")

    assert code == 0
    assert f"page {SHOWN}" in shown
    assert one_line[1:] == [""] * 5
    assert last.startswith(f"{job_id[:18]}…  mail  succeeded  after ")
    assert "\u202e" not in terminal.raw.decode()


@process
@spec("LV3", "LV8")
def test_ctrl_c_ends_a_watch_before_the_job_has_ended(run: Run, store_path: Path) -> None:
    job_id = enqueued(run, "mail")

    words = ("jobs", "watch", job_id)

    with Terminal(*words, directory=store_path.parent, columns=140) as terminal:
        terminal.until("queued")
        terminal.type(CTRL_C)
        code = terminal.ended()
        shown = terminal.until("shows it")

    assert code == 130
    assert f"job {job_id} keeps running; `tenure jobs watch {job_id}` shows it" in shown
    assert "Aborted" not in shown


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
    assert f"job {job_id} keeps running; `tenure jobs watch {job_id}` shows it" in shown
    assert "Aborted" not in shown


@spec("LV1", "LV3")
def test_elsewhere_a_line_is_printed_when_something_has_changed(
    run: Run, serving: Coordinator, monkeypatch: pytest.MonkeyPatch
) -> None:
    first, second = enqueued(run, "mail"), enqueued(run, "mail", "--queue", "slow")
    held = started(serving)
    looks = iter(
        (
            lambda: progress(serving, held, 2),
            lambda: None,
            lambda: complete(serving, held),
            lambda: _cancel(serving, second),
        )
    )
    monkeypatch.setattr("tenure.cli.following.pause", lambda _: next(looks)())

    watched = run("jobs", "watch", first, second)

    lines = [line.split() for line in watched.stdout.splitlines()]
    assert [(line[0], line[2]) for line in lines] == [
        (first, "running"),
        (second, "queued"),
        (first, "running"),
        (first, "succeeded"),
        (second, "cancelled"),
    ]
    assert "2/4" in watched.stdout
    assert "\x1b" not in watched.stdout
    assert watched.exit_code == 1


def _cancel(serving: Coordinator, job_id: str) -> None:
    serving.execute(
        Cancel(job_id=JobId(job_id), actor=client_actor("me"), request_id=RequestId("stop"))
    )


@spec("LV3")
def test_json_has_the_jobs_as_they_ended(run: Run, serving: Coordinator) -> None:
    job_id = enqueued(run, "mail")
    complete(serving, started(serving))

    watched = run("jobs", "watch", job_id, "--json")

    [document] = json.loads(watched.stdout)
    assert (document["id"], document["status"]) == (job_id, "succeeded")
    assert "succeeded" in watched.stderr
    assert watched.exit_code == 0


@spec("LV3", "LV8")
def test_a_watch_gives_up_and_refuses_unknown_jobs(run: Run) -> None:
    job_id, other = enqueued(run, "mail"), enqueued(run, "mail")

    too_long = run("jobs", "watch", job_id, "--timeout", "0s")
    several = run("jobs", "watch", job_id, other, "--timeout", "0s")
    unknown = run("jobs", "watch", "01890000-0000-7000-8000-000000000000")

    assert too_long.exit_code == several.exit_code == unknown.exit_code == 1
    assert too_long.stderr.splitlines() == [
        "tenure: not finished in time: 1 of 1 job",
        f"tenure: job {job_id} keeps running; `tenure jobs watch {job_id}` shows it",
    ]
    assert several.stderr.splitlines() == [
        "tenure: not finished in time: 2 of 2 jobs",
        "tenure: the jobs that have not ended keep running; the same command shows them again",
    ]
    assert "no job" in unknown.stderr


@spec("LV8")
def test_a_wait_that_gives_up_says_that_the_job_keeps_running(run: Run) -> None:
    job_id = enqueued(run, "mail")

    too_long = run("jobs", "wait", job_id, "--timeout", "0s")

    assert too_long.exit_code == 1
    assert too_long.stderr.splitlines()[1:] == [
        f"tenure: job {job_id} keeps running; `tenure jobs watch {job_id}` shows it"
    ]


@process
@spec("LV9")
@pytest.mark.parametrize(("command", "code"), [("watch", 141), ("wait", 141), ("logs", 0)])
def test_a_view_ends_without_a_message_when_nobody_reads_it(
    run: Run, command: str, code: int
) -> None:
    job_id = enqueued(run, "mail")
    follow = ("-f",) if command == "logs" else ()

    with subprocess.Popen(
        [*TENURE, "jobs", command, job_id, *follow],
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

    assert (ended, said) == (code, "")


@process
@spec("LV3")
def test_whoever_waits_at_a_terminal_sees_how_far_the_job_is(
    run: Run, serving: Coordinator, store_path: Path
) -> None:
    with Terminal(
        "enqueue", "mail", "--wait", directory=store_path.parent, columns=120
    ) as terminal:
        terminal.until("queued  no worker is alive")
        held = started(serving)
        progress(serving, held, 2)
        terminal.until("running  ██████████░░░░░░░░░░  50%  2/4")
        complete(serving, held)
        code = terminal.ended()
        shown = terminal.until_gone("50%")

    assert code == 0
    assert shown.splitlines()[-1] == "7"


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
    monkeypatch.setattr(following, "FIRST_SHOWN_AFTER_S", 0.0)
    monkeypatch.setattr(following, "SHOWN_EVERY_S", 0.0)
    monkeypatch.setattr(following, "pause", lambda _: next(looks)())

    waited = run("jobs", "wait", job_id)

    lines = waited.stderr.splitlines()
    assert [line.split()[:3] for line in lines] == [[job_id, "mail", "running"]] * 3
    assert ["2/4" in lines[1], f"3/4  {SHOWN}" in lines[2]] == [True, True]
    assert (waited.exit_code, waited.stdout, "\x1b" in waited.stderr) == (0, "7\n", False)


# --- output --------------------------------------------------------------------------------------


@process
@spec("LV4", "LV2")
def test_output_is_shown_as_it_is_written_until_the_job_has_ended(
    run: Run, serving: Coordinator, store_path: Path
) -> None:
    job_id = enqueued(run, "mail")
    held = started(serving)
    write(serving, held, "one\n", 1)

    with Terminal("jobs", "logs", "-f", job_id, directory=store_path.parent) as terminal:
        terminal.until("one")
        write(serving, held, f"one\ntwo {HOSTILE}", 2)
        terminal.until(f"two {SHOWN}")
        complete(serving, held)
        write(serving, held, f"one\ntwo {HOSTILE} and more\n", 3)
        code = terminal.ended()
        shown = terminal.text

    assert code == 0
    assert shown.splitlines() == [
        "attempt 1",
        "one",
        f"two {SHOWN} and more",
        f"tenure: job {job_id} is succeeded",
    ]


@spec("LV4")
def test_programs_read_each_piece_once(
    run: Run, serving: Coordinator, monkeypatch: pytest.MonkeyPatch
) -> None:
    job_id = enqueued(run, "mail")
    held = started(serving)

    def finish() -> None:
        write(serving, held, "one\ntwo\n", 2)
        complete(serving, held)

    looks = iter(
        (
            lambda: write(serving, held, "one\n", 1),
            lambda: None,
            finish,
        )
    )
    monkeypatch.setattr(job_view, "LAST_OUTPUT_S", 0.0)
    monkeypatch.setattr(job_view, "pause", lambda _: next(looks, lambda: None)())

    followed = run("jobs", "logs", "-f", "--json", job_id)

    pieces = [json.loads(line) for line in followed.stdout.splitlines()]
    assert pieces == [{"attempt": 1, "text": "one\n"}, {"attempt": 1, "text": "two\n"}]
    assert followed.exit_code == 0


@spec("LV8")
@pytest.mark.parametrize("has_ended", [False, True])
def test_ctrl_c_while_output_is_followed_says_that_the_job_keeps_running_unless_it_has_ended(
    run: Run, serving: Coordinator, monkeypatch: pytest.MonkeyPatch, has_ended: bool
) -> None:
    job_id = enqueued(run, "mail")
    held = started(serving)
    if has_ended:
        complete(serving, held)

    def stop(_: float) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr(job_view, "pause", stop)

    followed = run("jobs", "logs", "-f", job_id)

    keeps_running = f"tenure: job {job_id} keeps running; `tenure jobs watch {job_id}` shows it"
    assert followed.exit_code == 130
    assert followed.stderr.splitlines() == ([""] if has_ended else ["", keeps_running])


def _kept(output: BoundedOutput) -> AttemptLog:
    text, left_out = output.peek()
    return AttemptLog(
        job_id=JobId("01890000-0000-7000-8000-000000000000"),
        attempt=1,
        text=text.decode(),
        left_out_bytes=left_out,
    )


@spec("LV4")
@pytest.mark.parametrize("written", [1, 3, 7, 20])
def test_what_falls_out_of_the_middle_was_shown_before(written: int) -> None:
    output = BoundedOutput(40)
    old: AttemptLog | None = None
    shown = ""
    whole = "".join(f"{number:03}" for number in range(100))

    for begin in range(0, len(whole), written):
        output.write(whole[begin : begin + written].encode())
        new = _kept(output)
        shown += unseen(old, new)
        old = new

    assert shown == whole


@spec("LV4")
def test_what_nobody_saw_is_said_to_be_left_out() -> None:
    output = BoundedOutput(40)
    output.write(b"begins\n")
    old = _kept(output)
    output.write(b"x" * 100 + b"the end")

    head, tail = "x" * 13, "x" * 13 + "the end"
    assert unseen(old, _kept(output)) == f"{head}\n[... 74 bytes left out ...]\n{tail}"


@pytest.mark.parametrize(
    ("done", "total", "shown"), [(0, 4, "0%"), (1, 3, "33%"), (9, 4, "100%"), (1, 0, "0%")]
)
def test_a_bar_is_never_longer_than_its_frame(done: int, total: int, shown: str) -> None:
    drawn = output.bar(done, total)

    assert drawn.endswith(shown)
    assert len(drawn) == output.BAR_COLUMNS + 5
