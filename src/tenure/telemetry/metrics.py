"""Metrics for prometheus_client: a collector of this process's counts and of the store's gauges.

`Metrics` can be registered with any registry: servers and workers make one of their own, so that
nothing of the application's is exposed there; an application gives the one that it exposes itself.
The library is optional and is imported when metrics are asked for. While the store does not answer,
its gauges are absent and the counters are not.
"""

import socket
import threading
import time
from collections import OrderedDict
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager, suppress
from importlib.util import find_spec
from itertools import accumulate
from typing import TYPE_CHECKING, Any, Literal

import msgspec

from tenure.core.ids import Namespace
from tenure.core.instants import MICROSECONDS_PER_SECOND
from tenure.core.vocabulary import RENEWALS as RENEWAL_TYPES
from tenure.core.vocabulary import EventType
from tenure.errors import InvalidInput, TenureError, install_hint
from tenure.ports import Measures
from tenure.telemetry import catalogue
from tenure.telemetry.catalogue import Metric, Sort, Source
from tenure.telemetry.counts import BOUNDS_S, EXPIRIES, RELEASES, Counts, Histogram, Snapshot

if TYPE_CHECKING:
    from prometheus_client import CollectorRegistry
    from prometheus_client.metrics_core import Metric as Family

CONTENT_TYPE = "text/plain; version=0.0.4; charset=utf-8"
MAX_QUEUES = 100
MAX_COUNTED = 10_000
"""Counting stops here: a gauge of this size means "that many or more"."""

MEASURE_EVERY_S = 5.0
MAX_GAUGES = 100
"""How many namespaces' measures are cached."""

CALLER_TIMEOUT_S = 5.0
MAX_CALLERS = 20
"""How long a caller of a worker's port may be silent, and how many are answered at a time."""

Measure = Callable[[Namespace | None], Measures]
"""How full the store is, or one namespace of it."""
Values = Iterable[tuple[tuple[str, ...], float]]
"""Values of labels, and the number."""


class MetricsAddress(msgspec.Struct, frozen=True):
    """Where a worker exposes its metrics."""

    host: str
    port: int


class Gauge:
    """The store's measures, read at most every few seconds however many callers ask. A namespace is
    measured by itself for callers who see only it, with a limit of queues of its own. [OB10]"""

    def __init__(self, measure: Measure, *, every_s: float = MEASURE_EVERY_S) -> None:
        self._measure = measure
        self._every_s = every_s
        self._lock = threading.Lock()
        self._taken: OrderedDict[Namespace | None, tuple[float, Measures | None]] = OrderedDict()

    def read(self, namespace: Namespace | None = None) -> Measures | None:
        """The last measures, or new ones; None if the store failed."""
        with self._lock:
            taken = self._taken.get(namespace)
            if taken is not None and time.monotonic() - taken[0] < self._every_s:
                return taken[1]
            try:
                found: Measures | None = self._measure(namespace)
            except TenureError:
                found = None  # shown as `tenure_store_up 0`
            self._taken[namespace] = (time.monotonic(), found)
            self._taken.move_to_end(namespace)
            if len(self._taken) > MAX_GAUGES:
                self._taken.popitem(last=False)
            return found


class Metrics:
    """What one process exposes, as a collector of prometheus_client."""

    def __init__(
        self,
        counts: Counts | None = None,
        *,
        gauge: Gauge | None = None,
        worker: Callable[[], Mapping[str, int]] | None = None,
        security: Callable[[], Mapping[str, int]] | None = None,
    ) -> None:
        self._counts = counts
        self._gauge = gauge
        self._worker = worker
        self._security = security

    def collect(self) -> "Iterator[Family]":
        """Every metric with its samples, as a registry asks for them."""
        return self._families(None)

    def describe(self) -> "Iterator[Family]":
        """The names, for a registry that refuses duplicates; nothing is read for them."""
        for metric in self._exposed():
            yield (
                _histogram_family(metric, {})
                if metric.sort is Sort.HISTOGRAM
                else _family(metric, [])
            )

    def text(self, namespace: Namespace | None = None) -> bytes:
        """Everything; with a namespace, nothing of the others. [OB2]"""
        from prometheus_client import CollectorRegistry, generate_latest

        registry = CollectorRegistry()
        registry.register(_OneReading(list(self._families(namespace))))
        return generate_latest(registry)

    def _exposed(self) -> list[Metric]:
        sources = {
            Source.PROCESS: self._counts,
            Source.STORE: self._gauge,
            Source.WORKER: self._worker,
            Source.SERVER: self._security,
        }
        return [metric for metric in catalogue.METRICS if sources[metric.source] is not None]

    def _families(self, namespace: Namespace | None) -> "Iterator[Family]":
        snapshot = None if self._counts is None else self._counts.snapshot()
        for metric, values in self._plain(snapshot, namespace):
            yield _family(metric, _of_namespace(metric, values, namespace))
        if snapshot is not None:
            for metric, name in (
                (catalogue.LATE, "lateness"),
                (catalogue.WAIT, "waits"),
                (catalogue.RUN, "runs"),
            ):
                found = {
                    labels: getattr(tally, name)
                    for labels, tally in snapshot.tallies.items()
                    if namespace in (None, labels[0])
                }
                yield _histogram_family(metric, found)

    def _plain(
        self, snapshot: Snapshot | None, namespace: Namespace | None
    ) -> Iterator[tuple[Metric, Values]]:
        if snapshot is not None:
            yield from _counters(snapshot)
            lag_s = snapshot.sweeper_lag_s
            yield catalogue.SWEEPER_LAG, [] if lag_s is None else [((), lag_s)]
        if self._gauge is not None:
            measures = self._gauge.read(namespace)
            yield catalogue.STORE_UP, [((), float(measures is not None))]
            if measures is not None:
                yield from _gauges(measures)
        if self._worker is not None:
            seen = self._worker()
            yield catalogue.WORKER_EVENTS, [((name,), number) for name, number in seen.items()]
        if self._security is not None:
            noted = self._security()
            yield catalogue.SECURITY_EVENTS, [((name,), number) for name, number in noted.items()]


