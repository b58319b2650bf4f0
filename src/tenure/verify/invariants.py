"""THE table of invariants: each rule of docs/spec/invariants.md, with what checks it.

The checks are in the other modules of this package.
"""

from collections.abc import Callable, Iterator, Sequence

import msgspec

from tenure.core.ids import JobId
from tenure.ports import JobHistory, RecordSource
from tenure.verify import ack_rules, between_jobs, flows, leases, projections, records
from tenure.verify.acks import Ack
from tenure.verify.checking import Collector, JobProblems, Problems


class Violation(msgspec.Struct, frozen=True, kw_only=True):
    """Which invariant, which job, the first seq that breaks it, and what is wrong there. [X2]"""

    invariant: str
    job_id: JobId
    seq: int
    message: str


class Invariant(msgspec.Struct, frozen=True):
    """One rule: its id, a short form of its sentence, and what checks it: a function over one
    record, over one record and what callers wrote about its job, or over the whole store; or a
    collector, which reads every record first."""

    id: str
    title: str
    of_record: Callable[[JobHistory], Problems] | None = None
    of_acks: Callable[[JobHistory, Sequence[Ack]], Problems] | None = None
    of_store: Callable[[RecordSource], JobProblems] | None = None
    between: Callable[[], Collector] | None = None

    @property
    def needs_acks(self) -> bool:
        """Whether nothing of it can be checked without the callers' acknowledgements. [X3]"""
        return self.of_acks is not None and self.of_record is None and self.of_store is None

    @property
    def needs_metrics(self) -> bool:
        """Whether it is about the counters of processes, which no store has. [X3]"""
        return not (self.of_record or self.of_acks or self.of_store or self.between)

    def broken_by(self, record: JobHistory) -> Iterator[Violation]:
        """Where one job breaks it, by its row and its log alone."""
        if self.of_record is not None:
            yield from _violations_of(self.id, record, self.of_record(record))


INVARIANTS = (
    Invariant("I1", "events are numbered from 1 to rev, no gaps", records.seqs_are_complete),
    Invariant("I2", "the first event is enqueued", records.first_is_enqueued),
    Invariant("I3", "each event starts from the status before it", records.statuses_connect),
    Invariant("I4", "every change is in the transition table", records.edges_are_allowed),
    Invariant("I5", "a job ends once, and nothing follows", records.ends_once),
    Invariant("I6", "only a requeue or a reclaim goes back", records.rank_rises),
    Invariant("I7", "each claim adds one attempt", records.attempts_are_counted),
    Invariant("I8", "each row has the fields of its status", records.row_fits_its_status),
    Invariant(
        "I9",
        "at most one live lease per job, not shared",
        leases.one_live_lease,
        of_store=between_jobs.leases_are_not_shared,
    ),
    Invariant("I10", "leases do not overlap or act after their end", leases.leases_are_disjoint),
    Invariant("I11", "renewals only extend, by at most the ttl", leases.expiries_are_bounded),
    Invariant("I12", "replaying the history gives the row", records.fold_gives_the_row),
    Invariant(
        "I13",
        "each COMMITTED was recorded once, in time",
        of_acks=ack_rules.commits_are_settled_once,
    ),
    Invariant("I14", "no job starts after an acknowledged cancel", of_acks=ack_rules.cancels_hold),
    Invariant("I15", "no job is queued again after a cancel request", records.cancel_requests_stay),
    Invariant(
        "I16", "each acknowledged enqueue made one job", of_acks=ack_rules.enqueues_happen_once
    ),
    Invariant(
        "I17", "one live job per dedupe key", of_store=between_jobs.dedupe_keys_are_not_shared
    ),
    Invariant("I19", "finished rows do not change", records.terminal_rows_never_change),
    Invariant(
        "I20", "each dead letter has a reason and a last error", records.dead_letters_are_complete
    ),
    Invariant("I21", "nothing acknowledged is missing", of_acks=ack_rules.acknowledged_is_kept),
    Invariant("I23", "counters equal what their process committed"),
    Invariant("I24", "every stored word and document can be read", records.everything_can_be_read),
    Invariant("I28", "each occurrence of a schedule has one job", records.occurrences_have_one_job),
    Invariant(
        "I30",
        "no window has more grants than its rate allows",
        of_store=between_jobs.rates_are_kept,
    ),
    Invariant(
        "I31", "no more jobs of a key ran than its limit", between=between_jobs.KeyedAttempts
    ),
    Invariant(
        "I32",
        "no job of a flow continues before its parents",
        of_store=flows.children_follow_parents,
    ),
    Invariant(
        "I33",
        "no job waits for parents that have ended",
        of_store=flows.no_job_waits_for_ended_parents,
    ),
    Invariant("I34", "a job that has expired never starts", records.expired_jobs_never_start),
    Invariant("I35", "no job is made while its key stays taken", between=between_jobs.TakenKeys),
    Invariant(
        "I36", "a dead letter is reported by one job", records.dead_letters_are_reported_once
    ),
    Invariant(
        "I37",
        "a job of a flow is replaced once, never after success",
        flows.replacements_follow_from_their_jobs,
        between=flows.Replacements,
    ),
    Invariant("I39", "failures stay within max_attempts", leases.budget_is_kept),
    Invariant("P1", "one owner while running; an end is final", projections.running_has_one_owner),
    Invariant(
        "P2", "within an attempt, states only move forward", projections.attempts_move_forward
    ),
    Invariant(
        "P3",
        "each attempt ends once; each report counts once",
        projections.attempts_end_once,
        of_acks=ack_rules.refusals_changed_nothing,
    ),
    Invariant("P4", "claimed before started, started before ended", projections.steps_are_in_order),
)

_READABLE = next(rule for rule in INVARIANTS if rule.id == "I24")
_OF_RECORD = tuple(
    (rule.id, rule.of_record) for rule in INVARIANTS if rule.of_record and rule is not _READABLE
)
_OF_ACKS = tuple((rule.id, rule.of_acks) for rule in INVARIANTS if rule.of_acks)
_OF_STORE = tuple((rule.id, rule.of_store) for rule in INVARIANTS if rule.of_store)


def check_record(record: JobHistory, acks: Sequence[Ack] = ()) -> Iterator[Violation]:
    """Everything that is wrong with one job: in its own log, and against the answers that callers
    received.

    If something could not be read, only that is reported: the other rules would see gaps.
    """
    unreadable = list(_READABLE.broken_by(record))
    if unreadable:
        yield from unreadable
        return
    for rule, of_record in _OF_RECORD:
        yield from _violations_of(rule, record, of_record(record))
    if acks:
        yield from check_acks(record, acks)


def check_acks(record: JobHistory, acks: Sequence[Ack]) -> Iterator[Violation]:
    """Where a record contradicts the answers that callers received."""
    for rule, of_acks in _OF_ACKS:
        yield from _violations_of(rule, record, of_acks(record, acks))


def check_across(store: RecordSource) -> Iterator[Violation]:
    """Everything that is wrong between jobs that a store finds without its records."""
    for rule, of_store in _OF_STORE:
        yield from violations(rule, of_store(store))


def _violations_of(rule: str, record: JobHistory, problems: Problems) -> Iterator[Violation]:
    return violations(rule, ((record.job_id, seq, what) for seq, what in problems))


def violations(rule: str, problems: JobProblems) -> Iterator[Violation]:
    """These problems as violations of a rule."""
    for job_id, seq, what in problems:
        yield Violation(invariant=rule, job_id=job_id, seq=seq, message=what)
