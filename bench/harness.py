"""What every scenario shares: interleaved rounds, figures with their spread, one table.

A speed means little on a machine that others use too, a ratio of two things measured a moment
apart means more. So contestants take turns, each round gives one ratio, and a row shows the
median of the ratios and how far they spread. This module measures nothing by itself.
"""

import os
import platform
import re
import statistics
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path

import msgspec

README = Path(__file__).with_name("README.md")
BEGIN_MARK = "<!-- figures: begin -->"
END_MARK = "<!-- figures: end -->"


class Options(msgspec.Struct, frozen=True, kw_only=True):
    """What the command line asked for."""

    rounds: int = 5
    is_quick: bool = False
    stores: tuple[str, ...] = ()
    """URLs of stores that `pages` fills once and keeps."""

    def sized(self, full: int, quick: int) -> int:
        """The size of something, depending on how long a run may take."""
        return quick if self.is_quick else full


class Unavailable(Exception):
    """A scenario cannot be measured here, and why: in one line."""


class BrokenHistory(Exception):
    """A run was fast and wrong."""


class Figure(msgspec.Struct, frozen=True):
    """The measurements of one contestant, or the ratios of two."""

    values: tuple[float, ...]

    @property
    def median(self) -> float:
        """The middle one."""
        return statistics.median(self.values)

    @property
    def lowest(self) -> float:
        """The smallest one."""
        return min(self.values)

    @property
    def highest(self) -> float:
        """The largest one."""
        return max(self.values)


class Target(msgspec.Struct, frozen=True, kw_only=True):
    """What a median ratio has to be."""

    at_least: float | None = None
    at_most: float | None = None

    @property
    def shown(self) -> str:
        """As the tables show it."""
        return f"≥ {self.at_least:g}×" if self.at_least is not None else f"≤ {self.at_most:g}×"

    def is_met_by(self, ratio: Figure) -> bool:
        """Whether the median is within the bounds."""
        is_enough = self.at_least is None or ratio.median >= self.at_least
        return is_enough and (self.at_most is None or ratio.median <= self.at_most)


class Row(msgspec.Struct, frozen=True, kw_only=True):
    """One line of the table: ours beside theirs, and whether the target is met."""

    scenario: str
    ours: Figure
    theirs: Figure
    unit: str
    peer: str
    at_least: float | None = None
    at_most: float | None = None

    @property
    def ratio(self) -> Figure:
        """Ours over theirs, round by round."""
        pairs = zip(self.ours.values, self.theirs.values, strict=True)
        return Figure(tuple(ours / theirs for ours, theirs in pairs))

    @property
    def target(self) -> str:
        """The target as the table shows it."""
        return "none" if self._bounds is None else self._bounds.shown

    @property
    def _bounds(self) -> Target | None:
        if self.at_least is None and self.at_most is None:
            return None
        return Target(at_least=self.at_least, at_most=self.at_most)

    @property
    def is_met(self) -> bool | None:
        """Whether the median ratio meets the target; None where there is none."""
        return None if self._bounds is None else self._bounds.is_met_by(self.ratio)


Contestant = Callable[[], float]
"""Runs once from a clean start and returns what it measured."""


def say(text: str) -> None:
    """Talk; data goes to standard output."""
    print(text, file=sys.stderr, flush=True)


def interleave(contestants: Mapping[str, Contestant], *, rounds: int) -> dict[str, Figure]:
    """Each contestant once per round; who begins changes, so that drift favours nobody."""
    values: dict[str, list[float]] = {name: [] for name in contestants}
    names = list(contestants)
    for number in range(rounds):
        turn = number % len(names)
        for name in names[turn:] + names[:turn]:
            measured = contestants[name]()
            values[name].append(measured)
            say(f"  round {number + 1}/{rounds}  {name}: {shown(measured)}")
    return {name: Figure(tuple(measured)) for name, measured in values.items()}


class Stopwatch:
    """Wall time of a `with` block."""

    def __init__(self) -> None:
        self.elapsed_s = 0.0
        self._began_s = 0.0

    def __enter__(self) -> "Stopwatch":
        self._began_s = time.perf_counter()
        return self

    def __exit__(self, *_: object) -> None:
        self.elapsed_s = time.perf_counter() - self._began_s


# --- Showing -----------------------------------------------------------------------------------


def shown(value: float) -> str:
    """A number with as many digits as a noisy measurement deserves."""
    if value >= 1000:
        return f"{round(value, -2 if value >= 10_000 else -1):,.0f}"
    return f"{value:.1f}" if value >= 10 else f"{value:.2f}"


def spread(figure: Figure, unit: str) -> str:
    """The median, and the lowest and the highest of the rounds."""
    median = f"{shown(figure.median)} {unit}".rstrip()
    return f"{median} ({shown(figure.lowest)}–{shown(figure.highest)})"


def table(rows: Sequence[Row]) -> str:
    """The rows as a markdown table; in parentheses the smallest and the largest of the rounds."""
    lines = [
        "| scenario | Tenure | beside | ratio | target | met |",
        "|---|---|---|---|---|---|",
    ]
    for row in rows:
        ratio = row.ratio
        met = {True: "yes", False: "**no**", None: ""}[row.is_met]
        lines.append(
            f"| {row.scenario} | {spread(row.ours, row.unit)} "
            f"| {row.peer}: {spread(row.theirs, row.unit)} "
            f"| **{ratio.median:.2f}×** ({ratio.lowest:.2f}–{ratio.highest:.2f}) "
            f"| {row.target} | {met} |"
        )
    return "\n".join(lines)


def machine_facts() -> str:
    """What a reader needs to judge the figures; no host names and no paths."""
    cores = os.cpu_count() or 0
    return (
        f"{platform.system()} {platform.machine()}, {cores} cores, {_memory_gib():.0f} GiB, "
        f"CPython {platform.python_version()}"
    )


def load() -> float:
    """How many processes wanted a core in the last minute, ours included."""
    return os.getloadavg()[0]


def _memory_gib() -> float:
    return os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES") / 2**30


def write_readme(text: str, path: Path = README) -> None:
    """Put `text` between the markers of the README."""
    old = path.read_text(encoding="utf-8")
    pattern = re.compile(re.escape(BEGIN_MARK) + r".*?" + re.escape(END_MARK), re.DOTALL)
    if pattern.search(old) is None:
        raise Unavailable(f"{path.name} has no figures to replace: the markers are missing")
    path.write_text(pattern.sub(lambda _: f"{BEGIN_MARK}\n{text}\n{END_MARK}", old), "utf-8")
