"""What the metrics must say, told from the log alone, by what the reference page promises."""

from collections import Counter
from collections.abc import Iterable, Iterator

from tenure.core.events import Event
from tenure.core.ids import role_of
from tenure.core.vocabulary import EventCause, EventType, JobStatus
from tenure.ports import JobHistory
from tests.telemetry.scrape import Labels, samples

RELEASED = ("released", "snoozed", "undelivered")
TIMED = ("lease_expired", "outage", "timeout", "start_timeout")


def counters_of(records: Iterable[JobHistory]) -> dict[str, dict[Labels, float]]:
    """Every counter that is about jobs, and the counts and sums of both histograms."""
    found: dict[str, Counter[Labels]] = {}
    for record in records:
        assert record.job is not None
        base = {"namespace": str(record.job.namespace), "kind": str(record.job.kind)}
        for name, more, amount in _told(record.events):
            labels = tuple(sorted({**base, **more}.items()))
            found.setdefault(name, Counter())[labels] += amount
    return {name: dict(counts) for name, counts in found.items()}


def _told(events: Iterable[Event]) -> Iterator[tuple[str, dict[str, str], int]]:
    ready_at = started_at = 0
    stalled_by: EventCause | None = None
    for event in events:
        cause = str(event.cause)
        yield "tenure_transitions_total", {"type": str(event.type)}, 1
        match event.type:
            case EventType.CLAIMED:
                yield "tenure_claims_total", {}, 1
                yield "tenure_wait_seconds_count", {}, 1
                yield "tenure_wait_seconds_sum", {}, event.ts - ready_at
                if event.from_status is JobStatus.STALLED:
                    yield "tenure_retries_total", {"cause": str(stalled_by)}, 1
            case EventType.STARTED:
                started_at = event.ts
            case EventType.LEASE_RENEWED | EventType.HEARTBEAT:
                yield "tenure_lease_renewals_total", {}, 1
            case EventType.REQUEUED if stalled_by not in RELEASED:
                yield "tenure_retries_total", {"cause": str(stalled_by)}, 1
            case EventType.STALLED:
                stalled_by = event.cause
                if cause in TIMED:
                    yield "tenure_lease_expiries_total", {"cause": cause}, 1
                if cause in RELEASED:
                    yield "tenure_releases_total", {"cause": cause}, 1
            case EventType.DEAD_LETTERED:
                facts = event.payload
                more = {"reason_code": str(facts.reason_code), "stage": str(facts.stage or "none")}
                yield "tenure_dead_letters_total", more, 1
            case _:
                pass
        if event.payload.run_at is not None:
            ready_at = max(event.ts, event.payload.run_at)
        ends = event.type not in (EventType.CANCEL_REQUESTED, *_WITHIN)
        if ends and event.from_status is JobStatus.RUNNING:
            yield "tenure_run_seconds_count", {}, 1
            yield "tenure_run_seconds_sum", {}, event.ts - started_at
        failed = event.type in (EventType.FAILED, EventType.DEAD_LETTERED)
        if failed or event.cause is EventCause.ATTEMPT_FAILED:
            error = event.payload.error
            if error is not None and role_of(event.actor) == "worker":
                yield "tenure_failures_total", {"error_class": str(error.error_class)}, 1


_NOT_IN_THE_LOG = (
    "tenure_claim_conflicts_total",
    "tenure_lost_races_total",
    "tenure_observations_total",
    "tenure_security_events_total",
    "tenure_worker_events_total",
)

_WITHIN = (EventType.LEASE_RENEWED, EventType.HEARTBEAT, EventType.STARTED)


def assert_agree(text: bytes, records: Iterable[JobHistory]) -> None:
    """Every sample about jobs is what the log says, and the log says nothing more. [I23]"""
    expected = counters_of(records)
    exposed = samples(text)
    names = {
        name
        for name in exposed
        if name.startswith("tenure_")
        and name.endswith(("_total", "_seconds_count", "_seconds_sum"))
        and name not in _NOT_IN_THE_LOG
    }
    assert names == expected.keys()
    for name in names:
        scale = 1_000_000 if name.endswith("_seconds_sum") else 1
        shown = {labels: round(value * scale) for labels, value in exposed[name].items()}
        assert shown == expected[name], name
