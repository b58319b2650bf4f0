"""What the row mapper leaves out of an event or a policy, it adds again."""

from collections.abc import Iterator

import pytest
from hypothesis import given
from hypothesis import strategies as some

from tenure.core.events import Event, Facts, digest
from tenure.core.ids import Actor, Fingerprint, JobId, LeaseId, RequestId, WorkerId
from tenure.core.instants import Duration, Instant
from tenure.core.job import Progress
from tenure.core.policy import Backoff, Policy
from tenure.core.vocabulary import EventCause, EventType, JobStatus, OnLost
from tenure.stores.sql.rows import (
    EVENT_COLUMNS,
    EVENT_ENCODERS,
    decode_policy,
    encode_policy,
    event_from,
    event_values,
)
from tenure_conformance.spec import spec

JOB = JobId("01890000-0000-7000-8000-000000000001")
LEASE = LeaseId(f"3-{'0123456789abcdef' * 2}")
STATUSES = some.sampled_from([*JobStatus, JobStatus("of_tomorrow")])
FACTS = some.builds(
    Facts,
    queue=some.none() | some.just("mail"),
    policy=some.none() | some.builds(Policy, max_attempts=some.integers(1, 99)),
    run_at=some.none() | some.integers(0, 9).map(Instant),
    sha256=some.sampled_from([None, digest(b"null"), digest(b"1")]),
    size=some.none() | some.integers(0, 9),
    progress=some.none() | some.builds(Progress, done=some.integers(0, 9)),
    reason=some.none() | some.just("because"),
)
EVENTS = some.builds(
    Event,
    job_id=some.just(JOB),
    seq=some.just(1),
    type=some.sampled_from([*EventType, EventType("of_tomorrow")]),
    ts=some.just(Instant(1)),
    actor=some.sampled_from(["worker:w", "worker:None", "system", "client:w"]).map(Actor),
    attempt=some.just(1),
    from_status=some.none() | STATUSES,
    to_status=STATUSES,
    request_id=some.sampled_from(
        [f"{JOB}", f"{JOB}:7", f"{LEASE}:start", LEASE, "=", "~x", "!", "", "claim-1"]
    ).map(RequestId),
    lease_id=some.sampled_from([None, LEASE]),
    owner=some.none() | some.sampled_from(["w", "None", "other"]).map(WorkerId),
    fingerprint=some.none() | some.just(Fingerprint("f" * 32)),
    cause=some.none() | some.sampled_from(EventCause),
    payload=FACTS,
)


def stored(events: list[Event]) -> Iterator[tuple[object, ...]]:
    columns = event_values(events)
    for at in range(len(events)):
        row = {name: columns[name][at] for name in EVENT_COLUMNS}
        for name, encode in EVENT_ENCODERS.items():
            [row[name]] = encode([row[name]])
        yield tuple(row.values())


@spec("E1")
@given(some.lists(EVENTS, min_size=1, max_size=4))
def test_an_event_is_read_as_it_was_written(events: list[Event]) -> None:
    assert [event_from(row) for row in stored(events)] == events


@spec("F5")
@pytest.mark.parametrize(
    ("policy", "text"),
    [
        (Policy(), "{}"),
        (Policy(max_attempts=3), '{"1":3}'),
        (
            Policy(
                backoff=Backoff(initial_us=Duration(7)), timeout_us=None, on_lost=OnLost.RECLAIM
            ),
            '{"3":[7,2.0,900000000,0.5],"4":null,"8":"reclaim"}',
        ),
        (Policy(keep_us=Duration(60_000_000)), '{"11":60000000}'),
    ],
)
def test_a_policy_is_stored_as_what_differs_from_one_that_never_changes(
    policy: Policy, text: str
) -> None:
    assert encode_policy(policy) == text
    assert decode_policy(text) == policy
