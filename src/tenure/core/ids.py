"""Names and ids: their types, how they are made, and the epoch in a lease id.

Randomness is an argument (16 bytes of entropy). Job ids are UUIDs of version 7, so that they sort
by the time they were made and indexes grow at one end; derived ids keep the origin's time. Lists do
not sort by id.
"""

import hashlib
import re
from typing import NewType

from tenure.core.instants import Instant

Namespace = NewType("Namespace", str)
QueueName = NewType("QueueName", str)
Kind = NewType("Kind", str)
JobId = NewType("JobId", str)
FlowId = NewType("FlowId", str)
LeaseId = NewType("LeaseId", str)
WorkerId = NewType("WorkerId", str)
ScheduleName = NewType("ScheduleName", str)
RequestId = NewType("RequestId", str)
Actor = NewType("Actor", str)  # "worker:NAME", "client:NAME", "operator:NAME" or "system"
Fingerprint = NewType("Fingerprint", str)
Epoch = NewType("Epoch", int)

ENTROPY_BYTES = 16
DEFAULT_NAMESPACE = Namespace("default")
DEFAULT_QUEUE = QueueName("default")
SYSTEM = Actor("system")

JOB_ID_PATTERN = re.compile(r"[0-9a-f]{8}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{12}")
ANY_CASE_JOB_ID_PATTERN = re.compile(JOB_ID_PATTERN.pattern.replace("a-f", "a-fA-F"))
"""A job id as callers may write it; `lower` makes it one."""
LEASE_ID_PATTERN = re.compile(r"(0|[1-9][0-9]{0,8})-[0-9a-f]{32}")

SHORTEST_PREFIX = 8
"""The fewest characters of an id that name jobs: jobs made within about a minute share them."""
SHORT_ID = 18
"""Characters of a shortened id: its time and its order within a millisecond, which nearly always
name one job."""
ELLIPSIS = "…"


_LOWEST_JOB_ID = "00000000-0000-0000-0000-000000000000"
_HIGHEST_JOB_ID = "ffffffff-ffff-ffff-ffff-ffffffffffff"


def is_job_id_prefix(text: str) -> bool:
    """Whether a job id could start with this, or be this."""
    return JOB_ID_PATTERN.fullmatch(text + _LOWEST_JOB_ID[len(text) :]) is not None


def short_id(whole: str) -> str:
    """An id as tables and pages shorten it."""
    return whole[:SHORT_ID] + ELLIPSIS


def typed_prefix(text: str) -> str:
    """The start of an id that a user typed, or copied where it was shortened."""
    return text.strip().lower().removesuffix(ELLIPSIS).removesuffix("...")


def job_id_range(prefix: str) -> tuple[JobId, JobId]:
    """The lowest and the highest job id that start with `prefix`: a key range for a store."""
    begun = len(prefix)
    return JobId(prefix + _LOWEST_JOB_ID[begun:]), JobId(prefix + _HIGHEST_JOB_ID[begun:])


def worker_actor(name: str) -> Actor:
    """The principal a worker acts as; its leases are bound to it."""
    return Actor(f"worker:{name}")


def client_actor(name: str) -> Actor:
    """The principal a producer acts as."""
    return Actor(f"client:{name}")


def operator_actor(name: str) -> Actor:
    """The principal an operator acts as."""
    return Actor(f"operator:{name}")


def role_of(actor: Actor) -> str:
    """`worker`, `client`, `operator` or `system`."""
    return actor.partition(":")[0]


def is_worker(actor: Actor) -> bool:
    """Whether the actor is a worker."""
    return actor.partition(":")[0] == "worker"


def _uuid(milliseconds: int, filler: bytes, version: int) -> JobId:
    head = (milliseconds & (2**48 - 1)).to_bytes(6, "big")
    body = bytearray(head + filler[:10])
    body[6] = (version << 4) | (body[6] & 0x0F)
    body[8] = 0x80 | (body[8] & 0x3F)
    digits = body.hex()
    return JobId(f"{digits[:8]}-{digits[8:12]}-{digits[12:16]}-{digits[16:20]}-{digits[20:]}")


def _milliseconds(id_: JobId | FlowId) -> int:
    return int(id_[:8] + id_[9:13], 16)


