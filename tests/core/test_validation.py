"""Validation: every limit of every field, refused with an error that names the field."""

from typing import Any, get_args

import msgspec
import pytest
from msgspec.structs import replace

from tenure.core import checks
from tenure.core.claims import ClaimRequest
from tenure.core.commands import Command, Discard
from tenure.core.ids import (
    DEFAULT_NAMESPACE,
    SYSTEM,
    JobId,
    RequestId,
    client_actor,
    operator_actor,
    role_of,
)
from tenure.core.instants import seconds
from tenure.core.job import JobError, Progress, compensation_id
from tenure.core.policy import Backoff, Compensation, LeaseBounds, Policy
from tenure.core.validation import Limits, check_claim, check_command
from tenure.core.vocabulary import ErrorClass, JobStatus, OnLost, ReasonCode
from tenure.errors import InvalidInput
from tenure_conformance.spec import spec
from tests.support.cases import each_case
from tests.support.jobs import OWNER, WORKER
from tools import lives
from tools.driver import QUEUE

DAYS_366 = seconds(366 * 24 * 3600)
DRIVER = lives.running()
LIMITS = Limits()
NAN = float("nan")

LAWFUL: dict[str, Command] = {
    "enqueue": DRIVER.enqueue(),
    "start": DRIVER.start(),
    "heartbeat": DRIVER.heartbeat(progress=Progress(done=1, total=2), checkpoint=b"{}"),
    "complete": DRIVER.complete(),
    "fail": DRIVER.fail(),
    "release": DRIVER.release(),
    "sweep": DRIVER.sweep(),
    "cancel": DRIVER.cancel(),
    "stall": DRIVER.stall(),
    "requeue": DRIVER.requeue(),
    "dead_letter": DRIVER.dead_letter(),
    "redrive": DRIVER.redrive(payload=b"[]"),
    "discard": Discard(
        job_id=DRIVER.job.id, actor=operator_actor("olga"), request_id=RequestId("d1"), note="x"
    ),
}
CLAIM = ClaimRequest(
    namespace=DEFAULT_NAMESPACE,
    worker=OWNER,
    actor=WORKER,
    queues=(QUEUE,),
    limit=1,
    claim_seq=1,
    request_id=RequestId("c1"),
)


def kind_of(value: object) -> str:
    return type(value).__name__


def refused(command: Command, limits: Limits = LIMITS) -> InvalidInput:
    with pytest.raises(InvalidInput) as caught:
        check_command(command, limits)
    return caught.value


def changed(verb: str, **fields: Any) -> Command:
    return replace(LAWFUL[verb], **fields)


def enqueue_with_policy(**fields: Any) -> Command:
    return changed("enqueue", policy=replace(Policy(), **fields))


@each_case("verb", sorted(LAWFUL))
def test_a_valid_command_is_accepted(verb: str) -> None:
    check_command(LAWFUL[verb], LIMITS)


# --- Names and ids -------------------------------------------------------------------------------

BAD_NAMES: list[Any] = [
    "",
    "-a",
    ".a",
    "a b",
    "a\n",
    "a\x00",
    "ä",
    "a" * 129,
    "a\ud800",
    "\u0661",
    7,
    None,
    b"a",
]
NAMED = [
    ("enqueue", "queue"),
    ("enqueue", "kind"),
    ("enqueue", "namespace"),
    ("start", "request_id"),
    ("complete", "request_id"),
    ("fail", "request_id"),
    ("release", "request_id"),
    ("cancel", "request_id"),
    ("requeue", "request_id"),
    ("dead_letter", "request_id"),
    ("redrive", "request_id"),
]


@spec("J3", "J6")
@each_case("name", BAD_NAMES)
@each_case(("verb", "field"), NAMED)
def test_a_bad_name_is_refused_by_its_field(verb: str, field: str, name: Any) -> None:
    error = refused(changed(verb, **{field: name}))

    assert (error.field, error.code) == (field, "invalid_input")
    assert str(error).startswith(f"{field}: ")
    assert str(error).isascii()


