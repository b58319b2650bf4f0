"""The examples of the worker protocol, run in order against a real server, with their answers."""

import json
import os
import re
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.server.processes import House

pytestmark = pytest.mark.process

PAGE = Path(__file__).parents[2] / "docs" / "spec" / "worker-protocol.md"
_BLOCK = re.compile(r"^```(sh|json)\n(.*?)^```$", re.MULTILINE | re.DOTALL)
_MARK = "---- the next answer ----"
ANY = "…"


@pytest.fixture
def house(tmp_path: Path) -> Iterator[House]:
    house = House(f"sqlite:///{tmp_path / 'house.db'}", tmp_path)
    yield house
    house.close()


def examples() -> list[tuple[str, str]]:
    """Shell blocks, each with the answer that is shown for it, if any."""
    found: list[tuple[str, str]] = []
    for language, text in _BLOCK.findall(PAGE.read_text()):
        if language == "sh":
            found.append((text, ""))
        else:
            found[-1] = (found[-1][0], text)
    return found


def shows(shown: Any, answer: Any) -> bool:
    """Whether everything that is shown is in the answer."""
    match shown:
        case dict():
            return isinstance(answer, dict) and all(
                name in answer and shows(value, answer[name]) for name, value in shown.items()
            )
        case list():
            return len(shown) == len(answer) and all(map(shows, shown, answer))
        case float():  # a time that remains, and is a little less by now
            return bool(0.5 * shown < answer <= shown)
        case _:
            return bool(shown == answer or (shown == ANY and answer))


def test_the_examples_are_answered_as_the_page_says(house: House, tmp_path: Path) -> None:
    blocks = examples()
    server = house.serve()
    tokens = {"CLIENT_TOKEN": house.token("client"), "TENURE_TOKEN": house.token("worker")}

    ran = subprocess.run(
        [
            "bash",
            "-euo",
            "pipefail",
            "-c",
            f"\necho; echo '{_MARK}'\n".join(sh for sh, _ in blocks),
        ],
        cwd=tmp_path,
        env=os.environ | tokens | {"TENURE_URL": server.address},
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )

    answers = ran.stdout.split(_MARK)
    assert len(answers) == len(blocks), ran
    assert sum(bool(shown) for _, shown in blocks) >= 9
    for (command, shown), answer in zip(blocks, answers, strict=True):
        if shown:
            assert shows(json.loads(shown), json.loads(answer)), f"{command}\n{shown}\n{answer}"
        else:
            assert not answer.strip(), answer


def test_an_answer_that_differs_is_noticed() -> None:
    assert shows({"a": [{"b": ANY}], "ttl": 60.0}, {"a": [{"b": "x", "c": 1}], "ttl": 59.9})
    assert not shows({"a": 1}, {"a": 2})
    assert not shows({"a": 1}, {})
    assert not shows({"a": ANY}, {"a": None})
    assert not shows([1], [1, 2])
