"""Counts on pages have the right singular."""

import re
from pathlib import Path

import tenure.dashboard
from tests.support.cases import each_case

TEMPLATES = sorted((Path(tenure.dashboard.__file__).parent / "templates").glob("*.html"))
BY_HAND = re.compile(
    r"\|(?:number|length) \}\} (?:[a-z]+ )?"
    r"(?:jobs|events|attempts|letters|groups|workers|queues|bytes|renewals|invariants|are|remain)\b"
    r"|\"s( are)?\" if "
)


@each_case("template", TEMPLATES)
def test_no_template_words_a_count_by_hand(template: Path) -> None:
    found = BY_HAND.findall(template.read_text("utf-8"))

    assert not found, "use the filter `counted`, which knows the singular"


def test_the_search_for_counts_by_hand_finds_them() -> None:
    assert len(TEMPLATES) > 10
    assert BY_HAND.search("{{ jobs|length }} jobs")
    assert BY_HAND.search("{{ count|number }} ready jobs")
    assert BY_HAND.search('job{{ "s" if count != 1 }}')
    assert not BY_HAND.search('{{ count|counted("job") }}')
