"""How many jobs of which state are where: for gauges, lists of queues and overviews alike.

Every number comes from an index and stops at a limit: a scrape every few seconds must cost the
same on a store of a million jobs as on an empty one. Counts by kind jump from kind to kind through
the indexes of jobs that wait.
"""

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence

import msgspec

from tenure.core.ids import Kind, Namespace, QueueName
from tenure.core.instants import Instant
from tenure.core.leases import latest_suspect_expiry
from tenure.core.views.overview import KnownQueue, fair_share
from tenure.ports import MAX_DUE_READ, Measures, QueueMeasure
from tenure.stores.sql.database import Part, Transaction
from tenure.stores.sql.rows import Row, decode_policy
from tenure.stores.sql.statements import Query, Shape, fill

MAX_SEARCHED = 32
"""How many kinds of a queue, and levels of a kind and lane, are searched for the oldest job."""

READY: Shape = (("waiting", "j.not_before = 0"), ("index", "{by_ready}"), ("not_due", ""))
_DELAYED: Shape = (("waiting", "j.not_before > 0"), ("index", "{by_delayed}"))
DELAYED: Shape = (*_DELAYED, ("not_due", ""))
NOT_DUE: Shape = (*_DELAYED, ("not_due", "AND j.run_at > (SELECT {t}clock())"))

MAX_KINDS = 100
"""Kinds of a queue whose waiting jobs are counted."""

MAX_GROUPS = 100
"""In how many kinds and policies per queue suspect jobs are counted."""

READY_BY_KIND: Shape = (*READY, ("due", "0"))
DELAYED_BY_KIND: Shape = (
    *DELAYED,
    (
        "due",
        "(SELECT count(*) FROM (SELECT j.run_at FROM {t}job AS j {by_delayed}"
        " WHERE j.namespace = :namespace AND j.queue = k.queue AND j.not_before > 0"
        " AND j.kind = k.kind LIMIT :jobs) AS looked_at WHERE looked_at.run_at <= :now)",
    ),
)
"""Ready jobs are counted once; for jobs that have a time, also how many are due."""

_UNRESOLVED = "NOT EXISTS (SELECT 1 FROM {t}dead_letter_resolution AS r WHERE r.job_id = d.id)"
TROUBLES: dict[str, Shape] = {
    "waiting": (
        (
            "troubled",
            "j.flow_id IS NOT NULL AND j.run_at IS NULL AND j.lease_id IS NULL"
            " AND j.stall_cause IS NULL AND j.finished_at IS NULL",
        ),
        ("counted", "TRUE"),
    ),
    # One that has a time is claimed again by itself.
    "stalled": (("troubled", "j.stall_cause IS NOT NULL"), ("counted", "d.run_at IS NULL")),
    "dead_letters": (("troubled", "j.reason_code IS NOT NULL"), ("counted", _UNRESOLVED)),
}
"""By field of `Depth`: the condition of a small partial index, and which of its jobs count."""


class DepthQuestion(msgspec.Struct, frozen=True, kw_only=True):
    """Whose jobs are counted, and where counting stops."""

    namespace: Namespace
    queues: Sequence[QueueName]
    kinds: Sequence[Kind] = ()
    """Only jobs of these kinds; empty: of all."""
    jobs: int
    """The limit for each queue, kind and state."""
    troubled: int
    """The limit for dead letters and other jobs in trouble, newest first, and for the leases of a
    queue that are checked for suspects."""
    troubles: Sequence[str] = tuple(TROUBLES)


class DepthCounts(msgspec.Struct):
    """How many jobs of each queue and kind there are, by field of `Depth`, and since when the
    oldest ready job of a queue is ready."""

    counts: dict[tuple[str, str], Counter[str]] = msgspec.field(default_factory=dict)
    oldest: dict[QueueName, Instant] = msgspec.field(default_factory=dict)

    def of(self, queue: str, kind: str) -> Counter[str]:
        """The counts of one queue and kind."""
        return self.counts.setdefault((queue, kind), Counter())


