"""The health of a PostgreSQL store: what is true of its server now, and what to do about it.

Only reads, and needs no special rights.
"""

from collections.abc import Sequence
from datetime import UTC, datetime

from tenure.core.instants import MICROSECONDS_PER_SECOND, Instant
from tenure.ports import HealthFact, fact
from tenure.stores.postgres.schema import PACKAGE
from tenure.stores.sql.migrations import newest_version
from tenure.stores.sql.rows import Row

OLDEST_POSTGRES = 140000
MAX_CLOCK_DIFFERENCE_S = 2.0
OLD_TRANSACTION_S = 300
OLD_XMIN = 1_000_000
MANY_DEAD_ROWS = 100_000
HELD_WAL_BYTES = 1 << 30
CONNECTIONS_SHARE = 0.8

QUESTIONS = (
    "health_server",
    "health_meta",
    "health_transactions",
    "health_connections",
    "health_slots",
    "health_tables",
)


def postgres_facts(
    answers: Sequence[Sequence[Row]], *, sent_at: Instant, received_at: Instant
) -> list[HealthFact]:
    """The facts about this server from the answers to `QUESTIONS`. By this host's clock, these were
    sent at `sent_at` and answered by `received_at`."""
    [server], [meta], [transactions], [connections], [slots], tables = answers
    return [
        *_server(server),
        _clock(server[5], sent_at, received_at),
        *_meta(meta),
        *_transactions(transactions),
        *(_bloat(*row) for row in tables),
        _slots(*slots),
        _connections(*connections),
    ]


def _server(row: Row) -> list[HealthFact]:
    version, number, fsync, synchronous_commit, in_recovery = row[:5]
    return [
        fact(
            "server_version",
            version,
            warning=number < OLDEST_POSTGRES,
            advice="Tenure is tested on PostgreSQL 14 and newer; upgrade the server",
        ),
        fact(
            "in_recovery",
            bool(in_recovery),
            bad=bool(in_recovery),
            advice="this is a standby: it takes no writes; connect to the primary",
        ),
        fact(
            "fsync",
            fsync,
            bad=fsync != "on",
            advice="a crash of the server loses or damages data; set fsync = on",
        ),
        fact(
            "synchronous_commit",
            synchronous_commit,
            bad=synchronous_commit == "off",
            advice="a crash loses work that was acknowledged; set synchronous_commit = on",
        ),
    ]


def _clock(server_now: int, sent_at: Instant, received_at: Instant) -> HealthFact:
    """The server read its clock between the two instants, so only a reading outside of them counts
    as a difference."""
    difference = max(sent_at - server_now, server_now - received_at, 0) / MICROSECONDS_PER_SECOND
    return fact(
        "clock_difference_s",
        round(difference, 3),
        warning=difference > MAX_CLOCK_DIFFERENCE_S,
        advice="the server's clock is the one that counts; synchronise the clocks of both hosts",
    )


def _meta(row: Row) -> list[HealthFact]:
    schema_version, epoch, system_identifier, recorded, timeline, losses, lost_at = row
    return [
        fact(
            "schema_version",
            schema_version,
            bad=schema_version != newest_version(PACKAGE),
            advice="run `tenure migrate`",
        ),
        fact("epoch", epoch),
        fact(
            "system_identifier",
            system_identifier,
            bad=system_identifier != recorded,
            advice=f"this store was restored from the system {recorded}; run `tenure raise-epoch`"
            " before anything else uses it",
        ),
        fact("timeline", "none: a standby" if timeline is None else timeline),
        fact(
            "losses",
            losses,
            warning=losses > 0,
            advice=f"acknowledged work was missing after a failover, last at {_shown(lost_at)}; see"
            " what is gone, and use a synchronous standby",
        ),
    ]


def _shown(instant: int | None) -> str:
    if instant is None:
        return "no time"
    at = datetime.fromtimestamp(instant // MICROSECONDS_PER_SECOND, UTC)
    return at.isoformat().replace("+00:00", "Z")


def _transactions(row: Row) -> list[HealthFact]:
    oldest_s, xmin_age, pinned_by = row
    advice = (
        "while it is open no dead row of any table is removed, and claims slow down; end"
        f" {pinned_by or 'it'}"
    )
    return [
        fact(
            "oldest_transaction_s",
            oldest_s,
            warning=oldest_s > OLD_TRANSACTION_S,
            advice=advice,
        ),
        fact("xmin_age", xmin_age, warning=xmin_age > OLD_XMIN, advice=advice),
    ]


def _bloat(table: str, live: int, dead: int) -> HealthFact:
    return fact(
        f"dead_rows_{table}",
        dead,
        warning=dead > MANY_DEAD_ROWS and dead > live,
        advice=f"more dead than live rows; see what keeps autovacuum from {table}",
    )


def _slots(count: int, held_bytes: int) -> HealthFact:
    return fact(
        "replication_slots",
        f"{count}, holding {held_bytes} bytes" if count else "none",
        warning=held_bytes > HELD_WAL_BYTES,
        advice="a slot without a reader fills the disk; drop it, or start its reader",
    )


def _connections(used: int, most: int) -> HealthFact:
    return fact(
        "connections",
        f"{used} of {most}",
        warning=used > CONNECTIONS_SHARE * most,
        advice="the server will refuse connections soon; use a pooler or raise max_connections",
    )
