"""Under which rules claims have nothing to grant at the moment. Only PostgreSQL needs to know.

A rule is the limit or the rate of a queue, the rate of a kind, or a group of keys. Whoever grants a
job under a rule needs its lock, so claims that take the lock go one after the other. A worker asks
for all of its queues and kinds in one claim: a rule that lets nothing through would put the claims
of all other jobs in a row as well. So a claim leaves out the locks of the rules under which the
last claim of its scope had nothing to grant. If it finds something there after all, it begins again
and takes all locks (docs/adr/0084). No I/O; any thread.
"""

import msgspec

from tenure.core.claims import ClaimScope
from tenure.core.ids import Kind, QueueName

MAX_REMEMBERED_SCOPES = 1_000
"""Beyond this everything is forgotten: the next claim of each scope takes all locks."""


class Rules(msgspec.Struct, frozen=True):
    """Queues that have a limit or a rate, kinds that have a rate, and groups of keys."""

    queues: frozenset[QueueName] = frozenset()
    kinds: frozenset[Kind] = frozenset()
    groups: frozenset[str] = frozenset()

    def __sub__(self, other: "Rules") -> "Rules":
        return Rules(
            self.queues - other.queues, self.kinds - other.kinds, self.groups - other.groups
        )


NO_RULES = Rules()


class QuietRules:
    """Remembers the rules under which the last claim of each scope had nothing to grant."""

    def __init__(self) -> None:
        self._quiet: dict[ClaimScope, Rules] = {}

    def of(self, scope: ClaimScope) -> Rules:
        """The rules whose locks a claim of this scope may leave out."""
        return self._quiet.get(scope, NO_RULES)

    def remember(self, scope: ClaimScope, rules: Rules) -> None:
        """A claim of this scope has committed, and had nothing to grant under these rules."""
        if rules == NO_RULES:
            self._quiet.pop(scope, None)
            return
        if len(self._quiet) >= MAX_REMEMBERED_SCOPES:
            self._quiet.clear()
        self._quiet[scope] = rules
