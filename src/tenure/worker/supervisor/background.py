"""What a worker does outside its loop: signs of life, lease polls, artifacts, flows and output.

One thread and a bounded queue, because the supervisor must never wait for a store. Nothing here
decides about a job, and nothing that fails here costs one: failures are logged.
"""

import logging
import threading
import time
from collections.abc import Callable
from contextvars import copy_context
from queue import Empty, Full, Queue

from msgspec.structs import replace

from tenure.core.artifacts import MAX_ARTIFACT_BYTES
from tenure.core.attempt_logs import MAX_ATTEMPT_LOG_BYTES, AttemptOutput
from tenure.core.ids import Actor, Namespace
from tenure.core.workers import WorkerProcess
from tenure.errors import TenureError
from tenure.ports import Coordination
from tenure.protocol.routes import MAX_FLOW_BYTES
from tenure.telemetry.logs import one_line
from tenure.worker.frames import ArtifactAnswer, FollowUpAnswer, ParentsAnswer
from tenure.worker.session.messages import LeasesPolled, PollLeases
from tenure.worker.supervisor.options import CapturedOutput
from tenure.worker.supervisor.requests import (
    ParentsRequest,
    ReceivedArtifact,
    ReceivedFlow,
    load_parents,
    make_flow,
    store_artifact,
)

MAX_WAITING = 500
MAX_WAITING_WITH_EARLY_OUTPUT = 20
MAX_WAITING_ARTIFACT_BYTES = 16 * MAX_ARTIFACT_BYTES
MAX_WAITING_FLOW_BYTES = 4 * MAX_FLOW_BYTES
CLOSE_WITHIN_S = 5.0
SIGN, POLL = "a sign of life", "a poll of its leases"
LEFT_OUT = "\n[... more left out ...]\n"

_log = logging.getLogger("tenure.worker")


class ByteBudget:
    """Limits how many bytes wait at a time. Any thread."""

    def __init__(self, size_bytes: int) -> None:
        self._left_bytes = size_bytes
        self._lock = threading.Lock()

    def take(self, size_bytes: int) -> bool:
        """Whether these bytes were within the limit."""
        with self._lock:
            fits = size_bytes <= self._left_bytes
            self._left_bytes -= size_bytes if fits else 0
            return fits

    def free(self, size_bytes: int) -> None:
        """These bytes wait no more."""
        with self._lock:
            self._left_bytes += size_bytes