class SqlDepths(Part):
    """Counts jobs, and measures a store by that."""

    def read(
        self, tx: Transaction, questions: Sequence[DepthQuestion], now: Instant
    ) -> list[DepthCounts]:
        """The answers to these questions, in two round trips. [L18]"""
        asked = [self._queries(each, now) for each in questions]
        answers = iter(tx.fetch(*[query for queries in asked for query in queries]))
        found = [DepthCounts() for _ in questions]
        silent: list[tuple[Counter[str], Query]] = []
        for depths, question, queries in zip(found, questions, asked, strict=True):
            leased = _add(depths, question, [next(answers) for _ in queries], now)
            silent += self._about_silent(depths, question, leased, now)
        numbers = tx.fetch(*[query for _, query in silent])
        for (counts, _), [(number,)] in zip(silent, numbers, strict=True):
            counts["suspect"] += number
        return found

    def _queries(self, question: DepthQuestion, now: Instant) -> list[Query]:
        """Ready and delayed jobs by kind, the first of each, trouble, and leases queue by queue."""
        here, kinds = {"namespace": question.namespace}, question.kinds
        waiting = {
            "names": self._pack(question.queues),
            "kinds": self._pack(kinds),
            "levels": MAX_KINDS,
            "jobs": question.jobs,
            "now": now,
        }
        by_kind = (READY_BY_KIND, DELAYED_BY_KIND)
        return [
            *[
                self._query("waiting_by_kind", self.about_waiting(sort, kinds), **here, **waiting)
                for sort in by_kind
            ],
            *[
                self.oldest(sort, question.namespace, question.queues, kinds)
                for sort in (READY, DELAYED)
            ],
            *[
                self._query("troubled_by_kind", TROUBLES[name], jobs=question.troubled, **here)
                for name in question.troubles
            ],
            *[
                self._query("leased_by_kind", queue=queue, jobs=question.jobs, **here)
                for queue in question.queues
            ],
        ]

    def _about_silent(
        self,
        depths: DepthCounts,
        question: DepthQuestion,
        leased: Mapping[QueueName, Sequence[Row]],
        now: Instant,
    ) -> Iterator[tuple[Counter[str], Query]]:
        """Asks only about kinds and policies that have a suspect job: most of the time there is
        none."""
        for queue, groups in leased.items():
            for kind, policy, _, first_end in groups[:MAX_GROUPS]:
                until = latest_suspect_expiry(decode_policy(policy), now)
                if first_end <= until:
                    where = {"namespace": question.namespace, "queue": queue, "kind": kind}
                    limits = {"policy": policy, "until": until, "jobs": question.troubled}
                    query = self._query("count_silent_of_kind", **where, **limits)
                    yield depths.of(queue, kind), query

    def oldest(
        self,
        sort: Shape,
        namespace: Namespace,
        queues: Sequence[QueueName],
        kinds: Sequence[Kind] = (),
    ) -> Query:
        """The earliest `run_at` of the ready jobs of each queue, or of its delayed ones; of these
        kinds, or of all. A queue without such jobs has no row, or no time if all are due."""
        shape = self.about_waiting(sort, kinds)
        packed = {"names": self._pack(queues), "kinds": self._pack(kinds)}
        return self._query(
            "oldest_waiting", shape, namespace=namespace, levels=MAX_SEARCHED, **packed
        )

    def about_waiting(self, sort: Shape, kinds: Sequence[Kind]) -> Shape:
        """How waiting jobs are read: by the index of their sort, kind by kind."""
        kinds_to_look_at = self._text("kinds_asked_for" if kinds else "kinds_that_wait")
        return (*sort, ("kinds_to_look_at", fill(kinds_to_look_at, dict(sort))))

    def measure(self, *, queues: int, jobs: int, namespace: Namespace | None = None) -> Measures:
        """How full the store is, within these limits."""
        return self._read(
            lambda tx: self._measured(tx, queues, jobs, namespace), listing=True, repeated=True
        )

    def _measured(
        self, tx: Transaction, queues: int, jobs: int, only: Namespace | None
    ) -> Measures:
        where = "" if only is None else "WHERE namespace = :namespace"
        [(now, _)], due, [(losses,)], spaces, [(known,)] = tx.fetch(
            self._query("moment"),
            self._query("longest_due_schedules", reads=MAX_DUE_READ),
            self._query("count_losses"),
            self._query("measured_namespaces", namespaces=queues),
            self._query("count_queues", (("where", where),), namespace=only),
        )
        of = [only] if only is not None else [Namespace(name) for (name,) in spaces]
        found = tx.fetch(
            *[self._query("measured_queues", namespace=each, queues=queues) for each in of]
        )
        chosen = fair_share(
            (
                KnownQueue(bool(is_empty), namespace, QueueName(name))
                for namespace, rows in zip(of, found, strict=True)
                for is_empty, name in rows
            ),
            queues,
        )
        by_namespace: dict[Namespace, list[QueueName]] = {}
        for each in chosen:
            by_namespace.setdefault(each.namespace, []).append(each.queue)
        questions = [
            DepthQuestion(
                namespace=space, queues=names, jobs=jobs, troubled=jobs, troubles=["dead_letters"]
            )
            for space, names in by_namespace.items()
        ]
        depths = dict(zip(by_namespace, self.read(tx, questions, Instant(now)), strict=True))
        return Measures(
            now=Instant(now),
            queues=tuple(
                _measure(each.namespace, each.queue, depths[each.namespace], jobs)
                for each in chosen
            ),
            left_out=known - len(chosen),
            losses=losses,
            dead_letters={
                space: sum(counts["dead_letters"] for counts in found.counts.values())
                for space, found in depths.items()
            },
            schedules_due_since={
                Namespace(name): Instant(at) for name, at in due if only in (None, name)
            },
        )


