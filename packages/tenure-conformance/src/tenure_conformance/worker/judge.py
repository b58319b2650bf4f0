"""Judges a record: for each obligation, whether the scenario tested it and how the worker broke it.

Pure. We know when we wrote a verdict, not when the worker read it, so requests and effects that
were already under way are allowed for as long as the constants below say.
"""

from collections import Counter
from collections.abc import Callable, Iterator

import msgspec

from tenure.core.vocabulary import VerdictKind
from tenure_conformance.worker import obligations
from tenure_conformance.worker.obligations import Obligation
from tenure_conformance.worker.record import FINAL, Op, Record, WorkerRequest
from tenure_conformance.worker.scenarios import Scenario

MAX_TRIES = 20
"""How often a worker may send one request. [WP5] [WP20]"""

MIN_CLAIM_TRIES = 5
"""A claim that was sent so often may be given up. [WP20]"""

IN_FLIGHT_S = 1.0
"""Allowance for a heartbeat that another thread of the worker had already begun to send."""

EFFECT_S = 1.5
"""Allowance for a side effect that was under way, and for stopping the handler."""

RETRY_AFTER_SLACK = 0.95


class Judgement(msgspec.Struct, frozen=True):
    """The result of one obligation in one scenario."""

    obligation: Obligation
    came_up: bool
    complaints: tuple[str, ...]


Check = Callable[[Scenario, Record], tuple[bool, list[str]]]


def judge(scenario: Scenario, record: Record) -> list[Judgement]:
    """Judge every obligation in one scenario."""
    found = []
    for obligation, check in CHECKS.items():
        came_up, complaints = check(scenario, record)
        found.append(Judgement(obligation, came_up, tuple(complaints)))
    return found


def _name(request: WorkerRequest) -> str:
    return f"{request.op.value} {request.request_id!a}" if request.request_id else request.op.value


# --- Messages and reports ----------------------------------------------------------------------


def _speaks(_: Scenario, record: Record) -> tuple[bool, list[str]]:
    return bool(record.all()), list(dict.fromkeys(record.malformed))


def _reports_for(obligation: Obligation) -> Check:
    def check(scenario: Scenario, record: Record) -> tuple[bool, list[str]]:
        if scenario.expects is None or scenario.expects_for is not obligation:
            return False, []
        reports = [request.op for request in record.reports()]
        if scenario.expects in reports:
            return True, []
        sent = ", ".join(dict.fromkeys(op.value for op in reports)) or "no report"
        return True, [f"expected {scenario.expects.value}, got {sent}"]

    return check


def _heartbeats(scenario: Scenario, record: Record) -> tuple[bool, list[str]]:
    beats = record.all(Op.HEARTBEAT)
    complaints = []
    heard = 0
    for beat in beats:
        if beat.sequence < heard or (beat.sequence == heard and heard):
            complaints.append(f"hb_seq {beat.sequence} was sent after {heard} was answered")
        if beat.was_answered:
            heard = max(heard, beat.sequence)
    if scenario.outlives_a_lease and _lost_its_lease(record):
        complaints.append(f"the worker did not renew its lease of {scenario.lease_s:g} s")
    return bool(beats) or scenario.outlives_a_lease, complaints


def _lost_its_lease(record: Record) -> bool:
    reports = record.reports()
    return any(request.verdict is VerdictKind.CANCELLED for request in record.all()) or (
        not reports and not record.all(Op.HEARTBEAT)
    )


# --- Retries -----------------------------------------------------------------------------------


def _same_id(_: Scenario, record: Record) -> tuple[bool, list[str]]:
    complaints = []
    repeats = 0
    tries: Counter[tuple[str, str]] = Counter()
    for before, after in record.repeats():
        tries[before.who, before.request_id] += 1
        is_new_claim = before.op is Op.CLAIM and after.request_id != before.request_id
        if is_new_claim and tries[before.who, before.request_id] >= MIN_CLAIM_TRIES:
            continue  # it was given up
        if record.signalled_at is not None and after.at > record.signalled_at:
            continue  # SIGTERM: a release is a new request, not a retry
        repeats += 1
        if (after.op, after.request_id) != (before.op, before.request_id):
            complaints.append(f"{_name(before)} got no answer, then the worker sent {_name(after)}")
        elif after.fingerprint != before.fingerprint:
            complaints.append(f"{_name(before)} was sent again with another body")
    return repeats > 0, complaints


def _bounded(_: Scenario, record: Record) -> tuple[bool, list[str]]:
    tries: Counter[tuple[str, str]] = Counter()
    unanswered = 0
    for request in record.all(Op.START, Op.COMPLETE, Op.FAIL, Op.RELEASE):
        unanswered += not request.was_answered
        tries[request.who, request.family] += 1
    complaints = [
        f"the worker sent a {family} {count} times; the limit is {MAX_TRIES}"
        for (_, family), count in tries.items()
        if count > MAX_TRIES
    ]
    return unanswered > 0, complaints


def _bounded_claims(_: Scenario, record: Record) -> tuple[bool, list[str]]:
    claims = record.all(Op.CLAIM)
    tries = Counter((claim.who, claim.request_id) for claim in claims)
    complaints = [
        f"the worker sent the claim {request_id!a} {count} times; the limit is {MAX_TRIES}"
        for (_, request_id), count in tries.items()
        if count > MAX_TRIES
    ]
    return any(not claim.was_answered for claim in claims), complaints


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
                f"{_name(after)} was sent after {waited_s:.1f} s, "
                f"Retry-After was {before.retry_after_s:g}"
            )
    return came_up, complaints


