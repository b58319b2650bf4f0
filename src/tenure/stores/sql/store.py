"""The logic that all SQL stores share: what is read, what is locked, what is written when.

A dialect runs the transactions and writes the changes; this module turns each method of the port
into statements. Like every store it decides nothing: callers pass plans and decisions in.
"""

from abc import abstractmethod
from collections.abc import Callable, Mapping, Sequence, Set

import msgspec
from msgspec import UNSET, UnsetType
from msgspec.structs import replace

from tenure.core.artifacts import ArtifactQuotas
from tenure.core.claims import (
    ClaimPlan,
    ClaimScope,
    ClaimView,
    GrantRoom,
    QueueState,
    body_bytes,
    claim_order,
    first_with_room,
    kind_meter,
    queue_meter,
    rates_in_force,
    usable_candidates,
)
from tenure.core.concurrency import with_room
from tenure.core.flow_rows import Edge
from tenure.core.ids import Epoch, Kind, Namespace, QueueName
from tenure.core.instants import Duration, Instant
from tenure.core.job import MADE_BY_AN_END, Job
from tenure.core.kind_settings import KindSettings
from tenure.core.outcomes import Session, SessionKey
from tenure.core.rates import Meter, Rate
from tenure.core.vocabulary import RENEWALS, EventCause, EventType
from tenure.errors import StoreUnavailable
from tenure.ports import (
    NO_LIMIT,
    NextReady,
)
from tenure.stores.sql import (
    artifacts,
    flows,
    jobs,
    limits,
    schedules,
    tokens,
    workers,
)
from tenure.stores.sql.artifacts import SqlArtifacts
from tenure.stores.sql.audit import SqlAudit
from tenure.stores.sql.candidates import Reading, SqlCandidates
from tenure.stores.sql.claim_marks import MarkedClaim
from tenure.stores.sql.depths import DELAYED, NOT_DUE, SqlDepths
from tenure.stores.sql.events import SqlEvents
from tenure.stores.sql.flows import SqlFlows
from tenure.stores.sql.jobs import SqlJobs
from tenure.stores.sql.limits import SqlLimits, queue_state_from, rate_parameters
from tenure.stores.sql.overview import SqlOverview
from tenure.stores.sql.quiet_rules import NO_RULES, QuietRules, Rules
from tenure.stores.sql.rollups import SqlRollups
from tenure.stores.sql.rows import (
    BODIES_LEFT_OUT,
    EVENT_FIELDS,
    INLINE_BODY_BYTES,
    JOB_COLUMNS,
    OBSERVATION_COLUMNS,
    SESSION_COLUMNS,
    Row,
    left_out_bytes,
    rate_states_from,
    session_from,
)
from tenure.stores.sql.schedules import SqlSchedules
from tenure.stores.sql.statements import Query, Statements
from tenure.stores.sql.tokens import SqlTokens
from tenure.stores.sql.transactions import RestartClaim, Transaction
from tenure.stores.sql.turns import KeyedCandidates, SqlTurns, TurnsAsked
from tenure.stores.sql.upkeep import SqlUpkeep
from tenure.stores.sql.views import SqlViews
from tenure.stores.sql.workers import SqlWorkers

LISTING_SHARE = 0.5
"""The share of a call's time that a list may take. [B24]"""

MAX_CLAIM_RESTARTS = 10
"""How often a claim begins again: because the settings of its queues and kinds, or the kinds that
have jobs with keys, are not those that this process knew; or, once, because it found something
under a rule whose lock it had left out."""

_BODY_PLACEHOLDERS = {"payload": "'null'", "checkpoint": "NULL", "result": "NULL"}
"""What is selected instead of a job's bodies if these are not wanted."""

