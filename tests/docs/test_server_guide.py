"""The shell examples of the server's guide, run as they stand against a server of their own."""

import json
import re
import socket
from pathlib import Path

import pytest

from tests.docs.commands import environment_with_tenure, run_shell

pytestmark = pytest.mark.process

GUIDE = Path(__file__).parents[2] / "docs" / "guide" / "server.md"
_FENCE = re.compile(r"^```sh\n(.*?)^```$", re.MULTILINE | re.DOTALL)


def blocks(beginning: str) -> list[str]:
    return [block for block in _FENCE.findall(GUIDE.read_text()) if beginning in block]


@pytest.fixture
def port() -> int:
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        return int(free.getsockname()[1])


def test_the_examples_of_the_guide_do_what_it_says(tmp_path: Path, port: int) -> None:
    [start] = blocks("tenure serve --port")
    [second_terminal] = blocks("=$(cat client.token)")
    asked = blocks("curl ")
    # The server in the background, its address awaited; everything else as it is written.
    start = start.replace("tenure serve --port 7717", "mkfifo up; tenure serve --port 7717 > up &")
    script = "\n".join([start, "read address < up", second_terminal, *asked, "kill $!", "wait"])
    script = script.replace("7717", str(port)).replace("\ncurl -s", "\necho; curl -s")

    done = run_shell(script, tmp_path, environment_with_tenure(tmp_path, {}))

    answers = [json.loads(line) for line in done.stdout.splitlines() if line.startswith("{")]
    assert len(answers) == len(asked) == 3, done
    made, claimed, refused = answers
    assert made["job"]["status"] == "queued"
    assert [grant["payload"] for grant in claimed["grants"]] == [{"to": "ada"}]
    shown = re.search(r"^```json\n(.*?)\n```$", GUIDE.read_text(), re.MULTILINE)
    assert shown is not None
    assert refused | {"request_id": "…"} == json.loads(shown[1])
    assert refused["hint"], "the page says that an answer says what to do"
    assert (tmp_path / "worker.token").stat().st_mode & 0o077 == 0
