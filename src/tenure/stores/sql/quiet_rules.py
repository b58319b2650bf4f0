"""Under which rules claims have nothing to grant at the moment. Only PostgreSQL needs to know.

A rule is the limit or the rate of a queue, the rate of a kind, or a group of keys. Whoever grants a
job under a rule needs its lock, so claims that take the lock go one after the other. A worker asks
for all of its queues and kinds in one claim: a rule that lets nothing through would put the claims
of all other jobs in a row as well. So a claim leaves out the locks of the rules under which the
last claims of its scope had nothing to grant. If it finds something there after all, it begins
again and takes all locks (docs/adr/0084). No I/O; any thread.
"""

from functools import reduce
from operator import and_

import msgspec

from tenure.core.claims import ClaimScope
from tenure.core.ids import Kind, QueueName

MAX_REMEMBERED_SCOPES = 1_000
"""Beyond this everything is forgotten: the next claims of each scope take all locks."""

CLAIMS_UNTIL_QUIET = 3
"""After so many claims in a row that had nothing to grant under a rule, the next one leaves out its
lock. If it has to begin again, the count begins again, too. So of claims that follow each other at
most one in so many does its work twice: also if a rule lets something through now and then, or if
there is something that no claim can have, such as the turn of a job that a caller's own transaction
keeps locked."""


class Rules(msgspec.Struct, frozen=True):
    """Queues that have a limit or a rate, kinds that have a rate, and groups of keys."""

    queues: frozenset[QueueName] = frozenset()
    kinds: frozenset[Kind] = frozenset()
    groups: frozenset[str] = frozenset()

    def __sub__(self, other: "Rules") -> "Rules":
        return Rules(
            self.queues - other.queues, self.kinds - other.kinds, self.groups - other.groups
        )

    def __and__(self, other: "Rules") -> "Rules":
        return Rules(
            self.queues & other.queues, self.kinds & other.kinds, self.groups & other.groups
        )


NO_RULES = Rules()


class QuietRules:
    """Remembers the rules under which the last claims of each scope had nothing to grant."""

    def __init__(self) -> None:
        self._unused: dict[ClaimScope, tuple[Rules, ...]] = {}

    def of(self, scope: ClaimScope) -> Rules:
        """The rules whose locks a claim of this scope may leave out."""
        unused = self._unused.get(scope, ())
        return reduce(and_, unused) if len(unused) == CLAIMS_UNTIL_QUIET else NO_RULES

    def remember(self, scope: ClaimScope, unused: Rules) -> None:
        """A claim of this scope has committed, and had nothing to grant under these rules."""
        if unused == NO_RULES:
            self.forget(scope)
            return
        before = self._unused.get(scope, ())
        if not before and len(self._unused) >= MAX_REMEMBERED_SCOPES:
            self._unused.clear()
        self._unused[scope] = (*before, unused)[-CLAIMS_UNTIL_QUIET:]

    def forget(self, scope: ClaimScope) -> None:
        """A claim of this scope had to begin again."""
        self._unused.pop(scope, None)
