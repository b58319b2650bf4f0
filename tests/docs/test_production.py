"""The guide to production: its commands run, its units and images start commands that exist, and
its alerts ask for metrics that there are. Its Python examples run with those of other guides."""

import json
import re
import shlex
from collections.abc import Iterator
from configparser import ConfigParser
from itertools import pairwise
from pathlib import Path
from urllib.parse import urlsplit

import pytest

from tenure.coordinator.sweeper import JUMP_THRESHOLD, SWEEP_INTERVAL
from tenure.core.attempt_end import MAX_OUTAGE_CREDITS
from tenure.core.instants import parse_duration, seconds
from tenure.core.policy import LONGEST_SPREAD, Policy
from tenure.telemetry.catalogue import METRICS
from tenure.worker.session.messages import Stats
from tests.docs.commands import check_command, environment_with_tenure, run_shell
from tests.server.processes import House
from tests.support.postgres import PostgresCluster

pytestmark = pytest.mark.process

PAGE = (Path(__file__).parents[2] / "docs" / "guide" / "production.md").read_text()
INSTRUCTIONS = {"FROM", "COPY", "RUN", "WORKDIR", "USER", "ENTRYPOINT", "CMD"}


def blocks(language: str) -> list[str]:
    fence = re.compile(rf"^```{language}\n(.*?)^```$", re.MULTILINE | re.DOTALL)
    return fence.findall(PAGE)


def shell(beginning: str) -> str:
    [block] = [block for block in blocks("sh") if beginning in block]
    return block


@pytest.fixture
def house(tmp_path: Path) -> Iterator[House]:
    house = House(f"sqlite:///{tmp_path / 'house.db'}", tmp_path)
    yield house
    house.close()


def test_a_database_is_set_up_as_the_page_says(
    durable_postgres: PostgresCluster, tmp_path: Path
) -> None:
    script = shell("tenure migrate").replace(
        "postgresql://jobs@db.internal/jobs", shlex.quote(durable_postgres.create_database())
    )

    ran = run_shell(script, tmp_path, environment_with_tenure(tmp_path, {}))

    assert ran.returncode == 0, ran
    assert (tmp_path / "schema.sql").read_text().startswith("BEGIN;")
    assert re.search(r"^epoch +1 +ok$", ran.stdout, re.MULTILINE)


def test_a_restored_database_begins_a_new_epoch_as_the_page_says(
    postgres_url: str, tmp_path: Path
) -> None:
    script = shell("raise-epoch").replace(
        "postgresql://jobs@restored.internal/jobs", shlex.quote(postgres_url)
    )
    environment = environment_with_tenure(tmp_path, {"TENURE_URL": postgres_url})
    assert run_shell("tenure migrate", tmp_path, environment).returncode == 0

    ran = run_shell(script, tmp_path, environment)

    assert ran.returncode == 0, ran
    assert ran.stdout.startswith("2\n")


def test_a_server_is_asked_and_a_token_replaced_as_the_page_says(
    house: House, tmp_path: Path
) -> None:
    server = house.serve()
    old = house.token("worker", "fleet", "--queue", "mail")
    [known] = json.loads(house.tenure("tokens", "ls", "--json").stdout)
    script = shell("curl").replace("http://127.0.0.1:7717", server.address) + shell("tokens revoke")
    environment = {"TENURE_URL": house.url, "OLD_TOKEN_ID": known["id"]}

    ran = run_shell(script, tmp_path, environment_with_tenure(tmp_path, environment))

    assert ran.returncode == 0, ran
    assert ran.stdout.startswith('{"status":"ready"}')
    assert (tmp_path / "new.token").read_text().strip() != old
    states = [each["state"] for each in json.loads(house.tenure("tokens", "ls", "--json").stdout)]
    assert sorted(states) == ["revoked", "valid"]


