"""Stores that are wrong on purpose, one rule each. The kit must catch every one of them.

Each is SQLite in memory with one mistake: a method of the port that forgets something, or a
statement of which a part is replaced. Where a guard of the schema would refuse the mistake, the
guard is removed: stores of others may have none.
"""

from collections.abc import Callable, Iterable, Sequence
from typing import Any, NamedTuple, cast

from msgspec.structs import replace

from tenure.core.artifacts import Artifact, ArtifactUpload, Staging
from tenure.core.claims import ClaimPlan, ClaimView
from tenure.core.ids import Epoch, JobId
from tenure.core.instants import Duration, Instant
from tenure.core.outcomes import Change, SessionKey
from tenure.core.views.events import EventFilter, EventPage, TailFilter, TailPage
from tenure.core.views.rollups import Fold
from tenure.core.vocabulary import RENEWALS, EventType
from tenure.ports import (
    Clock,
    DueJobs,
    JobsWanted,
    Loaded,
    Locked,
    Measures,
    PruneResult,
    Saved,
    Store,
)
from tenure.stores.sql.artifacts import ARTIFACT_COLUMNS
from tenure.stores.sql.database import Transaction
from tenure.stores.sql.rollups import SqlRollups
from tenure.stores.sql.rows import Row
from tenure.stores.sql.statements import Query, Shape
from tenure.stores.sql.upkeep import SqlUpkeep
from tenure.stores.sqlite.memory import MemoryDatabase, MemoryStore
from tenure.stores.sqlite.store import SqliteParts
from tenure_conformance.harness import MemoryFactory

Altered = dict[str, tuple[str, str]]
"""Of statements by name: a part, and what stands there instead."""


class AlteredDatabase(MemoryDatabase):
    """A database in memory that runs some statements altered."""

    def __init__(self, clock: Clock, altered: Altered) -> None:
        super().__init__(clock)
        self.altered = altered
        right = self.query

        def query(name: str, shape: Shape = (), /, **parameters: object) -> Query:
            made = right(name, shape, **parameters)
            return replace(made, text=made.text.replace(*self.altered.get(name, ("", ""))))

        self.query = query


class WrongStore(MemoryStore):
    """A store in memory whose statements may be altered."""

    database: AlteredDatabase

    def __init__(self, clock: Clock, altered: Altered) -> None:
        SqliteParts.__init__(self, AlteredDatabase(clock, altered))

    def drop_guards(self) -> None:
        """Let rows be written that the schema refuses."""
        for (name,) in self.run("SELECT name FROM sqlite_master WHERE type = 'trigger'"):
            self.run(f"DROP TRIGGER {name}")
        self.run("PRAGMA ignore_check_constraints = ON")

    def run(self, text: str) -> list[Row]:
        """The rows of a statement of ours."""

        def work(tx: Transaction) -> list[Row]:
            [rows] = tx.fetch(Query(text, ()))
            return rows

        return self.database.write(work)


class Mistake(NamedTuple):
    """A rule that a store breaks, and the subject of the kit that must catch it."""

    name: str
    subject: str
    alter: Callable[[WrongStore], Store | None]
    altered: Altered


WRONG: dict[str, Mistake] = {}
"""All mistakes by name."""

Alter = Callable[[WrongStore], Store | None]


def wrong(subject: str) -> Callable[[Alter], Alter]:
    """Register a mistake, made by a function that alters the objects of a store, or returns
    another store."""

    def register(alter: Alter) -> Alter:
        WRONG[alter.__name__] = Mistake(alter.__name__, subject, alter, {})
        return alter

    return register


def wrong_statement(subject: str, name: str, **altered: tuple[str, str]) -> None:
    """Register a mistake in a statement."""
    WRONG[name] = Mistake(name, subject, lambda store: None, altered)


