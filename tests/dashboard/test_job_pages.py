"""The pages of jobs and flows: what they show to whom, what their actions do, and hostile texts."""

import re
from collections.abc import Sequence
from html import unescape
from typing import Any

import pytest

from tenure.core.ids import JobId
from tenure.core.vocabulary import JobStatus, Role
from tenure.dashboard.pages import job as job_page
from tenure.dashboard.rendering import visible
from tenure_conformance.spec import spec
from tests.dashboard.harness import DashboardStage, Links
from tests.dashboard.test_pages import FLOW, flow_message, group_key
from tests.server.harness import JOB

SECRET = "s3cret-payload"

HOSTILE = (
    "<script>alert(1)</script>",
    '"><img src=x onerror=alert(1)>',
    "'; --</textarea></svg>",
    "{{ 7 * 7 }}{% raw %}",
    "evil\u202etxt.exe\x1b[31m\u200b",
    "A" * 5_000,
)


def finished(stage: DashboardStage, number: int = 1, **fields: Any) -> dict[str, Any]:
    """A job that succeeded."""
    held = stage.leased(number, **fields)
    stage.clock.advance(3)
    report(stage, "complete", held, result={"answer": SECRET})
    return held


def report(stage: DashboardStage, name: str, held: dict[str, Any], **fields: Any) -> None:
    message = {"request_id": f"{name}-{held['job_id']}", **held, **fields}
    assert stage.call(name, message, role=Role.WORKER).status == 200


def dead(stage: DashboardStage, number: int = 1, message: str = "broken") -> str:
    """A dead letter; its id."""
    held = stage.leased(number, policy={"max_attempts": 1})
    error = {"class": "transient", "type": "Boom", "message": message, "traceback": "line 1"}
    report(stage, "fail", held, error=error)
    assert stage.job(held["job_id"]).status is JobStatus.DEAD_LETTERED
    return str(held["job_id"])


# --- One job -------------------------------------------------------------------------------------


@spec("DB20")
def test_the_page_of_a_job_has_its_life_as_a_picture_and_as_a_table(stage: DashboardStage) -> None:
    held = finished(stage)

    page = stage.browser(Role.OPERATOR).get(f"/jobs/{held['job_id']}").text

    assert 'class="bar bar-' in page
    assert "glyph-succeeded" in page
    assert "Attempt 1" in page
    assert 'aria-label="Attempt 1 by w:' in page
    assert "worker:worker-1" in page
    assert 'data-live="0"' in page


@spec("DB20")
def test_a_live_job_is_asked_for_again_and_an_ended_one_is_not(stage: DashboardStage) -> None:
    stage.enqueue()
    browser = stage.browser(Role.VIEWER)

    page = browser.get(f"/jobs/{JOB.format(1)}", hx_request="true").text

    assert 'data-live="2"' in page
    assert "<html" not in page


@spec("DB20")
def test_a_live_job_keeps_its_parents_and_children_when_it_is_asked_for_again(
    stage: DashboardStage,
) -> None:
    stage.call("flow", flow_message(), role=Role.OPERATOR)

    part = stage.browser(Role.VIEWER).get(f"/jobs/{JOB.format(11)}", hx_request="true").text

    assert 'data-live="2"' in part
    assert "Needed by" in part
    assert f'href="/jobs/{JOB.format(12)}"' in part


