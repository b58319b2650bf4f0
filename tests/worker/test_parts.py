"""The worker's small parts: output, environment, text, frames, the jump of a clock, outcomes."""

import asyncio
import os
import resource
import selectors
import time
from pathlib import Path
from typing import Any, get_args

import pytest
from hypothesis import given
from hypothesis import strategies as st
from msgspec.structs import replace

from tenure.clock import Boot, boot_now
from tenure.core.attempt_end import DEAD_LETTERS_AT_ONCE
from tenure.core.checks import MAX_DURATION
from tenure.core.ids import JobId, Kind, QueueName
from tenure.core.instants import seconds
from tenure.core.validation import Limits
from tenure.core.vocabulary import ErrorClass, ReasonCode, Stage
from tenure.errors import (
    Cancelled,
    DeadLetter,
    DeadLetterReason,
    InvalidInput,
    LeaseConflictError,
    PermanentError,
    Snooze,
    TransientError,
)
from tenure.handlers.context import Context
from tenure.handlers.registry import Isolation, Registry, make_handler
from tenure.worker.application import load_registry
from tenure.worker.child.error_texts import clean, message_of, traceback_of
from tenure.worker.child.execution import Execution
from tenure.worker.frames import (
    AskToStop,
    CheckpointSaved,
    Conflicted,
    FrameError,
    FrameReader,
    FromChild,
    LeaseLost,
    LeaseRenewed,
    ProgressMade,
    Raised,
    Returned,
    Run,
    Setup,
    Snoozed,
    Stopped,
    ToSupervisor,
    encode_frame,
)
from tenure.worker.supervisor import children
from tenure.worker.supervisor.children import describe_exit
from tenure.worker.supervisor.options import WITHHELD_URL, WorkerOptions, child_environment
from tenure.worker.supervisor.output import BoundedOutput
from tenure.worker.supervisor.supervisor import JumpWatch
from tenure.worker.supervisor.worker import (
    Worker,
    needed_descriptors,
    new_worker_id,
    warn_of_few_descriptors,
)
from tenure_conformance.spec import spec
from tests.support.coordinators import World
from tests.worker.sample import APP, app

# --- output ------------------------------------------------------------------------------------


@given(pieces=st.lists(st.binary(max_size=50), max_size=50), limit=st.integers(2, 60))
def test_output_keeps_its_beginning_and_end_and_counts_the_rest(
    pieces: list[bytes], limit: int
) -> None:
    output = BoundedOutput(limit)
    for piece in pieces:
        output.write(piece)
    whole = b"".join(pieces)

    text, left_out = output.take()

    half = limit // 2
    if left_out:
        kept = len(whole) - left_out
        assert kept <= limit
        assert text.startswith(whole[:half])
        assert text.endswith(whole[-half:])
        assert b"[... %d bytes left out ...]" % left_out in text
    else:
        assert text == whole
    assert output.take() == (b"", 0), "it starts afresh"


# --- environment -------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "url",
    [
        "postgresql://tenure:hunter2@db/tenure",
        "https://token:x@coordinator:7717",
        "postgresql://db/tenure?user=a&password=hunter2",
        "postgresql://[broken",
    ],
)
def test_a_url_with_a_password_is_replaced_by_one_that_fails(url: str) -> None:
    withheld = {"TENURE_URL": WITHHELD_URL}
    assert child_environment({"TENURE_URL": url}) == withheld
    assert child_environment({"TENURE_URL": url}, only=["TENURE_URL"]) == withheld


def test_handlers_inherit_everything_but_tenures_own_secrets() -> None:
    ours = {"TENURE_TOKEN": "t", "TENURE_TOKEN_FILE": "f", "TENURE_URL": "sqlite:///x.db", "A": "1"}
    libpq = ("PGPASSWORD", "PGPASSFILE", "PGSERVICE", "PGSERVICEFILE", "PGSSLKEY", "PGSSLPASSWORD")
    ours |= dict.fromkeys(libpq, "p")

    assert child_environment(ours) == {"TENURE_URL": "sqlite:///x.db", "A": "1"}
    assert child_environment({}, given={"TENURE_TOKEN": "weak"}) == {"TENURE_TOKEN": "weak"}