class With:
    """An object with some of its methods replaced."""

    def __init__(self, original: object, **methods: object) -> None:
        self._original = original
        self.__dict__.update(methods)

    def __getattr__(self, name: str) -> Any:
        return getattr(self._original, name)


class Wrong(MemoryFactory):
    """The factory of a wrong store."""

    def __init__(self, name: str = "forgets_events") -> None:
        super().__init__()
        self._mistake = WRONG[name]

    def make(self, clock: Clock) -> Store:
        store = WrongStore(clock, dict(self._mistake.altered))
        return self._mistake.alter(store) or store


# --- Saving --------------------------------------------------------------------------------------


def _saves(store: WrongStore, altered: Callable[[Change], Change]) -> None:
    """Save each change altered."""
    save = store.jobs.save

    def save_altered(changes: Iterable[Change], **given: Any) -> Saved:
        return save([altered(change) for change in changes], **given)

    store.jobs = cast(Any, With(store.jobs, save=save_altered))


@wrong("saving")
def ignores_not_after(store: WrongStore) -> None:
    """Writes a report after its lease has ended. [K2]"""
    _saves(store, lambda change: replace(change, not_after=None))


@wrong("saving")
def one_microsecond_late(store: WrongStore) -> None:
    """Takes the instant of the end as still in time. [L9]"""

    def later(change: Change) -> Change:
        end = change.not_after
        return change if end is None else replace(change, not_after=Instant(end + 1))

    _saves(store, later)


@wrong("saving")
def ignores_rev(store: WrongStore) -> None:
    """The last writer wins. [K1]"""

    def with_present_rev(change: Change) -> Change:
        present = store.jobs.read([change.job.id]).get(change.job.id)
        if present is None or not change.expected_rev:
            return change
        return replace(change, expected_rev=present.rev)

    _saves(store, with_present_rev)


@wrong("saving")
def forgets_events(store: WrongStore) -> None:
    """Writes the row and not its start. [K3]"""
    store.drop_guards()
    save = store.jobs.save

    def save_rows(changes: Iterable[Change], **given: Any) -> Saved:
        saved = save(changes, **given)
        store.run(f"DELETE FROM tenure_job_event WHERE type = '{EventType.STARTED.value}'")
        return saved

    store.jobs = cast(Any, With(store.jobs, save=save_rows))


@wrong("saving")
def forgets_spawned_jobs(store: WrongStore) -> None:
    """Writes the row and not the job that came with it. [K3]"""
    _saves(store, lambda change: replace(change, spawned=()))


@wrong("dead_letters")
def forgets_the_redriven(store: WrongStore) -> None:
    """Writes the new job and not what it resolves. [B17]"""
    _saves(store, lambda change: replace(change, resolution=None))


@wrong("clock_and_epoch")
def ignores_the_epoch(store: WrongStore) -> None:
    """Takes changes that were decided before a fail-over. [A5]"""
    save = store.jobs.save

    def save_now(changes: Iterable[Change], *, epoch: Epoch, **window: Any) -> Saved:
        return save(changes, epoch=store.jobs.load([]).epoch, **window)

    store.jobs = cast(Any, With(store.jobs, save=save_now))


@wrong("clock_and_epoch")
def trusts_any_estimate(store: WrongStore) -> None:
    """Takes changes that were decided by a wrong estimate of its clock. [K11]"""
    save = store.jobs.save

    def save_anyway(changes: Iterable[Change], *, epoch: Epoch, **window: Any) -> Saved:
        return save(changes, epoch=epoch)

    store.jobs = cast(Any, With(store.jobs, save=save_anyway))


@wrong("saving")
def decides_without_locking(store: WrongStore) -> None:
    """Reads, decides and saves one after the other, and lets others in between. [K9]"""
    save, save_locked = store.jobs.save, store.jobs.save_locked

    def save_unlocked(
        ids: Sequence[JobId],
        sessions: Sequence[SessionKey],
        decide: Callable[[Locked], Sequence[Change]],
    ) -> Saved:
        read: list[Locked] = []

        def only_read(locked: Locked) -> Sequence[Change]:
            read.append(locked)
            return []

        save_locked(ids, sessions, only_read)
        return save(decide(read[-1]), epoch=read[-1].epoch)

    store.jobs = cast(Any, With(store.jobs, save_locked=save_unlocked))


