"""The result of a run: for each obligation, whether the worker kept it and where it did not."""

from collections.abc import Mapping, Sequence
from enum import StrEnum

import msgspec

from tenure.errors import TenureError
from tenure_conformance.worker.judge import Judgement
from tenure_conformance.worker.obligations import OBLIGATIONS


class CouldNotJudge(TenureError):
    """The worker did not run the kit's job, so there is nothing to judge."""

    code = "could_not_judge"


class State(StrEnum):
    """The result for one obligation."""

    KEPT = "kept"
    BROKEN = "broken"
    NOT_SEEN = "not_seen"


class Breach(msgspec.Struct, frozen=True):
    """One complaint, and the scenario it comes from."""

    scenario: str
    what: str


class Finding(msgspec.Struct, frozen=True, kw_only=True):
    """One obligation over all scenarios; `seen_in` names those that tested it."""

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
    """Group the judgements of all scenarios by obligation."""
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
