"""The process lane inside its child: which of its two threads reads what the supervisor says."""

import socket
import threading
import time
from collections.abc import Callable, Iterator
from typing import Any

import pytest

from tenure.clock import Boot, boot_now
from tenure.core.ids import JobId, Kind, QueueName
from tenure.core.instants import seconds
from tenure.core.validation import Limits
from tenure.handlers.context import Context
from tenure.handlers.registry import Registry, make_handler
from tenure.worker.child import main as child_main
from tenure.worker.child.asks import FrameSocket
from tenure.worker.child.execution import Execution
from tenure.worker.child.main import ProcessLane
from tenure.worker.frames import (
    Ask,
    AskAnswer,
    AskToStop,
    Ended,
    FrameReader,
    ProgressMade,
    Retire,
    Returned,
    Run,
    Stopped,
    ToChild,
    ToSupervisor,
    decode_to_supervisor,
    encode_frame,
)
from tenure.worker.session.messages import Outcome
from tests.support.waiting import PATIENCE_S, joined, until

MAX_BYTES = 1 << 20
NEVER_S = 3600.0
AT_ONCE_S = 0.01


def short() -> str:
    return "done"


def polite(ctx: Context) -> None:
    ctx.progress(1)  # so that the test knows that it runs
    while True:
        ctx.check()
        time.sleep(0.001)


def asking(ctx: Context) -> str:
    ctx.artifact("file", b"body")
    return "stored"


class WatchedLane(ProcessLane):
    """Remembers who read each job: the thread that runs them, or the listener."""

    def __init__(self, sock: socket.socket) -> None:
        registry = Registry()
        for function in (short, polite, asking):
            registry.add(make_handler(function))
        super().__init__(FrameSocket(sock, max_bytes=MAX_BYTES), registry, Limits())
        self._runner = threading.current_thread()
        self.read_by_runner: list[bool] = []

    def start(self, executions: list[Execution]) -> None:
        self.read_by_runner += [threading.current_thread() is self._runner] * len(executions)
        super().start(executions)

    def _receive(self) -> list[ToChild]:
        received = self.channel.receive()
        if not received:
            raise SystemExit  # a child would end here, and with it this process
        return received


class Supervisor:
    """The other end of the lane's socket. Its script runs in a thread of its own."""

    def __init__(self, sock: socket.socket) -> None:
        sock.settimeout(PATIENCE_S)
        self._sock = sock
        self._frames = FrameReader(max_bytes=MAX_BYTES)
        self._heard: list[ToSupervisor] = []
        self._runs = 0

    def say(self, message: ToChild) -> None:
        self._sock.sendall(encode_frame(message))

    def hear(self, kind: type[Any]) -> Any:
        while True:
            while not self._heard:
                data = self._sock.recv(MAX_BYTES)
                for frame in self._frames.feed(data):
                    self._heard += decode_to_supervisor(frame)
            message = self._heard.pop(0)
            if isinstance(message, kind):
                return message

    def begin(self, kind: str) -> int:
        self._runs += 1
        self.say(
            Run(
                run=self._runs,
                job_id=JobId("j"),
                kind=Kind(kind),
                queue=QueueName("q"),
                attempt=1,
                fence=1,
                correlation_id=None,
                checkpoint=None,
                payload=b"{}",
                until=Boot(boot_now() + seconds(600)),
            )
        )
        return self._runs

    def end(self) -> Outcome:
        ended: Ended = self.hear(Ended)
        assert ended.run == self._runs
        return ended.outcome


Script = Callable[[Supervisor, WatchedLane], None]


@pytest.fixture
def serve(monkeypatch: pytest.MonkeyPatch) -> Iterator[Callable[[Script, float], list[bool]]]:
    """Runs a lane in this thread until its supervisor's script is over; who read its jobs."""
    sockets: list[socket.socket] = []
    # It would change the signal handlers of this process.
    monkeypatch.setattr(child_main, "reset_process", lambda home: None)

    def run(script: Script, listen_after_s: float) -> list[bool]:
        monkeypatch.setattr(child_main, "LISTEN_AFTER_S", listen_after_s)
        ours, theirs = socket.socketpair()
        sockets.extend((ours, theirs))
        lane, supervisor = WatchedLane(theirs), Supervisor(ours)
        failures: list[BaseException] = []

        def play() -> None:
            try:
                script(supervisor, lane)
            except BaseException as failure:  # raised again in the test's own thread
                failures.append(failure)
            supervisor.say(Retire())

        threads = [threading.Thread(target=each, daemon=True) for each in (play, lane.listen)]
        for thread in threads:
            thread.start()
        lane.serve()
        joined(threads[0], "the script of the supervisor is over")
        if failures:
            raise failures[0]
        return lane.read_by_runner

    yield run
    for each in sockets:
        each.close()


Serve = Callable[[Script, float], list[bool]]


def test_the_thread_that_runs_short_jobs_reads_them_too(serve: Serve) -> None:
    def script(supervisor: Supervisor, _: WatchedLane) -> None:
        for _number in range(20):
            supervisor.begin("short")
            assert supervisor.end() == Returned(b'"done"')

    assert serve(script, NEVER_S) == [True] * 20


def test_while_a_handler_runs_the_listener_reads_and_leaves_after_the_next_job(
    serve: Serve,
) -> None:
    def script(supervisor: Supervisor, _: WatchedLane) -> None:
        run = supervisor.begin("polite")
        supervisor.hear(ProgressMade)
        supervisor.say(AskToStop(run, "enough"))
        assert supervisor.end() == Stopped()
        supervisor.begin("short")
        supervisor.end()
        supervisor.begin("short")
        supervisor.end()

    assert serve(script, AT_ONCE_S)[:2] == [True, False]


@pytest.mark.parametrize("listen_after_s", [NEVER_S, AT_ONCE_S])
def test_a_handler_that_asks_something_is_answered_at_once(
    serve: Serve, listen_after_s: float
) -> None:
    def script(supervisor: Supervisor, lane: WatchedLane) -> None:
        if listen_after_s == AT_ONCE_S:
            until(lambda: lane._is_listener_idle, "the listener sleeps")
        run = supervisor.begin("asking")
        ask = supervisor.hear(Ask)
        supervisor.say(AskAnswer(run, ask.id))
        assert supervisor.end() == Returned(b'"stored"')
        for _number in range(3):
            supervisor.begin("short")
            assert supervisor.end() == Returned(b'"done"')

    read_by_runner = serve(script, listen_after_s)

    assert read_by_runner[:2] == [True, False], "the answer came to the listener"
    if listen_after_s == NEVER_S:
        assert read_by_runner[2:] == [True, True]


def test_a_job_is_read_after_the_listener_went_to_sleep(serve: Serve) -> None:
    def script(supervisor: Supervisor, lane: WatchedLane) -> None:
        for _number in range(3):
            until(lambda: lane._is_listener_idle, "the listener sleeps")
            supervisor.begin("short")
            assert supervisor.end() == Returned(b'"done"')

    assert len(serve(script, AT_ONCE_S)) == 3
