"""Forms: only those of a page of this server, sent by the browser that it was made for."""

import pytest

from tenure.core.ids import DEFAULT_NAMESPACE
from tenure.core.vocabulary import Role
from tenure.dashboard.app import MAX_FORM_BYTES
from tenure_conformance.spec import spec
from tests.dashboard.harness import DashboardStage
from tests.support.cases import each_case

PAUSE = {"target": "q"}


def is_paused(stage: DashboardStage) -> bool:
    queues = stage.call("queues", role=Role.OPERATOR).json["queues"]
    return any(queue["paused"] for queue in queues)


@spec("DB2")
def test_an_operator_pauses_a_queue(stage: DashboardStage) -> None:
    browser = stage.browser(Role.OPERATOR)
    stage.enqueue()

    answer = browser.submit("/actions/pause", PAUSE)

    assert (answer.status, answer.headers["location"]) == (303, "/queues")
    assert is_paused(stage)
    assert "Queue q: paused" in browser.get("/queues").text
    assert "Queue q: paused" not in browser.get("/queues").text
    stage.security.wait_written(5)
    assert [line for line in stage.noted if "operator_action" in line and '"queue":"q"' in line]


@spec("DB6")
@pytest.mark.parametrize("token", [None, "", "0" * 64, "ä"])
def test_a_form_without_its_token_changes_nothing(stage: DashboardStage, token: str | None) -> None:
    browser = stage.browser(Role.OPERATOR)
    stage.enqueue()
    fields = PAUSE if token is None else {"form_token": token, **PAUSE}

    answer = browser.post("/actions/pause", fields)

    assert answer.status == 403
    assert not is_paused(stage)


@spec("DB6")
def test_the_form_of_another_browser_changes_nothing(stage: DashboardStage) -> None:
    browser, other = stage.browser(Role.OPERATOR), stage.browser(Role.OPERATOR)
    stage.enqueue()

    answer = browser.post("/actions/pause", {"form_token": other.form_token("/help"), **PAUSE})

    assert answer.status == 403
    assert not is_paused(stage)


@spec("DB7")
@each_case(
    "headers",
    [
        {"origin": "http://evil.example", "sec_fetch_site": "cross-site"},
        {"origin": "http://evil.example"},
        {"origin": "null"},
        {"origin": "https://localhost:7717"},
        {"sec_fetch_site": "cross-site"},
        {"sec_fetch_site": "same-site"},
        {"sec_fetch_site": "none"},
    ],
)
@each_case("authenticated", [True, False])
def test_a_form_of_another_site_changes_nothing(
    headers: dict[str, str], authenticated: bool
) -> None:
    stage = DashboardStage(authenticated=authenticated)
    try:
        browser = stage.browser(Role.OPERATOR if authenticated else None)
        fields = {"form_token": browser.form_token("/help"), **PAUSE}

        answer = browser.post("/actions/pause", fields, **headers)

        assert answer.status == 403
        assert not stage.store.settings.queues(DEFAULT_NAMESPACE)
    finally:
        stage.close()


@spec("DB7")
def test_a_form_that_does_not_say_where_it_comes_from_is_refused(stage: DashboardStage) -> None:
    browser = stage.browser(Role.OPERATOR)
    fields = f"form_token={browser.form_token('/help')}&target=q".encode()
    del browser.headers["sec-fetch-site"]

    answer = browser.ask(
        "POST", "/actions/pause", fields, content_type="application/x-www-form-urlencoded"
    )

    assert answer.status == 403
    assert not stage.store.settings.queues(DEFAULT_NAMESPACE)


@spec("DB7")
def test_behind_a_proxy_the_public_origin_counts() -> None:
    stage = DashboardStage(public_origin="https://jobs.example.com")
    try:
        browser = stage.browser()
        fields = {"form_token": browser.form_token("/sign-in"), "theme": "dark"}

        ours = browser.post("/theme", fields, origin="https://jobs.example.com")
        direct = browser.post("/theme", fields, origin="http://localhost:7717")
        claimed = browser.post(
            "/theme", fields, origin="http://x.example", x_forwarded_host="x.example"
        )

        assert (ours.status, direct.status, claimed.status) == (303, 403, 403)
    finally:
        stage.close()


