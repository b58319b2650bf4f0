"""How a handler ended, as its child or its supervisor saw it. Strings travel, never classes.

What is reported to the coordinator for each of them is the session's decision.
"""

import msgspec

from tenure.core.instants import Duration
from tenure.core.job import JobError


class Returned(msgspec.Struct, frozen=True, tag="returned"):
    """It returned, and this is the result as JSON."""

    result: bytes


class Raised(msgspec.Struct, frozen=True, tag="raised"):
    """It raised, or its input or output did not fit."""

    error: JobError
    retry_after_us: Duration = Duration(0)


class Snoozed(msgspec.Struct, frozen=True, tag="snoozed"):
    """It asked to be taken up again later."""

    delay_us: Duration


class Conflicted(msgspec.Struct, frozen=True, tag="conflicted"):
    """Someone outside saw a newer fence. The attempt has lost; nothing is reported."""


class Stopped(msgspec.Struct, frozen=True, tag="stopped"):
    """It stopped because it was asked to, or because it saw its lease run out."""


class Died(msgspec.Struct, frozen=True, tag="died"):
    """Its process ended by itself, and `how` names the signal or the exit code."""

    how: str


class Killed(msgspec.Struct, frozen=True, tag="killed"):
    """The supervisor killed it, for its own sake."""


class Displaced(msgspec.Struct, frozen=True, tag="displaced"):
    """The supervisor killed its process because a neighbour in it did not stop."""


FromChild = Returned | Raised | Snoozed | Conflicted | Stopped
Outcome = FromChild | Died | Killed | Displaced
