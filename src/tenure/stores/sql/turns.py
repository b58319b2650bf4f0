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
from collections.abc import Collection, Iterable, Mapping, Sequence, Set
from typing import NoReturn

import msgspec

from tenure.core.claims import (
    ClaimPlan,
    ClaimScope,
    ClaimView,
    GrantRoom,
    kind_meter,
    rate_key_turns,
)
from tenure.core.concurrency import ConcurrencyKey, KeyState, concurrency_key_of
from tenure.core.ids import Kind, Namespace, QueueName
from tenure.core.instants import NEVER, Duration, Instant
from tenure.core.job import AT_ONCE, Job
from tenure.core.kind_settings import KindSettings
from tenure.core.outcomes import Change
from tenure.core.rates import Meter, RateScope
from tenure.stores.sql.candidates import MAX_PASSED_OVER, Reading, readable_jobs
from tenure.stores.sql.rows import JOB_COLUMNS, Row, rate_states_from
from tenure.stores.sql.statements import Query, Statements
from tenure.stores.sql.transactions import RestartClaim, Transaction, Transactional

MAX_KEY_CHANGES = 1000
"""How many changes of a group are on a page: so many of those that were due when they were noted,
and as many of those that became due later. So neither sort holds up the other. [CK10]"""

MAX_PAGES_OF_CHANGES = 50
"""How many pages of changes a claim takes while it finds no job; the next claim takes the rest."""

MAX_REMEMBERED_QUEUES = 1_000
"""For how many sets of queues a process remembers which kinds have jobs with keys. Beyond this it
forgets all of them."""

_RATES = "/"
_MARK = ""
"""The key of the row of `key_change` that is the mark of its group. No key is empty."""
_NO_GROUP = ""
_ID = JOB_COLUMNS.index("id")
_STATE = len(JOB_COLUMNS)
"""Where a turn says what decides about it, behind the columns of its job."""


def rate_group(kind: str) -> str:
    """The group of the rate keys of a kind: no other group's name begins with a slash."""
    return _RATES + kind


def rated_kind_of(group: str) -> Kind | None:
    """The kind whose rate keys are this group; None if it is a group of concurrency keys."""
    return Kind(group.removeprefix(_RATES)) if group.startswith(_RATES) else None


class KeyedKind(msgspec.Struct, frozen=True):
    """A kind that has jobs with a key in a queue, and the group of their keys."""

    queue: QueueName
    kind: str
    group: str

    @property
    def is_rated(self) -> bool:
        """Whether the keys are rate keys."""
        return rated_kind_of(self.group) is not None


class KeyChange(msgspec.Struct, frozen=True, order=True):
    """The turns of this key must be chosen again at this time. If they wait for a rate, `noted_at`
    is when that was found: a note from the future shows that the clock was set back. [RL3]"""

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


class TurnsAsked(msgspec.Struct, frozen=True, kw_only=True):
    """What a claim asks about jobs with keys, together with its other statements: it locks the
    groups of the kinds that it wants, and takes the changes of their keys. A claim that passes keys
    by takes no locks and no changes: it only asks whether a claim with the locks would find
    something."""

    known: tuple[KeyedKind, ...]
    """The kinds with keys in its queues, from an earlier claim. It reads them again, under the
    locks if it takes any."""
    wanted: tuple[KeyedKind, ...]
    """Those among them that it asks for."""
    passes_by: bool
    locks: Sequence[Query]
    checks: Sequence[Query]
    """Which kinds have keys now; and what a claim that passes keys by asks."""
    takes: Sequence[Query]

    @property
    def queries(self) -> list[Query]:
        """All of them, in order."""
        return [*self.locks, *self.checks, *self.takes]

    def split(
        self, answers: Sequence[Sequence[Row]]
    ) -> tuple[Sequence[Row], Sequence[Sequence[Row]], Sequence[Sequence[Row]]]:
        """The answers to `queries` taken apart: which kinds have keys now, what the claim learned
        in passing by, and the changes that it took."""
        checks_at = len(self.locks)
        takes_at = checks_at + len(self.checks)
        keyed, *in_passing = answers[checks_at:takes_at]
        return keyed, in_passing, answers[takes_at:]

    @property
    def groups(self) -> frozenset[str]:
        """The groups of the kinds that it wants."""
        return frozenset(each.group for each in self.wanted)

    @property
    def locked(self) -> frozenset[str]:
        """Those among them that are locked then."""
        return frozenset() if self.passes_by else self.groups

    @property
    def rate_keyed_kinds(self) -> list[str]:
        """The kinds that it wants and that have jobs with rate keys."""
        return _rate_keyed_kinds(self.wanted)

    @property
    def knows_rates(self) -> bool:
        """Whether a job with a concurrency key may have a rate key too."""
        return any(each.is_rated for each in self.known)


