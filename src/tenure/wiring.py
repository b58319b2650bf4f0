"""Composes store, coordinator, client and worker from a URL. Only this module knows them all.

Drivers are imported when a URL asks for them, so that a SQLite user never loads psycopg. What only
clients, workers or servers need is imported by the functions that make them: a command that lists
jobs would wait for it otherwise.
"""

import logging
import os
from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack, closing, contextmanager, nullcontext
from functools import partial
from typing import TYPE_CHECKING

from msgspec.structs import asdict, replace

from tenure.coordinator.service import Coordinator
from tenure.coordinator.sweeper import LONGEST_PAUSE, Sweeper
from tenure.core.instants import MICROSECONDS_PER_SECOND
from tenure.errors import (
    RequestRefused,
    SchemaTooOld,
    StoreError,
    StoreUnavailable,
    install_hint,
)
from tenure.ports import Coordination, Store
from tenure.settings import (
    artifact_quotas_from_environment,
    is_in_memory,
    is_new,
    is_server,
    limits_from_environment,
    retry_for_from_environment,
    shown_url,
    store_timeout_from_environment,
)
from tenure.stores.sqlite.path import sqlite_path
from tenure.stores.urls import StoreOptions, open_url
from tenure.worker.supervisor.options import WITHHELD_URL

if TYPE_CHECKING:
    from tenure.client.channel import Link
    from tenure.coordinator.retention import RetentionPolicy
    from tenure.remote.coordinator import RemoteCoordinator
    from tenure.server.lifetime import MakePages, ServeOptions
    from tenure.telemetry.counts import Counts
    from tenure.telemetry.metrics import Gauge, Metrics, MetricsAddress
    from tenure.worker.supervisor.options import WorkerOptions
    from tenure.worker.supervisor.worker import Worker

_log = logging.getLogger("tenure.wiring")


def open_store(
    url: str,
    *,
    migrate: bool = False,
    create: bool = True,
    accept_restored: bool = False,
    timeout_s: float | None = None,
) -> Store:
    """The store a URL names; see `StoreOptions`. A call waits for `timeout_s` at most, else for as
    long as the environment sets. [K16]"""
    if is_server(url):
        raise not_through_a_server()
    if url == WITHHELD_URL:
        raise StoreError(
            "the worker keeps the password of its TENURE_URL from its handlers",
            hint="read the application's URL from a variable of its own, as in"
            ' Tenure(os.environ["SHOP_DATABASE"])',
        )
    options = StoreOptions(
        migrate=migrate,
        create=create,
        accept_restored=accept_restored,
        timeout_s=store_timeout_from_environment() if timeout_s is None else timeout_s,
    )
    try:
        return open_url(url, options)
    except SchemaTooOld as old:
        shown = shown_url(url)
        is_whole = shown == url or url.lower().startswith("sqlite:")  # a file has no password
        raise SchemaTooOld(
            found=old.found, needed=old.needed, url=shown, is_whole_url=is_whole
        ) from old


def not_through_a_server() -> StoreError:
    """The error if a store is needed and the URL names a server."""
    return StoreError(
        "an http: or https: URL names a server, whose store cannot be reached through it",
        hint="give the sqlite: or postgresql: URL of the store itself",
    )


def open_remote(
    url: str,
    *,
    token: str | None = None,
    retry_for_s: float | None = None,
    environment: Mapping[str, str] = os.environ,
) -> "RemoteCoordinator":
    """The coordinator of the server that a URL names, with `token` or else `TENURE_TOKEN`. It sends
    a request without an answer again for `retry_for_s` or else `TENURE_RETRY_FOR`."""
    try:
        from tenure.remote.caller import Caller
        from tenure.remote.coordinator import RemoteCoordinator
        from tenure.remote.settings import Patience, parse_address, trust_from_environment
    except ModuleNotFoundError as missing:
        if missing.name != "urllib3":
            raise
        raise StoreError(
            "an http: or https: URL needs the extra http", hint=install_hint("http")
        ) from missing
    trust = trust_from_environment(environment, token)
    if retry_for_s is None:
        retry_for_s = retry_for_from_environment(environment)
    patience = Patience(retry_for_s=retry_for_s)
    return RemoteCoordinator(Caller(parse_address(url), trust, patience))


