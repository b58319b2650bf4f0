"""The recipes of the guide to hooks do what the page says, with the packages that they are for."""

import re
from collections.abc import Iterator, MutableMapping
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import sentry_sdk
import structlog
from sentry_sdk.envelope import Envelope
from sentry_sdk.transport import Transport

from tenure import Attempt, Cancelled, Context, PermanentError, Retry, Snooze, Tenure
from tenure.testing import Inline, inline

PAGE = (Path(__file__).parents[2] / "docs" / "guide" / "hooks.md").read_text()


@pytest.fixture
def app() -> Tenure:
    return Tenure("sqlite:////nonexistent/never-opened.db")


@pytest.fixture
def jobs(app: Tenure) -> Iterator[Inline]:
    with inline(app) as made:
        yield made


def declare(app: Tenure, section: str) -> dict[str, Any]:
    """Run the example of a section on this application. Returns the names that it defines."""
    pattern = rf"^## {section}\n\n```python.*?\n(.*?)```"
    [example] = re.findall(pattern, PAGE, re.DOTALL | re.MULTILINE)
    names: dict[str, Any] = {"app": app, "Attempt": Attempt}
    exec(example, names)  # noqa: S102 - our own documentation
    return names


class Sent(Transport):
    """Keeps what the SDK would send."""

    def __init__(self) -> None:
        super().__init__()
        self.events: list[Any] = []

    def capture_envelope(self, envelope: Envelope) -> None:
        event = envelope.get_event()
        if event is not None:
            self.events.append(event)


@pytest.fixture
def sent(monkeypatch: pytest.MonkeyPatch) -> Iterator[Sent]:
    """What the SDK would send. Without its integrations, which would change this process."""
    transport = Sent()
    quietly: dict[str, Any] = {"default_integrations": False, "release": "tests"}
    monkeypatch.setattr(
        sentry_sdk, "init", partial(sentry_sdk.init, transport=transport, **quietly)
    )
    yield transport
    monkeypatch.undo()
    sentry_sdk.init(**quietly)


def test_sentry_gets_the_failed_attempts_with_their_job(
    app: Tenure, jobs: Inline, sent: Sent
) -> None:
    declare(app, "Sentry")

    @app.job(retry=Retry(max_attempts=2))
    def divide(a: int, b: int) -> float:
        return a / b

    @app.job
    def wait(ctx: Context) -> None:
        if ctx.attempt == 1:
            raise Snooze(60)
        raise Cancelled("not asked to")

    failing = divide.enqueue(1, b=0)
    divide.enqueue(1, b=1)
    jobs.drain()
    of_failures = list(sent.events)
    wait.using(retry=Retry(max_attempts=1)).enqueue()
    jobs.drain()

    assert [event["contexts"]["job"] for event in of_failures] == [
        {"id": failing.id, "attempt": 1},
        {"id": failing.id, "attempt": 2},
    ]
    assert [event["tags"]["job.kind"] for event in of_failures] == ["divide", "divide"]
    assert of_failures[0]["exception"]["values"][-1]["type"] == "ZeroDivisionError"
    assert sent.events == of_failures, "a snooze and a stop are no failures"


def test_structlog_lines_carry_their_attempt(app: Tenure, jobs: Inline) -> None:
    declare(app, "structlog")
    lines: list[dict[str, Any]] = []

    def keep(_: object, __: str, event: MutableMapping[str, Any]) -> str:
        lines.append(dict(event))
        return ""

    structlog.configure(
        processors=[structlog.contextvars.merge_contextvars, keep],
        logger_factory=structlog.PrintLoggerFactory(),
    )
    log = structlog.get_logger()

    @app.job(retry=Retry(max_attempts=2))
    def flaky(ctx: Context) -> None:
        log.info("runs")
        if ctx.attempt == 1:
            raise OSError("not yet")

    @app.job
    async def coroutine() -> None:
        log.info("runs too")

    try:
        one = flaky.using(correlation_id="order 7").enqueue()
        other = coroutine.enqueue()
        jobs.drain()
        log.info("between jobs")
    finally:
        structlog.reset_defaults()

    of_one = [line for line in lines if line.get("job_id") == one.id]
    assert [line["attempt"] for line in of_one] == [1, 2]
    assert {line["correlation_id"] for line in of_one} == {"order 7"}
    assert [line["kind"] for line in lines if line.get("job_id") == other.id] == ["coroutine"]
    assert lines[-1] == {"event": "between jobs"}


def test_a_session_is_committed_with_a_result_and_rolled_back_with_an_error(
    app: Tenure, jobs: Inline, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    names = declare(app, "A database session per attempt")
    insert = names["text"]("INSERT INTO booking (amount) VALUES (13)")

    @app.job
    def refuse() -> None:
        names["session"].get().execute(insert)
        raise PermanentError("no")

    @app.job
    def shapeless() -> Any:
        names["session"].get().execute(insert)
        return object()

    @app.job
    async def acoroutine() -> None:
        names["session"].get().execute(insert)

    ended = [each.enqueue() for each in (refuse, shapeless, acoroutine)]
    jobs.drain()

    assert [job.status for job in ended] == ["failed", "failed", "succeeded"]
    with names["engine"].begin() as connection:
        query = names["text"]("SELECT amount FROM booking ORDER BY amount")
        assert connection.execute(query).scalars().all() == [7, 13]
    names["engine"].dispose()
