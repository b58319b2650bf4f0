"""Settings: `[tool.tenure]` of a pyproject.toml, environment variables, and what a URL names.

Reads and checks them; opens nothing.
"""

import os
import re
from collections.abc import Mapping
from pathlib import Path
from urllib.parse import urlsplit

import msgspec

from tenure.coordinator.retention import RetentionPolicy, check_retention
from tenure.core.artifacts import JOB_QUOTA_VARIABLE, NAMESPACE_QUOTA_VARIABLE, ArtifactQuotas
from tenure.core.instants import MICROSECONDS_PER_SECOND, parse_duration
from tenure.core.policy import LeaseBounds
from tenure.core.validation import Limits
from tenure.deadlines import CALL_TIMEOUT_S, RETRY_FOR_S
from tenure.errors import InvalidInput, UnknownStoreUrl
from tenure.protocol import URL_VARIABLE
from tenure.stores.sqlite.path import is_missing_or_empty, sqlite_path

DEFAULT_URL = "sqlite:///tenure.db"
PROJECT_FILE = "pyproject.toml"
LEASE_BOUNDS_VARIABLE = "TENURE_LEASE_BOUNDS"
STORE_TIMEOUT_VARIABLE = "TENURE_STORE_TIMEOUT"
RETRY_FOR_VARIABLE = "TENURE_RETRY_FOR"
_SIZE_PATTERN = re.compile(r"([0-9]{1,12})\s*([KMGT]?)(i?B)?", re.IGNORECASE)
SHORTEST_STORE_TIMEOUT_S, LONGEST_STORE_TIMEOUT_S = 0.1, 600.0
LONGEST_RETRY_FOR_S = 600.0


