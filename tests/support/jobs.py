"""What tests about single jobs share: drivers in every status, outcomes taken apart, no waiting.

The driver itself ships with the conformance kit, because the vectors for other languages are made
with it; this module adds only what a test wants to say in one line.
"""

from tenure.core.commands import Command
from tenure.core.events import Event
from tenure.core.ids import Epoch
from tenure.core.instants import Instant
from tenure.core.outcomes import Applied, Moment, Outcome, Refused, Replayed
from tenure.core.verdicts import Grant, Reply, Verdict
from tools.driver import (
    BEGINNING,
    CLIENT,
    JOB_ID,
    OPERATOR,
    OTHER_OWNER,
    OTHER_WORKER,
    OWNER,
    PERMANENT,
    TRANSIENT,
    WORKER,
    Driver,
    entropy,
)

__all__ = [
    "BEGINNING",
    "CLIENT",
    "JOB_ID",
    "OPERATOR",
    "OTHER_OWNER",
    "OTHER_WORKER",
    "OWNER",
    "PERMANENT",
    "TRANSIENT",
    "WORKER",
    "Driver",
    "applied",
    "changes_nothing",
    "entropy",
    "events_of",
    "granted",
    "moment",
    "reply",
    "verdict",
]


def moment(now: Instant = BEGINNING, *, epoch: int = 1, luck: bytes | None = None) -> Moment:
    """A moment; `luck` are the sixteen random bytes."""
    return Moment(now=now, epoch=Epoch(epoch), entropy=entropy(0) if luck is None else luck)


def applied(outcome: Outcome) -> Applied:
    """The outcome, which must change something."""
    assert isinstance(outcome, Applied), outcome
    return outcome


def verdict(outcome: Outcome) -> Verdict:
    """What the worker hears."""
    assert isinstance(outcome, Applied | Replayed | Refused), outcome
    assert isinstance(outcome.answer, Verdict), outcome
    return outcome.answer


def reply(outcome: Outcome) -> Reply:
    """What the client or operator hears."""
    assert isinstance(outcome, Applied | Replayed | Refused), outcome
    assert isinstance(outcome.answer, Reply), outcome
    return outcome.answer


def granted(outcome: Outcome) -> Grant:
    """What the claimer receives."""
    assert isinstance(outcome, Applied), outcome
    assert isinstance(outcome.answer, Grant), outcome
    return outcome.answer


def events_of(outcome: Outcome) -> list[str]:
    """The types of the events that an outcome writes, in order."""
    return [event.type.value for event in applied(outcome).change.events]


def changes_nothing(driver: Driver, command: Command) -> Outcome:
    """Do it, and assert that the job, its rev and its log stayed as they were. [N1]"""
    before: tuple[object, list[Event]] = (driver.job_or_none, list(driver.events))

    outcome = driver.do(command)

    assert not isinstance(outcome, Applied), outcome
    assert (driver.job_or_none, driver.events) == before
    return outcome
