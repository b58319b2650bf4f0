"""Whose turn it is among the jobs of a concurrency key. A mixin of `SqlStore`.

Jobs that must wait for another one of their key stay out of a claim's way, however many they are:
claims find jobs with a key only by the table `key_turn`, which has the first ones of each key. It
is an index and says nothing about a job: no event, no revision. A change of a job notes its key in
`key_change`; the next claim chooses the turns of such keys again. All of this happens under the
lock of the key's group, so that claims of one group wait for each other (docs/adr/0054).
"""

from abc import abstractmethod
from collections.abc import Iterable, Mapping, Sequence
from itertools import groupby

import msgspec
from msgspec.structs import replace

from tenure.core.concurrency import ConcurrencyKey, KeyState, concurrency_key_of
from tenure.core.ids import JobId, Namespace, QueueName
from tenure.core.job import AT_ONCE, Job
from tenure.core.outcomes import Change
from tenure.stores.sql.candidates import MAX_PASSED_OVER, Reading, readable_jobs
from tenure.stores.sql.rows import Row
from tenure.stores.sql.statements import Query
from tenure.stores.sql.transactions import Transaction, Transactional

MAX_KEY_CHANGES = 1000
"""Of so many changes a claim chooses the turns again at a time."""

MAX_PAGES_OF_CHANGES = 50
"""How often a claim does so if nothing that it asks for has a turn then; the next one goes on."""


class KeyedKind(msgspec.Struct, frozen=True):
    """A kind that has jobs with a concurrency key in a queue, and the group of their keys."""

    queue: QueueName
    kind: str
    group: str


class KeyChange(msgspec.Struct, frozen=True, order=True):
    """The turns of this key must be chosen again at this time."""

    namespace: str
    group: str
    key: str
    at: int


class KeyedCandidates(msgspec.Struct, frozen=True):
    """The jobs whose turn it is, and the clock after them."""

    jobs: Sequence[Job]
    moment: Sequence[Row]


