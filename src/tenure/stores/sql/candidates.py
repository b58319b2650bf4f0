"""Finds the jobs that a claim may receive, in claim order, through indexes.

A claim reads *arms*: the ready jobs of one kind and lane, or the delayed jobs of one kind, lane
and priority that are due. In its index each arm is in claim order, so that a claim reads of each as
much as it needs, whatever other kinds wait in the queue, however many jobs are not due yet and
however many are parked (docs/adr/0047).
"""

from collections.abc import Iterator, Mapping, Sequence, Set
from operator import itemgetter
from typing import NamedTuple

import msgspec
from msgspec.structs import replace

from tenure.core.claims import ClaimScope, GrantRoom
from tenure.core.concurrency import Lane
from tenure.core.events import has_unknown_value
from tenure.core.ids import Kind, QueueName
from tenure.core.instants import Instant
from tenure.core.job import Job
from tenure.core.rates import Meter, kind_meter
from tenure.errors import UnreadableRow
from tenure.stores.sql.claim_dialect import ClaimDialect
from tenure.stores.sql.database import Database, Part, Transaction
from tenure.stores.sql.rows import JOB_COLUMNS, Row, job_from
from tenure.stores.sql.statements import Query

MAX_ARMS = 64
"""How many arms one statement merges. A claim with more of them locks some jobs without need."""

MAX_LEVELS = 32
"""How many levels (priorities) of delayed jobs of one kind are read one by one; the lower ones
together."""

MAX_SKIPPED = 1000
"""How many jobs of a newer version may precede the jobs that a claim can have. [Y5]"""

_ID = JOB_COLUMNS.index("id")
_PLACE, _TAT = len(JOB_COLUMNS), len(JOB_COLUMNS) + 1
"""The columns after those of the job: its place in claim order, and the state of its rate."""

_IN_TIME = " AND (j.start_by IS NULL OR j.start_by > (SELECT {t}clock()))"
"""Jobs that have expired must not lie in the way of a claim until the next sweep. [EX2]"""
_READY = "j.not_before = 0 AND j.kind = :kind_{n} AND j.lane = {lane}" + _IN_TIME
_OF_LEVEL = (
    "j.not_before > 0 AND j.kind = :kind_{n} AND j.lane = {lane}"
    " AND j.priority = CAST(:priority_{n} AS {smallint}) AND {claim_place} <= (SELECT {t}clock())"
    + _IN_TIME
)
_BELOW_LEVEL = _OF_LEVEL.replace("j.priority =", "j.priority <")
_ARM = (
    "SELECT * FROM (SELECT j.id AS job_id, j.priority AS level, {claim_place} AS since,"
    " j.run_at AS began"
    " FROM {t}job AS j %s WHERE j.namespace = :namespace AND j.queue = :queue AND %s"
    " ORDER BY j.priority DESC, {claim_place}, j.run_at, j.id LIMIT :most) AS arm_%d"
)
_STATE_OF_RATE_KEY = (
    "(SELECT s.tat FROM {t}slot AS s WHERE s.namespace = j.namespace AND s.scope = 'kind'"
    " AND s.name = j.kind AND s.key = j.rate_key)"
)
"""The claim has locked the rule of its kind, so that no other claim changes it."""
_INDEX = {True: "{by_ready}", False: "{by_delayed}"}


class Arm(NamedTuple):
    """One arm of a claim: the condition of its jobs, and what the condition names."""

    condition: str
    kind: Kind
    lane: int
    priority: int = 0  # not in every condition