@spec("J3")
@pytest.mark.parametrize("name", ["a", "0", "A.b_c:d/e-f", "a" * 128])
def test_a_valid_name_is_accepted(name: str) -> None:
    for verb, field in NAMED:
        check_command(changed(verb, **{field: name}), LIMITS)


@spec("J3")
@each_case(
    "job_id",
    [
        "",
        "1",
        "018BCFE5-6800-7001-8203-040506070809",
        "018bcfe5680070018203040506070809",
        "{018bcfe5-6800-7001-8203-040506070809}",
        "018bcfe5-6800-7001-8203-040506070809\n",
        "018bcfe5-6800-7001-8203-04050607080g",
        None,
        7,
    ],
)
@each_case("verb", sorted(LAWFUL))
def test_a_bad_job_id_is_refused(verb: str, job_id: Any) -> None:
    assert refused(changed(verb, job_id=job_id)).field == "job_id"


@spec("J5", "J6")
@each_case("verb", ["start", "heartbeat", "complete", "fail", "release"])
@each_case(
    "lease_id",
    [
        "",
        "x",
        "1-" + "a" * 31,
        "1-" + "A" * 32,
        "01-" + "a" * 32,
        "-1-" + "a" * 32,
        "1-" + "a" * 32 + "\n",
        "9" * 5000 + "-" + "a" * 32,
        None,
        1,
    ],
)
def test_a_lease_id_of_the_wrong_shape_is_refused(verb: str, lease_id: Any) -> None:
    error = refused(changed(verb, lease_id=lease_id))

    assert error.field == "lease_id"
    assert "grant" in error.hint


@pytest.mark.parametrize("actor", ["", "ada", "worker:", "root:ada", "worker:a\nb", None, 7])
def test_an_unknown_principal_is_refused(actor: Any) -> None:
    for verb in ("enqueue", "start", "cancel"):
        assert refused(changed(verb, actor=actor)).field == "actor"


def test_the_system_is_a_principal() -> None:
    check_command(changed("release", actor=SYSTEM), LIMITS)


@spec("R13", "R22", "T14", "T21", "T27")
@pytest.mark.parametrize(
    ("verb", "allowed"),
    [
        ("cancel", {"client", "operator", "system"}),
        ("requeue", {"operator", "system"}),
        ("dead_letter", {"operator", "system"}),
        ("redrive", {"operator"}),
        ("discard", {"operator"}),
    ],
)
def test_a_command_is_accepted_only_from_a_role_that_the_table_allows(
    verb: str, allowed: set[str]
) -> None:
    everybody = [WORKER, client_actor("carl"), operator_actor("olga"), SYSTEM]

    for actor in everybody:
        command = changed(verb, actor=actor)
        if role_of(actor) in allowed:
            check_command(command, LIMITS)
        else:
            error = refused(command)
            assert error.field == "actor"
            assert all(role in error.hint for role in allowed)


@spec("Z2", "Z3")
def test_a_claim_cannot_be_submitted_as_a_command_that_skips_the_queue_limits() -> None:
    assert refused(DRIVER.claim()).field == "command"


@spec("W1")
def test_only_the_system_sweeps() -> None:
    assert refused(changed("sweep", actor=client_actor("carl"))).field == "actor"


@spec("D4")
@each_case("field", ["dedupe_key", "correlation_id", "trace_id"])
@each_case(
    "value",
    ["", "a" * 201, "a\x00", "a\n", "\x7f", "a\x85b", "a\ud800", 7, b"a"],
)
def test_a_label_is_short_text_without_control_characters(field: str, value: Any) -> None:
    assert refused(changed("enqueue", **{field: value})).field == field


@spec("D4")
@pytest.mark.parametrize("value", ["a", "a" * 200, "größer als / 7", " "])
def test_a_label_may_be_any_other_text(value: str) -> None:
    check_command(changed("enqueue", dedupe_key=value), LIMITS)


# --- Bodies --------------------------------------------------------------------------------------

BODIES = [
    ("enqueue", "payload"),
    ("complete", "result"),
    ("heartbeat", "checkpoint"),
    ("redrive", "payload"),
]


