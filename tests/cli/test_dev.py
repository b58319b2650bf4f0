"""`tenure dev`: the new code runs soon after the file was saved."""

import os
import re
import signal
import subprocess
import sys
from collections.abc import Iterator
from http.client import HTTPConnection
from pathlib import Path

import pytest

from tenure import Retry, Tenure
from tenure.cli.dev import Watch, watch_of
from tenure.cli.errors import CouldNotRun
from tenure_conformance.spec import spec
from tests.cli.harness import tenure
from tests.support.waiting import PATIENCE_S, until

pytestmark = pytest.mark.process

SOURCE = """
from tenure import Retry, Tenure

app = Tenure()

@app.job(retry=Retry(max_attempts=1))
def greet() -> str:
    print("saying {word}", flush=True)
    return "{word}"

@app.job(retry=Retry(max_attempts=2, initial="10m"))
def divide() -> float:
    return 1 / 0
"""


@pytest.fixture
def log(tmp_path: Path) -> Path:
    """Where it talks to. Not a pipe: one that nobody reads would stop it once it is full."""
    return tmp_path / "dev.log"


@pytest.fixture
def dev(tmp_path: Path, log: Path) -> Iterator["subprocess.Popen[bytes]"]:
    (tmp_path / "greeting.py").write_text(SOURCE.format(word="hello"))
    url = f"sqlite:///{tmp_path}/dev.db"
    with log.open("wb") as talk:
        process = subprocess.Popen(
            [sys.executable, "-m", "tenure", "dev", "greeting:app", "--url", url, "--port", "0"],
            cwd=tmp_path,
            env=os.environ | {"TENURE_URL": "sqlite:///wrong.db"},
            stderr=talk,
        )
    yield process
    if process.poll() is None:
        process.terminate()
        process.wait(PATIENCE_S)


def until_said(log: Path, words: str) -> str:
    """Wait for these words; all that was said by then."""
    until(lambda: words in log.read_text(), f"{words!r} is said", seen=log.read_text)
    return log.read_text()


def test_a_changed_file_is_served_soon(
    dev: "subprocess.Popen[bytes]", tmp_path: Path, log: Path
) -> None:
    with Tenure(f"sqlite:///{tmp_path}/dev.db") as client:
        first = client.enqueue("greet", {}).result(timeout=PATIENCE_S)
        (tmp_path / "greeting.py").write_text(SOURCE.format(word="good-bye"))
        # Not by its result: a child of the old worker that starts late reads the new file, too.
        until_said(log, "greeting.py changed, restarting")
        until(
            lambda: client.enqueue("greet", {}).result(timeout=PATIENCE_S) == "good-bye",
            "the new code is served",
        )
    dev.send_signal(signal.SIGTERM)
    assert dev.wait(PATIENCE_S) == 0

    assert first == "hello"
    assert not (tmp_path / "wrong.db").exists()


def test_every_attempt_and_what_it_prints_is_shown(
    dev: "subprocess.Popen[bytes]", tmp_path: Path, log: Path
) -> None:
    with Tenure(f"sqlite:///{tmp_path}/dev.db") as client:
        job = client.enqueue("greet", {})
        job.wait(timeout=PATIENCE_S)

    said = until_said(log, f"job {job.id} (greet) attempt 1: succeeded after ")

    assert "\nsaying hello\n" in said


def test_a_failed_attempt_is_shown_with_its_traceback_and_the_time_of_the_next(
    dev: "subprocess.Popen[bytes]", tmp_path: Path, log: Path
) -> None:
    with Tenure(f"sqlite:///{tmp_path}/dev.db") as client:
        job = client.enqueue("divide", {}, retry=Retry(max_attempts=2, initial="10m"))
        said = until_said(log, "    return 1 / 0\n").splitlines()

    [line] = [at for at, text in enumerate(said) if f"job {job.id} (divide) attempt 1" in text]
    [wait_s] = re.findall(r"failed after [0-9.]+ s, next attempt in ([0-9.]+) s: Zero", said[line])
    assert 300 - PATIENCE_S < float(wait_s) <= 600
    assert said[line + 1] == "  Traceback (most recent call last):"
    assert 'greeting.py", line ' in said[line + 2]


