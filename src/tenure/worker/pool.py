"""The pool: which child runs which attempt, and what becomes of both when one of them ends.

An attempt has a slot: first it waits for a child, then it has one reserved, then it runs there. An
attempt whose process dies by itself has failed; one whose process was killed because of another
attempt in it is displaced, and costs its job nothing.
"""

import logging
import selectors
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from typing import assert_never

from msgspec.structs import replace

from tenure.clock import NEVER, Boot
from tenure.core.ids import JobId, LeaseId
from tenure.core.instants import seconds
from tenure.handlers.registry import Isolation
from tenure.telemetry import tracing
from tenure.telemetry.counts import Counts
from tenure.worker.artifact_uploads import ArtifactParts, ReceivedArtifact
from tenure.worker.children import Child
from tenure.worker.follow_ups import FollowUpRequest
from tenure.worker.keeper_client import KeeperClient
from tenure.worker.messages import (
    ArtifactAnswer,
    ArtifactEnd,
    ArtifactPart,
    AskToStop,
    Broken,
    CheckpointSaved,
    Ended,
    Event,
    EventsCounted,
    Finished,
    FollowUpAnswer,
    FollowUpWanted,
    LeaseLent,
    LeaseLost,
    LeaseRenewed,
    LeaseWanted,
    LoopBlocked,
    Prepared,
    Printed,
    ProgressMade,
    Ready,
    Retire,
    Run,
    SelfCompleted,
    Setup,
    ToSupervisor,
)
from tenure.worker.options import CapturedOutput, OutputLine, WorkerOptions
from tenure.worker.outcomes import Died, Displaced, Killed, Outcome, Returned, Stopped
from tenure.worker.output import BoundedOutput, Lines
from tenure.worker.stats import Stats

MAX_FAILED_STARTS = 3
FIRST_RESTART = seconds(0.2)
RETIRE_WITHIN = seconds(10)
EXIT_POLL = seconds(0.2)
EXIT_WITHIN = seconds(1)
EXIT_ALONE_WITHIN_S = 1.0
"""How long children that have nothing to do may take to end when their worker does."""
EXIT_POLL_S = 0.01
KEEPER_DELAY = seconds(0.1)
"""How much later than the supervisor the keeper kills. Less than a lease's margin."""
SHOWN_OUTPUT = 4000

FIRST_OUTPUT_AFTER = seconds(1)  # so that short jobs send theirs once, at the end
OUTPUT_INTERVAL = seconds(2)
OUTPUT_BYTES_PER_S = 8 * 1024
"""What a chatty job may cost its store: all of its 64 KiB every eight seconds."""

_log = logging.getLogger("tenure.worker")


class _Slot:
    """What the pool knows of one attempt."""

    def __init__(
        self, run: int, lane: Isolation, output_bytes: int, lease_id: LeaseId | None
    ) -> None:
        self.run = run
        self.lane = lane
        self.lease_id = lease_id
        self.child: Child | None = None
        self.frame: Run | None = None
        self.stop_request: AskToStop | None = None
        self.is_announced = False
        self.is_sent = False
        self.parts = ArtifactParts()
        self.is_storing_artifact = False
        self.is_enqueueing = False  # a follow-up
        self.output = BoundedOutput(output_bytes)  # of shared children; others use their own
        self.lines = Lines()
        self.sent_parts = 0  # of its output
        self.sent_output_at = Boot(0)


