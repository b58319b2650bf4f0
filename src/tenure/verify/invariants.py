"""Every invariant and projection of docs/spec/invariants.md with the functions that check it.

The functions are in the other modules of this package. A rule with `needs_acks` cannot be checked
from rows and events alone; verify cannot check one with `needs_metrics` at all.
"""

from collections.abc import Callable, Iterator, Sequence

import msgspec

from tenure.ports import Record, RecordSource
from tenure.verify import (
    ack_rules,
    enqueues,
    flows,
    leases,
    order,
    projections,
    rates,
    rows,
    shared_keys,
)
from tenure.verify.acks import Ack
from tenure.verify.flows import Replacements
from tenure.verify.held_keys import HeldKeys
from tenure.verify.keyed_attempts import KeyedAttempts, LimitOf
from tenure.verify.violations import Violation

OfRecord = Callable[[Record], Iterator[Violation]]
OfAcks = Callable[[Record, Sequence[Ack]], Iterator[Violation]]
OfStore = Callable[[RecordSource], Iterator[Violation]]
OfAttempts = Callable[[KeyedAttempts, RecordSource, LimitOf], Iterator[Violation]]
OfReplacements = Callable[[Replacements, RecordSource], Iterator[Violation]]
OfKeys = Callable[[HeldKeys, RecordSource], Iterator[Violation]]


class Invariant(msgspec.Struct, frozen=True, kw_only=True):
    """One rule: its id, a short form of its sentence, and the functions that check it."""

    id: str
    title: str
    of_record: OfRecord | None = None
    of_acks: OfAcks | None = None
    of_store: OfStore | None = None
    of_attempts: OfAttempts | None = None
    of_keys: OfKeys | None = None
    of_replacements: OfReplacements | None = None

    @property
    def needs_acks(self) -> bool:
        """Whether nothing of it can be checked without the callers' acknowledgements. [X3]"""
        return self.of_acks is not None and self.of_record is None and self.of_store is None

    @property
    def needs_metrics(self) -> bool:
        """Whether it is about the counters of processes, which no store has. [X3]"""
        checks = (self.of_acks, self.of_record, self.of_store, self.of_attempts, self.of_keys)
        return all(check is None for check in checks)


INVARIANTS: tuple[Invariant, ...] = (
    Invariant(
        id="I1",
        title="events are numbered from 1 to rev, no gaps",
        of_record=order.seqs_are_complete,
    ),
    Invariant(id="I2", title="the first event is enqueued", of_record=order.first_is_enqueued),
    Invariant(
        id="I3",
        title="each event starts from the status before it",
        of_record=order.statuses_connect,
    ),
    Invariant(
        id="I4", title="every change is in the transition table", of_record=order.edges_are_lawful
    ),
    Invariant(id="I5", title="a job ends once, and nothing follows", of_record=order.ends_once),
    Invariant(id="I6", title="only a requeue or a reclaim goes back", of_record=order.rank_rises),
    Invariant(id="I7", title="each claim adds one attempt", of_record=order.attempts_are_counted),
    Invariant(
        id="I8", title="each row has the fields of its status", of_record=rows.row_fits_its_status
    ),
    Invariant(
        id="I9",
        title="at most one live lease per job, not shared",
        of_record=leases.one_live_lease,
        of_store=shared_keys.leases_are_not_shared,
    ),
    Invariant(
        id="I10",
        title="leases do not overlap or act after their end",
        of_record=leases.leases_are_disjoint,
    ),
    Invariant(
        id="I11",
        title="renewals only extend, by at most the ttl",
        of_record=leases.expiries_are_bounded,
    ),
    Invariant(
        id="I12", title="replaying the history gives the row", of_record=rows.fold_gives_the_row
    ),
    Invariant(
        id="I13",
        title="each COMMITTED was recorded once, in time",
        of_acks=ack_rules.commits_are_settled_once,
    ),
    Invariant(
        id="I14", title="no job starts after an acknowledged cancel", of_acks=ack_rules.cancels_hold
    ),
    Invariant(
        id="I15",
        title="no job is queued again after a cancel request",
        of_record=order.cancel_requests_stay,
    ),
    Invariant(
        id="I16",
        title="each acknowledged enqueue made one job",
        of_acks=ack_rules.enqueues_happen_once,
    ),
    Invariant(
        id="I17",
        title="one live job per dedupe key",
        of_store=shared_keys.dedupe_keys_are_not_shared,
    ),
    Invariant(
        id="I19", title="finished rows do not change", of_record=rows.terminal_rows_never_change
    ),
    Invariant(
        id="I20",
        title="each dead letter has a reason and a last error",
        of_record=rows.dead_letters_are_complete,
    ),
    Invariant(
        id="I21",
        title="nothing acknowledged is missing",
        of_acks=ack_rules.acknowledged_is_kept,
    ),
    Invariant(id="I23", title="counters equal what their process committed"),
    Invariant(
        id="I24",
        title="every stored word and document can be read",
        of_record=rows.everything_can_be_read,
    ),
    Invariant(
        id="I28",
        title="each occurrence of a schedule has one job",
        of_record=enqueues.occurrences_have_one_job,
    ),
    Invariant(
        id="I30",
        title="no window has more grants than its rate allows",
        of_store=rates.rates_are_kept,
    ),
    Invariant(
        id="I31",
        title="no more jobs of a key ran than its limit",
        of_attempts=KeyedAttempts.violations,
    ),
    Invariant(
        id="I32",
        title="no job of a flow goes on before its parents",
        of_store=flows.children_follow_parents,
    ),
    Invariant(
        id="I33",
        title="no job waits for parents that have ended",
        of_store=flows.no_job_waits_for_ended_parents,
    ),
    Invariant(
        id="I34",
        title="a job that has expired never starts",
        of_record=enqueues.expired_jobs_never_start,
    ),
    Invariant(
        id="I35",
        title="no job is made while its key stays taken",
        of_keys=HeldKeys.violations,
    ),
    Invariant(
        id="I36",
        title="a dead letter is reported by one job",
        of_record=enqueues.dead_letters_are_reported_once,
    ),
    Invariant(
        id="I37",
        title="a job of a flow is replaced once, never after success",
        of_record=flows.replacements_follow_from_their_jobs,
        of_replacements=Replacements.violations,
    ),
    Invariant(id="I39", title="failures stay within max_attempts", of_record=leases.budget_is_kept),
    Invariant(
        id="P1",
        title="one owner while running; an end is final",
        of_record=projections.running_has_one_owner,
    ),
    Invariant(
        id="P2",
        title="within an attempt, states only move forward",
        of_record=projections.attempts_move_forward,
    ),
    Invariant(
        id="P3",
        title="each attempt ends once; each report counts once",
        of_record=projections.attempts_end_once,
        of_acks=ack_rules.refusals_changed_nothing,
    ),
    Invariant(
        id="P4",
        title="claimed before started, started before ended",
        of_record=projections.steps_are_in_order,
    ),
)

