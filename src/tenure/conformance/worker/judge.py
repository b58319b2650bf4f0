"""What a record says about each obligation: whether it came up, and how it was broken.

Pure. A worker and this process share a machine but no clock of the wire: what was on its way when
a verdict was written is forgiven, for so long as the constants here say.
"""

from collections import Counter
from collections.abc import Callable, Iterator

import msgspec

from tenure.conformance.worker import obligations
from tenure.conformance.worker.obligations import Obligation
from tenure.conformance.worker.record import FINAL, Op, Record, Said
from tenure.conformance.worker.scenarios import Scenario
from tenure.core.vocabulary import VerdictKind

MAX_TRIES = 20
"""One request is sent at most so often. [WP5]"""

IN_FLIGHT_S = 1.0
"""A heartbeat that another thread of the worker had already begun."""

EFFECT_S = 1.5
"""A side effect that was under way, and the time it takes to stop a handler."""

RETRY_AFTER_SLACK = 0.95


class Judgement(msgspec.Struct, frozen=True):
    """What one scenario showed of one obligation."""

    obligation: Obligation
    came_up: bool
    complaints: tuple[str, ...]


Check = Callable[[Scenario, Record], tuple[bool, list[str]]]


def judge(scenario: Scenario, record: Record) -> list[Judgement]:
    """Every obligation, over one scenario."""
    found = []
    for obligation, check in CHECKS.items():
        came_up, complaints = check(scenario, record)
        found.append(Judgement(obligation, came_up, tuple(complaints)))
    return found


def _name(said: Said) -> str:
    return f"{said.op.value} {said.request_id!a}" if said.request_id else said.op.value


# --- Speaking and reporting --------------------------------------------------------------------


def _speaks(_: Scenario, record: Record) -> tuple[bool, list[str]]:
    return bool(record.all()), list(dict.fromkeys(record.malformed))


def _reports_for(obligation: Obligation) -> Check:
    def check(scenario: Scenario, record: Record) -> tuple[bool, list[str]]:
        if scenario.expects is None or scenario.expects_for is not obligation:
            return False, []
        reports = [said.op for said in record.reports()]
        if scenario.expects in reports:
            return True, []
        sent = ", ".join(dict.fromkeys(op.value for op in reports)) or "no report"
        return True, [f"{scenario.expects.value} was due, {sent} came"]

    return check


def _heartbeats(scenario: Scenario, record: Record) -> tuple[bool, list[str]]:
    beats = record.all(Op.HEARTBEAT)
    complaints = []
    heard = 0
    for beat in beats:
        if beat.sequence < heard or (beat.sequence == heard and heard):
            complaints.append(f"hb_seq {beat.sequence} came after {heard} had been answered")
        if beat.was_answered:
            heard = max(heard, beat.sequence)
    if scenario.outlives_a_lease and _lost_its_lease(record):
        complaints.append(f"the lease of {scenario.lease_s:g} s ended without a renewal")
    return bool(beats) or scenario.outlives_a_lease, complaints


def _lost_its_lease(record: Record) -> bool:
    reports = record.reports()
    return any(said.verdict is VerdictKind.CANCELLED for said in record.all()) or (
        not reports and not record.all(Op.HEARTBEAT)
    )


# --- Repeating ---------------------------------------------------------------------------------


def _same_id(_: Scenario, record: Record) -> tuple[bool, list[str]]:
    complaints = []
    repeats = 0
    for before, after in record.repeats():
        if record.signalled_at is not None and after.at > record.signalled_at:
            continue  # handing a job back is another request than the one that got no answer
        repeats += 1
        if (after.op, after.request_id) != (before.op, before.request_id):
            complaints.append(f"{_name(before)} got no answer, then came {_name(after)}")
        elif after.fingerprint != before.fingerprint:
            complaints.append(f"{_name(before)} was repeated with another body")
    return repeats > 0, complaints


def _bounded(_: Scenario, record: Record) -> tuple[bool, list[str]]:
    tries: Counter[tuple[str, str]] = Counter()
    unanswered = 0
    for said in record.all(Op.START, Op.COMPLETE, Op.FAIL, Op.RELEASE):
        unanswered += not said.was_answered
        tries[said.who, said.family] += 1
    complaints = [
        f"a {family} was sent {count} times, at most {MAX_TRIES} are allowed"
        for (_, family), count in tries.items()
        if count > MAX_TRIES
    ]
    return unanswered > 0, complaints


def _retry_after(_: Scenario, record: Record) -> tuple[bool, list[str]]:
    complaints = []
    came_up = False
    for before, after in record.repeats():
        if before.retry_after_s is None or before.answered_at is None:
            continue
        came_up = True
        waited_s = after.at - before.answered_at
        if waited_s < before.retry_after_s * RETRY_AFTER_SLACK:
            complaints.append(
                f"{_name(after)} came after {waited_s:.1f} s, "
                f"Retry-After was {before.retry_after_s:g}"
            )
    return came_up, complaints


# --- Verdicts ----------------------------------------------------------------------------------


def _after_verdict(record: Record, kind: VerdictKind) -> Iterator[str]:
    """Reports and starts under a lease that had its last word. None of them can have crossed it:
    where a heartbeat hears the verdict, the handler is far from its own end."""
    for verdict in record.heard(kind):
        wrong = _FORBIDDEN[kind] if verdict.op is not Op.CLAIM else (Op.CLAIM,)
        for said in record.after(verdict, 0.0, *wrong):
            if said.op is not Op.CLAIM or said.request_id == verdict.request_id:
                yield f"{_name(verdict)} was {kind.value}, then came {_name(said)}"


