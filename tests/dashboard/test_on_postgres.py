"""Pages over PostgreSQL: what a GET changes, what a limited token sees, two operators at once."""

from collections import Counter
from collections.abc import Iterator, Mapping
from urllib.parse import urlencode

import pytest

from tenure.core.ids import JobId, Kind, QueueName
from tenure.core.vocabulary import Role
from tenure.stores.postgres.store import PostgresStore
from tenure_conformance.spec import spec
from tests.dashboard.harness import FORM_HEADERS, Browser, DashboardStage
from tests.dashboard.test_job_pages import dead
from tests.dashboard.test_pages import EXAMPLES, crawl, dump, furnish
from tests.dashboard.test_scopes import SHARED_FLOW, foreign_words, furnish_foreign
from tests.server.harness import JOB, Answer, together

SCOPE: dict[str, object] = {"queues": (QueueName("q"),), "kinds": (Kind("k"),)}


@pytest.fixture
def stage(postgres_url: str) -> Iterator[DashboardStage]:
    stage = DashboardStage(store=lambda clock: PostgresStore(postgres_url, migrate=True))
    yield stage
    stage.close()
    stage.store.close()


@spec("DB8")
def test_a_crawl_with_get_changes_nothing(stage: DashboardStage) -> None:
    furnish(stage)
    browser = stage.browser(Role.OPERATOR)
    before = dump(stage)

    seen = crawl(browser)

    assert len(seen) > len(EXAMPLES)
    assert dump(stage) == before


@spec("DB2", "H41")
def test_a_limited_token_sees_only_its_own_on_every_page(stage: DashboardStage) -> None:
    furnish_foreign(stage)
    browser = stage.browser(Role.OPERATOR, **SCOPE)
    shared = ["/workers/shared", f"/flows/{SHARED_FLOW}", f"/jobs/{JOB.format(82)}"]

    shown = {path: browser.get(path).text for path in [*EXAMPLES.values(), *shared]}

    words = foreign_words(SCOPE)
    assert not [(path, word) for path, text in shown.items() for word in words if word in text]


@spec("DB22")
def test_two_operators_resolve_each_dead_letter_once(stage: DashboardStage) -> None:
    letters = [dead(stage, number) for number in range(1, 9)]
    browsers = [stage.browser(Role.OPERATOR) for _ in range(2)]
    forms = [
        {"form_token": browser.form_token("/help"), "target": letters, "request_id": f"page-{at}"}
        for at, browser in enumerate(browsers)
    ]

    async def send(browser: Browser, form: Mapping[str, object], action: str) -> Answer:
        body = urlencode(form, doseq=True).encode()
        return await browser.aask("POST", f"/actions/{action}", body, **FORM_HEADERS)

    answers = stage.run(
        together(
            send(browsers[0], forms[0], "redrive"),
            send(browsers[0], forms[0], "redrive"),
            send(browsers[1], forms[1], "redrive"),
            send(browsers[1], forms[1], "discard"),
        )
    )

    assert {answer.status for answer in answers} == {303}
    ids = [JobId(each) for each in letters]
    resolved = Counter(each.kind.value for each in stage.store.jobs.resolutions(ids).values())
    jobs = stage.call("jobs", role=Role.OPERATOR).json["jobs"]
    assert resolved.total() == len(letters)
    assert len(jobs) == len(letters) + resolved["redriven"]
