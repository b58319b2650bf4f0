"""Whose turn it is among the jobs of a concurrency key or a rate key. A mixin of `SqlStore`.

Jobs that must wait for another one of their key stay out of a claim's way, however many they are:
claims find jobs with a key only by the table `key_turn`, which has the first ones of each key. It
is an index and says nothing about a job: no event, no revision. A change of a job notes its key in
`key_change`; the next claim chooses the turns of such keys again. All of this happens under the
lock of the key's group, so that claims of one group wait for each other (docs/adr/0054).

The rate keys of a kind are a group of their own. Of each of them as many turns are open as its rate
has room for; it is noted when there is room for more. A job with both keys needs a turn of its
concurrency key first (docs/adr/0069).
"""

from abc import abstractmethod
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from itertools import groupby

import msgspec

from tenure.core.claims import ClaimPlan, ClaimView, GrantRoom, kind_meter, rate_key_turns
from tenure.core.concurrency import ConcurrencyKey, KeyState, concurrency_key_of
from tenure.core.ids import Kind, Namespace, QueueName
from tenure.core.instants import Duration, Instant
from tenure.core.job import AT_ONCE, Job
from tenure.core.kind_settings import KindSettings
from tenure.core.outcomes import Change
from tenure.core.rates import Meter, RateScope
from tenure.stores.sql.candidates import MAX_PASSED_OVER, Reading, readable_jobs
from tenure.stores.sql.rows import Row, rate_states_from
from tenure.stores.sql.statements import Query
from tenure.stores.sql.transactions import Transaction, Transactional

MAX_KEY_CHANGES = 1000
"""Of so many changes a claim chooses the turns again at a time."""

MAX_PAGES_OF_CHANGES = 50
"""How often a claim does so if nothing that it asks for has a turn then; the next one goes on."""

_RATES = "/"
_NO_GROUP = ""


def rate_group(kind: str) -> str:
    """The group of the rate keys of a kind: no other group's name begins with a slash."""
    return _RATES + kind


class KeyedKind(msgspec.Struct, frozen=True):
    """A kind that has jobs with a key in a queue, and the group of their keys."""

    queue: QueueName
    kind: str
    group: str

    @property
    def is_rated(self) -> bool:
        """Whether the keys are rate keys."""
        return self.group.startswith(_RATES)


class KeyChange(msgspec.Struct, frozen=True, order=True):
    """The turns of this key must be chosen again at this time. If they wait for a rate, `noted_at`
    is when that was found."""

    namespace: str
    group: str
    key: str
    at: int
    noted_at: int = 0


class RateKey(msgspec.Struct, frozen=True, order=True):
    """The jobs of a kind that share its rate."""

    kind: Kind
    key: str

    @property
    def meter(self) -> Meter:
        """What its grants are counted by."""
        return kind_meter(self.kind, self.key)


class Chosen(msgspec.Struct):
    """What a claim found out when it chose turns, under the locks of these groups: the queues and
    kinds that were given some, and where the rates of these rate keys stand."""

    locked: frozenset[str]
    places: set[tuple[str, str]] = msgspec.field(default_factory=set)
    rated: set[RateKey] = msgspec.field(default_factory=set)
    rate_states: dict[Meter, Instant] = msgspec.field(default_factory=dict)


class TurnPlace(msgspec.Struct, frozen=True, order=True):
    """Where a claim reads turns: those with a rate key apart, because a kind without room for its
    other jobs may have room for them."""

    queue: QueueName
    kind: str
    group: str
    is_rated: bool