@spec("H28")
@pytest.mark.parametrize("path", ["/v1/queues/q/pause", "/v1/jobs", "/v1/claim"])
def test_a_form_below_v1_is_refused(stage: DashboardStage, path: str) -> None:
    browser = stage.browser(Role.OPERATOR)

    answer = browser.submit(path, {"target": "q"})

    assert answer.status == 401
    assert not stage.store.settings.queues(DEFAULT_NAMESPACE)


@spec("DB5")
def test_cookies_open_nothing_below_v1(stage: DashboardStage) -> None:
    browser = stage.browser(Role.OPERATOR)
    assert browser.get("/queues").status == 200

    for method, path in (
        ("GET", "/v1/queues"),
        ("POST", "/v1/queues/q/pause"),
        ("GET", "/metrics"),
    ):
        answer = browser.ask(method, path)

        assert (answer.status, answer.code) == (401, "unauthenticated")
    assert not stage.store.settings.queues(DEFAULT_NAMESPACE)


@spec("DB6")
@pytest.mark.parametrize(
    ("body", "content_type", "status"),
    [
        (b"{}", "application/json", 415),
        (b"x", "multipart/form-data; boundary=x", 415),
        (b"x" * (MAX_FORM_BYTES + 1), "application/x-www-form-urlencoded", 413),
        (b"&".join([b"a=b"] * 1001), "application/x-www-form-urlencoded", 400),
        (b"\xff\xfe", "application/x-www-form-urlencoded", 400),
    ],
)
def test_a_body_that_is_no_form_is_refused(
    stage: DashboardStage, body: bytes, content_type: str, status: int
) -> None:
    browser = stage.browser(Role.OPERATOR)

    assert browser.ask("POST", "/actions/pause", body, content_type=content_type).status == status


@spec("DB11")
@pytest.mark.parametrize("host", ["evil.example", "10.0.0.1:7717"])
def test_without_tokens_only_requests_to_this_machine_are_answered(
    open_stage: DashboardStage, host: str
) -> None:
    browser = open_stage.browser()

    assert browser.get("/queues").status == 200
    assert browser.get("/queues", host=host).status == 403


@spec("DB11")
def test_without_tokens_a_browser_chooses_its_namespace(open_stage: DashboardStage) -> None:
    browser = open_stage.browser()
    open_stage.ask("POST", "/v1/queues/there/pause?namespace=other")
    assert "there" not in browser.get("/queues").text

    browser.submit("/namespace", {"namespace": "other"})

    assert "there" in browser.get("/queues").text
    elsewhere = "localhost:7718"  # browsers send the cookies of a host to all of its ports
    assert "there" not in browser.get("/queues", host=elsewhere).text
    browser.cookies["tenure_namespace_7717"] = "<script>"
    assert "there" not in browser.get("/queues").text


@spec("DB11", "H28")
@pytest.mark.parametrize("site", ["cross-site", "same-site"])
def test_without_tokens_other_sites_lead_to_pages_and_load_none(
    open_stage: DashboardStage, site: str
) -> None:
    """The page of another server on this machine is of the same site."""
    browser = open_stage.browser()

    led = browser.get("/queues", sec_fetch_site=site, sec_fetch_mode="navigate")
    loaded = browser.get("/queues", sec_fetch_site=site, sec_fetch_mode="no-cors")

    assert (led.status, loaded.status) == (200, 403)


def test_the_colours_are_a_setting_of_the_browser(stage: DashboardStage) -> None:
    browser = stage.browser(Role.VIEWER)
    assert 'data-theme="auto"' in browser.get("/").text

    browser.submit("/theme", {"theme": "dark", "back": "/queues"})

    assert 'data-theme="dark"' in browser.get("/").text
    assert browser.submit("/theme", {"theme": "pink"}).status == 422
