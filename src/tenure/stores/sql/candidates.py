"""Which jobs a claim may receive, in claim order and by index. A mixin of `SqlStore`.

A claim reads *arms*: the ready jobs of one kind, or the delayed jobs of one kind and priority that
are due. In its index each arm is in claim order, so that a claim reads of each as much as it needs,
whatever other kinds wait in the queue and however many jobs are not due yet (docs/adr/0047).
"""

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from itertools import chain
from typing import NamedTuple

import msgspec
from msgspec.structs import replace

from tenure.core.claims import ClaimScope, GrantRoom
from tenure.core.events import has_unknown_word
from tenure.core.ids import Kind, QueueName
from tenure.core.instants import Instant
from tenure.core.job import Job
from tenure.errors import UnreadableRow
from tenure.stores.sql.claim_marks import ClaimMarks, Mark, MarkedClaim
from tenure.stores.sql.rows import JOB_COLUMNS, Row, job_from
from tenure.stores.sql.statements import Query, Shape
from tenure.stores.sql.transactions import Transaction, Transactional

MAX_ARMS = 64
"""How many arms one statement merges. A claim with more of them locks some jobs in vain."""

MAX_LEVELS = 32
"""How many priorities of delayed jobs of one kind are read one by one; the lower ones together."""

MAX_PASSED_OVER = 1000
"""So many jobs of a newer version may stand before those that a claim can have. [Y5]"""

_ID, _QUEUE, _REV = (JOB_COLUMNS.index(name) for name in ("id", "queue", "rev"))

_IN_TIME = " AND (j.start_by IS NULL OR j.start_by > (SELECT {t}clock()))"
"""Jobs that have expired must not lie in the way of a claim until the next sweep. [EX2]"""
_READY = "j.not_before = 0 AND j.kind = :kind_{n} AND {keyless}" + _IN_TIME
_AT_MARK = (
    f"{_READY} AND j.priority = CAST(:mark_priority AS {{smallint}})"
    " AND (j.run_at, j.id) >= (CAST(:mark_run_at AS bigint), CAST(:mark_id AS {uuid}))"
)
_OF_LEVEL = (
    "j.not_before > 0 AND j.kind = :kind_{n} AND {keyless}"
    " AND j.priority = CAST(:priority_{n} AS {smallint}) AND j.run_at <= (SELECT {t}clock())"
    + _IN_TIME
)
_BELOW_LEVEL = _OF_LEVEL.replace("j.priority =", "j.priority <")
_ARM = (
    "SELECT * FROM (SELECT j.id AS job_id, j.priority AS level, j.run_at AS since"
    " FROM {t}job AS j %s WHERE j.namespace = :namespace AND j.queue = :queue AND %s"
    " ORDER BY j.priority DESC, j.run_at, j.id LIMIT :most) AS arm_%d"
)
_JOBS_OF_ARM = (
    "SELECT 1 FROM {t}job AS j %s WHERE j.namespace = :namespace AND j.queue = :queue AND %s"
)
_BEGIN_COUNTED = "SELECT * FROM (SELECT * FROM ("
_END_COUNTED = (
    ") AS f UNION ALL SELECT {count_as_job} FROM ("
    "SELECT CAST(count(*) AS integer) AS n FROM (%s LIMIT :wanted) AS v) AS v) AS c LIMIT :wanted"
)
"""Counts only if the candidates before it are fewer than wanted: else the limit stops before it.
In the same statement, so in the same snapshot: jobs that are enqueued meanwhile do not count. Costs
50 µs even if it does not count, so a claim from a mark has none: if it is short it reads again."""
_NO_MARK: Mapping[str, object] = {}
_INDEX = {True: "{by_ready}", False: "{by_delayed}"}


class Arm(NamedTuple):
    """One arm of a claim: the condition of its jobs, and what the condition names."""

    condition: str
    kind: str
    priority: int = 0  # not in every condition


