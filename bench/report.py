"""What a run shows: one table for people, one plot, one JSON document for programs.

The tables come in sections, one for each thing that was measured; every line has the median and the
spread of its rounds, the ratio to a peer of the same rounds, and a second figure of its section.
"""

import html
from collections.abc import Sequence

import msgspec

from bench.harness import Figure, Row, Target, shown, spread, table

BAR_HEIGHT = 15
LINE_HEIGHT = 22
NAME_WIDTH = 300
BAR_WIDTH = 380
ROOM_FOR_SPREAD = 1.3
"""A spread that is longer is cut; its figures stand beside it."""
FIGURE_WIDTH = 220
TITLE_HEIGHT = 46
STYLE = """
text { font-family: Helvetica, Arial, sans-serif; font-size: 12px; fill: #1f2328 }
.title { font-size: 14px; font-weight: 600 }
.note { fill: #59636e }
.ours { fill: #0969da } .theirs { fill: #afb8c1 } .spread { stroke: #1f2328; stroke-width: 1.5 }
@media (prefers-color-scheme: dark) {
  text { fill: #e6edf3 } .note { fill: #9198a1 }
  .ours { fill: #4493f8 } .theirs { fill: #565f69 } .spread { stroke: #e6edf3 }
}
"""


class Line(msgspec.Struct, frozen=True, kw_only=True):
    """One contestant in one section; `figure` is None where it was left out, and `why` says so."""

    name: str
    is_ours: bool
    figure: Figure | None = None
    beside: str | None = None
    ratio: Figure | None = None
    target: Target | None = None
    second: Figure | None = None
    why: str | None = None


class Section(msgspec.Struct, frozen=True, kw_only=True):
    """One thing that was measured."""

    key: str
    title: str
    unit: str
    is_more_better: bool
    second_title: str | None = None
    second_unit: str = ""
    lines: tuple[Line, ...]


class Report(msgspec.Struct, frozen=True, kw_only=True):
    """A whole run."""

    date: str
    machine: str
    rounds: int
    is_quick: bool
    load_before: float
    load_after: float
    versions: dict[str, str]
    sections: tuple[Section, ...]
    explanations: tuple[Row, ...]
    problems: tuple[str, ...]
    other_runs: tuple[str, ...] = ()
    """The facts of further runs whose figures are here too."""

    @property
    def facts(self) -> str:
        """When and where, a sentence for each run."""
        size = "quick run, " if self.is_quick else ""
        own = (
            f"{self.date}, {size}{self.rounds} rounds; {self.machine}; load {self.load_before:.1f} "
            f"before the first round, {self.load_after:.1f} after the last."
        )
        return " ".join([own, *self.other_runs])


def joined(reports: Sequence[Report]) -> Report:
    """One report of several runs, each of which measured something else."""
    first, *others = reports
    return msgspec.structs.replace(
        first,
        sections=tuple([each for report in reports for each in report.sections]),
        explanations=tuple([row for report in reports for row in report.explanations]),
        problems=tuple([each for report in reports for each in report.problems]),
        other_runs=(*first.other_runs, *[report.facts for report in others]),
    )


def from_json(document: bytes) -> Report:
    """What `as_json` wrote."""
    return msgspec.json.decode(document, type=Report)


def as_json(report: Report) -> bytes:
    """For programs: every figure of every round."""
    return msgspec.json.format(msgspec.json.encode(report), indent=2) + b"\n"


# --- The tables --------------------------------------------------------------------------------


def as_markdown(report: Report) -> str:
    """For people: the sections, then the coordinator's rows as an explanation."""
    parts = [_section(section) for section in report.sections if section.lines]
    if report.explanations:
        parts.append(f"### The coordinator alone\n\n{table(report.explanations)}")
    parts += [f"Not measured: {problem}" for problem in report.problems]
    versions = ", ".join(f"{name} {version}" for name, version in report.versions.items())
    parts.append(f"{report.facts} Versions: {versions}." if versions else report.facts)
    return "\n\n".join(parts)


