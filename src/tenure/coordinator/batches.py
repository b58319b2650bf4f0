"""Executing a batch: load, decide, save, and decide again what lost its race.

One transaction per round for all commands of the batch, whoever sent them. Only a change that
the store accepted is ever answered as done; a refusal or a replay is only ever decided on a row
that was read after the request arrived.
"""

from collections import OrderedDict, deque
from collections.abc import Iterable, Iterator, Mapping, Sequence, Set
from itertools import chain
from threading import Lock
from typing import cast, get_args

from msgspec.structs import replace

from tenure.coordinator.declared_policies import PolicyCache
from tenure.coordinator.store_clock import ESTIMATE_ERROR, StoreClock
from tenure.core.claims import Session, SessionKey, session_of, take_back
from tenure.core.commands import (
    Command,
    Discard,
    Enqueue,
    EnqueueFlow,
    FlowToRedrive,
    FollowUp,
    ParentAttempt,
    Redrive,
    RedriveFlow,
    Release,
    Sweep,
    WorkerCommand,
)
from tenure.core.events import Event
from tenure.core.ids import ENTROPY_BYTES, Epoch, FlowId, JobId
from tenure.core.instants import Instant
from tenure.core.job import Job, compensation_id, needs_compensation
from tenure.core.lateness import is_expired
from tenure.core.leases import takes_back
from tenure.core.lifecycle import decide
from tenure.core.observations import Observation
from tenure.core.outcomes import (
    NO_POLICIES,
    Applied,
    Change,
    DeclaredPolicies,
    Moment,
    NeedsHistory,
    Outcome,
    Refused,
    Resolved,
    Shared,
)
from tenure.core.requests import answer_existing, may_take_key, redriven_id
from tenure.core.resolutions import Resolution
from tenure.core.unknown_words import has_unknown_word, unknown_in_job
from tenure.core.verdicts import Answer, Reply
from tenure.core.vocabulary import Cause
from tenure.errors import (
    Contended,
    OutcomeUnknown,
    StoreRefused,
    StoreUnavailable,
    UnreadableRow,
)
from tenure.ports import (
    ANY_TIME,
    ClockWindow,
    DedupeKey,
    Entropy,
    LoadHistories,
    Locked,
    Observer,
    Saved,
    Store,
)
from tenure.telemetry.log_lines import log_observation

MAX_TRIES = 8
LOST_BEFORE_LOCKING = 2
"""So many lost races are decided again on a row that was only read; after that the row is locked.
A `complete` sent together with twenty heartbeats of its lease lost eight in a row. [K8]"""

DECIDED_TOGETHER = 250
REPLACED_PER_READ = 100
"""So many jobs that a redrive replaces are read at a time, with checkpoints of up to a MiB each."""

LARGEST_REMEMBERED_BYTES = 16 * 1024
"""Of a row's bodies. Twenty thousand rows of the largest size allowed would be forty gigabytes."""

_WORKER_COMMANDS = frozenset(get_args(WorkerCommand))
_RESOLVING = frozenset({Redrive, Discard})
_NEED_OTHER_ROWS = _RESOLVING | {
    FollowUp,
    EnqueueFlow,
    RedriveFlow,
}  # besides that of their own job


class PendingCommand:
    """One command on its way to an answer, or to an error of its own."""

    __slots__ = ("_permit", "answer", "command", "error", "lost_races", "may_unblock", "missed")

    def __init__(self, command: Command) -> None:
        self._permit = WritePermit()
        self.command = command
        self.answer: Answer | None = None
        self.error: Exception | None = None
        self.missed: Change | None = None  # the change that lost its race in the last round
        self.lost_races = 0
        self.may_unblock: list[JobId] = []  # jobs that may be able to go on after its change [FL5]

    @property
    def is_open(self) -> bool:
        """Whether it still waits for its answer."""
        return self.answer is None and self.error is None

    @property
    def needs_lock(self) -> bool:
        """Whether it is decided on locked rows: because it takes back a grant, which needs the row
        of the session too [Q8], or because the job's row changes too often for compare-and-swap.
        A new job has no row to lock."""
        if takes_back(self.command):
            return True
        is_update = self.missed is not None and self.missed.expected_rev > 0
        return is_update and self.lost_races >= LOST_BEFORE_LOCKING

    def may_write(self) -> bool:
        """Whether a change for it may be given to the store."""
        return self._permit.use()

    def withdraw(self, timeout_s: float) -> None:
        """End its wait, with nothing changed if that is still possible. [K6]"""
        self.error = deadline_error(timeout_s, is_known=self._permit.revoke())