class ProjectSettings(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """`[tool.tenure]` of a pyproject.toml. Flags and environment variables take precedence."""

    url: str | None = None
    app: str | None = None
    queues: tuple[str, ...] = ()
    keep_finished: str | None = None
    keep_refused: str | None = None
    keep_renewals: str | None = None


def project_settings(directory: Path | None = None) -> ProjectSettings:
    """The settings of the project in a directory, by default the working directory.

    No directory above it is searched: a file that another user can write, such as one in /tmp,
    must not say where jobs go.
    """
    file = (directory or Path()) / PROJECT_FILE
    try:
        text = file.read_text(encoding="utf-8")
        import tomllib  # here: most commands find no such file

        tables = tomllib.loads(text)
        return msgspec.convert(tables.get("tool", {}).get("tenure", {}), ProjectSettings)
    except (FileNotFoundError, NotADirectoryError):
        return ProjectSettings()
    except (OSError, ValueError) as wrong:  # not TOML, not UTF-8, or unknown settings
        known = ", ".join(ProjectSettings.__struct_fields__)
        raise InvalidInput(
            f"{PROJECT_FILE}, [tool.tenure]", str(wrong)[:200], hint=f"allowed are {known}"
        ) from wrong


def url_from_environment(environment: Mapping[str, str] = os.environ) -> str:
    """`TENURE_URL`, else the project's own, else the embedded default."""
    return environment.get(URL_VARIABLE) or project_settings().url or DEFAULT_URL


def is_server(url: str) -> bool:
    """Whether a URL names a server rather than a store."""
    return url.partition(":")[0].lower() in ("http", "https")


def is_in_memory(url: str) -> bool:
    """Whether a URL names a store that no other process and no connection of the user can reach."""
    return url.partition(":")[0].lower() == "memory"


def is_new(url: str) -> bool:
    """Whether opening this store creates it: a SQLite file that does not exist yet."""
    is_file = url.partition(":")[0].lower() == "sqlite"
    return is_file and is_missing_or_empty(sqlite_path(url))


def shown_url(url: str) -> str:
    """The URL for logs and messages: without its password and its options."""
    try:
        parts = urlsplit(url)
        if parts.scheme.lower() == "sqlite":
            return f"sqlite:///{sqlite_path(url).absolute()}"
        user = "" if parts.username is None else f"{parts.username}@"
        place = parts.netloc.rpartition("@")[2]
    except (ValueError, UnknownStoreUrl):
        return "a store whose URL cannot be read"
    return f"{parts.scheme}://{user}{place}{parts.path}"


def limits_from_environment(environment: Mapping[str, str] = os.environ) -> Limits:
    """The coordinator's limits: the defaults, with the environment's lease bounds if it has any."""
    return Limits(lease=_lease_bounds(environment))


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


def artifact_quotas_from_environment(
    environment: Mapping[str, str] = os.environ,
) -> ArtifactQuotas:
    """`TENURE_ARTIFACT_QUOTA_PER_JOB` and `TENURE_ARTIFACT_QUOTA_PER_NAMESPACE`: sizes as in
    `512M`; 0 and `none` mean no quota. [J9]"""
    by_default = ArtifactQuotas()
    return ArtifactQuotas(
        job_bytes=_quota(environment, JOB_QUOTA_VARIABLE, by_default.job_bytes),
        namespace_bytes=_quota(environment, NAMESPACE_QUOTA_VARIABLE, by_default.namespace_bytes),
    )


def parse_size(text: str) -> int:
    """`"512M"`, `"2GiB"` or `"1000"` in bytes, units are powers of 1024; `ValueError` for anything
    else."""
    found = _SIZE_PATTERN.fullmatch(text.strip())
    if found is None:
        raise ValueError(f"{text[:40]!a} is not a size, as in 512M or 2G")
    return int(found[1]) << 10 * " KMGT".index(found[2].upper() or " ")


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


def store_timeout_from_environment(environment: Mapping[str, str] = os.environ) -> float:
    """Seconds that a call waits for its store: `TENURE_STORE_TIMEOUT`, as in `10s`. [K16]"""
    text = environment.get(STORE_TIMEOUT_VARIABLE)
    if not text:
        return CALL_TIMEOUT_S
    hint = "write a duration from 100ms to 10m, as in 10s"
    bounds = (SHORTEST_STORE_TIMEOUT_S, LONGEST_STORE_TIMEOUT_S)
    return _bounded_s(STORE_TIMEOUT_VARIABLE, text, bounds, hint=hint)


def retry_for_from_environment(environment: Mapping[str, str] = os.environ) -> float:
    """For how long a client sends a request again that got no answer, in seconds:
    `TENURE_RETRY_FOR`, as in `60s`; `0s`: it sends each request once. [H54]"""
    text = environment.get(RETRY_FOR_VARIABLE)
    return RETRY_FOR_S if not text else checked_retry_for_s(RETRY_FOR_VARIABLE, text)


def checked_retry_for_s(field: str, text: str) -> float:
    """The same, as an application or the environment writes it."""
    hint = "write a duration from 0s to 10m, as in 60s"
    return _bounded_s(field, text, (0.0, LONGEST_RETRY_FOR_S), hint=hint)


def _bounded_s(field: str, text: str, bounds: tuple[float, float], *, hint: str) -> float:
    """A duration in seconds. Raises `InvalidInput` for one out of these bounds."""
    try:
        span_s = parse_duration(text) / MICROSECONDS_PER_SECOND
    except ValueError as wrong:
        raise InvalidInput(field, str(wrong), hint=hint) from wrong
    if not bounds[0] <= span_s <= bounds[1]:
        raise InvalidInput(field, f"{text[:40]!a} is out of bounds", hint=hint)
    return span_s


def retention_of(given: Mapping[str, str | None] | None = None) -> RetentionPolicy:
    """How long things are kept: by options such as `keep_finished`, else by the project's
    settings. [E31]"""
    given, project, policy = given or {}, project_settings(), RetentionPolicy()
    for what in ("finished", "refused", "renewals"):
        name = f"keep_{what}"
        text = given.get(name) or getattr(project, name)
        if text is None:
            continue
        try:
            policy = msgspec.structs.replace(policy, **{f"{what}_us": parse_duration(text)})
            check_retention(policy)
        except (InvalidInput, ValueError) as wrong:
            option = f"--keep-{what}"
            field = option if given.get(name) else f"{PROJECT_FILE}, [tool.tenure] {name}"
            problem = wrong.problem if isinstance(wrong, InvalidInput) else str(wrong)
            shortest = "1d" if what == "finished" else "0s"
            raise InvalidInput(field, problem, hint=f"give {shortest} to 366d") from wrong
    return policy
