"""Wiring: composes store, coordinator, client and worker from a URL; it alone knows them all.

Drivers are imported when a URL asks for them, so that a SQLite user never loads psycopg.
"""

import logging
import os
import tomllib
from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack, closing, contextmanager, nullcontext
from functools import partial
from pathlib import Path
from threading import Timer
from typing import TYPE_CHECKING, Any
from urllib.parse import unquote, urlsplit

import msgspec
from msgspec.structs import replace

from tenure.client.app import Application
from tenure.client.channel import AsyncScope, Link, Scope, no_async_scope, no_scope
from tenure.coordinator.handing import HandingOver, TakingOver
from tenure.coordinator.retention import Retention, RetentionPolicy, check_retention
from tenure.coordinator.service import Coordinator
from tenure.coordinator.sweeper import SWEEP_INTERVAL, Sweeper
from tenure.core.beside import JOB_QUOTA_VARIABLE, NAMESPACE_QUOTA_VARIABLE, ArtifactQuotas
from tenure.core.ids import DEFAULT_NAMESPACE
from tenure.core.instants import MICROSECONDS_PER_SECOND, Duration, parse_duration
from tenure.core.policy import LeaseBounds
from tenure.core.sizes import parse_size
from tenure.core.validation import Limits
from tenure.deadlines import CALL_TIMEOUT_S
from tenure.errors import (
    InvalidInput,
    RequestRefused,
    SchemaTooOld,
    StoreError,
    StoreUnavailable,
    UnknownStoreUrl,
)
from tenure.ports import Administration, Store
from tenure.protocol import URL_VARIABLE
from tenure.stores.memory.store import MemoryStore
from tenure.telemetry.counts import Counts, unseen
from tenure.telemetry.metrics import (
    MAX_COUNTED,
    MAX_QUEUES,
    Gauge,
    Metrics,
    MetricsAddress,
    counts_of,
    require_prometheus,
)
from tenure.telemetry.security import security_log
from tenure.telemetry.unclaimed import why_waiting
from tenure.within import aenqueue_within, atransaction_on, enqueue_within, transaction_on
from tenure.worker.environment import WITHHELD_URL
from tenure.worker.options import WorkerOptions
from tenure.worker.stats import Stats

if TYPE_CHECKING:
    from tenure.remote.coordinator import RemoteCoordinator
    from tenure.server.lifetime import ServeOptions
    from tenure.worker import Worker

_log = logging.getLogger("tenure.wiring")

DEFAULT_URL = "sqlite:///tenure.db"
PROJECT_FILE = "pyproject.toml"
LEASE_BOUNDS_VARIABLE = "TENURE_LEASE_BOUNDS"
STORE_TIMEOUT_VARIABLE = "TENURE_STORE_TIMEOUT"
SHORTEST_STORE_TIMEOUT_S, LONGEST_STORE_TIMEOUT_S = 0.1, 600.0


