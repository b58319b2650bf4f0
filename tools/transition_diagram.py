"""Prints docs/spec/transitions.md with the state diagram of today's transition table.

Run as `python -m tools.transition_diagram` from the root of the repository. Everything outside
the two markers is printed as it stands; only the diagram between them is made anew.
"""

import sys
from pathlib import Path

from tenure.core.transitions import EDGES, ENDED

PAGE = Path("docs/spec/transitions.md")
BEGIN = "<!-- generated: state diagram -->\n"
END = "<!-- end generated -->\n"


def mermaid() -> str:
    """The state diagram of the documentation."""
    lines = ["stateDiagram-v2"]
    arrows: dict[tuple[str, str], list[str]] = {}
    for (source, event_type, target), rules in EDGES.items():
        arrow = (source.value if source else "[*]", target.value)
        label = f"{event_type.value} ({', '.join(sorted(rules, key=rule_order))})"
        arrows.setdefault(arrow, []).append(label)
    lines += [f"  {one} --> {two}: {' / '.join(labels)}" for (one, two), labels in arrows.items()]
    lines += [f"  {status.value} --> [*]" for status in ENDED]
    return "\n".join(lines) + "\n"


def rule_order(rule: str) -> tuple[int, str]:
    """Sorts T9 before T9b before T10."""
    return int(rule.strip("Tb")), rule


def with_diagram(page: str) -> str:
    """The page, its diagram replaced."""
    before, begin, rest = page.partition(BEGIN)
    _, end, after = rest.partition(END)
    if not begin or not end:
        raise ValueError(f"no place for a diagram: the lines {BEGIN!r} and {END!r} are missing")
    return f"{before}{BEGIN}\n```mermaid\n{mermaid()}```\n\n{END}{after}"


def main() -> None:
    """Write the page to standard output."""
    sys.stdout.write(with_diagram(PAGE.read_text(encoding="utf-8")))


if __name__ == "__main__":
    main()