def units() -> list[ConfigParser]:
    found = []
    for text in blocks("ini"):
        unit = ConfigParser(interpolation=None, delimiters=("=",), comment_prefixes=("#",))
        unit.optionxform = str  # type: ignore[assignment,method-assign]  # as its documentation says
        unit.read_string(text)
        found.append(unit)
    return found


def test_units_start_commands_that_exist() -> None:
    started = [unit["Service"]["ExecStart"] for unit in units() if unit.has_section("Service")]

    assert len(started) == 3
    for command in started:
        program, *words = shlex.split(command)
        assert program.endswith("/bin/tenure")
        check_command(words)


def test_whoever_stops_a_worker_waits_longer_than_its_grace() -> None:
    [worker] = [
        unit["Service"]
        for unit in units()
        if unit.has_section("Service") and "tenure worker" in unit["Service"]["ExecStart"]
    ]
    [compose] = blocks("yaml")

    [grace] = re.findall(r"--grace (\S+)", worker["ExecStart"])
    assert parse_duration(grace) < parse_duration(worker["TimeoutStopSec"] + "s")
    [in_container] = re.findall(r'"--grace", "(\S+)"', compose)
    [stop] = re.findall(r"stop_grace_period: (\S+)", compose)
    assert parse_duration(in_container) < parse_duration(stop)


def test_images_start_commands_that_exist() -> None:
    [dockerfile], [compose] = blocks("dockerfile"), blocks("yaml")
    lines = [line for line in dockerfile.splitlines() if not line.startswith("#")]
    instructions = dict(line.split(" ", 1) for line in lines)

    assert set(instructions) == INSTRUCTIONS
    assert json.loads(instructions["ENTRYPOINT"]) == ["tenure"]
    check_command(json.loads(instructions["CMD"]))
    commands = re.findall(r"^ +command: (\[.*\])$", compose, re.MULTILINE)
    assert len(commands) == compose.count("command:") == compose.count("build:")
    for command in commands:
        check_command(json.loads(command))


def test_a_database_for_a_trial_is_the_one_that_its_url_names() -> None:
    [started, exported] = shell("docker run").splitlines()

    words = shlex.split(started)
    given = dict(pairwise(words))
    url = urlsplit(exported.removeprefix("export TENURE_URL="))
    assert given["-e"] == f"POSTGRES_PASSWORD={url.password}"
    assert given["-p"] == f"{url.hostname}:{url.port}:5432"
    assert (url.username, url.path) == ("postgres", "/postgres"), "as the image makes them"
    image, _, version = words[-1].partition(":")
    assert (image, int(version) >= 14) == ("postgres", True)


def test_alerts_ask_for_metrics_that_there_are() -> None:
    asked = re.findall(r"\btenure_\w+", PAGE)
    events = re.findall(r'event="(\w+)"', PAGE)

    assert len(asked) >= 7
    assert set(asked) <= {metric.name for metric in METRICS}
    assert events
    assert set(events) <= set(Stats.__struct_fields__)


def test_what_a_step_of_the_clock_does_is_told_with_the_numbers_of_the_code() -> None:
    [section] = re.findall(r"^### The clock$(.*?)^## ", PAGE, re.MULTILINE | re.DOTALL)
    [threshold_s] = re.findall(r"\*\*Ahead by more than (\d+) s\*\*", section)
    [interval_s] = re.findall(r"waits ([0-9.]+) s for a second reading", section)
    [(step_s, lease_s)] = re.findall(r"a step of (\d+) s ends no lease\s+of (\d+) s", section)

    policy = Policy(lease_us=seconds(int(lease_s)))
    assert seconds(int(threshold_s)) == JUMP_THRESHOLD
    assert seconds(float(interval_s)) == SWEEP_INTERVAL
    assert policy.lease_us - policy.heartbeat_interval_us > seconds(int(step_s))
    assert seconds(60) == LONGEST_SPREAD, "within a minute"
    assert MAX_OUTAGE_CREDITS == 3, "three times per job at most"