@spec("J1", "J2", "J6")
@each_case(("verb", "field"), BODIES)
@each_case(
    ("body", "word"),
    [
        (b"NaN", "NaN"),
        (b'{"a":1,"a":2}', "duplicate"),
        (b'"\\ud800"', "surrogate"),
        (b"9007199254740993", "2^53"),
        (b'"\\u0000"', "NUL"),
        (b"[" * 65 + b"]" * 65, "deeper"),
        (b'"' + b"x" * (1 << 20) + b'"', "over the limit"),
        (b"", "not JSON"),
        (b"\xff", "UTF-8"),
        ("text", "bytes"),
        ({"a": 1}, "bytes"),
    ],
)
def test_a_bad_body_is_refused_by_its_field(verb: str, field: str, body: Any, word: str) -> None:
    error = refused(changed(verb, **{field: body}))

    assert error.field == field
    assert word in error.problem


@spec("J2")
def test_the_limits_of_bodies_are_a_setting() -> None:
    small = Limits(body_bytes=4, depth=1)

    check_command(changed("complete", result=b"[12]"), small)
    assert refused(changed("complete", result=b"[123]"), small).field == "result"
    assert refused(changed("complete", result=b"[[]]"), small).field == "result"
    check_command(changed("complete", result=b'"' + b"x" * ((1 << 20) - 2) + b'"'), LIMITS)
    check_command(changed("complete", result=b"[" * 64 + b"]" * 64), LIMITS)


# --- Durations, numbers, words -------------------------------------------------------------------

BAD_DURATIONS: list[Any] = [-1, DAYS_366 + 1, True, 1.5, NAN, "1", None, 10**5000]


@spec("J4", "J6")
@each_case("value", BAD_DURATIONS)
@each_case(
    ("verb", "field"),
    [("enqueue", "delay_us"), ("fail", "retry_after_us"), ("release", "delay_us")],
)
def test_a_duration_out_of_range_is_refused(verb: str, field: str, value: Any) -> None:
    assert refused(changed(verb, **{field: value})).field == field


@spec("J4")
@each_case("value", BAD_DURATIONS)
@each_case("field", ["lease_us", "start_within_us", "grace_us", "timeout_us"])
def test_a_duration_out_of_range_in_a_policy_is_refused(field: str, value: Any) -> None:
    if field == "timeout_us" and value is None:
        check_command(enqueue_with_policy(timeout_us=None), LIMITS)
        return

    assert refused(enqueue_with_policy(**{field: value})).field == f"policy.{field}"


@spec("J4")
@each_case("field", ["initial_us", "cap_us"])
@each_case("value", BAD_DURATIONS)
def test_a_duration_out_of_range_in_a_backoff_is_refused(field: str, value: Any) -> None:
    command = enqueue_with_policy(backoff=replace(Backoff(), **{field: value}))

    assert refused(command).field == f"policy.backoff.{field}"


@spec("J4")
def test_durations_from_nothing_to_366_days_pass() -> None:
    for value in (0, DAYS_366):
        check_command(changed("enqueue", delay_us=value), LIMITS)
        check_command(changed("fail", retry_after_us=value), LIMITS)
        check_command(enqueue_with_policy(grace_us=value), LIMITS)


@spec("J4")
@pytest.mark.parametrize("value", [-32769, 32768, 1.0, True, NAN, None, "1", 10**5000], ids=kind_of)
def test_a_priority_is_a_small_integer(value: Any) -> None:
    assert refused(changed("enqueue", priority=value)).field == "priority"


@spec("J4")
@pytest.mark.parametrize("value", [-32768, 0, 32767])
def test_a_priority_within_its_bounds_passes(value: int) -> None:
    check_command(changed("enqueue", priority=value), LIMITS)


