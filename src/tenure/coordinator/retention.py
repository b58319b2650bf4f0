"""Upkeep: folds the log into rollups for plots, and deletes what is no longer needed.

Renewals of ended attempts are summarised in the event that ended them; bodies of refused results
expire; finished jobs are purged with all that is theirs; artifacts that can never become visible,
workers and sessions that are long gone, outages that excuse nothing any more and old rollups are
deleted.
Refuses to keep finished jobs for less than a day: a history that vanishes before it is read
proves nothing. [G6]
"""

from collections.abc import Callable

import msgspec

from tenure.clock import Monotonic, boot_now
from tenure.coordinator.periodic import Periodic
from tenure.coordinator.sweeper import JUMP_THRESHOLD
from tenure.core.checks import check_duration
from tenure.core.instants import Duration, Instant, seconds
from tenure.core.policy import SHORTEST_RETENTION
from tenure.core.views.rollups import MAX_CATCH_UP, fold
from tenure.deadlines import waiting_at_most
from tenure.errors import InvalidInput, NotSupported
from tenure.ports import NO_AGE, Deletable, Store

DAY = seconds(24 * 3600)
PAGE = 1000
KEEP_WORKERS = DAY
"""How long a worker stays listed after its last sign of life. [B13]"""

KEEP_SESSIONS = Duration(7 * DAY)
"""How long a session without a lease is remembered after its last grant. [Q7]"""

KEEP_OUTAGES = Duration(7 * DAY)
"""How long an outage is remembered after its end, at least. [O4]"""

INTERVAL = seconds(30)
RUN_WITHIN_S = 120.0
"""No caller waits for it, so it may take longer than a call. [K16]"""

PRUNINGS = 100
"""Renewals are searched at most this often in the time for which they are kept: a search reads a
renewal of every job that has one. [G4]"""


class RetentionPolicy(msgspec.Struct, frozen=True, kw_only=True):
    """How long things are kept."""

    finished_us: Duration = Duration(30 * DAY)
    refused_us: Duration = Duration(7 * DAY)
    """Bodies of refused reports. [E31]"""
    renewals_us: Duration = Duration(0)
    """Renewals of ended attempts. [E31]"""


class RetentionReport(msgspec.Struct, frozen=True, kw_only=True):
    """How much was deleted in one run, and whether there may be more."""

    deleted: dict[Deletable, int]
    is_behind: bool


def check_retention(policy: RetentionPolicy) -> None:
    """Raise `InvalidInput` for a retention that is too short to be one. [G6]"""
    for field in policy.__struct_fields__:
        check_duration(f"retention.{field}", getattr(policy, field))
    if policy.finished_us < SHORTEST_RETENTION:
        raise InvalidInput(
            "retention.finished_us",
            "finished jobs are kept for at least a day",
            hint="set it to 1d or longer",
        )


class Retention:
    """Deletes at most a page of each kind per run: once, or from `start` to `stop`."""

    def __init__(
        self,
        store: Store,
        policy: RetentionPolicy | None = None,
        *,
        page: int = PAGE,
        monotonic: Monotonic = boot_now,
    ) -> None:
        self._store = store
        self._page = page
        self._monotonic = monotonic
        self._prune_at = monotonic()
        self._reading: tuple[Instant, int] | None = None  # of the store's clock, and when
        self._policy = policy or RetentionPolicy()
        check_retention(self._policy)
        self._periodic = Periodic("retention", self.run_if_steady, interval_us=INTERVAL)
        self.start, self.stop = self._periodic.start, self._periodic.stop

    def run_if_steady(self) -> bool:
        """Run, unless the clock is read for the first time or jumped ahead since the last reading:
        what a wrong clock deletes does not come back. Returns whether there is more. [G5]"""
        now, read_at = self._store.now(), self._monotonic()
        before, self._reading = self._reading, (now, read_at)
        if before is None or now - before[0] > read_at - before[1] + JUMP_THRESHOLD:
            return False
        # A page in thirty seconds is 33 jobs a second: a busy store would grow without end. [G4]
        return self.run_once().is_behind

    def run_once(self) -> RetentionReport:
        """Delete at most a page of each kind."""
        with waiting_at_most(RUN_WITHIN_S):
            return self._delete_page()

    def _delete_page(self) -> RetentionReport:
        policy = self._policy
        ages: dict[Deletable, Duration] = {
            "artifacts": NO_AGE,
            "observations": policy.refused_us,
            "jobs": policy.finished_us,
            "workers": KEEP_WORKERS,
            "sessions": KEEP_SESSIONS,
            "keys": NO_AGE,
            "outages": KEEP_OUTAGES,
            "rollups": NO_AGE,
        }
        prunes = self._monotonic() >= self._prune_at
        if prunes:
            ages = {"renewals": policy.renewals_us, **ages}
        results = {
            what: self._store.upkeep.delete(what, older_than_us=age_us, limit=self._page)
            for what, age_us in ages.items()
        }
        if prunes and not results["renewals"].hit_limit:
            self._prune_at = self._monotonic() + policy.renewals_us // PRUNINGS
        return RetentionReport(
            deleted={what: each.deleted for what, each in results.items()},
            is_behind=any(each.hit_limit for each in results.values()),
        )


FOLD_INTERVAL = seconds(2)
"""How often the log is folded, whichever process does it."""

FOLD_PAGE = 5000
"""Events that are read for one fold."""

PAUSE_PER_COST = 9
"""While there is more to fold, the pause after a fold is this many times as long as the fold."""


class FoldReport(msgspec.Struct, frozen=True, kw_only=True):
    """What one call did. `is_behind`: there may be more to fold, and it is for this process."""

    was_saved: bool = False
    is_behind: bool = False


class Folder:
    """Folds one store's log: once, or from `start` to `stop` in a thread."""

    def __init__(
        self,
        store: Store,
        *,
        page: int = FOLD_PAGE,
        catch_up: int = MAX_CATCH_UP,
        monotonic: Monotonic = boot_now,
        is_wanted: Callable[[], bool] = lambda: True,
    ) -> None:
        """While `is_wanted` returns False, another process folds: the thread reads nothing."""
        self._store = store
        self._is_wanted = is_wanted
        self._page = page
        self._catch_up = catch_up
        self._monotonic = monotonic
        self._pause_us: Duration | None = None  # until the next page, while this one is behind
        self._periodic = Periodic(
            "rollups",
            self._fold_often,
            interval_us=FOLD_INTERVAL,
            next_in=lambda: min(self._pause_us or FOLD_INTERVAL, FOLD_INTERVAL),
        )
        self.start, self.stop = self._periodic.start, self._periodic.stop

    def _fold_often(self) -> bool:
        is_behind, self._pause_us = self._pause_us is not None, None  # also if the fold fails
        if not is_behind and not self._is_wanted():
            return False
        began_us = self._monotonic()
        report = self.fold_once()
        if report.is_behind:
            self._pause_us = Duration(PAUSE_PER_COST * (self._monotonic() - began_us))
        return False  # it continues after the pause

    def fold_once(self) -> FoldReport:
        """Fold at most a page, if the store has rollups. Raises what the store raises."""
        try:
            views = self._store.views
        except NotSupported:
            return FoldReport()
        page = views.unfolded(limit=self._page, catch_up=self._catch_up)
        planned = fold(page)
        was_saved = planned is not None and views.save_fold(planned)
        return FoldReport(was_saved=was_saved, is_behind=was_saved and page.is_full)
