"""The policies that workers declared, for enqueues that bring none.

Enqueues that bring their policy cost nothing here. For the others a policy is read once per second
and kind, and not once per job; so a changed declaration is used after a second at the latest. [F9]
"""

from collections.abc import Iterable, Sequence
from typing import Protocol

from tenure.clock import Monotonic
from tenure.core.ids import Kind, Namespace
from tenure.core.instants import seconds
from tenure.core.outcomes import DeclaredPolicies
from tenure.core.policy import LeaseBounds, Policy

FRESH = seconds(1)
MAX_REMEMBERED = 10_000
"""Kinds. More are forgotten all at once and read again."""


class PolicySource(Protocol):
    """Where declared policies are kept."""

    def policies(self, namespace: Namespace, kinds: Sequence[Kind]) -> dict[Kind, Policy]:
        """The policies of these kinds; a kind that no worker declared is missing."""


class PolicyCache:
    """Remembers for a second what workers declared, and that they declared nothing."""

    def __init__(
        self, source: PolicySource, monotonic: Monotonic, lease: LeaseBounds | None = None
    ) -> None:
        self._source = source
        self._monotonic = monotonic
        self._lease = lease or LeaseBounds()
        self._known: dict[tuple[Namespace, Kind], tuple[int, Policy | None]] = {}

    def of_kinds(self, wanted: Iterable[tuple[Namespace, Kind]]) -> DeclaredPolicies:
        """The policies of these kinds, within the bounds of this coordinator's leases."""
        now = self._monotonic()
        found: dict[tuple[Namespace, Kind], Policy | None] = {}
        missing: dict[Namespace, list[Kind]] = {}
        for key in wanted:
            read_at, policy = self._known.get(key, (None, None))
            if read_at is not None and now - read_at < FRESH:
                found[key] = policy
            else:
                missing.setdefault(key[0], []).append(key[1])
        for namespace, kinds in missing.items():
            declared = self._source.policies(namespace, kinds)
            found |= {(namespace, kind): declared.get(kind) for kind in kinds}
        self._remember(missing, found, now)
        return {key: self._lease.applied_to(each) for key, each in found.items() if each}

    def _remember(
        self,
        read: dict[Namespace, list[Kind]],
        found: dict[tuple[Namespace, Kind], Policy | None],
        now: int,
    ) -> None:
        if len(self._known) > MAX_REMEMBERED:
            self._known = {}
        for namespace, kinds in read.items():
            for kind in kinds:
                self._known[namespace, kind] = now, found[namespace, kind]