def test_a_syntax_error_is_shown_briefly_and_the_next_save_is_served(
    dev: "subprocess.Popen[bytes]", tmp_path: Path, log: Path
) -> None:
    with Tenure(f"sqlite:///{tmp_path}/dev.db") as client:
        client.enqueue("greet", {}).wait(timeout=PATIENCE_S)
        (tmp_path / "greeting.py").write_text("def greet(:\n")
        talk = until_said(log, "waiting for a file to change").splitlines(keepends=True)
        (tmp_path / "greeting.py").write_text(SOURCE.format(word="mended"))
        served = client.enqueue("greet", {}).result(timeout=PATIENCE_S)

    said = talk[talk.index("tenure: greeting:app cannot be imported\n") : -1]
    assert served == "mended"
    assert 'greeting.py", line 1' in said[1]
    assert said[-1].startswith("SyntaxError: ")
    assert len(said) <= 5


@spec("DB14")
def test_the_dashboard_is_served_beside_the_worker_and_ends_with_it(
    dev: "subprocess.Popen[bytes]", log: Path
) -> None:
    said = until_said(log, "tenure: dashboard at http://127.0.0.1:")
    [address] = re.findall(r"dashboard at (http://\S+)/\n", said)

    status, page = fetch(address, "/workers")
    dev.terminate()
    dev.wait(PATIENCE_S)

    assert (status, "<h1>Workers</h1>" in page) == (200, True)
    with pytest.raises(ConnectionRefusedError):
        fetch(address, "/healthz")


@spec("H27")
def test_a_server_beside_it_is_refused_and_hears_which_process_is_the_first(
    dev: "subprocess.Popen[bytes]", tmp_path: Path, log: Path
) -> None:
    until_said(log, "tenure: dashboard at http://127.0.0.1:")

    refused = tenure("serve", "--url", f"sqlite:///{tmp_path}/dev.db", "--port", "0")

    assert refused.exit_code == 2
    assert f"serves {tmp_path}/dev.db: `tenure dev`, process {dev.pid}; stop it" in refused.stderr


@spec("DB14")
def test_a_killed_dev_leaves_neither_worker_nor_dashboard(
    dev: "subprocess.Popen[bytes]", tmp_path: Path, log: Path
) -> None:
    [address] = re.findall(r"dashboard at (http://\S+)/\n", until_said(log, "tenure: dashboard at"))
    with Tenure(f"sqlite:///{tmp_path}/dev.db") as client:
        client.enqueue("greet", {}).wait(timeout=PATIENCE_S)
        [worker] = client.workers.ls()

        dev.kill()
        dev.wait(PATIENCE_S)

    until(lambda: not is_alive(worker.pid), "the worker has ended", seen=log.read_text)
    with pytest.raises(ConnectionRefusedError):
        fetch(address, "/healthz")


def is_alive(pid: int) -> bool:
    """Whether a process runs; one that ended and that nobody waits for does not."""
    status = Path(f"/proc/{pid}/status")
    return status.exists() and "State:\tZ" not in status.read_text()


def fetch(address: str, path: str) -> tuple[int, str]:
    connection = HTTPConnection(address.removeprefix("http://"), timeout=PATIENCE_S)
    try:
        connection.request("GET", path)
        answer = connection.getresponse()
        return answer.status, answer.read().decode()
    finally:
        connection.close()


def test_changed_rates_and_schedules_are_written(
    dev: "subprocess.Popen[bytes]", tmp_path: Path, log: Path
) -> None:
    changing = (
        SOURCE
        + """
@app.job(rate="{word}/m", every="{word}m")
def ping() -> None: ...
"""
    )
    (tmp_path / "greeting.py").write_text(changing.format(word="5"))
    until_said(log, "schedule ping: new")
    (tmp_path / "greeting.py").write_text(changing.format(word="7"))

    said = until_said(log, "kind ping: rate 7/m, burst 1 (was rate 5/m, burst 1)")

    assert "schedule ping: changed" in said
    with Tenure(f"sqlite:///{tmp_path}/dev.db") as client:
        [schedule] = client.schedules.ls()
        [kind] = [each for each in client.kinds.ls() if each.kind == "ping"]
    assert (schedule.every_s, kind.rate) == (420.0, "7/m")


def test_every_kind_of_change_is_seen_once(tmp_path: Path) -> None:
    kept, gone = tmp_path / "kept.py", tmp_path / "gone.py"
    kept.touch()
    gone.touch()
    (tmp_path / "inner").mkdir()
    watch = Watch(tmp_path, pattern="**/*.py")

    os.utime(kept, ns=(1, 1))
    gone.unlink()
    (tmp_path / "inner" / "new.py").touch()
    (tmp_path / "notes.txt").touch()
    first, second = watch.changed(), watch.changed()

    assert [path.name for path in first] == ["gone.py", "new.py", "kept.py"]
    assert second == []


def test_a_missing_module_is_reported_at_once() -> None:
    with pytest.raises(CouldNotRun, match="there is no module 'no_such_thing'"):
        watch_of("no_such_thing:app")