class TakenKey(msgspec.Struct, frozen=True):
    """A key whose turns a claim must choose again, by so many changes; how many of its jobs have a
    lease, and where its rate stands."""

    group: str
    key: str
    changes: int
    live: int
    tat: Instant | None
    due_at: int
    """The latest instant at which one of the changes of delayed jobs was due; 0 for none."""
    noted_at: int
    """When the latest change that waits for a rate was noted; 0 for none. Of a mark: up to when
    changes of delayed jobs were taken."""


class TurnPlace(msgspec.Struct, frozen=True, order=True):
    """Where a claim reads turns: those with a rate key apart, because a kind without room for its
    other jobs may have room for them."""

    queue: QueueName
    kind: str
    group: str
    is_rated: bool

    @property
    def groups(self) -> list[str]:
        """The groups of the keys of jobs there."""
        rated = [rate_group(self.kind)] if self.is_rated else []
        return [*rated, *([self.group] if self.group else [])]


class KeyedCandidates(msgspec.Struct, frozen=True, kw_only=True):
    """The jobs whose turn it is, the clock after them, and what decides about them."""

    jobs: Sequence[Job]
    moment: Sequence[Row]
    keys: dict[ConcurrencyKey, KeyState]
    served: dict[str, int]
    rate_states: dict[Meter, Instant]
    key_waits: dict[Kind, Duration]
    notes: Sequence[KeyChange]
    """What is still to be noted about rate keys whose turns were chosen again."""
    busy_groups: frozenset[str]
    """The groups in which the claim found a change or a turn."""
    due_at: Mapping[str, int]
    """By group, up to when the claim has taken changes of delayed jobs."""


class TurnFindings(msgspec.Struct):
    """What a claim has found out so far, over all pages of changes: which groups had changes or
    turns, where the rates of their keys stand, what it must still note about them, and up to when
    it has taken changes of delayed jobs."""

    groups: set[str] = msgspec.field(default_factory=set)
    rate_states: dict[Meter, Instant] = msgspec.field(default_factory=dict)
    notes: list[KeyChange] = msgspec.field(default_factory=list)
    due_at: dict[str, int] = msgspec.field(default_factory=dict)


class TurnUpdate(msgspec.Struct, frozen=True):
    """The statements that choose turns again for one page of changes, and what they rest on."""

    closing: Sequence[Query]
    """They delete or close turns, and give turns of concurrency keys."""
    opening: Sequence[Query]
    """They open turns of rate keys."""
    most: Mapping[RateKey, int]
    """How many turns of each rate key there is room for."""
    room: GrantRoom
    now: Instant

    def notes(self, namespace: Namespace, answers: Sequence[Sequence[Row]]) -> list[KeyChange]:
        """What is to be noted, from the answers to its statements. A rate key that has used all of
        its room is noted for when it has room again; of the other keys no job waits. A rate key
        whose jobs got or lost turns of concurrency keys, and whose group this claim has not locked,
        is noted at once."""
        closed, opened = answers[: len(self.closing)], answers[len(self.closing) :]
        used = Counter(RateKey(Kind(kind), key) for rows in opened for _, kind, key in rows)
        waits = {
            each: wait
            for each, most in self.most.items()
            if used[each] >= most
            and (wait := self.room.wait_of_key(each.kind, each.key, more=True))
        }
        left = sorted(_rate_keys_of(closed))
        return [
            *_rate_notes(namespace, waits, waits, self.now),
            *_rate_notes(namespace, left, {}, self.now),
        ]