_SMALL_BODIES = {
    "payload": f"CASE WHEN {{body_bytes}} <= {INLINE_BODY_BYTES} THEN j.payload"
    f" ELSE '{BODIES_LEFT_OUT}' || CAST({{body_bytes}} AS text) END",
    "checkpoint": f"CASE WHEN {{body_bytes}} <= {INLINE_BODY_BYTES} THEN j.checkpoint END",
}
"""What is selected of a candidate's bodies. [Z10]"""

COLUMN_WORDS = {
    **jobs.COLUMN_WORDS,
    **artifacts.COLUMN_WORDS,
    **limits.COLUMN_WORDS,
    **workers.COLUMN_WORDS,
    **tokens.COLUMN_WORDS,
    **flows.COLUMN_WORDS,
    **schedules.COLUMN_WORDS,
    "job_columns": ", ".join(JOB_COLUMNS),
    "job_columns_to_claim": ", ".join(_SMALL_BODIES.get(name, f"j.{name}") for name in JOB_COLUMNS),
    "count_as_job": ", ".join("n" if name == "rev" else "NULL" for name in JOB_COLUMNS),
    "job_columns_without_bodies": ", ".join(
        _BODY_PLACEHOLDERS.get(name, name) for name in JOB_COLUMNS
    ),
    "event_columns": ", ".join(EVENT_FIELDS),
    "observation_columns": ", ".join(OBSERVATION_COLUMNS),
    "session_columns": ", ".join(SESSION_COLUMNS),
    "claimed": f"'{EventType.CLAIMED.value}'",
    # In this order: SQLite uses a partial index only for a list that is written like its own.
    "renewals": ", ".join(f"'{each.value}'" for each in EventType if each in RENEWALS),
    "made_by_an_end": ", ".join(f"'{each.value}'" for each in EventCause if each in MADE_BY_AN_END),
}


