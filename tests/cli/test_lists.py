"""`--watch` of every list: its screen on a terminal, and where it is refused."""

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import click
import pytest

from tenure.cli import invocation
from tenure.cli.invocation import Listing, watch_list
from tenure.cli.main import COMMANDS, main
from tenure.cli.output import display_width
from tenure.core.ids import QueueName
from tenure.errors import StoreUnavailable
from tenure.wiring import open_coordinator
from tenure_conformance.spec import spec
from tests.cli.harness import Run, enqueued
from tests.remote.sites import RemoteSite
from tests.support.cases import each_case
from tests.support.terminals import CTRL_C, Terminal

process = pytest.mark.process

HOSTILE = "\x1b[2J\x1b]0;x\x07\u202e\u2066\r\n\x00"


def listing(rows: int, text: str = "mail", notes: tuple[str, ...] = ()) -> Listing[int]:
    columns: dict[str, Any] = {"ID": str, "KIND": lambda _: text, "WORKER": lambda _: text}
    return Listing(
        list(range(rows)), columns, document=lambda row: row, optional=("WORKER",), notes=notes
    )


def test_every_list_can_be_watched() -> None:
    groups = [main.get_command(click.Context(main), name) for name in COMMANDS if name != "conform"]
    lists = [each.commands["ls"] for each in groups if isinstance(each, click.Group)]

    assert len(lists) == 8
    for each in lists:
        assert "watch" in {option.name for option in each.params}


@process
@spec("LV11")
def test_a_list_is_drawn_again_until_ctrl_c(run: Run, store_path: Path) -> None:
    enqueued(run, "mail", "--queue", "post")

    with Terminal("queues", "ls", "--watch", directory=store_path.parent) as terminal:
        terminal.until("post   open   1")
        enqueued(run, "mail", "--queue", "post")
        terminal.until("post   open   2")
        first = terminal.lines[0]
        terminal.type(CTRL_C)
        code = terminal.ended()
        after = terminal.settings_now()

    assert code == 0
    assert first.split()[:3] == ["QUEUE", "STATE", "READY"]
    assert after == terminal.settings
    assert "Aborted" not in terminal.text


@process
@spec("LV11")
def test_the_next_screen_has_the_new_size_of_the_terminal(run: Run, store_path: Path) -> None:
    for _ in range(6):
        enqueued(run, "mail")

    with Terminal("jobs", "ls", "--watch", directory=store_path.parent) as terminal:
        terminal.until("mail")
        terminal.resize(60, 5)
        small = terminal.until("4 more").splitlines()
        terminal.resize(160, 40)
        terminal.until("WORKER")

    assert len(small) <= 5


@process
@spec("LV11")
def test_a_terminal_that_does_not_know_its_size_counts_as_a_common_one(
    run: Run, store_path: Path
) -> None:
    """So it is over a serial line, and in a container whose terminal nobody has resized."""
    ids = [enqueued(run, "mail") for _ in range(30)]

    with Terminal(
        "jobs", "ls", "--watch", directory=store_path.parent, knows_size=False
    ) as terminal:
        shown = terminal.until("9 more").splitlines()

    assert len(shown) == 23
    assert ids[-1][:18] in shown[1]


@spec("LV11")
@pytest.mark.parametrize("words", [(), ("--json",)])
@pytest.mark.parametrize("command", ["queues ls", "jobs ls", "workers ls"])
def test_elsewhere_a_watch_is_refused(run: Run, command: str, words: tuple[str, ...]) -> None:
    enqueued(run, "mail")

    refused = run(*command.split(), "--watch", *words)

    assert (refused.exit_code, refused.stdout) == (2, "")
    assert "--watch needs a terminal, and does not go with --json" in refused.stderr


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Iterator[RemoteSite]:
    """A server over a file."""
    directory: Path = tmp_path_factory.mktemp("lists")
    site = RemoteSite(f"sqlite:///{directory / 'tenure.db'}", directory)
    site.serve()
    yield site
    site.close()