class Reading(msgspec.Struct, frozen=True):
    """How much a claim reads: which kinds and lanes of each queue, how many jobs of each queue, and
    how many of each kind whose rate bounds that."""

    scope: ClaimScope
    places: Mapping[QueueName, Sequence[tuple[Kind, int]]]
    most: Mapping[QueueName, int]
    most_of_kinds: Mapping[Kind, int]
    rated: Set[Kind]

    @classmethod
    def of_all(
        cls, scope: ClaimScope, kinds: Mapping[QueueName, Sequence[Kind]], wanted: int
    ) -> "Reading":
        """Without limits and rates."""
        open_lane = Lane.OPEN.value
        places = {name: [(kind, open_lane) for kind in names] for name, names in kinds.items()}
        return cls(scope, places, dict.fromkeys(kinds, wanted), {}, frozenset())

    @classmethod
    def within(
        cls,
        scope: ClaimScope,
        kinds: Mapping[QueueName, Sequence[Kind]],
        rated: Set[Kind],
        room: GrantRoom,
        wanted: int,
    ) -> "Reading":
        """Leaves out the queues and kinds that have no room: a claim reads none of the jobs that a
        limit or a rate blocks. [RL8] For a kind with a rate, jobs with rate keys are read apart:
        each of these keys has room of its own. [RL11]"""
        of_queues = {name: room.of_queue(name) for name in kinds}
        most = {
            name: wanted if left is None else min(wanted, left) for name, left in of_queues.items()
        }
        of_kinds = {kind: room.of_kind(kind) for kind in rated}
        return cls(
            scope=scope,
            places={
                name: [
                    (kind, lane.value)
                    for kind in kinds[name]
                    for lane in (Lane.OPEN, Lane.RATED)
                    if (
                        of_kinds.get(kind) != 0
                        if lane is Lane.OPEN
                        else kind in rated and not room.is_busy(kind_meter(kind))
                    )
                ]
                for name, left in most.items()
                if left
            },
            most={name: left for name, left in most.items() if left},
            most_of_kinds={kind: left for kind, left in of_kinds.items() if left is not None},
            rated=rated,
        )

    def and_more(self, jobs: int) -> "Reading":
        """The same, and this many more jobs of each queue and kind."""
        return replace(
            self,
            most={name: most + jobs for name, most in self.most.items()},
            most_of_kinds={kind: most + jobs for kind, most in self.most_of_kinds.items()},
        )


class Candidates(msgspec.Struct, frozen=True):
    """Jobs that a claim may receive, in claim order, and the states of the rates of their rate
    keys."""

    jobs: list[Job]
    rate_states: dict[Meter, Instant]
    skipped_locked: bool
    """Whether there were too few, and more that other transactions had locked."""


def names_few_kinds(scope: ClaimScope) -> bool:
    """Whether it names so few kinds that all are read, without first checking which have jobs."""
    return scope.kinds is not None and len(scope.kinds) <= MAX_ARMS


