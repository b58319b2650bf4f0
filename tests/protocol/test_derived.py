"""Messages follow the core's structs: a field that the core has is on the wire."""

from datetime import UTC, datetime

import msgspec
import pytest

from tenure.core.ids import Actor, Kind, Namespace, QueueName, ScheduleName
from tenure.core.instants import Duration, Instant, seconds
from tenure.core.job import Job
from tenure.core.policy import Compensation, DeadLetterJob, Policy
from tenure.core.schedules import Schedule, ScheduleSpec
from tenure.protocol import codec
from tenure.protocol.records import (
    DerivedRecord,
    JobRecord,
    ScheduleRecord,
    schedule_record,
)
from tenure.protocol.requests import DerivedRequest
from tenure.protocol.translation import derived, to_core, to_wire


class Part(msgspec.Struct, frozen=True, kw_only=True):
    wait_us: Duration = seconds(2)


class Core(msgspec.Struct, frozen=True, kw_only=True):
    name: str
    at: Instant
    payload: bytes
    part: Part = Part()
    parts: tuple[Part, ...] = ()
    limit_us: Duration | None = None
    result: bytes | None = None
    secret: str = ""

    @property
    def length(self) -> int:
        return len(self.name)


@derived(Part)
class PartRecord(DerivedRecord, frozen=True, kw_only=True):
    """A part."""


@derived(Core, without=("secret",), names={"name": "label"})
class CoreRecord(DerivedRecord, frozen=True, kw_only=True):
    """A core value."""

    length: int


@derived(Core, without=("secret", "parts"))
class CoreRequest(DerivedRequest, frozen=True, kw_only=True):
    """The same, sent."""


VALUE = Core(
    name="n",
    at=Instant(1_700_000_000_123_456),
    payload=b"[1,  2]",
    part=Part(wait_us=Duration(1)),
    parts=(Part(), Part(wait_us=seconds(3))),
)


def test_a_derived_record_has_the_units_and_names_of_the_wire() -> None:
    shown = to_wire(CoreRecord, VALUE)

    assert msgspec.json.decode(codec.encode(shown)) == {
        "label": "n",
        "at": "2023-11-14T22:13:20.123456Z",
        "payload": [1, 2],
        "part": {"wait_s": 0.000001},
        "parts": [{"wait_s": 2.0}, {"wait_s": 3.0}],
        "limit_s": None,
        "length": 1,
    }


@pytest.mark.parametrize("value", [VALUE, msgspec.structs.replace(VALUE, result=b"null")])
def test_a_value_comes_back_as_it_was(value: Core) -> None:
    shown = codec.decode(CoreRecord, codec.encode(to_wire(CoreRecord, value)))

    assert to_core(Core, shown) == value


def test_a_default_of_the_core_is_the_default_on_the_wire() -> None:
    sent = codec.decode(CoreRequest, b'{"name":"n","at":"2030-01-01T00:00:00Z"}')

    assert sent.at == datetime(2030, 1, 1, tzinfo=UTC)
    assert to_core(Core, sent) == Core(name="n", at=Instant(1_893_456_000_000_000), payload=b"null")


def test_what_the_message_does_not_have_is_an_argument() -> None:
    class Bare(msgspec.Struct, frozen=True, kw_only=True):
        name: str

    with pytest.raises(TypeError, match="at"):
        to_core(Core, Bare(name="n"))

    assert to_core(Core, Bare(name="n"), at=Instant(1), payload=b"1").at == 1


def test_every_field_of_a_job_is_shown_but_those_that_only_the_store_needs() -> None:
    shown = {f"{name[:-3]}_s" if name.endswith("_us") else name for name in Job.__struct_fields__}

    assert shown - set(JobRecord.__struct_fields__) == {
        "lease_id",
        "claimed_run_at",
        "not_before",
        "delete_at",
    }


def test_a_schedule_comes_back_with_everything_that_its_spec_says() -> None:
    spec = ScheduleSpec(
        kind=Kind("k"),
        queue=QueueName("q"),
        payload=b"[1]",
        policy=Policy(
            compensation=Compensation(kind=Kind("undo"), queue=QueueName("q"), policy=Policy())
        ),
        on_dead_letter=DeadLetterJob(kind=Kind("tell"), queue=QueueName("q"), policy=Policy()),
        expires_us=seconds(60),
        every_us=seconds(3600),
        jitter_us=seconds(1),
    )
    kept = Schedule(
        namespace=Namespace("default"),
        name=ScheduleName("s"),
        spec=spec,
        rev=1,
        created_at=Instant(1),
        created_by=Actor("operator:o"),
        changed_at=Instant(1),
        changed_by=Actor("operator:o"),
        updated_at=Instant(1),
    )

    sent = codec.encode(schedule_record(kept, bodies=True))

    assert to_core(Schedule, codec.decode(ScheduleRecord, sent)) == kept