def test_the_strict_mode_passes_what_is_named_and_never_a_token() -> None:
    ours = {"PATH": "/bin", "AWS_REGION": "x", "DATABASE_URL": "x", "TENURE_TOKEN": "t"}

    assert child_environment(ours, only=["AWS_*"]) == {"PATH": "/bin", "AWS_REGION": "x"}
    assert child_environment(ours, only=["*"]).keys() == {"PATH", "AWS_REGION", "DATABASE_URL"}
    assert child_environment(ours, only=["TENURE_TOKEN"]) == {"PATH": "/bin"}


# --- text --------------------------------------------------------------------------------------


@given(text=st.text(st.characters(codec=None), max_size=200), most=st.integers(1, 100))
def test_cleaned_text_fits_every_store(text: str, most: int) -> None:
    cleaned = clean(text, most=most)

    assert len(cleaned) <= most
    assert "\x00" not in cleaned
    cleaned.encode()


class Unspeakable(Exception):
    def __str__(self) -> str:
        raise RuntimeError("not even that")


def test_an_exception_whose_str_fails_still_has_a_message() -> None:
    assert "RuntimeError" in message_of(Unspeakable())
    assert "Unspeakable" in traceback_of(Unspeakable())


def test_a_long_traceback_keeps_its_end() -> None:
    try:
        raise ValueError("x" * 20_000 + "the end")
    except ValueError as error:
        text = traceback_of(error)

    assert len(text) <= 6000
    assert text.rstrip().endswith("the end")


def test_a_dead_process_is_described() -> None:
    assert describe_exit(3) == "exited with code 3 before it reported"
    assert describe_exit(-11) == "was killed by SIGSEGV"
    assert describe_exit(-63).startswith("was killed by")
    assert describe_exit(-200) == "was killed by signal 200"
    assert "memory ran out" in describe_exit(-9)


# --- frames and clocks -------------------------------------------------------------------------


@given(cuts=st.lists(st.integers(1, 40), max_size=30))
def test_frames_survive_any_cut(cuts: list[int]) -> None:
    messages = [LeaseRenewed(number, Boot(number * 7)) for number in range(10)]
    stream = b"".join(map(encode_frame, messages))
    reader = FrameReader(max_bytes=1000)

    frames: list[bytes] = []
    for cut in cuts:
        frames += reader.feed(stream[:cut])
        stream = stream[cut:]
    frames += reader.feed(stream)

    assert frames == [encode_frame(message)[4:] for message in messages]


def test_a_frame_over_the_limit_is_refused_before_it_is_stored() -> None:
    with pytest.raises(FrameError):
        FrameReader(max_bytes=10).feed(b"\x7f\xff\xff\xff")


