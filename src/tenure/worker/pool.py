"""The pool: which child runs which attempt, and what becomes of both when one of them ends.

A place is an attempt's seat: first it waits for a child, then it is reserved, then it runs. The
rule for deaths: who dies by itself has failed; who was killed for a neighbour's sake is displaced.
"""

import logging
import selectors
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from typing import assert_never

from msgspec.structs import replace

from tenure.core.ids import JobId, LeaseId
from tenure.core.instants import seconds
from tenure.handlers.registry import Isolation
from tenure.telemetry import tracing
from tenure.worker.artifact_uploads import Left, Parts
from tenure.worker.children import Child
from tenure.worker.clock import NEVER, Boot
from tenure.worker.follow_ups import FollowUpRequest
from tenure.worker.keeper_client import Keeper
from tenure.worker.messages import (
    ArtifactAnswer,
    ArtifactEnd,
    ArtifactPart,
    AskToStop,
    Broken,
    CheckpointSaved,
    Ended,
    Event,
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
from tenure.worker.options import AttemptOutput, OutputLine, WorkerOptions
from tenure.worker.outcomes import Died, Displaced, Killed, Outcome, Returned, Stopped
from tenure.worker.output import BoundedOutput, Lines
from tenure.worker.stats import Stats

MAX_FAILED_STARTS = 3
FIRST_RESTART = seconds(0.2)
RETIRE_WITHIN = seconds(10)
EXIT_POLL = seconds(0.2)
EXIT_WITHIN = seconds(1)
LEAVE_WITHIN_S = 1.0
"""How long children that have nothing to do may take to end when their worker does."""
LOOK_AGAIN_S = 0.01
KEEPER_DELAY = seconds(0.1)
"""How much later than the supervisor the keeper kills. Less than a lease's margin."""
SHOWN_OUTPUT = 4000

FIRST_OUTPUT_AFTER = seconds(1)  # so that short jobs send theirs once, at the end
OUTPUT_INTERVAL = seconds(2)
OUTPUT_BYTES_PER_S = 8 * 1024
"""What a chatty job may cost its store: all of its 64 KiB every eight seconds."""

_log = logging.getLogger("tenure.worker")


class _Place:
    """An attempt's seat."""

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
        self.parts = Parts()
        self.is_staging = False  # an artifact of it is being stored
        self.is_enqueueing = False  # a follow-up of it is being stored
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
        stage: Callable[[Left], None] = lambda left: None,
        follow: Callable[[FollowUpRequest], None] = lambda asked: None,
    ) -> None:
        self._app = app
        self._stage = stage
        self._follow = follow
        self._lanes = lanes  # how many children of each lane are kept warm
        self._options = options
        self._environment = environment
        self._selector = selector
        self._clock = clock
        self._emit = emit
        self._stats = stats
        self._keeper: Keeper | None = None
        self._children: list[Child] = []
        self._places: dict[int, _Place] = {}
        self._output_due: dict[int, Boot] = {}  # runs with new output, and when to send it
        self._failed_starts = 0
        self._shown_failure: str | None = None
        self._restart_at = Boot(0)
        self._is_closing = False
        self._is_up = False
        self._next_at = NEVER

    def start(self) -> None:
        """Begin to warm up every lane."""
        self._keeper = Keeper(self._selector, self._clock)
        self.keep()

    @property
    def next_at(self) -> Boot:
        """When to call `keep` again."""
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
        """Find room; `Prepared` follows, now or when a child is up."""
        place = _Place(run, lane, self._options.output_bytes, lease_id)
        self._places[run] = place
        self._seat(place)
        self.keep()

    def run(self, frame: Run) -> None:
        """Run it in its reserved place, or wherever there is room if that child died."""
        place = self._places.get(frame.run)
        if place is not None:
            place.frame = frame
            self._seat(place)
            self.keep()

    def renew(self, renewed: LeaseRenewed) -> None:
        """Pass a renewal on, or keep it for the child that will have the attempt."""
        place = self._places.get(renewed.run)
        if place is None or place.frame is None:
            return
        place.frame = replace(place.frame, until=renewed.until)
        if place.is_sent and place.child is not None:
            place.child.send(renewed)
            self._set_deadline(place.child)

    def ask_to_stop(self, request: AskToStop) -> None:
        """Pass the request on, or keep it for the child that will have the attempt."""
        place = self._places.get(request.run)
        if place is None:
            return
        place.stop_request = request
        if place.is_sent and place.child is not None:
            place.child.send(request)

    def tell(self, message: LeaseLent | ArtifactAnswer | FollowUpAnswer) -> None:
        """Pass an answer on to the handler that asked."""
        place = self._places.get(message.run)
        if place is not None and place.is_sent and place.child is not None:
            place.is_staging &= not isinstance(message, ArtifactAnswer)
            place.is_enqueueing &= not isinstance(message, FollowUpAnswer)
            place.child.send(message)

    def kill(self, run: int) -> None:
        """End a handler by the means its lane has; `Finished` follows when it is gone."""
        place = self._places.get(run)
        if place is None:
            return
        child = place.child
        if child is None or not place.is_sent:
            self._leave(place, Killed())
            self._reseat(place.lane)
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
        takes no more work and goes when the others in it are done. A coroutine holds its loop."""
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
        than the supervisor does, who may have been late with an extension."""
        if self._keeper is None:
            return
        ends: list[Boot] = []
        for run in child.runs:
            place = self._places[run]
            end = child.doomed.get(run, place.frame.until if place.frame else None)
            if place.is_sent and end is not None:  # None: it leaked, and goes with the others
                ends.append(end)
        deadline = Boot(max(ends) + KEEPER_DELAY) if ends else None
        self._keeper.kill_at(child.pid, deadline)

    # --- seating -------------------------------------------------------------------------------

    def _seat(self, place: _Place) -> None:
        if place.child is None:
            place.child = self._free_child(place.lane)
            if place.child is None:
                return
            place.child.runs.add(place.run)
        if not place.is_announced:
            place.is_announced = True
            self._emit(Prepared(place.run))
        elif place.frame is not None and not place.is_sent:
            place.child.drain_output()
            place.is_sent = True
            place.child.jobs_begun += 1
            place.child.output.take()  # of imports and of threads between two jobs: nobody's
            place.child.send(place.frame)
            if place.stop_request is not None:
                place.child.send(place.stop_request)
            self._set_deadline(place.child)

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

    def _leave(self, place: _Place, outcome: Outcome) -> None:
        """The attempt has left its place, and the session may know."""
        del self._places[place.run]
        child = place.child
        if child is not None:
            child.runs.discard(place.run)
            child.doomed.pop(place.run, None)
            self._set_deadline(child)
        if place.is_sent:
            self._show(self._lines_of(place).end(), place)
            self._hand_over_output(place, is_last=True)
        self._output_due.pop(place.run, None)
        self._emit(Finished(place.run, outcome))

    # --- output --------------------------------------------------------------------------------

    def _output_of(self, place: _Place) -> BoundedOutput:
        assert place.child is not None
        return place.child.output if place.lane is Isolation.PROCESS else place.output

    def _lines_of(self, place: _Place) -> Lines:
        assert place.child is not None
        return place.child.lines if place.lane is Isolation.PROCESS else place.lines

    def _wrote(self, child: Child, data: bytes) -> None:
        """A child wrote to its own streams: of its only job, or between two, or of none of many."""
        is_alone = child.lane is Isolation.PROCESS
        sent = [self._places[run] for run in child.runs if is_alone and self._places[run].is_sent]
        place = sent[0] if sent else None
        self._show(child.lines.feed(data), place)
        if place is not None:
            self._has_output(place)

    def _said(self, place: _Place, text: bytes) -> None:
        place.output.write(text)
        self._show(place.lines.feed(text), place)
        self._has_output(place)

    def _show(self, lines: Sequence[str], place: _Place | None) -> None:
        if self._options.echo is None:
            return
        about = {} if place is None or place.frame is None else _ids(place.frame)
        for line in lines:
            self._options.echo(OutputLine(text=line, about=about))

    def _has_output(self, place: _Place) -> None:
        """Have it sent soon. The more there is, the less often: it is sent whole each time."""
        if not self._options.sends_output_early or place.run in self._output_due:
            return
        size_bytes = min(self._output_of(place).written_bytes, self._options.output_bytes)
        pause = max(OUTPUT_INTERVAL, seconds(size_bytes / OUTPUT_BYTES_PER_S))
        due = Boot(max(self._clock() + FIRST_OUTPUT_AFTER, place.sent_output_at + pause))
        self._output_due[place.run] = due
        self._next_at = min(self._next_at, due)

    def _send_due_output(self, now: Boot) -> None:
        for run in [run for run, due in self._output_due.items() if now >= due]:
            del self._output_due[run]
            place = self._places[run]
            place.sent_output_at = now
            self._hand_over_output(place, is_last=False)
        self._next_at = min(self._next_at, *self._output_due.values(), NEVER)

    def _hand_over_output(self, place: _Place, *, is_last: bool) -> None:
        assert place.frame is not None
        output = self._output_of(place)
        text, left_out = output.take() if is_last else output.look()
        sink = self._options.output_sink
        if not text or sink is None:
            return
        output_so_far = AttemptOutput(
            job_id=JobId(place.frame.job_id),
            attempt=place.frame.attempt,
            text=text,
            left_out_bytes=left_out,
            lease_id=place.lease_id,
            part=place.sent_parts,
            is_last=is_last,
        )
        place.sent_parts += 1
        try:
            with tracing.within(tracing.concerning([place.frame])):
                sink(output_so_far)
        except Exception:  # a sink must not cost a job; said in the log
            _log.exception("the output of job %s could not be kept", place.frame.job_id)

    # --- children ------------------------------------------------------------------------------

    def _turn(self, child: Child) -> None:
        """Something happened on a child's descriptors."""
        if child not in self._children:
            return
        messages, is_closed = child.receive()
        for message in messages:
            self._heard(child, message)
        if child.has_exited():
            self._bury(child)
        elif is_closed and not child.is_retiring:
            # Most likely it is dying and will be gone in a moment; else it is of no use.
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
                    self._places[message.run].parts.add(message)
            case ArtifactEnd():
                if message.run in child.runs:
                    self._left(self._places[message.run], message)
            case FollowUpWanted():
                if message.run in child.runs:
                    self._followed(self._places[message.run], message)
            case Printed():
                if message.run in child.runs:
                    self._said(self._places[message.run], message.text.encode())
            case LoopBlocked():
                self._stats.blocked_loops += 1
                took_s = message.for_us / 1e6
                below = {"below": message.stack[-SHOWN_OUTPUT:]}
                _log.warning("an event loop stood still for %.1f s", took_s, extra=below)
            case _:
                assert_never(message)

    def _left(self, place: _Place, end: ArtifactEnd) -> None:
        if place.frame is None or place.lease_id is None:
            return
        if place.is_staging:
            return  # a handler waits for each answer: this is something else that found the socket
        place.is_staging = True
        with tracing.within(tracing.concerning([place.frame])):
            self._stage(place.parts.whole(end, place.frame.job_id, place.lease_id))

    def _followed(self, place: _Place, wanted: FollowUpWanted) -> None:
        if place.frame is None or place.lease_id is None or place.is_enqueueing:
            return  # a handler waits for each answer: this is something else that found the socket
        place.is_enqueueing = True
        asked = FollowUpRequest(wanted=wanted, job_id=place.frame.job_id, lease_id=place.lease_id)
        with tracing.within(tracing.concerning([place.frame])):
            self._follow(asked)

    def _ready(self, child: Child) -> None:
        child.is_ready = True
        child.deadline = None
        self._failed_starts = 0
        for place in list(self._places.values()):
            if place.lane is child.lane and not place.is_sent:
                self._seat(place)

    def _ended(self, child: Child, message: Ended) -> None:
        place = self._places.get(message.run)
        if place is None or place.child is not child or not place.is_sent:
            return  # not an attempt of this child: user code may have found the socket
        child.drain_output()
        # What a handler raises while it is being killed is the kill's doing; a result is its own.
        was_stopped = message.run in child.doomed and not isinstance(message.outcome, Returned)
        self._leave(place, Killed() if was_stopped else message.outcome)
        rss_limit = self._options.child_rss_bytes
        is_worn = child.jobs_begun >= self._options.jobs_per_child
        if is_worn or (rss_limit is not None and message.rss_bytes > rss_limit):
            child.is_retiring = True
        if child.is_retiring:
            self._retire(child)
        else:
            self._reseat(child.lane)
        self.keep()

    def _reseat(self, lane: Isolation) -> None:
        for place in list(self._places.values()):
            if place.lane is lane and place.child is None:
                self._seat(place)

    def _retire(self, child: Child) -> None:
        if child.runs:
            leaked = {run for run, by in child.doomed.items() if by is None}
            if child.runs <= leaked:
                self._kill(child)
        elif child.deadline is None:
            self._stats.children_recycled += 1
            child.send(Retire())
            child.deadline = Boot(self._clock() + RETIRE_WITHIN)

    def _bury(self, child: Child) -> None:
        for message in child.receive()[0]:
            self._heard(child, message)
        if self._keeper is not None:
            self._keeper.forget(child.pid)
        how = child.bury()
        self._children.remove(child)
        if not child.is_ready:
            self._start_failed(child, how)
        elif not child.jobs_begun and not child.is_retiring:
            self._restart_at = Boot(self._clock() + FIRST_RESTART)  # no loop of idle deaths
        for run in list(child.runs):
            place = self._places[run]
            if not place.is_sent:
                place.child = None  # it never ran: another child takes it
                self._seat(place)
            elif run in child.doomed:
                self._leave(place, Killed())
            elif child.was_killed:
                self._leave(place, Displaced())
            elif child.is_sigkilled and self._is_over(place):
                self._leave(place, Stopped())  # by the keeper
            else:
                self._leave(place, Died(how))
        self.keep()

    def _is_over(self, place: _Place) -> bool:
        """Whether its lease has ended unrenewed."""
        return place.frame is not None and self._clock() >= place.frame.until

    def _start_failed(self, child: Child, how: str) -> None:
        if self._is_closing:
            return
        self._failed_starts += 1
        printed = child.output.take()[0].decode("utf-8", "replace")
        if printed != self._shown_failure:  # else it has been read already
            self._shown_failure = printed
            below = {"below": printed[-SHOWN_OUTPUT:]}
            _log.error("a child %s and could not start %s", how, self._app, extra=below)
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

    def keep(self) -> None:
        """Start what is missing, end what is overdue, and say when to look again."""
        now = self._clock()
        self._next_at = NEVER
        if self._keeper is not None:
            self._keeper.keep()
        for child in list(self._children):
            self._keep_child(child, now)
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
        waiting = sum(place.lane is lane and place.child is None for place in self._places.values())
        if lane is not Isolation.PROCESS:
            return 0 if alive else 1
        starting = sum(not child.is_ready for child in alive)
        return max(warm - len(alive), waiting - starting, 0)

    def _keep_child(self, child: Child, now: Boot) -> None:
        if child.was_killed or child.is_retiring:
            # Where the system has no descriptor for a process's end, look.
            self._next_at = min(self._next_at, Boot(now + EXIT_POLL))
        if child.was_killed or child.fault is not None:
            return
        if child.deadline is not None:
            if now >= child.deadline:
                child.fault = "did not answer its supervisor and was killed"
                child.kill()
            self._next_at = min(self._next_at, child.deadline)
        for run, by in list(child.doomed.items()):
            if by is not None and now >= by:
                self._overdue(child, run)
            elif by is not None:
                self._next_at = min(self._next_at, by)

    def look_for_exits(self) -> None:
        """Ask every child, for systems that do not tell."""
        for child in list(self._children):
            self._turn(child)

    def close(self) -> None:
        """Let idle children end by themselves, for a moment; kill the others, reap them all."""
        self._is_closing = True
        self._let_leave([child for child in self._children if child.is_ready and not child.runs])
        for child in self._children:
            child.kill()
        for child in list(self._children):
            self._bury(child)
        if self._keeper is not None:
            self._keeper.close()

    def _let_leave(self, idle: Sequence[Child]) -> None:
        """What libraries do at the end of a process, Tenure's own among them, wants to be done."""
        for child in idle:
            child.send(Retire())
        until = time.monotonic() + LEAVE_WITHIN_S
        while time.monotonic() < until and not all(child.has_exited() for child in idle):
            time.sleep(LOOK_AGAIN_S)


def _ids(frame: Run) -> dict[str, object]:
    """What a log line about this attempt carries."""
    names = ("job_id", "kind", "queue", "attempt", "correlation_id", "trace_id")
    return {name: getattr(frame, name) for name in names}