class Pool:
    """Every child of one supervisor."""

    def __init__(
        self,
        app: str,
        lanes: Mapping[Isolation, int],
        options: WorkerOptions,
        *,
        environment: Mapping[str, str],
        selector: selectors.BaseSelector,
        clock: Callable[[], Boot],
        emit: Callable[[Event], None],
        stats: Stats,
        counts: Counts | None = None,
        store_artifact: Callable[[ReceivedArtifact], None] = lambda artifact: None,
        enqueue_follow_up: Callable[[FollowUpRequest], None] = lambda request: None,
    ) -> None:
        self._app = app
        self._store_artifact = store_artifact
        self._enqueue_follow_up = enqueue_follow_up
        self._lanes = lanes  # how many children of each lane are kept warm
        self._options = options
        self._environment = environment
        self._selector = selector
        self._clock = clock
        self._emit = emit
        self._stats = stats
        self._counts = counts
        self._keeper: KeeperClient | None = None
        self._children: list[Child] = []
        self._slots: dict[int, _Slot] = {}
        self._output_due: dict[int, Boot] = {}  # runs with new output, and when to send it
        self._failed_starts = 0
        self._shown_failure: str | None = None
        self._restart_at = Boot(0)
        self._is_closing = False
        self._is_up = False
        self._next_at = NEVER

    def start(self) -> None:
        """Begin to warm up every lane."""
        self._keeper = KeeperClient(self._selector, self._clock)
        self.maintain()

    @property
    def next_at(self) -> Boot:
        """When to call `maintain` again."""
        return self._next_at if self._keeper is None else min(self._next_at, self._keeper.next_at)

    @property
    def is_up(self) -> bool:
        """Whether every lane has had a child that imported the application."""
        if not self._is_up:
            ready = {child.lane for child in self._children if child.is_ready}
            self._is_up = ready >= set(self._lanes)
        return self._is_up

    # --- what the session wants ----------------------------------------------------------------

    def prepare(self, run: int, lane: Isolation, lease_id: LeaseId | None = None) -> None:
        """Reserve a child; `Prepared` follows, now or when one is ready."""
        slot = _Slot(run, lane, self._options.output_bytes, lease_id)
        self._slots[run] = slot
        self._assign(slot)
        self.maintain()

    def run(self, frame: Run) -> None:
        """Run it in its reserved child, or in another one if that died."""
        slot = self._slots.get(frame.run)
        if slot is not None:
            slot.frame = frame
            self._assign(slot)
            self.maintain()

    def renew(self, renewed: LeaseRenewed) -> None:
        """Pass a renewal on, or keep it for the child that will run the attempt."""
        slot = self._slots.get(renewed.run)
        if slot is None or slot.frame is None:
            return
        slot.frame = replace(slot.frame, until=renewed.until)
        if slot.is_sent and slot.child is not None:
            slot.child.send(renewed)
            self._set_deadline(slot.child)

    def ask_to_stop(self, request: AskToStop) -> None:
        """Pass the request on, or keep it for the child that will run the attempt."""
        slot = self._slots.get(request.run)
        if slot is None:
            return
        slot.stop_request = request
        if slot.is_sent and slot.child is not None:
            slot.child.send(request)

    def tell(self, message: LeaseLent | ArtifactAnswer | FollowUpAnswer) -> None:
        """Pass an answer on to the handler that asked."""
        slot = self._slots.get(message.run)
        if slot is not None and slot.is_sent and slot.child is not None:
            slot.is_storing_artifact &= not isinstance(message, ArtifactAnswer)
            slot.is_enqueueing &= not isinstance(message, FollowUpAnswer)
            slot.child.send(message)

    def kill(self, run: int) -> None:
        """End a handler as its lane allows; `Finished` follows when it is gone."""
        slot = self._slots.get(run)
        if slot is None:
            return
        child = slot.child
        if child is None or not slot.is_sent:
            self._finish(slot, Killed())
            self._assign_waiting(slot.lane)
            return
        match child.lane:
            case Isolation.PROCESS:
                child.doomed[run] = None
                self._kill(child)
            case Isolation.ASYNC | Isolation.THREAD:
                by = Boot(self._clock() + self._options.stubborn_us)
                child.doomed[run] = by
                child.send(LeaseLost(run))
                self._next_at = min(self._next_at, by)
            case _:
                assert_never(child.lane)
        self._set_deadline(child)

    def _overdue(self, child: Child, run: int) -> None:
        """It did not stop in time. A thread cannot be killed alone, and need not be: its process
        takes no more work and ends when the others in it are done. A coroutine blocks its loop."""
        if child.lane is Isolation.THREAD:
            self._stats.leaked += 1
            child.doomed[run] = None
            child.is_retiring = True
            self._set_deadline(child)
            self._retire(child)
        else:
            self._kill(child)

    def _kill(self, child: Child) -> None:
        child.was_killed = True
        child.kill()

    def _set_deadline(self, child: Child) -> None:
        """Tell the keeper when the last run of a child has to be over. It waits a moment longer
        than the supervisor does, which may be late with a renewal."""
        if self._keeper is None:
            return
        ends: list[Boot] = []
        for run in child.runs:
            slot = self._slots[run]
            end = child.doomed.get(run, slot.frame.until if slot.frame else None)
            if slot.is_sent and end is not None:  # None: it leaked, and ends with the others
                ends.append(end)
        deadline = Boot(max(ends) + KEEPER_DELAY) if ends else None
        self._keeper.kill_at(child.pid, deadline)

    # --- assigning ------------------------------------------------------------------------------

    def _assign(self, slot: _Slot) -> None:
        if slot.child is None:
            slot.child = self._free_child(slot.lane)
            if slot.child is None:
                return
            slot.child.runs.add(slot.run)
        if not slot.is_announced:
            slot.is_announced = True
            self._emit(Prepared(slot.run))
        elif slot.frame is not None and not slot.is_sent:
            slot.child.drain_output()
            slot.is_sent = True
            slot.child.jobs_begun += 1
            slot.child.output.take()  # of imports, or of threads between two jobs
            slot.child.send(slot.frame)
            if slot.stop_request is not None:
                slot.child.send(slot.stop_request)
            self._set_deadline(slot.child)

    def _free_child(self, lane: Isolation) -> Child | None:
        for child in self._children:
            usable = child.lane is lane and child.is_ready and not child.is_retiring
            if (
                usable
                and not child.was_killed
                and (lane is not Isolation.PROCESS or not child.runs)
            ):
                return child
        return None

    def _finish(self, slot: _Slot, outcome: Outcome) -> None:
        """Free the slot and tell the session how the attempt ended."""
        del self._slots[slot.run]
        child = slot.child
        if child is not None:
            child.runs.discard(slot.run)
            child.doomed.pop(slot.run, None)
            self._set_deadline(child)
        if slot.is_sent:
            self._echo(self._lines_of(slot).end(), slot)
            self._send_output(slot, is_last=True)
        self._output_due.pop(slot.run, None)
        self._emit(Finished(slot.run, outcome))

    # --- output --------------------------------------------------------------------------------

    def _output_of(self, slot: _Slot) -> BoundedOutput:
        assert slot.child is not None
        return slot.child.output if slot.lane is Isolation.PROCESS else slot.output

    def _lines_of(self, slot: _Slot) -> Lines:
        assert slot.child is not None
        return slot.child.lines if slot.lane is Isolation.PROCESS else slot.lines

    def _wrote(self, child: Child, data: bytes) -> None:
        """A child wrote to its streams. Only a process child's output belongs to one attempt."""
        is_alone = child.lane is Isolation.PROCESS
        sent = [self._slots[run] for run in child.runs if is_alone and self._slots[run].is_sent]
        slot = sent[0] if sent else None
        self._echo(child.lines.feed(data), slot)
        if slot is not None:
            self._schedule_output(slot)

    def _printed(self, slot: _Slot, text: bytes) -> None:
        slot.output.write(text)
        self._echo(slot.lines.feed(text), slot)
        self._schedule_output(slot)

    def _echo(self, lines: Sequence[str], slot: _Slot | None) -> None:
        if self._options.echo is None:
            return
        about = {} if slot is None or slot.frame is None else _ids(slot.frame)
        for line in lines:
            self._options.echo(OutputLine(text=line, about=about))

    def _schedule_output(self, slot: _Slot) -> None:
        """Send its output soon. The more there is, the less often: all of it is sent each time."""
        if not self._options.sends_output_early or slot.run in self._output_due:
            return
        size_bytes = min(self._output_of(slot).written_bytes, self._options.output_bytes)
        pause = max(OUTPUT_INTERVAL, seconds(size_bytes / OUTPUT_BYTES_PER_S))
        due = Boot(max(self._clock() + FIRST_OUTPUT_AFTER, slot.sent_output_at + pause))
        self._output_due[slot.run] = due
        self._next_at = min(self._next_at, due)

    def _send_due_output(self, now: Boot) -> None:
        for run in [run for run, due in self._output_due.items() if now >= due]:
            del self._output_due[run]
            slot = self._slots[run]
            slot.sent_output_at = now
            self._send_output(slot, is_last=False)
        self._next_at = min(self._next_at, *self._output_due.values(), NEVER)

    def _send_output(self, slot: _Slot, *, is_last: bool) -> None:
        assert slot.frame is not None
        output = self._output_of(slot)
        text, left_out = output.take() if is_last else output.peek()
        sink = self._options.output_sink
        if not text or sink is None:
            return
        output_so_far = CapturedOutput(
            job_id=JobId(slot.frame.job_id),
            attempt=slot.frame.attempt,
            text=text,
            left_out_bytes=left_out,
            lease_id=slot.lease_id,
            part=slot.sent_parts,
            is_last=is_last,
        )
        slot.sent_parts += 1
        try:
            with tracing.use_trace(tracing.trace_of_jobs([slot.frame])):
                sink(output_so_far)
        except Exception:  # a sink must not cost a job; logged
            _log.exception("the output of job %s could not be stored", slot.frame.job_id)

    # --- children ------------------------------------------------------------------------------

    def _turn(self, child: Child) -> None:
        """Something happened on a child's descriptors."""
        if child not in self._children:
            return
        messages, is_closed = child.receive()
        for message in messages:
            self._heard(child, message)
        if child.has_exited():
            self._reap(child)
        elif is_closed and not child.is_retiring:
            # Most likely it is about to exit; else it is broken, and killed soon.
            child.is_retiring = True
            child.deadline = Boot(self._clock() + EXIT_WITHIN)
            self._next_at = min(self._next_at, Boot(self._clock() + EXIT_POLL))

    def _heard(self, child: Child, message: ToSupervisor) -> None:
        match message:
            case Ready():
                self._ready(child)
            case Ended():
                self._ended(child, message)
            case CheckpointSaved() | ProgressMade() | LeaseWanted() | SelfCompleted():
                if message.run in child.runs:
                    self._emit(message)
            case ArtifactPart():
                if message.run in child.runs:
                    self._slots[message.run].parts.add(message)
            case ArtifactEnd():
                if message.run in child.runs:
                    self._artifact_ended(self._slots[message.run], message)
            case FollowUpWanted():
                if message.run in child.runs:
                    self._follow_up_wanted(self._slots[message.run], message)
            case Printed():
                if message.run in child.runs:
                    self._printed(self._slots[message.run], message.text.encode())
            case LoopBlocked():
                self._stats.blocked_loops += 1
                took_s = message.for_us / 1e6
                below = {"below": message.stack[-SHOWN_OUTPUT:]}
                _log.warning("a handler blocked the event loop for %.1f s", took_s, extra=below)
            case EventsCounted():
                if self._counts is not None:
                    self._counts.add(message.counts)
            case _:
                assert_never(message)

    def _artifact_ended(self, slot: _Slot, end: ArtifactEnd) -> None:
        if slot.frame is None or slot.lease_id is None:
            return
        if slot.is_storing_artifact:
            return  # a handler waits for each answer: other user code wrote to the socket
        slot.is_storing_artifact = True
        with tracing.use_trace(tracing.trace_of_jobs([slot.frame])):
            self._store_artifact(slot.parts.whole(end, slot.frame.job_id, slot.lease_id))

    def _follow_up_wanted(self, slot: _Slot, wanted: FollowUpWanted) -> None:
        if slot.frame is None or slot.lease_id is None or slot.is_enqueueing:
            return  # a handler waits for each answer: other user code wrote to the socket
        slot.is_enqueueing = True
        request = FollowUpRequest(wanted=wanted, job_id=slot.frame.job_id, lease_id=slot.lease_id)
        with tracing.use_trace(tracing.trace_of_jobs([slot.frame])):
            self._enqueue_follow_up(request)

    def _ready(self, child: Child) -> None:
        child.is_ready = True
        child.deadline = None
        self._failed_starts = 0
        for slot in list(self._slots.values()):
            if slot.lane is child.lane and not slot.is_sent:
                self._assign(slot)

    def _ended(self, child: Child, message: Ended) -> None:
        slot = self._slots.get(message.run)
        if slot is None or slot.child is not child or not slot.is_sent:
            return  # not an attempt of this child: user code wrote to the socket
        child.drain_output()
        # What a handler raises while it is being stopped comes from the stop; a result counts.
        was_stopped = message.run in child.doomed and not isinstance(message.outcome, Returned)
        self._finish(slot, Killed() if was_stopped else message.outcome)
        rss_limit = self._options.child_rss_bytes
        is_worn = child.jobs_begun >= self._options.jobs_per_child
        if is_worn or (rss_limit is not None and message.rss_bytes > rss_limit):
            child.is_retiring = True
        if child.is_retiring:
            self._retire(child)
        else:
            self._assign_waiting(child.lane)
        self.maintain()

    def _assign_waiting(self, lane: Isolation) -> None:
        for slot in list(self._slots.values()):
            if slot.lane is lane and slot.child is None:
                self._assign(slot)

    def _retire(self, child: Child) -> None:
        if child.runs:
            leaked = {run for run, by in child.doomed.items() if by is None}
            if child.runs <= leaked:
                self._kill(child)
        elif child.deadline is None:
            self._stats.children_recycled += 1
            child.send(Retire())
            child.deadline = Boot(self._clock() + RETIRE_WITHIN)

    def _reap(self, child: Child) -> None:
        for message in child.receive()[0]:
            self._heard(child, message)
        if self._keeper is not None:
            self._keeper.forget(child.pid)
        how = child.reap()
        self._children.remove(child)
        if not child.is_ready:
            self._start_failed(child, how)
        elif not child.jobs_begun and not child.is_retiring:
            self._restart_at = Boot(
                self._clock() + FIRST_RESTART
            )  # so that idle deaths do not loop
        for run in list(child.runs):
            slot = self._slots[run]
            if not slot.is_sent:
                slot.child = None  # it never ran: another child takes it
                self._assign(slot)
            elif run in child.doomed:
                self._finish(slot, Killed())
            elif child.was_killed:
                self._finish(slot, Displaced())
            elif child.is_sigkilled and self._has_lease_ended(slot):
                self._finish(slot, Stopped())  # by the keeper
            else:
                self._finish(slot, Died(how))
        self.maintain()

    def _has_lease_ended(self, slot: _Slot) -> bool:
        """Whether its lease has ended unrenewed."""
        return slot.frame is not None and self._clock() >= slot.frame.until

    def _start_failed(self, child: Child, how: str) -> None:
        if self._is_closing:
            return
        self._failed_starts += 1
        printed = child.output.take()[0].decode("utf-8", "replace")
        if printed != self._shown_failure:  # else the log has it already
            self._shown_failure = printed
            below = {"below": printed[-SHOWN_OUTPUT:]}
            _log.error("a child could not start %s: it %s", self._app, how, extra=below)
        self._restart_at = Boot(self._clock() + FIRST_RESTART * 2**self._failed_starts)
        if self._failed_starts >= MAX_FAILED_STARTS:
            self._emit(Broken(f"children cannot start {self._app}; the last one {how}"))

    def _spawn(self, lane: Isolation) -> None:
        limits = self._options.limits
        setup = Setup(
            app=self._app,
            lane=lane,
            path=tuple(sys.path),
            body_bytes=limits.body_bytes,
            depth=limits.depth,
            memory_bytes=self._options.child_memory_bytes,
        )
        child = Child(
            setup,
            environment=self._environment,
            output_bytes=self._options.output_bytes,
            selector=self._selector,
            turn=self._turn,
            wrote=self._wrote,
        )
        if self._keeper is not None:
            self._keeper.watch(child.pid)
        child.deadline = Boot(self._clock() + self._options.child_start_us)
        self._children.append(child)
        self._stats.children_started += 1

    # --- time ----------------------------------------------------------------------------------

    def maintain(self) -> None:
        """Start missing children, end overdue ones, send output; then set `next_at`."""
        now = self._clock()
        self._next_at = NEVER
        if self._keeper is not None:
            self._keeper.restart_if_due()
        for child in list(self._children):
            self._maintain_child(child, now)
        self._send_due_output(now)
        if self._is_closing:
            return
        if now < self._restart_at:
            self._next_at = min(self._next_at, self._restart_at)
            return
        for lane, warm in self._lanes.items():
            for _ in range(self._missing(lane, warm)):
                self._spawn(lane)

    def _missing(self, lane: Isolation, warm: int) -> int:
        of_lane = [c for c in self._children if c.lane is lane and not c.is_retiring]
        alive = [child for child in of_lane if not child.was_killed]
        waiting = sum(slot.lane is lane and slot.child is None for slot in self._slots.values())
        if lane is not Isolation.PROCESS:
            return 0 if alive else 1
        starting = sum(not child.is_ready for child in alive)
        return max(warm - len(alive), waiting - starting, 0)

    def _maintain_child(self, child: Child, now: Boot) -> None:
        if child.was_killed or child.is_retiring:
            # For systems without pidfd: poll for its exit.
            self._next_at = min(self._next_at, Boot(now + EXIT_POLL))
        if child.was_killed or child.fault is not None:
            return
        if child.deadline is not None:
            if now >= child.deadline:
                child.fault = "did not respond to its supervisor and was killed"
                child.kill()
            self._next_at = min(self._next_at, child.deadline)
        for run, by in list(child.doomed.items()):
            if by is not None and now >= by:
                self._overdue(child, run)
            elif by is not None:
                self._next_at = min(self._next_at, by)

    def poll_exits(self) -> None:
        """Poll every child, for systems without pidfd."""
        for child in list(self._children):
            self._turn(child)

    def close(self) -> None:
        """Let idle children exit by themselves, for a moment; kill the others, reap them all."""
        self._is_closing = True
        self._let_exit([child for child in self._children if child.is_ready and not child.runs])
        for child in self._children:
            child.kill()
        for child in list(self._children):
            self._reap(child)
        if self._keeper is not None:
            self._keeper.close()

    def _let_exit(self, idle: Sequence[Child]) -> None:
        """So that exit handlers of libraries, and Tenure's own, run."""
        for child in idle:
            child.send(Retire())
        until = time.monotonic() + EXIT_ALONE_WITHIN_S
        while time.monotonic() < until and not all(child.has_exited() for child in idle):
            time.sleep(EXIT_POLL_S)


def _ids(frame: Run) -> dict[str, object]:
    """What a log line about this attempt carries."""
    names = ("job_id", "kind", "queue", "attempt", "trace_id")
    ids = {name: getattr(frame, name) for name in names}
    return ids | {"correlation_id": frame.correlated_by}
