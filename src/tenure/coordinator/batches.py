"""Executing a batch: load, decide, save, and decide again what lost its race.

One transaction per round for all commands of the batch, whichever caller sent them. Only a change
that the store accepted is ever answered as done; a refusal or a replay is only ever decided on a
row that was read after the request arrived.
"""

from collections import OrderedDict, deque
from collections.abc import Iterable, Iterator, Sequence, Set
from functools import partial
from itertools import chain
from threading import Lock

from msgspec.structs import replace

from tenure.clock import Monotonic
from tenure.coordinator.outages import ESTIMATE_ERROR, OutageWatch
from tenure.core.commands import Command, NewJobs, Sweep, WorkerCommand
from tenure.core.events import MAX_DECISION_EVENTS, has_unknown_value, unknown_values
from tenure.core.ids import ENTROPY_BYTES, Epoch, FlowId, JobId, Kind, Namespace
from tenure.core.instants import Instant, seconds
from tenure.core.job import Job, compensation_id, needs_compensation
from tenure.core.leases import is_expired
from tenure.core.lifecycle import decide
from tenure.core.outcomes import (
    NO_POLICIES,
    Applied,
    Change,
    DecisionContext,
    DeclaredPolicies,
    FlowToRedrive,
    NeedsHistory,
    Outcome,
    Refused,
    Resolved,
    Session,
    SessionKey,
    Shared,
    session_of,
)
from tenure.core.policy import LeaseBounds, Policy
from tenure.core.verdicts import Answer, Observation, Resolution
from tenure.errors import (
    Contended,
    StoreRefused,
    UnreadableRow,
)
from tenure.ports import (
    ANY_TIME,
    ClockWindow,
    DedupeKey,
    Entropy,
    KeyHolders,
    LoadHistories,
    Locked,
    Observer,
    Saved,
    Store,
    StoredSettings,
    dedupe_key_of,
)
from tenure.telemetry.log_lines import log_observation

MAX_TRIES = 8
LOST_BEFORE_LOCKING = 2
"""After this many lost races the row is locked before the next decision.
A `complete` sent together with twenty heartbeats of its lease lost eight in a row. [K8]"""

DECIDED_TOGETHER = 250
REPLACED_PER_READ = 100
"""How many jobs that a redrive replaces are read at a time: their checkpoints take up to a MiB."""

LARGEST_REMEMBERED_BYTES = 16 * 1024
"""The bodies of loaded rows. Twenty thousand rows of the largest size allowed would be forty
gigabytes."""


FRESH = seconds(1)
MAX_REMEMBERED = 10_000
"""Kinds. More are forgotten all at once and read again."""


class PolicyCache:
    """Remembers for a second what workers declared, and that they declared nothing."""

    def __init__(
        self, source: StoredSettings, monotonic: Monotonic, lease: LeaseBounds | None = None
    ) -> None:
        self._source = source
        self._monotonic = monotonic
        self._lease = lease or LeaseBounds()
        self._known: dict[tuple[Namespace, Kind], tuple[int, Policy | None]] = {}

    def of_kinds(self, wanted: Iterable[tuple[Namespace, Kind]]) -> DeclaredPolicies:
        """The policies of these kinds, within the bounds of this coordinator's leases."""
        now = self._monotonic()
        found: dict[tuple[Namespace, Kind], Policy | None] = {}
        missing: dict[Namespace, list[Kind]] = {}
        for key in wanted:
            read_at, policy = self._known.get(key, (None, None))
            if read_at is not None and now - read_at < FRESH:
                found[key] = policy
            else:
                missing.setdefault(key[0], []).append(key[1])
        for namespace, kinds in missing.items():
            declared = {each.kind: each.policy for each in self._source.kinds(namespace, kinds)}
            found |= {(namespace, kind): declared.get(kind) for kind in kinds}
        self._remember(missing, found, now)
        return {key: self._lease.applied_to(each) for key, each in found.items() if each}

    def _remember(
        self,
        read: dict[Namespace, list[Kind]],
        found: dict[tuple[Namespace, Kind], Policy | None],
        now: int,
    ) -> None:
        if len(self._known) > MAX_REMEMBERED:
            self._known = {}
        for namespace, kinds in read.items():
            for kind in kinds:
                self._known[namespace, kind] = now, found[namespace, kind]


