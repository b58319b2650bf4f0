"""Golden logs: histories written by version 1 of the event schema, kept as they were written.

Every later release must fold each of them to the row beside it. The files are evidence, not
output: nothing regenerates them, and `tools.golden_logs` never overwrites one. [Y1]
"""

from collections.abc import Iterator
from pathlib import Path

import msgspec

from tenure.core.events import Event
from tenure.core.evolution import digested
from tenure.core.job import Job

FOLDER = Path(__file__).parent

_ADDED_LATER = frozenset({"claimed_run_at", "not_before"})
"""Fields of a row that follow from its log and are younger than the first golden files."""


class GoldenLog(msgspec.Struct, frozen=True, kw_only=True):
    """One job's log as stored, and the digested row it leads to, as plain JSON."""

    name: str
    about: str
    events: list[dict[str, object]]
    row: dict[str, object]

    def read_events(self) -> list[Event]:
        """The events, as today's code reads them; fields it does not know are ignored. [Y2]"""
        return msgspec.convert(self.events, list[Event])


def row_as_json(job: Job) -> dict[str, object]:
    """A digested row as the golden files have it: digests as text, and only the fields that say
    something and that rows had when the files were written: a field that was added later does not
    make an old row another one."""
    found = msgspec.to_builtins(job, builtin_types=(bytes,))
    assert isinstance(found, dict)
    unset = {field.encode_name: field.default for field in msgspec.structs.fields(job)}
    return {
        name: value.decode() if isinstance(value, bytes) else value
        for name, value in found.items()
        if value is not None and value != unset[name] and name not in _ADDED_LATER
    }


def golden(name: str, *, about: str, job: Job, events: list[Event]) -> GoldenLog:
    """A golden log of a job in its present state."""
    return GoldenLog(
        name=name,
        about=about,
        events=[msgspec.to_builtins(event) for event in events],
        row=row_as_json(digested(job)),
    )


def golden_logs(version: int = 1) -> Iterator[GoldenLog]:
    """Every golden log of a version of the event schema, by name."""
    for path in sorted((FOLDER / f"v{version}").glob("*.json")):
        yield msgspec.json.decode(path.read_bytes(), type=GoldenLog)