class _OneReading:
    """What was read for one answer, as a collector."""

    def __init__(self, families: "list[Family]") -> None:
        self._families = families

    def collect(self) -> "list[Family]":
        return self._families


# --- from counts to samples ----------------------------------------------------------------------


def _counters(snapshot: Snapshot) -> Iterator[tuple[Metric, Values]]:
    tallies = snapshot.tallies.items()
    events = [
        (labels, kind, cause, number)
        for labels, tally in tallies
        for (kind, cause), number in tally.events.items()
    ]
    yield catalogue.TRANSITIONS, [((*labels, kind), number) for labels, kind, _, number in events]
    yield (
        catalogue.CLAIMS,
        [(labels, number) for labels, kind, _, number in events if kind is EventType.CLAIMED],
    )
    yield catalogue.CONFLICTS, [((how,), number) for how, number in snapshot.conflicts.items()]
    yield catalogue.LOST_RACES, [((name,), number) for name, number in snapshot.misses.items()]
    yield (
        catalogue.RENEWALS,
        [(labels, number) for labels, kind, _, number in events if kind in RENEWAL_TYPES],
    )
    for metric, causes in ((catalogue.EXPIRIES, EXPIRIES), (catalogue.RELEASES, RELEASES)):
        yield (
            metric,
            [
                ((*labels, cause), number)
                for labels, kind, cause, number in events
                if kind is EventType.STALLED and cause in causes
            ],
        )
    for metric, name in _TALLIED:
        yield (
            metric,
            [
                ((*labels, *_key_labels(key)), number)
                for labels, tally in tallies
                for key, number in getattr(tally, name).items()
            ],
        )


_TALLIED = (
    (catalogue.RETRIES, "retries"),
    (catalogue.FAILURES, "failures"),
    (catalogue.DEAD_LETTERS, "dead_letters"),
    (catalogue.OBSERVATIONS, "observations"),
    (catalogue.OCCURRENCES, "occurrences"),
)
"""Counters of what an event's type and cause do not say, and the field of a tally that has each."""


def _key_labels(key: str | tuple[str | None, ...] | None) -> tuple[str, ...]:
    """A label cannot be null."""
    return tuple(word or "none" for word in (key if isinstance(key, tuple) else (key,)))


def _gauges(measures: Measures) -> Iterator[tuple[Metric, Values]]:
    queues = [((each.namespace, each.queue), each) for each in measures.queues]
    yield catalogue.DEPTH, [(at, each.ready) for at, each in queues]
    yield catalogue.DELAYED, [(at, each.delayed) for at, each in queues]
    yield catalogue.RUNNING, [(at, each.leased) for at, each in queues]
    yield catalogue.SUSPECT, [(at, each.suspect) for at, each in queues]
    ages = [
        # A job that was ready before the clock was set back has a `run_at` in the future.
        (at, 0 if each.oldest_ready_at is None else max(0, measures.now - each.oldest_ready_at))
        for at, each in queues
    ]
    yield catalogue.OLDEST, [(at, age_us / MICROSECONDS_PER_SECOND) for at, age_us in ages]
    yield catalogue.LEFT_OUT, [((), measures.left_out)]
    yield catalogue.LOSSES, [((), measures.losses)]
    since = dict.fromkeys(measures.dead_letters, measures.now) | measures.schedules_due_since
    lags = [((name,), measures.now - at) for name, at in since.items()]
    yield catalogue.SCHEDULE_LAG, [(at, us / MICROSECONDS_PER_SECOND) for at, us in lags]
    yield catalogue.DLQ, [((name,), number) for name, number in measures.dead_letters.items()]