class ProjectSettings(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """`[tool.tenure]` of a pyproject.toml: what flags and the environment leave unsaid."""

    url: str | None = None
    app: str | None = None
    queues: tuple[str, ...] = ()
    keep_finished: str | None = None


def project_settings(directory: Path | None = None) -> ProjectSettings:
    """The settings of the project in a directory, by default the working directory.

    No directory above it is searched: a file that somebody else can write, such as one in /tmp,
    must not say where jobs go.
    """
    file = (directory or Path()) / PROJECT_FILE
    try:
        tables = tomllib.loads(file.read_text(encoding="utf-8"))
        return msgspec.convert(tables.get("tool", {}).get("tenure", {}), ProjectSettings)
    except (FileNotFoundError, NotADirectoryError):
        return ProjectSettings()
    except (OSError, ValueError) as wrong:  # no TOML, no UTF-8, not these settings
        known = ", ".join(ProjectSettings.__struct_fields__)
        raise InvalidInput(
            f"{PROJECT_FILE}, [tool.tenure]", str(wrong)[:200], hint=f"it may have {known}"
        ) from wrong


def url_from_environment(environment: Mapping[str, str] = os.environ) -> str:
    """`TENURE_URL`, else the project's own, else the embedded default."""
    return environment.get(URL_VARIABLE) or project_settings().url or DEFAULT_URL


def shown_url(url: str) -> str:
    """Where a URL leads, without what only its holder may know: passwords, and every option."""
    try:
        parts = urlsplit(url)
        if parts.scheme.lower() == "sqlite":
            return f"sqlite:///{Path(sqlite_path(url)).absolute()}"
        user = "" if parts.username is None else f"{parts.username}@"
        place = parts.netloc.rpartition("@")[2]
    except (ValueError, UnknownStoreUrl):
        return "a store whose URL cannot be read"
    return f"{parts.scheme}://{user}{place}{parts.path}"


def is_new(url: str) -> bool:
    """Whether to open this store is to create it, as with a SQLite file that is not there yet."""
    if url.partition(":")[0].lower() != "sqlite":
        return False
    path = Path(sqlite_path(url))
    return not (path.is_file() and path.stat().st_size)


def open_store(
    url: str,
    *,
    migrate: bool = False,
    create: bool = True,
    accept_restored: bool = False,
    timeout_s: float | None = None,
) -> Store:
    """The store a URL names; with `migrate`, its schema is brought up to date first.

    Without `create`, a SQLite file that is missing is an error: a mistyped path must not look
    like a store in which nothing ever happened. A PostgreSQL database that was restored is refused
    without `accept_restored`. [A12] A call waits for `timeout_s` at most, else for as long as the
    environment says. [K6]
    """
    if timeout_s is None:
        timeout_s = store_timeout_from_environment()
    try:
        return _open_store(
            url,
            migrate=migrate,
            create=create,
            accept_restored=accept_restored,
            timeout_s=timeout_s,
        )
    except SchemaTooOld as old:
        raise SchemaTooOld(found=old.found, needed=old.needed, url=shown_url(url)) from old


def _open_store(
    url: str, *, migrate: bool, create: bool, accept_restored: bool, timeout_s: float
) -> Store:
    scheme = url.partition(":")[0].lower()
    match scheme:
        case "memory":
            return MemoryStore()
        case "sqlite":
            from tenure.stores.sqlite.store import SqliteStore

            path = Path(sqlite_path(url))
            if not create and is_new(url):
                hint = "give --url or set TENURE_URL"
                raise StoreError(f"there is no store in {path}", hint=hint)
            return SqliteStore(path, migrate=migrate, timeout_s=timeout_s)
        case "postgresql" | "postgres":
            from tenure.stores.postgres.store import PostgresStore

            return PostgresStore(
                url, migrate=migrate, accept_restored=accept_restored, timeout_s=timeout_s
            )
        case "http" | "https":
            raise not_through_a_server()
        case _ if url == WITHHELD_URL:
            raise StoreError(
                "the worker keeps the password of its TENURE_URL from its handlers",
                hint="read the application's URL from a variable of its own, as in"
                ' Tenure(os.environ["SHOP_DATABASE"])',
            )
        case _:
            # Never the whole URL: it may hold a password.
            raise UnknownStoreUrl(f"no store understands a URL that begins with {scheme[:20]!a}")


def not_through_a_server() -> StoreError:
    """What is said where a store is needed and the URL names a server."""
    return StoreError(
        "an http: or https: URL names a server, whose store cannot be reached through it",
        hint="run this where the store is, with its sqlite: or postgresql: URL",
    )


def sqlite_path(url: str) -> str:
    """The file of a `sqlite:///relative` or `sqlite:////absolute` URL."""
    try:
        parts = urlsplit(url)
    except ValueError as wrong:  # such as a bracket that is never closed
        raise UnknownStoreUrl("a SQLite URL is sqlite:///file.db") from wrong
    if parts.netloc or not parts.path.startswith("/") or len(parts.path) < 2:
        raise UnknownStoreUrl("a SQLite URL is sqlite:///file.db or sqlite:////absolute/file.db")
    if parts.query or parts.fragment:
        raise UnknownStoreUrl("a SQLite URL takes no options")
    path = unquote(parts.path[1:])
    if "\x00" in path:
        raise UnknownStoreUrl("a file's name cannot contain NUL")
    return path


def limits_from_environment(environment: Mapping[str, str] = os.environ) -> Limits:
    """The coordinator's limits, where the environment says others than the usual ones."""
    return Limits(lease=_lease_bounds(environment), artifacts=_artifact_quotas(environment))


def _artifact_quotas(environment: Mapping[str, str]) -> ArtifactQuotas:
    """By `TENURE_ARTIFACT_QUOTA_PER_JOB` and `TENURE_ARTIFACT_QUOTA_PER_NAMESPACE`, sizes as in
    `512M`; 0 and `none` are no quota. [J9]"""
    by_default = ArtifactQuotas()
    return ArtifactQuotas(
        job_bytes=_quota(environment, JOB_QUOTA_VARIABLE, by_default.job_bytes),
        namespace_bytes=_quota(environment, NAMESPACE_QUOTA_VARIABLE, by_default.namespace_bytes),
    )


def _quota(environment: Mapping[str, str], variable: str, by_default: int | None) -> int | None:
    text = environment.get(variable)
    if not text:
        return by_default
    if text.strip().lower() == "none":
        return None
    try:
        return parse_size(text) or None
    except ValueError as wrong:
        raise InvalidInput(
            variable, str(wrong), hint="write a size, as in 512M or 2G, or none"
        ) from wrong


def _lease_bounds(environment: Mapping[str, str]) -> LeaseBounds:
    """`TENURE_LEASE_BOUNDS` is `SHORTEST,LONGEST`, as in `5s,120s`."""
    text = environment.get(LEASE_BOUNDS_VARIABLE)
    if not text:
        return LeaseBounds()
    shortest, separator, longest = text.partition(",")
    try:
        bounds = LeaseBounds(
            shortest_us=parse_duration(shortest), longest_us=parse_duration(longest)
        )
    except ValueError as wrong:
        raise InvalidInput(
            LEASE_BOUNDS_VARIABLE, str(wrong), hint="write SHORTEST,LONGEST, as in 30s,120s"
        ) from wrong
    if not separator or not 0 < bounds.shortest_us <= bounds.longest_us:
        raise InvalidInput(LEASE_BOUNDS_VARIABLE, f"{text[:40]!a} is not SHORTEST,LONGEST")
    return bounds


def store_timeout_from_environment(environment: Mapping[str, str] = os.environ) -> float:
    """How long a call waits for its store, in seconds: `TENURE_STORE_TIMEOUT`, as in `10s`. [K6]"""
    text = environment.get(STORE_TIMEOUT_VARIABLE)
    if not text:
        return CALL_TIMEOUT_S
    hint = "write a duration from 100ms to 10m, as in 10s"
    try:
        timeout_s = parse_duration(text) / MICROSECONDS_PER_SECOND
    except ValueError as wrong:
        raise InvalidInput(STORE_TIMEOUT_VARIABLE, str(wrong), hint=hint) from wrong
    if not SHORTEST_STORE_TIMEOUT_S <= timeout_s <= LONGEST_STORE_TIMEOUT_S:
        raise InvalidInput(STORE_TIMEOUT_VARIABLE, f"{text[:40]!a} is out of bounds", hint=hint)
    return timeout_s


def retention_of(given: str | None = None) -> RetentionPolicy:
    """For how long finished jobs are kept: as `--keep-finished` says, else as the project does."""
    text = given or project_settings().keep_finished
    if text is None:
        return RetentionPolicy()
    try:
        policy = RetentionPolicy(finished_us=parse_duration(text))
        check_retention(policy)
    except (InvalidInput, ValueError) as wrong:
        field = "--keep-finished" if given else f"{PROJECT_FILE}, [tool.tenure] keep_finished"
        problem = wrong.problem if isinstance(wrong, InvalidInput) else str(wrong)
        raise InvalidInput(field, problem, hint="give 1d to 366d") from wrong
    return policy


def is_server(url: str) -> bool:
    """Whether a URL names a server rather than a store."""
    return url.partition(":")[0].lower() in ("http", "https")


def open_remote(
    url: str, *, token: str | None = None, environment: Mapping[str, str] = os.environ
) -> "RemoteCoordinator":
    """The coordinator of the server that a URL names; `TENURE_TOKEN` says who asks."""
    try:
        from tenure.remote.caller import Caller
        from tenure.remote.coordinator import RemoteCoordinator
        from tenure.remote.settings import Patience, parse_address, trust_from_environment
    except ModuleNotFoundError as missing:
        if missing.name != "urllib3":
            raise
        raise StoreError(
            "an http: or https: URL needs urllib3", hint="run `pip install 'tenure[http]'`"
        ) from missing
    trust = trust_from_environment(environment, token)
    return RemoteCoordinator(Caller(parse_address(url), trust, Patience()))


@contextmanager
def open_administration(
    url: str, *, create: bool = False, token: str | None = None
) -> Iterator[Administration]:
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
    shown: Counts | None = None,
    accept_restored: bool = False,
) -> Iterator[Coordinator]:
    """A coordinator in this process over the store that a URL names. Both are closed in the end,
    whatever becomes of them before. What it counts is `shown` by this process, or else handed over
    to one that shows some. [OB7]"""
    limits = limits_from_environment()  # before a store is made that nobody will use
    timeout_s = store_timeout_from_environment()
    with (
        closing(open_store(url, create=create, accept_restored=accept_restored)) as store,
        _counted(store, shown) as counts,
        closing(
            Coordinator(store, limits=limits, observer=counts, timeout_s=timeout_s)
        ) as coordinator,
    ):
        yield coordinator