class WritePermit:
    """Settles between two threads whether a call may still write: one uses the permit before it
    writes, the other revokes it at the call's deadline. The first of them wins."""

    __slots__ = ("_is_used", "_token")

    def __init__(self) -> None:
        self._token = [None]
        self._is_used = False

    def use(self) -> bool:
        """Whether writing is allowed: it was not revoked before."""
        if not self._is_used and self._take():
            self._is_used = True
        return self._is_used

    def revoke(self) -> bool:
        """Whether that came before any use: then nothing will ever be written."""
        return self._take()

    def _take(self) -> bool:
        try:
            self._token.pop()  # atomic: it succeeds in one thread only
        except IndexError:
            return False
        return True


def deadline_error(timeout_s: float, *, is_known: bool) -> StoreUnavailable:
    """The error for a caller whose deadline has passed; `is_known` says that nothing changed."""
    hint = "send the same request again"
    if is_known:
        return StoreUnavailable(f"the store did not answer within {timeout_s:g} s", hint=hint)
    return OutcomeUnknown(
        f"the store was writing and did not answer within {timeout_s:g} s",
        hint=f"{hint}: its id tells what became of it",
    )


class LastWritten:
    """The rows this process wrote last, so that most reports need no load: CAS is the judge.

    Measured: saves about a third of the round trips of a drain. Bounded in number and in size;
    holds leased rows only.
    """

    def __init__(self, capacity: int) -> None:
        self._capacity = capacity
        self._lock = Lock()
        self._jobs: OrderedDict[JobId, Job] = OrderedDict()

    def get(self, job_id: JobId) -> Job | None:
        """The row as this process last wrote it."""
        return self._jobs.get(job_id)

    def remember(self, jobs: Iterable[Job]) -> None:
        """Remember leased rows that are small, forget the others."""
        with self._lock:
            for job in jobs:
                size = len(job.payload) + len(job.checkpoint or b"")
                if job.lease_id is not None and size <= LARGEST_REMEMBERED_BYTES and self._capacity:
                    self._jobs[job.id] = job
                else:
                    self._jobs.pop(job.id, None)
            while len(self._jobs) > self._capacity:
                self._jobs.popitem(last=False)

    def forget(self, job_id: JobId) -> None:
        """The row turned out to be old."""
        with self._lock:
            self._jobs.pop(job_id, None)


