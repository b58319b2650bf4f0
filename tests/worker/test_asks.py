"""What a handler asks of its supervisor: one thing at a time, and the lease once."""

import threading
from collections.abc import Callable

from tenure.core.commands import JobSpec
from tenure.core.ids import Actor, JobId, Kind, QueueName
from tenure.handlers.calls import Call, Enqueued
from tenure.worker.child.asks import Asks
from tenure.worker.frames import Ask, Authority, BorrowLease, StoreArtifact, ToSupervisor
from tenure.worker.supervisor.requests import HandlerRequest
from tests.support.waiting import joined
from tests.worker.contexts import LEASE, PARENT, context_of

CALL: Call[object] = Call(
    JobSpec(kind=Kind("ship"), queue=QueueName("q"), payload=b"7"),
    JobId("0190a5d4-7c3e-7000-8000-000000000003"),
)
MADE = Enqueued(id=JobId("0190a5d4-7c3e-7000-8000-000000000004"), is_new=True)


def in_threads(*calls: Callable[[], object]) -> list[object]:
    """What the calls return, each in a thread of its own."""
    results: dict[int, object] = {}

    def run(number: int, call: Callable[[], object]) -> None:
        results[number] = call()

    threads = [threading.Thread(target=run, args=each) for each in enumerate(calls)]
    for thread in threads:
        thread.start()
    for thread in threads:
        joined(thread, "the handler's thread has its answer")
    return [results[number] for number in range(len(calls))]


def test_threads_of_a_handler_ask_one_after_the_other() -> None:
    waiting: list[HandlerRequest] = []
    at_once: list[int] = []

    def supervisor(request: HandlerRequest) -> None:
        waiting.append(request)
        at_once.append(len(waiting))
        threading.Timer(0.01, answer).start()

    def answer() -> None:
        request = waiting.pop()
        is_artifact = isinstance(request.ask.what, StoreArtifact)
        context.receive(request.answer(None if is_artifact else MADE))

    context = context_of(supervisor)

    made, _, _ = in_threads(
        lambda: context.enqueue(CALL),
        lambda: context.artifact("a", b"1"),
        lambda: context.artifact("b", b"2"),
    )

    assert made == MADE
    assert at_once == [1, 1, 1]


def test_the_lease_is_asked_for_once_however_many_threads_need_it() -> None:
    authority = Authority(LEASE, Actor("worker:w"))
    asked: list[Ask] = []

    def send(message: ToSupervisor) -> None:
        assert isinstance(message, Ask)
        asked.append(message)
        asks.answered(HandlerRequest(message, PARENT, LEASE).answer(authority))

    asks = Asks(1, send, lambda: True)

    assert in_threads(asks.authority, asks.authority) == [authority, authority]
    assert [each.what for each in asked] == [BorrowLease()]