@each_case(
    ("verb", "fields", "field"),
    [
        ("enqueue", {"run_at": -1}, "run_at"),
        ("enqueue", {"run_at": 10**18}, "run_at"),
        ("enqueue", {"run_at": True}, "run_at"),
        ("enqueue", {"run_at": 5, "delay_us": 5}, "run_at"),
        ("heartbeat", {"hb_seq": 0}, "hb_seq"),
        ("heartbeat", {"hb_seq": 2**53}, "hb_seq"),
        ("heartbeat", {"hb_seq": 1.0}, "hb_seq"),
        ("heartbeat", {"progress": Progress(done=-1)}, "progress.done"),
        ("heartbeat", {"progress": Progress(done=1, total=-1)}, "progress.total"),
        ("heartbeat", {"progress": Progress(done=1, note="\x00")}, "progress.note"),
        ("cancel", {"expected_rev": 0}, "expected_rev"),
        ("cancel", {"expected_status": JobStatus("napping")}, "expected_status"),
        ("enqueue", {"policy": Policy(on_lost=OnLost("weep"))}, "policy.on_lost"),
        ("fail", {"error": JobError(error_class=ErrorClass("overload"))}, "error.error_class"),
        ("start", {"expected_rev": 0}, "expected_rev"),
        ("heartbeat", {"expected_rev": "1"}, "expected_rev"),
        ("complete", {"expected_rev": 2**31}, "expected_rev"),
        ("fail", {"expected_rev": -1}, "expected_rev"),
        ("release", {"expected_rev": True}, "expected_rev"),
        ("cancel", {"reason": "a" * 4097}, "reason"),
        ("cancel", {"reason": "\ud800"}, "reason"),
        ("cancel", {"reason": None}, "reason"),
        ("dead_letter", {"message": "\x00"}, "message"),
        ("fail", {"error": JobError(type="a" * 129)}, "error.type"),
        ("fail", {"error": JobError(message="\x00")}, "error.message"),
        ("fail", {"error": JobError(message="a" * 65537)}, "error.message"),
        ("fail", {"error": JobError(reason_code=ReasonCode.TIMEOUT)}, "error.reason_code"),
        (
            "fail",
            {"error": JobError(reason_code=ReasonCode.COMPENSATION_FAILED)},
            "error.reason_code",
        ),
    ],
)
def test_every_other_field_has_its_bounds_too(
    verb: str, fields: dict[str, Any], field: str
) -> None:
    assert refused(changed(verb, **fields)).field == field


@spec("J4")
@each_case(
    ("command", "field"),
    [
        (enqueue_with_policy(on_lost="drop"), "policy.on_lost"),
        (enqueue_with_policy(on_exhausted="retry"), "policy.on_exhausted"),
        (changed("release", kind="lunch"), "kind"),
        (changed("cancel", mode="gently"), "mode"),
        (changed("cancel", expected_status="done"), "expected_status"),
        (changed("dead_letter", reason_code="bored"), "reason_code"),
        (changed("dead_letter", stage="lobby"), "stage"),
        (changed("redrive", cause="operator"), "cause"),
        (changed("fail", error=replace(JobError(), error_class="odd")), "error.error_class"),
        (changed("fail", error=replace(JobError(), stage="lobby")), "error.stage"),
        (changed("fail", error=replace(JobError(), reason_code="x")), "error.reason_code"),
    ],
)
def test_words_are_from_their_closed_sets(command: Command, field: str) -> None:
    assert refused(command).field == field


@spec("J10")
@pytest.mark.parametrize("field", ["timeout_us", "start_within_us"])
def test_a_limit_that_no_attempt_could_keep_is_refused(field: str) -> None:
    check_command(enqueue_with_policy(**{field: seconds(0.1)}), LIMITS)

    for limit in (0, 1, seconds(0.1) - 1):
        with pytest.raises(InvalidInput, match="too short") as caught:
            check_command(enqueue_with_policy(**{field: limit}), LIMITS)
        assert caught.value.field == f"policy.{field}"


@spec("J4")
@each_case(
    ("fields", "field"),
    [
        ({"max_attempts": 0}, "policy.max_attempts"),
        ({"max_attempts": 2**31}, "policy.max_attempts"),
        ({"max_attempts": True}, "policy.max_attempts"),
        ({"max_releases": -1}, "policy.max_releases"),
        ({"backoff": Backoff(factor=0.9)}, "policy.backoff.factor"),
        ({"backoff": Backoff(factor=NAN)}, "policy.backoff.factor"),
        ({"backoff": Backoff(factor=float("inf"))}, "policy.backoff.factor"),
        ({"backoff": Backoff(factor=10**400)}, "policy.backoff.factor"),
        ({"backoff": Backoff(factor=True)}, "policy.backoff.factor"),
        ({"backoff": Backoff(floor=-0.1)}, "policy.backoff.floor"),
        ({"backoff": Backoff(floor=1.1)}, "policy.backoff.floor"),
    ],
)
def test_budgets_and_backoff_have_bounds(fields: dict[str, Any], field: str) -> None:
    assert refused(enqueue_with_policy(**fields)).field == field