class SqlStore(SqlCandidates, SqlLimits, SqlTurns):
    """`tenure.ports.Store` over SQL. Dialects fill in the abstract methods."""

    _quiet_rules: QuietRules | None = None
    """Which locks claims leave out; None: none."""

    def __init__(self, statements: Statements) -> None:
        super().__init__(statements)
        # Hints: they choose locks and round trips. A claim checks them again under its locks.
        self._unusual_queues: dict[tuple[Namespace, QueueName], QueueState] = {}
        self.artifact_quotas = ArtifactQuotas()
        flows = SqlFlows(self, self._edge_insertion)
        depths, rollups, workers = SqlDepths(self), SqlRollups(self), SqlWorkers(self)
        artifacts = SqlArtifacts(self, lambda: self.artifact_quotas)
        made = self._make_jobs(flows)
        schedules = SqlSchedules(self, made)
        self.jobs, self.flows, self.events = made, flows, SqlEvents(self)
        self.claims = self.settings = self
        self.schedules, self.workers, self.artifacts = schedules, workers, artifacts
        self.tokens = SqlTokens(self, schedules)
        overview = SqlOverview(
            self, depths=depths, rollups=rollups, workers=workers, schedules=schedules
        )
        self.views = self._make_views(overview, depths)
        self.upkeep = SqlUpkeep(self, artifacts=artifacts, rollups=rollups)
        self.audit = SqlAudit(self)
        self._oldest = depths.oldest

    def _make_views(self, overview: SqlOverview, depths: SqlDepths) -> SqlViews:
        return SqlViews(self, overview=overview, depths=depths)

    # --- what a dialect provides ---------------------------------------------------------------

    @abstractmethod
    def _make_jobs(self, flows: SqlFlows) -> SqlJobs:
        """The jobs of this dialect."""

    @abstractmethod
    def _edge_insertion(self, edges: Sequence[Edge]) -> Query:
        """The statement that writes new edges."""

    @abstractmethod
    def _claim_locks(
        self,
        scope: ClaimScope,
        sessions: Sequence[SessionKey],
        limited: Set[QueueName],
        kinds: Set[Kind],
    ) -> list[Query]:
        """Locks that keep claims apart from `put_queue` and `put_kind`, and from other claims of
        the same sessions, limited queues and these kinds."""

    @abstractmethod
    def _queue_lock(self, namespace: Namespace, name: QueueName) -> list[Query]:
        """The lock that every claim of this queue waits for."""

    @abstractmethod
    def _epoch_queries(self) -> list[Query]:
        """Statements that wait for all writes of the old epoch, then raise it; the last one returns
        the new epoch."""

    @abstractmethod
    def _session_queries(self, sessions: Sequence[Session]) -> list[Query]:
        """The statements that record what each session was granted last."""

    def now(self) -> Instant:
        """The store's clock."""
        [(now, _)] = self._rows(self._query("moment"))
        return Instant(now)

    # --- claiming and sweeping -----------------------------------------------------------------

    def claim(
        self,
        scope: ClaimScope,
        sessions: Sequence[SessionKey],
        wanted: int,
        plan: Callable[[ClaimView], ClaimPlan],
    ) -> ClaimPlan:
        """Lock, read, let `plan` decide, write what it says."""
        quiet = NO_RULES if self._quiet_rules is None else self._quiet_rules.of(scope)
        for restarts in range(MAX_CLAIM_RESTARTS):
            try:
                planned = self._claim_once(scope, sessions, wanted, plan, quiet)
            except RestartClaim:
                quiet = NO_RULES
                if self._quiet_rules is not None:
                    self._quiet_rules.forget(scope)
                continue
            return replace(planned, restarts=restarts) if restarts else planned
        raise StoreUnavailable(
            f"the settings of {', '.join(scope.queues)} keep changing", hint="claim again"
        )

    def _claim_once(
        self,
        scope: ClaimScope,
        sessions: Sequence[SessionKey],
        wanted: int,
        plan: Callable[[ClaimView], ClaimPlan],
        quiet: Rules,
    ) -> ClaimPlan:
        with self._marked(scope) as marked:
            planned, unused = self._write(
                lambda tx: self._claim(tx, scope, sessions, wanted, plan, marked, quiet)
            )
            marked.granted = {change.job.id for change in planned.changes}
            if marked.skipped_locked:
                planned = replace(planned, skipped_locked=True)
        if self._quiet_rules is not None:
            self._quiet_rules.remember(scope, unused)
        return planned

    def _claim(
        self,
        tx: Transaction,
        scope: ClaimScope,
        sessions: Sequence[SessionKey],
        wanted: int,
        plan: Callable[[ClaimView], ClaimPlan],
        marked: MarkedClaim,
        quiet: Rules,
    ) -> tuple[ClaimPlan, Rules]:
        """The plan, and the rules under which there is nothing to grant."""
        opened = self._open_claim(tx, scope, sessions, wanted, marked, quiet)
        found, moment = self._readable_candidates(
            tx, opened.reading, opened.candidate_answers, marked
        )
        turns = self._with_turns(tx, opened, moment)
        [(now, epoch, settling_since, _)] = moment if turns is None else turns.moment
        self._saw_epoch(epoch)
        view = ClaimView(
            now=now,
            epoch=epoch,
            sessions=opened.sessions,
            queues=opened.queues,
            candidates=(),
            kinds=opened.kinds,
            rate_states=opened.rate_states,
            settling_since=settling_since,
        )
        view = _with_candidates(view, found, turns, wanted)
        rules = opened.rules
        used = NO_RULES if rules == NO_RULES else _used_rules(view, turns)
        if used - opened.locked != NO_RULES:
            raise RestartClaim
        view = self._with_large_bodies(tx, view, claims=len(sessions))
        planned = plan(view)
        self._write_plan(tx, scope.namespace, view, planned, turns)
        return planned, rules - used

    def _with_large_bodies(self, tx: Transaction, view: ClaimView, *, claims: int) -> ClaimView:
        """The view, if bodies of candidates were left out: with the candidates that the plan can
        use, and with their bodies. [Z10]"""
        sizes = [left_out_bytes(job) for job in view.candidates]
        if not any(sizes):
            return view
        known = [
            body_bytes(job) if size is None else size
            for job, size in zip(view.candidates, sizes, strict=True)
        ]
        usable = view.candidates[: usable_candidates(known, claims=claims)]
        large = [job.id for job, size in zip(usable, sizes, strict=False) if size is not None]
        found: dict[str, tuple[bytes, bytes | None]] = {}
        if large:
            [rows] = tx.fetch(self._query("load_bodies", ids=self._pack(large)))
            found = {
                str(job_id): (payload.encode(), None if point is None else point.encode())
                for job_id, payload, point in rows
            }
        return replace(
            view,
            candidates=[
                replace(job, payload=found[job.id][0], checkpoint=found[job.id][1])
                if job.id in found
                else job
                for job in usable
            ],
        )

    def _open_claim(
        self,
        tx: Transaction,
        scope: ClaimScope,
        sessions: Sequence[SessionKey],
        wanted: int,
        marked: MarkedClaim,
        quiet: Rules,
    ) -> "_OpenedClaim":
        """Lock, check the settings, read candidates and changes of keys: in one round trip, unless
        a queue or kind is paused or limited. The locks of quiet rules are left out."""
        names = tuple(dict.fromkeys(scope.queues))
        expected = self._expected_settings(scope, names)
        kinds = self._kinds_to_claim(tx, scope, names)
        rated = self._kinds_with_rates(scope, kinds)
        if rated:
            marked.leave_out_kinds()
        reading = Reading(scope, kinds, dict.fromkeys(names, wanted), begins_at=marked.begins_at)
        at_once = not expected and not rated
        asked = self._ask_turns(reading, names, quiet.groups) if at_once else None
        usage = _usage(expected, rated)
        locked = _rules(expected, rated) - quiet
        locks = self._claim_locks(scope, sessions, locked.queues, locked.kinds)
        counts = self._usage_queries(scope.namespace, usage)
        read = (
            self._reading_queries(reading, asked) if at_once else [self._query("moment_to_claim")]
        )
        remembered, settings, *answers = tx.fetch(
            *locks, *self._opening_queries(scope, sessions, names), *counts, *read
        )[len(locks) :]
        counted, found = answers[: len(counts)], answers[len(counts) :]
        moment = found[-1]
        checked = self._checked_settings(scope, names, settings, expected, at_once=at_once)
        self._check_kinds(tx, scope, kinds, rated, moment)
        queues, rate_states = self._with_usage(tx, scope, checked, rated, (usage, counted))
        if not at_once:
            now = Instant(moment[0][0])
            room = GrantRoom(now=now, queues=queues, kinds=rated, rate_states=rate_states)
            reading, asked, found = self._read_within(tx, room, reading, names, quiet)
        of_keys = 0 if asked is None else len(asked.queries)
        return _OpenedClaim(
            locked=locked if asked is None else replace(locked, groups=asked.locked),
            reading=reading,
            settings=settings,
            sessions=_sessions_among(remembered, sessions),
            queues=queues,
            kinds=rated,
            rate_states=rate_states,
            asked=asked,
            key_answers=found[:of_keys],
            candidate_answers=found[of_keys:],
        )

    def _read_within(
        self,
        tx: Transaction,
        room: GrantRoom,
        reading: Reading,
        names: tuple[QueueName, ...],
        quiet: Rules,
    ) -> tuple[Reading, TurnsAsked | None, list[list[Row]]]:
        """What a claim reads of queues and kinds that have room, and the answers."""
        reading = reading.within(room)
        asked = self._ask_turns(reading, names, quiet.groups)
        return reading, asked, tx.fetch(*self._reading_queries(reading, asked))

    def _reading_queries(self, reading: Reading, asked: TurnsAsked | None) -> list[Query]:
        """The changes of keys, then the candidates and the clock."""
        return [*([] if asked is None else asked.queries), *self._candidate_queries(reading)]

    def _write_plan(
        self,
        tx: Transaction,
        namespace: Namespace,
        view: ClaimView,
        planned: ClaimPlan,
        turns: KeyedCandidates | None,
    ) -> None:
        also = self._session_queries(planned.sessions)
        also += self._rate_state_changes(namespace, planned.rate_states)
        also += self._end_turns(namespace, view, planned, turns)
        if planned.changes or also:
            self.jobs.write_claimed(tx, planned.changes, view.epoch, also)

    def _opening_queries(
        self, scope: ClaimScope, sessions: Sequence[SessionKey], names: Sequence[QueueName]
    ) -> list[Query]:
        workers = self._pack([key.worker for key in sessions])
        return [
            self._query("load_sessions", namespace=scope.namespace, workers=workers),
            self._query("load_queue_settings", namespace=scope.namespace, queues=self._pack(names)),
        ]

    def _kinds_with_rates(
        self, scope: ClaimScope, kinds: Mapping[QueueName, Sequence[str]]
    ) -> dict[Kind, KindSettings]:
        """Those of these kinds that had a rate when this process last read the settings."""
        known = self._known_kinds(scope.namespace).settings
        if not known:
            return {}
        wanted = {Kind(kind) for names in kinds.values() for kind in names}
        return {
            kind: known[kind]
            for kind in sorted(wanted)
            if kind in known and known[kind].rate is not None
        }

    def _check_kinds(
        self,
        tx: Transaction,
        scope: ClaimScope,
        kinds: Mapping[QueueName, Sequence[str]],
        rated: Mapping[Kind, KindSettings],
        moment: Sequence[Row],
    ) -> None:
        """Raise `RestartClaim` if something else is set for these kinds than the claim chose its
        locks by. Nothing can be set while the claim holds its locks. [RL5]"""
        [(_, epoch, _, rev)] = moment
        self._refresh_kinds(tx, scope.namespace, Epoch(epoch), rev)
        if self._kinds_with_rates(scope, kinds) != rated:
            raise RestartClaim

    def _with_turns(
        self, tx: Transaction, opened: "_OpenedClaim", moment: Sequence[Row]
    ) -> KeyedCandidates | None:
        """The jobs with keys whose turn it is, if these queues ever had some."""
        reading, asked = opened.reading, opened.asked
        if asked is not None:
            return self._keyed_candidates(tx, reading, asked, opened.key_answers, moment)
        if any(has_keys for *_, has_keys in opened.settings):
            self._learn_keyed_kinds(tx, reading.scope)
        return None

    def _expected_settings(
        self, scope: ClaimScope, names: Sequence[QueueName]
    ) -> dict[QueueName, QueueState]:
        """The queues that were paused or limited when this store last read their settings."""
        found = {name: self._unusual_queues.get((scope.namespace, name)) for name in names}
        return {name: state for name, state in found.items() if state is not None}

    def _checked_settings(
        self,
        scope: ClaimScope,
        names: Sequence[QueueName],
        rows: Sequence[Row],
        expected: Mapping[QueueName, QueueState],
        *,
        at_once: bool,
    ) -> dict[QueueName, QueueState]:
        """The settings as they were read under the locks. Raises `RestartClaim` if they need other
        locks.

        Corrects the hints for the next claim. This claim uses what it read, not the hints: a
        `put_queue` of another thread updates them only after it has released its lock. [Z2] [Z3]
        """
        states = [queue_state_from(row) for row in rows]
        found = {state.name: state for state in states}
        for name in names:
            state = found.get(name)
            if state is None or state.is_ordinary:
                self._unusual_queues.pop((scope.namespace, name), None)
                continue
            self._unusual_queues[scope.namespace, name] = state
            was_limited = name in expected and _serialises(expected[name])
            if at_once or (_serialises(state) and not was_limited):
                raise RestartClaim
        return {name: found.get(name, QueueState(name=name)) for name in names}

    def _with_usage(
        self,
        tx: Transaction,
        scope: ClaimScope,
        queues: dict[QueueName, QueueState],
        kinds: Mapping[Kind, KindSettings],
        counted: tuple["_Usage", Sequence[Sequence[Row]]],
    ) -> tuple[dict[QueueName, QueueState], dict[Meter, Instant]]:
        """The queues with the number of their live leases, counted only where there is a limit, and
        where the rates of queues and kinds stand: as they were counted, unless the claim expected
        other settings."""
        (expected, answers), usage = counted, _usage(queues, kinds)
        if usage != expected:
            answers = tx.fetch(*self._usage_queries(scope.namespace, usage))
        counts, states = answers[: len(usage.limited)], answers[len(usage.limited) :]
        live = {name: number for name, [(number,)] in zip(usage.limited, counts, strict=True)}
        return (
            {name: replace(state, live=live.get(name, 0)) for name, state in queues.items()},
            rate_states_from(row for rows in states for row in rows),
        )

    def _usage_queries(self, namespace: Namespace, usage: "_Usage") -> list[Query]:
        return [
            *[self._query("count_live", namespace=namespace, queue=name) for name in usage.limited],
            *self._rate_queries(namespace, usage.rates),
        ]

    # --- queues, ticks, outages, epoch ---------------------------------------------------------

    def put_queue(
        self,
        namespace: Namespace,
        name: QueueName,
        *,
        paused: bool | None,
        limit: int | None,
        rate: Rate | UnsetType | None = UNSET,
    ) -> QueueState:
        """Change a queue's settings, after all claims that use the old ones have ended."""
        key = {"namespace": namespace, "name": name}
        changes = [self._query("register_queue", **key)]
        if paused is not None:
            changes.append(self._query("set_queue_paused", paused=paused, **key))
        if limit is not None:
            changes.append(self._query("set_queue_limit", concurrency_limit=limit or None, **key))
        look = [
            self._query("load_queue_settings", namespace=namespace, queues=self._pack([name])),
            self._query("count_live", namespace=namespace, queue=name),
            self._query("moment"),
        ]

        def change(tx: Transaction) -> QueueState:
            tx.fetch(*self._queue_lock(namespace, name), *changes)
            [settings], [(live,)], [(now, _)] = tx.fetch(*look)
            state = queue_state_from(settings, live)
            if rate is not UNSET:
                state = state.with_rate(rate, Instant(now))
                to_set = rate_parameters(state.rate, state.rate_since)
                tx.fetch(self._query("set_queue_rate", **key, **to_set))
            return state

        state = self._write(change)
        self._unusual_queues[namespace, name] = state
        return state

    def next_ready(self, namespace: Namespace, queues: Sequence[QueueName]) -> NextReady:
        """Whether these queues have a ready job, and when the next one will be."""
        asked = [
            self._query("count_ready", jobs=1, namespace=namespace, queue=name) for name in queues
        ]
        asked += [self._oldest(sort, namespace, queues) for sort in (DELAYED, NOT_DUE)]
        *ready, delayed, not_due, [(now, _)] = self._read(
            lambda tx: tx.fetch(*asked, self._query("moment"), last=True)
        )
        is_ready = any(count for [(count,)] in ready) or any(at <= now for _, at in delayed)
        later = [Duration(max(0, at - now)) for _, at in not_due if at is not None]
        return NextReady(is_ready, min(later, default=None))

    def queues(
        self, namespace: Namespace, *, after: str = "", limit: int = NO_LIMIT
    ) -> list[QueueState]:
        """The queues after this name that had jobs or settings, with their live leases. [B43]"""
        page = {"namespace": namespace, "after": after, "limit": limit}
        settings, counts = self._read(
            lambda tx: tx.fetch(
                self._query("load_queues", **page),
                self._query("count_live_by_queue", **page),
                last=True,
            ),
            listing=True,
        )
        live: dict[str, int] = {row[0]: row[1] for row in counts}
        return [queue_state_from(row, live.get(row[0], 0)) for row in settings]

    def raise_epoch(self) -> Epoch:
        """Begin a new epoch, after every write under the old one has ended. [A5] [A12]"""
        queries = self._epoch_queries()
        [(epoch,)] = self._write(lambda tx: tx.fetch(*queries, last=True))[-1]
        self._saw_epoch(Epoch(epoch))
        return Epoch(epoch)