@wrong("dedupe")
def shares_keys_across_kinds(store: WrongStore) -> None:
    """Compares dedupe keys and forgets the kind. [D5]"""
    save = store.jobs.save

    def save_without_taken(changes: Iterable[Change], **given: Any) -> Saved:
        taken = {key.key for key, _ in store.audit.live_keys()}
        free = [each for each in changes if each.expected_rev or each.job.dedupe_key not in taken]
        return save(free, **given)

    store.jobs = cast(Any, With(store.jobs, save=save_without_taken))


@wrong("held_keys")
def frees_every_key(store: WrongStore) -> None:
    """Frees a job's key when the job ends, whatever the job says. [D13]"""
    load = store.jobs.load

    def load_freed(wanted: JobsWanted, **given: Any) -> Loaded:
        store.run(
            "DELETE FROM tenure_dedupe WHERE job_id IN"
            " (SELECT id FROM tenure_job WHERE finished_at IS NOT NULL)"
        )
        return load(wanted, **given)

    store.jobs = cast(Any, With(store.jobs, load=load_freed))


wrong_statement(  # [D15]
    "held_keys",
    "purges_holders",
    purgeable=("j.finished_at + j.unique_for_us <=", "j.finished_at <="),
)
wrong_statement(  # [B17]
    "dead_letters", "redrives_twice", unresolved_among=("AND NOT EXISTS", "OR NOT EXISTS")
)


@wrong("dead_letters")
def last_resolution_wins(store: WrongStore) -> None:
    """Lets a later redrive overwrite what became of a dead letter. [B1]"""
    store.drop_guards()
    names = ("kind", "ts", "actor", "request_id", "fingerprint", "note", "new_job_id")
    overwrite = ", ".join(f"{name} = excluded.{name}" for name in names)
    store.database.altered["keep_resolution"] = (
        "ON CONFLICT DO NOTHING",
        f"ON CONFLICT (job_id) DO UPDATE SET {overwrite}",
    )


@wrong("observations")
def keeps_every_observation(store: WrongStore) -> None:
    """Lets a stray worker fill the disk. [U1]"""
    store.drop_guards()
    store.database.altered["keep_observation"] = ("kept.last <", "kept.last < 9 *")


# --- Claiming ------------------------------------------------------------------------------------


def _plans(
    store: WrongStore,
    *,
    view: Callable[[ClaimView], ClaimView] = lambda view: view,
    planned: Callable[[ClaimPlan], ClaimPlan] = lambda planned: planned,
) -> None:
    """Let claims plan by another view, or write another plan."""
    claim = store.claims.claim

    def claim_altered(
        scope: Any, sessions: Any, wanted: int, plan: Callable[[ClaimView], ClaimPlan]
    ) -> ClaimPlan:
        return claim(scope, sessions, MANY, lambda right: planned(plan(view(right))))

    store.claims = cast(Any, With(store.claims, claim=claim_altered))


MANY = 1000


@wrong("claiming")
def ignores_kinds(store: WrongStore) -> None:
    """Grants kinds that a worker cannot run. [Z1]"""
    claim = store.claims.claim

    def claim_any(scope: Any, *given: Any) -> ClaimPlan:
        return claim(replace(scope, kinds=None), *given)

    store.claims = cast(Any, With(store.claims, claim=claim_any))


@wrong("claiming")
def first_come_first_served(store: WrongStore) -> None:
    """Has no use for priorities. [Z1]"""
    _plans(
        store,
        view=lambda view: replace(view, candidates=sorted(view.candidates, key=lambda job: job.id)),
    )


