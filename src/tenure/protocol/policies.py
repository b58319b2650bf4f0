"""A job's policy as it travels, in requests and in records."""

from typing import Annotated

import msgspec
from msgspec import Meta

from tenure.core.ids import Kind, QueueName
from tenure.core.instants import seconds
from tenure.core.policy import Backoff, Compensation, Policy
from tenure.core.vocabulary import OnExhausted, OnLost
from tenure.protocol.fields import (
    Count,
    KindField,
    Positive,
    QueueField,
    Seconds,
    in_seconds,
    optional_duration,
    optional_seconds,
)

_DEFAULT = Policy()


class BackoffMessage(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """How long a failed job waits for its next attempt. [F6]"""

    initial_s: Seconds = in_seconds(_DEFAULT.backoff.initial_us)
    factor: Annotated[float, Meta(ge=1, le=100)] = _DEFAULT.backoff.factor
    cap_s: Seconds = in_seconds(_DEFAULT.backoff.cap_us)
    floor: Annotated[float, Meta(ge=0, le=1)] = _DEFAULT.backoff.floor


class CompensationMessage(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """The job that undoes this one. [M1]"""

    kind: KindField
    queue: QueueField
    policy: "PolicyMessage" = msgspec.field(default_factory=lambda: PolicyMessage())


class PolicyMessage(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Leases, budgets and time-outs of one job, fixed at enqueue; what is left out has its default.
    A `timeout_s` of null means that there is none. [F5]"""

    lease_s: Seconds = in_seconds(_DEFAULT.lease_us)
    max_attempts: Positive = _DEFAULT.max_attempts
    max_releases: Count = _DEFAULT.max_releases
    backoff: BackoffMessage = BackoffMessage()
    timeout_s: Seconds | None = optional_seconds(_DEFAULT.timeout_us)
    start_within_s: Seconds = in_seconds(_DEFAULT.start_within_us)
    grace_s: Seconds = in_seconds(_DEFAULT.grace_us)
    on_exhausted: OnExhausted = _DEFAULT.on_exhausted
    on_lost: OnLost = _DEFAULT.on_lost
    compensation: CompensationMessage | None = None


class BackoffRecord(BackoffMessage, frozen=True, kw_only=True, forbid_unknown_fields=False):
    """The same in an answer, where a later release may add fields. [H2]"""


class CompensationRecord(msgspec.Struct, frozen=True, kw_only=True):
    """The job that undoes this one."""

    kind: Kind
    queue: QueueName
    policy: "PolicyRecord"


class PolicyRecord(msgspec.Struct, frozen=True, kw_only=True):
    """A job's policy in an answer."""

    lease_s: float
    max_attempts: int
    max_releases: int
    backoff: BackoffRecord
    timeout_s: float | None
    start_within_s: float
    grace_s: float
    on_exhausted: OnExhausted
    on_lost: OnLost
    compensation: CompensationRecord | None = None


def policy_record(policy: Policy) -> PolicyRecord:
    """A policy as an answer shows it."""
    undo = policy.compensation
    return PolicyRecord(
        lease_s=in_seconds(policy.lease_us),
        max_attempts=policy.max_attempts,
        max_releases=policy.max_releases,
        backoff=BackoffRecord(
            initial_s=in_seconds(policy.backoff.initial_us),
            factor=policy.backoff.factor,
            cap_s=in_seconds(policy.backoff.cap_us),
            floor=policy.backoff.floor,
        ),
        timeout_s=optional_seconds(policy.timeout_us),
        start_within_s=in_seconds(policy.start_within_us),
        grace_s=in_seconds(policy.grace_us),
        on_exhausted=policy.on_exhausted,
        on_lost=policy.on_lost,
        compensation=None
        if undo is None
        else CompensationRecord(
            kind=undo.kind, queue=undo.queue, policy=policy_record(undo.policy)
        ),
    )


def policy_message(policy: Policy) -> PolicyMessage:
    """A policy as a request carries it."""
    return msgspec.convert(msgspec.to_builtins(policy_record(policy)), PolicyMessage)


def policy_of(message: PolicyMessage | PolicyRecord) -> Policy:
    """The policy that a message describes."""
    undo = message.compensation
    return Policy(
        lease_us=seconds(message.lease_s),
        max_attempts=message.max_attempts,
        max_releases=message.max_releases,
        backoff=Backoff(
            initial_us=seconds(message.backoff.initial_s),
            factor=message.backoff.factor,
            cap_us=seconds(message.backoff.cap_s),
            floor=message.backoff.floor,
        ),
        timeout_us=optional_duration(message.timeout_s),
        start_within_us=seconds(message.start_within_s),
        grace_us=seconds(message.grace_s),
        on_exhausted=message.on_exhausted,
        on_lost=message.on_lost,
        compensation=None
        if undo is None
        else Compensation(
            kind=undo.kind,
            queue=undo.queue,
            policy=policy_of(undo.policy),
        ),
    )