# --- from samples to families --------------------------------------------------------------------


def _of_namespace(metric: Metric, values: Values, namespace: Namespace | None) -> Values:
    """The samples that one namespace may see; the first label is the namespace if there is one."""
    if namespace is None or metric.labels[:1] != ("namespace",):
        return values
    return [(labels, number) for labels, number in values if labels[0] == namespace]


def _family(metric: Metric, values: Values) -> "Family":
    from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily

    summed: dict[tuple[str, ...], float] = {}
    for labels, number in values:
        summed[labels] = summed.get(labels, 0) + number
    sort = CounterMetricFamily if metric.sort is Sort.COUNTER else GaugeMetricFamily
    family = sort(metric.name, metric.help, labels=metric.labels)
    for labels, number in sorted(summed.items()):
        family.add_metric(labels, number)
    return family


def _histogram_family(metric: Metric, found: Mapping[tuple[str, str], Histogram]) -> "Family":
    from prometheus_client.core import HistogramMetricFamily

    family = HistogramMetricFamily(metric.name, metric.help, labels=metric.labels)
    bounds = [*(str(bound) for bound in BOUNDS_S), "+Inf"]
    for labels, histogram in sorted(found.items()):
        if any(histogram.buckets):
            reached = zip(bounds, accumulate(histogram.buckets), strict=True)
            family.add_metric(labels, buckets=list(reached), sum_value=histogram.sum_s)
    return family


# --- registries and ports ------------------------------------------------------------------------


def require_prometheus() -> None:
    """Raise unless prometheus_client is installed: at the start, not at the first scrape."""
    if find_spec("prometheus_client") is None:
        raise TenureError("metrics need the extra metrics", hint=install_hint("metrics"))


def register(metrics: Metrics, where: "CollectorRegistry | Literal[True]") -> None:
    """Show the metrics in this registry; True means the one that prometheus_client exposes by
    default."""
    require_prometheus()
    from prometheus_client import REGISTRY

    try:
        (REGISTRY if where is True else where).register(metrics)
    except ValueError as duplicate:
        raise InvalidInput(
            "metrics",
            "this registry already has Tenure's metrics",
            hint="give metrics= to one Tenure object per process, or to each a registry of its own",
        ) from duplicate


@contextmanager
def exposed(metrics: Metrics, address: MetricsAddress) -> Iterator[int]:
    """Expose the metrics for Prometheus while the block runs; yields the port."""
    require_prometheus()
    from prometheus_client import CollectorRegistry, start_http_server

    registry = CollectorRegistry()
    registry.register(metrics)
    try:
        server, thread = start_http_server(address.port, address.host, registry)
    except OSError as failure:
        raise TenureError(
            f"cannot listen on {address.host} port {address.port}: {failure.strerror}",
            hint="choose another --metrics-port, or stop the process that uses this one",
        ) from failure
    _limit_callers(server)
    server.socket.listen(MAX_CALLERS)  # the socketserver module lets 5 wait to be accepted
    try:
        yield server.server_port
    finally:
        # Wakes serve_forever, which otherwise looks every 0.5 s whether it has to end. A system
        # that cannot do this to a listening socket raises, and the end takes that long.
        with suppress(OSError):
            server.socket.shutdown(socket.SHUT_RDWR)
        server.shutdown()
        server.server_close()
        thread.join()


def _limit_callers(server: Any) -> None:
    """prometheus_client gives each connection a thread and waits for its request without end; 300
    connections that sent nothing held 300 threads of the supervisor."""
    room = threading.Semaphore(MAX_CALLERS)
    start_thread = server.process_request

    def process_request(caller: Any, address: Any) -> None:
        if not room.acquire(blocking=False):
            server.shutdown_request(caller)
            return
        try:
            start_thread(caller, address)
        except BaseException:
            room.release()
            raise

    class Impatient(server.RequestHandlerClass):  # type: ignore[misc]  # it has no public name
        timeout = CALLER_TIMEOUT_S

        def __init__(self, *given: Any) -> None:
            try:
                super().__init__(*given)
            finally:
                room.release()

        def handle(self) -> None:
            with suppress(TimeoutError, ConnectionError):
                super().handle()

    server.RequestHandlerClass = Impatient
    server.process_request = process_request


def counts_of(stats: msgspec.Struct) -> dict[str, int]:
    """A worker's own counters by name."""
    return msgspec.structs.asdict(stats)