class Reading(msgspec.Struct, frozen=True):
    """How much a claim reads: which kinds of each queue, how many jobs of each queue, how many of
    each kind whose rate bounds that, and where it begins in queues that have a mark."""

    scope: ClaimScope
    kinds: Mapping[QueueName, Sequence[str]]
    most: Mapping[QueueName, int]
    most_of_kinds: Mapping[str, int] = msgspec.field(default_factory=dict)
    begins_at: Mapping[QueueName, Mark] = msgspec.field(default_factory=dict)
    all_kinds: Mapping[QueueName, Sequence[str]] | None = None
    """The kinds before `within` left out those without room; None: it was not called."""

    @property
    def asked_kinds(self) -> Mapping[QueueName, Sequence[str]]:
        """The kinds of each queue that the claim asks for. One of them that has no room for its
        other jobs may have room for those with a rate key. [RL11]"""
        return self.kinds if self.all_kinds is None else self.all_kinds

    def within(self, room: GrantRoom) -> "Reading":
        """The same, without the queues and kinds that have no room: a claim reads none of the jobs
        that a limit or a rate holds back. [RL8]"""
        of_queues = {name: room.of_queue(name) for name in self.most}
        of_kinds = {kind: room.of_kind(Kind(kind)) for kind in {*chain(*self.kinds.values())}}
        return replace(
            self,
            kinds={
                name: [kind for kind in kinds if of_kinds[kind] != 0]
                for name, kinds in self.kinds.items()
            },
            most={
                name: self.most[name] if most is None else min(self.most[name], most)
                for name, most in of_queues.items()
                if most != 0
            },
            most_of_kinds={kind: most for kind, most in of_kinds.items() if most is not None},
            all_kinds=self.kinds,
        )

    def and_more(self, jobs: int) -> "Reading":
        """The same, and so many more jobs of each queue and kind."""
        return replace(
            self,
            most={name: most + jobs for name, most in self.most.items()},
            most_of_kinds={kind: most + jobs for kind, most in self.most_of_kinds.items()},
        )

    def from_front(self) -> "Reading":
        """The same, without marks."""
        return replace(self, begins_at={})


class CandidateAnswers(msgspec.Struct, frozen=True):
    """The answers to `_candidate_queries`."""

    ready: list[Row]
    """The ready jobs."""
    levels: Sequence[Sequence[Row]]
    """Of each queue, where its delayed jobs are."""
    moment: Sequence[Row]
    """The clock after them."""
    skipped_locked: bool
    """Whether there were more that other transactions had locked."""

    @classmethod
    def of(cls, reading: Reading, answers: Sequence[Sequence[Row]]) -> "CandidateAnswers":
        """The answers to the queries of this reading, in the order of the queries."""
        *found, moment = answers
        levels_at = len(found) - len(reading.most)
        ready, skipped_locked = _without_counts(found[:levels_at])
        return cls(ready, found[levels_at:], moment, skipped_locked)


