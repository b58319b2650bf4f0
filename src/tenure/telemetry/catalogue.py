"""THE table of metrics: every name, what it means, its labels, how it is read, and a query for it.

What is exposed and the reference page are both made from it.
"""

from collections.abc import Callable, Iterable, Iterator, Mapping
from enum import StrEnum
from functools import partial
from typing import Any

import msgspec

from tenure.core.instants import MICROSECONDS_PER_SECOND, Instant
from tenure.core.vocabulary import RENEWALS as RENEWAL_TYPES
from tenure.core.vocabulary import EventCause, EventType
from tenure.ports import Measures
from tenure.telemetry import counts
from tenure.telemetry.counts import Snapshot


class Sort(StrEnum):
    """What Prometheus calls the type of a metric."""

    COUNTER = "counter"
    GAUGE = "gauge"
    HISTOGRAM = "histogram"


class Source(StrEnum):
    """Where the numbers come from."""

    PROCESS = "this process"
    STORE = "the store"
    WORKER = "this worker"
    SERVER = "this server"


Samples = Iterable[tuple[tuple[str, ...], Any]]
"""Values of labels, and the number; of a histogram its buckets."""


class Metric(msgspec.Struct, frozen=True):
    """One metric."""

    sort: Sort
    source: Source
    name: str
    label_names: str
    """Separated by spaces."""
    help: str
    query: str
    read: Callable[[Any], Samples]
    """Its samples in a reading of its source: a `Snapshot`, `Measures`, or numbers by name."""

    @property
    def labels(self) -> tuple[str, ...]:
        """The names of its labels."""
        return tuple(self.label_names.split())


_counter = partial(Metric, Sort.COUNTER, Source.PROCESS)
_gauge = partial(Metric, Sort.GAUGE, Source.STORE)


def _histogram(name: str, help_: str, field: str) -> Metric:
    query = "\n".join(
        f"histogram_quantile({part}, sum by (kind, le) (rate({name}_bucket[5m])))"
        for part in ("0.5", "0.95")
    )
    return Metric(
        *(Sort.HISTOGRAM, Source.PROCESS, name, "namespace kind", help_, query),
        lambda found: [(labels, getattr(tally, field)) for labels, tally in found.tallies.items()],
    )


# --- how they are read ---------------------------------------------------------------------------


def _by_name(found: Mapping[str, int]) -> Samples:
    return [((name,), number) for name, number in found.items()]


def _by_event(
    labels_of: Callable[[EventType, EventCause | None], tuple[str, ...] | None],
) -> Callable[[Snapshot], Samples]:
    """Counts events by these labels; None: not this event."""

    def read(found: Snapshot) -> Iterator[tuple[tuple[str, ...], int]]:
        for labels, tally in found.tallies.items():
            for (kind, cause), number in tally.events.items():
                more = labels_of(kind, cause)
                if more is not None:
                    yield (*labels, *more), number

    return read


def _by_end(causes: frozenset[EventCause]) -> Callable[[Snapshot], Samples]:
    """Attempts that ended without a report, for one of these causes."""
    return _by_event(
        lambda kind, cause: (cause,) if kind is EventType.STALLED and cause in causes else None
    )


def _tallied(field: str) -> Callable[[Snapshot], Samples]:
    """What does not follow from the type and cause of an event: this field of each tally."""

    def read(found: Snapshot) -> Iterator[tuple[tuple[str, ...], int]]:
        for labels, tally in found.tallies.items():
            for key, number in getattr(tally, field).items():
                words = key if isinstance(key, tuple) else (key,)
                yield (*labels, *(word or "none" for word in words)), number

    return read


def _by_queue(number_of: Callable[[Any, Instant], float]) -> Callable[[Measures], Samples]:
    return lambda found: [
        ((each.namespace, each.queue), number_of(each, found.now)) for each in found.queues
    ]


def _oldest_age_s(queue: Any, now: Instant) -> float:
    # A job that was ready before the clock was set back has a `run_at` in the future.
    ready_at = now if queue.oldest_ready_at is None else queue.oldest_ready_at
    return max(0, now - ready_at) / MICROSECONDS_PER_SECOND


