"""What of the worker's environment a handler gets to see: an allow-list, and never a credential.

The worker's token and a URL with a password give the right to claim and to report; user code, and
whatever it downloads, must not hold them. Settings of the application are named by its operator.
"""

import re
from collections.abc import Iterable, Mapping, Sequence
from fnmatch import fnmatchcase
from urllib.parse import urlsplit

from tenure.protocol import TOKEN_VARIABLE, URL_VARIABLE

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
    URL_VARIABLE,
    "TENURE_CA_FILE",
    "TENURE_LEASE_BOUNDS",
)
NEVER = (f"{TOKEN_VARIABLE}*", "TENURE_*SECRET*", "TENURE_*PASSWORD*")
WITHHELD_URL = "withheld://the-worker-keeps-its-password-to-itself"
"""Stands in for a URL with a password. Without it a handler that enqueues would fall back to the
default and write its jobs to a file of its own, where nobody ever looks."""


def child_environment(
    environment: Mapping[str, str],
    *,
    passed: Sequence[str] = (),
    given: Mapping[str, str] | None = None,
) -> dict[str, str]:
    """The variables a child starts with. No pattern can let a credential through, and nothing a
    token; a URL with a password passes if it is named outright, for handlers that enqueue. `given`
    is what the operator wants handlers to have instead, and is set as it is."""
    allowed = {
        name: value
        for name, value in environment.items()
        if _matches(name, (*HARMLESS, *passed)) and not _matches(name, NEVER)
    }
    is_withheld = URL_VARIABLE in allowed and URL_VARIABLE not in passed
    if is_withheld and _has_password(allowed[URL_VARIABLE]):
        allowed[URL_VARIABLE] = WITHHELD_URL
    return {**allowed, **(given or {})}


def withheld_names(environment: Mapping[str, str], of_child: Mapping[str, str]) -> frozenset[str]:
    """What a child does not see and could be let see."""
    missing = environment.keys() - of_child.keys()
    return frozenset(name for name in missing if not _matches(name, NEVER))


def start_hint(printed: str, withheld: Iterable[str]) -> str:
    """What may help a child that printed this and ended, although its supervisor could import the
    same application: mostly it misses a variable, which its last line names."""
    if "Traceback" not in printed:
        return ""
    said = re.findall(r"\w+", printed.strip().rpartition("\n")[2])
    named = [f"--pass-env {name}" for name in sorted(set(withheld).intersection(said))]
    options = " ".join(named) or "--pass-env NAME"
    return f"handlers see only a few variables of the environment, `{options}` lets them see more"


def _matches(name: str, patterns: Sequence[str]) -> bool:
    return any(fnmatchcase(name, pattern) for pattern in patterns)


def _has_password(url: str) -> bool:
    try:
        parts = urlsplit(url)
        return parts.password is not None or "password" in parts.query.lower()
    except ValueError:
        return True