class BackgroundTasks:
    """Runs tasks in order on one thread, and reports every ten seconds that the worker lives."""

    def __init__(
        self,
        coordination: Coordination,
        describe: Callable[[], WorkerProcess],
        *,
        actor: Actor,
        namespace: Namespace,
        drain: Callable[[], None],
        is_silence_reported: Callable[[], bool],
        interval_s: float,
    ) -> None:
        self._coordination = coordination
        self._describe = describe
        self._actor = actor
        self._namespace = namespace
        self._drain = drain
        self._is_silence_reported = is_silence_reported
        self._interval_s = interval_s
        self._sign_at = time.monotonic()
        self._is_draining = False
        self._tasks: Queue[tuple[str, Callable[[], object]]] = Queue(MAX_WAITING)
        self._artifact_bytes = ByteBudget(MAX_WAITING_ARTIFACT_BYTES)
        self._flow_bytes = ByteBudget(MAX_WAITING_FLOW_BYTES)
        self._closing = threading.Event()
        self._thread = threading.Thread(target=self._run, name="tenure-background", daemon=True)

    def start(self) -> None:
        """Start, with a sign of life."""
        self._thread.start()

    def submit(self, what: str, task: Callable[[], object]) -> bool:
        """Queue a task, in the caller's trace; False if too many are waiting. Never blocks."""
        context = copy_context()
        try:
            self._tasks.put_nowait((what, lambda: context.run(task)))
        except Full:
            _log.warning("%s was skipped: the store is too slow", what)
            return False
        return True

    def give_sign(self) -> None:
        """Give a sign of life now: the worker has something new to say of itself."""
        self.submit(SIGN, self._sign)

    def store_output(self, output: CapturedOutput) -> None:
        """Store what a handler printed. If many tasks wait, the output of running attempts is
        skipped: the store is slow, and more will come."""
        if not output.is_last and self._tasks.qsize() >= MAX_WAITING_WITH_EARLY_OUTPUT:
            return
        kept = storable(output, self._actor)
        if kept is not None:
            what = f"storing the output of job {output.job_id}"
            self.submit(what, lambda: self._coordination.store.artifacts.put_log(kept))

    def store_artifact(
        self, artifact: ReceivedArtifact, answer: Callable[[ArtifactAnswer], None]
    ) -> None:
        """Store an artifact, then answer."""

        size_bytes = len(artifact.body)

        def work() -> None:
            staged = ArtifactAnswer(artifact.run, artifact.number, failure="it could not be stored")
            try:
                staged = store_artifact(self._coordination, artifact, self._actor)
            finally:
                self._artifact_bytes.free(size_bytes)
                answer(staged)

        is_within_budget = self._artifact_bytes.take(size_bytes)
        if is_within_budget and self.submit(f"storing an artifact of job {artifact.job_id}", work):
            return
        if is_within_budget:
            self._artifact_bytes.free(size_bytes)
        answer(ArtifactAnswer(artifact.run, artifact.number, failure="the store is too slow"))

    def make_flow(self, flow: ReceivedFlow, answer: Callable[[FollowUpAnswer], None]) -> None:
        """Make a handler's flow, then answer."""
        size_bytes = len(flow.body)

        def work() -> None:
            made = FollowUpAnswer(flow.run, flow.number, failure="it could not be stored")
            try:
                made = make_flow(
                    self._coordination, flow, actor=self._actor, namespace=self._namespace
                )
            finally:
                self._flow_bytes.free(size_bytes)
                answer(made)

        is_within_budget = self._flow_bytes.take(size_bytes)
        if is_within_budget and self.submit(f"storing a flow of job {flow.job_id}", work):
            return
        if is_within_budget:
            self._flow_bytes.free(size_bytes)
        answer(FollowUpAnswer(flow.run, flow.number, failure="the store is too slow"))

    def load_parents(
        self, request: ParentsRequest, answer: Callable[[ParentsAnswer], None]
    ) -> None:
        """Read a page of the results of a job's parents, then answer."""
        run, number = request.wanted.run, request.wanted.number

        def work() -> None:
            found = ParentsAnswer(run, number, failure="the parents could not be read")
            try:
                found = load_parents(self._coordination, request, self._actor)
            finally:
                answer(found)

        if not self.submit(f"reading the parents of job {request.job_id}", work):
            answer(ParentsAnswer(run, number, failure="the store is too slow"))

    def poll_leases(self, poll: PollLeases, answer: Callable[[LeasesPolled], None]) -> None:
        """Ask which leases have news, then answer."""

        def work() -> None:
            found = LeasesPolled(None)
            try:
                news = self._coordination.store.jobs.peek_leases(
                    list(poll.leases.values()), self._actor
                )
                found = LeasesPolled(dict(zip(poll.leases, news, strict=True)))
            finally:
                answer(found)

        if not self.submit(POLL, work):
            answer(LeasesPolled(None))

    def close(self) -> None:
        """Finish what waits and give a last sign of life, within a few seconds; without it if
        nothing waits and the coordinator does not answer anyway."""
        self._closing.set()
        if self._is_silence_reported() and self._tasks.empty():
            self.submit("the end", lambda: None)  # wakes the thread
            return
        if self.submit("the last sign of life", self._say_goodbye):
            self._thread.join(CLOSE_WITHIN_S)

    # --- its thread ----------------------------------------------------------------------------

    def _run(self) -> None:
        while not (self._closing.is_set() and self._tasks.empty()):
            if time.monotonic() >= self._sign_at and not self._closing.is_set():
                self._sign_at = time.monotonic() + self._interval_s
                self._do(SIGN, self._sign)
            try:
                what, task = self._tasks.get(timeout=max(0.0, self._sign_at - time.monotonic()))
            except Empty:
                continue
            self._do(what, task)

    def _sign(self) -> None:
        if self._coordination.store.workers.see(self._describe()) and not self._is_draining:
            self._is_draining = True  # further signs of life get the same answer
            _log.warning("an operator asked this worker to drain")
            self._drain()

    def _say_goodbye(self) -> None:
        self._coordination.store.workers.see(replace(self._describe(), is_ending=True))

    def _do(self, what: str, task: Callable[[], object]) -> None:
        try:
            task()
        except TenureError as failure:
            # Signs of life and polls repeat: the session has logged already that nobody answers.
            is_news = what not in (SIGN, POLL) or not self._is_silence_reported()
            level = logging.WARNING if is_news else logging.DEBUG
            _log.log(level, "%s failed: %s", what, one_line(str(failure)))
        except Exception:  # a bug of ours must not end the thread; logged
            _log.exception("%s failed", what)


def storable(output: CapturedOutput, actor: Actor) -> AttemptOutput | None:
    """The output as text within the store's limits; None for an attempt without a lease."""
    if output.lease_id is None:
        return None
    text = output.text.decode("utf-8", "replace").replace("\x00", "\\x00")
    body = text.encode()
    left_out = output.left_out_bytes
    if len(body) > MAX_ATTEMPT_LOG_BYTES:
        half = (MAX_ATTEMPT_LOG_BYTES - len(LEFT_OUT)) // 2
        left_out += len(body) - 2 * half
        ends = [part.decode("utf-8", "ignore") for part in (body[:half], body[-half:])]
        text = LEFT_OUT.join(ends)
    return AttemptOutput(
        job_id=output.job_id,
        lease_id=output.lease_id,
        actor=actor,
        text=text,
        left_out_bytes=left_out,
        part=output.part,
    )