class Executor:
    """Runs batches against a store. Holds no lock while it does; any number may run at once."""

    def __init__(
        self,
        store: Store,
        *,
        entropy: Entropy,
        clock: StoreClock,
        last_written: LastWritten,
        observer: Observer | None = None,
        policies: PolicyCache | None = None,
    ) -> None:
        self._store = store
        self._policies = policies or PolicyCache(store.settings, clock.monotonic)
        self._observer = observer
        self._entropy = entropy
        self._clock = clock
        self._last_written = last_written

    def run(self, batch: Sequence[PendingCommand]) -> None:
        """Answer every command of the batch; one per job at a time, in order of arrival."""
        waiting: Sequence[PendingCommand] = batch
        while waiting:
            waiting = self.run_wave(waiting)

    def run_wave(self, waiting: Sequence[PendingCommand]) -> list[PendingCommand]:
        """Answer the first command about each job. Returns the others, which wait for it."""
        wave: dict[JobId, PendingCommand] = {}
        later: list[PendingCommand] = []
        for pending in waiting:
            job_id = pending.command.job_id
            if job_id in wave:
                later.append(pending)
            else:
                wave[job_id] = pending
        self._answer(list(wave.values()))
        return later

    def _answer(self, wave: list[PendingCommand]) -> None:
        self._decide_and_save(wave, self._remembered_rows(wave))
        for _ in range(MAX_TRIES):
            still_open = [pending for pending in wave if pending.is_open]
            if not still_open:
                return
            unlocked = [pending for pending in still_open if not pending.needs_lock]
            if unlocked:
                self._decide_and_save(unlocked, self._load_rows(unlocked))
            for pending in still_open:
                if pending.needs_lock and pending.is_open:
                    self._decide_locked(pending)
        for pending in wave:
            if pending.is_open:
                pending.error = Contended(job_id=pending.command.job_id, tries=MAX_TRIES)

    # --- where rows come from ------------------------------------------------------------------

    def _remembered_rows(self, wave: list[PendingCommand]) -> "_Rows | None":
        """The rows as this process last wrote them; None without a recent reading of the clock."""
        estimate = self._clock.estimate()
        if estimate is None:
            return None
        now, epoch = estimate
        rows = _Rows(now, epoch, is_fresh=False)
        for pending in wave:
            command = pending.command
            kind = type(command)
            if kind is Enqueue:
                # Not a FollowUp: it depends on its parent's row, too, and no compare-and-swap of
                # the new job would prove that one current. [D10]
                rows.jobs[command.job_id] = None
            elif isinstance(command, EnqueueFlow):
                if not command.outside_ids and command.handler is None:
                    rows.jobs[command.job_id] = None
            elif kind in _WORKER_COMMANDS and not pending.needs_lock:
                job = self._last_written.get(command.job_id)
                if job is not None and job.lease_id == cast(WorkerCommand, command).lease_id:
                    rows.jobs[command.job_id] = job
        return rows

    def _load_rows(self, wave: list[PendingCommand]) -> "_Rows":
        """The rows as the store has them now."""
        wanted: list[JobId] = []
        parents: list[JobId] = []
        for pending in wave:
            wanted.append(pending.command.job_id)
            if isinstance(pending.command, Redrive):
                wanted += [compensation_id(pending.command.job_id), redriven_id(pending.command)]
            if isinstance(pending.command, FollowUp):
                parents.append(pending.command.parent.job_id)
            if isinstance(pending.command, EnqueueFlow):
                parents += pending.command.outside_ids
                if pending.command.handler is not None:
                    parents.append(pending.command.handler.job_id)
            if pending.missed is not None:
                wanted.append(pending.missed.job.id)
        sent_at = self._clock.monotonic()
        loaded = self._store.jobs.load(list(dict.fromkeys(wanted + parents)))
        self._clock.update(loaded.now, loaded.epoch, sent_at=sent_at)
        rows = _Rows(loaded.now, loaded.epoch, is_fresh=True, is_settling=loaded.is_settling)
        rows.jobs = {job_id: loaded.jobs.get(job_id) for job_id in wanted}
        rows.parents = {job_id: loaded.jobs.get(job_id) for job_id in parents}
        rows.note_unknown_words(loaded.jobs)
        self._find_existing(wave, rows)
        self._find_flows(wave, rows)
        resolving = [
            pending.command.job_id for pending in wave if type(pending.command) in _RESOLVING
        ]
        if resolving:
            rows.resolutions = self._store.jobs.resolutions(resolving)
        return rows

    def _find_existing(self, wave: list[PendingCommand], rows: "_Rows") -> None:
        """Find the jobs because of which inserts were not applied: those with the same id, else
        those with the same dedupe key. A repeated redrive finds the job that it made. [Q4]"""
        keys: dict[DedupeKey, list[JobId]] = {}
        for pending in wave:
            if isinstance(pending.command, Redrive):
                made = rows.jobs.get(redriven_id(pending.command))
                if made is not None:
                    rows.existing[pending.command.job_id] = made
                    continue
            if pending.missed is None or pending.missed.expected_rev != 0:
                continue
            job = pending.missed.job
            present = rows.jobs.get(job.id)
            if present is not None:
                rows.existing[pending.command.job_id] = present
            elif job.dedupe_key is not None:
                key = DedupeKey(job.namespace, job.kind, job.dedupe_key)
                keys.setdefault(key, []).append(pending.command.job_id)
        if keys:
            held = self._store.jobs.holders(list(keys))
            expired = [job for job in held.values() if is_expired(job, rows.now)]
            if expired:
                # One that nobody will run must not stand for the same work. [EX2] [D5]
                self.run([PendingCommand(Sweep(job_id=job.id)) for job in expired])
                held = self._store.jobs.holders(list(keys))
            rows.existing.update((job_id, job) for key, job in held.items() for job_id in keys[key])

    def _find_flows(self, wave: list[PendingCommand], rows: "_Rows") -> None:
        """Find the flows that earlier attempts of a handler made, and those to be redriven."""
        made: list[FlowId] = []
        for pending in wave:
            command = pending.command
            if isinstance(command, EnqueueFlow) and command.handler is not None:
                made.append(command.flow_id)
            elif isinstance(command, RedriveFlow):
                found = self._load_flow_to_redrive(command)
                if found is not None:
                    rows.flows[command.flow_id] = found
                    for job in found.jobs.values():
                        if has_unknown_word(job):  # nothing is decided about it [Y5]
                            rows.unknown[command.job_id] = ", ".join(unknown_in_job(job))
        if made:
            rows.made_flows = self._store.flows.existing(made)

    def _load_flow_to_redrive(self, command: RedriveFlow) -> FlowToRedrive | None:
        view = self._store.flows.load(command.namespace, command.flow_id)
        if view is None:
            return None
        if view.is_live:  # it is refused: nothing else has to be read
            return FlowToRedrive(view=view)
        ids = view.to_replace
        jobs = self._load_to_replace(ids)
        edges = self._store.flows.edges_of(ids)
        undone = [job_id for job_id, job in jobs.items() if needs_compensation(job)]
        compensations = self._store.jobs.read(
            [compensation_id(each) for each in undone], bodies=False
        )
        parents = {edge.parent_id for edge in edges} - jobs.keys()
        return FlowToRedrive(
            view=view,
            jobs=jobs,
            edges=tuple(edges),
            compensations={
                job_id: compensations[compensation_id(job_id)]
                for job_id in undone
                if compensation_id(job_id) in compensations
            },
            present=frozenset(self._store.jobs.read(sorted(parents), bodies=False)),
        )

    def _load_to_replace(self, ids: Sequence[JobId]) -> dict[JobId, Job]:
        """The jobs that a redrive replaces. Their payloads together have a limit [FL3]; checkpoints
        have none and are not needed, so that only those of one page are in memory."""
        jobs: dict[JobId, Job] = {}
        for start in range(0, len(ids), REPLACED_PER_READ):
            page = self._store.jobs.load(ids[start : start + REPLACED_PER_READ]).jobs
            jobs |= {job_id: replace(job, checkpoint=None) for job_id, job in page.items()}
        return jobs

    # --- deciding and saving -------------------------------------------------------------------

    def _decide_and_save(self, wave: list[PendingCommand], rows: "_Rows | None") -> None:
        if rows is None:
            return
        # Read now: the iterator below must not call the store.
        rows.policies = self._policies.of_commands(pending.command for pending in wave)
        outcomes: list[tuple[PendingCommand, Outcome]] = []
        changes = self._decide_in_turn(wave, rows, outcomes)
        if rows.is_fresh:
            # These may need histories: all of them are decided before the store begins to write.
            # Batches that each write and ask for one connection more would wait for each other.
            changes = iter(list(changes))
        first = next(changes, None)
        if first is not None:  # a store is not called to write nothing
            self._save(chain([first], changes), outcomes, rows)
        if rows.is_fresh:  # anything but an accepted change must be decided on a row read by now
            self._answer_unchanged(outcomes, rows)

    def _decide_locked(self, pending: PendingCommand) -> None:
        """Decide one command on its job's locked row: nobody can change it before the save."""
        job_id, sessions = pending.command.job_id, list[SessionKey]()
        if takes_back(pending.command):
            # Who holds a lease never changes: read before the lock, it is still right under it.
            key = session_of(self._store.jobs.load([job_id]).jobs.get(job_id))
            sessions = [] if key is None else [key]
        rounds: list[tuple[_Rows, list[tuple[PendingCommand, Outcome]]]] = []

        def decide_locked(locked: Locked) -> list[Change]:
            rows = _Rows(locked.now, locked.epoch, is_fresh=True, is_settling=locked.is_settling)
            rows.load_histories = locked.load_histories
            rows.jobs[job_id] = locked.jobs.get(job_id)
            rows.note_unknown_words(locked.jobs)
            rows.sessions = locked.sessions
            rounds.append((rows, self._decide_all([pending], rows)))
            return [each.change for _, each in _applied(rounds[-1][1])]

        sent_at = self._clock.monotonic()
        try:
            saved = self._store.jobs.save_locked([job_id], sessions, decide_locked)
        except StoreRefused as refusal:
            pending.error = refusal
            return
        rows, outcomes = rounds[-1]  # the last one is the one that was written
        self._answer_saved(saved, outcomes, rows, sent_at=sent_at)
        self._answer_unchanged(outcomes, rows)

    def _answer_unchanged(
        self, outcomes: list[tuple[PendingCommand, Outcome]], rows: "_Rows"
    ) -> None:
        """Answer what no change of a job was decided for: refusals, replays, resolutions."""
        observations: list[Observation] = []
        jobs: dict[JobId, Job] = {}
        resolutions = [each.resolution for _, each in outcomes if isinstance(each, Resolved)]
        resolved = self._store.jobs.resolve(resolutions) if resolutions else frozenset()
        for pending, outcome in outcomes:
            if isinstance(outcome, Applied | NeedsHistory):
                continue
            if isinstance(outcome, Resolved) and pending.command.job_id not in resolved:
                continue  # another resolution came first: load and decide again
            if isinstance(outcome, Refused) and outcome.observation is not None:
                observations.append(outcome.observation)
                job = rows.subject(pending.command)
                assert job is not None  # only reports under a lease on record are observed
                jobs[job.id] = job
            pending.answer = outcome.answer
        if observations:
            kept = self._store.jobs.observe(observations)
            for seen in kept:
                log_observation(seen, jobs[seen.job_id])
            if self._observer is not None:
                self._observer.observed(kept, jobs)

    def _decide_in_turn(
        self,
        wave: list[PendingCommand],
        rows: "_Rows",
        outcomes: list[tuple[PendingCommand, Outcome]],
    ) -> Iterator[Change]:
        """The changes to save. A store may write the first while the last are being decided: of a
        thousand new jobs, deciding and writing take the same time."""
        for start in range(0, len(wave), DECIDED_TOGETHER):
            decided = self._decide_all(wave[start : start + DECIDED_TOGETHER], rows)
            outcomes += decided
            for _, outcome in decided:
                if isinstance(outcome, Applied):
                    yield outcome.change

    def _decide_all(
        self, wave: list[PendingCommand], rows: "_Rows"
    ) -> list[tuple[PendingCommand, Outcome]]:
        entropy = self._entropy(ENTROPY_BYTES * len(wave))
        shared = Shared(rows.policies)
        decided: list[tuple[PendingCommand, Outcome]] = []
        unclear: list[tuple[PendingCommand, Moment, JobId]] = []  # and whose log is needed
        for position, pending in enumerate(wave):
            if pending.command.job_id not in rows.jobs:
                continue
            start = position * ENTROPY_BYTES
            moment = Moment(
                now=rows.now,
                epoch=rows.epoch,
                entropy=entropy[start : start + ENTROPY_BYTES],
                is_settling=rows.is_settling,
                shared=shared,
            )
            outcome = _try_to_decide(pending, rows, moment, None)
            if isinstance(outcome, Applied):  # tested first: most are, and a failed test is slower
                decided.append((pending, outcome))
            elif isinstance(outcome, NeedsHistory):
                unclear.append((pending, moment, outcome.job_id))
            elif outcome is not None:
                decided.append((pending, outcome))
        if unclear and rows.is_fresh:
            decided += self._decide_with_histories(unclear, rows)
        return decided

    def _decide_with_histories(
        self, unclear: list[tuple[PendingCommand, Moment, JobId]], rows: "_Rows"
    ) -> list[tuple[PendingCommand, Outcome]]:
        # The log is read after the row, so it has at least every event that led to the row.
        load = rows.load_histories or self._store.events.load_to_decide
        rows.histories = load(list(dict.fromkeys(job_id for _, _, job_id in unclear)))
        decided: list[tuple[PendingCommand, Outcome]] = []
        for pending, moment, job_id in unclear:
            outcome = _try_to_decide(pending, rows, moment, rows.histories.get(job_id, []))
            if outcome is not None:
                decided.append((pending, outcome))
        return decided

    def _save(
        self,
        changes: Iterator[Change],
        outcomes: list[tuple[PendingCommand, Outcome]],
        rows: "_Rows",
    ) -> None:
        """`outcomes` grows while the changes are taken."""
        sent_at = self._clock.monotonic()
        try:
            saved = self._store.jobs.save(changes, epoch=rows.epoch, window=rows.window)
        except StoreRefused as refusal:
            deque(changes, maxlen=0)  # decide the rest
            applied = _applied(outcomes)
            if len(applied) == 1:
                self._answer_refused(applied[0][0], refusal)
                return
            for pending, outcome in applied:  # one bad change must not take its neighbours down
                self._save(iter([outcome.change]), [(pending, outcome)], rows)
            return
        self._answer_saved(saved, outcomes, rows, sent_at=sent_at)

    def _answer_refused(self, pending: PendingCommand, refusal: StoreRefused) -> None:
        """A flow with an id of another flow, or of a job that exists, is its caller's mistake;
        anything else is a bug. It is looked up only now: such ids are rare. [FL3]"""
        command = pending.command
        if isinstance(command, EnqueueFlow) and self._is_taken(command):
            if command.handler is None:
                pending.answer = Reply(job=None, cause=Cause.IDEMPOTENCY_KEY_REUSE)
            else:  # [FL13]
                pending.answer = Reply(job=None, replayed=True)
        else:
            pending.error = refusal

    def _is_taken(self, flow: EnqueueFlow) -> bool:
        jobs = self._store.jobs.read([member.job.job_id for member in flow.members], bodies=False)
        return bool(jobs) or bool(self._store.flows.existing([flow.flow_id]))

    def _answer_saved(
        self,
        saved: Saved,
        outcomes: list[tuple[PendingCommand, Outcome]],
        rows: "_Rows",
        *,
        sent_at: int,
    ) -> None:
        """Answer the commands whose changes were applied; the others lost a race."""
        if saved.applied:  # otherwise the epoch of `rows` may be outdated
            self._clock.update(saved.now, rows.epoch, sent_at=sent_at)
        written: list[Change] = []
        missed: list[Command] = []
        for pending, outcome in _applied(outcomes):
            change = outcome.change
            if change.job.id in saved.applied:
                pending.answer = outcome.answer
                if change.job.flow_id is not None:
                    pending.may_unblock = change.may_unblock
                written.append(change)
            else:
                pending.missed = change
                pending.lost_races += 1
                missed.append(pending.command)
                self._last_written.forget(change.job.id)
        self._last_written.remember(change.job for change in written)
        for change in written:
            for seen in change.observations:
                log_observation(seen, change.job)
        if self._observer is not None:
            self._observer.saved(written, rows.jobs)
            if missed:
                self._observer.missed(missed)