@wrong("claiming")
def holds_ready_jobs_back(store: WrongStore) -> None:
    """Compares the place of a job with the clock, as if every job had a delay. [Z6]"""
    _plans(
        store,
        view=lambda view: replace(
            view, candidates=[job for job in view.candidates if (job.run_at or 0) <= view.now]
        ),
    )


@wrong("undelivered")
def forgets_repeats(store: WrongStore) -> None:
    """Does not remember that a claim came again. [Q8]"""
    _plans(
        store,
        planned=lambda planned: replace(
            planned, sessions=[replace(each, is_repeated=False) for each in planned.sessions]
        ),
    )


wrong_statement(  # [Z3]: counts live leases too low by one
    "queues", "exceeds_the_limit", count_live=("count(*)", "max(0, count(*) - 1)")
)
wrong_statement(  # [Z2]
    "queues", "grants_from_paused_queues", load_unusual_queues=("paused,", "0,")
)
wrong_statement("rates", "forgets_rates", lock_slots=("s.tat", "0"))  # [RL1]
wrong_statement(  # [RL11]: reads the state of the first rate key for all
    "rate_keys", "counts_rate_keys_together", used_of_key=("s.key =", "s.key <> '' AND '' <>")
)
wrong_statement(  # [RL13]
    "rate_keys", "forgets_rate_keys_too_early", delete_idle_slots=("tat <=", "tat <> -")
)
wrong_statement(  # [CK3]: counts the live leases of a concurrency key too low by one
    "concurrency_keys", "runs_two_of_a_key", used_of_key=("count(*)", "count(*) - 1")
)
wrong_statement(  # [CK1]: counts the leases of equal keys of all kinds
    "concurrency_keys", "shares_concurrency_keys", used_of_key=("j.kind =", "'' <>")
)
wrong_statement(  # [CK13]
    "turns_of_keys",
    "gives_old_jobs_the_place_of_their_enqueue",
    candidates=("coalesce(j.admitted_at, j.run_at)", "j.run_at"),
    merged_candidates=("coalesce(j.admitted_at, j.run_at)", "j.run_at"),
)


# --- Sweeping, upkeep and retention --------------------------------------------------------------


@wrong("sweeping")
def sweeps_in_any_order(store: WrongStore) -> None:
    """Shows overdue jobs by id. [W1]"""
    load = store.jobs.load

    def load_by_id(wanted: JobsWanted, **given: Any) -> Loaded:
        if not isinstance(wanted, DueJobs):
            return load(wanted, **given)
        found = load(DueJobs(MANY), **given)
        return replace(found, jobs=dict(sorted(found.jobs.items())[: wanted.limit]))

    store.jobs = cast(Any, With(store.jobs, load=load_by_id))


@wrong("clock_and_epoch")
def takes_jumps_for_outages(store: WrongStore) -> None:
    """Forgets what an outage was. [O12]"""
    record = store.upkeep.record_outage
    store.upkeep = cast(
        Any,
        With(store.upkeep, record_outage=lambda outage: record(replace(outage, is_jump=False))),
    )


def _deletes(store: WrongStore, renewals: Callable[..., PruneResult]) -> None:
    """Delete renewals otherwise."""
    delete = store.upkeep.delete

    def delete_altered(what: Any, **given: Any) -> PruneResult:
        return renewals(**given) if what == "renewals" else delete(what, **given)

    store.upkeep = cast(Any, With(store.upkeep, delete=delete_altered))


@wrong("retention")
def prunes_transitions(store: WrongStore) -> None:
    """Takes a start for a renewal. [E3]"""
    store.drop_guards()
    delete = store.upkeep.delete

    def prune(**given: Any) -> PruneResult:
        store.run(f"DELETE FROM tenure_job_event WHERE type = '{EventType.STARTED.value}'")
        return delete("renewals", **given)

    _deletes(store, prune)


