"""The examples of the guide to servers' workers and clients, run against a real server.

Its ```python server blocks run in order, as those of other pages do, with the server's own address
in place of the guide's; its shell blocks run with a worker of their own.
"""

import re
import signal
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.docs.commands import environment_with_tenure, run_shell
from tests.docs.test_examples import run_page
from tests.server.processes import House, Process
from tests.support.waiting import until

pytestmark = pytest.mark.process

GUIDE = Path(__file__).parents[2] / "docs" / "guide" / "http.md"
_FENCE = re.compile(r"^```sh\n(.*?)^```$", re.MULTILINE | re.DOTALL)
ADDRESS = "http://127.0.0.1:7717"
SHOP = """
from tenure import Tenure
app = Tenure()
@app.job(queue="mail")
def welcome(to: str) -> str:
    return f"welcome, {to}"
"""


@pytest.fixture
def house(tmp_path: Path) -> Iterator[House]:
    house = House(f"sqlite:///{tmp_path / 'guide.db'}", tmp_path)
    yield house
    house.close()


@pytest.fixture
def server(house: House) -> Process:
    return house.serve()


def page(server: Process) -> str:
    return GUIDE.read_text().replace(ADDRESS, server.address)


def test_the_python_examples_run(house: House, server: Process) -> None:
    token = house.token("client", "shop")
    text = page(server).replace("```python server", "```python")

    run_page(text.replace("client_token", repr(token)), str(GUIDE))


def test_the_shell_examples_run(house: House, server: Process, tmp_path: Path) -> None:
    _, work, look = _FENCE.findall(page(server))
    (tmp_path / "shop.py").write_text(SHOP)
    tokens = {
        "WORKER_TOKEN": house.token("worker", "fleet"),
        "CLIENT_TOKEN": house.token("client", "shop"),
    }
    environment = environment_with_tenure(tmp_path, {**tokens, "TENURE_URL": server.address})
    work = work.replace("\ntenure worker", "\nexec tenure worker")
    made = house.tenure("enqueue", "welcome", '{"to": "ada"}', "--queue", "mail")
    assert made.returncode == 0, made

    worker = subprocess.Popen(["sh", "-eu", "-c", work], cwd=tmp_path, env=environment)
    try:
        until(lambda: "succeeded" in _said(look, tmp_path, environment), "the job is done")
    finally:
        worker.send_signal(signal.SIGTERM)

    assert worker.wait(60) == 0


def _said(script: str, directory: Path, environment: dict[str, str]) -> str:
    done = run_shell(script, directory, environment)
    assert done.returncode == 0, done
    return done.stdout