class SqlTurns(Transactional):
    """The part of `Store.claim` that finds jobs with concurrency keys or rate keys."""

    def __init__(self, statements: Statements) -> None:
        super().__init__(statements)
        # Hints, like those of `SqlStore`: a claim checks them again under its locks.
        self._keyed_kinds: dict[tuple[Namespace, tuple[QueueName, ...]], tuple[KeyedKind, ...]] = {}

    @abstractmethod
    def _group_locks(self, namespace: Namespace, groups: Sequence[str]) -> list[Query]:
        """Locks that keep claims of these groups apart."""

    @abstractmethod
    def _key_change_queries(self, changes: Sequence[KeyChange]) -> list[Query]:
        """The statements that note these changes."""

    @abstractmethod
    def _take_queries(self, namespace: Namespace, groups: Sequence[str]) -> list[Query]:
        """The statements that take changes of these groups that are due: of each group up to
        `MAX_KEY_CHANGES` of those that were due at once, and as many of the others."""

    @abstractmethod
    def _taken(
        self, tx: Transaction, namespace: Namespace, answers: Sequence[Sequence[Row]]
    ) -> list[TakenKey]:
        """The keys of these changes, from the answers to `_take_queries`."""

    @abstractmethod
    def _give_queries(
        self,
        namespace: Namespace,
        room: Mapping[ConcurrencyKey, int],
        kinds: Sequence[KeyedKind],
    ) -> list[Query]:
        """The statements that give turns to the first ready jobs, and delayed jobs that are due, of
        each of these keys, queue and kind: of each as many as there is room, without those that
        have expired. They return a queue, a kind and a rate key, which may be empty."""

    @abstractmethod
    def _open_queries(
        self,
        namespace: Namespace,
        room: Mapping[RateKey, int],
        kinds: Sequence[KeyedKind],
    ) -> list[Query]:
        """The same for rate keys: they give turns to jobs without a concurrency key, and open the
        turns of those that have one."""

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

    def _ask_turns(
        self, reading: Reading, queues: tuple[QueueName, ...], quiet: Set[str]
    ) -> TurnsAsked | None:
        """What a claim of these queues asks about jobs with keys; None if this process knows of
        none there. It passes them by if all of their groups are quiet: a job may have keys of two
        groups, and a claim that has locked only one of these cannot grant it."""
        namespace = reading.scope.namespace
        known = self._keyed_kinds.get((namespace, queues))
        if known is None:
            return None
        wanted = tuple(
            each
            for each in known
            if reading.most.get(each.queue) and each.kind in reading.asked_kinds[each.queue]
        )
        groups = sorted({each.group for each in wanted})
        passes_by = bool(groups) and quiet >= set(groups)
        takes_them = bool(groups) and not passes_by
        return TurnsAsked(
            known=known,
            wanted=wanted,
            passes_by=passes_by,
            locks=self._group_locks(namespace, groups) if takes_them else [],
            checks=[
                self._keyed_kinds_query(namespace, queues),
                *(self._passing_by_queries(reading, wanted) if passes_by else []),
            ],
            takes=self._take_queries(namespace, groups) if takes_them else [],
        )

    def _passing_by_queries(self, reading: Reading, wanted: Sequence[KeyedKind]) -> list[Query]:
        """Whether a claim that holds the locks would find something of these kinds, and when the
        first of their rate keys has room. One statement asks for changes and turns, because another
        claim may make turns of changes between two. [CK10]"""
        namespace = reading.scope.namespace
        places = _places(reading, wanted)
        return [
            self._query(
                "has_turns",
                namespace=namespace,
                key_groups=self._pack(sorted({each.group for each in wanted})),
                queues=self._pack([each.queue for each in places]),
                kinds=self._pack([each.kind for each in places]),
                groups=self._pack([each.group for each in places]),
                are_rated=self._pack([str(each.is_rated) for each in places]),
            ),
            *self._first_wait_queries(namespace, wanted),
        ]

    def _first_wait_queries(self, namespace: Namespace, kinds: Sequence[KeyedKind]) -> list[Query]:
        """When the first rate key of each kind has room."""
        return [
            self._query("first_rate_wait", namespace=namespace, key_group=rate_group(kind))
            for kind in _rate_keyed_kinds(kinds)
        ]

    def _keyed_kinds_query(self, namespace: Namespace, queues: Sequence[QueueName]) -> Query:
        return self._query("keyed_kinds", namespace=namespace, queues=self._pack(queues))

    def _learn_keyed_kinds(self, tx: Transaction, scope: ClaimScope) -> NoReturn:
        """Remember which kinds have jobs with keys in these queues. This claim has not locked their
        groups, and without the lock nobody may count the leases of a key, or grant under a rate.
        So it begins again. [CK3] [RL1]"""
        queues = tuple(dict.fromkeys(scope.queues))
        [rows] = tx.fetch(self._keyed_kinds_query(scope.namespace, queues))
        if len(self._keyed_kinds) >= MAX_REMEMBERED_QUEUES:
            self._keyed_kinds.clear()
        self._keyed_kinds[scope.namespace, queues] = tuple(KeyedKind(*row) for row in rows)
        raise RestartClaim

    def _keyed_candidates(
        self,
        tx: Transaction,
        reading: Reading,
        asked: TurnsAsked,
        answers: Sequence[Sequence[Row]],
        moment: Sequence[Row],
    ) -> KeyedCandidates | None:
        """The jobs whose turn it is, as many as the claim reads of each queue and kind, from the
        answers to what it asked. It takes more changes until it finds one, because those of a long
        backlog of another key or queue may come first. [CK4]"""
        namespace = reading.scope.namespace
        keyed, in_passing, taken_rows = asked.split(answers)
        if tuple(KeyedKind(*row) for row in keyed) != asked.known:
            self._learn_keyed_kinds(tx, reading.scope)
        if not asked.wanted:
            return None
        if asked.passes_by:
            return _nothing_found(asked, in_passing, moment)
        findings = TurnFindings()
        taken = self._taken(tx, namespace, taken_rows)
        pages = 1
        while True:
            now = Instant(moment[0][0])
            self._look_back(tx, namespace, taken, now, findings)
            update = self._choose(tx, namespace, asked, _keys_among(taken), now, findings)
            found = self._read_turns(tx, reading, asked, update, findings)
            if found.jobs or not _may_be_more(taken) or pages == MAX_PAGES_OF_CHANGES:
                return found
            pages, moment = pages + 1, found.moment
            taken = self._taken(tx, namespace, tx.fetch(*asked.takes))

    def _look_back(
        self,
        tx: Transaction,
        namespace: Namespace,
        taken: Sequence[TakenKey],
        now: Instant,
        findings: TurnFindings,
    ) -> None:
        """The change of a delayed job is taken when the job is due. If the clock is set back then,
        the job is delayed again, and nothing would say when it is due. So each group has a mark
        that says up to when such changes were taken. A claim that comes before its mark takes it,
        and notes the jobs again that are due in between. [CK10] [Z6]"""
        for each in taken:
            if each.key == _MARK:
                findings.groups.add(each.group)
                tx.fetch(self._noting_again(namespace, each.group, since=now, until=each.noted_at))
            due_at = now if each.key == _MARK else each.due_at
            if due_at > findings.due_at.get(each.group, 0):
                findings.due_at[each.group] = due_at

    def _noting_again(
        self, namespace: Namespace, group: str, *, since: Instant, until: int
    ) -> Query:
        """The statement that notes the delayed jobs of a group that are due after `since`."""
        kind, span = rated_kind_of(group), {"since": since, "until": until}
        if kind is None:
            return self._query(
                "note_delayed_keys_again", namespace=namespace, concurrency_group=group, **span
            )
        return self._query(
            "note_delayed_rate_keys_again", namespace=namespace, key_group=group, kind=kind, **span
        )

    # --- choosing ------------------------------------------------------------------------------

    def _choose(
        self,
        tx: Transaction,
        namespace: Namespace,
        asked: TurnsAsked,
        taken: Sequence[TakenKey],
        now: Instant,
        findings: TurnFindings,
    ) -> TurnUpdate:
        """Choose the turns of these keys again: first those of concurrency keys, because the rate
        keys choose among them. The statements that are left are sent with those that read turns."""
        findings.groups |= {each.group for each in taken}
        queries = self._give_turns(namespace, asked, taken)
        rated = {
            RateKey(kind, each.key): each.tat
            for each in taken
            if (kind := rated_kind_of(each.group)) is not None
        }
        if queries and asked.knows_rates:
            # Sent now: which rate keys to choose again depends on the turns that are given here.
            given = _rate_keys_of(tx.fetch(*queries))
            queries = []
            mine = {each for each in given if rate_group(each.kind) in asked.locked}
            # The others are for a claim that has locked them.
            findings.notes += _rate_notes(namespace, sorted(given - mine), {}, now)
            if more := mine - rated.keys():
                [rows] = tx.fetch(self._rate_key_query(namespace, more))
                loaded = rate_states_from(rows)
                rated |= {each: loaded.get(each.meter) for each in more}
        states = {each.meter: tat for each, tat in rated.items() if tat is not None}
        findings.rate_states |= states
        return self._open_turns(namespace, asked, sorted(rated), states, now, queries)

    def _give_turns(
        self, namespace: Namespace, asked: TurnsAsked, taken: Sequence[TakenKey]
    ) -> list[Query]:
        """The statements that choose the turns of concurrency keys again."""
        states = {
            ConcurrencyKey(each.group, each.key): self._key_state(namespace, each.group, each.live)
            for each in taken
            if rated_kind_of(each.group) is None
        }
        room = {key: state.room for key, state in states.items() if state.room}
        if not states:
            return []
        return [
            self._query("delete_turns_of_keys", namespace=namespace, **self._pack_keys(states)),
            *(self._give_queries(namespace, room, asked.known) if room else []),
        ]

    def _open_turns(
        self,
        namespace: Namespace,
        asked: TurnsAsked,
        keys: Sequence[RateKey],
        states: Mapping[Meter, Instant],
        now: Instant,
        queries: Sequence[Query],
    ) -> TurnUpdate:
        """These statements, and then those that open as many turns of these rate keys as there is
        room for. [RL8]"""
        settings = self._settings_of_kinds(namespace)
        room = GrantRoom(
            now=now,
            queues={},
            kinds={each.kind: settings[each.kind] for each in keys if each.kind in settings},
            rate_states=states,
        )
        most = {each: rate_key_turns(room, each.kind, each.key) for each in keys}
        able = {each: turns for each, turns in most.items() if turns}
        closing = [*queries, *self._close_queries(namespace, most)]
        opening = self._open_queries(namespace, able, asked.known) if able else []
        return TurnUpdate(closing, opening, most, room, now)

    def _close_queries(self, namespace: Namespace, keys: Collection[RateKey]) -> list[Query]:
        """The statements that take the turns of these rate keys away; none for no keys. A job that
        has a concurrency key too keeps the turn of that one, which is closed."""
        if not keys:
            return []
        packed = self._pack_rate_keys(keys)
        names = ("delete_turns_of_rates", "close_turns_of_rates")
        return [self._query(name, namespace=namespace, **packed) for name in names]

    def _pack_rate_keys(self, keys: Iterable[RateKey]) -> dict[str, object]:
        return self._pack_keys([ConcurrencyKey(each.kind, each.key) for each in keys])

    def _rate_key_query(self, namespace: Namespace, keys: Iterable[RateKey]) -> Query:
        """Where the rates of these keys stand."""
        return self._query(
            "load_rate_states_of_keys",
            namespace=namespace,
            scope=RateScope.KIND.value,
            **self._pack_rate_keys(sorted(keys)),
        )

    def _key_state(self, namespace: Namespace, group: str, live: int, served: int = 0) -> KeyState:
        """A key of this group. Only claims that hold the group's lock give its jobs leases."""
        return KeyState(
            limit=self._concurrency_limit(namespace, group),
            live=live,
            is_fair=self._is_fair(namespace, group),
            served=served,
        )

    # --- reading -------------------------------------------------------------------------------

    def _read_turns(
        self,
        tx: Transaction,
        reading: Reading,
        asked: TurnsAsked,
        update: TurnUpdate,
        findings: TurnFindings,
    ) -> KeyedCandidates:
        """Do what is left of choosing, then read the turns, what decides about them, and the clock.
        Instead of jobs that this version cannot read, others are asked for. [Y5]"""
        namespace = reading.scope.namespace
        places = _places(reading, asked.wanted)
        about = self._queries_about_turns(namespace, asked)
        first = [*update.closing, *update.opening]
        asked_more = 0
        while True:
            queries = self._turn_queries(namespace, places, reading.and_more(asked_more))
            answers = tx.fetch(*first, *queries, *about)
            if first:
                findings.notes += update.notes(namespace, answers[: len(first)])
            by_place = list(zip(places, answers[len(first) : -len(about)], strict=True))
            findings.groups.update(*(place.groups for place, rows in by_place if rows))
            found = [row for _, rows in by_place for row in rows]
            jobs = list(readable_jobs([row[:_STATE] for row in found]))
            passed_over = len(found) - len(jobs)
            if passed_over <= asked_more or asked_more >= MAX_PASSED_OVER:
                return self._candidates(
                    namespace, asked, jobs, found, answers[-len(about) :], findings
                )
            asked_more, first = min(passed_over, MAX_PASSED_OVER), []

    def _turn_queries(
        self, namespace: Namespace, places: Sequence[TurnPlace], reading: Reading
    ) -> list[Query]:
        return [
            self._query(
                "turns",
                namespace=namespace,
                queue=place.queue,
                kind=place.kind,
                concurrency_group=place.group,
                is_rated=place.is_rated,
                scope=RateScope.KIND.value,
                wanted=_wanted_at(place, reading),
            )
            for place in places
        ]

    def _queries_about_turns(self, namespace: Namespace, asked: TurnsAsked) -> list[Query]:
        """When the first rate key of each kind has room, the last grant of each fair group, and the
        clock."""
        return [
            *self._first_wait_queries(namespace, asked.wanted),
            *[
                self._query("last_served", namespace=namespace, concurrency_group=group)
                for group in self._fair_groups(namespace, asked)
            ],
            self._query("moment_to_claim"),
        ]

    def _fair_groups(self, namespace: Namespace, asked: TurnsAsked) -> list[str]:
        return [group for group in sorted(asked.locked) if self._is_fair(namespace, group)]

    def _candidates(
        self,
        namespace: Namespace,
        asked: TurnsAsked,
        jobs: Sequence[Job],
        found: Sequence[Row],
        about: Sequence[Sequence[Row]],
        findings: TurnFindings,
    ) -> KeyedCandidates:
        """What was read, as the planner sees it."""
        states = {row[_ID]: row[_STATE:] for row in found}
        keys: dict[ConcurrencyKey, KeyState] = {}
        rate_states = dict(findings.rate_states)
        for job in jobs:
            live, served, tat = states[job.id]
            key = concurrency_key_of(job)
            # Leases may end between two statements: the larger number is the safe one.
            if key is not None and (key not in keys or keys[key].live < live):
                keys[key] = self._key_state(namespace, key.group, live, served)
            if tat is not None:
                rate_states[kind_meter(job.kind, job.rate_key)] = Instant(tat)
        *numbers, moment = about
        kinds = asked.rate_keyed_kinds
        waits, last = numbers[: len(kinds)], numbers[len(kinds) :]
        fair = self._fair_groups(namespace, asked)
        return KeyedCandidates(
            jobs=jobs,
            moment=moment,
            keys=keys,
            served={group: number or 0 for group, [(number,)] in zip(fair, last, strict=True)},
            rate_states=rate_states,
            key_waits=_key_waits(kinds, waits, findings.notes, moment[0][0]),
            notes=findings.notes,
            busy_groups=frozenset(findings.groups),
            due_at=findings.due_at,
        )

    # --- after a claim -------------------------------------------------------------------------

    def _end_turns(
        self,
        namespace: Namespace,
        view: ClaimView,
        planned: ClaimPlan,
        turns: KeyedCandidates | None,
    ) -> list[Query]:
        """The statements that delete the turns that were granted and those of keys that have no
        room any more, and that note which keys must be looked at again, and when."""
        if turns is None:
            return []
        granted = [change.job for change in planned.changes]
        used = [job.id for job in granted if _turn_key(job) is not None]
        of_keys, key_notes = self._end_turns_of_keys(namespace, view, granted)
        of_rates, rate_notes = self._end_turns_of_rates(namespace, view, planned, granted)
        notes = [*turns.notes, *key_notes, *rate_notes]
        return [
            *([self._query("delete_turns", ids=self._pack(used))] if used else []),
            *of_keys,
            *of_rates,
            *self._served_queries(namespace, planned.served, view.now),
            *(self._key_change_queries(notes) if notes else []),
            *[
                self._query(
                    "mark_due", namespace=namespace, key_group=group, never=NEVER, due_at=due_at
                )
                for group, due_at in sorted(turns.due_at.items())
            ],
        ]

    def _end_turns_of_keys(
        self, namespace: Namespace, view: ClaimView, granted: Sequence[Job]
    ) -> tuple[list[Query], list[KeyChange]]:
        """Take the turns of keys without room away. The end of a job notes a key that is at its
        limit. A fair key below its limit has no room in this claim only: it is noted at once."""
        taken = Counter(key for job in granted if (key := concurrency_key_of(job)) is not None)
        full = [key for key, number in taken.items() if view.keys[key].room <= number]
        if not full:
            return [], []
        packed = self._pack_keys(full)
        notes = [
            KeyChange(namespace, key.group, key.key, AT_ONCE)
            for key in full
            if view.keys[key].live + taken[key] < view.keys[key].limit
        ]
        queries = [
            self._query("note_rates_of_keys", namespace=namespace, rates=_RATES, **packed),
            self._query("delete_turns_of_keys", namespace=namespace, **packed),
        ]
        return queries, notes

    def _end_turns_of_rates(
        self,
        namespace: Namespace,
        view: ClaimView,
        planned: ClaimPlan,
        granted: Sequence[Job],
    ) -> tuple[list[Query], list[KeyChange]]:
        """Take the turns of rate keys that have no room any more away, and note when they have room
        again. The turns of the other keys are chosen again by the next claim."""
        used = sorted({RateKey(job.kind, job.rate_key) for job in granted if job.rate_key})
        if not used:
            return [], []
        room = GrantRoom(
            now=view.now,
            queues={},
            kinds=view.kinds,
            rate_states=view.rate_states | planned.rate_states,
        )
        found = {each: room.wait_of_key(each.kind, each.key) for each in used}
        waits = {each: wait for each, wait in found.items() if wait}
        notes = _rate_notes(namespace, used, waits, view.now)
        return self._close_queries(namespace, waits), notes


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


