"""A worker's options: one frozen struct, every limit with a name and a default."""

from collections.abc import Callable, Mapping, Sequence
from fnmatch import fnmatchcase
from urllib.parse import urlsplit

import msgspec

from tenure.core.artifacts import MAX_ATTEMPT_LOG_BYTES
from tenure.core.ids import (
    DEFAULT_NAMESPACE,
    DEFAULT_QUEUE,
    Actor,
    Namespace,
    QueueName,
    WorkerId,
)
from tenure.core.instants import Duration, seconds
from tenure.core.validation import Limits
from tenure.protocol import TOKEN_VARIABLE, URL_VARIABLE


class OutputLine(msgspec.Struct, frozen=True, kw_only=True):
    """A line that a handler wrote, and what it is about."""

    text: str
    about: Mapping[str, object] = msgspec.field(default_factory=dict)
    """The ids of its job, as a log line carries them; empty between two jobs."""


class WorkerOptions(msgspec.Struct, frozen=True, kw_only=True):
    """Who the worker is, what it takes, and how it treats its children."""

    queues: Mapping[QueueName, int] = msgspec.field(default_factory=lambda: {DEFAULT_QUEUE: 1})
    """Names to weights; weights matter only while there is a backlog."""
    concurrency: int = 4
    worker_id: WorkerId | None = None  # None: host, process and a random part
    actor: Actor | None = None  # None: the worker id as a principal
    namespace: Namespace = DEFAULT_NAMESPACE

    grace_us: Duration = seconds(30)  # from the first SIGTERM to the end of the process
    handles_signals: bool = False

    shortest_poll_us: Duration = seconds(0.05)
    longest_poll_us: Duration = seconds(0.5)

    warm_children: int = 4  # process children kept ready; more are started when needed
    jobs_per_child: int = 10_000
    """In the process lane. Each new child imports the application: after 1,000 jobs that would cost
    a job that does nothing more than everything else together."""
    child_rss_bytes: int | None = None  # recycled above it, between jobs
    child_memory_bytes: int | None = None  # an allocation above it fails, and so does its job
    child_start_us: Duration = seconds(60)
    stubborn_us: Duration = seconds(2)  # how long a lost coroutine may take to stop
    url: str | None = None  # what handlers find as TENURE_URL; None: as the worker does
    only_environment: tuple[str, ...] = ()
    """Names or patterns: handlers see these and a few ordinary variables, not all of them."""
    set_environment: Mapping[str, str] = msgspec.field(default_factory=dict)

    sign_interval_us: Duration = seconds(10)  # how often the worker gives a sign of life
    output_bytes: int = MAX_ATTEMPT_LOG_BYTES - 1024  # room for the note on what is left out
    tells_every_end: bool = False  # a line in the log for each attempt, not only for failed ones
    echo: Callable[[OutputLine], None] | None = None  # called with each line that handlers write
    overwrites_declared: bool = False
    """Let the code's settings of kinds and its schedules replace the store's."""
    limits: Limits = Limits()


# --- what handlers see of the environment --------------------------------------------------------


ORDINARY = (
    "PATH",
    "HOME",
    "USER",
    "LOGNAME",
    "SHELL",
    "LANG",
    "LANGUAGE",
    "LC_*",
    "TZ",
    "TMPDIR",
    "PYTHON*",
    "VIRTUAL_ENV",
    "LD_LIBRARY_PATH",
    "SSL_CERT_FILE",
    "SSL_CERT_DIR",
    URL_VARIABLE,
    "TENURE_CA_FILE",
    "TENURE_ARTIFACT_QUOTA_PER_*",
    "TENURE_LEASE_BOUNDS",
    "TENURE_RETRY_FOR",
    "TENURE_STORE_TIMEOUT",
)
"""What handlers see in the strict mode without being named."""

SECRETS = (
    f"{TOKEN_VARIABLE}*",
    "TENURE_*SECRET*",
    "TENURE_*PASSWORD*",
    # What libpq connects with when the URL does not state it.
    "PGPASSWORD",
    "PGPASSFILE",
    "PGSERVICE",
    "PGSERVICEFILE",
    "PGSSLKEY",
    "PGSSLPASSWORD",
)
WITHHELD_URL = "withheld://the-worker-keeps-its-password-to-itself"
"""Replaces a URL with a password. Without it a handler that enqueues would fall back to the
default and write its jobs to a file of its own, which no worker serves."""


def child_environment(
    environment: Mapping[str, str],
    *,
    only: Sequence[str] = (),
    given: Mapping[str, str] | None = None,
) -> dict[str, str]:
    """The variables a child starts with. `only` holds names or patterns of variables; none of them
    lets a secret of Tenure's through. `given` is set unchanged."""
    allowed = (*ORDINARY, *only) if only else ("*",)
    seen = {
        name: value
        for name, value in environment.items()
        if _matches(name, allowed) and not _matches(name, SECRETS)
    }
    if URL_VARIABLE in seen and _has_password(seen[URL_VARIABLE]):
        seen[URL_VARIABLE] = WITHHELD_URL
    return {**seen, **(given or {})}


def _matches(name: str, patterns: Sequence[str]) -> bool:
    return any(fnmatchcase(name, pattern) for pattern in patterns)


def _has_password(url: str) -> bool:
    try:
        parts = urlsplit(url)
        return parts.password is not None or "password" in parts.query.lower()
    except ValueError:
        return True
