"""The lifecycle tests of the conformance kit, with HTTP between the caller and the coordinator.

The same tests run in process in tests/conformance; here the answers have been through a socket.
"""

import importlib

import pytest

pytestmark = pytest.mark.slow

SUBJECTS = (
    "artifacts",
    "attempt_logs",
    "claiming",
    "clock_and_epoch",
    "dead_letters",
    "dedupe",
    "histories",
    "leases",
    "observations",
    "queues",
    "workers",
)
"""What a coordinator is asked for; the kit's other subjects are about a store alone."""


def _tests() -> dict[str, object]:
    found: dict[str, object] = {}
    for subject in SUBJECTS:
        module = importlib.import_module(f"tenure_conformance.store.test_{subject}")
        found |= {name: test for name, test in vars(module).items() if name.startswith("test_")}
    return found


globals().update(_tests())
