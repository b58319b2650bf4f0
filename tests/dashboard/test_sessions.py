"""Sessions: who gets one, what the cookie says, and when it ends."""

import asyncio
import json
import os
import stat
from pathlib import Path

import pytest
import starlette.requests
from starlette.requests import Request

from tenure.core.instants import Instant
from tenure.core.tokens import TokenId
from tenure.core.vocabulary import Role
from tenure.dashboard.sessions import (
    KEY_BYTES,
    MAX_NOTICE,
    NONCE_BYTES,
    SESSION_LENGTH,
    Notice,
    Signer,
    new_session,
)
from tenure.dashboard.settings import read_or_make_key
from tenure.dashboard.visits import cookie_of
from tenure.errors import InvalidInput
from tenure_conformance.spec import spec
from tests.dashboard.harness import DashboardStage
from tests.server.harness import SETTINGS
from tests.support.cases import each_case
from tests.support.waiting import PATIENCE_S

NOW = Instant(1_800_000_000_000_000)
SIGNER = Signer(bytes(KEY_BYTES))
SESSION = new_session(TokenId("0123456789abcdef"), now=NOW, entropy=bytes(NONCE_BYTES))


@spec("DB3")
def test_a_cookie_says_what_the_session_is() -> None:
    assert SIGNER.session(SIGNER.cookie(SESSION), now=NOW) == SESSION


@spec("DB32")
def test_foreign_cookies_are_not_decoded(monkeypatch: pytest.MonkeyPatch) -> None:
    decoded: list[str] = []
    parse = starlette.requests.cookie_parser  # what `Request.cookies` calls

    def noted(header: str) -> dict[str, str]:
        decoded.append(header)
        return parse(header)

    monkeypatch.setattr(starlette.requests, "cookie_parser", noted)
    stage = DashboardStage()
    cookie = 'a="' + "\\" * 15_000 + '"; tenure_theme=dark'

    answer = stage.ask("GET", "/sign-in", headers={"cookie": cookie, "accept": "text/html"})
    stage.close()

    assert answer.status == 200
    assert 'data-theme="dark"' in answer.text
    assert not decoded


@spec("DB32")
@pytest.mark.parametrize(
    ("header", "text"),
    [
        ("n=1", "1"),
        ("a=0; n=1; nn=2", "1"),
        ("n=1;n=2", "2"),
        (' n = "a/b" ', "a/b"),
        ("n=", ""),
        ('n="', '"'),
        ("n=a=b", "a=b"),
        ("", None),
        ("n", ""),
    ],
)
def test_a_cookie_is_found_by_its_name(header: str, text: str | None) -> None:
    request = Request({"type": "http", "headers": [(b"cookie", header.encode())]})

    assert cookie_of(request, "n") == text


@spec("DB3")
@each_case("position", range(0, 120, 7))
def test_a_cookie_that_was_changed_is_no_session(position: int) -> None:
    cookie = SIGNER.cookie(SESSION)
    other = "0" if cookie[position] != "0" else "1"

    assert SIGNER.session(cookie[:position] + other + cookie[position + 1 :], now=NOW) is None


@spec("DB12")
def test_a_cookie_of_another_key_is_no_session() -> None:
    assert Signer(bytes([1] * KEY_BYTES)).session(SIGNER.cookie(SESSION), now=NOW) is None


@spec("DB4")
def test_a_session_is_over_after_twelve_hours() -> None:
    cookie = SIGNER.cookie(SESSION)

    assert SIGNER.session(cookie, now=Instant(NOW + SESSION_LENGTH - 1)) == SESSION
    assert SIGNER.session(cookie, now=Instant(NOW + SESSION_LENGTH)) is None