_REPORTS = (Op.COMPLETE, Op.FAIL, Op.RELEASE)
_FORBIDDEN = {
    # A start is no report: a grant that comes twice may be asked about, and is refused.
    VerdictKind.COMMITTED: _REPORTS,
    VerdictKind.CANCELLED: (Op.START, *_REPORTS),
    VerdictKind.REJECTED: (Op.START, *_REPORTS),
}


def _final_for(kind: VerdictKind) -> Check:
    def check(_: Scenario, record: Record) -> tuple[bool, list[str]]:
        complaints = list(dict.fromkeys(_after_verdict(record, kind)))
        if kind is VerdictKind.REJECTED:
            complaints += _effects_after(record, kind)
        return bool(record.heard(kind)), complaints

    return check


def _effects_after(record: Record, kind: VerdictKind) -> list[str]:
    first = next((said for said in record.heard(kind) if said.op is not Op.CLAIM), None)
    if first is None or first.answered_at is None:
        return []
    late = [at for at in record.effects if at > first.answered_at + EFFECT_S]
    if not late:
        return []
    after_s = late[-1] - first.answered_at
    return [f"{len(late)} effects after {kind.value}, the last {after_s:.1f} s after it"]


def _no_effects(_: Scenario, record: Record) -> tuple[bool, list[str]]:
    kind = VerdictKind.CANCELLED
    return bool(record.heard(kind)), _effects_after(record, kind)


def _no_heartbeat(_: Scenario, record: Record) -> tuple[bool, list[str]]:
    ends = [said for said in record.heard(*FINAL) if said.op is not Op.CLAIM]
    complaints = []
    for end in ends[:1]:
        late = list(record.after(end, IN_FLIGHT_S, Op.HEARTBEAT))
        if late:
            assert end.answered_at is not None
            assert end.verdict is not None
            after_s = late[-1].at - end.answered_at
            complaints.append(
                f"{len(late)} heartbeats after {_name(end)} was {end.verdict.value}, "
                f"the last {after_s:.1f} s after it"
            )
    return bool(ends), complaints


def _surfaces(_: Scenario, record: Record) -> tuple[bool, list[str]]:
    if not record.heard(VerdictKind.REJECTED):
        return False, []
    if "rejected" in record.output.lower() or record.exit_code not in (None, 0):
        return True, []
    return True, ["it heard REJECTED, printed nothing of it and did not fail"]


# --- The lease and the handler -----------------------------------------------------------------


def _fences(scenario: Scenario, record: Record) -> tuple[bool, list[str]]:
    """Effects past the end of the last renewal that the worker can know of."""
    heard = record.heard(VerdictKind.OK)
    renewed_at = [said.answered_at for said in heard if said.op is Op.CLAIM][:1]
    renewed_at += [said.at for said in heard if said.op is not Op.CLAIM]
    ends = [said for said in record.heard(*FINAL) if said.op is not Op.CLAIM]
    known = [at for at in renewed_at if at is not None]
    if not known or ends:
        return False, []
    ends_at = max(known) + scenario.lease_s
    late = [at for at in record.effects if at > ends_at + EFFECT_S]
    complaints = (
        [f"{len(late)} effects after its lease, the last {late[-1] - ends_at:.1f} s after it"]
        if late
        else []
    )
    return record.closed_at > ends_at, complaints


def _heeds(_: Scenario, record: Record) -> tuple[bool, list[str]]:
    asked = next(
        (said for said in record.all() if said.was_answered and said.cancel_within_s is not None),
        None,
    )
    if asked is None or asked.answered_at is None or asked.cancel_within_s is None:
        return False, []
    if any(said.verdict is VerdictKind.COMMITTED for said in record.reports()):
        return True, []
    return True, [f"no report within the {asked.cancel_within_s:.0f} s it was given"]


def _once(scenario: Scenario, record: Record) -> tuple[bool, list[str]]:
    wanted = scenario.work.effects
    if len(record.effects) <= wanted:
        return bool(record.effects), []
    return True, [f"{len(record.effects)} effects of one grant, {wanted} were asked for"]


def _claims(_: Scenario, record: Record) -> tuple[bool, list[str]]:
    complaints = []
    last: dict[str, Said] = {}
    for claim in record.all(Op.CLAIM):
        before = last.get(claim.who)
        last[claim.who] = claim
        if before is None or before.request_id == claim.request_id:
            continue
        if claim.sequence <= before.sequence:
            complaints.append(f"claim_seq {claim.sequence} came after {before.sequence}")
        if before.answered_at is not None and claim.at < before.answered_at:
            complaints.append("a claim was sent while another one waited for its answer")
    return bool(last), list(dict.fromkeys(complaints))


CHECKS: dict[Obligation, Check] = {
    obligations.SPEAKS: _speaks,
    obligations.REPORTS: _reports_for(obligations.REPORTS),
    obligations.HEARTBEATS: _heartbeats,
    obligations.SAME_ID: _same_id,
    obligations.BOUNDED: _bounded,
    obligations.RETRY_AFTER: _retry_after,
    obligations.COMMITTED: _final_for(VerdictKind.COMMITTED),
    obligations.CANCELLED: _final_for(VerdictKind.CANCELLED),
    obligations.REJECTED: _final_for(VerdictKind.REJECTED),
    obligations.NO_HEARTBEAT: _no_heartbeat,
    obligations.NO_EFFECTS: _no_effects,
    obligations.FENCES: _fences,
    obligations.HEEDS: _heeds,
    obligations.ONCE: _once,
    obligations.NO_GUESS: _reports_for(obligations.NO_GUESS),
    obligations.SURFACES: _surfaces,
    obligations.CLAIMS: _claims,
}
