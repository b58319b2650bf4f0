"""Rollups over SQL: pages of the log that are added up, and what was added up before. Decides
nothing: `core.views.rollups` counts.
"""

from collections.abc import Iterable, Iterator, Sequence
from contextlib import suppress
from functools import partial

import msgspec

from tenure.core.ids import Namespace
from tenure.core.instants import Duration, Instant
from tenure.core.views.events import EventPosition
from tenure.core.views.rollups import (
    COUNTED,
    KEPT_FOR,
    MAX_CATCH_UP,
    CountedEvent,
    Fold,
    FoldProgress,
    Rollup,
    RollupKey,
    Series,
    Tally,
    UnfoldedPage,
    run_of,
    tally,
    touched,
    wait_of,
)
from tenure.core.vocabulary import EventType
from tenure.stores.sql.database import Part, Transaction
from tenure.stores.sql.events import (
    AFTER,
    LAST_JOB,
    NEWEST_FIRST,
    ORDER,
    Place,
    place_of,
    position_of,
)
from tenure.stores.sql.rows import Row
from tenure.stores.sql.statements import Query, Shape

_TYPES = {each.value: each for each in COUNTED}
_decode_series = msgspec.json.Decoder(tuple[Tally, tuple[Series, ...]]).decode
_NEXT: Shape = (("place", AFTER), ("order", ORDER))
_NEWEST: Shape = (("place", AFTER), ("order", NEWEST_FIRST), ("until", "TRUE"))


class SqlRollups(Part):
    """The rollups of `tenure.ports.Upkeep`."""

    def unfolded(self, *, limit: int, catch_up: int = MAX_CATCH_UP) -> UnfoldedPage:
        """The next events to fold, and the rollups that they belong to. [OB33]"""
        load = partial(self._unfolded, limit=limit, catch_up=catch_up)
        return self._read(load, snapshot=True, listing=True)

    def _unfolded(self, tx: Transaction, limit: int, catch_up: int) -> UnfoldedPage:
        [row], [(now, _)] = tx.fetch(self._query("fold_progress"), self._query("moment"))
        progress = progress_from(row)
        begin, skipped_until = self._begin(tx, progress, catch_up)
        page = _after(begin) | {"reads": limit}
        shape: Shape = (*_NEXT, ("until", self._text("is_committed")), ("of_namespace", ""))
        since = now - max(KEPT_FOR.values())  # of older ones nothing is kept
        rows, last = tx.fetch(
            self._query("events_to_count", shape, since=since, **page, **self._counted_types()),
            self._query("last_followed", _NEXT, **page),
        )
        tallied = tally(map(counted_from, rows))
        end = None
        if last:
            number, job_id, seq, _ = last[0]
            end = position_of((number, str(job_id), seq))
        return UnfoldedPage(
            now=Instant(now),
            progress=progress,
            skipped_until=skipped_until,
            end=end,
            is_full=bool(last) and last[0][3] == limit,
            tallied=tallied,
            before=self._load_rollups(tx, touched(tallied, Instant(now))),
        )

    def _begin(
        self, tx: Transaction, progress: FoldProgress, catch_up: int
    ) -> tuple[Place, Instant | None]:
        """The place after which the page starts, and when the event there was if it is left out."""
        if progress.position is None:
            [found] = tx.fetch(self._query("fold_begin", catch_up=catch_up))
            if found:
                number, ts = found[0]
                return (number, *LAST_JOB), Instant(ts)
        return place_of(progress.position), progress.skipped_until

    def _load_rollups(self, tx: Transaction, keys: Iterable[RollupKey]) -> dict[RollupKey, Rollup]:
        """These rollups, as far as there are any, and perhaps some between them."""
        wanted: dict[Duration, list[RollupKey]] = {}
        for key in keys:
            wanted.setdefault(key.length_us, []).append(key)
        queries = [
            self.rollups_query(
                sorted({key.namespace for key in of_length}),
                length,
                min(key.at for key in of_length),
                Instant(max(key.at for key in of_length) + 1),
            )
            for length, of_length in wanted.items()
        ]
        found = [each for rows in tx.fetch(*queries) for each in rollups_from(rows)]
        return {each.key: each for each in found}

    def rollups_query(
        self, namespaces: Sequence[Namespace], length: Duration, since: Instant, until: Instant
    ) -> Query:
        names = self._pack(namespaces)
        return self._query("load_rollups", names=names, length_us=length, since=since, until=until)

    def save_fold(self, fold: Fold) -> bool:
        """Write the rollups unless another process has folded these events meanwhile. [OB33]"""
        return self._write(partial(self._save_fold, fold=fold))

    def _save_fold(self, tx: Transaction, fold: Fold) -> bool:
        # First: a process that folds the same events waits here, and then finds another position.
        [moved] = tx.fetch(
            self._query(
                "move_fold_progress",
                position=fold.progress.position,
                skipped_until=fold.progress.skipped_until,
                folded_until=fold.progress.folded_until,
                expected=fold.expected or "",
            )
        )
        if moved:
            tx.fetch(*[self._query("put_rollup", **_columns(each)) for each in fold.rollups])
        return bool(moved)

    def unfolded_queries(
        self, position: EventPosition | None, namespace: Namespace, since: Instant, most: int
    ) -> tuple[Query, Query]:
        """From the newest events that were not folded, the events of a namespace and of a time; and
        the time of the newest one that was not read."""
        page = _after(place_of(position)) | {"reads": most}
        shape: Shape = (*_NEWEST, ("of_namespace", "AND j.namespace = :namespace"))
        given = {"namespace": namespace, "since": since, **page, **self._counted_types()}
        return (
            self._query("events_to_count", shape, **given),
            self._query("newest_uncounted_event", _NEWEST[:2], **page),
        )

    def _counted_types(self) -> dict[str, object]:
        return {"types": self._pack(list(_TYPES)), "claimed": EventType.CLAIMED.value}


def _after(place: Place) -> dict[str, object]:
    position, job_id, seq = place
    return {"position": position, "after_job_id": job_id, "seq": seq}


def progress_from(row: Row) -> FoldProgress:
    """A row of `fold_progress`."""
    position, skipped_until, folded_until, folded_at = row
    return FoldProgress(
        position=position,
        skipped_until=skipped_until,
        folded_until=folded_until,
        folded_at=folded_at,
    )


def counted_from(row: Row) -> CountedEvent:
    """A row of `events_to_count`."""
    namespace, queue, kind, type_value, ts, started_at, queued_at, run_at = row
    type_, duration = _TYPES[type_value], None
    if queued_at is not None:
        duration = wait_of(ts, queued_at, run_at)
    elif type_ is EventType.SUCCEEDED and started_at is not None:
        duration = run_of(started_at, ts)
    return CountedEvent(namespace, queue, kind, type_, ts, duration)


def rollups_from(rows: Iterable[Row]) -> Iterator[Rollup]:
    """Rows of `load_rollups`, without rows that another version wrote in another shape: a plot may
    lack them, and an overview must not fail because of them. [OB33]"""
    for namespace, length_us, at, series in rows:
        key = RollupKey(Namespace(namespace), Duration(length_us), Instant(at))
        with suppress(msgspec.DecodeError):
            yield Rollup(key, *_decode_series(series))


def _columns(rollup: Rollup) -> dict[str, object]:
    key = rollup.key
    return {
        "namespace": key.namespace,
        "length_us": key.length_us,
        "at": key.at,
        "series": msgspec.json.encode((rollup.total, rollup.series)).decode(),
    }
