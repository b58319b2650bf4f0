"""Hostile texts in every field: nothing runs, nothing is hidden, nothing is sent in full."""

import pytest
from markupsafe import escape

from tenure.core.vocabulary import Role
from tenure.dashboard.pages import PAGES
from tenure.dashboard.rendering import cut, title_text, visible
from tenure_conformance.spec import spec
from tests.dashboard.harness import DashboardStage, Links
from tests.dashboard.hostile import (
    FORBIDDEN,
    MEGABYTE,
    NAMES,
    TEXTS,
    furnish_hostile,
    furnish_marked,
    mark,
)
from tests.support.cases import each_case

MAX_PAGE_BYTES = 3 << 20
MAX_CRAWLED = 150
SECTIONS = {page.path.split("/")[1] for page in PAGES}


@spec("DB9")
@pytest.mark.slow
@pytest.mark.parametrize("role", [Role.VIEWER, Role.OPERATOR])
def test_no_text_becomes_markup_on_any_page(stage: DashboardStage, role: Role) -> None:
    furnish_hostile(stage)
    browser = stage.browser(role)
    waiting, seen = ["/"], set[str]()
    problems = []

    while waiting and len(seen) < MAX_CRAWLED:
        path = waiting.pop(0)
        if path in seen or path.partition("?")[0].split("/")[1] not in SECTIONS:
            continue
        seen.add(path)
        answer = browser.get(path)
        if not answer.headers["content-type"].startswith("text/html"):
            continue
        links = Links(answer.text)
        local = [href for href in links.hrefs if href.startswith("/")]
        waiting += [href.partition("#")[0] for href in local]
        problems += [f"{path}: {each}" for each in links.suspicious]
        problems += [f"{path}: {each!a}" for each in FORBIDDEN if each in answer.text]
        if answer.status != 200 or len(answer.body) > MAX_PAGE_BYTES:
            problems.append(f"{path}: {answer.status}, {len(answer.body)} bytes")

    assert {"/", "/jobs", "/workers", "/schedules"} <= seen
    assert not problems, "\n".join(problems[:20])


@spec("DB9")
def test_every_field_is_shown_as_text(stage: DashboardStage) -> None:
    furnish_marked(stage)
    browser = stage.browser(Role.OPERATOR)
    pages = {path: browser.get(path) for path in {*TEXTS.values(), *NAMES.values()}}

    hidden = [each for each, path in TEXTS.items() if escape(mark(each)) not in pages[path].text]
    hidden += [name for name, path in NAMES.items() if name not in pages[path].text]

    assert not hidden
    assert {answer.status for answer in pages.values()} == {200}
    assert not any("<img" in answer.text for answer in pages.values())
    assert not [each for answer in pages.values() for each in Links(answer.text).suspicious]


@spec("DB9")
@each_case(
    ("text", "shown"),
    [
        ("a\u202eb", "a⟨U+202E⟩b"),
        ("\x00\x1b[1m", "⟨U+0000⟩⟨U+001B⟩[1m"),
        ("a\tb\nc", "a\tb\nc"),
        ("\r", "⟨U+000D⟩"),
        ("\u200b\ufeff\u2066", "⟨U+200B⟩⟨U+FEFF⟩⟨U+2066⟩"),
        ("übergröße 日本 🙂", "übergröße 日本 🙂"),
        ("\ud800", "⟨U+D800⟩"),
        ("a\u00adb\u034f", "a⟨U+00AD⟩b⟨U+034F⟩"),
        ("\u3164\uffa0\u115f\u180e", "⟨U+3164⟩⟨U+FFA0⟩⟨U+115F⟩⟨U+180E⟩"),
        ("\u2800", "⟨U+2800⟩"),
        ("\U000e0101", "⟨U+E0101⟩"),
        ("❤\ufe0f", "❤\ufe0f"),  # says how the heart is drawn
    ],
)
def test_invisible_characters_are_shown_by_code_point(text: str, shown: str) -> None:
    assert visible(text) == shown


def test_long_texts_are_cut() -> None:
    assert cut("a  b\n c", 10) == "a b c"
    assert cut(MEGABYTE, 10) == "M" * 10 + "…"
    assert len(title_text(MEGABYTE)) == 1001
