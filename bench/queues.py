"""The first rows: what users start, beside the queues that they might start instead.

Every contestant has one session a round (bench/sessions.py), in turns; who begins changes. A peer
that cannot be had here is left out, and its line says why.
"""

import re
from collections.abc import Iterator, Sequence
from contextlib import contextmanager

import msgspec

from bench.contestants import Contestant, field
from bench.harness import Figure, Options, Target, Unavailable, say, shown
from bench.peers import HERE
from bench.processes import require_accounting
from bench.report import Line, Section
from bench.servers import durable_postgres, scratch_directory
from bench.sessions import BATCH, BUSY_PER_S, Measured, Session, Sizes
from bench.sites import site
from tests.support.postgres import PostgresCluster

NAME = "queues"


class Shape(msgspec.Struct, frozen=True, kw_only=True):
    """A section before it is measured: which figures of a session it shows."""

    key: str
    title: str
    unit: str
    first: str
    is_more_better: bool
    second: str | None = None
    second_title: str | None = None
    second_unit: str = ""
    is_of_producers: bool = False


SHAPES = (
    Shape(
        key="drain",
        title="Draining a queue of no-op jobs",
        unit="jobs/s",
        first="drain_per_s",
        is_more_better=True,
        second="drain_cpu_us",
        second_title="CPU per job, workers and server",
        second_unit="µs",
    ),
    Shape(
        key="enqueue-single",
        title="Enqueueing one job a call",
        unit="jobs/s",
        first="single_per_s",
        is_more_better=True,
        second="single_cpu_us",
        second_title="CPU per job, producer and server",
        second_unit="µs",
        is_of_producers=True,
    ),
    Shape(
        key="enqueue-bulk",
        title=f"Enqueueing {BATCH:,} jobs a call",
        unit="jobs/s",
        first="bulk_per_s",
        is_more_better=True,
        second="bulk_cpu_us",
        second_title="CPU per job, producer and server",
        second_unit="µs",
        is_of_producers=True,
    ),
    Shape(
        key="latency-idle",
        title="From enqueueing to the handler, idle worker, p50",
        unit="ms",
        first="idle_p50_ms",
        is_more_better=False,
        second="idle_p95_ms",
        second_title="p95",
        second_unit="ms",
    ),
    Shape(
        key="latency-busy",
        title=f"From enqueueing to the handler, {BUSY_PER_S:.0f} jobs a second, p50",
        unit="ms",
        first="busy_p50_ms",
        is_more_better=False,
        second="busy_p95_ms",
        second_title="p95",
        second_unit="ms",
    ),
    Shape(
        key="idle-cpu",
        title="CPU of an idle worker",
        unit="% of a core",
        first="idle_cpu_percent",
        is_more_better=False,
    ),
)

_ASYNC, _PROCESS = "async lane, 1 process", "process lane, 1 process"
TARGETS: dict[tuple[str, str], Target] = {
    ("drain", f"Tenure, PostgreSQL, {_ASYNC}"): Target(at_least=0.5),
    ("drain", f"Tenure, PostgreSQL, {_PROCESS}"): Target(at_least=0.17),
    ("drain", f"Tenure, SQLite, {_ASYNC}"): Target(at_least=1.5),
    ("enqueue-single", f"Tenure, PostgreSQL, {_ASYNC}"): Target(at_least=1.0),
    ("enqueue-single", f"Tenure, SQLite, {_ASYNC}"): Target(at_least=0.5),
    ("enqueue-bulk", f"Tenure, PostgreSQL, {_ASYNC}"): Target(at_least=0.8),
    ("latency-idle", f"Tenure, PostgreSQL, {_ASYNC}"): Target(at_most=1.5),
    ("latency-idle", f"Tenure, HTTP, {_ASYNC}"): Target(at_most=2.0),
}
"""By section and contestant: what its ratio has to be."""

Rounds = dict[str, list[Measured]]
"""What each contestant showed, round by round."""


def run(
    options: Options, *, only: str | None = None, with_peers: bool = True
) -> tuple[Section, ...]:
    """Everybody's sessions; `only` is a regular expression for names."""
    require_accounting()
    contestants = [
        each
        for each in field()
        if (only is None or re.search(only, each.name) is not None)
        and (with_peers or each.is_ours)
        and (not options.is_quick or each.is_in_quick)
    ]
    with _postgres_for(contestants) as server:
        rounds, left_out = _rounds(contestants, server, options)
    return tuple(section(shape, contestants, rounds, left_out) for shape in SHAPES)


