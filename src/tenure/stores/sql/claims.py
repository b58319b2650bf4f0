"""One claim: lock, read, let the planner decide, write.

Each step belongs to an object of its own, and this one puts them together:

1. `SqlAdmission` admits the jobs of dirty keys, if there are some.
2. One round trip locks and reads (`Opening`). It locks the claiming sessions, and the settings,
   which then cannot change until the commit. If the settings are not the ones that this process
   knew (`SqlSettings`), the claim starts again. It reads sessions, candidates and the clock.
3. Only if there are limits or rates: they are counted under the lock of their row in `slot`, and
   the candidates are read after that, no more than there is room for. A rule that another claim has
   locked is left out: jobs without such a rule never wait for one.
4. `core.claims` plans on this view, without I/O.
5. One round trip writes the plan and commits: jobs, sessions, states of rates, and dirty keys.
"""

import random
import time
from collections.abc import Callable, Mapping, Sequence
from functools import partial

import msgspec
from msgspec.structs import replace

from tenure.core.claims import (
    ClaimPlan,
    ClaimScope,
    ClaimView,
    QueueState,
    body_bytes,
    first_with_room,
    usable_candidates,
)
from tenure.core.ids import Kind, Namespace, QueueName
from tenure.core.instants import Duration
from tenure.core.kind_settings import KindSettings
from tenure.core.outcomes import Session, SessionKey
from tenure.core.rates import Meter, kind_meter, queue_meter
from tenure.errors import StoreUnavailable
from tenure.ports import NextReady
from tenure.stores.sql.admission import SqlAdmission
from tenure.stores.sql.candidates import Candidates, Reading, SqlCandidates, names_few_kinds
from tenure.stores.sql.claim_dialect import ClaimDialect
from tenure.stores.sql.database import Database, Part, Transaction
from tenure.stores.sql.depths import DELAYED, NOT_DUE, SqlDepths
from tenure.stores.sql.jobs import SqlJobs
from tenure.stores.sql.limits import SqlSettings
from tenure.stores.sql.rows import Row, left_out_bytes, rate_states_from, session_from
from tenure.stores.sql.statements import Query, Shape

MAX_CLAIM_RESTARTS = 10
"""How often a claim starts again: because this process knew other settings, or keys are dirty, or
other claims have locked all limits and rates of what it asks for."""

LONGEST_PAUSE_S = 0.005
"""Before a claim starts again because other claims are counting."""

MAX_REMEMBERED_SCOPES = 1_000
"""For how many scopes of claims a process remembers that keys were dirty."""

MAX_OPENINGS = 200
"""How many prepared openings are kept; when there are more, all are prepared again."""

_OF_KINDS: Shape = (("kinds", "{each_kind}"),)
_DIRTY_KINDS = """WITH RECURSIVE dirty (kind) AS (
    SELECT (SELECT min(d.kind) FROM {t}dirty_key AS d WHERE d.namespace = :namespace)
     UNION ALL
    SELECT (SELECT min(d.kind) FROM {t}dirty_key AS d
             WHERE d.namespace = :namespace AND d.kind > f.kind)
      FROM dirty AS f WHERE f.kind IS NOT NULL)
SELECT f.kind FROM dirty AS f WHERE f.kind IS NOT NULL"""
"""From kind to kind through the index."""
_OF_ANY_KIND: Shape = (("kinds", _DIRTY_KINDS),)


class RestartClaim(Exception):
    """The claim starts again: the settings changed, or keys are dirty: what it read is old."""


class RulesAreBusy(Exception):
    """The claim starts again after a pause: it found nothing, and left out what other claims count
    under just now."""


class Rules(msgspec.Struct, frozen=True):
    """What is set for the queues and kinds that a claim asks for. Most claims have no rules."""

    queues: dict[QueueName, QueueState]
    """The queues that are paused, limited or rated."""
    kinds: dict[Kind, KindSettings]
    """The kinds that have a rate."""

    @property
    def limited(self) -> list[QueueName]:
        """The queues whose leases are counted."""
        return [
            name for name, each in self.queues.items() if each.limit is not None and not each.paused
        ]

    @property
    def meters(self) -> list[Meter]:
        """The limits and rates, as meters, that only one claim at a time may count."""
        return [
            *[
                queue_meter(name)
                for name, each in self.queues.items()
                if not each.paused and (each.limit is not None or each.rate is not None)
            ],
            *[kind_meter(kind) for kind in self.kinds],
        ]


class Opening(msgspec.Struct, frozen=True):
    """What a claim sends first, in one round trip: locks, and then it reads the sessions, what
    counts under the rules, the candidates if there are no rules and jobs are admitted apart, and
    the clock."""

    kinds: Mapping[QueueName, Sequence[Kind]]
    rules: Rules | None
    reading: Reading | None
    queries: list[Query]
    locks: int
    """How many of the queries are locks: the first ones."""
    counts: int
    """How many count under the rules."""