def _add(
    depths: DepthCounts, question: DepthQuestion, answers: Sequence[Sequence[Row]], now: Instant
) -> dict[QueueName, Sequence[Row]]:
    """Add what was counted. Returns the leases of each queue, by kind and policy."""
    ready, delayed, oldest_ready, oldest_delayed, *others = answers
    troubled, leased = others[: len(question.troubles)], others[len(question.troubles) :]
    for queue, kind, number, _ in ready:
        depths.of(queue, kind)["ready"] += number
    for queue, kind, number, due in delayed:
        depths.of(queue, kind).update(ready=due, delayed=number - due)
    for name, groups in zip(question.queues, leased, strict=True):
        for kind, _, number, _ in groups:
            depths.of(name, kind)["leased"] += number
    for field, rows in zip(question.troubles, troubled, strict=True):
        for queue, kind, number in rows:
            depths.of(queue, kind)[field] += number
    for name in question.queues:
        since = ready_at(first_of(oldest_ready, name), first_of(oldest_delayed, name), now)
        if since is not None:
            depths.oldest[name] = since
    return dict(zip(question.queues, leased, strict=True))


def ready_at(ready: int | None, delayed: int | None, now: int) -> Instant | None:
    """Since when the oldest job is ready, of the earliest one that was not delayed and the earliest
    one that was. A job that was not delayed is ready also before its time, if the clock was set
    back. [Z6]"""
    times = [] if ready is None else [ready]
    if delayed is not None and delayed <= now:
        times.append(delayed)
    return min(map(Instant, times), default=None)


def first_of(oldest: Sequence[Row], queue: QueueName) -> int | None:
    """The earliest `run_at` that was found in a queue."""
    return next((at for name, at in oldest if name == queue), None)


def _measure(
    namespace: Namespace, queue: QueueName, depths: DepthCounts, most: int
) -> QueueMeasure:
    found: Counter[str] = Counter()
    for (name, _), counts in depths.counts.items():
        if name == queue:
            found.update(counts)
    return QueueMeasure(
        namespace=namespace,
        queue=queue,
        oldest_ready_at=depths.oldest.get(queue),
        **{field: min(most, found[field]) for field in ("ready", "delayed", "leased", "suspect")},
    )