class PendingCommand:
    """One command on its way to an answer, or to an error of its own."""

    __slots__ = (
        "answer",
        "command",
        "error",
        "flow_exists",
        "lost_races",
        "may_unblock",
        "missed",
        "needs",
    )

    def __init__(self, command: Command) -> None:
        self.command = command
        self.needs = command.needs()
        self.answer: Answer | None = None
        self.error: Exception | None = None
        self.missed: Change | None = None  # the change that lost its race in the last round
        self.flow_exists = False  # or one of its jobs: the store refused to make it
        self.lost_races = 0
        self.may_unblock: list[JobId] = []  # jobs whose wait may be over after its change [FL5]

    @property
    def is_open(self) -> bool:
        """Whether it still waits for its answer."""
        return self.answer is None and self.error is None

    @property
    def needs_lock(self) -> bool:
        """Whether it is decided on locked rows: because it takes back a grant, which needs the row
        of the session too [Q8], or because the job's row changes too often for compare-and-swap.
        A new job has no row to lock."""
        if self.needs.session:
            return True
        is_update = self.missed is not None and self.missed.expected_rev > 0
        return is_update and self.lost_races >= LOST_BEFORE_LOCKING


class LastWritten:
    """The rows this process wrote last, so that most reports need no load: CAS is the judge.

    Measured: saves about a third of the round trips of a drain. Bounded in number and in size;
    leased rows only.
    """

    def __init__(self, capacity: int) -> None:
        self._capacity = capacity
        self._lock = Lock()
        self._jobs: OrderedDict[JobId, Job] = OrderedDict()

    def get(self, job_id: JobId) -> Job | None:
        """The row as this process last wrote it."""
        return self._jobs.get(job_id)

    def remember(self, changes: Iterable[Change]) -> None:
        """Remember leased rows that are small, forget the others."""
        with self._lock:
            for change in changes:
                job = change.job
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
        watch: OutageWatch,
        last_written: LastWritten,
        observer: Observer | None = None,
        policies: PolicyCache | None = None,
    ) -> None:
        self._store = store
        self._policies = policies or PolicyCache(store.settings, watch.monotonic)
        self._observer = observer
        self._entropy = entropy
        self._watch = watch
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
            if wave.setdefault(pending.command.job_id, pending) is not pending:
                later.append(pending)
        self._answer(list(wave.values()))
        return later

    def _answer(self, wave: list[PendingCommand]) -> None:
        """Load what the commands need, decide, save; again for commands that lost a race."""
        remembered = self._remembered(wave)
        if remembered is not None:
            self._decide_and_save(wave, remembered)
        for _ in range(MAX_TRIES):
            for pending in wave:
                if pending.answer is None and pending.error is None:
                    break
            else:
                return
            still_open = [each for each in wave if each.is_open]
            unlocked = [pending for pending in still_open if not pending.needs_lock]
            if unlocked:
                self._decide_and_save(unlocked, self._load(unlocked))
            for pending in still_open:
                if pending.needs_lock and pending.is_open:
                    self._decide_locked(pending)
        for pending in wave:
            if pending.is_open:
                pending.error = Contended(job_id=pending.command.job_id, tries=MAX_TRIES)

    # --- what is read --------------------------------------------------------------------------

    def _remembered(self, wave: list[PendingCommand]) -> "_Read | None":
        """The rows as this process last wrote them, and that new jobs do not exist yet: a
        compare-and-swap proves both. None without a recent reading of the clock."""
        estimate = self._watch.estimate()
        if estimate is None:
            return None
        now, epoch = estimate
        read = _Read(now, epoch, is_fresh=False)
        for pending in wave:
            command, needs = pending.command, pending.needs
            if isinstance(command, NewJobs):
                # Not if it depends on other rows, too: no compare-and-swap proves these current,
                # such as that of a follow-up's parent. [D10]
                if not needs.jobs and needs.made_flow is None:
                    read.jobs[command.job_id] = None
            elif isinstance(command, WorkerCommand) and not needs.session:
                job = self._last_written.get(command.job_id)
                if job is not None and job.lease_id == command.lease_id:
                    read.jobs[command.job_id] = job
        return read

    def _load(self, wave: list[PendingCommand]) -> "_Read":
        """What these commands need, as the store has it now."""
        ids: dict[JobId, None] = {}
        for pending in wave:
            ids[pending.command.job_id] = None
            ids.update(dict.fromkeys(pending.needs.jobs))
            if pending.missed is not None:
                ids[pending.missed.job.id] = None
        loaded = self._watch.call(self._store.jobs.load, list(ids))
        read = _Read(loaded.now, loaded.epoch, is_fresh=True, is_settling=loaded.is_settling)
        read.others = loaded.jobs
        read.jobs = {each.command.job_id: loaded.jobs.get(each.command.job_id) for each in wave}
        self._find_key_holders(wave, read)
        made = [each.needs.made_flow for each in wave if each.needs.made_flow is not None]
        if made:
            read.made_flows = self._store.flows.existing(made)
        for pending in wave:
            if pending.needs.flow is not None:
                read.flows[pending.command.job_id] = self._flow_to_redrive(*pending.needs.flow)
        resolving = [each.command.job_id for each in wave if each.needs.resolution]
        if resolving:
            read.resolutions = self._store.jobs.resolutions(resolving)
        return read

    def _find_key_holders(self, wave: list[PendingCommand], read: "_Read") -> None:
        """Find the jobs because of whose dedupe keys inserts were not applied."""
        keys: dict[DedupeKey, list[JobId]] = {}
        for pending in wave:
            if pending.missed is None or pending.missed.expected_rev != 0:
                continue
            job = pending.missed.job
            if job.id not in read.others and job.dedupe_key is not None:
                keys.setdefault(dedupe_key_of(job), []).append(pending.command.job_id)
        if not keys:
            return
        holders = KeyHolders(tuple(keys))
        found = self._store.jobs.load(holders).jobs
        expired = [job for job in found.values() if is_expired(job, read.now)]
        if expired:
            # A job that no worker will run must not block the same work. [EX2] [D5]
            self.run([PendingCommand(Sweep(job_id=job.id)) for job in expired])
            found = self._store.jobs.load(holders).jobs
        read.key_holders = {
            job_id: job for job in found.values() for job_id in keys[dedupe_key_of(job)]
        }

    def _flow_to_redrive(self, namespace: Namespace, flow_id: FlowId) -> FlowToRedrive | None:
        view = self._store.flows.load(namespace, flow_id)
        if view is None:
            return None
        if view.is_live:  # it is refused: nothing else has to be read
            return FlowToRedrive(view=view)
        ids = view.to_replace
        jobs = self._load_to_replace(ids)
        edges = list(self._store.flows.edges(ids))
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
        have none and are not needed, so that only the bodies of one page are in memory."""
        jobs: dict[JobId, Job] = {}
        for start in range(0, len(ids), REPLACED_PER_READ):
            page = self._store.jobs.load(ids[start : start + REPLACED_PER_READ]).jobs
            jobs |= {job_id: replace(job, checkpoint=None) for job_id, job in page.items()}
        return jobs

    # --- deciding and saving -------------------------------------------------------------------

    def _decide_and_save(self, wave: list[PendingCommand], read: "_Read") -> None:
        # Read now: the iterator below must not call the store.
        undeclared: set[tuple[Namespace, Kind]] = set()
        for pending in wave:
            if pending.needs.policies:
                undeclared.update(pending.needs.policies)
        if undeclared:
            read.policies = self._policies.of_kinds(undeclared)
        outcomes: list[tuple[PendingCommand, Outcome]] = []
        if read.is_fresh or len(wave) <= DECIDED_TOGETHER:
            # Rows that were just read may need histories: all of them are decided before the store
            # starts to write. Batches that each write and ask for one connection more would wait
            # for each other.
            outcomes = self._decide_all(wave, read)
            changes = [each.change for _, each in outcomes if isinstance(each, Applied)]
            if changes:  # a store is not called to write nothing
                self._save(changes, outcomes, read)
        else:
            further = self._decide_in_turn(wave, read, outcomes)
            first = next(further, None)
            if first is not None:
                self._save(chain([first], further), outcomes, read)
        if read.is_fresh:  # anything but an accepted change must be decided on a row read by now
            self._answer_unchanged(outcomes, read)

    def _decide_locked(self, pending: PendingCommand) -> None:
        """Decide one command on its job's locked row: no process can change it before the save."""
        job_id, sessions = pending.command.job_id, list[SessionKey]()
        if pending.needs.session:
            # A lease never changes its owner: the session read before the lock is still right under
            # it.
            key = session_of(self._store.jobs.load([job_id]).jobs.get(job_id))
            sessions = [] if key is None else [key]
        rounds: list[tuple[_Read, list[tuple[PendingCommand, Outcome]]]] = []

        def decide_locked(locked: Locked) -> list[Change]:
            read = _Read(locked.now, locked.epoch, is_fresh=True, is_settling=locked.is_settling)
            read.load_histories = locked.load_histories
            read.jobs[job_id] = locked.jobs.get(job_id)
            read.sessions = locked.sessions
            rounds.append((read, self._decide_all([pending], read)))
            return [each.change for _, each in _applied(rounds[-1][1])]

        try:
            saved = self._watch.call(
                self._store.jobs.save_locked, [job_id], sessions, decide_locked
            )
        except StoreRefused as refusal:
            pending.error = refusal
            return
        read, outcomes = rounds[-1]  # the last one is the one that was written
        self._answer_saved(saved, outcomes, read)
        self._answer_unchanged(outcomes, read)

    def _answer_unchanged(
        self, outcomes: list[tuple[PendingCommand, Outcome]], read: "_Read"
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
                job = read.jobs[pending.command.job_id]
                assert job is not None  # only reports under a lease on record are observed
                jobs[job.id] = job
            pending.answer = outcome.answer
        if observations:
            kept = self._store.jobs.observe(observations)
            for each in kept:
                log_observation(each, jobs[each.job_id])
            if self._observer is not None:
                self._observer.observed(kept, jobs)

    def _decide_in_turn(
        self,
        wave: list[PendingCommand],
        read: "_Read",
        outcomes: list[tuple[PendingCommand, Outcome]],
    ) -> Iterator[Change]:
        """The changes to save. A store may write the first while the last are being decided: of a
        thousand new jobs, deciding and writing take the same time."""
        for start in range(0, len(wave), DECIDED_TOGETHER):
            decided = self._decide_all(wave[start : start + DECIDED_TOGETHER], read)
            outcomes += decided
            for _, outcome in decided:
                if isinstance(outcome, Applied):
                    yield outcome.change

    def _decide_all(
        self, wave: list[PendingCommand], read: "_Read"
    ) -> list[tuple[PendingCommand, Outcome]]:
        entropy = self._entropy(ENTROPY_BYTES * len(wave))
        shared = Shared(read.policies)
        decided: list[tuple[PendingCommand, Outcome]] = []
        unclear: list[tuple[PendingCommand, DecisionContext, JobId]] = []  # and whose log is needed
        for position, pending in enumerate(wave):
            if pending.command.job_id not in read.jobs:
                continue
            start = position * ENTROPY_BYTES
            context = read.context(pending, entropy[start : start + ENTROPY_BYTES], shared)
            if read.is_fresh and (unreadable := _unreadable(context)):
                pending.error = unreadable
                continue
            outcome = _try_to_decide(pending, context)
            if isinstance(outcome, Applied):  # tested first: most are, and a failed test is slower
                decided.append((pending, outcome))
            elif isinstance(outcome, NeedsHistory):
                unclear.append((pending, context, outcome.job_id))
            elif outcome is not None:
                decided.append((pending, outcome))
        if unclear and read.is_fresh:
            decided += self._decide_with_histories(unclear, read)
        return decided

    def _decide_with_histories(
        self, unclear: list[tuple[PendingCommand, DecisionContext, JobId]], read: "_Read"
    ) -> list[tuple[PendingCommand, Outcome]]:
        # The log is read after the row, so it has at least every event that led to the row.
        load = read.load_histories or partial(self._store.events.load, latest=MAX_DECISION_EVENTS)
        ids = list(dict.fromkeys(job_id for _, _, job_id in unclear))
        histories = self._watch.call(load, ids)
        decided: list[tuple[PendingCommand, Outcome]] = []
        for pending, context, job_id in unclear:
            history = histories.get(job_id, [])
            if job_id == pending.command.job_id:
                context = replace(context, history=history)
            else:
                context = replace(context, histories={job_id: history})
            outcome = _try_to_decide(pending, context)
            if outcome is not None:
                decided.append((pending, outcome))
        return decided

    def _save(
        self,
        changes: Iterable[Change],
        outcomes: list[tuple[PendingCommand, Outcome]],
        read: "_Read",
    ) -> None:
        """`outcomes` grows while the changes are taken."""
        try:
            saved = self._watch.call(
                self._store.jobs.save, changes, epoch=read.epoch, window=read.window
            )
        except StoreRefused as refusal:
            deque(changes, maxlen=0)  # decide the rest, if they are decided one by one
            applied = _applied(outcomes)
            if len(applied) == 1:
                self._answer_refused(*applied[0], refusal)
                return
            for pending, outcome in applied:  # one bad change must not take its neighbours down
                self._save([outcome.change], [(pending, outcome)], read)
            return
        self._answer_saved(saved, outcomes, read)

    def _answer_refused(
        self, pending: PendingCommand, outcome: Applied, refusal: StoreRefused
    ) -> None:
        """A flow with an id of another flow, or of a job that exists, is its caller's mistake;
        anything else is a bug. It is checked only now: such ids are rare. [FL3]"""
        change = outcome.change
        if change.flow is not None:
            made = [change.job.id, *[each.job.id for each in change.spawned]]
            if self._store.jobs.read(made, bodies=False) or self._store.flows.existing(
                [change.flow.id]
            ):
                pending.missed, pending.flow_exists = change, True  # decide again
                return
        pending.error = refusal

    def _answer_saved(
        self, saved: Saved, outcomes: list[tuple[PendingCommand, Outcome]], read: "_Read"
    ) -> None:
        """Answer the commands whose changes were applied; the others lost a race."""
        written: list[Change] = []
        missed: list[Command] = []
        for pending, outcome in outcomes:
            if not isinstance(outcome, Applied):
                continue
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
        self._last_written.remember(written)
        for change in written:
            for each in change.observations:
                log_observation(each, change.job)
        if self._observer is not None:
            self._observer.saved(written, read.jobs)
            if missed:
                self._observer.missed(missed)


class _Read:
    """What was read for one round."""

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
        self.jobs: dict[JobId, Job | None] = {}  # of the commands; None: there is no such job
        self.others: dict[JobId, Job] = {}  # all that were read
        self.policies: DeclaredPolicies = NO_POLICIES  # of kinds whose enqueues bring none
        self.key_holders: dict[JobId, Job] = {}  # by the command's job id
        self.resolutions: dict[JobId, Resolution] = {}
        self.made_flows: Set[FlowId] = frozenset()  # that earlier attempts of handlers made
        self.flows: dict[JobId, FlowToRedrive | None] = {}
        self.sessions: dict[SessionKey, Session] = {}  # of grants that are taken back
        self.load_histories: LoadHistories | None = None  # of a transaction; None: the store's

    def context(self, pending: PendingCommand, entropy: bytes, shared: Shared) -> DecisionContext:
        """What the decision about this command may read."""
        job_id = pending.command.job_id
        job = self.jobs[job_id]
        if not self.is_fresh:
            return DecisionContext(
                now=self.now, epoch=self.epoch, entropy=entropy, shared=shared, job=job
            )
        key = session_of(job) if self.sessions else None
        return DecisionContext(
            now=self.now,
            epoch=self.epoch,
            entropy=entropy,
            is_settling=self.is_settling,
            shared=shared,
            job=job,
            others=self.others,
            key_holder=self.key_holders.get(job_id),
            resolution=self.resolutions.get(job_id),
            session=None if key is None else self.sessions.get(key),
            flow=self.flows.get(job_id),
            flow_exists=pending.flow_exists or pending.needs.made_flow in self.made_flows,
        )


def _applied(
    outcomes: list[tuple[PendingCommand, Outcome]],
) -> list[tuple[PendingCommand, Applied]]:
    return [(pending, each) for pending, each in outcomes if isinstance(each, Applied)]


def _try_to_decide(pending: PendingCommand, context: DecisionContext) -> Outcome | None:
    """The outcome; None if the decision raises, a bug of ours that only its own caller gets to
    know."""
    try:
        return decide(pending.command, context)
    except Exception as bug:  # handed to the caller's future, never swallowed
        pending.error = bug
        return None


def _unreadable(context: DecisionContext) -> UnreadableRow | None:
    """Nothing is decided about a job with a value of a newer version. [Y5]"""
    jobs = [] if context.job is None else [context.job]
    if context.flow is not None:
        jobs += context.flow.jobs.values()
    for job in jobs:
        if has_unknown_value(job):
            return UnreadableRow(job.id, ", ".join(unknown_values(job)))
    return None