class KeyedCandidates(msgspec.Struct, frozen=True):
    """The jobs whose turn it is, the clock after them, and what decides about them."""

    jobs: Sequence[Job]
    moment: Sequence[Row]
    keys: dict[ConcurrencyKey, KeyState]
    served: dict[str, int]
    rate_states: dict[Meter, Instant]
    key_waits: dict[Kind, Duration]


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
    def _first_of_rates(
        self,
        namespace: Namespace,
        room: Mapping[RateKey, int],
        kinds: Sequence[KeyedKind],
    ) -> list[Query]:
        """The same for rate keys: of the jobs without a concurrency key, and of the turns of those
        that have one. The third column is the kind again."""

    @abstractmethod
    def _served_queries(
        self, namespace: Namespace, served: Mapping[ConcurrencyKey, int], now: Instant
    ) -> list[Query]:
        """The statements that write the numbers of these fair keys' last grants; none for none."""

    @abstractmethod
    def _settings_of_kinds(self, namespace: Namespace) -> Mapping[Kind, KindSettings]:
        """What is set for kinds, in a claim that has checked that it is current."""

    @abstractmethod
    def _is_fair(self, namespace: Namespace, group: str) -> bool:
        """Whether the keys of this group take turns."""

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
                if job.lease_id is None and (key := _turn_key(job)) is not None:
                    noted |= {
                        KeyChange(job.namespace, key.group, key.key, at) for at in _instants(each)
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
            if reading.most.get(each.queue) and each.kind in reading.asked_kinds[each.queue]
        ]
        if not wanted:
            return None
        chosen = self._choose_turns(tx, namespace, wanted, known)
        found, waits, moment = self._turns(tx, reading, _places(reading, wanted), wanted)
        # A kind may have got a group since its groups were read and locked. Nobody may count the
        # leases of a key, or grant under a rate, without the lock. [CK3] [RL1]
        locked = {each.group for each in wanted} | {None}
        jobs = [
            job
            for job in found
            if job.concurrency_group in locked
            and (job.rate_key is None or rate_group(job.kind) in locked)
        ]
        keys, served = self._keys_of(tx, namespace, jobs)
        rated = {RateKey(job.kind, job.rate_key) for job in jobs if job.rate_key is not None}
        # Under the lock no rate moves: what was read when turns were chosen is still true.
        if more := rated - chosen.rated:
            [rows] = tx.fetch(self._rate_key_query(namespace, more))
            chosen.rate_states |= rate_states_from(rows)
        return KeyedCandidates(jobs, moment, keys, served, chosen.rate_states, waits)

    def _turns(
        self,
        tx: Transaction,
        reading: Reading,
        places: Sequence[TurnPlace],
        wanted: Sequence[KeyedKind],
    ) -> tuple[list[Job], dict[Kind, Duration], Sequence[Row]]:
        """The turns in these places, how long jobs of rate keys wait at least, and the clock.
        Instead of jobs that this version cannot read, others are asked for. [Y5]"""
        namespace = reading.scope.namespace
        rated = sorted({each.kind for each in wanted if each.is_rated})
        waits = [
            self._query("first_rate_wait", namespace=namespace, key_group=rate_group(kind))
            for kind in rated
        ]
        asked_more = 0
        while True:
            asked = reading.and_more(asked_more)
            answers = tx.fetch(
                *[
                    self._query(
                        "turns",
                        namespace=namespace,
                        queue=place.queue,
                        kind=place.kind,
                        concurrency_group=place.group,
                        is_rated=place.is_rated,
                        wanted=_most(asked, place),
                    )
                    for place in places
                ],
                *waits,
                self._query("moment_to_claim"),
            )
            found, first, moment = answers[: len(places)], answers[len(places) : -1], answers[-1]
            jobs = [job for rows in found for job in readable_jobs(rows)]
            passed_over = sum(map(len, found)) - len(jobs)
            if passed_over <= asked_more or asked_more >= MAX_PASSED_OVER:
                now = moment[0][0]
                return jobs, _key_waits(rated, [at for [(at,)] in first], now), moment
            asked_more = min(passed_over, MAX_PASSED_OVER)

    def _choose_turns(
        self,
        tx: Transaction,
        namespace: Namespace,
        wanted: Sequence[KeyedKind],
        kinds: Sequence[KeyedKind],
    ) -> Chosen:
        """Lock the groups of the wanted kinds, and choose again the turns of the keys whose jobs
        have changed: until one of these kinds has a turn, because the changes of a long backlog of
        another key or queue may come first. [CK4]"""
        groups = sorted({each.group for each in wanted})
        places = {(each.queue, each.kind) for each in wanted}
        locks = self._group_locks(namespace, groups)
        takes = [
            self._query(name, namespace=namespace, key_group=group, changes=MAX_KEY_CHANGES)
            for group in groups
            for name in _TAKES[group.startswith(_RATES)]
        ]
        chosen = Chosen(frozenset(groups))
        for _ in range(MAX_PAGES_OF_CHANGES):
            taken = tx.fetch(*locks, *takes)[len(locks) :]
            locks = []
            self._choose_again(
                tx, namespace, {row for rows in taken for row in rows}, kinds, chosen
            )
            if chosen.places & places or all(len(rows) < MAX_KEY_CHANGES for rows in taken):
                break
        return chosen

    def _choose_again(
        self,
        tx: Transaction,
        namespace: Namespace,
        changed: set[Row],
        kinds: Sequence[KeyedKind],
        chosen: Chosen,
    ) -> None:
        """Choose the turns of these keys again: first those of concurrency keys, because the rate
        keys choose among them."""
        keys = sorted(row for row in changed if not row[0].startswith(_RATES))
        rated = {
            RateKey(Kind(group.removeprefix(_RATES)), key)
            for group, key in changed
            if group.startswith(_RATES)
        }
        if keys:
            rated |= self._give_turns(tx, namespace, keys, kinds, chosen)
        mine = sorted(each for each in rated if rate_group(each.kind) in chosen.locked)
        if mine:
            self._give_rated_turns(tx, namespace, mine, kinds, chosen)
        if left := sorted(rated.difference(mine)):  # for a claim that has locked them
            tx.fetch(*self._notes(namespace, left, {}, Instant(0)))

    def _give_turns(
        self,
        tx: Transaction,
        namespace: Namespace,
        keys: Sequence[Row],
        kinds: Sequence[KeyedKind],
        chosen: Chosen,
    ) -> set[RateKey]:
        """Choose the turns of these concurrency keys again. Returns the rate keys that have turns
        among them, or had."""
        asked = self._key_queries(namespace, [ConcurrencyKey(*row) for row in keys])
        states = self._key_states(namespace, tx.fetch(*asked))
        room = {key: state.room for key, state in states.items() if state.room}
        first = tx.fetch(*self._first_queries(namespace, room, kinds)) if room else []
        turns = _first_of_each(
            [row for rows in first for row in rows],
            {(key.group, key.key): most for key, most in room.items()},
        )
        rated = tx.fetch(
            self._query("delete_turns_of_keys", namespace=namespace, **self._pack_keys(states)),
            *([self._query("give_turns", ids=self._pack(turns))] if turns else []),
        )
        chosen.places |= {(row[0], row[1]) for rows in first for row in rows}
        return {RateKey(Kind(kind), key) for rows in rated for kind, key in rows if key}

    def _give_rated_turns(
        self,
        tx: Transaction,
        namespace: Namespace,
        keys: Sequence[RateKey],
        kinds: Sequence[KeyedKind],
        chosen: Chosen,
    ) -> None:
        """Open as many turns of these rate keys as there is room for, and note when there will be
        room for more. [RL8]"""
        found, [(now, _)] = tx.fetch(self._rate_key_query(namespace, keys), self._query("moment"))
        states = rate_states_from(found)
        settings = self._settings_of_kinds(namespace)
        ruled = {each.kind: settings[each.kind] for each in keys if each.kind in settings}
        room = GrantRoom(now=Instant(now), queues={}, kinds=ruled, rate_states=states)
        most = {each: rate_key_turns(room, each.kind, each.key) for each in keys}
        able = {each: turns for each, turns in most.items() if turns}
        first = tx.fetch(*self._first_of_rates(namespace, able, kinds)) if able else []
        rows = [row for found in first for row in found]
        turns = _first_of_each(rows, {(each.kind, each.key): able[each] for each in able})
        packed = self._pack_keys([ConcurrencyKey(each.kind, each.key) for each in keys])
        used = Counter(RateKey(Kind(row[1]), row[3]) for row in rows)
        waits = {
            each: wait
            for each in keys
            if used[each] >= most[each]
            and (wait := room.wait_of_key(each.kind, each.key, more=True))
        }
        tx.fetch(
            self._query("delete_turns_of_rates", namespace=namespace, **packed),
            self._query("close_turns_of_rates", namespace=namespace, **packed),
            *([self._query("open_turns", ids=self._pack(turns))] if turns else []),
            *self._notes(namespace, waits, waits, Instant(now)),
        )
        chosen.places |= {(row[0], row[1]) for row in rows}
        chosen.rated |= set(keys)
        chosen.rate_states |= states

    def _notes(
        self,
        namespace: Namespace,
        keys: Iterable[RateKey],
        waits: Mapping[RateKey, Duration],
        now: Instant,
    ) -> list[Query]:
        """The statements that note when turns of these rate keys must be chosen again: at once, or
        after so long."""
        noted = [
            KeyChange(namespace, rate_group(each.kind), each.key, now + wait, now)
            if (wait := waits.get(each))
            else KeyChange(namespace, rate_group(each.kind), each.key, AT_ONCE)
            for each in keys
        ]
        return self._key_change_queries(noted) if noted else []

    def _rate_key_query(self, namespace: Namespace, keys: Iterable[RateKey]) -> Query:
        """Where the rates of these keys stand."""
        packed = self._pack_keys([ConcurrencyKey(each.kind, each.key) for each in sorted(keys)])
        return self._query(
            "load_rate_states_of_keys", namespace=namespace, scope=RateScope.KIND.value, **packed
        )

    def _keys_of(
        self, tx: Transaction, namespace: Namespace, jobs: Sequence[Job]
    ) -> tuple[dict[ConcurrencyKey, KeyState], dict[str, int]]:
        """The concurrency keys of these jobs, and the last grant of their fair groups."""
        names = {key for job in jobs if (key := concurrency_key_of(job)) is not None}
        if not names:
            return {}, {}
        fair = sorted({key.group for key in names if self._is_fair(namespace, key.group)})
        asked = self._key_queries(namespace, names)
        answers = tx.fetch(
            *asked,
            *[
                self._query("last_served", namespace=namespace, concurrency_group=group)
                for group in fair
            ],
        )
        states, last = answers[: len(asked)], answers[len(asked) :]
        served = {group: number or 0 for group, [(number,)] in zip(fair, last, strict=True)}
        return self._key_states(namespace, states), served

    def _key_queries(self, namespace: Namespace, keys: Iterable[ConcurrencyKey]) -> list[Query]:
        """The live leases of these keys, and the last grants of those that are fair. Only claims
        that hold the group's lock add one."""
        listed = list(keys)
        fair = [key for key in listed if self._is_fair(namespace, key.group)]
        queries = [self._query("live_of_keys", namespace=namespace, **self._pack_keys(listed))]
        if fair:
            queries.append(self._query("load_served", namespace=namespace, **self._pack_keys(fair)))
        return queries

    def _key_states(
        self, namespace: Namespace, answers: Sequence[Sequence[Row]]
    ) -> dict[ConcurrencyKey, KeyState]:
        """Keys with their live leases, from the answers to `_key_queries`."""
        rows, *served_rows = answers
        served = {ConcurrencyKey(*row[:2]): row[2] for found in served_rows for row in found}
        groups = {group for group, _, _ in rows}
        limits = {group: self._concurrency_limit(namespace, group) for group in groups}
        fair_groups = {group for group in groups if self._is_fair(namespace, group)}
        return {
            (found := ConcurrencyKey(group, key)): KeyState(
                limit=limits[group],
                live=live,
                is_fair=group in fair_groups,
                served=served.get(found, 0),
            )
            for group, key, live in rows
        }

    # --- after a claim -------------------------------------------------------------------------

    def _end_turns(self, namespace: Namespace, view: ClaimView, planned: ClaimPlan) -> list[Query]:
        """The statements that delete the turns that were granted and those of keys that have no
        room any more, and that note which keys must be looked at again, and when."""
        granted = [change.job for change in planned.changes]
        used = [job.id for job in granted if _turn_key(job) is not None]
        if not used:
            return []
        return [
            self._query("delete_turns", ids=self._pack(used)),
            *self._end_turns_of_keys(namespace, view, granted),
            *self._end_turns_of_rates(namespace, view, planned, granted),
            *self._served_queries(namespace, planned.served, view.now),
        ]

    def _end_turns_of_keys(
        self, namespace: Namespace, view: ClaimView, granted: Sequence[Job]
    ) -> list[Query]:
        """When a job of a key that is at its limit ends, its turns are chosen again. A fair key
        that is not gets its next turn from the next claim."""
        taken = Counter(key for job in granted if (key := concurrency_key_of(job)) is not None)
        full = [key for key, number in taken.items() if view.keys[key].room <= number]
        if not full:
            return []
        packed = self._pack_keys(full)
        again = [
            KeyChange(namespace, key.group, key.key, AT_ONCE)
            for key in full
            if view.keys[key].live + taken[key] < view.keys[key].limit
        ]
        return [
            self._query("note_rates_of_keys", namespace=namespace, **packed),
            self._query("delete_turns_of_keys", namespace=namespace, **packed),
            *(self._key_change_queries(again) if again else []),
        ]

    def _end_turns_of_rates(
        self, namespace: Namespace, view: ClaimView, planned: ClaimPlan, granted: Sequence[Job]
    ) -> list[Query]:
        """The turns of rate keys that have no room any more wait; those of others are chosen again
        by the next claim."""
        used = sorted({RateKey(job.kind, job.rate_key) for job in granted if job.rate_key})
        if not used:
            return []
        room = GrantRoom(
            now=view.now,
            queues={},
            kinds=view.kinds,
            rate_states=view.rate_states | planned.rate_states,
        )
        found = {each: room.wait_of_key(each.kind, each.key) for each in used}
        waits = {each: wait for each, wait in found.items() if wait}
        packed = self._pack_keys([ConcurrencyKey(each.kind, each.key) for each in waits])
        names = ("delete_turns_of_rates", "close_turns_of_rates") if waits else ()
        return [
            *[self._query(name, namespace=namespace, **packed) for name in names],
            *self._notes(namespace, used, waits, view.now),
        ]