def _schedule_lags(found: Measures) -> Samples:
    since = dict.fromkeys(found.dead_letters, found.now) | found.schedules_due_since
    return [((name,), (found.now - at) / MICROSECONDS_PER_SECOND) for name, at in since.items()]


# --- the table -----------------------------------------------------------------------------------

TRANSITIONS = _counter(
    "tenure_transitions_total",
    "namespace kind type",
    "Events that were written to the log, by type; renewals of leases are among them.",
    "sum by (type) (rate(tenure_transitions_total[5m]))",
    _by_event(lambda kind, cause: (kind,)),
)
CLAIMS = _counter(
    "tenure_claims_total",
    "namespace kind",
    "Jobs granted to workers.",
    "sum by (kind) (rate(tenure_claims_total[5m]))",
    _by_event(lambda kind, cause: () if kind is EventType.CLAIMED else None),
)
CONFLICTS = _counter(
    "tenure_claim_conflicts_total",
    "conflict",
    "Claims that were refused because another one of their session came first, restarted because"
    " settings had changed, keys were dirty or other claims had locked their limits and rates, or"
    " lost to another transaction and made again; locked, that is, granted too few jobs because"
    " other transactions had locked some; or held, that is, granted nothing because of a rate.",
    "sum by (conflict) (rate(tenure_claim_conflicts_total[5m]))",
    lambda counts: _by_name(counts.conflicts),
)
LOST_RACES = _counter(
    "tenure_lost_races_total",
    "operation",
    "Changes that lost their compare-and-swap and were decided again: another process was first,"
    " the lease had ended, or an enqueue met a job with its id or key.",
    "sum by (operation) (rate(tenure_lost_races_total[5m]))",
    lambda counts: _by_name(counts.misses),
)
RENEWALS = _counter(
    "tenure_lease_renewals_total",
    "namespace kind",
    "Leases renewed by heartbeats.",
    "sum(rate(tenure_lease_renewals_total[5m]))",
    _by_event(lambda kind, cause: () if kind in RENEWAL_TYPES else None),
)
EXPIRIES = _counter(
    "tenure_lease_expiries_total",
    "namespace kind cause",
    "Attempts that time ended: a lease that was not renewed, an outage, a time-out.",
    "sum by (kind, cause) (increase(tenure_lease_expiries_total[1h]))",
    _by_end(counts.EXPIRIES),
)
RETRIES = _counter(
    "tenure_retries_total",
    "namespace kind cause",
    "Jobs that were given another attempt after a failed or lost one, by how that one ended.",
    "sum by (kind) (rate(tenure_retries_total[5m]))"
    " / sum by (kind) (rate(tenure_claims_total[5m]))",
    _tallied("retries"),
)
RELEASES = _counter(
    "tenure_releases_total",
    "namespace kind cause",
    "Jobs that were handed back unharmed: a deploy, a snooze, a grant that did not arrive.",
    "sum by (kind) (increase(tenure_releases_total[1h]))",
    _by_end(counts.RELEASES),
)
FAILURES = _counter(
    "tenure_failures_total",
    "namespace kind error_class",
    "Attempts that their workers reported as failed, whatever became of the job.",
    "sum by (kind) (rate(tenure_failures_total[5m]))",
    _tallied("failures"),
)
DEAD_LETTERS = _counter(
    "tenure_dead_letters_total",
    "namespace kind reason_code stage",
    "Jobs that became dead letters.",
    "sum by (kind, reason_code) (increase(tenure_dead_letters_total[1h])) > 0",
    _tallied("dead_letters"),
)
OBSERVATIONS = _counter(
    "tenure_observations_total",
    "namespace kind type",
    "What was kept beside the log: results that were refused (result_discarded), reports under"
    " another worker's lease (foreign_lease), compensations that succeeded (compensated, by the"
    " kind of the compensation).",
    "sum by (kind, type) (increase(tenure_observations_total[1h]))",
    _tallied("observations"),
)
OCCURRENCES = _counter(
    "tenure_schedule_occurrences_total",
    "namespace kind outcome",
    "Times of schedules that were dealt with: fired, skipped because the run before had not ended,"
    " or missed because they were not fired in time. By the kind of the schedule's jobs.",
    'sum by (kind) (increase(tenure_schedule_occurrences_total{outcome="missed"}[1h])) > 0',
    _tallied("occurrences"),
)
LATE = _histogram(
    "tenure_schedule_late_seconds",
    "From the nominal time of a schedule to the moment its job was made.",
    "lateness",
)
SCHEDULE_LAG = _gauge(
    "tenure_schedule_lag_seconds",
    "namespace",
    "For how long the schedule that is longest due has been due; 0 if none is.",
    "max by (namespace) (tenure_schedule_lag_seconds) > 10",
    _schedule_lags,
)
WAIT = _histogram(
    "tenure_wait_seconds",
    "From the moment a job was ready to the moment it was claimed.",
    "waits",
)
RUN = _histogram(
    "tenure_run_seconds",
    "From the start of an attempt to its end, however it ended.",
    "runs",
)
SWEEPER_LAG = Metric(
    Sort.GAUGE,
    Source.PROCESS,
    "tenure_sweeper_lag_seconds",
    "",
    "How late this process's sweeper is: the longest overdue job it found last, or how long its"
    " next pass is overdue.",
    "max(tenure_sweeper_lag_seconds) > 10",
    lambda found: [] if found.sweeper_lag_s is None else [((), found.sweeper_lag_s)],
)
DLQ = _gauge(
    "tenure_dlq_count",
    "namespace",
    "Dead letters that were neither redriven nor discarded.",
    "max by (namespace) (tenure_dlq_count) > 0",
    lambda found: _by_name(found.dead_letters),
)
DEPTH = _gauge(
    "tenure_queue_depth",
    "namespace queue",
    "Jobs that are ready to be claimed.",
    "max by (queue) (tenure_queue_depth)",
    _by_queue(lambda each, now: each.ready),
)
DELAYED = _gauge(
    "tenure_queue_delayed",
    "namespace queue",
    "Jobs that wait for their time.",
    "max by (queue) (tenure_queue_delayed)",
    _by_queue(lambda each, now: each.delayed),
)
OLDEST = _gauge(
    "tenure_queue_oldest_ready_age_seconds",
    "namespace queue",
    "For how long the oldest ready job has been ready; 0 if there is none.",
    "max by (queue) (tenure_queue_oldest_ready_age_seconds) > 300",
    _by_queue(_oldest_age_s),
)
RUNNING = _gauge(
    "tenure_running",
    "namespace queue",
    "Jobs that are claimed or running.",
    "sum(max by (queue) (tenure_running))",
    _by_queue(lambda each, now: each.leased),
)
SUSPECT = _gauge(
    "tenure_suspect",
    "namespace queue",
    "Jobs that workers have claimed or run, and whose workers have missed two heartbeats.",
    "max by (queue) (tenure_suspect) > 0",
    _by_queue(lambda each, now: each.suspect),
)
LEFT_OUT = _gauge(
    "tenure_queues_left_out",
    "",
    "Queues that were not measured because there are too many.",
    "max(tenure_queues_left_out) > 0",
    lambda found: [((), found.left_out)],
)
STORE_UP = _gauge(
    "tenure_store_up",
    "",
    "1 if the store could be measured, 0 if it failed; then its other gauges are absent.",
    "min(tenure_store_up) == 0",
    lambda found: [((), found is not None)],
)
LOSSES = _gauge(
    "tenure_losses",
    "",
    "Failovers of the store after which acknowledged work was missing. Each began a new epoch.",
    "max(delta(tenure_losses[1d])) > 0",
    lambda found: [((), found.losses)],
)
WORKER_EVENTS = Metric(
    Sort.COUNTER,
    Source.WORKER,
    "tenure_worker_events_total",
    "event",
    "What the supervisor of this worker saw and did.",
    'sum by (event) (increase(tenure_worker_events_total{event=~"crashes|fenced"}[1h]))',
    _by_name,
)
SECURITY_EVENTS = Metric(
    Sort.COUNTER,
    Source.SERVER,
    "tenure_security_events_total",
    "event",
    "What the security log of this server has a line for, and what was left out of it.",
    "sum by (event) (increase(tenure_security_events_total[1h]))",
    _by_name,
)

METRICS = tuple(each for each in list(globals().values()) if isinstance(each, Metric))
"""Every metric of this module, in this order."""