def test_leases_are_kept_on_the_clock_that_goes_on_while_the_machine_sleeps(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    slept_s = 3600
    clocks = {time.CLOCK_BOOTTIME: 50 + slept_s, time.CLOCK_MONOTONIC: 50}
    monkeypatch.setattr(time, "clock_gettime_ns", lambda clock: clocks[clock] * 10**9)

    assert boot_now() == Boot(seconds(50 + slept_s))


def test_a_wall_clock_that_runs_ahead_is_noticed_once() -> None:
    watch = JumpWatch(threshold_us=seconds(5))
    readings = [(0, 0), (1, 1), (9, 2), (10, 3), (5, 4), (6, 5)]

    jumped = [watch.jumped(wall_us=seconds(wall), now=Boot(seconds(now))) for wall, now in readings]

    assert jumped == [False, False, True, False, False, False]


# --- outcomes ----------------------------------------------------------------------------------


class Child:
    """An execution without a child around it."""

    def __init__(self, function: Any, payload: bytes = b"{}", checkpoint: bytes | None = None):
        registry = Registry()
        registry.add(make_handler(function, kind="it"))
        self.sent: list[ToSupervisor] = []
        self.execution = Execution(
            registry,
            Run(
                run=1,
                job_id=JobId("j"),
                kind=Kind("it"),
                queue=QueueName("q"),
                attempt=1,
                fence=1,
                correlation_id=None,
                checkpoint=checkpoint,
                payload=payload,
                until=Boot(boot_now() + seconds(60)),
            ),
            send=self.sent.append,
            limits=Limits(body_bytes=1000),
        )
        self.context = self.execution.context

    def perform(self) -> FromChild:
        return self.execution.perform()

    def error(self) -> Any:
        outcome = self.perform()
        assert isinstance(outcome, Raised)
        return outcome.error


def raising(error: BaseException) -> Any:
    def it() -> None:
        raise error

    return it


def test_delays_are_bounded() -> None:
    cases = [(1.5, seconds(1.5)), (-1, 0), (float("nan"), 0), (1e300, MAX_DURATION)]
    for given_s, expected in cases:
        assert Child(raising(Snooze(given_s))).perform() == Snoozed(expected)  # type: ignore[arg-type]  # a Duration is an int
        outcome = Child(raising(TransientError("x", retry_after_s=given_s))).perform()
        assert isinstance(outcome, Raised)
        assert outcome.retry_after_us == expected


def test_cancelled_counts_only_when_somebody_asked() -> None:
    assert Child(raising(Cancelled("my own idea"))).error().type == "Cancelled"

    asked = Child(raising(Cancelled("as asked")))
    asked.context.receive(AskToStop(1, "enough"))
    assert asked.perform() == Stopped()

    lost = Child(raising(Cancelled("lease")))
    lost.context.receive(LeaseLost(1))
    assert lost.perform() == Stopped()


def test_exception_groups_are_unpacked() -> None:
    alone = ExceptionGroup("one", [PermanentError("inside")])
    assert Child(raising(alone)).error().error_class is ErrorClass.PERMANENT

    stops = Child(raising(BaseExceptionGroup("all", [Cancelled("a"), asyncio.CancelledError()])))
    stops.context.receive(AskToStop(1, "enough"))
    assert stops.perform() == Stopped()

    mixed = Child(raising(ExceptionGroup("some", [Cancelled("a"), ValueError("b")])))
    mixed.context.receive(AskToStop(1, "enough"))
    assert mixed.error().type == "ExceptionGroup"


@spec("T34", "F13")
@pytest.mark.parametrize("reason", get_args(DeadLetterReason))
def test_a_dead_letter_is_reported_with_its_reason(reason: DeadLetterReason) -> None:
    error = Child(raising(DeadLetter(reason, "never again"))).error()

    assert (error.reason_code, error.stage) == (ReasonCode(reason), Stage.EXEC)
    assert (error.type, error.message, error.traceback) == ("DeadLetter", "never again", "")
    assert error.reason_code in DEAD_LETTERS_AT_ONCE
    assert set(get_args(DeadLetterReason)) == DEAD_LETTERS_AT_ONCE


def test_a_dead_letter_with_another_reason_is_refused_where_it_is_made() -> None:
    with pytest.raises(InvalidInput, match="exhausted_retries") as refused:
        DeadLetter("exhausted_retries", "no")  # type: ignore[arg-type]  # what is tested

    assert "policy_violation, infrastructure_failure" in refused.value.hint


def test_an_unreadable_payload_is_a_parse_error() -> None:
    def it(a: int) -> int:
        return a

    error = Child(it, b"{").error()

    assert (error.stage, error.reason_code) == (Stage.INPUT, ReasonCode.PARSE_ERROR)
    assert Child(it, b"[]").error().reason_code is ReasonCode.VALIDATION_FAILED


def test_what_is_missing_before_arguments_are_read_fails_at_fetch() -> None:
    def it(ctx: Context) -> None: ...

    unreadable = Child(it, checkpoint=b"{")
    unknown = Child(it)
    unknown.execution.run = replace(unknown.execution.run, kind=Kind("other"))

    assert unreadable.error().stage is Stage.FETCH
    error = unknown.error()
    assert (error.stage, error.type) == (Stage.FETCH, "LookupError")


def test_a_coroutine_in_a_process_of_its_own_is_cancelled_too() -> None:
    async def it(ctx: Context) -> None:
        child.context.receive(AskToStop(1, "enough"))
        await asyncio.sleep(60)

    child = Child(it)

    assert child.perform() == Stopped()
    child.context.receive(AskToStop(1, "again"))  # its loop is gone: nothing to wake


def test_a_context_sends_only_what_a_job_can_store() -> None:
    def it(ctx: Context) -> Any:
        ctx.progress(-5, 10, note="a\x00b")
        ctx.progress(3)
        ctx.save({"step": 1})
        with pytest.raises(InvalidInput):
            ctx.save("x" * 2000)
        assert ctx.still_mine()
        ctx.check()
        return ctx.checkpoint

    child = Child(it, checkpoint=b'{"old": 1}')

    assert child.perform() == Returned(b'{"old":1}')
    progress = [each.progress for each in child.sent if isinstance(each, ProgressMade)]
    assert [(each.done, each.total, each.note) for each in progress] == [
        (0, 10, "a\\x00b"),
        (3, None, ""),
    ]
    assert [each.checkpoint for each in child.sent if isinstance(each, CheckpointSaved)] == [
        b'{"step":1}'
    ]


def test_a_lease_that_ran_out_is_noticed_without_the_supervisor() -> None:
    def it(ctx: Context) -> None:
        ctx.check()

    child = Child(it)
    child.context.receive(LeaseRenewed(1, boot_now()))

    assert not child.context.still_mine()
    assert child.perform() == Stopped()


@spec("F8")
def test_a_lease_conflict_is_an_outcome_of_its_own() -> None:
    assert Child(raising(LeaseConflictError("newer"))).perform() == Conflicted()


# --- the entry ---------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "name", ["", "json", "json:", ":app", "json:nothing", "json:dumps", ".json:app", "../json:app"]
)
def test_what_is_not_an_application_is_refused_by_name(name: str) -> None:
    with pytest.raises(InvalidInput, match=r"module:app|myapp.jobs:app"):
        load_registry(name)