@wrong("retention")
def prunes_the_living(store: WrongStore) -> None:
    """Prunes renewals while their attempt is live. [G1]"""
    renewals = ", ".join(f"'{each.value}'" for each in RENEWALS)

    def prune(**given: Any) -> PruneResult:
        text = f"DELETE FROM tenure_job_event WHERE type IN ({renewals}) RETURNING seq"
        return PruneResult(len(store.run(text)), hit_limit=False)

    _deletes(store, prune)


@wrong("retention")
def prunes_only_the_first_page(store: WrongStore) -> None:
    """Starts from the first renewal every time; behind a page of live ones nothing goes. [G4]"""

    def prune(**given: Any) -> PruneResult:
        database, artifacts = store.database, cast(Any, store.artifacts)
        anew = SqlUpkeep(database, artifacts=artifacts, rollups=SqlRollups(database))
        return anew.delete("renewals", **given)

    _deletes(store, prune)


wrong_statement(  # [Q7]: does not read the leases before it forgets a session
    "claiming", "forgets_who_holds_a_lease", page_of_sessions=("j.lease_id IS NOT NULL", "FALSE")
)
wrong_statement(  # [O4]
    "clock_and_epoch",
    "forgets_outages_that_excuse",
    delete_old_outages=("j.lease_id IS NOT NULL", "FALSE"),
)


@wrong("retention")
def purges_too_early(store: WrongStore) -> None:
    """Counts retention from the enqueue. [T26]"""
    store.drop_guards()
    store.database.altered["purgeable"] = ("j.finished_at <", "j.enqueued_at <")


@wrong("rollups")
def folds_twice(store: WrongStore) -> None:
    """Saves a fold though another process has folded the same events. [OB33]"""
    save = store.views.save_fold

    def save_anyway(fold: Fold) -> bool:
        return save(replace(fold, expected=store.views.unfolded(limit=1).progress.position))

    store.views = cast(Any, With(store.views, save_fold=save_anyway))


@wrong("rollups")
def forgets_how_far_it_folded(store: WrongStore) -> None:
    """Counts events beside the rollups that are in them. [OB34]"""
    save = store.views.save_fold

    def save_without_place(fold: Fold) -> bool:
        return save(replace(fold, progress=replace(fold.progress, position=fold.expected)))

    store.views = cast(Any, With(store.views, save_fold=save_without_place))


# --- Artifacts, workers, tokens ------------------------------------------------------------------


@wrong("artifacts")
def shows_what_is_only_staged(store: WrongStore) -> None:
    """Shows artifacts before their attempt has succeeded."""

    def of_job(job_id: JobId) -> list[Artifact]:
        columns = ", ".join(ARTIFACT_COLUMNS)
        rows = store.run(f"SELECT {columns} FROM tenure_artifact WHERE job_id = '{job_id}'")
        return [Artifact(**dict(zip(ARTIFACT_COLUMNS, row, strict=True))) for row in rows]

    store.artifacts = cast(Any, With(store.artifacts, of_job=of_job))


@wrong("artifacts")
def stages_after_the_end(store: WrongStore) -> None:
    """Takes an artifact of a lease that has just ended. [B7]"""
    stage, altered = store.artifacts.stage, store.database.altered

    def stage_late(upload: ArtifactUpload) -> Staging:
        altered["moment_to_decide"] = ("tenure_clock()", "tenure_clock() - 1")
        try:
            return stage(upload)
        finally:
            del altered["moment_to_decide"]

    store.artifacts = cast(Any, With(store.artifacts, stage=stage_late))