class _Usage(msgspec.Struct, frozen=True):
    """What is counted for a claim: the leases of limited queues, and where rates stand."""

    limited: tuple[QueueName, ...]
    rates: tuple[Meter, ...]


class _OpenedClaim(msgspec.Struct, frozen=True, kw_only=True):
    """What a claim has locked and read before it looks at turns and delayed jobs."""

    locked: Rules
    """The rules whose locks it has."""
    reading: Reading
    settings: Sequence[Row]
    sessions: dict[SessionKey, Session]
    queues: dict[QueueName, QueueState]
    kinds: dict[Kind, KindSettings]
    rate_states: dict[Meter, Instant]
    asked: TurnsAsked | None
    key_answers: Sequence[Sequence[Row]]
    """The answers to `asked.queries`."""
    candidate_answers: Sequence[Sequence[Row]]
    """The answers to `_candidate_queries`."""

    @property
    def rules(self) -> Rules:
        """The rules that its jobs may be under."""
        rules = _rules(self.queues, self.kinds)
        return rules if self.asked is None else replace(rules, groups=self.asked.groups)


def _usage(
    queues: Mapping[QueueName, QueueState],
    kinds: Mapping[Kind, KindSettings],
) -> _Usage:
    return _Usage(
        tuple(sorted(name for name, state in queues.items() if state.limit is not None)),
        tuple(rates_in_force(queues, kinds)),
    )