@contextmanager
def _counted(store: Store, shown: Counts | None) -> Iterator[Counts]:
    """Counts that are shown, or handed over to whoever shows some."""
    counts = shown or unseen()
    if isinstance(store, MemoryStore):
        yield counts  # no other process has this store
        return
    going = TakingOver(store, counts) if shown else HandingOver(store, counts)
    going.start()
    try:
        yield counts
    finally:
        going.stop()


class Tenure(Application):
    """An application: decorate functions with `job`, enqueue them, look at their jobs.

    Connects at the first call that needs it, to `url`, else to `TENURE_URL`, else to `tenure.db`
    in the working directory. `name` is who enqueued, as a job's history shows it; a server knows
    that from `token`, else from `TENURE_TOKEN`.
    """

    def __init__(
        self,
        url: str | None = None,
        *,
        namespace: str = DEFAULT_NAMESPACE,
        name: str = "app",
        token: str | None = None,
    ) -> None:
        self._url = url
        self._token = token
        super().__init__(lambda: self._open(self._chosen_url()), namespace=namespace, name=name)

    @property
    def own_url(self) -> str | None:
        """The URL that it was given outright, whatever the environment says."""
        return self._url

    @property
    def own_token(self) -> str | None:
        """The token that it was given outright: a secret, to be sent and never shown."""
        return self._token

    def _open(self, url: str) -> Link:
        is_made = url == DEFAULT_URL and is_new(url)
        link = open_link(url, token=self._token)
        if is_made:
            # A worker that is started in another directory would look elsewhere.
            _log.warning("no URL is set, so jobs go to a new file: %s", shown_url(url))
        return link

    def _chosen_url(self) -> str:
        return self._url or url_from_environment()

    def transaction_on(self, connection: Any) -> Scope:
        """A transaction on a connection to this application's database; see `ctx.transaction`."""
        if is_server(self._chosen_url()):
            return no_scope(connection)  # without asking for a token that a handler does not have
        if self._chosen_url() == WITHHELD_URL:
            return transaction_on(_unopened_store(), limits_from_environment(), connection)
        return super().transaction_on(connection)

    def atransaction_on(self, connection: Any) -> AsyncScope:
        """The same on an asynchronous connection."""
        if is_server(self._chosen_url()):
            return no_async_scope(connection)
        if self._chosen_url() == WITHHELD_URL:
            return atransaction_on(_unopened_store(), limits_from_environment(), connection)
        return super().atransaction_on(connection)