@contextmanager
def open_coordination(
    url: str, *, create: bool = False, token: str | None = None
) -> Iterator[Coordination]:
    """What operators ask: of a coordinator in this process over the store that a URL names, or of
    the server that it names, under `token` or else `TENURE_TOKEN`."""
    if is_server(url):
        remote = open_remote(url, token=token)
        try:
            yield remote
        finally:
            remote.close()
        return
    with open_coordinator(url, create=create) as coordinator:
        yield coordinator


@contextmanager
def open_coordinator(
    url: str,
    *,
    create: bool = True,
    counts: "Counts | None" = None,
    accept_restored: bool = False,
) -> Iterator[Coordinator]:
    """A coordinator in this process over the store that a URL names. Both are closed at the
    end. `counts` counts everything that it commits. [OB24]"""
    with _opened(url, create=create, counts=counts, accept_restored=accept_restored) as opened:
        yield opened[0]


@contextmanager
def _opened(
    url: str,
    *,
    create: bool = True,
    counts: "Counts | None" = None,
    accept_restored: bool = False,
) -> Iterator[tuple[Coordinator, Sweeper]]:
    """A coordinator, and the sweeper of this process, which sweeps what is read until it is
    started. [W5]"""
    limits = limits_from_environment()  # a wrong setting must not leave a new store behind
    quotas = artifact_quotas_from_environment()
    timeout_s = store_timeout_from_environment()
    with (
        closing(open_store(url, create=create, accept_restored=accept_restored)) as store,
        closing(
            Coordinator(store, limits=limits, observer=counts, timeout_s=timeout_s)
        ) as coordinator,
    ):
        store.artifact_quotas = quotas
        sweeper = Sweeper(coordinator)
        coordinator.sweep_overdue = sweeper.sweep_overdue
        yield coordinator, sweeper


def open_link(
    url: str,
    *,
    token: str | None = None,
    counts: "Counts | None" = None,
    retry_for_s: float | None = None,
) -> "Link":
    """A coordinator in this process over the store a URL names, or the server it names. `counts`
    counts what a coordinator in this process commits."""
    from tenure.client.channel import Link
    from tenure.own_transaction.jobs import OwnTransactions

    if is_server(url):
        remote = open_remote(url, token=token, retry_for_s=retry_for_s)
        return Link(coordination=remote, close=remote.close, retry_for_s=0.0)
    if retry_for_s is None:
        retry_for_s = retry_for_from_environment()
    opened = ExitStack()
    coordinator = opened.enter_context(open_coordinator(url, counts=counts))
    store = coordinator.store
    link = Link(
        coordination=coordinator,
        close=opened.close,
        retry_for_s=retry_for_s,
        watch=store.watch,
    )
    if is_in_memory(url):  # no connection of the caller reaches it
        return link
    return replace(link, transactions=OwnTransactions(store, coordinator.limits))


def run_worker(
    url: str,
    import_string: str,
    options: "WorkerOptions",
    *,
    retention: "RetentionPolicy | None" = None,
    expose: "MetricsAddress | None" = None,
) -> int:
    """Run a worker on the store or server that a URL names; returns its exit code.

    On a store it also sweeps expired leases and deletes old jobs; a server does that itself.
    """
    from tenure.telemetry.metrics import Metrics
    from tenure.worker.session.messages import Stats
    from tenure.worker.supervisor.worker import run_worker as work

    stats = Stats()
    options = replace(options, url=url)  # or handlers that enqueue would use another store
    if is_server(url):
        remote = open_remote(url)
        try:
            remote.store.now()  # fails now if the address or the token is wrong
            _log.info("server %s", shown_url(url))
            with _exposed(expose, Metrics(worker=partial(asdict, stats))):
                return work(remote, import_string, options, stats=stats, made=_introduce)
        finally:
            remote.close()
    created = ", created" if is_new(url) else ""
    counts = None if expose is None else _counts()
    with _opened(url, counts=counts) as (coordinator, sweeper):
        _log.info("store %s%s", shown_url(url), created)
        gauge = _gauge(coordinator.store)
        metrics = Metrics(counts, gauge=gauge, worker=partial(asdict, stats))
        options = replace(options, limits=coordinator.limits)
        with (
            _exposed(expose, metrics),
            _swept(coordinator, sweeper, retention),
            _wake_ups(coordinator.store, options) as wake_up,
        ):
            return work(coordinator, import_string, options, stats=stats, made=wake_up)