class SqlTurns(Transactional):
    """The part of `Store.claim` that finds jobs with concurrency keys."""

    @abstractmethod
    def _group_locks(self, namespace: Namespace, groups: Sequence[str]) -> list[Query]:
        """Locks that keep claims of these groups apart."""

    @abstractmethod
    def _key_change_queries(self, changes: Sequence[KeyChange]) -> list[Query]:
        """The statements that note these changes."""

    @abstractmethod
    def _first_queries(
        self,
        namespace: Namespace,
        room: Mapping[ConcurrencyKey, int],
        kinds: Sequence[KeyedKind],
    ) -> list[Query]:
        """The statements for the ready jobs, and those for the delayed jobs that are due, of each
        of these keys, queue and kind; of each as many as there is room, without those that have
        expired. A row is a queue, a kind, a group, a key, and then a priority, a `run_at` and an
        id."""

    @abstractmethod
    def _concurrency_limit(self, namespace: Namespace, group: str) -> int:
        """How many jobs of one key of this group may run at a time."""

    @abstractmethod
    def _pack_keys(self, keys: Iterable[ConcurrencyKey]) -> dict[str, object]:
        """Keys as the parameters of `{each_key}`."""

    # --- noting --------------------------------------------------------------------------------

    def _note_key_changes(self, changes: Iterable[Change]) -> list[Query]:
        """The statements that note which keys these changes are about; none for jobs without one.
        A change that is not applied after all is noted in vain."""
        noted: set[KeyChange] = set()
        for change in changes:
            for each in (change, *change.spawned) if change.spawned else (change,):
                job = each.job
                if job.concurrency_key is None or job.lease_id is not None:
                    continue
                assert job.concurrency_group is not None
                due_at = job.not_before or AT_ONCE
                instants = {due_at} if each.expected_rev == 0 else {due_at, AT_ONCE}
                if job.not_before is not None and job.start_by is not None:
                    instants.add(job.start_by)  # then its turn goes on to the next one [EX2]
                noted |= {
                    KeyChange(job.namespace, job.concurrency_group, job.concurrency_key, at)
                    for at in instants
                }
        return self._key_change_queries(sorted(noted)) if noted else []

    # --- claiming ------------------------------------------------------------------------------

    def _keyed_candidates(
        self, tx: Transaction, reading: Reading, queues: Sequence[QueueName]
    ) -> KeyedCandidates | None:
        """The jobs whose turn it is in these queues, as many as the claim reads of each."""
        namespace = reading.scope.namespace
        [rows] = tx.fetch(
            self._query("keyed_kinds", namespace=namespace, queues=self._pack(queues))
        )
        known = [KeyedKind(*row) for row in rows]
        wanted = [
            each
            for each in known
            if reading.most.get(each.queue) and each.kind in reading.kinds[each.queue]
        ]
        if not wanted:
            return None
        self._choose_turns(tx, namespace, wanted, known)
        places = sorted({(each.queue, each.kind) for each in wanted})
        turns = self._turns(tx, reading, places)
        # A kind may have got a group since its groups were read and locked. Nobody may count the
        # leases of a key without the lock. [CK3]
        locked = {each.group for each in wanted}
        return replace(turns, jobs=[job for job in turns.jobs if job.concurrency_group in locked])

    def _turns(
        self, tx: Transaction, reading: Reading, wanted: Sequence[tuple[QueueName, str]]
    ) -> KeyedCandidates:
        """The turns in these queues and of these kinds. Instead of jobs that this version cannot
        read, others are asked for. [Y5]"""
        asked_more = 0
        while True:
            asked = reading.and_more(asked_more)
            *found, moment = tx.fetch(
                *[
                    self._query(
                        "turns",
                        namespace=reading.scope.namespace,
                        queue=queue,
                        kind=kind,
                        wanted=min(
                            asked.most[queue], asked.most_of_kinds.get(kind, asked.most[queue])
                        ),
                    )
                    for queue, kind in wanted
                ],
                self._query("moment_to_claim"),
            )
            jobs = [job for rows in found for job in readable_jobs(rows)]
            passed_over = sum(map(len, found)) - len(jobs)
            if passed_over <= asked_more or asked_more >= MAX_PASSED_OVER:
                return KeyedCandidates(jobs, moment)
            asked_more = min(passed_over, MAX_PASSED_OVER)

    def _choose_turns(
        self,
        tx: Transaction,
        namespace: Namespace,
        wanted: Sequence[KeyedKind],
        kinds: Sequence[KeyedKind],
    ) -> None:
        """Lock the groups of the wanted kinds, and choose again the turns of the keys whose jobs
        have changed: until one of these kinds has a turn, because the changes of a long backlog of
        another key or queue may come first. [CK4]"""
        groups = sorted({each.group for each in wanted})
        places = {(each.queue, each.kind) for each in wanted}
        locks = self._group_locks(namespace, groups)
        takes = [
            self._query(
                "take_key_changes",
                namespace=namespace,
                concurrency_group=group,
                changes=MAX_KEY_CHANGES,
            )
            for group in groups
        ]
        for _ in range(MAX_PAGES_OF_CHANGES):
            taken = tx.fetch(*locks, *takes)[len(locks) :]
            locks = []
            keys = sorted({row for rows in taken for row in rows})
            given = self._give_turns(tx, namespace, keys, kinds) if keys else set()
            if given & places or all(len(rows) < MAX_KEY_CHANGES for rows in taken):
                return

    def _give_turns(
        self,
        tx: Transaction,
        namespace: Namespace,
        keys: Sequence[Row],
        kinds: Sequence[KeyedKind],
    ) -> set[tuple[str, str]]:
        """Choose the turns of these keys again. Returns the queues and kinds that have some."""
        states = self._key_states(tx, namespace, [ConcurrencyKey(*row) for row in keys])
        room = {key: state.room for key, state in states.items() if state.room}
        first = tx.fetch(*self._first_queries(namespace, room, kinds)) if room else []
        turns = _first_of_each([row for rows in first for row in rows], room)
        tx.fetch(
            self._query("delete_turns_of_keys", namespace=namespace, **self._pack_keys(states)),
            *([self._query("give_turns", ids=self._pack(turns))] if turns else []),
        )
        return {(row[0], row[1]) for rows in first for row in rows}

    def _key_states(
        self, tx: Transaction, namespace: Namespace, keys: Iterable[ConcurrencyKey]
    ) -> dict[ConcurrencyKey, KeyState]:
        """These keys with their live leases. Only claims that hold the group's lock add one."""
        packed = self._pack_keys(keys)
        [rows] = tx.fetch(self._query("live_of_keys", namespace=namespace, **packed))
        limits = {group: self._concurrency_limit(namespace, group) for group, _, _ in rows}
        return {
            ConcurrencyKey(group, key): KeyState(limit=limits[group], live=live)
            for group, key, live in rows
        }

    def _end_turns(
        self,
        namespace: Namespace,
        keys: Mapping[ConcurrencyKey, KeyState],
        granted: Sequence[Change],
    ) -> list[Query]:
        """The statements that delete the turns that were granted, and those of keys that are now
        at their limit: when one of their jobs ends, the turns are chosen again."""
        if not keys:
            return []
        room = {key: state.room for key, state in keys.items()}
        used: list[JobId] = []
        for change in granted:
            key = concurrency_key_of(change.job)
            if key is not None:
                room[key] -= 1
                used.append(change.job.id)
        full = [key for key, left in room.items() if left <= 0]
        queries = [self._query("delete_turns", ids=self._pack(used))] if used else []
        if full:
            packed = self._pack_keys(full)
            queries.append(self._query("delete_turns_of_keys", namespace=namespace, **packed))
        return queries


def _first_of_each(rows: Sequence[Row], room: Mapping[ConcurrencyKey, int]) -> list[str]:
    """The ids of the first jobs of each key, queue and kind, ready ones and due ones together."""
    chosen: list[str] = []
    ordered = sorted(rows, key=lambda row: (row[:4], -row[4], row[5:]))
    for (_, _, group, key), found in groupby(ordered, key=lambda row: row[:4]):
        most = room[ConcurrencyKey(group, key)]
        chosen += [row[6] for row in list(found)[:most]]
    return chosen