def _unopened_store() -> Store:
    """Only a PostgreSQL URL has a password that a worker would keep to itself."""
    from tenure.stores.sql.unopened import UnopenedPostgresStore

    return UnopenedPostgresStore()


def open_link(url: str, *, token: str | None = None) -> Link:
    """A coordinator in this process over the store a URL names, or the server it names."""
    if is_server(url):
        remote = open_remote(url, token=token)
        why = partial(why_waiting, remote)
        return Link(coordination=remote, close=remote.close, tries=1, why_waiting=why)
    opened = ExitStack()
    coordinator = opened.enter_context(open_coordinator(url))
    store, why = coordinator.unwatched_store, partial(why_waiting, coordinator)
    if isinstance(store, MemoryStore):
        return Link(coordination=coordinator, close=opened.close, why_waiting=why)
    return Link(
        coordination=coordinator,
        close=opened.close,
        why_waiting=why,
        enqueue_within=partial(enqueue_within, coordinator),
        aenqueue_within=partial(aenqueue_within, coordinator),
        transaction_on=partial(transaction_on, store, coordinator.limits),
        atransaction_on=partial(atransaction_on, store, coordinator.limits),
    )


def run_worker(
    url: str,
    import_string: str,
    options: WorkerOptions,
    *,
    keeping: RetentionPolicy | None = None,
    expose: MetricsAddress | None = None,
) -> int:
    """A worker over the store a URL names, which sweeps and forgets beside its work; a server
    does that by itself."""
    from tenure.worker import run_worker as work

    stats = Stats()
    options = replace(options, url=url)  # or handlers that enqueue would do it elsewhere
    if is_server(url):
        remote = open_remote(url)
        try:
            remote.now()  # a wrong address or token is said now, not with every claim
            _log.info("server %s", shown_url(url))
            with _exposed(expose, Metrics(worker=lambda: counts_of(stats))):
                return work(remote, import_string, options, stats=stats, made=_introduce)
        finally:
            remote.close()
    created = ", created" if is_new(url) else ""
    counts = None if expose is None else _counts()
    hint = _Hint()
    with open_coordinator(url, shown=counts) as coordinator:
        _log.info("store %s%s", shown_url(url), created)
        gauge = _gauge(coordinator.store)
        metrics = Metrics(counts, gauge=gauge, worker=lambda: counts_of(stats))
        options = replace(options, limits=coordinator.limits)
        with _exposed(expose, metrics), _kept(coordinator, keeping, on_requeued=hint.ready_in):
            return work(coordinator, import_string, options, stats=stats, made=hint.take)