def _wanted_at(place: TurnPlace, reading: Reading) -> int:
    """How many turns a claim reads there. The room of the kind does not bound jobs with a rate key:
    each key has room of its own."""
    most = reading.most[place.queue]
    return most if place.is_rated else min(most, reading.most_of_kinds.get(place.kind, most))


def _rate_keyed_kinds(kinds: Sequence[KeyedKind]) -> list[str]:
    return sorted({each.kind for each in kinds if each.is_rated})


def _nothing_found(
    asked: TurnsAsked, answers: Sequence[Sequence[Row]], moment: Sequence[Row]
) -> KeyedCandidates:
    """What a claim that passes keys by knows of them. Raises `RestartClaim` if it must not."""
    [(has_turns,)], *waits = answers
    if has_turns:
        raise RestartClaim
    return KeyedCandidates(
        jobs=(),
        moment=moment,
        keys={},
        served={},
        rate_states={},
        key_waits=_key_waits(asked.rate_keyed_kinds, waits, (), moment[0][0]),
        notes=(),
        busy_groups=frozenset(),
        due_at={},
    )


def _key_waits(
    kinds: Sequence[str],
    first: Sequence[Sequence[Row]],
    notes: Sequence[KeyChange],
    now: int,
) -> dict[Kind, Duration]:
    """By kind, how long until a job that waits for the rate of its rate key may be granted: by what
    is noted in the store, and what this claim is about to note."""
    found: dict[Kind, Duration] = {}
    for kind, [(at,)] in zip(kinds, first, strict=True):
        instants = [each.at for each in notes if each.noted_at and each.group == rate_group(kind)]
        instants += [] if at is None else [at]
        found[Kind(kind)] = Duration(max(1, min(instants) - now) if instants else 0)
    return found


def _rate_notes(
    namespace: Namespace,
    keys: Iterable[RateKey],
    waits: Mapping[RateKey, Duration],
    now: Instant,
) -> list[KeyChange]:
    """When turns of these rate keys must be chosen again: after their wait, or else at once."""
    return [
        KeyChange(namespace, rate_group(each.kind), each.key, now + wait, now)
        if (wait := waits.get(each))
        else KeyChange(namespace, rate_group(each.kind), each.key, AT_ONCE)
        for each in keys
    ]


def _rate_keys_of(answers: Sequence[Sequence[Row]]) -> set[RateKey]:
    """The rate keys of turns that were deleted or given: the last columns are a kind and a key."""
    return {RateKey(Kind(row[-2]), row[-1]) for rows in answers for row in rows if row[-1]}


def _keys_among(taken: Sequence[TakenKey]) -> list[TakenKey]:
    """Those that are no marks."""
    return [each for each in taken if each.key != _MARK]


def _may_be_more(taken: Sequence[TakenKey]) -> bool:
    """Whether a group may have more changes than were taken."""
    changes: Counter[str] = Counter()
    for each in taken:
        changes[each.group] += each.changes
    return any(number >= MAX_KEY_CHANGES for number in changes.values())