wrong_statement(  # [B10]: takes every artifact of a job that does not run for a leftover
    "artifacts",
    "collects_the_visible",
    page_of_artifacts=(
        "j.status\n",
        "CASE WHEN j.lease_id IS NULL THEN 'failed' ELSE j.status END\n",
    ),
)
wrong_statement(  # [B28]
    "artifacts", "forgets_namespace_quotas", artifact_usage=("sum(b.bytes)", "0 * sum(b.bytes)")
)
wrong_statement(  # [B20]: overwrites what an attempt said before
    "attempt_logs",
    "takes_the_latest_output",
    keep_attempt_log=("WHERE excluded.part > tenure_attempt_log.part", ""),
)


@wrong("workers")
def drains_for_ever(store: WrongStore) -> None:
    """Takes a new process for the one that was asked to stop. [B12]"""
    see = store.workers.see
    store.workers = cast(
        Any,
        With(
            store.workers,
            see=lambda process: see(replace(process, uptime_us=Duration(10**9))),
        ),
    )


wrong_statement(  # [H20]: moves the end of a token to the latest time that was asked for
    "tokens",
    "revokes_again",
    revoke_token=("coalesce(revoked_at, ", "max(0, "),
)
wrong_statement(  # [SC24]: lets schedules of a revoked token fire
    "schedules", "pauses_nothing", pause_schedule=("AND rev =", "AND rev <>")
)


# --- Reading -------------------------------------------------------------------------------------


@wrong("measures")
def counts_without_end(store: WrongStore) -> None:
    """Counts every job there is, however long that takes. [B27]"""
    measure = store.views.measure
    store.views = cast(
        Any,
        With(store.views, measure=lambda **given: measure(**given | {"jobs": MANY})),
    )


@wrong("measures")
def measures_by_name_only(store: WrongStore) -> None:
    """Lets the namespace that comes first in the alphabet have all places. [B27]"""
    measure = store.views.measure

    def by_name(*, queues: int, **given: Any) -> Measures:
        whole = measure(queues=MANY, **given)
        left_out = max(0, len(whole.queues) - queues)
        return replace(whole, queues=whole.queues[:queues], left_out=left_out)

    store.views = cast(Any, With(store.views, measure=by_name))


@wrong("histories")
def decides_on_the_whole_log(store: WrongStore) -> None:
    """Loads every event there is to decide about a job. [J8]"""
    load = store.events.load
    store.events = cast(Any, With(store.events, load=lambda ids, latest=None: load(ids)))


@wrong("event_counts")
def counts_the_end_of_a_span(store: WrongStore) -> None:
    """Counts what happened at the end of a span, which is where the next one starts. [B31]"""
    count = store.events.count

    def count_more(span: Any) -> object:
        counted = count(replace(span, until=Instant(span.until + 1)))
        return replace(counted, until=min(counted.until, span.until))

    store.events = cast(Any, With(store.events, count=count_more))


@wrong("event_pages")
def ends_with_a_short_page(store: WrongStore) -> None:
    """Takes a page that is not full for the last one. [E8]"""
    right = store.events.page

    def page(wanted: EventFilter) -> EventPage:
        found = right(wanted)
        return found if len(found.events) == wanted.limit else replace(found, next=None)

    store.events = cast(Any, With(store.events, page=page))


@wrong("following")
def continues_after_the_last_event(store: WrongStore) -> None:
    """Lets a follower continue after the newest event, whatever it has shown. [E10]"""
    right = store.events.follow

    def follow(wanted: TailFilter, **given: Any) -> TailPage:
        end = right(replace(wanted, after=None, newest=0))
        return replace(right(wanted, **given), next=end.next)

    store.events = cast(Any, With(store.events, follow=follow))


wrong_statement(  # [E9]
    "event_pages", "lists_everybodys_events", list_events=("j.namespace =", "'' <>")
)
wrong_statement(  # [E10]
    "following", "follows_everybody", follow_events=("j.namespace =", "'' <>")
)


@wrong("closing")
def answers_one_call_for_ever(store: WrongStore) -> Store:
    """Says how it is although it was closed."""
    facts = store.health()
    return cast(Store, With(store, health=lambda: facts))
