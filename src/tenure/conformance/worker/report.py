"""The result of a run: per obligation, whether it was kept, and where it was broken."""

from collections.abc import Mapping, Sequence
from enum import StrEnum

import msgspec

from tenure.conformance.worker.judge import Judgement
from tenure.conformance.worker.obligations import OBLIGATIONS
from tenure.errors import TenureError


class CouldNotJudge(TenureError):
    """The worker could not be seen at work, so nothing can be said about it."""

    code = "could_not_judge"


class State(StrEnum):
    """What became of an obligation."""

    KEPT = "kept"
    BROKEN = "broken"
    NOT_SEEN = "not_seen"


class Breach(msgspec.Struct, frozen=True):
    """One way in which an obligation was broken."""

    scenario: str
    what: str


class Finding(msgspec.Struct, frozen=True, kw_only=True):
    """One obligation over all scenarios; `seen_in` are those in which it came up."""

    obligation: str
    sentence: str
    asks: str
    state: State
    seen_in: tuple[str, ...]
    breaches: tuple[Breach, ...]


class Report(msgspec.Struct, frozen=True, kw_only=True):
    """What `--json` prints; docs/reference/conform-worker.md describes it."""

    passed: bool
    scenarios: tuple[str, ...]
    obligations: tuple[Finding, ...]

    @property
    def broken(self) -> list[str]:
        """The names of the broken obligations."""
        return [each.obligation for each in self.obligations if each.state is State.BROKEN]


def summarise(judged: Mapping[str, Sequence[Judgement]]) -> Report:
    """The judgements of each scenario, by obligation."""
    findings = []
    for obligation in OBLIGATIONS:
        mine = [
            (scenario, judgement)
            for scenario, judgements in judged.items()
            for judgement in judgements
            if judgement.obligation is obligation
        ]
        breaches = tuple(
            Breach(scenario, what) for scenario, each in mine for what in each.complaints
        )
        seen_in = tuple(scenario for scenario, each in mine if each.came_up)
        state = State.BROKEN if breaches else State.KEPT if seen_in else State.NOT_SEEN
        findings.append(
            Finding(
                obligation=obligation.name,
                sentence=obligation.sentence,
                asks=obligation.asks,
                state=state,
                seen_in=seen_in,
                breaches=breaches,
            )
        )
    return Report(
        passed=not any(each.breaches for each in findings),
        scenarios=tuple(judged),
        obligations=tuple(findings),
    )
