"""THE table of metrics: every name, what it means, its labels, and a query that uses it.

What is exposed and the reference page are both made from it.
"""

from enum import StrEnum

import msgspec


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


class Metric(msgspec.Struct, frozen=True, kw_only=True):
    """One metric."""

    name: str
    sort: Sort
    source: Source
    labels: tuple[str, ...] = ()
    help: str
    query: str


def _counter(name: str, labels: str, help_: str, query: str) -> Metric:
    return Metric(
        name=name,
        sort=Sort.COUNTER,
        source=Source.PROCESS,
        labels=tuple(labels.split()),
        help=help_,
        query=query,
    )


def _gauge(name: str, labels: str, help_: str, query: str, source: Source = Source.STORE) -> Metric:
    return Metric(
        name=name,
        sort=Sort.GAUGE,
        source=source,
        labels=tuple(labels.split()),
        help=help_,
        query=query,
    )


def _histogram(name: str, help_: str) -> Metric:
    return Metric(
        name=name,
        sort=Sort.HISTOGRAM,
        source=Source.PROCESS,
        labels=("namespace", "kind"),
        help=help_,
        query="\n".join(
            f"histogram_quantile({part}, sum by (kind, le) (rate({name}_bucket[5m])))"
            for part in ("0.5", "0.95")
        ),
    )