def _with_candidates(
    view: ClaimView, found: Sequence[Job], turns: KeyedCandidates | None, wanted: int
) -> ClaimView:
    """The view with those of the jobs that were found that could be granted together."""
    if turns is not None:
        view = replace(
            view,
            rate_states=view.rate_states | turns.rate_states,
            keys=turns.keys,
            key_waits=turns.key_waits,
            served=turns.served,
        )
        found = with_room(sorted([*found, *turns.jobs], key=claim_order), turns.keys)
    return replace(view, candidates=first_with_room(found, view.room, view.keys, wanted=wanted))


def _sessions_among(rows: Sequence[Row], wanted: Sequence[SessionKey]) -> dict[SessionKey, Session]:
    found = map(session_from, rows)
    return {session.key: session for session in found if session.key in wanted}


def _rules(queues: Mapping[QueueName, QueueState], kinds: Mapping[Kind, KindSettings]) -> Rules:
    """The queues and kinds among these whose claims wait for each other."""
    limited = frozenset(name for name, state in queues.items() if _serialises(state))
    return Rules(limited, frozenset(kinds))


def _used_rules(view: ClaimView, turns: KeyedCandidates | None) -> Rules:
    """The rules whose locks a plan needs: jobs that it may grant are under them, or it corrects
    where their rate stands; and the groups of keys in which the claim found something."""
    queues = {job.queue for job in view.candidates}
    kinds = {job.kind for job in view.candidates if job.rate_key is None}
    corrected = view.room.changed
    return Rules(
        frozenset(
            name
            for name, state in view.queues.items()
            if _serialises(state) and (name in queues or queue_meter(name) in corrected)
        ),
        frozenset(kind for kind in view.kinds if kind in kinds or kind_meter(kind) in corrected),
        frozenset() if turns is None else turns.busy_groups,
    )


def _serialises(state: QueueState) -> bool:
    """Whether claims of this queue wait for each other: they count what the others were granted."""
    return state.limit is not None or state.rate is not None