_OF_RECORD = tuple(
    rule.of_record
    for rule in INVARIANTS
    if rule.of_record not in (None, rows.everything_can_be_read)
)
_OF_ACKS = tuple(rule.of_acks for rule in INVARIANTS if rule.of_acks is not None)
_OF_ATTEMPTS = tuple(rule.of_attempts for rule in INVARIANTS if rule.of_attempts is not None)
_OF_KEYS = tuple(rule.of_keys for rule in INVARIANTS if rule.of_keys is not None)
_OF_REPLACEMENTS = tuple(
    rule.of_replacements for rule in INVARIANTS if rule.of_replacements is not None
)
_OF_STORE = tuple(rule.of_store for rule in INVARIANTS if rule.of_store is not None)


def check_record(record: Record, acks: Sequence[Ack] = ()) -> Iterator[Violation]:
    """Everything that is wrong with one job: in its own log, and against the answers that callers
    received.

    If something could not be read, only that is reported: the other rules would see gaps.
    """
    unreadable = list(rows.everything_can_be_read(record))
    if unreadable:
        yield from unreadable
        return
    for of_record in _OF_RECORD:
        yield from of_record(record)
    if acks:
        for of_acks in _OF_ACKS:
            yield from of_acks(record, acks)


def check_attempts(
    attempts: KeyedAttempts, store: RecordSource, limit_of: LimitOf
) -> Iterator[Violation]:
    """Everything that is wrong with when jobs of the same concurrency key ran."""
    for of_attempts in _OF_ATTEMPTS:
        yield from of_attempts(attempts, store, limit_of)


def check_keys(keys: HeldKeys, store: RecordSource) -> Iterator[Violation]:
    """Everything that is wrong with when jobs had the same dedupe key."""
    for of_keys in _OF_KEYS:
        yield from of_keys(keys, store)


def check_replacements(replacements: Replacements, store: RecordSource) -> Iterator[Violation]:
    """Everything that is wrong with jobs that replace others of their flow."""
    for of_replacements in _OF_REPLACEMENTS:
        yield from of_replacements(replacements, store)


def check_across(store: RecordSource) -> Iterator[Violation]:
    """Everything that is wrong between jobs."""
    for of_store in _OF_STORE:
        yield from of_store(store)