def _section(section: Section) -> str:
    better = "more is better" if section.is_more_better else "less is better"
    second = f" {section.second_title} |" if section.second_title else ""
    lines = [
        f"### {section.title}",
        "",
        f"| queue | {section.unit}, {better} | ratio to a peer |{second}",
        "|---|---|---|" + ("---|" if second else ""),
    ]
    return "\n".join([*lines, *(_line(section, line) for line in section.lines)])


def _line(section: Section, line: Line) -> str:
    name = f"**{line.name}**" if line.is_ours else line.name
    if line.figure is None:
        return f"| {name} | left out: {line.why} | |" + (" |" if section.second_title else "")
    ratio = ""
    if line.ratio is not None:
        low, high = line.ratio.lowest, line.ratio.highest
        ratio = f"{line.ratio.median:.2f}× {line.beside} ({low:.2f}–{high:.2f})"
        if line.target is not None:
            met = "met" if line.target.is_met_by(line.ratio) else "**not met**"
            ratio += f"; {line.target.shown}: {met}"
    cells = [name, spread(line.figure, ""), ratio]
    if section.second_title:
        cells.append("" if line.second is None else spread(line.second, section.second_unit))
    return "| " + " | ".join(cells) + " |"


# --- The plot ----------------------------------------------------------------------------------


def as_svg(report: Report) -> str:
    """Bars of the medians with the spread of the rounds, one panel for each section."""
    width = NAME_WIDTH + BAR_WIDTH + FIGURE_WIDTH
    parts: list[str] = []
    top = 10
    for section in report.sections:
        measured = [line for line in section.lines if line.figure is not None]
        if measured:
            parts.append(_panel(section, measured, top))
            top += TITLE_HEIGHT + LINE_HEIGHT * len(measured)
    parts.append(f'<text class="note" x="10" y="{top + 16}">{html.escape(report.facts)}</text>')
    return (
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {width} {top + 30}" '
        f'width="{width}" height="{top + 30}" role="img">\n'
        f"<title>Tenure beside other queues</title>\n<style>{STYLE}</style>\n"
        + "\n".join(parts)
        + "\n</svg>\n"
    )


def _panel(section: Section, measured: Sequence[Line], top: int) -> str:
    better = "more is better" if section.is_more_better else "less is better"
    figures = [line.figure for line in measured if line.figure is not None]
    # By the medians: one round that was disturbed would make all bars of its panel short.
    scale = BAR_WIDTH / (ROOM_FOR_SPREAD * max(figure.median for figure in figures) or 1.0)
    parts = [
        f'<text class="title" x="10" y="{top + 24}">{html.escape(section.title)}'
        f'<tspan class="note" font-weight="400" dx="8">{section.unit}, {better}</tspan></text>'
    ]
    for number, (line, figure) in enumerate(zip(measured, figures, strict=True)):
        y = top + TITLE_HEIGHT - 8 + number * LINE_HEIGHT
        middle = y + BAR_HEIGHT / 2
        low, high = (
            NAME_WIDTH + min(value * scale, BAR_WIDTH) for value in (figure.lowest, figure.highest)
        )
        parts += [
            f'<text x="{NAME_WIDTH - 8}" y="{y + 12}" text-anchor="end">'
            f"{html.escape(line.name)}</text>",
            f'<rect class="{"ours" if line.is_ours else "theirs"}" x="{NAME_WIDTH}" y="{y}" '
            f'width="{max(1.0, figure.median * scale):.1f}" height="{BAR_HEIGHT}" rx="2"/>',
            f'<line class="spread" x1="{low:.1f}" x2="{high:.1f}" y1="{middle}" y2="{middle}"/>',
            f'<text class="note" x="{high + 8:.1f}" y="{y + 12}">'
            f"{shown(figure.median)} ({shown(figure.lowest)}–{shown(figure.highest)})</text>",
        ]
    return "\n".join(parts)