@spec("L2")
@pytest.mark.parametrize("ttl_s", [0, 29.999999, 120.000001, 3600])
def test_a_ttl_outside_the_bounds_names_the_setting(ttl_s: float) -> None:
    error = refused(enqueue_with_policy(lease_us=seconds(ttl_s)))

    assert error.field == "policy.lease_us"
    assert "TENURE_LEASE_BOUNDS" in str(error)


@spec("L2")
def test_a_ttl_within_the_coordinators_bounds_passes() -> None:
    wide = Limits(lease=LeaseBounds(shortest_us=seconds(1), longest_us=seconds(3600)))

    for ttl_s in (30, 60, 120):
        check_command(enqueue_with_policy(lease_us=seconds(ttl_s)), LIMITS)
    for ttl_s in (1, 3600):
        check_command(enqueue_with_policy(lease_us=seconds(ttl_s)), wide)
    assert refused(enqueue_with_policy(lease_us=seconds(0.5)), wide).field == "policy.lease_us"
    assert Policy().lease_us == seconds(60)


@spec("L2")
def test_the_default_ttl_too_must_be_within_the_bounds() -> None:
    narrow = Limits(lease=LeaseBounds(shortest_us=seconds(1), longest_us=seconds(2)))

    assert refused(changed("enqueue", policy=Policy()), narrow).field == "policy.lease_us"


@spec("J6")
@pytest.mark.parametrize(
    ("fields", "field"),
    [
        ({"kind": "ä"}, "policy.compensation.kind"),
        ({"queue": ""}, "policy.compensation.queue"),
        ({"policy": Policy(max_attempts=0)}, "policy.compensation.policy.max_attempts"),
        ({"policy": lives.UNDOABLE}, "policy.compensation.policy"),
    ],
)
def test_nested_compensations_are_validated_at_every_level(
    fields: dict[str, Any], field: str
) -> None:
    spec_of = lives.UNDOABLE.compensation
    assert isinstance(spec_of, Compensation)

    assert refused(enqueue_with_policy(compensation=replace(spec_of, **fields))).field == field
    check_command(enqueue_with_policy(compensation=spec_of), LIMITS)


# --- Types ---------------------------------------------------------------------------------------


class Text(str):
    """A str that is not one: no fingerprint can be made of it."""

    __slots__ = ()


class Body(bytes):
    """Bytes that are not quite bytes."""

    __slots__ = ()


class Number(float):
    """A float that is not quite a float."""

    __slots__ = ()


@spec("J6")
@each_case(
    ("command", "field"),
    [
        (changed("enqueue", kind=Text("mail")), "kind"),
        (changed("enqueue", job_id=Text(LAWFUL["enqueue"].job_id)), "job_id"),
        (changed("enqueue", dedupe_key=Text("a")), "dedupe_key"),
        (changed("enqueue", actor=Text("client:shop")), "actor"),
        (changed("enqueue", payload=Body(b"1")), "payload"),
        (changed("enqueue", policy={}), "policy"),
        (enqueue_with_policy(backoff=None), "policy.backoff"),
        (enqueue_with_policy(backoff=Backoff(factor=Number(2))), "policy.backoff.factor"),
        (enqueue_with_policy(compensation="undo"), "policy.compensation"),
        (
            enqueue_with_policy(compensation=Compensation(kind="a", queue="b", policy=None)),  # type: ignore[arg-type]  # that is the point
            "policy.compensation.policy",
        ),
        (changed("start", request_id=Text("r1")), "request_id"),
        (changed("heartbeat", progress=1), "progress"),
        (changed("fail", error=None), "error"),
        (changed("fail", error=JobError(message=Text("a"))), "error.message"),
        (changed("fail", error=replace(JobError(), reason_code=[])), "error.reason_code"),
        (changed("redrive", cause=10**5000), "cause"),
        (changed("redrive", again="yes"), "again"),
        (changed("redrive", again=1), "again"),
        (changed("cancel", reason=Text("a")), "reason"),
    ],
)
def test_a_value_of_another_type_is_refused_by_its_field(command: Command, field: str) -> None:
    assert refused(command).field == field