@pytest.mark.parametrize("name", ["no_such_thing", "no_such_thing.jobs", "json.no_such_thing"])
def test_a_missing_module_is_refused_by_name(name: str) -> None:
    with pytest.raises(InvalidInput, match=r"there is no module '(json\.)?no_such_thing'"):
        load_registry(f"{name}:app")


def test_an_import_error_of_the_application_itself_passes_through(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "incomplete.py").write_text("import no_such_thing\n")
    monkeypatch.syspath_prepend(tmp_path)

    with pytest.raises(ModuleNotFoundError, match="no_such_thing"):
        load_registry("incomplete:app")


def test_invalid_options_are_refused() -> None:
    coordination = World().coordinator
    for options in (WorkerOptions(concurrency=0), WorkerOptions(queues={})):
        with pytest.raises(InvalidInput):
            Worker(coordination, app.registry, app="x:y", options=options)
    with pytest.raises(InvalidInput):
        Worker(coordination, Registry(), app="x:y")


def test_worker_ids_are_legal_names_and_unique() -> None:
    ids = {new_worker_id() for _ in range(100)}

    assert len(ids) == 100
    assert all(len(each) < 128 for each in ids)


@spec("WP25")
@pytest.mark.process
def test_as_many_descriptors_are_expected_of_a_child_as_it_costs() -> None:
    registry = load_registry(APP)
    expected = needed_descriptors(registry, 40) - needed_descriptors(registry, 39)
    path = Path("/proc/self/fd")
    setup = Setup(app=APP, lane=Isolation.PROCESS, path=(), body_bytes=1000, depth=8)
    with selectors.DefaultSelector() as selector:
        before = len(list(path.iterdir()))
        child = children.Child(
            setup,
            number=1,
            environment=os.environ,
            output_bytes=1000,
            selector=selector,
            on_readable=lambda _: None,
            on_exit=lambda _: None,
        )
        during = len(list(path.iterdir()))
        child.reap()
        child.forget()
        after = len(list(path.iterdir()))

    assert during - before == expected
    assert after == before


@spec("WP25")
def test_a_worker_warns_of_too_few_descriptors(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    registry = load_registry(APP)
    needed = needed_descriptors(registry, 40)

    allowed = iter([needed, resource.RLIM_INFINITY, 128])
    monkeypatch.setattr(resource, "getrlimit", lambda _: (next(allowed), 0))
    warn_of_few_descriptors(registry, 40)
    warn_of_few_descriptors(registry, 40)
    assert caplog.text == ""

    warn_of_few_descriptors(registry, 40)
    assert "this process may open 128" in caplog.text