@contextmanager
def _postgres_for(contestants: Sequence[Contestant]) -> Iterator[PostgresCluster | None]:
    if not any(each.needs_postgres for each in contestants):
        yield None
        return
    with durable_postgres() as server:
        yield server


def _rounds(
    contestants: Sequence[Contestant], server: PostgresCluster | None, options: Options
) -> tuple[Rounds, dict[str, str]]:
    rounds: Rounds = {each.name: [] for each in contestants}
    left_out = _absent(contestants)
    for number in range(options.rounds):
        turn = number % len(contestants)
        for each in (*contestants[turn:], *contestants[:turn]):
            if each.name in left_out:
                continue
            try:
                measured = _session(each, server, options)
            except Unavailable as problem:
                if each.is_ours:
                    raise
                left_out[each.name] = str(problem)
                say(f"  {each.name} is left out: {problem}")
                continue
            rounds[each.name].append(measured)
            drained = f"{shown(measured.drain_per_s)} jobs/s, {shown(measured.drain_cpu_us)} µs"
            say(f"  round {number + 1}/{options.rounds}  {each.name}: {drained} a job")
    return rounds, left_out


def _absent(contestants: Sequence[Contestant]) -> dict[str, str]:
    """Who cannot be had here; installing is no part of a round."""
    absent: dict[str, str] = {}
    for each in contestants:
        try:
            each.prepare()
        except Unavailable as problem:
            absent[each.name] = str(problem)
            say(f"  {each.name} is left out: {problem}")
    return absent


def _session(contestant: Contestant, server: PostgresCluster | None, options: Options) -> Measured:
    with scratch_directory() as directory, site(contestant, server, directory) as at:
        return Session(contestant, at, Sizes.of(contestant, options), directory).run()


def section(
    shape: Shape, contestants: Sequence[Contestant], rounds: Rounds, left_out: dict[str, str]
) -> Section:
    """One table: those that have the figure, and those that were left out."""
    shown_names = {each.name: _shown_name(shape, each) for each in contestants}
    lines: list[Line] = []
    for each in contestants:
        if shape.is_of_producers and not each.is_producer:
            continue
        name = shown_names[each.name]
        if each.name in left_out:
            lines.append(Line(name=name, is_ours=each.is_ours, why=left_out[each.name]))
            continue
        figure = _figure(rounds[each.name], shape.first)
        if figure is None:
            continue
        beside = _figure(rounds.get(each.beside, []), shape.first)
        is_compared = each.beside not in left_out and each.beside != each.name
        lines.append(
            Line(
                name=name,
                is_ours=each.is_ours,
                figure=figure,
                beside=shown_names.get(each.beside),
                ratio=_ratio(figure, beside) if is_compared else None,
                target=TARGETS.get((shape.key, each.name)),
                second=None if shape.second is None else _figure(rounds[each.name], shape.second),
            )
        )
    return Section(
        key=shape.key,
        title=shape.title,
        unit=shape.unit,
        is_more_better=shape.is_more_better,
        second_title=shape.second_title,
        second_unit=shape.second_unit,
        lines=tuple(lines),
    )


def _shown_name(shape: Shape, contestant: Contestant) -> str:
    if not shape.is_of_producers:
        return contestant.name
    is_one_by_one = shape.first == "bulk_per_s" and not contestant.has_bulk
    return contestant.producer_name + (", one by one" if is_one_by_one else "")


def _figure(measured: Sequence[Measured], name: str) -> Figure | None:
    values = [getattr(each, name) for each in measured]
    return None if not values or None in values else Figure(tuple(values))


def _ratio(ours: Figure, theirs: Figure | None) -> Figure | None:
    """Round by round; an idle worker may have used nothing that the kernel counts."""
    if theirs is None or len(ours.values) != len(theirs.values) or 0.0 in theirs.values:
        return None
    return Figure(tuple(a / b for a, b in zip(ours.values, theirs.values, strict=True)))


def versions() -> dict[str, str]:
    """Of the peers, as they are pinned."""
    found: dict[str, str] = {}
    for file in sorted(HERE.glob("requirements-*.txt")):
        name = file.stem.removeprefix("requirements-")
        pinned = re.search(rf"^{name}==(\S+)", file.read_text("utf-8"), re.MULTILINE)
        assert pinned is not None, f"{file.name} does not pin {name}"
        found[name] = pinned[1]
    return found