def new_job_id(now: Instant, entropy: bytes) -> JobId:
    """A fresh UUIDv7 for a job made at `now`."""
    return _uuid(now // 1000, entropy, version=7)


def ordered_job_id(now: Instant, entropy: bytes) -> JobId:
    """The same, sorting by the microsecond: jobs made one after the other are claimed, and stored,
    in that order. A UUIDv7 holds milliseconds and then 12 bits that sort."""
    finer = (now % 1000 << 2) + entropy[1] % 4
    return _uuid(now // 1000, finer.to_bytes(2, "big") + entropy[2:], version=7)


def last_instant_of(id_: JobId | FlowId) -> Instant:
    """The last instant of the millisecond in an id. A list continues there after a job that was
    deleted. [J11]"""
    return Instant(_milliseconds(id_) * 1000 + 999)


DERIVED_VERSION = "8"
"""The version of UUIDs that are derived from another job's; no other id has it."""


def derived_job_id(origin: JobId, *, purpose: str) -> JobId:
    """The id of a job that follows from another: the same origin and purpose give the same id.

    That makes a repeated redrive, or a compensation decided twice, one job. [T27] [M1]
    """
    digest = hashlib.sha256(f"{origin}\x00{purpose}".encode()).digest()
    return _uuid(_milliseconds(origin), digest, version=int(DERIVED_VERSION))


def follow_up_id(parent: JobId, *, kind: Kind, step: str) -> JobId:
    """The id of the job of this kind that an attempt of `parent` enqueues at this step, the same in
    every attempt. [D8]

    The NULs, which neither a kind nor a step can contain, keep the parts apart; the first word
    keeps the id apart from the ids of compensations and redrives, so that no caller can take their
    place.
    """
    return derived_job_id(parent, purpose=f"enqueue\x00{kind}\x00{step}")


def handler_flow_id(parent: JobId, *, step: str) -> FlowId:
    """The id of the flow that an attempt of `parent` makes at this step. [FL13]"""
    return FlowId(derived_job_id(parent, purpose=f"flow\x00{step}"))


def handler_member_id(parent: JobId, *, step: str, name: str) -> JobId:
    """The id of the job of this name in the flow that an attempt of `parent` makes at this step,
    the same in every attempt. [FL13]"""
    return derived_job_id(parent, purpose=f"flow\x00{step}\x00{name}")


def replacement_id(replaced: JobId) -> JobId:
    """The id of the job that replaces this one when its flow is redriven. It depends on nothing
    else, so that a job is replaced once, however often the flow is redriven. [FL10]"""
    return derived_job_id(replaced, purpose="replace")


def occurrence_job_id(namespace: Namespace, schedule: ScheduleName, nominal: Instant) -> JobId:
    """The id of the job that an occurrence of a schedule makes, in whatever process. [SC1] The ids
    of a schedule's jobs sort by their nominal times."""
    purpose = f"schedule\x00{namespace}\x00{schedule}\x00{nominal}"
    digest = hashlib.sha256(purpose.encode()).digest()
    return _uuid(nominal // 1000, digest, version=int(DERIVED_VERSION))


def new_lease_id(epoch: Epoch, entropy: bytes) -> LeaseId:
    """A lease id: the epoch it was granted in, then 128 random bits that cannot be guessed."""
    return LeaseId(f"{epoch}-{entropy.hex()}")


def epoch_of(lease_id: LeaseId) -> Epoch:
    """The epoch a lease id carries."""
    return Epoch(int(lease_id.partition("-")[0]))


def short_lease(lease_id: LeaseId | str | None) -> str:
    """The start of a lease id, for logs and messages. A reader of the whole id could report under
    it."""
    return "none" if lease_id is None else lease_id[:10] + "…"


def fence(epoch: Epoch, attempt: int) -> int:
    """The fencing token: rises with every attempt, also across a failover. [A6]"""
    return (epoch << 32) + attempt


def correlated_by(correlation_id: str | None, job_id: JobId) -> str:
    """The correlation id of a job as others see it: the one it was given, or its own id. [OB26]"""
    return job_id if correlation_id is None else correlation_id


def job_correlated_by(correlation_id: str | None) -> JobId | None:
    """The job that others see under this correlation id if it was given none. [OB26]"""
    is_id = correlation_id is not None and JOB_ID_PATTERN.fullmatch(correlation_id) is not None
    return JobId(str(correlation_id)) if is_id else None


def given_correlation_id(rendered: str | None, job_id: JobId) -> str | None:
    """The correlation id to store, from one that a reader got. A job's own id as its correlation id
    is stored as none: to readers the two are the same."""
    return None if rendered == job_id else rendered


_TRACEPARENT = re.compile(r"(?!ff)[0-9a-f]{2}-([0-9a-f]{32})-([0-9a-f]{16})-[0-9a-f]{2}")
_NO_TRACE, _NO_SPAN = "0" * 32, "0" * 16


def traceparent_of(trace_id: str | None) -> str | None:
    """The text if it is a W3C traceparent: a job's `trace_id` may be any label. [OB3]"""
    found = None if trace_id is None else _TRACEPARENT.fullmatch(trace_id)
    if found is None or found[1] == _NO_TRACE or found[2] == _NO_SPAN:
        return None
    return trace_id
