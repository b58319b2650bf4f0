"""Metrics for prometheus_client: a collector of this process's counts and of the store's gauges.

`Metrics` can be registered with any registry: servers and workers make one of their own, so that
nothing of the application's is exposed there; an application gives the one that it exposes itself.
The library is optional and is imported when metrics are asked for. While the store does not answer,
its gauges are absent and the counters are not.
"""

import socket
import threading
import time
from collections import Counter, OrderedDict
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, suppress
from importlib.util import find_spec
from itertools import accumulate
from operator import itemgetter
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any, Literal, cast

import msgspec

from tenure.core.ids import Namespace
from tenure.errors import InvalidInput, TenureError, install_hint
from tenure.ports import Measures
from tenure.telemetry.catalogue import METRICS, STORE_UP, Metric, Samples, Sort, Source
from tenure.telemetry.counts import BOUNDS_S, Counts

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
                found = None  # exposed as `tenure_store_up 0`
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
        self._sources: dict[Source, Callable[[Namespace | None], Any]] = {}
        if counts is not None:
            self._sources[Source.PROCESS] = lambda _: counts.snapshot()
        if gauge is not None:
            self._sources[Source.STORE] = gauge.read
        if worker is not None:
            self._sources[Source.WORKER] = lambda _: worker()
        if security is not None:
            self._sources[Source.SERVER] = lambda _: security()

    def collect(self) -> "Iterator[Family]":
        """Every metric with its samples, as a registry asks for them."""
        return self._families(None)

    def describe(self) -> "Iterator[Family]":
        """The names, for a registry that refuses duplicates; nothing is read for them."""
        return (_family(metric, ()) for metric in METRICS if metric.source in self._sources)

    def text(self, namespace: Namespace | None = None) -> bytes:
        """Everything; with a namespace, nothing of the others. [OB2]"""
        from prometheus_client import generate_latest

        reading = SimpleNamespace(collect=lambda: self._families(namespace))
        return generate_latest(cast(Any, reading))

    def _families(self, namespace: Namespace | None) -> "Iterator[Family]":
        readings = {source: read(namespace) for source, read in self._sources.items()}
        for metric in METRICS:
            # If the store cannot be read, only that is exposed.
            is_read = readings.get(metric.source) is not None
            if is_read or (metric is STORE_UP and metric.source in readings):
                yield _family(metric, metric.read(readings[metric.source]), namespace)


def _family(metric: Metric, samples: Samples, namespace: Namespace | None = None) -> "Family":
    """A metric with its samples, or only samples of one namespace."""
    from prometheus_client.core import (
        CounterMetricFamily,
        GaugeMetricFamily,
        HistogramMetricFamily,
    )

    if namespace is not None and metric.labels[:1] == ("namespace",):
        samples = [(labels, each) for labels, each in samples if labels[0] == namespace]
    if metric.sort is Sort.HISTOGRAM:
        histograms = HistogramMetricFamily(metric.name, metric.help, labels=metric.labels)
        bounds = [*(str(bound) for bound in BOUNDS_S), "+Inf"]
        for labels, histogram in sorted(samples, key=itemgetter(0)):
            if any(histogram.buckets):
                reached = zip(bounds, accumulate(histogram.buckets), strict=True)
                histograms.add_metric(labels, buckets=list(reached), sum_value=histogram.sum_s)
        return histograms
    sort = CounterMetricFamily if metric.sort is Sort.COUNTER else GaugeMetricFamily
    family = sort(metric.name, metric.help, labels=metric.labels)
    summed: Counter[tuple[str, ...]] = Counter()
    for labels, number in samples:
        summed[labels] += number
    for labels, number in sorted(summed.items()):
        family.add_metric(labels, number)
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
        # Wakes serve_forever, which otherwise checks every 0.5 s whether it has to end. A system
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
