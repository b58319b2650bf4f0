"""How many file descriptors a worker needs, and whether its process may open that many."""

import logging
import os
import resource

from tenure.handlers.registry import Isolation, Registry

PER_CHILD = 3
"""A socket, a pipe for its output, and a descriptor that reports its exit."""

OTHERS = 48
"""For the store, the keeper, and what a start of a child needs for a moment."""

USUALLY_OPEN = 16

_log = logging.getLogger("tenure.worker")


def needed_descriptors(registry: Registry, concurrency: int) -> int:
    """How many a worker with these handlers needs when all its slots are in use."""
    lanes = {handler.isolation for handler in registry}
    children = len(lanes - {Isolation.PROCESS}) + (Isolation.PROCESS in lanes) * concurrency
    return _open_now() + OTHERS + PER_CHILD * children


def warn_of_few_descriptors(registry: Registry, concurrency: int) -> None:
    """Warn if the process may open fewer. The worker works with fewer children then. [WP25]"""
    allowed = resource.getrlimit(resource.RLIMIT_NOFILE)[0]
    needed = needed_descriptors(registry, concurrency)
    if allowed != resource.RLIM_INFINITY and allowed < needed:
        _log.warning(
            "%d jobs at once need about %d open files, and this process may open %d: raise the"
            " limit (ulimit -n %d) or lower the concurrency; until then fewer jobs run at once",
            concurrency,
            needed,
            allowed,
            needed,
        )


def _open_now() -> int:
    try:
        return len(os.listdir("/proc/self/fd"))  # noqa: PTH208 - only counted
    except OSError:  # no such directory here
        return USUALLY_OPEN
