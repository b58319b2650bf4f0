"""Which jobs a claim may receive, in claim order and by index. A mixin of `SqlStore`.

A claim reads *arms*: the ready jobs of one kind, or the delayed jobs of one kind and priority that
are due. In its index each arm is in claim order, so that a claim reads of each as much as it needs,
whatever other kinds wait in the queue and however many jobs are not due yet (docs/adr/0047).
"""

from collections.abc import Iterable, Mapping, Sequence

from tenure.core.claims import ClaimScope
from tenure.core.ids import QueueName
from tenure.core.instants import Instant
from tenure.stores.sql.rows import Row
from tenure.stores.sql.statements import Query
from tenure.stores.sql.transactions import Transaction, Transactional

MAX_ARMS = 64
"""How many arms one statement merges. A claim with more of them locks some jobs in vain."""

MAX_LEVELS = 32
"""How many priorities of delayed jobs of one kind are read one by one; the lower ones together."""

_READY = "j.not_before = 0 AND j.kind = :kind_{n}"
_OF_LEVEL = (
    "j.not_before > 0 AND j.kind = :kind_{n} AND j.priority = CAST(:priority_{n} AS {smallint})"
    " AND j.run_at <= (SELECT {t}clock())"
)
_BELOW_LEVEL = _OF_LEVEL.replace("j.priority =", "j.priority <")
_ARM = (
    "SELECT * FROM (SELECT j.id AS job_id, j.priority AS level, j.run_at AS since"
    " FROM {t}job AS j %s WHERE j.namespace = :namespace AND j.queue = :queue AND %s"
    " ORDER BY j.priority DESC, j.run_at, j.id LIMIT :most) AS arm_%d"
)
_INDEX = {True: "{by_ready}", False: "{by_delayed}"}

Arm = tuple[str, str, int]
"""The condition, the kind, and the priority if the condition has one."""


class SqlCandidates(Transactional):
    """The part of `Store.claim` that finds ready jobs."""

    _locked_by_others = 0
    """How many jobs that other claims hold locked a merged claim passes by."""

    def _kinds_to_claim(
        self, tx: Transaction, scope: ClaimScope, queues: Sequence[QueueName]
    ) -> dict[QueueName, list[str]]:
        """The kinds to look for in each queue; few if the claim names few."""
        if scope.kinds is not None and len(scope.kinds) <= MAX_ARMS:
            return {name: list(dict.fromkeys(scope.kinds)) for name in queues}
        waiting = tx.fetch(
            *[
                self._query("waiting_kinds", namespace=scope.namespace, queue=name)
                for name in queues
            ]
        )
        wanted = None if scope.kinds is None else set(scope.kinds)
        return {
            name: [kind for (kind,) in rows if wanted is None or kind in wanted]
            for name, rows in zip(queues, waiting, strict=True)
        }

    def _ready_queries(
        self,
        scope: ClaimScope,
        kinds: Mapping[QueueName, Sequence[str]],
        wanted: Mapping[QueueName, int],
    ) -> list[Query]:
        """The jobs that were ready when they were queued."""
        return [
            query
            for name, most in wanted.items()
            for query in self._arm_queries(
                scope, name, most, [(_READY, kind, 0) for kind in kinds[name]], is_ready=True
            )
        ]

    def _level_queries(
        self,
        scope: ClaimScope,
        kinds: Mapping[QueueName, Sequence[str]],
        queues: Iterable[QueueName],
    ) -> list[Query]:
        """The kinds and priorities of the delayed jobs of each queue."""
        return [
            self._query(
                "delayed_levels",
                namespace=scope.namespace,
                queue=name,
                kinds=self._pack(kinds[name]),
                levels=MAX_LEVELS,
            )
            for name in queues
        ]

    def _delayed_queries(
        self,
        scope: ClaimScope,
        wanted: Mapping[QueueName, int],
        levels: Sequence[Sequence[Row]],
        now: Instant,
    ) -> list[Query]:
        """The delayed jobs that are due, if there are some."""
        return [
            query
            for (name, most), found in zip(wanted.items(), levels, strict=True)
            for query in self._arm_queries(scope, name, most, _due(found, now), is_ready=False)
            if most
        ]

    def _arm_queries(
        self,
        scope: ClaimScope,
        queue: QueueName,
        wanted: int,
        arms: Sequence[Arm],
        *,
        is_ready: bool,
    ) -> list[Query]:
        return [
            self._merged(scope, queue, wanted, arms[begin : begin + MAX_ARMS], _INDEX[is_ready])
            for begin in range(0, len(arms), MAX_ARMS)
        ]

    def _merged(
        self, scope: ClaimScope, queue: QueueName, wanted: int, arms: Sequence[Arm], index: str
    ) -> Query:
        texts = [arm.replace("{n}", str(n)) for n, (arm, _, _) in enumerate(arms)]
        given: dict[str, object] = {f"kind_{n}": kind for n, (_, kind, _) in enumerate(arms)}
        given |= {f"priority_{n}": priority for n, (_, _, priority) in enumerate(arms)}
        given |= {
            "namespace": scope.namespace,
            "queue": queue,
            "wanted": wanted,
            "most": wanted + self._locked_by_others,
        }
        if len(texts) == 1:  # no merge, and so no second look at each row
            return self._query("candidates", (("index", index), ("arm", texts[0])), **given)
        merged = " UNION ALL ".join(_ARM % (index, text, n) for n, text in enumerate(texts))
        return self._query("merged_candidates", (("arms", merged),), **given)


def _due(levels: Sequence[Row], now: Instant) -> list[Arm]:
    arms: list[Arm] = []
    for kind, priority, nth, first_at in levels:
        if first_at <= now:
            arms.append((_OF_LEVEL, kind, priority))
        if nth == MAX_LEVELS:
            arms.append((_BELOW_LEVEL, kind, priority))
    return arms