class _Rows:
    """The rows a round decides on: by job id, None for a job that does not exist."""

    def __init__(
        self, now: Instant, epoch: Epoch, *, is_fresh: bool, is_settling: bool = False
    ) -> None:
        self.now = now
        self.epoch = epoch
        self.is_fresh = is_fresh
        self.is_settling = is_settling
        # What the clock must show at the write: `now` is an estimate unless the rows are fresh.
        self.window = (
            ANY_TIME
            if is_fresh
            else ClockWindow(Instant(now - ESTIMATE_ERROR), Instant(now + ESTIMATE_ERROR))
        )
        self.jobs: dict[JobId, Job | None] = {}
        self.policies: DeclaredPolicies = NO_POLICIES  # of kinds whose enqueues bring none
        self.resolutions: dict[JobId, Resolution] = {}
        self.sessions: dict[SessionKey, Session] = {}  # of grants that are taken back
        self.load_histories: LoadHistories | None = None  # of a transaction; None: the store's
        self.parents: dict[JobId, Job | None] = {}  # of follow-ups
        self.histories: dict[JobId, list[Event]] = {}  # those that decisions asked for
        self.made_flows: Set[FlowId] = frozenset()  # that earlier attempts of handlers made
        self.flows: dict[FlowId, FlowToRedrive] = {}
        self.existing: dict[JobId, Job] = {}  # by the command's job id: the job its insert met
        self.unknown: dict[JobId, str] = {}  # what this version does not know of a job's row

    def note_unknown_words(self, jobs: Mapping[JobId, Job]) -> None:
        """Nothing is decided about a job with a word of a newer version. [Y5]"""
        for job in jobs.values():
            if has_unknown_word(job):
                self.unknown[job.id] = ", ".join(unknown_in_job(job))

    def found_parent(self, asked: ParentAttempt) -> ParentAttempt:
        """The attempt with its job's row, and with the job's log if that was read."""
        history = self.histories.get(asked.job_id)
        return replace(
            asked,
            job=self.parents.get(asked.job_id),
            history=None if history is None else tuple(history),
        )

    def subject(self, command: Command) -> Job | None:
        """The job that `command` is decided on."""
        return self.existing.get(command.job_id) or self.jobs.get(command.job_id)


