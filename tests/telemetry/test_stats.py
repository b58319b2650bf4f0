"""`tenure stats`, `app.stats` and `GET /v1/stats` say what the log has."""

import json
from collections import Counter
from collections.abc import Iterator
from contextlib import closing
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest

from tenure import Tenure
from tenure.core.ids import DEFAULT_NAMESPACE, Kind, QueueName
from tenure.core.instants import Instant
from tenure.core.views.event_counts import (
    EventCount,
    EventCounts,
    EventSpan,
    Grouping,
    count_all,
    page_end,
)
from tenure.core.vocabulary import EventType
from tenure.errors import InvalidInput, RequestRefused
from tenure.wiring import open_store
from tenure_conformance.spec import spec
from tests.cli.harness import tenure
from tests.remote.sites import RemoteSite


@pytest.fixture(params=["sqlite", "postgres"])
def url(request: pytest.FixtureRequest, tmp_path: Path) -> str:
    if request.param == "sqlite":
        return f"sqlite:///{tmp_path / 'stats.db'}"
    found: str = request.getfixturevalue("postgres_url")
    return found


def make_history(url: str) -> None:
    """Jobs of two kinds in two queues; two are cancelled."""
    open_store(url, migrate=True).close()
    with Tenure(url) as app:
        for number in range(5):
            made = app.enqueue("mail", number, queue="post")
            if number < 2:
                made.cancel()
        app.enqueue("bill", {}, queue="slow")


def folded(url: str, *by: str) -> dict[tuple[str, ...], int]:
    """The events of the whole log, one by one."""
    found: Counter[tuple[str, ...]] = Counter()
    with closing(open_store(url)) as store:
        for record in store.audit.records(page_size=100):
            assert record.job is not None
            facts = {"kind": record.job.kind, "queue": record.job.queue}
            for event in record.events:
                found[tuple({**facts, "type": str(event.type)}[group] for group in by)] += 1
    return dict(found)


@spec("OB25")
@pytest.mark.parametrize("by", [("type",), ("kind",), ("queue",), ("kind", "type")])
def test_the_command_counts_what_the_whole_log_has(url: str, by: tuple[str, ...]) -> None:
    make_history(url)
    words = [word for group in by for word in ("--by", group)]

    result = tenure("stats", "--url", url, "--json", *words)

    document = json.loads(result.stdout)
    counted = {tuple(line[group] for group in by): line["events"] for line in document["counts"]}
    assert (result.exit_code, document["complete"]) == (0, True)
    assert counted == folded(url, *by)


@spec("OB25")
def test_an_application_counts_what_the_whole_log_has(url: str) -> None:
    make_history(url)
    by_type = {name: events for (name,), events in folded(url, "type").items()}

    with Tenure(url) as app:
        assert app.stats() == by_type == {"cancelled": 2, "enqueued": 6}
        assert app.stats(by="kind", since=timedelta(hours=1)) == {"bill": 1, "mail": 7}
        assert app.stats(until=datetime.now(UTC) - timedelta(hours=1)) == {}
        with pytest.raises(InvalidInput, match="is not before until"):
            app.stats(since=datetime.now(UTC), until=datetime(2026, 1, 1, tzinfo=UTC))
        with pytest.raises(InvalidInput, match="is not one of type, kind, queue"):
            app.stats(by="colour")  # type: ignore[arg-type]  # that is the mistake


def test_the_table_is_in_the_order_of_a_jobs_life_and_says_the_span(tmp_path: Path) -> None:
    url = f"sqlite:///{tmp_path / 'stats.db'}"
    make_history(url)

    result = tenure("stats", "--url", url, "--by", "queue", "--by", "type")

    assert [line.split() for line in result.stdout.splitlines()] == [
        ["QUEUE", "TYPE", "EVENTS"],
        ["post", "enqueued", "5"],
        ["post", "cancelled", "2"],
        ["slow", "enqueued", "1"],
    ]
    assert "8 events from" in result.stderr


@pytest.mark.parametrize(
    ("words", "problem"),
    [
        (
            ("--since", "soon"),
            "is not a time; write 2026-12-01T08:00+01:00, or how long ago, as in 24h",
        ),
        (("--since", "99999999999d"), "no store holds such a time"),
        (
            ("--since", "2026-01-02T00:00Z", "--until", "2026-01-01T00:00Z"),
            "--since must be earlier than --until",
        ),
        (("--by", "colour"), "is not one of"),
    ],
)
def test_a_wrong_span_is_refused(tmp_path: Path, words: tuple[str, ...], problem: str) -> None:
    url = f"sqlite:///{tmp_path / 'stats.db'}"
    make_history(url)

    result = tenure("stats", "--url", url, *words)

    assert result.exit_code != 0
    assert problem in result.stderr


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Iterator[RemoteSite]:
    directory: Path = tmp_path_factory.mktemp("stats")
    site = RemoteSite(f"sqlite:///{directory / 'tenure.db'}", directory)
    make_history(site.url)
    site.serve()
    yield site
    site.close()


@spec("OB25")
@pytest.mark.process
def test_a_server_counts_within_the_scope_of_the_token(site: RemoteSite) -> None:
    address = site.servers[0].address
    limited = site.token("viewer", "mails", queues=(QueueName("post"),))

    with Tenure(address, token=site.token("viewer", "all")) as app:
        assert app.stats(by="kind") == {"bill": 1, "mail": 7}
    with Tenure(address, token=limited) as app:
        assert app.stats(by="kind") == {"mail": 7}
    with (
        Tenure(address, token=site.token("client", "shop")) as app,
        pytest.raises(RequestRefused),
    ):
        app.stats()


# --- pages ---------------------------------------------------------------------------------------


def one_event_a_page(span: EventSpan) -> EventCounts:
    """A log with one event at each of the instants 0, 10, 20 …, as a store with a small limit."""
    beyond = (span.since // 10 + 1) * 10
    until = page_end(span, beyond if beyond < span.until else None)
    one = EventCount(type=EventType.ENQUEUED, kind=Kind("k"), queue=QueueName("q"), events=1)
    return EventCounts(until=until, counts=(one,))


def test_counting_stops_at_its_limit_and_says_where(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("tenure.core.views.event_counts.MAX_PAGES", 3)
    span = EventSpan(namespace=DEFAULT_NAMESPACE, since=Instant(0), until=Instant(1000))

    totals = count_all(one_event_a_page, span, [Grouping.TYPE])

    assert (totals.events, totals.until) == ({("enqueued",): 3}, 30)


def test_a_page_of_one_instant_goes_on_behind_it() -> None:
    span = EventSpan(namespace=DEFAULT_NAMESPACE, since=Instant(7), until=Instant(1000))

    assert page_end(span, 7) == 8
    assert page_end(span, None) == 1000