class SqlClaims(Part):
    """`tenure.ports.Claiming`."""

    def __init__(
        self,
        database: Database,
        dialect: ClaimDialect,
        *,
        settings: SqlSettings,
        admission: SqlAdmission,
        candidates: SqlCandidates,
        depths: SqlDepths,
        jobs: SqlJobs,
    ) -> None:
        super().__init__(database)
        self._database = database
        self._dialect = dialect
        self._settings = settings
        self._admission = admission
        self._candidates = candidates
        self._oldest = depths.oldest
        self._jobs = jobs
        # A hint that saves a round trip: the last claim of these scopes found dirty keys.
        self._dirty_scopes: set[ClaimScope] = set()
        self._openings: dict[tuple[ClaimScope, tuple[SessionKey, ...], int], Opening] = {}

    def claim(
        self,
        scope: ClaimScope,
        sessions: Sequence[SessionKey],
        wanted: int,
        plan: Callable[[ClaimView], ClaimPlan],
    ) -> ClaimPlan:
        """Lock, read, let `plan` decide, write the plan; remember it as acknowledged."""
        begun = self._database.begin()
        planned = self._claim_until_done(scope, sessions, wanted, plan)
        self._database.acknowledged(planned.changes, begun=begun)
        return planned

    def _claim_until_done(
        self,
        scope: ClaimScope,
        sessions: Sequence[SessionKey],
        wanted: int,
        plan: Callable[[ClaimView], ClaimPlan],
    ) -> ClaimPlan:
        for restarts in range(MAX_CLAIM_RESTARTS):
            has_admitted = scope in self._dirty_scopes
            if has_admitted:
                self._write(lambda tx: self._admission.admit(tx, scope))
            is_last = restarts == MAX_CLAIM_RESTARTS - 1
            work = partial(self._claim, scope, sessions, wanted, plan, has_admitted, is_last)
            try:
                planned = self._write(work)
            except RestartClaim:
                continue
            except RulesAreBusy:
                time.sleep(random.uniform(0, LONGEST_PAUSE_S))  # noqa: S311 - guards nothing
                continue
            return replace(planned, restarts=restarts) if restarts else planned
        raise StoreUnavailable(
            f"the settings of {', '.join(scope.queues)} keep changing", hint="claim again"
        )

    def _claim(
        self,
        scope: ClaimScope,
        sessions: Sequence[SessionKey],
        wanted: int,
        plan: Callable[[ClaimView], ClaimPlan],
        has_admitted: bool,
        is_last: bool,
        tx: Transaction,
    ) -> ClaimPlan:
        opening = self._opening(tx, scope, sessions, wanted)
        kinds, rules, reading = opening.kinds, opening.rules, opening.reading
        remembered, *answers, [moment] = tx.fetch(*opening.queries)[opening.locks :]
        counted, found = answers[: opening.counts], answers[opening.counts :]
        now, epoch, settling_since, rev, is_dirty = moment
        self._saw_epoch(epoch)
        self._settings.refresh(tx, scope.namespace, epoch, rev)
        if self._rules_of(scope.namespace, kinds) != rules:
            raise RestartClaim
        if is_dirty and not self._dialect.admits_apart:
            self._admission.admit(tx, scope)
            [[(now, _)]] = tx.fetch(self._query("moment"))
        elif is_dirty or has_admitted:
            self._remember_dirty(scope, is_dirty=is_dirty)
            if is_dirty and not has_admitted and not is_last:
                raise RestartClaim  # jobs admitted now may come before what it found
        view = ClaimView(
            now=now,
            epoch=epoch,
            sessions=_sessions_among(remembered, sessions),
            queues={name: QueueState(name=name) for name in kinds},
            candidates=(),
            settling_since=settling_since,
        )
        if rules is not None:
            view = _with_usage(view, rules, counted)
            reading = Reading.within(scope, kinds, rules.kinds.keys(), view.room, wanted)
        assert reading is not None
        if rules is not None or not self._dialect.admits_apart:
            found = tx.fetch(*self._candidates.queries(reading))
        candidates = self._candidates.readable(tx, reading, found, now)
        view = _with_candidates(view, rules, candidates, wanted)
        if view.busy and not view.candidates and not is_last:
            raise RulesAreBusy
        view = self._with_large_bodies(tx, view, claims=len(sessions))
        planned = plan(view)
        self._write_plan(tx, scope.namespace, view, planned)
        return replace(planned, skipped_locked=True) if candidates.skipped_locked else planned

    def _opening(
        self, tx: Transaction, scope: ClaimScope, sessions: Sequence[SessionKey], wanted: int
    ) -> Opening:
        """What such a claim sends first. Equal claims of named kinds without rules send the same:
        it is prepared once."""
        key = (scope, tuple(sessions), wanted)
        prepared = self._openings.get(key)
        if prepared is not None and self._rules_of(scope.namespace, prepared.kinds) is None:
            return prepared
        kinds = self._candidates.kinds_of(tx, scope, tuple(dict.fromkeys(scope.queues)))
        rules = self._rules_of(scope.namespace, kinds)
        reading = Reading.of_all(scope, kinds, wanted) if rules is None else None
        locks = self._dialect.claim_locks(scope.namespace, sessions)
        counts = [] if rules is None else self._counting_queries(scope.namespace, rules)
        can_read = reading is not None and self._dialect.admits_apart
        workers = self._pack([each.worker for each in sessions])
        opening = Opening(
            kinds=kinds,
            rules=rules,
            reading=reading,
            queries=[
                *locks,
                self._query("load_sessions", namespace=scope.namespace, workers=workers),
                *counts,
                *(self._candidates.queries(reading) if reading is not None and can_read else []),
                self.moment_query(scope),
            ],
            locks=len(locks),
            counts=len(counts),
        )
        if rules is None and names_few_kinds(scope):
            if len(self._openings) >= MAX_OPENINGS:
                self._openings.clear()
            self._openings[key] = opening
        return opening

    def moment_query(self, scope: ClaimScope) -> Query:
        if scope.kinds is None:
            return self._query("moment_to_claim", _OF_ANY_KIND, namespace=scope.namespace)
        return self._query(
            "moment_to_claim",
            _OF_KINDS,
            namespace=scope.namespace,
            kinds=self._pack(scope.kinds),
        )

    def _remember_dirty(self, scope: ClaimScope, *, is_dirty: bool) -> None:
        if not is_dirty:
            self._dirty_scopes.discard(scope)
            return
        if len(self._dirty_scopes) >= MAX_REMEMBERED_SCOPES:
            self._dirty_scopes.clear()
        self._dirty_scopes.add(scope)

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

    # --- limits and rates ----------------------------------------------------------------------

    def _rules_of(
        self, namespace: Namespace, kinds: Mapping[QueueName, Sequence[Kind]]
    ) -> Rules | None:
        """What is set for these queues and kinds, as this process knows it; None for nothing."""
        known = self._settings.known(namespace)
        if not known.queues and not known.kinds:
            return None
        queues = {name: known.queues[name] for name in kinds if name in known.queues}
        rated = {
            kind: known.kinds[kind]
            for kind in sorted({kind for names in kinds.values() for kind in names})
            if kind in known.kinds and known.kinds[kind].rate is not None
        }
        return Rules(queues, rated) if queues or rated else None

    def _counting_queries(self, namespace: Namespace, rules: Rules) -> list[Query]:
        """Lock the rules, then count the leases of limited queues, and read when the first rate key
        of each kind has room."""
        names = [name for name, each in rules.queues.items() if not each.paused]
        kinds = self._pack(list(rules.kinds))
        slots = {"queues": self._pack(names), "kinds": kinds}
        return [
            self._query("lock_slots", namespace=namespace, **slots),
            self._query("rate_waits", namespace=namespace, kinds=kinds),
            *[self._query("count_live", namespace=namespace, queue=name) for name in rules.limited],
        ]

    # --- writing -------------------------------------------------------------------------------

    def _write_plan(
        self, tx: Transaction, namespace: Namespace, view: ClaimView, planned: ClaimPlan
    ) -> None:
        also = self._dialect.session_queries(planned.sessions)
        also += self._dialect.slot_changes(namespace, planned.rate_states)
        granted = [change.job for change in planned.changes]
        states = view.rate_states | planned.rate_states
        also += self._admission.note_granted(namespace, granted, states, view.now)
        if planned.changes or also:
            self._jobs.write_claimed(tx, planned.changes, view.epoch, also)

    def _with_large_bodies(self, tx: Transaction, view: ClaimView, *, claims: int) -> ClaimView:
        """If large bodies were not read, the view with the candidates that the plan can use and
        their bodies; otherwise the view unchanged. [Z10]"""
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