# --- Verdicts ----------------------------------------------------------------------------------


def _after_verdict(record: Record, kind: VerdictKind) -> Iterator[str]:
    """Requests sent under a lease after its final verdict. None can have been under way already: in
    scenarios where a heartbeat gets the verdict, the handler still has long to run."""
    for verdict in record.heard(kind):
        wrong = _FORBIDDEN[kind] if verdict.op is not Op.CLAIM else (Op.CLAIM,)
        for request in record.after(verdict, 0.0, *wrong):
            if request.op is not Op.CLAIM or request.request_id == verdict.request_id:
                yield f"{_name(verdict)} was {kind.value}, then the worker sent {_name(request)}"


_REPORTS = (Op.COMPLETE, Op.FAIL, Op.RELEASE)
_FORBIDDEN = {
    # A start is allowed: a worker that receives a grant twice may try it, and we refuse it.
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
    first = next((request for request in record.heard(kind) if request.op is not Op.CLAIM), None)
    if first is None or first.answered_at is None:
        return []
    late = [at for at in record.effects if at > first.answered_at + EFFECT_S]
    if not late:
        return []
    after_s = late[-1] - first.answered_at
    return [f"{len(late)} side effects after {kind.value}, the last {after_s:.1f} s later"]


def _no_effects(_: Scenario, record: Record) -> tuple[bool, list[str]]:
    kind = VerdictKind.CANCELLED
    return bool(record.heard(kind)), _effects_after(record, kind)


def _no_heartbeat(_: Scenario, record: Record) -> tuple[bool, list[str]]:
    ends = [request for request in record.heard(*FINAL) if request.op is not Op.CLAIM]
    complaints = []
    for end in ends[:1]:
        late = list(record.after(end, IN_FLIGHT_S, Op.HEARTBEAT))
        if late:
            assert end.answered_at is not None
            assert end.verdict is not None
            after_s = late[-1].at - end.answered_at
            complaints.append(
                f"{len(late)} heartbeats after {_name(end)} was {end.verdict.value}, "
                f"the last {after_s:.1f} s later"
            )
    return bool(ends), complaints


def _surfaces(_: Scenario, record: Record) -> tuple[bool, list[str]]:
    if not record.heard(VerdictKind.REJECTED):
        return False, []
    if "rejected" in record.output.lower() or record.exit_code not in (None, 0):
        return True, []
    return True, ["the worker was REJECTED, but did not print it and did not exit with a failure"]


# --- The lease and the handler -----------------------------------------------------------------


def _fences(scenario: Scenario, record: Record) -> tuple[bool, list[str]]:
    """Side effects after the lease ended, counted from the last renewal the worker can know of."""
    heard = record.heard(VerdictKind.OK)
    renewed_at = [request.answered_at for request in heard if request.op is Op.CLAIM][:1]
    renewed_at += [request.at for request in heard if request.op is not Op.CLAIM]
    ends = [request for request in record.heard(*FINAL) if request.op is not Op.CLAIM]
    known = [at for at in renewed_at if at is not None]
    if not known or ends:
        return False, []
    ends_at = max(known) + scenario.lease_s
    late = [at for at in record.effects if at > ends_at + EFFECT_S]
    complaints = (
        [f"{len(late)} side effects after the lease, the last {late[-1] - ends_at:.1f} s later"]
        if late
        else []
    )
    return record.closed_at > ends_at, complaints


def _heeds(_: Scenario, record: Record) -> tuple[bool, list[str]]:
    asked = next(
        (
            request
            for request in record.all()
            if request.was_answered and request.cancel_within_s is not None
        ),
        None,
    )
    if asked is None or asked.answered_at is None or asked.cancel_within_s is None:
        return False, []
    if any(request.verdict is VerdictKind.COMMITTED for request in record.reports()):
        return True, []
    return True, [f"no report within the {asked.cancel_within_s:.0f} s of the cancel request"]


def _once(scenario: Scenario, record: Record) -> tuple[bool, list[str]]:
    wanted = scenario.work.effects
    if len(record.effects) <= wanted:
        return bool(record.effects), []
    return True, [f"{len(record.effects)} side effects for one grant, expected {wanted}"]


def _claims(_: Scenario, record: Record) -> tuple[bool, list[str]]:
    complaints = []
    last: dict[str, WorkerRequest] = {}
    for claim in record.all(Op.CLAIM):
        before = last.get(claim.who)
        last[claim.who] = claim
        if before is None or before.request_id == claim.request_id:
            continue
        if claim.sequence <= before.sequence:
            complaints.append(f"claim_seq {claim.sequence} was sent after {before.sequence}")
        if before.answered_at is not None and claim.at < before.answered_at:
            complaints.append("the worker sent a claim before the previous one was answered")
    return bool(last), list(dict.fromkeys(complaints))


CHECKS: dict[Obligation, Check] = {
    obligations.SPEAKS: _speaks,
    obligations.REPORTS: _reports_for(obligations.REPORTS),
    obligations.HEARTBEATS: _heartbeats,
    obligations.SAME_ID: _same_id,
    obligations.BOUNDED: _bounded,
    obligations.BOUNDED_CLAIMS: _bounded_claims,
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