class SqlCandidates(Part):
    """Finds the ready jobs that a claim may receive, and locks them."""

    def __init__(self, database: Database, dialect: ClaimDialect) -> None:
        super().__init__(database)
        self._dialect = dialect

    def kinds_of(
        self, tx: Transaction, scope: ClaimScope, queues: Sequence[QueueName]
    ) -> dict[QueueName, list[Kind]]:
        """The kinds to look for in each queue; few if the claim names few."""
        if scope.kinds is not None and names_few_kinds(scope):
            return {name: list(dict.fromkeys(scope.kinds)) for name in queues}
        waiting = tx.fetch(
            *[
                self._query("waiting_kinds", namespace=scope.namespace, queue=name)
                for name in queues
            ]
        )
        wanted = None if scope.kinds is None else set(scope.kinds)
        return {
            name: [Kind(kind) for (kind,) in rows if wanted is None or kind in wanted]
            for name, rows in zip(queues, waiting, strict=True)
        }

    def readable(
        self,
        tx: Transaction,
        reading: Reading,
        answers: Sequence[Sequence[Row]],
        now: Instant,
    ) -> Candidates:
        """The candidates, from the answers to `queries`. Jobs that this version cannot
        read, or not in full, are left to the version that wrote them; others are read in their
        place. [Y5]"""
        asked_more, asked = 0, reading
        while True:
            rows, skipped_locked = self._with_delayed(tx, asked, answers, now)
            found = sorted(_readable(rows), key=itemgetter(0))
            skipped = len(rows) - len(found)
            if skipped <= asked_more or asked_more >= MAX_SKIPPED:
                return Candidates(
                    [job for _, job, _ in found],
                    {
                        kind_meter(job.kind, job.rate_key): Instant(tat)
                        for _, job, tat in found
                        if tat is not None
                    },
                    skipped_locked,
                )
            asked_more = min(skipped, MAX_SKIPPED)
            asked = reading.and_more(asked_more)
            answers = tx.fetch(*self.queries(asked))

    def queries(self, reading: Reading) -> list[Query]:
        """The ready jobs of each queue, and then where its delayed jobs are."""
        ready = [
            query
            for name, places in reading.places.items()
            for query in self._arm_queries(
                reading, name, [Arm(_READY, *place) for place in places], is_ready=True
            )
        ]
        namespace = reading.scope.namespace
        levels = [
            self._query(
                "delayed_levels",
                namespace=namespace,
                queue=name,
                levels=MAX_LEVELS,
                **self._dialect.pack_places(places),
            )
            for name, places in reading.places.items()
        ]
        return [*ready, *levels]

    def _with_delayed(
        self, tx: Transaction, reading: Reading, answers: Sequence[Sequence[Row]], now: Instant
    ) -> tuple[list[Row], bool]:
        """The rows of ready jobs, and of due delayed jobs, if there are some; and whether other
        transactions had locked more of them."""
        first_level = len(answers) - len(reading.places)
        found = list(answers[:first_level])
        delayed: list[Query] = []
        for name, levels in zip(reading.places, answers[first_level:], strict=True):
            if levels:
                due = _due(levels, now)
                delayed += self._arm_queries(reading, name, due, is_ready=False)
        if delayed:
            found += tx.fetch(*delayed)
        return _without_counts(found)

    def _arm_queries(
        self, reading: Reading, queue: QueueName, arms: Sequence[Arm], *, is_ready: bool
    ) -> list[Query]:
        """The arms of kinds without a rate are merged. A kind whose room is bounded is read alone:
        merged, its jobs would take the places of others and then not be granted."""
        wanted, index = reading.most[queue], _INDEX[is_ready]
        together = [arm for arm in arms if arm.kind not in reading.rated]
        alone = [arm for arm in arms if arm.kind in reading.rated]
        queries = [
            self._merged(reading, queue, together[begin : begin + MAX_ARMS], wanted, index)
            for begin in range(0, len(together), MAX_ARMS)
        ]
        for arm in alone:
            most = wanted if arm.lane else min(wanted, reading.most_of_kinds.get(arm.kind, wanted))
            queries.append(self._merged(reading, queue, [arm], most, index))
        return queries

    def _merged(
        self, reading: Reading, queue: QueueName, arms: Sequence[Arm], wanted: int, index: str
    ) -> Query:
        """The statement that reads the first jobs of these arms together. An arm `{n}` has
        parameters of its own."""
        texts = [
            arm.condition.replace("{n}", str(n)).replace("{lane}", str(arm.lane))
            for n, arm in enumerate(arms)
        ]
        given: dict[str, object] = {f"kind_{n}": arm.kind for n, arm in enumerate(arms)}
        given |= {f"priority_{n}": arm.priority for n, arm in enumerate(arms)}
        given |= {
            "namespace": reading.scope.namespace,
            "queue": queue,
            "wanted": wanted,
            "most": wanted + self._dialect.locked_by_others,
        }
        if len(texts) == 1:  # no merge, so that no row is read twice
            tat = _STATE_OF_RATE_KEY if arms[0].lane else "NULL"
            return self._query(
                "candidates", (("index", index), ("arm", texts[0]), ("tat", tat)), **given
            )
        merged = " UNION ALL ".join(_ARM % (index, text, n) for n, text in enumerate(texts))
        return self._query("merged_candidates", (("arms", merged),), **given)


def _without_counts(answers: Sequence[Sequence[Row]]) -> tuple[list[Row], bool]:
    """The candidates in these answers, and whether other transactions had locked more of them: an
    answer with too few candidates may end with their number, locked ones included."""
    rows: list[Row] = []
    skipped_locked = False
    for answer in answers:
        if answer and answer[-1][_ID] is None:
            *found, count = answer
            skipped_locked = skipped_locked or count[_PLACE] > len(found)
            rows += found
        else:
            rows += answer
    return rows, skipped_locked


def _readable(
    rows: Sequence[Row],
) -> Iterator[tuple[tuple[int, int, int | None, str], Job, int | None]]:
    """The jobs that this version can read in full, each with its place in claim order and the state
    of its rate. [Y5] [Z1]"""
    for row in rows:
        try:
            job = job_from(row[:_PLACE])
        except UnreadableRow:
            continue
        if not has_unknown_value(job):
            yield (-job.priority, row[_PLACE], job.run_at, job.id), job, row[_TAT]


def _due(levels: Sequence[Row], now: Instant) -> list[Arm]:
    """The arms of delayed jobs that may be due, from the levels of a queue."""
    arms: list[Arm] = []
    for kind, lane, priority, nth, first_at in levels:
        if first_at <= now:
            arms.append(Arm(_OF_LEVEL, kind, lane, priority))
        if nth == MAX_LEVELS:
            arms.append(Arm(_BELOW_LEVEL, kind, lane, priority))
    return arms
