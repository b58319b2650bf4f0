"""What is generated from the core is committed as the core would generate it now, and suffices."""

import json
import re
from pathlib import Path
from typing import Any

import msgspec
import pytest
from msgspec.structs import replace

from tenure.core.commands import (
    Cancel,
    Claim,
    Command,
    Complete,
    DeadLetter,
    Enqueue,
    Fail,
    Heartbeat,
    Release,
    Start,
    Sweep,
)
from tenure.core.events import Event
from tenure.core.ids import Epoch
from tenure.core.instants import Instant
from tenure.core.job import Job
from tenure.core.lifecycle import decide
from tenure.core.outcomes import Applied, DecisionContext, NeedsHistory, Outcome, Refused, Replayed
from tenure.core.policy import Backoff, Policy
from tenure.core.transitions import EDGES
from tenure.core.verdicts import Verdict
from tenure.core.vocabulary import EventClass
from tenure_conformance.spec import spec
from tests.support.evidence import defined_ids
from tools import transitions_json
from tools.driver import last_session
from tools.transition_diagram import PAGE, with_diagram
from tools.vectors import generate

ROOT = Path(__file__).parents[2]
VECTORS = ROOT / "src" / "tenure" / "contract" / "responses.json"
HINT = "run `make docs-generated`, and look at what changed"

# --- The documents are fresh ---------------------------------------------------------------------


@spec("N1")
def test_the_diagram_in_the_spec_matches_the_transition_table() -> None:
    page = (ROOT / PAGE).read_text(encoding="utf-8")

    assert page == with_diagram(page), HINT


def test_the_diagram_shows_every_legal_edge_once() -> None:
    page = (ROOT / PAGE).read_text(encoding="utf-8")

    shown = [
        (arrow["one"].replace("[*]", ""), label.split(" ")[0], arrow["two"])
        for arrow in re.finditer(r"^  (?P<one>\S+) --> (?P<two>\S+): (?P<labels>.+)$", page, re.M)
        for label in arrow["labels"].split(" / ")
    ]

    edges = [(source or "", event.value, target.value) for source, event, target in EDGES]
    assert sorted(shown) == sorted(edges)


def test_a_page_without_a_place_for_the_diagram_is_refused() -> None:
    with pytest.raises(ValueError, match="missing"):
        with_diagram("# Transitions\n")


@spec("R1", "R4")
def test_the_committed_vectors_are_what_the_core_answers_now() -> None:
    assert VECTORS.read_text(encoding="utf-8") == generate.render(generate.vectors()), HINT


@spec("N1")
def test_the_committed_table_of_transitions_is_that_of_the_core() -> None:
    committed = VECTORS.with_name("transitions.json").read_text(encoding="utf-8")

    assert committed == transitions_json.render(transitions_json.contract()), HINT


def test_every_rule_that_the_core_cites_is_a_sentence_of_the_spec() -> None:
    pages = sorted((ROOT / "docs" / "spec").glob("*.md"))
    defined = {each for page in pages for each in defined_ids(page.read_text(encoding="utf-8"))}

    cited = {
        (path.name, each)
        for path in sorted((ROOT / "src" / "tenure" / "core").rglob("*.py"))
        for each in re.findall(r"\[([A-Z][0-9]+[a-z]?)\]", path.read_text(encoding="utf-8"))
    }

    assert {(name, each) for name, each in cited if each not in defined} == set()


# --- The vectors can be replayed from their text alone -------------------------------------------

COMMANDS: dict[str, type[msgspec.Struct]] = {
    "enqueue": Enqueue,
    "claim": Claim,
    "start": Start,
    "heartbeat": Heartbeat,
    "complete": Complete,
    "fail": Fail,
    "release": Release,
    "sweep": Sweep,
    "cancel": Cancel,
    "dead_letter": DeadLetter,
}
BODIES = ("payload", "result", "checkpoint")


def read_command(found: dict[str, Any]) -> Command:
    """A request of the file, as this implementation's command."""
    members = {name: value for name, value in found.items() if name != "operation"}
    for name in BODIES:
        if name in members:
            members[name] = members[name].encode()
    if "policy" in members:
        policy = members["policy"]
        backoff = Backoff(**policy.pop("backoff"))
        words = {name: policy.pop(name) for name in ("on_exhausted", "on_lost")}
        defaults = Policy()
        members["policy"] = msgspec.structs.replace(
            defaults,
            backoff=backoff,
            on_exhausted=type(defaults.on_exhausted)(words["on_exhausted"]),
            on_lost=type(defaults.on_lost)(words["on_lost"]),
            **policy,
        )
    return msgspec.convert(members, COMMANDS[found["operation"]])  # type: ignore[return-value]  # one of the commands above


class Replay:
    """Another implementation, as far as a vector can tell: it has read nothing but the file."""

    def __init__(self, situation: dict[str, Any]) -> None:
        self.job: Job | None = None
        self.events: list[Event] = []
        for step in situation["steps"]:
            self.take(step)

    def take(self, step: dict[str, Any]) -> None:
        match step.get("deletion"):
            case "renewals":
                self.events = [
                    event
                    for event in self.events
                    if event.event_class is EventClass.TRANSITION
                    or event.lease_id == (self.job and self.job.lease_id)
                ]
            case "job":
                self.job, self.events = None, []
            case _:
                self.ask(step, read_command(step["request"]))

    def ask(self, at: dict[str, Any], command: Command) -> Outcome:
        moment = DecisionContext(
            now=Instant(at["now_us"]),
            epoch=Epoch(at["epoch"]),
            entropy=bytes.fromhex(at["entropy"]),
            job=self.job,
            session=last_session(self.events),
        )
        outcome = decide(command, moment)
        if isinstance(outcome, NeedsHistory):
            outcome = decide(command, replace(moment, history=self.events))
        if isinstance(outcome, Applied):
            self.job = outcome.change.job
            self.events.extend(outcome.change.events)
        return outcome


def heard(outcome: Outcome) -> tuple[object, ...]:
    assert isinstance(outcome, Applied | Replayed | Refused)
    answer = outcome.answer
    assert isinstance(answer, Verdict)
    observation = outcome.observation if isinstance(outcome, Refused) else None
    return (
        answer.kind,
        answer.cause,
        answer.disposition,
        answer.job_status,
        answer.run_at,
        answer.ttl_us,
        answer.replayed,
        answer.settled,
        outcome.rule if isinstance(outcome, Applied) else None,
        observation.type if observation else None,
    )


def written(answer: dict[str, Any]) -> tuple[object, ...]:
    names = ("kind", "cause", "disposition", "job_status", "run_at", "ttl_us")
    flags = ("replayed", "settled")
    return (
        *(answer.get(name) for name in names),
        *(answer.get(name, False) for name in flags),
        answer.get("applied"),
        answer.get("observed"),
    )


@spec("R1", "R22")
def test_a_reader_of_the_file_alone_can_replay_every_vector() -> None:
    situations = json.loads(VECTORS.read_text(encoding="utf-8"))["situations"]
    checked = 0

    for situation in situations:
        for cell in situation["cells"]:
            replay = Replay(json.loads(json.dumps(situation)))
            for sent in cell["sent"]:
                command = read_command(situation["common"] | sent["request"])
                outcome = replay.ask(situation["at"], command)
                assert heard(outcome) == written(sent["answer"]), (situation["situation"], cell)
            checked += 1

    assert checked > 900
