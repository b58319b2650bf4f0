"""Folds the log into rollups, a page at a time, in the process that sweeps.

Any number of processes may fold: a page is saved only if no other process has saved one since it
was read, so that every event is counted once. [OB33] One that has just been overtaken leaves the
rest to the other. Never part of a job's transaction, and a tenth of a thread at most. [OB36]
"""

import msgspec

from tenure.clock import Monotonic, boot_now
from tenure.coordinator.periodic import Periodic
from tenure.core.instants import Duration, seconds
from tenure.core.rollups import MAX_CATCH_UP, fold
from tenure.ports import Store

FOLD_INTERVAL = seconds(2)
"""How often the log is folded, whichever process does it."""

PAGE = 5000
"""Events that are read for one fold."""

PAUSE_PER_COST = 9
"""How much longer than a fold the pause after it is while there is more to fold."""


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
        page: int = PAGE,
        catch_up: int = MAX_CATCH_UP,
        monotonic: Monotonic = boot_now,
    ) -> None:
        self._store = store
        self._page = page
        self._catch_up = catch_up
        self._monotonic = monotonic
        self._pause_us: Duration | None = None  # until the next page, while this one is behind
        self._periodic = Periodic(
            "rollups",
            self._fold_often,
            interval_us=FOLD_INTERVAL,
            next_in=lambda: self._pause_us,
        )
        self.start, self.stop = self._periodic.start, self._periodic.stop

    def _fold_often(self) -> bool:
        is_behind, self._pause_us = self._pause_us is not None, None  # also if the fold fails
        began_us = self._monotonic()
        report = self.fold_once() if is_behind else self.fold_if_due()
        if report.is_behind:
            self._pause_us = Duration(PAUSE_PER_COST * (self._monotonic() - began_us))
        return False  # the pause says when to go on

    def fold_if_due(self) -> FoldReport:
        """Fold a page, unless a process has folded one just now."""
        progress, now = self._store.upkeep.fold_progress()
        if progress.folded_at is not None and 0 <= now - progress.folded_at < FOLD_INTERVAL:
            return FoldReport()
        return self.fold_once()

    def fold_once(self) -> FoldReport:
        """Fold at most a page. Raises what the store raises."""
        page = self._store.upkeep.unfolded(limit=self._page, catch_up=self._catch_up)
        planned = fold(page)
        was_saved = planned is not None and self._store.upkeep.save_fold(planned)
        return FoldReport(was_saved=was_saved, is_behind=was_saved and page.is_full)
