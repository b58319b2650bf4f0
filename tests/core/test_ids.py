"""Ids: their shape, their order, and what follows from them."""

import uuid

from hypothesis import given
from hypothesis import strategies as st

from tenure.core.ids import (
    JOB_ID_PATTERN,
    LEASE_ID_PATTERN,
    Epoch,
    LeaseId,
    client_actor,
    derived_job_id,
    epoch_of,
    fence,
    new_job_id,
    new_lease_id,
    operator_actor,
    role_of,
    worker_actor,
)
from tenure.core.instants import Instant, after, later, seconds
from tenure_conformance.spec import spec
from tests.support.cases import each_case

ENTROPIES = st.binary(min_size=16, max_size=16)
INSTANTS = st.integers(0, (2**48 - 1) * 1000 + 999).map(Instant)
EPOCHS = st.integers(1, 999_999_999).map(Epoch)


@spec("J3")
@given(INSTANTS, ENTROPIES)
def test_a_job_id_is_a_canonical_uuid_of_version_7(now: Instant, luck: bytes) -> None:
    job_id = new_job_id(now, luck)

    parsed = uuid.UUID(job_id)
    assert str(parsed) == job_id
    assert JOB_ID_PATTERN.fullmatch(job_id)
    assert (parsed.version, parsed.variant) == (7, uuid.RFC_4122)
    assert parsed.int >> 80 == now // 1000


@given(INSTANTS, INSTANTS, ENTROPIES, ENTROPIES)
def test_job_ids_sort_by_the_millisecond_they_were_made_in(
    one: Instant, two: Instant, luck: bytes, other_luck: bytes
) -> None:
    if one // 1000 < two // 1000:
        assert new_job_id(one, luck) < new_job_id(two, other_luck)


@given(INSTANTS, ENTROPIES, ENTROPIES)
def test_job_ids_differ_where_their_entropy_does(
    now: Instant, luck: bytes, other_luck: bytes
) -> None:
    # 74 of the first 80 bits are used; the rest make the version and the variant.
    used = bytearray(luck[:10])
    others = bytearray(other_luck[:10])
    used[0] &= 0x0F
    others[0] &= 0x0F
    used[2] &= 0x3F
    others[2] &= 0x3F

    assert (new_job_id(now, luck) == new_job_id(now, other_luck)) == (used == others)


@spec("T27", "M1")
@given(INSTANTS, ENTROPIES, st.text(), st.text())
def test_a_derived_id_is_stable_keeps_the_origins_time_and_differs_by_purpose(
    now: Instant, luck: bytes, purpose: str, other: str
) -> None:
    origin = new_job_id(now, luck)
    purpose = purpose.encode(errors="replace").decode()
    other = other.encode(errors="replace").decode()

    derived = derived_job_id(origin, purpose=purpose)

    assert derived == derived_job_id(origin, purpose=purpose)
    assert JOB_ID_PATTERN.fullmatch(derived)
    assert uuid.UUID(derived).version == 8
    assert derived[:13] == origin[:13]
    assert derived != origin
    assert (derived == derived_job_id(origin, purpose=other)) == (purpose == other)


def test_a_derived_id_is_the_same_in_every_release() -> None:
    origin = new_job_id(Instant(1_700_000_000_000_000), bytes(range(16)))

    assert origin == "018bcfe5-6800-7001-8203-040506070809"
    assert derived_job_id(origin, purpose="compensation") == "018bcfe5-6800-8334-bebd-e0f078a6a2ee"


@spec("J5", "A5")
@given(EPOCHS, ENTROPIES)
def test_a_lease_id_is_its_epoch_and_128_random_bits(epoch: Epoch, luck: bytes) -> None:
    lease_id = new_lease_id(epoch, luck)

    assert LEASE_ID_PATTERN.fullmatch(lease_id)
    assert epoch_of(lease_id) == epoch
    assert bytes.fromhex(lease_id.partition("-")[2]) == luck


@spec("J5")
@each_case(
    "wrong",
    [
        "",
        "1-",
        "-" + "a" * 32,
        "1-" + "a" * 31,
        "1-" + "a" * 33,
        "1-" + "A" * 32,
        "1-" + "g" * 32,
        "01-" + "a" * 32,
        "+1-" + "a" * 32,
        "1_0-" + "a" * 32,
        "1 -" + "a" * 32,
        "1-" + "a" * 32 + "\n",
        "١-" + "a" * 32,
        "9999999999-" + "a" * 32,
    ],
)
def test_nothing_else_is_a_lease_id(wrong: str) -> None:
    assert LEASE_ID_PATTERN.fullmatch(wrong) is None


@spec("A6")
@given(EPOCHS, st.integers(1, 2**31), st.integers(1, 2**31))
def test_fences_rise_with_the_attempt_and_more_with_the_epoch(
    epoch: Epoch, attempt: int, other: int
) -> None:
    assert (fence(epoch, attempt) < fence(epoch, other)) == (attempt < other)
    assert fence(epoch, attempt) < fence(Epoch(epoch + 1), 1)


def test_the_name_of_an_actor_begins_with_its_role() -> None:
    actors = [worker_actor("a:b"), client_actor("c"), operator_actor("o")]

    assert [role_of(actor) for actor in actors] == ["worker", "client", "operator"]
    assert actors[0] == "worker:a:b"


def test_an_epoch_is_read_even_where_the_rest_is_odd() -> None:
    assert epoch_of(LeaseId("12-x-y")) == 12


def test_instants_are_integers_of_microseconds() -> None:
    assert seconds(0.1) == 100_000
    assert seconds(1.0000004) == 1_000_000
    assert after(Instant(5), seconds(1)) == 1_000_005
    assert (later(Instant(1), Instant(2)), later(Instant(2), Instant(1))) == (2, 2)
