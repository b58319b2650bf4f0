"""The health of a SQLite store: what is true of its file now, and what to do about it.

Changes nothing, and never opens the file itself: closing it again would drop the locks of this
process.
"""

import shutil
import sqlite3
from pathlib import Path

from tenure.ports import HealthFact, fact
from tenure.stores.sql.migrations import newest_version
from tenure.stores.sql.rows import Row
from tenure.stores.sqlite.exposure import exposure
from tenure.stores.sqlite.file import PACKAGE, filesystem_of, is_network_filesystem

SAFE_SQLITE = (3, 51, 3)
"""The first in which a write and a checkpoint at the same instant cannot damage the file."""

REPAIRED_SQLITE = ((3, 44, 6), (3, 50, 7))
"""Backports: releases of these lines are safe too, from this one on."""

LARGE_WAL_BYTES = 64 << 20
LITTLE_SPACE_BYTES = 1 << 30
NO_SPACE_BYTES = 100 << 20

_SYNCHRONOUS = {0: "off", 1: "normal", 2: "full", 3: "extra"}


def sqlite_facts(path: Path, journal_mode: str, synchronous: int, meta: Row) -> list[HealthFact]:
    """The facts about this file."""
    schema_version, epoch = meta
    return [
        fact("store", f"SQLite, {path}"),
        _library(sqlite3.sqlite_version_info),
        fact(
            "journal_mode",
            journal_mode,
            bad=journal_mode != "wal",
            advice="readers and the writer block each other; run PRAGMA journal_mode = WAL",
        ),
        fact(
            "synchronous",
            _SYNCHRONOUS.get(synchronous, str(synchronous)),
            bad=synchronous < 2,
            advice="acknowledged work is lost when the power fails; open the file with Tenure",
        ),
        _filesystem(path),
        *exposure(path),
        fact("file_bytes", _size(path)),
        _log(path),
        _space(path),
        fact(
            "schema_version",
            schema_version,
            bad=schema_version != newest_version(PACKAGE),
            advice="run `tenure migrate`",
        ),
        fact("epoch", epoch),
    ]


def _library(version: tuple[int, ...]) -> HealthFact:
    is_repaired = any(version[:2] == line[:2] and version >= line for line in REPAIRED_SQLITE)
    return fact(
        "sqlite_version",
        ".".join(map(str, version)),
        warning=version < SAFE_SQLITE and not is_repaired,
        advice="if other programs than Tenure write to this file, they need SQLite 3.51.3 (or"
        " 3.50.7, 3.44.6), or PRAGMA wal_autocheckpoint = 0 on their connections: in older"
        " versions an automatic checkpoint during another write can damage the file. Tenure"
        " checkpoints only while no other process can write",
    )


def _filesystem(path: Path) -> HealthFact:
    kind = filesystem_of(path.parent)
    return fact(
        "filesystem",
        kind or "unknown",
        bad=is_network_filesystem(kind),
        advice="SQLite's locks fail on network filesystems; use a local disk or PostgreSQL",
    )


def _log(path: Path) -> HealthFact:
    size = _size(path.with_name(path.name + "-wal"))
    return fact(
        "wal_bytes",
        size,
        warning=size > LARGE_WAL_BYTES,
        advice="a reader that does not end keeps the log from shrinking; find and end it",
    )


def _space(path: Path) -> HealthFact:
    free = shutil.disk_usage(path.parent).free
    return fact(
        "free_bytes",
        free,
        bad=free < NO_SPACE_BYTES,
        warning=free < LITTLE_SPACE_BYTES,
        advice="the disk is nearly full, and a full one stops every write; make room",
    )


def _size(path: Path) -> int:
    try:
        return path.stat().st_size
    except FileNotFoundError:
        return 0