@spec("DB6")
def test_the_form_token_of_another_session_does_not_fit() -> None:
    other = new_session(SESSION.token_id, now=NOW, entropy=bytes([1] * NONCE_BYTES))

    assert SIGNER.is_form_token(SESSION, SIGNER.form_token(SESSION))
    assert not SIGNER.is_form_token(SESSION, SIGNER.form_token(other))
    assert not SIGNER.is_form_token(SESSION, "ä")


def test_a_notice_is_shown_to_its_session_alone() -> None:
    other = new_session(None, now=NOW, entropy=bytes([1] * NONCE_BYTES))
    cookie = SIGNER.notice(Notice("x" * 5000, is_good=False), SESSION, now=NOW)

    assert SIGNER.read_notice(cookie, SESSION, now=NOW) == Notice("x" * MAX_NOTICE, is_good=False)
    assert SIGNER.read_notice(cookie, other, now=NOW) is None
    assert SIGNER.read_notice(cookie[:-1] + "!", SESSION, now=NOW) is None


@spec("DB3")
@pytest.mark.parametrize("role", [Role.VIEWER, Role.OPERATOR])
def test_viewers_and_operators_sign_in(stage: DashboardStage, role: Role) -> None:
    token = stage.token(role)
    browser = stage.browser()

    answer = browser.sign_in(token)

    assert (answer.status, answer.headers["location"]) == (303, "/")
    [cookie] = answer.cookies
    assert "; HttpOnly; Path=/; SameSite=strict" in cookie
    assert "Secure" not in cookie
    secret = token.rpartition("_")[2]
    assert secret not in f"{answer}{browser.cookies}"
    assert browser.get("/").status == 200


@spec("DB3")
@pytest.mark.parametrize("role", [Role.CLIENT, Role.PRODUCER, Role.WORKER])
def test_other_roles_hear_why_not(stage: DashboardStage, role: Role) -> None:
    browser = stage.browser()

    answer = browser.sign_in(stage.token(role))

    assert answer.status == 403
    assert "the dashboard is for viewers and operators" in answer.text
    assert browser.ask("GET", "/").headers["location"] == "/sign-in"


@spec("DB3")
@pytest.mark.parametrize("text", ["", "x", "tenure_" + "0" * 16 + "_" + "0" * 64, "ä" * 500])
def test_a_wrong_token_gets_no_session(stage: DashboardStage, text: str) -> None:
    browser = stage.browser()

    answer = browser.sign_in(text)

    assert answer.status == 401
    assert browser.ask("GET", "/").headers["location"] == "/sign-in"
    stage.security.wait_written(5)
    assert [line for line in stage.noted if "token_refused" in line]
    if text:
        assert not [line for line in stage.noted if text in line]


@spec("DB3")
def test_under_https_the_cookie_is_secure_and_of_this_host_alone() -> None:
    stage = DashboardStage(public_origin="https://jobs.example.com")
    try:
        browser = stage.browser()
        browser.get("/sign-in")
        [name] = browser.cookies
        answer = browser.post(
            "/sign-in",
            {"form_token": browser.form_token("/sign-in"), "token": stage.token(Role.VIEWER)},
            origin="https://jobs.example.com",
        )

        assert name == "__Host-tenure_session_7717"
        assert answer.status == 303
        assert all("; Secure" in cookie for cookie in answer.cookies)
    finally:
        stage.close()


@spec("DB3")
def test_signing_in_begins_a_new_session(stage: DashboardStage) -> None:
    browser = stage.browser()
    browser.get("/sign-in")
    before = dict(browser.cookies)

    browser.sign_in(stage.token(Role.VIEWER))

    nonces = [next(iter(each.values())).split(".")[2] for each in (before, browser.cookies)]
    assert nonces[0] != nonces[1]


@spec("DB3")
def test_sign_in_leads_to_the_page_that_was_wanted(stage: DashboardStage) -> None:
    browser = stage.browser()

    there = browser.ask("GET", "/queues/a%2Fb?x=1").headers["location"]

    assert there == "/sign-in?next=%2Fqueues%2Fa%252Fb%3Fx%3D1"
    answer = browser.submit(
        "/sign-in", {"token": stage.token(Role.VIEWER), "next": "/queues"}, page=there
    )
    assert answer.headers["location"] == "/queues"


