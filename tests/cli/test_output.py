"""How tables and times look: whole in a pipe, one line per row on a terminal."""

from pathlib import Path

import click
import pytest

from tenure.cli import output
from tenure.cli.output import ago, display_width, exact_and_ago, fit, print_table, shortened
from tenure.core.instants import Instant
from tests.cli.harness import Run, at_a_terminal, enqueued

NOW = Instant(1_800_000_000_000_000)
JOB_ID = "01a1e921-2ed6-7b8c-b779-066da37d8ab6"


@pytest.mark.parametrize(
    ("before_s", "words"),
    [
        (0.2, "now"),
        (3.7, "4 s ago"),
        (42, "42 s ago"),
        (180, "3 min ago"),
        (7200, "2 h ago"),
        (3 * 86400, "3 d ago"),
        (-0.5, "now"),
        (-300, "in 5 min"),
    ],
)
def test_tables_show_how_long_ago_a_time_is(before_s: float, words: str) -> None:
    assert ago(Instant(int(NOW - before_s * 1_000_000)), NOW) == words


def test_show_has_the_exact_time_too() -> None:
    at = Instant(NOW - 180_000_000)

    assert exact_and_ago(at, NOW) == "2027-01-15T07:57:00.000000Z (3 min ago)"
    assert (ago(None, NOW), exact_and_ago(None, NOW)) == (None, None)


def test_the_widest_columns_are_cut_until_a_row_fits() -> None:
    assert fit([10, 10], [5, 5], 22) == [10, 10]
    assert fit([36, 10, 30], [19, 10, 16], 60) == [23, 10, 23]
    assert fit([36, 10, 30], [19, 10, 16], 49) == [19, 10, 16]
    assert sum(fit([36, 10, 30], [19, 10, 16], 30)) == 26


@pytest.mark.parametrize(
    ("text", "width", "shown"),
    [
        ("short", 5, "short"),
        ("longer", 5, "long…"),
        ("日本語テキスト", 6, "日本…"),
        ("e\u0301te\u0301", 3, "e\u0301te\u0301"),
    ],
)
def test_a_text_that_is_cut_ends_in_an_ellipsis(text: str, width: int, shown: str) -> None:
    assert shortened(text, width) == shown
    assert display_width(shown) <= width


def test_the_longest_text_is_cut_at_once() -> None:
    """Cut character by character from its end, this one would take hours."""
    text = "日" * 300_000

    [width] = fit([display_width(text)], [16], 80)

    assert shortened(text, width) == "日" * 39 + "…"


HEAD = ["ID", "KIND", "STATUS", "WORKER", "ERROR"]
ROW = (JOB_ID, "mail", "dead_lettered", "host-18348-b7e8ad1b", "RuntimeError: " + "no " * 40)


def test_a_table_in_a_pipe_is_whole(capsys: pytest.CaptureFixture[str]) -> None:
    print_table(HEAD, [ROW], optional=("WORKER",))

    head, row = capsys.readouterr().out.splitlines()
    assert head.split() == HEAD
    assert row.split(maxsplit=4) == [str(cell).strip() for cell in ROW]


@pytest.mark.parametrize("columns", [20, 60, 80, 120, 400])
def test_on_a_terminal_no_row_is_longer_than_a_line(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], columns: int
) -> None:
    monkeypatch.setattr(output, "terminal_columns", lambda: columns)

    print_table(HEAD, [ROW, ROW], optional=("WORKER",))

    lines = capsys.readouterr().out.splitlines()
    assert len(lines) == 3
    assert max(map(display_width, lines)) <= columns


def test_on_a_narrow_terminal_optional_columns_are_left_out_and_ids_can_still_be_used(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(output, "terminal_columns", lambda: 70)

    print_table(HEAD, [ROW], optional=("WORKER",))

    head, row = capsys.readouterr().out.splitlines()
    assert head.split() == ["ID", "KIND", "STATUS", "ERROR"]
    shown = row.split()[0]
    assert JOB_ID.startswith(shown.removesuffix("…"))
    assert len(shown) >= 19
    assert "dead_lettered" in row


@pytest.mark.process
def test_a_list_fits_a_terminal_of_80_columns_and_is_whole_in_a_pipe(
    run: Run, tmp_path: Path
) -> None:
    job_id = enqueued(run, "mail" * 10, "-q", "a-queue-with-a-long-name")

    said = at_a_terminal(tmp_path, "jobs", "ls", stream="stdout")
    piped = run("jobs", "ls").stdout

    lines = [click.unstyle(line) for line in said.splitlines()]
    assert len(lines) == 2
    assert max(map(display_width, lines)) <= 80
    assert "…" in lines[1]
    assert piped.splitlines()[1].split()[:4] == [
        job_id,
        "mail" * 10,
        "a-queue-with-a-long-name",
        "queued",
    ]
