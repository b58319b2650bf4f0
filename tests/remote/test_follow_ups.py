"""What a handler hears of its follow-ups when its worker has a limited token."""

from collections.abc import Iterator

import pytest

from tenure.core.commands import JobSpec
from tenure.core.ids import DEFAULT_NAMESPACE, JobId, QueueName
from tenure.core.job import Job
from tenure.core.vocabulary import Role
from tenure.errors import PermanentError
from tenure.handlers.calls import Call, Enqueued
from tenure.remote.coordinator import RemoteCoordinator
from tenure.worker.supervisor.requests import HandlerRequest, HandlerRequests
from tenure_conformance.harness import KIND, QUEUE
from tenure_conformance.spec import spec
from tenure_conformance.store.test_follow_ups import follow_up
from tests.remote.over_http import RemoteKit
from tests.remote.serving import ThreadedServer, connect, new_token
from tests.worker.contexts import context_of

ELSEWHERE = QueueName("elsewhere")
UNUSED_ID = JobId("0190a5d4-7c3e-7000-8000-000000000003")


@pytest.fixture
def parent(kit: RemoteKit) -> Job:
    """A job whose handler runs."""
    return kit.running_job()


@pytest.fixture
def limited(kit: RemoteKit, parent: Job, server: ThreadedServer) -> Iterator[RemoteCoordinator]:
    """The coordinator as the worker of `parent` reaches it, with a token for one queue."""
    assert parent.principal is not None
    name = parent.principal.partition(":")[2]
    coordinator = connect(server.url, new_token(kit.store, Role.WORKER, name, queues=(QUEUE,)))
    yield coordinator
    coordinator.close()


def enqueue(parent: Job, worker: RemoteCoordinator, queue: QueueName) -> Enqueued:
    """`ctx.enqueue` in the handler of `parent`, through this worker."""

    assert parent.lease_id is not None
    assert parent.principal is not None
    requests = HandlerRequests(worker, actor=parent.principal, namespace=DEFAULT_NAMESPACE)

    def supervisor(request: HandlerRequest) -> None:
        requests.enqueue(request, handler.receive)

    handler = context_of(supervisor, job_id=parent.id, lease_id=parent.lease_id)
    call: Call[object] = Call(JobSpec(kind=KIND, queue=queue, payload=b"1"), UNUSED_ID)
    return handler.enqueue(call)


@spec("D9", "H41")
def test_a_follow_up_that_exists_in_a_hidden_queue_is_there_already(
    kit: RemoteKit, parent: Job, limited: RemoteCoordinator
) -> None:
    made = kit.reply(follow_up(kit, parent, queue=ELSEWHERE)).job
    assert made is not None

    assert enqueue(parent, limited, QUEUE) == Enqueued(made.id, is_new=False)


@spec("D12")
def test_a_follow_up_out_of_scope_fails_for_good_and_names_the_queue_and_the_token(
    parent: Job, limited: RemoteCoordinator
) -> None:
    assert parent.principal is not None
    name = parent.principal.partition(":")[2]

    with pytest.raises(PermanentError, match="is not for the queue elsewhere") as refused:
        enqueue(parent, limited, ELSEWHERE)

    assert f"the token {name} " in refused.value.message
    assert enqueue(parent, limited, QUEUE).is_new