def _with_usage(view: ClaimView, rules: Rules, counted: Sequence[Sequence[Row]]) -> ClaimView:
    """The view with what counts under the rules that this claim has locked."""
    slots, waits, *live = counted
    states = rate_states_from(slots)
    leases = {name: number for name, [(number,)] in zip(rules.limited, live, strict=True)}
    return replace(
        view,
        queues=view.queues
        | {name: replace(each, live=leases.get(name, 0)) for name, each in rules.queues.items()},
        kinds=rules.kinds,
        rate_states=states,
        key_waits={
            Kind(kind): Duration(0 if at is None else max(1, at - view.now)) for kind, at in waits
        },
        busy=frozenset(rules.meters) - states.keys(),
    )


def _with_candidates(
    view: ClaimView, rules: Rules | None, found: Candidates, wanted: int
) -> ClaimView:
    """The view, with the found jobs that can be granted together."""
    if rules is None:
        return replace(view, candidates=found.jobs)
    view = replace(view, rate_states=view.rate_states | found.rate_states)
    return replace(view, candidates=first_with_room(found.jobs, view.room, wanted=wanted))


def _sessions_among(rows: Sequence[Row], wanted: Sequence[SessionKey]) -> dict[SessionKey, Session]:
    found = map(session_from, rows)
    return {session.key: session for session in found if session.key in wanted}