def _applied(
    outcomes: list[tuple[PendingCommand, Outcome]],
) -> list[tuple[PendingCommand, Applied]]:
    return [(pending, each) for pending, each in outcomes if isinstance(each, Applied)]


def _decide(command: Command, rows: _Rows, moment: Moment, history: list[Event] | None) -> Outcome:
    """Hand the command the other rows that it needs, then decide."""
    if command.job_id in rows.unknown:
        raise UnreadableRow(command.job_id, rows.unknown[command.job_id])
    if type(command) in _NEED_OTHER_ROWS:
        if isinstance(command, Redrive):
            existing = rows.existing.get(command.job_id)
            if existing is not None and not may_take_key(existing, command, moment.now):
                return answer_existing(existing, command, history)
            compensation = rows.jobs.get(compensation_id(command.job_id))
            resolution = rows.resolutions.get(command.job_id)
            command = replace(
                command, compensation=compensation, resolution=resolution, key_holder=existing
            )
            return decide(rows.jobs.get(command.job_id), command, moment, history)
        elif isinstance(command, Discard):
            command = replace(command, resolution=rows.resolutions.get(command.job_id))
        elif isinstance(command, FollowUp):
            command = replace(command, parent=rows.found_parent(command.parent))
        elif isinstance(command, EnqueueFlow):
            found = {job_id: rows.parents.get(job_id) for job_id in command.outside_ids}
            outside = {job_id: job for job_id, job in found.items() if job is not None}
            handler = command.handler
            if handler is not None:
                handler = rows.found_parent(handler)
            exists = command.flow_id in rows.made_flows
            command = replace(command, outside=outside, handler=handler, exists=exists)
        elif isinstance(command, RedriveFlow):
            command = replace(command, found=rows.flows.get(command.flow_id))
    if takes_back(command):
        job = rows.jobs.get(command.job_id)
        key = session_of(job)
        session = None if key is None else rows.sessions.get(key)
        return take_back(job, cast(Release, command), session, moment, history)
    return decide(rows.subject(command), command, moment, history)


def _try_to_decide(
    pending: PendingCommand, rows: _Rows, moment: Moment, history: list[Event] | None
) -> Outcome | None:
    """The outcome. None if the decision raises, a bug of ours that only its own caller hears of, or
    if it would write after its caller was told that nothing was."""
    try:
        outcome = _decide(pending.command, rows, moment, history)
    except Exception as bug:  # handed to the caller's future, never swallowed
        pending.error = bug
        return None
    writes = isinstance(outcome, Applied | Resolved)
    return None if writes and not pending.may_write() else outcome