@spec("DB8")
@pytest.mark.parametrize(
    "there", ["//evil.example", "https://evil.example", "/\\evil", "x", "/a\r\nb", "/\t/evil"]
)
def test_sign_in_leads_to_no_other_site(stage: DashboardStage, there: str) -> None:
    answer = stage.browser().submit(
        "/sign-in", {"token": stage.token(Role.VIEWER), "next": there}, page="/sign-in"
    )

    assert (answer.status, answer.headers["location"]) == (303, "/")


@spec("DB3")
def test_a_link_on_another_site_loads_the_page_once_more(stage: DashboardStage) -> None:
    """The browser leaves the cookie out of that request, and sends it with the second one."""
    browser = stage.browser()

    answer = browser.ask("GET", "/queues", sec_fetch_site="cross-site")

    assert answer.status == 200
    assert 'http-equiv="refresh"' in answer.text


@spec("DB4")
def test_a_session_ends_with_its_token(stage: DashboardStage) -> None:
    token, text = stage.new_token(Role.VIEWER)
    browser = stage.browser()
    browser.sign_in(text)
    assert browser.ask("GET", "/").status == 200

    stage.store.tokens.revoke(token.id)
    stage.run(asyncio.sleep(2 * SETTINGS.recheck_token_s))

    assert browser.ask("GET", "/").headers["location"] == "/sign-in"
    assert browser.ask("GET", "/", hx_request="true").status == 401


@spec("DB4")
def test_signing_out_ends_the_session_of_this_browser(stage: DashboardStage) -> None:
    browser = stage.browser(Role.VIEWER)

    browser.submit("/sign-out", {})

    assert browser.ask("GET", "/").headers["location"] == "/sign-in"


@spec("DB12")
def test_the_key_is_made_once_and_only_its_owner_can_read_it(tmp_path: Path) -> None:
    path = tmp_path / "key"

    made = read_or_make_key(path)

    assert read_or_make_key(path) == made
    assert len(made) == KEY_BYTES
    assert stat.S_IMODE(path.stat().st_mode) == 0o600
    assert list(tmp_path.iterdir()) == [path]


@spec("DB12")
@pytest.mark.parametrize("text", ["", "x" * 64, "00" * 31, "ä"])
def test_a_file_without_a_key_is_refused(tmp_path: Path, text: str) -> None:
    path = tmp_path / "key"
    path.touch(0o600)
    path.write_text(text)

    with pytest.raises(InvalidInput, match="has no key"):
        read_or_make_key(path)


@spec("DB12")
def test_a_key_of_another_user_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A server of root can read it, and so can whoever made it."""
    path = tmp_path / "key"
    read_or_make_key(path)
    monkeypatch.setattr(os, "geteuid", lambda: path.stat().st_uid + 1)

    with pytest.raises(InvalidInput, match="belongs to another user"):
        read_or_make_key(path)


@spec("DB12")
def test_a_key_that_others_can_read_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "key"
    read_or_make_key(path)
    path.chmod(0o640)

    with pytest.raises(InvalidInput, match="others can read"):
        read_or_make_key(path)


@spec("OB41")
def test_signing_in_and_out_leaves_lines(stage: DashboardStage) -> None:
    browser = stage.browser()
    browser.sign_in(stage.token(Role.OPERATOR, "ann"))
    browser.submit("/sign-out", {})
    browser.submit("/sign-out", {})

    assert stage.security.wait_written(PATIENCE_S)
    lines = [json.loads(line) for line in stage.noted]
    assert [(line["event"], line["actor"]) for line in lines] == [
        ("signed_in", "operator:ann"),
        ("signed_out", "operator:ann"),
    ]