def _introduce(worker: "Worker") -> None:
    try:
        worker.introduce()
    except RequestRefused as refusal:
        said = refusal.message.removeprefix(f"{refusal.reason}: ")
        raise RequestRefused(
            f"the server will not have this worker: {said}",
            reason=refusal.reason,
            field=refusal.field,
            hint="it needs a worker's token for its namespace, queues and kinds;"
            " `tenure tokens create --role worker` makes one",
        ) from refusal
    except StoreUnavailable as failure:
        # It was heard a moment ago: no reason not to begin.
        _log.warning("the first sign of life got no answer: %s", failure)


@contextmanager
def _kept(
    coordinator: Coordinator,
    keeping: RetentionPolicy | None,
    *,
    on_requeued: Callable[[Duration], None] | None = None,
) -> Iterator[None]:
    """Sweep and forget while the block runs."""
    retention = Retention(coordinator.unwatched_store, keeping)
    sweeper = Sweeper(coordinator, on_requeued=on_requeued)
    try:
        sweeper.start()
        retention.start()
        yield
    finally:
        sweeper.stop()
        retention.stop()


def _counts() -> Counts:
    return Counts(sweep_interval_s=SWEEP_INTERVAL / MICROSECONDS_PER_SECOND)


class _Hint:
    """Wakes a worker when a job that its own sweeper sent back is ready: an idle worker asks only
    once a second."""

    def __init__(self) -> None:
        self._worker: Worker | None = None

    def take(self, worker: "Worker") -> None:
        """The worker to wake."""
        self._worker = worker

    def ready_in(self, delay_us: Duration) -> None:
        """There will be work."""
        if self._worker is not None:
            timer = Timer(delay_us / MICROSECONDS_PER_SECOND, self._worker.wake)
            timer.daemon = True
            timer.start()


def _gauge(store: Store) -> Gauge:
    return Gauge(
        lambda namespace: store.measure(queues=MAX_QUEUES, jobs=MAX_COUNTED, namespace=namespace)
    )


@contextmanager
def _exposed(address: MetricsAddress | None, metrics: Metrics) -> Iterator[None]:
    """A page for Prometheus while the block runs, if one is wanted."""
    if address is None:
        yield
        return
    from tenure.telemetry.exposition import exposed

    require_prometheus()
    with exposed(address, metrics.text) as port:
        _log.info("metrics at http://%s:%d/metrics", address.host, port)
        yield


def run_server(
    url: str,
    options: "ServeOptions",
    announce: Callable[[str], None],
    *,
    keeping: RetentionPolicy | None = None,
) -> None:
    """A server over the store a URL names, which sweeps and forgets beside its work."""
    from tenure.server.lifetime import serve
    from tenure.server.single_instance import sole_server

    require_prometheus()
    is_file = url.partition(":")[0].lower() == "sqlite"
    with sole_server(Path(sqlite_path(url))) if is_file else nullcontext():
        created = ", created" if is_new(url) else ""
        counts = _counts()
        with open_coordinator(url, shown=counts) as coordinator, _kept(coordinator, keeping):
            security = security_log(options.security_log)
            gauge = _gauge(coordinator.store)
            metrics = Metrics(counts, gauge=gauge, security=security.counts)

            def begun(address: str) -> None:  # one that cannot listen says that and nothing else
                _log.info("store %s%s", shown_url(url), created)
                announce(address)

            serve(coordinator, options, announce=begun, metrics=metrics.text, security=security)
