"""How long one call may wait for its store, whatever is retried inside it. [K16]

A deadline belongs to the thread or task that makes the call. The store reads it where it waits, so
no function in between has to pass it on. Without a deadline, the store's own time-out counts from
the beginning of the call.
"""

import time
from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import ContextVar

from tenure.errors import OutcomeUnknown, StoreUnavailable

CALL_TIMEOUT_S = 10.0
"""The default of `TENURE_STORE_TIMEOUT`."""

RETRY_FOR_S = 60.0
"""The default of `TENURE_RETRY_FOR`: for so long a client sends a request again that got no
answer."""

_retry_for_s: ContextVar[float | None] = ContextVar("tenure_retry_for", default=None)


class Deadline:
    """An instant on the host's monotonic clock."""

    __slots__ = ("until_s",)

    def __init__(self, until_s: float) -> None:
        self.until_s = until_s

    @property
    def remaining_s(self) -> float:
        """Seconds left; 0 when it has passed."""
        return max(0.0, self.until_s - time.monotonic())

    @property
    def has_passed(self) -> bool:
        """Whether no time is left."""
        return time.monotonic() >= self.until_s

    def shared_by(self, waits: int) -> "Deadline":
        """The deadline of the first of several waits that share the time equally."""
        return Deadline(time.monotonic() + self.remaining_s / waits)


DEADLINE: ContextVar[Deadline | None] = ContextVar("tenure_deadline", default=None)
"""The deadline of the current call."""


def deadline(timeout_s: float) -> Deadline:
    """The deadline of the current call; `timeout_s` from now if none is set."""
    return DEADLINE.get() or Deadline(time.monotonic() + timeout_s)


def deadline_error(timeout_s: float, *, is_known: bool) -> StoreUnavailable:
    """The error for a caller whose deadline has passed; `is_known`: nothing changed."""
    hint = "send the same request again"
    if is_known:
        return StoreUnavailable(f"the store did not answer within {timeout_s:g} s", hint=hint)
    return OutcomeUnknown(
        f"the store was writing and did not answer within {timeout_s:g} s",
        hint=f"{hint}: its id shows what became of it",
    )


@contextmanager
def waiting_at_most(timeout_s: float) -> Iterator[None]:
    """All calls to a store in the block together wait no longer than this."""
    with waiting_until(Deadline(time.monotonic() + timeout_s)):
        yield


@contextmanager
def waiting_until(end: Deadline) -> Iterator[None]:
    """Calls to a store in the block wait no longer than this."""
    before = DEADLINE.get()
    try:
        DEADLINE.set(end)
        yield
    finally:
        # Not by a token: a signal handler that raises before it is kept would leave the deadline.
        DEADLINE.set(before)


@contextmanager
def retrying_for(span_s: float) -> Iterator[None]:
    """Requests to a server in the block are sent again up to this long: the caller says itself that
    there is no answer, and asks again."""
    token = _retry_for_s.set(span_s)
    try:
        yield
    finally:
        _retry_for_s.reset(token)


def retry_for_s(by_default_s: float) -> float:
    """For how long a request of the current call is sent again."""
    span_s = _retry_for_s.get()
    return by_default_s if span_s is None else min(span_s, by_default_s)