TRANSITIONS = _counter(
    "tenure_transitions_total",
    "namespace kind type",
    "Events that were written to the log, by type; renewals of leases are among them.",
    "sum by (type) (rate(tenure_transitions_total[5m]))",
)
CLAIMS = _counter(
    "tenure_claims_total",
    "namespace kind",
    "Jobs granted to workers.",
    "sum by (kind) (rate(tenure_claims_total[5m]))",
)
CONFLICTS = _counter(
    "tenure_claim_conflicts_total",
    "conflict",
    "Claims that were refused because another one of their session came first, restarted because"
    " they needed other locks than they had taken, or lost to another transaction and made again;"
    " locked, that is, granted too few jobs because other transactions had locked some;"
    " or held, that is, granted nothing while a rate held jobs back that they asked for.",
    "sum by (conflict) (rate(tenure_claim_conflicts_total[5m]))",
)
LOST_RACES = _counter(
    "tenure_lost_races_total",
    "operation",
    "Changes that lost their compare-and-swap and were decided again: another process was first,"
    " the lease had ended, or an enqueue met a job with its id or key.",
    "sum by (operation) (rate(tenure_lost_races_total[5m]))",
)
RENEWALS = _counter(
    "tenure_lease_renewals_total",
    "namespace kind",
    "Leases renewed by heartbeats.",
    "sum(rate(tenure_lease_renewals_total[5m]))",
)
EXPIRIES = _counter(
    "tenure_lease_expiries_total",
    "namespace kind cause",
    "Attempts that time ended: a lease that was not renewed, an outage, a time-out.",
    "sum by (kind, cause) (increase(tenure_lease_expiries_total[1h]))",
)
RETRIES = _counter(
    "tenure_retries_total",
    "namespace kind cause",
    "Jobs that were given another attempt after a failed or lost one, by how that one ended.",
    "sum by (kind) (rate(tenure_retries_total[5m]))"
    " / sum by (kind) (rate(tenure_claims_total[5m]))",
)
RELEASES = _counter(
    "tenure_releases_total",
    "namespace kind cause",
    "Jobs that were handed back unharmed: a deploy, a snooze, a grant that did not arrive.",
    "sum by (kind) (increase(tenure_releases_total[1h]))",
)
FAILURES = _counter(
    "tenure_failures_total",
    "namespace kind error_class",
    "Attempts that their workers reported as failed, whatever became of the job.",
    "sum by (kind) (rate(tenure_failures_total[5m]))",
)
DEAD_LETTERS = _counter(
    "tenure_dead_letters_total",
    "namespace kind reason_code stage",
    "Jobs that became dead letters.",
    "sum by (kind, reason_code) (increase(tenure_dead_letters_total[1h])) > 0",
)
OBSERVATIONS = _counter(
    "tenure_observations_total",
    "namespace kind type",
    "What was kept beside the log: results that were refused (result_discarded), reports under"
    " another worker's lease (foreign_lease), compensations that succeeded (compensated, by the"
    " kind of the compensation).",
    "sum by (kind, type) (increase(tenure_observations_total[1h]))",
)
OCCURRENCES = _counter(
    "tenure_schedule_occurrences_total",
    "namespace kind outcome",
    "Times of schedules that were dealt with: fired, skipped because the run before had not ended,"
    " or missed because nobody fired them in time. By the kind of the schedule's jobs.",
    'sum by (kind) (increase(tenure_schedule_occurrences_total{outcome="missed"}[1h])) > 0',
)
LATE = _histogram(
    "tenure_schedule_late_seconds",
    "From the nominal time of a schedule to the moment its job was made.",
)
SCHEDULE_LAG = _gauge(
    "tenure_schedule_lag_seconds",
    "namespace",
    "For how long the schedule that is longest due has been due; 0 if none is.",
    "max by (namespace) (tenure_schedule_lag_seconds) > 10",
)
WAIT = _histogram(
    "tenure_wait_seconds", "From the moment a job was ready to the moment it was claimed."
)
RUN = _histogram(
    "tenure_run_seconds",
    "From the start of an attempt to its end, however it ended.",
)
SWEEPER_LAG = _gauge(
    "tenure_sweeper_lag_seconds",
    "",
    "How late this process's sweeper is: the longest overdue job it found last, or how long its"
    " next pass is overdue.",
    "max(tenure_sweeper_lag_seconds) > 10",
    Source.PROCESS,
)
DLQ = _gauge(
    "tenure_dlq_count",
    "namespace",
    "Dead letters that were neither redriven nor discarded.",
    "max by (namespace) (tenure_dlq_count) > 0",
)
DEPTH = _gauge(
    "tenure_queue_depth",
    "namespace queue",
    "Jobs that are ready to be claimed.",
    "max by (queue) (tenure_queue_depth)",
)
DELAYED = _gauge(
    "tenure_queue_delayed",
    "namespace queue",
    "Jobs that wait for their time.",
    "max by (queue) (tenure_queue_delayed)",
)
OLDEST = _gauge(
    "tenure_queue_oldest_ready_age_seconds",
    "namespace queue",
    "For how long the oldest ready job has been ready; 0 if there is none.",
    "max by (queue) (tenure_queue_oldest_ready_age_seconds) > 300",
)
RUNNING = _gauge(
    "tenure_running",
    "namespace queue",
    "Jobs that workers hold: claimed or running.",
    "sum(max by (queue) (tenure_running))",
)
SUSPECT = _gauge(
    "tenure_suspect",
    "namespace queue",
    "Of the jobs that workers hold, those whose workers have missed two heartbeats.",
    "max by (queue) (tenure_suspect) > 0",
)
LEFT_OUT = _gauge(
    "tenure_queues_left_out",
    "",
    "Queues that were not measured because there are too many.",
    "max(tenure_queues_left_out) > 0",
)
STORE_UP = _gauge(
    "tenure_store_up",
    "",
    "1 if the store could be measured, 0 if it failed; then its other gauges are absent.",
    "min(tenure_store_up) == 0",
)
LOSSES = _gauge(
    "tenure_losses",
    "",
    "Failovers of the store after which acknowledged work was missing. Each began a new epoch.",
    "max(delta(tenure_losses[1d])) > 0",
)
WORKER_EVENTS = Metric(
    name="tenure_worker_events_total",
    sort=Sort.COUNTER,
    source=Source.WORKER,
    labels=("event",),
    help="What the supervisor of this worker saw and did.",
    query='sum by (event) (increase(tenure_worker_events_total{event=~"crashes|fenced"}[1h]))',
)

SECURITY_EVENTS = Metric(
    name="tenure_security_events_total",
    sort=Sort.COUNTER,
    source=Source.SERVER,
    labels=("event",),
    help="What the security log of this server has a line for, and what was left out of it.",
    query="sum by (event) (increase(tenure_security_events_total[1h]))",
)

METRICS = tuple(each for each in list(globals().values()) if isinstance(each, Metric))
"""Every metric of this module, in this order."""
