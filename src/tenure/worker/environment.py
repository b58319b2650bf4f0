"""What of the worker's environment a handler gets to see: an allow-list, and never a credential.

The worker's token and a URL with a password give the right to claim and to report; user code, and
whatever it downloads, must not hold them. Settings of the application are named by its operator.
"""

from collections.abc import Mapping, Sequence
from fnmatch import fnmatchcase
from urllib.parse import urlsplit

HARMLESS = (
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
    "TENURE_*",
)
NEVER = ("TENURE_TOKEN*",)
URL_VARIABLE = "TENURE_URL"


def child_environment(
    environment: Mapping[str, str], *, passed: Sequence[str] = ()
) -> dict[str, str]:
    """The variables a child starts with. No pattern can let a credential through."""
    return {
        name: value
        for name, value in environment.items()
        if _matches(name, (*HARMLESS, *passed))
        and not _matches(name, NEVER)
        and not (name == URL_VARIABLE and _has_password(value))
    }


def _matches(name: str, patterns: Sequence[str]) -> bool:
    return any(fnmatchcase(name, pattern) for pattern in patterns)


def _has_password(url: str) -> bool:
    try:
        parts = urlsplit(url)
        return parts.password is not None or "password" in parts.query.lower()
    except ValueError:
        return True