def _introduce(worker: "Worker") -> None:
    try:
        worker.introduce()
    except RequestRefused as refusal:
        said = refusal.message.removeprefix(f"{refusal.reason}: ")
        raise RequestRefused(
            f"the server refuses this worker: {said}",
            reason=refusal.reason,
            field=refusal.field,
            hint="it needs a worker's token for its namespace, queues and kinds;"
            " `tenure tokens create --role worker` makes one",
        ) from refusal
    except StoreUnavailable as failure:
        # The server answered a moment ago, so the worker starts anyway.
        _log.warning("the first sign of life got no answer: %s", failure)


@contextmanager
def _swept(
    coordinator: Coordinator, sweeper: Sweeper, retention: "RetentionPolicy | None"
) -> Iterator[None]:
    """Sweep expired leases, delete old jobs and count what happens while the block runs."""
    from tenure.coordinator.retention import Folder, Retention

    purging = Retention(coordinator.store, retention)
    folding = Folder(coordinator.store, is_wanted=lambda: sweeper.is_sweeping)
    try:
        sweeper.start()
        purging.start()
        folding.start()
        yield
    finally:
        sweeper.stop()
        purging.stop()
        folding.stop()


def _counts() -> "Counts":
    from tenure.telemetry.counts import Counts

    return Counts(sweep_interval_s=LONGEST_PAUSE / MICROSECONDS_PER_SECOND)


@contextmanager
def _wake_ups(store: Store, options: "WorkerOptions") -> Iterator[Callable[["Worker"], None]]:
    """What the block calls with its worker once there is one. From then on the worker is woken when
    there may be work, and asks seldom while the store's hints arrive."""
    from tenure.coordinator.ready_watch import ReadyWatch

    with ExitStack() as started:

        def start(worker: "Worker") -> None:
            worker.trust_hints(lambda: store.hints_arrive)
            watch = ReadyWatch(
                store,
                options.namespace,
                list(options.queues),
                wake=worker.wake,
                is_wanted=lambda: worker.is_waiting_for_work,
            )
            watch.start()
            started.callback(watch.stop)

        yield start


def _gauge(store: Store) -> "Gauge":
    from tenure.telemetry.metrics import MAX_COUNTED, MAX_QUEUES, Gauge

    return Gauge(
        lambda namespace: store.views.measure(
            queues=MAX_QUEUES, jobs=MAX_COUNTED, namespace=namespace
        )
    )


@contextmanager
def _exposed(address: "MetricsAddress | None", metrics: "Metrics") -> Iterator[None]:
    """Expose the metrics for Prometheus while the block runs, if there is an address."""
    if address is None:
        yield
        return
    from tenure.telemetry.metrics import exposed

    with exposed(metrics, address) as port:
        _log.info("metrics at http://%s:%d/metrics", address.host, port)
        yield


def run_server(
    url: str,
    options: "ServeOptions",
    announce: Callable[[str], None],
    *,
    retention: "RetentionPolicy | None" = None,
    pages: "MakePages | None" = None,
    name: str,
) -> None:
    """Run a server on the store that a URL names. It also sweeps expired leases and deletes old
    jobs. `pages` makes a dashboard. `name` is what a second server of a SQLite file calls this
    one. [H27]"""
    from tenure.server.lifetime import serve, sole_server
    from tenure.telemetry.metrics import Metrics, require_prometheus
    from tenure.telemetry.security import security_log

    require_prometheus()
    is_file = url.partition(":")[0].lower() == "sqlite"
    with sole_server(sqlite_path(url), name=name) if is_file else nullcontext():
        created = ", created" if is_new(url) else ""
        counts = _counts()
        with (
            _opened(url, counts=counts) as (coordinator, sweeper),
            _swept(coordinator, sweeper, retention),
        ):
            security = security_log(options.security_log)
            gauge = _gauge(coordinator.store)
            metrics = Metrics(counts, gauge=gauge, security=security.counts)

            def begun(
                address: str,
            ) -> None:  # not before it listens: a server that cannot logs only that
                _log.info("store %s%s", shown_url(url), created)
                announce(address)

            serve(
                coordinator,
                options,
                announce=begun,
                metrics=metrics.text,
                security=security,
                pages=pages,
            )