@spec("DB20")
def test_of_a_long_log_the_newest_events_are_shown(
    stage: DashboardStage, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(job_page, "MAX_EVENTS", 6)
    monkeypatch.setattr(job_page, "EVENTS_PER_READ", 4)
    stage.enqueue()
    for number in range(8):
        stage.clock.advance(600)
        [grant] = stage.claim()
        held = {"job_id": grant["job_id"], "lease_id": grant["lease_id"]}
        report(stage, "release", held, request_id=f"release-{number}")

    page = stage.browser(Role.OPERATOR).get(f"/jobs/{JOB.format(1)}").text

    assert "The newest events are shown." in page
    assert "earlier attempts are not shown" in page
    assert ">Enqueued<" not in page


@spec("DB2")
def test_an_operator_sees_payload_and_result_and_a_viewer_neither(stage: DashboardStage) -> None:
    held = finished(stage, payload={"secret": SECRET})

    operators = stage.browser(Role.OPERATOR).get(f"/jobs/{held['job_id']}").text
    viewers = stage.browser(Role.VIEWER).get(f"/jobs/{held['job_id']}").text

    assert operators.count(SECRET) == 2
    assert SECRET not in viewers
    assert "Hidden" in viewers
    assert "/actions/" not in viewers


def test_error_traceback_and_output_are_shown(stage: DashboardStage) -> None:
    held = stage.leased(1, policy={"max_attempts": 1})
    output = {**held, "text": "first line\nsecond line\n"}
    assert stage.call("output", output, role=Role.WORKER).status == 200
    error = {"class": "transient", "type": "Boom", "message": "no", "traceback": "File x, line 1"}
    report(stage, "fail", held, error=error)

    operators = stage.browser(Role.OPERATOR).get(f"/jobs/{held['job_id']}").text
    viewers = stage.browser(Role.VIEWER).get(f"/jobs/{held['job_id']}").text

    assert "File x, line 1" in operators
    assert "second line" in operators
    assert "second line" not in viewers


@spec("H71", "DB40")
@pytest.mark.parametrize(
    ("wanted_as", "status"),
    [("document", 200), ("empty", 200), ("script", 403), ("style", 403), ("iframe", 403)],
)
def test_no_page_uses_an_artifact_as_a_part_of_itself(
    stage: DashboardStage, wanted_as: str, status: int
) -> None:
    held = stage.leased()
    put = stage.caller(
        "PUT",
        f"/v1/jobs/{held['job_id']}/artifacts/evil.js",
        token=stage.of(Role.WORKER),
        headers={"tenure-lease": held["lease_id"], "content-type": "text/javascript"},
        pieces=[b"alert(1)"],
    )
    assert stage.run(put.run(stage.app)).status == 200
    report(stage, "complete", held)
    browser = stage.browser(Role.OPERATOR)

    answer = browser.get(f"/jobs/{held['job_id']}/artifacts/evil.js", sec_fetch_dest=wanted_as)

    assert answer.status == status


@spec("DB40")
def test_only_the_scripts_that_a_page_names_run(stage: DashboardStage) -> None:
    browser = stage.browser(Role.OPERATOR)

    answers = [browser.get("/help"), browser.get("/help")]

    nonces = set()
    for answer in answers:
        [nonce] = re.findall(
            r"script-src 'nonce-([^']+)';", answer.headers["content-security-policy"]
        )
        assert re.findall(r"<script [^>]*>", answer.text)
        for script in re.findall(r"<script [^>]*>", answer.text):
            assert f'nonce="{nonce}"' in script
        nonces.add(nonce)
    assert len(nonces) == 2


@spec("DB21")
def test_an_artifact_is_a_download_and_never_a_page(stage: DashboardStage) -> None:
    held = stage.leased()
    put = stage.caller(
        "PUT",
        f"/v1/jobs/{held['job_id']}/artifacts/report.html",
        token=stage.of(Role.WORKER),
        headers={"tenure-lease": held["lease_id"], "content-type": "text/html"},
        pieces=[b"<script>alert(1)</script>"],
    )
    assert stage.run(put.run(stage.app)).status == 200
    report(stage, "complete", held)
    path = f"/jobs/{held['job_id']}/artifacts/report.html"

    answer = stage.browser(Role.OPERATOR).get(path)

    assert answer.status == 200
    assert answer.headers["content-disposition"] == 'attachment; filename="report.html"'
    assert "default-src 'none'" in answer.headers["content-security-policy"]
    assert answer.headers["x-content-type-options"] == "nosniff"
    assert answer.headers["content-type"] == "application/octet-stream"
    assert stage.browser(Role.VIEWER).get(path).status == 403


@spec("DB2")
def test_a_job_out_of_scope_does_not_exist(stage: DashboardStage) -> None:
    stage.enqueue(1)
    limited = stage.browser(Role.OPERATOR, queues=("other",))

    assert limited.get(f"/jobs/{JOB.format(1)}").status == 404
    assert JOB.format(1) not in limited.get("/jobs").text
    answer = limited.submit("/actions/cancel", {"target": JOB.format(1), "mode": "hard"})
    assert answer.status == 404
    assert stage.job(JOB.format(1)).status is JobStatus.QUEUED


@pytest.mark.parametrize("text", HOSTILE, ids=lambda text: ascii(text)[:20])
@spec("DB9")
def test_hostile_texts_are_shown_as_texts(stage: DashboardStage, text: str) -> None:
    held = stage.leased(1, policy={"max_attempts": 1}, payload={"field": text})
    stage.call("output", {**held, "text": text}, role=Role.WORKER)
    progress = {**held, "hb_seq": 1, "progress": {"done": 1, "total": 2, "note": text[:100]}}
    stage.call("heartbeat", {"heartbeats": [progress]}, role=Role.WORKER)
    error = {"class": "transient", "type": text[:100], "message": text, "traceback": text}
    report(stage, "fail", held, error=error)
    browser = stage.browser(Role.OPERATOR)

    for path in (f"/jobs/{held['job_id']}", "/jobs", "/dead-letters/list"):
        page = browser.get(path)

        assert page.status == 200
        assert not Links(page.text).suspicious
        assert visible(text[:60]) in unescape(page.text)
        assert not {"\u202e", "\x1b", "\u200b"} & set(page.text)


# --- Actions -------------------------------------------------------------------------------------


@spec("DB22")
def test_a_cancel_asks_for_a_reason_and_keeps_it(stage: DashboardStage) -> None:
    stage.enqueue()
    browser = stage.browser(Role.OPERATOR)
    asked = browser.get(f"/actions/cancel?target={JOB.format(1)}").text
    assert stage.job(JOB.format(1)).status is JobStatus.QUEUED

    fields = {"target": JOB.format(1), "mode": "hard", "reason": "wrong order"}
    answer = browser.submit("/actions/cancel", fields)

    assert 'name="reason"' in asked
    assert answer.status == 303
    job = stage.job(JOB.format(1))
    assert (job.status, job.cancel_reason) == (JobStatus.CANCELLED, "wrong order")
    assert stage.events(job.id)[-1].actor == "operator:operator-1"
    assert "wrong order" in browser.get(f"/jobs/{job.id}").text


@spec("DB22")
def test_a_bulk_action_shows_the_number_first_and_does_them_all(stage: DashboardStage) -> None:
    ids = [stage.enqueue(number) for number in range(1, 8)]
    browser = stage.browser(Role.OPERATOR)

    asked = browser.get("/actions/cancel?" + "&".join(f"target={each}" for each in ids)).text
    browser.submit("/actions/cancel", {"target": ids, "mode": "soft"})

    assert "Cancel 7 jobs?" in asked
    assert {stage.job(each).status for each in ids} == {JobStatus.CANCELLED}
    assert "7 jobs" in browser.get("/jobs").text


@spec("DB22")
def test_a_form_that_is_sent_twice_runs_a_job_again_once(stage: DashboardStage) -> None:
    held = finished(stage)
    browser = stage.browser(Role.OPERATOR)
    fields = {"target": held["job_id"], "request_id": "page-1"}

    for _ in range(2):
        assert browser.submit("/actions/rerun", fields).status == 303

    made = stage.call("jobs", role=Role.OPERATOR).json["jobs"]
    assert len(made) == 2


@spec("DB22")
def test_dead_letters_are_redriven_and_discarded(stage: DashboardStage) -> None:
    one, other = dead(stage, 1), dead(stage, 2)
    browser = stage.browser(Role.OPERATOR)

    browser.submit("/actions/redrive", {"target": one})
    browser.submit("/actions/discard", {"target": other, "note": "switched off"})

    resolved = stage.store.jobs.resolutions([JobId(one), JobId(other)])
    assert {each.kind.value for each in resolved.values()} == {"redriven", "discarded"}
    assert resolved[JobId(other)].note == "switched off"
    assert "redriven" in browser.get(f"/jobs/{one}").text
    assert "switched off" in browser.get(f"/jobs/{other}").text


@spec("DB22", "T33")
def test_a_job_that_a_worker_has_is_stalled_and_then_requeued(stage: DashboardStage) -> None:
    job_id = stage.leased(1)["job_id"]
    browser = stage.browser(Role.OPERATOR)
    waiting = browser.get(f"/jobs/{stage.enqueue(2)}").text
    leased = browser.get(f"/jobs/{job_id}").text

    browser.submit("/actions/stall", {"target": job_id})
    stalled = browser.get(f"/jobs/{job_id}").text

    assert stage.job(job_id).status is JobStatus.STALLED
    offers = ["/actions/stall?" in text for text in (waiting, leased, stalled)]
    assert offers == [False, True, False]
    assert "/actions/requeue?" in stalled


@spec("DB22")
def test_what_the_core_refuses_is_said(stage: DashboardStage) -> None:
    held = finished(stage)
    browser = stage.browser(Role.OPERATOR)

    answer = browser.submit("/actions/requeue", {"target": held["job_id"]})

    assert answer.status == 303
    assert "refused" in browser.get("/help").text


@spec("DB2")
@pytest.mark.parametrize("name", ["cancel", "rerun", "stall", "requeue", "dead-letter", "redrive"])
def test_a_viewer_cannot_act(stage: DashboardStage, name: str) -> None:
    stage.enqueue()

    answer = stage.browser(Role.VIEWER).submit(f"/actions/{name}", {"target": JOB.format(1)})

    assert answer.status == 403
    assert stage.job(JOB.format(1)).rev == 1


# --- Lists ---------------------------------------------------------------------------------------


def test_jobs_are_filtered_and_paged_by_key(stage: DashboardStage) -> None:
    for number in range(1, 61):
        stage.enqueue(number, kind="mail" if number % 2 else "charge")
    browser = stage.browser(Role.VIEWER)

    first = browser.get("/jobs").text
    older = next(href for href in Links(first).hrefs if "before=" in href)
    second = browser.get(older).text

    assert first.count("<tr>") - 1 == 50
    assert second.count("<tr>") - 1 == 10
    assert "charge" not in browser.get("/jobs?kind=mail&status=queued").text.partition("<tbody>")[2]
    assert "No job matches" in browser.get("/jobs?status=failed").text


def test_jobs_are_found_by_worker_time_and_text_in_their_error(stage: DashboardStage) -> None:
    dead(stage, 1, "column price is missing")
    dead(stage, 2, "disk is full")
    stage.clock.advance(7200)
    stage.enqueue(3)
    browser = stage.browser(Role.VIEWER)

    def found(query: str) -> list[str]:
        page = browser.get(f"/jobs?{query}").text
        return sorted(set(re.findall(r'class="id" href="/jobs/([^"]+)"', page)))

    assert found("error=PRICE") == [JOB.format(1)]
    assert found("enqueued_since=1h") == [JOB.format(3)]
    assert found("finished_since=3h&error=full") == [JOB.format(2)]
    assert found("worker=w&kind=k") == [JOB.format(1), JOB.format(2)]


@pytest.mark.parametrize(
    "query", ["enqueued_since=soon", "status=nonsense", "before=x", "queue=%00", "id_prefix=zz"]
)
def test_a_filter_that_is_wrong_is_said_on_a_page(stage: DashboardStage, query: str) -> None:
    answer = stage.browser(Role.VIEWER).get(f"/jobs?{query}")

    assert answer.status == 422
    assert answer.headers["content-type"] == "text/html; charset=utf-8"


# --- Dead letters --------------------------------------------------------------------------------


@spec("DB24")
def test_dead_letters_are_grouped_by_kind_and_error_with_counts_over_time(
    stage: DashboardStage,
) -> None:
    for number in range(1, 4):
        dead(stage, number, f"no answer within {number} s")
    dead(stage, 4, "disk is full")
    browser = stage.browser(Role.OPERATOR)

    page = browser.get("/dead-letters").text

    assert "4 dead letters" in page
    assert page.count('class="spark"') == 2
    assert 'height="28.00"' in page
    assert "Boom: no answer within # s" in page
    assert "No dead letter matches" in browser.get("/dead-letters?kind=other").text
    assert "disk is full" in browser.get("/dead-letters/list").text


@spec("DB24")
@pytest.mark.parametrize("name", ["redrive", "discard"])
def test_a_group_is_resolved_as_a_whole_after_its_number_was_shown(
    stage: DashboardStage, name: str
) -> None:
    ids = [dead(stage, number, f"no answer within {number} s") for number in range(1, 8)]
    other = dead(stage, 8, "disk is full")
    browser = stage.browser(Role.OPERATOR)
    key = group_key("k", "Boom: no answer within 1 s")

    listed = browser.get(f"/dead-letters/{key}").text
    asked = browser.get(f"/dead-letters/{key}/{name}").text
    targets = re.findall(r'name="target" value="([^"]+)"', asked)
    browser.submit(f"/actions/{name}", {"target": targets, "back": "/dead-letters"})

    assert "all 7" in listed
    assert "7 dead letters?" in asked
    assert sorted(targets) == sorted(ids)
    resolved = stage.store.jobs.resolutions([JobId(each) for each in [*ids, other]])
    assert set(resolved) == set(ids)
    assert browser.get(f"/dead-letters/{key}").status == 404
    assert ids[0] in browser.get("/dead-letters/list?resolved=yes").text


@spec("DB24")
def test_letters_beyond_the_most_of_one_action_are_counted_before_it(
    stage: DashboardStage, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("tenure.dashboard.pages.dead_letters.MAX_TARGETS", 2)
    for number in range(1, 6):
        dead(stage, number)
    browser = stage.browser(Role.OPERATOR)
    rest = f"/dead-letters/{group_key('k', 'Boom: broken')}/redrive"

    offered = browser.get("/dead-letters").text
    asked = browser.get(rest).text
    targets = re.findall(r'name="target" value="([^"]+)"', asked)
    browser.submit("/actions/redrive", {"target": targets})
    said = browser.get("/help").text

    assert "Redrive the newest 2<" in offered
    assert "This is about 2 of 5 dead letters; 3 remain." in asked
    assert "2 dead letters: redriven as 2 new jobs" in said
    assert "This is about 2 of 3 dead letters; 1 remains." in browser.get(rest).text


@spec("DB24", "FL12")
def test_letters_of_flows_do_not_hide_those_that_can_be_redriven(
    stage: DashboardStage, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("tenure.core.views.dead_letter_groups.MAX_GROUP_IDS", 1)
    alone = dead(stage, 1, "no")
    ended_flow(stage)
    browser = stage.browser(Role.OPERATOR)
    path = f"/dead-letters/{group_key('k', 'Boom: no')}"

    listed = browser.get(path).text
    asked = browser.get(f"{path}/redrive").text
    targets = re.findall(r'name="target" value="([^"]+)"', asked)
    browser.submit("/actions/redrive", {"target": targets})

    assert "1 belongs to a flow, which is redriven as a whole" in listed
    assert f'href="/flows/{FLOW}"' in listed
    assert targets == [alone]
    assert "1 more belongs to a flow and is not redriven here" in asked
    assert "`tenure flows redrive FLOW`" in asked
    assert "remain" not in asked
    assert set(stage.store.jobs.resolutions([JobId(alone)])) == {alone}


@spec("DB24", "FL12")
def test_a_group_whose_letters_all_belong_to_flows_offers_the_flows_instead(
    stage: DashboardStage,
) -> None:
    ended_flow(stage)
    browser = stage.browser(Role.OPERATOR)
    path = f"/dead-letters/{group_key('k', 'Boom: no')}"

    pages = [browser.get(each).text for each in ("/dead-letters", path)]
    refused = browser.get(f"{path}/redrive")

    assert all(f'href="{path}/redrive"' not in page for page in pages)
    assert all(f'href="{path}/discard"' in page for page in pages)
    assert refused.status == 422
    assert "tenure flows redrive FLOW" in refused.text


@spec("DB2")
def test_dead_letters_out_of_scope_are_not_shown(stage: DashboardStage) -> None:
    dead(stage, 1)
    limited = stage.browser(Role.OPERATOR, queues=("other",))
    key = group_key("k", "Boom: broken")

    assert "No dead letter waits" in limited.get("/dead-letters").text
    assert JOB.format(1) not in limited.get("/dead-letters/list").text
    assert limited.get(f"/dead-letters/{key}").status == 404
    assert limited.get(f"/dead-letters/{key}/redrive").status == 404


# --- Flows ---------------------------------------------------------------------------------------


@spec("DB23")
def test_a_flow_is_a_graph_with_links_to_its_jobs(stage: DashboardStage) -> None:
    stage.call("flow", flow_message(), role=Role.OPERATOR)
    browser = stage.browser(Role.VIEWER)

    page = browser.get(f"/flows/{FLOW}").text

    assert page.count('class="outline"') == 2
    assert page.count('class="edge') == 1
    assert f'href="/jobs/{JOB.format(11)}"' in page
    assert f"/flows/{FLOW}" in browser.get("/flows").text
    assert "Waits for" in browser.get(f"/jobs/{JOB.format(12)}").text


def test_the_page_of_queues_counts_jobs_that_wait_for_others(stage: DashboardStage) -> None:
    stage.call("flow", flow_message(), role=Role.OPERATOR)

    page = stage.browser(Role.VIEWER).get("/queues").text
    heads = re.findall(r'<th scope="col"[^>]*>([^<]*)', page)
    [row] = re.findall(r"<tbody>(.*?)</tr>", page, re.DOTALL)
    cells = [re.sub(r"<[^>]+>", "", cell) for cell in re.findall(r"<t[dh].*?</t[dh]>", row, re.S)]

    assert cells[heads.index("Waiting")].strip() == "1"


@spec("DB22")
def test_the_live_jobs_of_a_flow_are_cancelled_together(stage: DashboardStage) -> None:
    stage.call("flow", flow_message(), role=Role.OPERATOR)
    browser = stage.browser(Role.OPERATOR)

    asked = browser.get(f"/flows/{FLOW}/cancel").text
    targets = re.findall(r'name="target" value="([^"]+)"', asked)
    answer = browser.submit("/actions/cancel", {"target": targets, "back": f"/flows/{FLOW}"})

    assert "Cancel 2 jobs?" in asked
    assert answer.headers["location"] == f"/flows/{FLOW}"
    assert {stage.job(each).status for each in targets} == {JobStatus.CANCELLED}
    assert "Not done" not in browser.get(f"/flows/{FLOW}").text
    assert browser.get(f"/flows/{FLOW}/cancel").status == 422


@spec("DB23")
def test_a_job_of_a_flow_is_named_where_its_name_is_known(stage: DashboardStage) -> None:
    stage.call("flow", flow_message(), role=Role.OPERATOR)
    browser = stage.browser(Role.OPERATOR)
    first, second = JOB.format(11), JOB.format(12)

    waits = re.findall(r"Why it waits.*?</ul>", browser.get(f"/jobs/{second}").text, re.DOTALL)
    cancel = re.findall(r'class="targets".*?</ul>', browser.get(f"/flows/{FLOW}/cancel").text, re.S)
    redrive = re.findall(
        r'class="targets".*?</ul>', browser.get(f"/flows/{FLOW}/redrive").text, re.S
    )

    assert shown_texts(waits[0], "a") == ["first"]
    assert f'href="/jobs/{first}"' in waits[0]
    assert shown_texts(cancel[0], "code") == ["second", "first"]
    assert shown_texts(redrive[0], "code") == ["orders"]


def shown_texts(page: str, tag: str) -> list[str]:
    """The texts of these elements, without the tags in them."""
    found = re.findall(rf"<{tag}\b.*?</{tag}>", page, re.DOTALL)
    return [re.sub(r"<[^>]+>", "", each) for each in found]


@spec("FL14")
def test_a_flow_is_cancelled_in_one_call_and_children_before_parents(
    stage: DashboardStage, monkeypatch: pytest.MonkeyPatch
) -> None:
    ids = [JOB.format(number) for number in (11, 12, 13)]
    chain = [
        {
            "job": {"job_id": job_id, "queue": "q", "kind": "k"},
            "name": job_id,
            "after": [{"job_id": parent, "name": parent, "ended": True} for parent in parents],
        }
        for job_id, parents in zip(ids, ([], ids[:1], ids[1:2]), strict=True)
    ]
    message = {"flow_id": FLOW, "name": "chain", "jobs": chain}
    assert stage.call("flow", message, role=Role.OPERATOR).status == 201
    browser = stage.browser(Role.OPERATOR)
    asked = browser.get(f"/flows/{FLOW}/cancel").text
    targets = re.findall(r'name="target" value="([^"]+)"', asked)
    calls: list[list[str]] = []
    submit_many = stage.coordinator.submit_many

    def noted(commands: Sequence[Any], **options: Any) -> Any:
        calls.append([command.job_id for command in commands])
        return submit_many(commands, **options)

    monkeypatch.setattr(stage.coordinator, "submit_many", noted)
    browser.submit("/actions/cancel", {"target": targets})

    assert calls == [ids[::-1]]
    for job_id in ids:
        events = stage.store.events.load([JobId(job_id)])[JobId(job_id)]
        assert [event.type for event in events] == ["enqueued", "cancelled"]


@spec("DB22")
def test_jobs_that_cannot_be_cancelled_do_not_stop_the_others(stage: DashboardStage) -> None:
    done = finished(stage)["job_id"]
    live = stage.enqueue(7)
    browser = stage.browser(Role.OPERATOR)

    browser.submit("/actions/cancel", {"target": [done, live, JOB.format(99)]})

    page = browser.get("/jobs").text
    assert stage.job(live).status is JobStatus.CANCELLED
    assert "1 job: cancelled, or asked to stop. Not done: " in page
    assert "1 × refused: job finished" in page
    assert "1 × refused: unknown job" in page


def ended_flow(stage: DashboardStage) -> None:
    """A flow whose first job died, so that the second was cancelled."""
    message = flow_message()
    message["jobs"][0]["job"]["policy"] = {"max_attempts": 1}  # type: ignore[index]  # of JSON
    assert stage.call("flow", message, role=Role.OPERATOR).status == 201
    [grant] = stage.claim(start=True)
    held = {"job_id": grant["job_id"], "lease_id": grant["lease_id"]}
    report(stage, "fail", held, error={"class": "transient", "type": "Boom", "message": "no"})
    stage.call("cancel", {"request_id": "end"}, role=Role.OPERATOR, job_id=JOB.format(12))
    assert stage.job(JOB.format(12)).status.is_terminal


@spec("FL14")
def test_the_table_of_a_flow_has_parents_first(stage: DashboardStage) -> None:
    first = {"job": {"job_id": JOB.format(11), "queue": "q", "kind": "k"}, "name": "z"}
    parent = {"job_id": JOB.format(11), "name": "z"}
    second = {"job": {"job_id": JOB.format(12), "queue": "q", "kind": "k"}, "name": "a"}
    message = {"flow_id": FLOW, "name": "f", "jobs": [first, {**second, "after": [parent]}]}
    assert stage.call("flow", message, role=Role.OPERATOR).status == 201

    page = stage.browser(Role.VIEWER).get(f"/flows/{FLOW}").text
    table = page[page.index('id="jobs"') :]

    assert table.index('title="z"') < table.index('title="a"')


@spec("DB24")
def test_a_redrive_of_several_says_how_many_new_jobs_there_are(
    stage: DashboardStage,
) -> None:
    for number in (1, 2):
        dead(stage, number)
    browser = stage.browser(Role.OPERATOR)

    browser.submit("/actions/redrive", {"target": [JOB.format(1), JOB.format(2)]})
    said = browser.get("/help").text

    assert "2 dead letters: redriven as 2 new jobs" in said


@spec("DB31", "DB9")
def test_a_list_shows_the_beginning_of_each_payload_as_text(stage: DashboardStage) -> None:
    stage.enqueue(1, payload={"to": "<script>alert(1)</script>", "text": "x" * 1_000})
    stage.enqueue(2, payload={})

    page = stage.browser(Role.OPERATOR).get("/jobs").text
    hidden = stage.browser(Role.VIEWER).get("/jobs").text

    assert "&lt;script&gt;alert(1)&lt;/script&gt;" in page
    assert "<script>alert" not in page
    assert "x" * 60 in page
    assert "x" * 120 not in page
    assert page.count('class="preview"') == 1
    assert "alert" not in hidden
    assert 'class="preview"' not in hidden


@spec("DB30")
def test_running_jobs_show_their_progress_in_lists_and_on_their_workers_page(
    stage: DashboardStage,
) -> None:
    grant = stage.leased(1)
    told = {name: grant[name] for name in ("job_id", "lease_id")}
    stage.call("start", {**told, "request_id": "s"}, role=Role.WORKER)
    beat = {**told, "hb_seq": 1, "progress": {"done": 2, "total": 8}}
    assert stage.call("heartbeat", {"leases": [beat]}, role=Role.WORKER).status == 200
    browser = stage.browser(Role.VIEWER)
    owner = stage.job(grant["job_id"]).owner

    for path in ("/jobs", f"/workers/{owner}"):
        page = browser.get(path).text
        assert f"/jobs/{grant['job_id']}" in page
        assert '<progress max="8" value="2"' in page


@spec("FL15")
def test_the_list_of_flows_says_which_of_them_did_not_succeed(stage: DashboardStage) -> None:
    ended_flow(stage)

    page = stage.browser(Role.VIEWER).get("/flows").text

    assert "2 did not succeed" in page
    assert "1 dead lettered" in page
    assert f"/flows/{FLOW}?status=cancelled#jobs" in page


@spec("DB26")
def test_a_flow_is_redriven_once_after_the_number_of_its_jobs_was_shown(
    stage: DashboardStage,
) -> None:
    ended_flow(stage)
    browser = stage.browser(Role.OPERATOR)

    page = browser.get(f"/flows/{FLOW}").text
    asked = browser.get(f"/flows/{FLOW}/redrive").text
    [request_id] = re.findall(r'name="request_id" value="([^"]+)"', asked)
    fields = {"target": FLOW, "back": f"/flows/{FLOW}", "request_id": request_id}
    answers = [browser.submit("/actions/redrive-flow", fields) for _ in range(2)]
    said = browser.get(f"/flows/{FLOW}").text

    assert "Redrive 2 jobs" in page
    assert "2 of its 2 jobs did not succeed" in asked
    assert [each.headers["location"] for each in answers] == [f"/flows/{FLOW}"] * 2
    assert "redriven" in said
    assert "refused" not in said
    assert f'href="/flows/{FLOW}/redrive"' not in said
    jobs = [each["id"] for each in stage.call("jobs", role=Role.OPERATOR).json["jobs"]]
    assert len(jobs) == 4
    for new in set(jobs) - {JOB.format(11), JOB.format(12)}:
        events = browser.get(f"/jobs/{new}").text
        assert "redrive of its flow: replaces a job that did not succeed" in events
        assert "redrives a dead letter" not in events


@spec("DB26")
@pytest.mark.parametrize("name", ["redrive", "rerun"])
def test_the_refusal_of_a_job_of_a_flow_leads_to_the_redrive_of_the_flow(
    stage: DashboardStage, name: str
) -> None:
    ended_flow(stage)
    browser = stage.browser(Role.OPERATOR)

    browser.submit(f"/actions/{name}", {"target": JOB.format(11)})
    page = browser.get(f"/jobs/{JOB.format(11)}").text

    assert "a job of a flow is redriven with its flow" in page
    assert f'<a href="/flows/{FLOW}/redrive">Redrive the flow</a>' in page


@spec("DB26")
def test_a_flow_that_goes_on_or_succeeded_offers_no_redrive(stage: DashboardStage) -> None:
    message = flow_message()
    del message["jobs"][1]  # type: ignore[attr-defined]  # a message of JSON
    stage.call("flow", message, role=Role.OPERATOR)
    browser = stage.browser(Role.OPERATOR)

    live, asked_live = (browser.get(f"/flows/{FLOW}{end}").text for end in ("", "/redrive"))
    [grant] = stage.claim(start=True)
    held = {"job_id": grant["job_id"], "lease_id": grant["lease_id"]}
    report(stage, "complete", held)
    ended, asked_ended = (browser.get(f"/flows/{FLOW}{end}").text for end in ("", "/redrive"))

    assert f"/flows/{FLOW}/redrive" not in live + ended
    assert "It is in progress" in asked_live
    assert "All of its jobs succeeded" in asked_ended
    browser.submit("/actions/redrive-flow", {"target": FLOW})
    assert "refused: nothing to redrive" in browser.get("/help").text


@spec("DB23")
def test_equal_jobs_of_a_large_flow_are_one_box_that_leads_to_their_list(
    stage: DashboardStage,
) -> None:
    jobs = [
        {"job": {"job_id": JOB.format(100 + n), "queue": "q", "kind": "fetch"}, "name": f"f {n}"}
        for n in range(150)
    ]
    message = {"flow_id": FLOW, "name": "wide", "jobs": jobs}
    assert stage.call("flow", message, role=Role.OPERATOR).status == 201
    browser = stage.browser(Role.VIEWER)

    page = browser.get(f"/flows/{FLOW}").text
    listed = browser.get(f"/flows/{FLOW}?kind=fetch").text
    older = next(href for href in Links(listed).hrefs if "after=" in href)

    assert page.count('class="outline"') == 1
    assert "× 150" in page
    assert browser.get(older).text.count("<tr>") - 1 == 50


@spec("DB2")
def test_a_token_that_is_limited_to_a_queue_sees_only_its_jobs_of_a_flow(
    stage: DashboardStage,
) -> None:
    message = flow_message()
    message["jobs"][1]["job"]["queue"] = "other"  # type: ignore[index]  # a message of JSON
    stage.call("flow", message, role=Role.OPERATOR)

    page = stage.browser(Role.VIEWER, queues=("q",)).get(f"/flows/{FLOW}").text

    assert JOB.format(11) in page
    assert JOB.format(12) not in page
