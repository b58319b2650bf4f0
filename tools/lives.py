"""Lives: jobs brought into each status the way real ones get there, by driving the core.

Every function returns a fresh driver that stands at the named point of a job's life. Policies are
arguments, so that a test can ask for a smaller budget or another fate for lost attempts.
"""

from collections.abc import Callable

from msgspec.structs import replace

from tenure.core.ids import Kind, QueueName
from tenure.core.instants import seconds
from tenure.core.policy import Compensation, Policy
from tenure.core.vocabulary import CancelMode, JobStatus, OnLost
from tools.driver import OPERATOR, PERMANENT, Driver

HOLD = Policy(on_lost=OnLost.HOLD)
RECLAIM = Policy(on_lost=OnLost.RECLAIM)
UNDOABLE = Policy(
    compensation=Compensation(kind=Kind("refund"), queue=QueueName("refunds"), policy=Policy())
)
PAST_THE_LEASE_S = 60
PAST_THE_BACKOFF_S = 61


def waiting(policy: Policy | None = None) -> Driver:
    """Enqueued in a flow, waiting for another job."""
    driver = Driver(policy=policy)
    driver.do(driver.flow())
    return driver


def queued(policy: Policy | None = None) -> Driver:
    """Enqueued and ready."""
    driver = Driver(policy=policy)
    driver.do(driver.enqueue())
    return driver


def claimed(policy: Policy | None = None) -> Driver:
    """Granted a second after it was enqueued."""
    driver = queued(policy)
    driver.advance(1)
    driver.do(driver.claim())
    return driver


def running(policy: Policy | None = None) -> Driver:
    """Started a second after it was granted."""
    driver = claimed(policy)
    driver.advance(1)
    driver.do(driver.start())
    return driver


def cancelling(policy: Policy | None = None) -> Driver:
    """Running, and softly cancelled a second later; by default with 45 s to stop."""
    driver = running(policy or Policy(grace_us=seconds(15)))
    driver.advance(1)
    driver.do(driver.cancel())
    return driver


def held(policy: Policy = HOLD) -> Driver:
    """Lost by expiry and waiting for an operator."""
    driver = running(policy)
    driver.advance(PAST_THE_LEASE_S)
    driver.do(driver.sweep())
    return driver


def reclaimable(policy: Policy = RECLAIM) -> Driver:
    """Lost by expiry and ready for a reclaim."""
    driver = held(policy)
    driver.advance(PAST_THE_BACKOFF_S)
    return driver


def requeued(policy: Policy | None = None) -> Driver:
    """Lost by expiry, back in its queue, its backoff not over."""
    return held(policy or Policy())


def succeeded(policy: Policy | None = None) -> Driver:
    """Completed by its worker."""
    driver = running(policy)
    driver.advance(1)
    driver.do(driver.complete())
    return driver


def failed(policy: Policy | None = None) -> Driver:
    """Failed permanently."""
    driver = running(policy)
    driver.advance(1)
    driver.do(driver.fail(PERMANENT))
    return driver


def cancelled(policy: Policy | None = None) -> Driver:
    """Hard-cancelled while running."""
    driver = running(policy)
    driver.advance(1)
    driver.do(driver.cancel(CancelMode.HARD, actor=OPERATOR))
    return driver


def dead_lettered(policy: Policy | None = None) -> Driver:
    """Taken out of circulation by an operator while running."""
    driver = running(policy)
    driver.advance(1)
    driver.do(driver.dead_letter())
    return driver


def compensation(policy: Policy | None = None) -> Driver:
    """The queued compensation of a job that failed."""
    spec = UNDOABLE.compensation
    assert spec is not None
    original = failed(
        replace(UNDOABLE, compensation=replace(spec, policy=policy or spec.policy)),
    )
    (born,) = original.spawned
    return original.follow(born)


def running_compensation(policy: Policy | None = None) -> Driver:
    """A compensation at work."""
    driver = compensation(policy)
    driver.do(driver.claim())
    driver.do(driver.start())
    return driver


IN_STATUS: dict[JobStatus, Callable[[], Driver]] = {
    JobStatus.WAITING: waiting,
    JobStatus.QUEUED: queued,
    JobStatus.CLAIMED: claimed,
    JobStatus.RUNNING: running,
    JobStatus.STALLED: held,
    JobStatus.SUCCEEDED: succeeded,
    JobStatus.FAILED: failed,
    JobStatus.CANCELLED: cancelled,
    JobStatus.DEAD_LETTERED: dead_lettered,
}

SHORT = Policy(lease_us=seconds(60), timeout_us=seconds(45), start_within_us=seconds(45))
"""A policy whose time-outs come before the lease's expiry."""
