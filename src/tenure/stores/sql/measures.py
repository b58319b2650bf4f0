"""How full a SQL store is.

Every number comes from an index and stops at a limit: a scrape every few seconds must cost the
same on a store of a million jobs as on an empty one.
"""

from collections.abc import Sequence

from tenure.core.ids import Kind, Namespace, QueueName
from tenure.core.instants import Instant
from tenure.core.leases import latest_suspect_expiry
from tenure.core.views.overview import KnownQueue, fair_share
from tenure.ports import MAX_DUE_READ, Measures, QueueMeasure
from tenure.stores.sql.rows import Row, decode_policy
from tenure.stores.sql.statements import Query, Shape, fill
from tenure.stores.sql.transactions import Part, Transaction

MAX_LEVELS = 32
"""How many kinds of a queue, and priorities of a kind, are searched for the oldest job."""
MAX_POLICIES = 10
"""In how many policies per queue suspect jobs are counted."""

READY: Shape = (("waiting", "j.not_before = 0"), ("index", "{by_ready}"), ("not_due", ""))
_DELAYED: Shape = (("waiting", "j.not_before > 0"), ("index", "{by_delayed}"))
DELAYED: Shape = (*_DELAYED, ("not_due", ""))
NOT_DUE: Shape = (*_DELAYED, ("not_due", "AND j.run_at > (SELECT {t}clock())"))


class SqlMeasures(Part):
    """`Views.measure` over SQL."""

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
        names = [(each.namespace, each.queue) for each in chosen]
        namespaces = list(dict.fromkeys(namespace for namespace, _ in names))
        queries = [each for namespace, name in names for each in self._about(namespace, name, jobs)]
        answers = tx.fetch(
            *queries,
            *[
                self._query("count_dead_letters", namespace=namespace, jobs=jobs)
                for namespace in namespaces
            ],
        )
        dead = answers[len(queries) :]
        suspect = self._suspect(tx, names, answers[4 : len(queries) : 5], jobs, Instant(now))
        return Measures(
            now=Instant(now),
            queues=tuple(
                _measure(namespace, name, answers[5 * at : 5 * at + 5], suspect[at], jobs, now)
                for at, (namespace, name) in enumerate(names)
            ),
            left_out=known - len(names),
            losses=losses,
            dead_letters={
                namespace: count for namespace, [(count,)] in zip(namespaces, dead, strict=True)
            },
            schedules_due_since={
                Namespace(name): Instant(at) for name, at in due if only in (None, name)
            },
        )

    def _suspect(
        self,
        tx: Transaction,
        names: Sequence[tuple[Namespace, QueueName]],
        leased: Sequence[Sequence[Row]],
        jobs: int,
        now: Instant,
    ) -> list[int]:
        """How many jobs of each queue are suspect. Asks only about policies that have one: most of
        the time there is none. [L18]"""
        queries: list[Query] = []
        asked_about: list[int] = []
        for at, ((namespace, queue), policies) in enumerate(zip(names, leased, strict=True)):
            for policy, _, first_end in policies[:MAX_POLICIES]:
                until = latest_suspect_expiry(decode_policy(policy), now)
                if first_end <= until:
                    where = {"namespace": namespace, "queue": queue, "policy": policy}
                    queries.append(self._query("count_silent", jobs=jobs, until=until, **where))
                    asked_about.append(at)
        suspect = [0] * len(names)
        answers = tx.fetch(*queries, last=True)
        for at, [(count,)] in zip(asked_about, answers, strict=True):
            suspect[at] += count
        return suspect

    def _about(self, namespace: Namespace, queue: QueueName, jobs: int) -> list[Query]:
        where = {"namespace": namespace, "queue": queue}
        return [
            self._query("count_ready", jobs=jobs, **where),
            self._query("count_delayed", jobs=jobs, **where),
            self.oldest(READY, namespace, [queue]),
            self.oldest(DELAYED, namespace, [queue]),
            self._query("count_leased", jobs=jobs, **where),
        ]

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
            "oldest_waiting", shape, namespace=namespace, levels=MAX_LEVELS, **packed
        )

    def about_waiting(self, sort: Shape, kinds: Sequence[Kind]) -> Shape:
        """How waiting jobs are read: by the index of their sort, kind by kind."""
        kinds_to_look_at = self._text("kinds_asked_for" if kinds else "kinds_that_wait")
        return (*sort, ("kinds_to_look_at", fill(kinds_to_look_at, dict(sort))))


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
    namespace: Namespace,
    queue: QueueName,
    answers: Sequence[Sequence[Row]],
    suspect: int,
    most: int,
    now: int,
) -> QueueMeasure:
    [(ready,)], [(delayed, due)], oldest, oldest_delayed, leased = answers
    return QueueMeasure(
        namespace=namespace,
        queue=queue,
        ready=min(most, ready + due),
        delayed=delayed - due,
        leased=sum(count for _, count, _ in leased),
        suspect=suspect,
        oldest_ready_at=ready_at(first_of(oldest, queue), first_of(oldest_delayed, queue), now),
    )
