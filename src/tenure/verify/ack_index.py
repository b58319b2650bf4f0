"""An index of acknowledgements by job, in a temporary file: any number of them in bounded memory.

The file is a temporary SQLite database, which is deleted when the index is closed.
"""

import sqlite3
from collections.abc import Iterable, Iterator
from itertools import islice
from pathlib import Path

import msgspec

from tenure.core.ids import JobId
from tenure.verify.acks import Ack, read_acks

_BATCH = 1000


class AckIndex:
    """Acknowledgements by the job they are about, and which of those jobs have a record."""

    def __init__(self) -> None:
        self._encode = msgspec.msgpack.Encoder().encode
        self._decode = msgspec.msgpack.Decoder(Ack).decode
        self._database = sqlite3.connect("", isolation_level=None)
        self._database.execute("PRAGMA journal_mode = OFF")
        self._database.execute("PRAGMA synchronous = OFF")
        self._database.execute("CREATE TABLE ack (job_id TEXT NOT NULL, body BLOB NOT NULL)")
        self._database.execute("CREATE TABLE found (job_id TEXT PRIMARY KEY) WITHOUT ROWID")
        self._database.execute("BEGIN")

    def load(self, paths: Iterable[Path]) -> list[int]:
        """Read these files. Returns how many lines each of them has."""
        lines = [self._load(path) for path in paths]
        self._database.execute("CREATE INDEX ack_by_job ON ack (job_id)")
        return lines

    def _load(self, path: Path) -> int:
        lines = 0
        acks = read_acks(path)
        while batch := list(islice(acks, _BATCH)):
            lines += len(batch)
            rows = [row for ack in batch for row in self._rows(ack)]
            self._database.executemany("INSERT INTO ack VALUES (?, ?)", rows)
        return lines

    def _rows(self, ack: Ack) -> Iterator[tuple[str, bytes]]:
        body = self._encode(ack)
        yield ack.job_id, body
        if ack.target != ack.job_id:
            yield ack.target, body

    def of(self, job_id: JobId) -> list[Ack]:
        """What callers wrote about a job that has a record, in the order of their files."""
        found = self._of(job_id)
        if found:
            self._database.execute("INSERT OR IGNORE INTO found VALUES (?)", (job_id,))
        return found

    def _of(self, job_id: JobId) -> list[Ack]:
        rows = self._database.execute(
            "SELECT body FROM ack WHERE job_id = ? ORDER BY rowid", (job_id,)
        )
        return [self._decode(body) for (body,) in rows]

    def without_record(self) -> Iterator[tuple[JobId, list[Ack]]]:
        """The jobs that callers wrote about and that have no record."""
        ids = self._database.execute(
            "SELECT DISTINCT job_id FROM ack"
            " WHERE NOT EXISTS (SELECT 1 FROM found WHERE found.job_id = ack.job_id)"
        )
        for (job_id,) in ids:
            yield job_id, self._of(job_id)

    def __enter__(self) -> "AckIndex":
        return self

    def __exit__(self, *_: object) -> None:
        self._database.close()
