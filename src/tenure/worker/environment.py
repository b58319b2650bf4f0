"""Which of the worker's environment variables its handlers see.

All of them, except what opens Tenure's store: the worker's token, a `TENURE_URL` with a password
and libpq's variables for passwords and keys give the right to claim and to report, and a handler
needs none of them. ADR 0023 says why the rest is
inherited. `only` is the strict mode: a few ordinary variables and those named.
"""

from collections.abc import Mapping, Sequence
from fnmatch import fnmatchcase
from urllib.parse import urlsplit

from tenure.protocol import TOKEN_VARIABLE, URL_VARIABLE

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
    # What libpq connects with when the URL does not say it.
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
    lets a secret of Tenure's through. `given` is set as it is."""
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
