"""Schedules."""

from collections.abc import Sequence
from typing import Protocol

import msgspec
from msgspec.structs import replace

from tenure.core.ids import Epoch, JobId, Namespace, ScheduleName
from tenure.core.instants import Duration, Instant
from tenure.core.outcomes import Change, Moment, SessionKey
from tenure.core.schedules import (
    Schedule,
    ScheduleChange,
    ScheduleSpec,
    latest_plausible_write,
    pauses_after_revocation,
)
from tenure.core.tokens import Token
from tenure.errors import StoreError
from tenure.ports import MAX_DUE_READ, NO_LIMIT, DueSchedules, LoadedSchedule, Saved
from tenure.stores.sql.database import Database, Part, Transaction
from tenure.stores.sql.rows import Row
from tenure.stores.sql.statements import Query

SCHEDULE_COLUMNS: tuple[str, ...] = (*Schedule.__struct_fields__, "payload")
_KEY = ("namespace", "name")
_CHANGING = tuple(name for name in SCHEDULE_COLUMNS if name not in _KEY)
COLUMN_PLACEHOLDERS = {
    "schedule_columns": ", ".join(SCHEDULE_COLUMNS),
    "schedule_without_payload": ", ".join(
        f"s.{name}" if name != "payload" else "'null'" for name in SCHEDULE_COLUMNS
    ),
    "schedule_values": ", ".join(f":{name}" for name in SCHEDULE_COLUMNS),
    "schedule_assignments": ", ".join(f"{name} = :{name}" for name in _CHANGING),
}

_NO_PAYLOAD = b""
"""In the document of the spec: the payload has a column of its own, as text."""

_encode = msgspec.json.Encoder().encode
_decode = msgspec.json.Decoder(ScheduleSpec).decode


class JobWriter(Protocol):
    """What saving a schedule with its job needs of the store's jobs."""

    def row_locks(self, ids: Sequence[JobId], sessions: Sequence[SessionKey]) -> list[Query]:
        """Locks on these jobs, and on the epoch before them."""

    def save_held(self, tx: Transaction, changes: Sequence[Change], epoch: Epoch) -> Saved:
        """Write changes of jobs in this transaction."""

    def written(self, changes: Sequence[Change], now: Instant, *, begun: int) -> None:
        """These were committed."""

    def begin(self) -> int:
        """Called before a transaction that writes."""


class SqlSchedules(Part):
    """`tenure.ports.StoredSchedules`."""

    def __init__(self, database: Database, jobs: JobWriter) -> None:
        super().__init__(database)
        self._jobs = jobs

    def page(
        self, namespace: Namespace, *, after: str = "", limit: int = NO_LIMIT
    ) -> list[Schedule]:
        """The schedules after this name that were not removed, by name, without payloads. [B43]"""
        query = self._query("list_schedules", namespace=namespace, after=after, limit=limit)
        return [_schedule(row) for row in self._rows(query, listing=True)]

    def load(self, namespace: Namespace, name: ScheduleName) -> LoadedSchedule:
        """A schedule, also a removed one."""
        query = self._query("load_schedule", namespace=namespace, name=name)
        found, [(now, epoch)] = self._read(
            lambda tx: tx.fetch(query, self._query("moment"), last=True)
        )
        schedule = _schedule(found[0]) if found else None
        return LoadedSchedule(Instant(now), Epoch(epoch), schedule)

    def due(self, *, limit: int) -> DueSchedules:
        """The schedules whose next time has come, without payloads. One statement while there is
        none."""
        [(first, latest, now, epoch)] = self._rows(self._query("next_schedule"))
        rows: list[Row] = []
        latest_write = latest_plausible_write(Instant(now))
        if first is not None and (first <= now or latest > latest_write):
            query = self._query(
                "due_schedules",
                until=now,
                latest_write=latest_write,
                limit=limit,
                reads=MAX_DUE_READ,
            )
            rows = self._rows(query)
        next_in = None if first is None else Duration(max(0, first - now))
        return DueSchedules(Instant(now), Epoch(epoch), tuple(map(_schedule, rows)), next_in)

    def save(self, change: ScheduleChange, *, epoch: Epoch) -> bool:
        """Write the schedule and its job, if the rev and the epoch are still these. [SC3]"""
        begun = self._jobs.begin()
        saved = self._write(lambda tx: self._save(tx, change, epoch))
        if saved and change.job is not None:
            self._jobs.written([change.job], change.job.job.enqueued_at, begun=begun)
        return saved

    def _save(self, tx: Transaction, change: ScheduleChange, epoch: Epoch) -> bool:
        # With the epoch locked, it is still this one at the commit.
        *_, [(_, current)] = tx.fetch(*self._jobs.row_locks([], []), self._query("moment"))
        if current != epoch:
            return False
        name = "update_schedule" if change.expected_rev else "insert_schedule"
        values = _values(change.schedule)
        [written] = tx.fetch(self._query(name, expected_rev=change.expected_rev, **values))
        if not written:
            return False
        if change.job is not None:
            self._jobs.save_held(tx, [change.job], epoch)  # a job of this id stays unchanged
        return True

    def pause_after_revocation(
        self, tx: Transaction, token: Token, same_name: Sequence[Token], at: Moment
    ) -> tuple[ScheduleName, ...]:
        """Pause the schedules of a revoked token's holder. Returns their names. [SC24]"""
        holder = {"namespace": token.namespace, "actor": token.actor}
        [rows] = tx.fetch(self._query("schedules_changed_by", **holder))
        changes = pauses_after_revocation(token, same_name, map(_schedule, rows), at)
        for each in changes:
            values = _values(each.schedule)
            tx.fetch(self._query("pause_schedule", expected_rev=each.expected_rev, **values))
        return tuple(each.schedule.name for each in changes)


def _values(schedule: Schedule) -> dict[str, object]:
    values: dict[str, object] = msgspec.structs.asdict(schedule)
    values["payload"] = schedule.spec.payload.decode()
    values["spec"] = _encode(replace(schedule.spec, payload=_NO_PAYLOAD)).decode()
    return values


def _schedule(row: Row) -> Schedule:
    values = dict(zip(SCHEDULE_COLUMNS, row, strict=True))
    payload = values.pop("payload").encode()
    try:
        spec = replace(_decode(values["spec"]), payload=payload)
    except msgspec.MsgspecError as wrong:
        raise StoreError(
            f"schedule {values['name']} cannot be read: {wrong}",
            hint="upgrade Tenure, or correct what was written by hand",
        ) from wrong
    return Schedule(**values | {"spec": spec})


def until_next(first: Instant | None, latest: Instant | None, now: Instant) -> Duration | None:
    """From the answer to `next_schedule`: how long until a schedule has to be read. 0 also if one
    was written before the clock was set back; None if none will fire."""
    if first is None:
        return None
    was_set_back = latest is not None and latest > latest_plausible_write(now)
    return Duration(0 if was_set_back else max(0, first - now))
