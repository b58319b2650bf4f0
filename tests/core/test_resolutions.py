"""The decision about a discard, without any store."""

from typing import Any

import pytest
from msgspec.structs import replace

from tenure.core.commands import Discard, fingerprint
from tenure.core.ids import Fingerprint, RequestId, client_actor
from tenure.core.lifecycle import decide
from tenure.core.outcomes import Applied, NeedsHistory, Outcome, Refused, Replayed, Resolved
from tenure.core.validation import Limits, check_command
from tenure.core.verdicts import Reply, Resolution
from tenure.core.vocabulary import Cause, ResolutionKind
from tenure.errors import InvalidInput
from tenure_conformance.spec import spec
from tools import lives
from tools.driver import OPERATOR, Driver


def discard(driver: Driver, **fields: Any) -> Discard:
    given: dict[str, Any] = {"actor": OPERATOR, "request_id": RequestId("d")}
    return Discard(job_id=driver.job.id, **(given | fields))


def decided(driver: Driver, command: Discard, resolution: Resolution | None = None) -> Outcome:
    at = driver.context(resolution=resolution)
    outcome = decide(command, at)
    if isinstance(outcome, NeedsHistory):
        outcome = decide(command, replace(at, history=driver.events))
    assert not isinstance(outcome, Applied), "a discard never changes a job"
    return outcome


def cause(outcome: Outcome) -> Cause | None:
    assert isinstance(outcome, Refused)
    assert isinstance(outcome.answer, Reply)
    return outcome.answer.cause


@spec("B1", "B3")
def test_a_discard_resolves_a_dead_letter_and_writes_no_event() -> None:
    driver = lives.dead_lettered()

    outcome = decided(driver, discard(driver, note="enough"))

    assert isinstance(outcome, Resolved)
    assert outcome.resolution.kind is ResolutionKind.DISCARDED
    assert (outcome.resolution.note, outcome.resolution.ts) == ("enough", driver.job.updated_at)


@spec("B3", "N1")
@pytest.mark.parametrize(
    "life", [lives.queued, lives.claimed, lives.running, lives.held, lives.succeeded, lives.failed]
)
def test_nothing_but_a_dead_letter_is_discarded(life: Any) -> None:
    driver = life()

    assert cause(decided(driver, discard(driver))) is Cause.NOT_DEAD_LETTERED


@spec("B4")
def test_a_repeated_discard_is_compared_with_the_resolution_that_the_first_one_made() -> None:
    driver = lives.dead_lettered()
    asked = discard(driver)
    first = decided(driver, asked)
    assert isinstance(first, Resolved)

    again = decided(driver, asked, first.resolution)

    assert fingerprint(asked) == first.resolution.fingerprint
    assert isinstance(again, Replayed)
    other = decided(driver, replace(asked, note="other"), first.resolution)
    assert cause(other) is Cause.IDEMPOTENCY_KEY_REUSE


@spec("B3", "Q4")
def test_the_same_request_id_of_another_principal_is_another_request() -> None:
    driver = lives.dead_lettered()
    known = Resolution(
        job_id=driver.job.id,
        kind=ResolutionKind.DISCARDED,
        ts=driver.now,
        actor=client_actor("somebody"),
        request_id=RequestId("d"),
        fingerprint=Fingerprint("f"),
    )

    outcome = decided(driver, discard(driver), known)

    assert cause(outcome) is Cause.ALREADY_RESOLVED


@spec("J6")
@pytest.mark.parametrize(
    ("field", "fields"),
    [("note", {"note": "x" * 5000}), ("note", {"note": "\x00"}), ("actor", {"actor": "nobody"})],
)
def test_a_discard_over_a_limit_is_refused_by_name(field: str, fields: dict[str, Any]) -> None:
    with pytest.raises(InvalidInput, match=f"^{field}: "):
        check_command(discard(lives.dead_lettered(), **fields), Limits())