_TAKES = {False: ("take_key_changes",), True: ("take_key_changes", "take_changes_of_later")}


def _turn_key(job: Job) -> ConcurrencyKey | None:
    """The key whose turns a job's change may change: its concurrency key, or else its rate key."""
    key = concurrency_key_of(job)
    if key is None and job.rate_key is not None:
        return ConcurrencyKey(rate_group(job.kind), job.rate_key)
    return key


def _instants(change: Change) -> set[int]:
    """When the turns of a changed job's key must be chosen again."""
    job = change.job
    due_at = job.not_before or AT_ONCE
    instants: set[int] = {due_at} if change.expected_rev == 0 else {due_at, AT_ONCE}
    if job.not_before is not None and job.start_by is not None:
        instants.add(job.start_by)  # then its turn goes on to the next one [EX2]
    return instants


def _places(reading: Reading, wanted: Sequence[KeyedKind]) -> list[TurnPlace]:
    """Where a claim reads turns. Jobs without a rate key are not read if their kind has no room."""
    rated = {(each.queue, each.kind) for each in wanted if each.is_rated}
    places = set()
    for each in wanted:
        group = _NO_GROUP if each.is_rated else each.group
        if (each.queue, each.kind) in rated:
            places.add(TurnPlace(each.queue, each.kind, group, True))
        if not each.is_rated and each.kind in reading.kinds[each.queue]:
            places.add(TurnPlace(each.queue, each.kind, group, False))
    return sorted(places)


def _most(reading: Reading, place: TurnPlace) -> int:
    most = reading.most[place.queue]
    return most if place.is_rated else min(most, reading.most_of_kinds.get(place.kind, most))


def _key_waits(kinds: Sequence[str], first: Sequence[int | None], now: int) -> dict[Kind, Duration]:
    """By kind, how long until a job that waits for the rate of its rate key may be granted."""
    return {
        Kind(kind): Duration(0 if at is None else max(1, at - now))
        for kind, at in zip(kinds, first, strict=True)
    }


def _first_of_each(rows: Sequence[Row], room: Mapping[tuple[str, str], int]) -> list[str]:
    """The ids of the first jobs of each key, queue and kind, ready ones and due ones together."""
    chosen: list[str] = []
    ordered = sorted(rows, key=lambda row: (row[:4], -row[4], row[5:]))
    for (_, _, group, key), found in groupby(ordered, key=lambda row: row[:4]):
        chosen += [row[6] for row in list(found)[: room[group, key]]]
    return chosen