class SqlCandidates(Transactional):
    """The part of `Store.claim` that finds ready jobs."""

    _locked_by_others = 0
    """How many jobs that other claims hold locked a merged claim passes by. If that is 0, there is
    only one writer."""

    _claim_marks: ClaimMarks | None = None
    """Where claims begin to read; None: at the front."""

    def _marked(self, scope: ClaimScope) -> AbstractContextManager[MarkedClaim]:
        marks = self._claim_marks
        return nullcontext(MarkedClaim(scope)) if marks is None else marks.claim(scope)

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

    def _readable_candidates(
        self,
        tx: Transaction,
        reading: Reading,
        answers: Sequence[Sequence[Row]],
        marked: MarkedClaim,
    ) -> tuple[list[Job], Sequence[Row]]:
        """The candidates and the clock, from the answers to `_candidate_queries`. Jobs that this
        version cannot read, or not in full, are left to the version that wrote them; others are
        read in their place. [Y5]"""
        asked_more, asked = 0, reading
        found = CandidateAnswers.of(asked, answers)
        while True:
            marked.note_short(asked.most, _by_queue(found.ready))
            if marked.must_read_again:
                marked.note(readable_jobs(found.ready))
                marked.begin_at_front()
                reading, asked = reading.from_front(), asked.from_front()
                found = self._fetch_candidates(tx, asked)
                marked.note_short(asked.most, _by_queue(found.ready))
            rows, moment, marked.skipped_locked = self._with_delayed(tx, asked, found)
            jobs = list(readable_jobs(rows))
            marked.note(jobs)
            passed_over = len(rows) - len(jobs)
            if passed_over <= asked_more or asked_more >= MAX_PASSED_OVER:
                return jobs, moment
            asked_more = min(passed_over, MAX_PASSED_OVER)
            asked = reading.and_more(asked_more)
            found = self._fetch_candidates(tx, asked)

    def _candidate_queries(self, reading: Reading) -> list[Query]:
        """The ready jobs of each queue, where its delayed jobs are, and then the clock: it is read
        after the rows are locked."""
        return [
            *self._ready_queries(reading),
            *self._level_queries(reading),
            self._query("moment_to_claim"),
        ]

    def _fetch_candidates(self, tx: Transaction, reading: Reading) -> CandidateAnswers:
        return CandidateAnswers.of(reading, tx.fetch(*self._candidate_queries(reading)))

    def _with_delayed(
        self, tx: Transaction, reading: Reading, found: CandidateAnswers
    ) -> tuple[list[Row], Sequence[Row], bool]:
        """The rows of ready jobs and of delayed ones that are due, the clock after them, and
        whether other transactions had more of them locked."""
        [(now, *_)] = found.moment
        delayed = self._delayed_queries(reading, found.levels, Instant(now))
        if not delayed:
            return found.ready, found.moment, found.skipped_locked
        *answers, moment = tx.fetch(*delayed, self._query("moment_to_claim"))
        due, skipped_locked = _without_counts(answers)
        return [*found.ready, *due], moment, found.skipped_locked or skipped_locked

    def _ready_queries(self, reading: Reading) -> list[Query]:
        """The jobs that were ready when they were queued."""
        queries: list[Query] = []
        for name in reading.most:
            mark = reading.begins_at.get(name)
            if mark is None:
                arms = [Arm(_READY, kind) for kind in reading.kinds[name]]
                queries += self._arm_queries(reading, name, arms, is_ready=True)
            else:
                queries.append(self._from_mark(reading, name, mark))
        return queries

    def _from_mark(self, reading: Reading, queue: QueueName, mark: Mark) -> Query:
        """What is left of the mark's priority. If that is too little, the claim reads from the
        front: to go on at lower priorities would take a second arm for each kind."""
        level, run_at, job_id = mark.place
        given = {"mark_priority": -level, "mark_run_at": run_at, "mark_id": job_id}
        arms = [Arm(_AT_MARK, kind) for kind in reading.kinds[queue]]
        wanted, index = reading.most[queue], _INDEX[True]
        return self._merged(reading.scope, queue, wanted, arms, index, mark=given)

    def _level_queries(self, reading: Reading) -> list[Query]:
        """The kinds and priorities of the delayed jobs of each queue."""
        return [
            self._query(
                "delayed_levels",
                namespace=reading.scope.namespace,
                queue=name,
                kinds=self._pack(reading.kinds[name]),
                levels=MAX_LEVELS,
            )
            for name in reading.most
        ]

    def _delayed_queries(
        self, reading: Reading, levels: Sequence[Sequence[Row]], now: Instant
    ) -> list[Query]:
        """The delayed jobs that are due, if there are some."""
        return [
            query
            for name, found in zip(reading.most, levels, strict=True)
            for query in self._arm_queries(reading, name, _due(found, now), is_ready=False)
        ]

    def _arm_queries(
        self, reading: Reading, queue: QueueName, arms: Sequence[Arm], *, is_ready: bool
    ) -> list[Query]:
        """The arms of kinds without a rate are merged. A kind whose room is bounded is read alone:
        merged, its jobs would take the places of others and then not be granted."""
        scope, wanted, index = reading.scope, reading.most[queue], _INDEX[is_ready]
        together = [arm for arm in arms if arm.kind not in reading.most_of_kinds]
        alone = [arm for arm in arms if arm.kind in reading.most_of_kinds]
        return [
            *[
                self._merged(scope, queue, wanted, together[begin : begin + MAX_ARMS], index)
                for begin in range(0, len(together), MAX_ARMS)
            ],
            *[
                self._merged(
                    scope, queue, min(wanted, reading.most_of_kinds[arm.kind]), [arm], index
                )
                for arm in alone
            ],
        ]

    def _merged(
        self,
        scope: ClaimScope,
        queue: QueueName,
        wanted: int,
        arms: Sequence[Arm],
        index: str,
        mark: Mapping[str, object] = _NO_MARK,
    ) -> Query:
        """The statement that reads the first jobs of these arms together. An arm `{n}` has
        parameters of its own."""
        texts = [arm.condition.replace("{n}", str(n)) for n, arm in enumerate(arms)]
        given: dict[str, object] = {f"kind_{n}": arm.kind for n, arm in enumerate(arms)}
        given |= {f"priority_{n}": arm.priority for n, arm in enumerate(arms)}
        given |= mark
        given |= {
            "namespace": scope.namespace,
            "queue": queue,
            "wanted": wanted,
            "most": wanted + self._locked_by_others,
        }
        is_counted = self._locked_by_others > 0 and not mark
        if len(texts) == 1:  # no merge, and so no second look at each row
            ends = _ends(_JOBS_OF_ARM % (index, texts[0]), is_counted=is_counted)
            return self._query("candidates", (("index", index), ("arm", texts[0]), *ends), **given)
        merged = " UNION ALL ".join(_ARM % (index, text, n) for n, text in enumerate(texts))
        by_level = "" if mark else "level DESC,"
        ends = _ends(merged, is_counted=is_counted)
        shape = (("arms", merged), ("by_level", by_level), *ends)
        return self._query("merged_candidates", shape, **given)