@process
@spec("LV11", "H41")
def test_a_limited_token_watches_its_queues_only(site: RemoteSite, tmp_path: Path) -> None:
    address = site.servers[0].address
    ann = site.token("operator", "ann")
    for queue in ("mine", "also-mine", "theirs"):
        site.ask(address, ann, "enqueue", "mail", "-q", queue)
    limited = site.token("viewer", "vic", queues=(QueueName("mine"), QueueName("also-mine")))
    environment = {"TENURE_URL": address, "TENURE_TOKEN": limited}

    words = ("queues", "ls", "--watch")
    with Terminal(*words, directory=tmp_path, environment=environment) as terminal:
        screen = terminal.until("also-mine")

    assert "theirs" not in screen


class Watched:
    """`watch_list` with a clock of its own, until its third screen."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, *reads: float | Exception) -> None:
        """Each read takes this long or fails."""
        self.screens: list[str] = []
        self.pauses: list[float] = []
        self.now = 0.0
        self._reads = iter(reads)
        monkeypatch.setattr(invocation, "time", self)
        monkeypatch.setattr(invocation, "get_terminal_size", lambda: (80, 24))
        monkeypatch.setattr(invocation, "redraw", lambda lines: self.screens.append(str(lines)))
        with pytest.raises(SystemExit) as ended:
            watch_list(self._read)
        self.exit_code = ended.value.code

    def monotonic(self) -> float:
        return self.now

    def sleep(self, seconds: float) -> None:
        self.pauses.append(seconds)
        if len(self.pauses) == 3:
            raise KeyboardInterrupt

    def _read(self) -> Listing[int]:
        took = next(self._reads)
        if isinstance(took, Exception):
            raise took
        self.now += took
        return listing(1)


@spec("LV11")
def test_what_was_read_last_stays_while_the_store_is_away(monkeypatch: pytest.MonkeyPatch) -> None:
    watched = Watched(monkeypatch, 0.0, StoreUnavailable("it is away"), 0.0)

    first, away, back = watched.screens
    assert watched.exit_code == 0
    assert "! it is away" in away
    assert all("mail" in each for each in (first, away, back))
    assert "it is away" not in first + back


@spec("LV11")
def test_a_list_that_no_server_has_is_read_again_from_the_same_store(
    run: Run, monkeypatch: pytest.MonkeyPatch
) -> None:
    run("tokens", "create", "ann", "--role", "viewer")
    opened: list[str] = []

    def opening(url: str, **options: Any) -> Any:
        opened.append(url)
        return open_coordinator(url, **options)

    def twice(read: Callable[[], Listing[Any]]) -> None:
        read()
        read().print(as_json=False)

    monkeypatch.setattr(invocation, "open_coordinator", opening)
    monkeypatch.setattr(invocation, "watch_list", twice)
    monkeypatch.setattr(invocation, "terminal_columns", lambda: 80)

    shown = run("tokens", "ls", "--watch")

    assert "ann" in shown.stdout
    assert len(opened) == 1


@spec("LV11")
def test_after_a_slow_read_it_waits_longer(monkeypatch: pytest.MonkeyPatch) -> None:
    assert Watched(monkeypatch, 0.0, 2.0, 60.0).pauses == [1.0, 18.0, 30.0]


@spec("LV11")
@each_case("columns", [1, 20, 60, 100, 300])
@each_case("rows", [1, 2, 5, 12, 60])
def test_a_screen_of_any_size_is_never_longer_or_wider(columns: int, rows: int) -> None:
    for found in (0, 3, 40):
        lines = listing(found, notes=("look at it " * 20,)).screen(columns, rows, "x" * 500)

        assert 1 <= len(lines) <= rows
        assert all(display_width(click.unstyle(line)) <= columns for line in lines)


@spec("LV2")
def test_nothing_hostile_reaches_the_screen() -> None:
    for line in listing(2, HOSTILE, notes=(HOSTILE,)).screen(200, 60, HOSTILE):
        assert click.unstyle(line).isprintable(), line