@spec("J3", "M1")
def test_a_caller_cannot_choose_an_id_that_is_reserved_for_derived_jobs() -> None:
    victim = JobId("01930000-0000-7000-8000-000000000001")

    error = refused(changed("enqueue", job_id=compensation_id(victim)))

    assert error.field == "job_id"
    assert "version 8" in str(error)


# --- Claims --------------------------------------------------------------------------------------


@spec("J3", "J6")
@each_case(
    ("fields", "field"),
    [
        ({"namespace": ""}, "namespace"),
        ({"worker": "a b"}, "worker"),
        ({"actor": "nobody"}, "actor"),
        ({"actor": "client:shop"}, "actor"),
        ({"request_id": ""}, "request_id"),
        ({"queues": ()}, "queues"),
        ({"queues": ("a", "")}, "queues[1]"),
        ({"queues": ("a", "a")}, "queues"),
        ({"queues": tuple(f"q{n}" for n in range(65))}, "queues"),
        ({"kinds": ("ä",)}, "kinds[0]"),
        ({"queues": None}, "queues"),
        ({"queues": ["a"]}, "queues"),
        ({"queues": "abc"}, "queues"),
        ({"kinds": 1}, "kinds"),
        ({"worker": Text("w1")}, "worker"),
        ({"limit": 0}, "limit"),
        ({"limit": 1001}, "limit"),
        ({"limit": True}, "limit"),
        ({"claim_seq": 0}, "claim_seq"),
        ({"claim_seq": 2**53}, "claim_seq"),
    ],
)
def test_a_claim_is_checked_field_by_field(fields: dict[str, Any], field: str) -> None:
    with pytest.raises(InvalidInput) as caught:
        check_claim(replace(CLAIM, **fields), LIMITS)

    assert caught.value.field == field


def test_a_valid_claim_is_accepted() -> None:
    check_claim(CLAIM, LIMITS)
    check_claim(replace(CLAIM, kinds=(), limit=1000), LIMITS)


# --- Errors --------------------------------------------------------------------------------------


@spec("J6")
def test_an_error_shows_a_line_of_the_value_at_most_and_no_control_codes() -> None:
    error = refused(changed("enqueue", queue="\x1b[31m" + "x" * 100))

    assert "\x1b" not in str(error)
    assert "\\x1b" in str(error)
    assert len(str(error)) < 250


UNCHECKED = {
    "Complete": ["result"],
    "DeadLetter": ["message"],
    "Enqueue": ["payload", "on_dead_letter", "policy"],
    "EnqueueFlow": ["name", "members", "handler"],
    "Fail": ["error"],
    "FollowUp": ["payload", "on_dead_letter", "policy", "parent"],
    "Heartbeat": ["progress", "checkpoint"],
    "Redrive": ["payload"],
    "ScheduledEnqueue": ["payload", "on_dead_letter", "policy"],
    # Only the coordinator makes these.
    "Claim": ["fingerprint"],
    "Sweep": ["outages"],
    "Unblock": ["ended_otherwise"],
}
"""The fields that neither their type nor their name has a check for: `validation` checks those of
the commands that a caller may send."""


@spec("J6")
def test_every_field_of_every_command_has_a_check_or_is_listed_here() -> None:
    unchecked = {
        kind.__name__: [name for _, name, check, _ in checks._rows_of(kind)[0] if check is None]
        for kind in get_args(Command)
    }

    assert {name: fields for name, fields in unchecked.items() if fields} == UNCHECKED


@spec("J6")
@each_case("verb", sorted(LAWFUL))
def test_an_unknown_field_cannot_be_given(verb: str) -> None:
    command = LAWFUL[verb]

    with pytest.raises(TypeError, match="surprise"):
        type(command)(**msgspec.structs.asdict(command), surprise=1)  # type: ignore[call-arg]  # that is the point