def _ends(jobs: str, *, is_counted: bool) -> Shape:
    """What a statement of candidates starts and finishes with, so that it counts these jobs."""
    if not is_counted:
        return (("begin", ""), ("end", ""))
    return (("begin", _BEGIN_COUNTED), ("end", _END_COUNTED % jobs))


def _without_counts(answers: Sequence[Sequence[Row]]) -> tuple[list[Row], bool]:
    """The candidates in these answers, and whether other transactions had more of them locked: the
    count at the end of an answer says so."""
    found: list[Row] = []
    skipped_locked = False
    for rows in answers:
        if rows and rows[-1][_ID] is None:
            *jobs, count = rows
            skipped_locked |= count[_REV] > len(jobs)
            found += jobs
        else:
            found += rows
    return found, skipped_locked


def _by_queue(rows: Sequence[Row]) -> Mapping[QueueName, int]:
    """How many of these jobs each queue has."""
    return Counter(row[_QUEUE] for row in rows)


def readable_jobs(rows: Sequence[Row]) -> Iterator[Job]:
    """The jobs that this version can read in full. [Y5]"""
    for row in rows:
        try:
            job = job_from(row)
        except UnreadableRow:
            continue
        if not has_unknown_word(job):
            yield job


def _due(levels: Sequence[Row], now: Instant) -> list[Arm]:
    """The arms of delayed jobs that may be due, from the levels of a queue."""
    arms: list[Arm] = []
    for kind, priority, nth, first_at in levels:
        if first_at <= now:
            arms.append(Arm(_OF_LEVEL, kind, priority))
        if nth == MAX_LEVELS:
            arms.append(Arm(_BELOW_LEVEL, kind, priority))
    return arms
