"""`tenure tokens`: made once, shown once, ended for good."""

import json
from contextlib import closing
from pathlib import Path

import pytest

from tenure.coordinator.service import Coordinator
from tenure.core.ids import (
    DEFAULT_NAMESPACE,
    DEFAULT_QUEUE,
    Kind,
    ScheduleName,
    operator_actor,
)
from tenure.core.instants import seconds
from tenure.core.schedules import PutSchedule, ScheduleSpec
from tenure.core.tokens import read_token
from tenure.stores.sqlite.store import SqliteStore
from tenure_conformance.spec import spec
from tests.cli.harness import tenure


@pytest.fixture
def url(tmp_path: Path) -> str:
    return f"sqlite:///{tmp_path / 'tokens.db'}"


def listed(url: str) -> list[dict[str, object]]:
    return list(json.loads(tenure("tokens", "ls", "--url", url, "--json").stdout))


def test_a_token_is_shown_once_and_listed_without_its_secret(url: str) -> None:
    made = tenure(
        *("tokens", "create", "fleet", "--url", url, "--role", "worker", "--expires", "90d"),
        *("-q", "mail", "-q", "web", "-k", "welcome", "--max-leases", "7", "--max-polls", "3"),
        "--may-declare",
    )

    presented = read_token(made.stdout.strip())
    [shown] = listed(url)
    table = tenure("tokens", "ls", "--url", url).stdout

    assert presented is not None
    assert "acts as worker:fleet" in made.stderr
    assert shown["id"] == presented.id
    assert (shown["role"], shown["state"], shown["name"]) == ("worker", "valid", "fleet")
    assert (shown["queues"], shown["kinds"]) == (["mail", "web"], ["welcome"])
    assert (shown["max_leases"], shown["max_polls"], shown["may_declare"]) == (7, 3, True)
    assert made.stdout.strip().rpartition("_")[2] not in table + json.dumps(shown)
    assert "mail,web" in table


def test_a_token_as_json_carries_its_text(url: str) -> None:
    made = json.loads(
        tenure("tokens", "create", "app", "--url", url, "--role", "client", "--json").stdout
    )

    assert read_token(made["token"]) is not None
    assert "token" not in listed(url)[0]


def test_a_revoked_token_is_listed_as_such(url: str) -> None:
    text = tenure("tokens", "create", "app", "--url", url, "--role", "client").stdout.strip()
    token_id = text.split("_")[1]

    revoked = tenure("tokens", "revoke", token_id, "--url", url)
    again = tenure("tokens", "revoke", token_id, "--url", url)

    assert (revoked.exit_code, again.exit_code) == (0, 0)
    assert listed(url)[0]["state"] == "revoked"


def test_an_unknown_token_is_refused_and_a_secret_is_not_repeated(url: str) -> None:
    text = tenure("tokens", "create", "app", "--url", url, "--role", "client").stdout.strip()

    unknown = tenure("tokens", "revoke", "0" * 16, "--url", url)
    secret = tenure("tokens", "revoke", text, "--url", url)

    assert (unknown.exit_code, secret.exit_code) == (1, 1)
    assert "there is no token" in unknown.stderr
    assert text not in secret.output
    assert listed(url)[0]["state"] == "valid"


@pytest.mark.parametrize(
    "words",
    [
        ("a/b", "--role", "client"),
        ("app", "--role", "boss"),
        ("app",),
        ("app", "--role", "client", "-q", "no spaces"),
        ("app", "--role", "client", "--expires", "soon"),
        ("app", "--role", "client", "--expires", "0s"),
        ("app", "--role", "client", "--max-leases", "0"),
        ("app", "--role", "client", "--namespace", "no spaces"),
    ],
)
def test_an_invalid_token_is_refused_in_one_line_with_exit_code_2(
    url: str, words: tuple[str, ...]
) -> None:
    tenure("tokens", "create", "first", "--url", url, "--role", "viewer")

    refused = tenure("tokens", "create", "--url", url, *words)

    assert refused.exit_code == 2
    assert "Traceback" not in refused.output
    assert [token["name"] for token in listed(url)] == ["first"]


def test_a_token_is_revoked_by_a_shortened_id(url: str) -> None:
    text = tenure("tokens", "create", "app", "--url", url, "--role", "client").stdout.strip()
    token_id = text.split("_")[1]

    short = tenure("tokens", "revoke", token_id[:7], "--url", url)
    revoked = tenure("tokens", "revoke", token_id[:8], "--url", url)

    assert (short.exit_code, revoked.exit_code) == (1, 0)
    assert revoked.stdout == f"{token_id}: revoked\n"
    assert listed(url)[0]["state"] == "revoked"


@spec("SC24")
def test_revoking_says_which_schedules_it_paused_and_lists_say_why(
    url: str, tmp_path: Path
) -> None:
    made = ("tokens", "create", "fleet", "--url", url, "--role", "operator", "--json")
    token_id = json.loads(tenure(*made).stdout)["id"]
    with closing(SqliteStore(tmp_path / "tokens.db")) as store, closing(Coordinator(store)) as by:
        spec_of = ScheduleSpec(kind=Kind("k"), queue=DEFAULT_QUEUE, every_us=seconds(3600))
        for name in ("nightly", "weekly"):
            put = PutSchedule(
                namespace=DEFAULT_NAMESPACE,
                name=ScheduleName(name),
                actor=operator_actor("fleet"),
                spec=spec_of,
            )
            by.change_schedule(put)

    revoked = tenure("tokens", "revoke", token_id, "--url", url)
    ls = tenure("schedules", "ls", "--url", url).stdout
    show = tenure("schedules", "show", "nightly", "--url", url).stdout
    again = tenure("tokens", "revoke", token_id, "--url", url)

    assert revoked.stdout == f"{token_id}: revoked; 2 schedules paused: nightly, weekly\n"
    assert "tenure schedules resume" in revoked.stderr
    assert again.stdout == f"{token_id}: revoked\n"
    assert ls.count("paused: last token of operator:fleet revoked") == 2
    assert "paused: last token of operator:fleet revoked" in show
