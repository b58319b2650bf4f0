"""The pool: which child runs which attempt, and what becomes of both when one of them ends.

An attempt has a slot: it waits for a child, then it runs there. An attempt whose process dies by
itself has failed; one whose process was killed because of another attempt in it is displaced, and
costs its job nothing.

Nothing is walked through for a job: free children and waiting attempts are in queues, deadlines in
heaps. `flush` writes to the children and the keeper, once per round.
"""

import logging
import os
import selectors
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from typing import assert_never

import msgspec

from tenure.clock import NEVER, Boot
from tenure.core.artifacts import AttemptOutput
from tenure.core.instants import seconds
from tenure.core.verdicts import Grant
from tenure.handlers.registry import Isolation
from tenure.telemetry import tracing
from tenure.telemetry.log_lines import FailureLog
from tenure.worker import frames
from tenure.worker.session import messages
from tenure.worker.session.session import WorkerSession
from tenure.worker.session.timers import Timers
from tenure.worker.supervisor.children import Child, LaneChildren, RecentlyBegun
from tenure.worker.supervisor.keeper_client import KeeperClient
from tenure.worker.supervisor.options import WorkerOptions
from tenure.worker.supervisor.output import OutputRelay
from tenure.worker.supervisor.requests import HandlerRequest

MAX_FAILED_STARTS = 3
FIRST_RESTART = seconds(0.2)
MAX_RESTART_DOUBLINGS = 6
"""A child that the system refuses to start is tried again after 0.2 s, at last every 13 s."""
RETIRE_WITHIN = seconds(10)
EXIT_POLL = seconds(0.2)
EXIT_WITHIN = seconds(1)
EXIT_ALONE_WITHIN_S = 1.0
"""How long children that have nothing to do may take to end when their worker does."""
EXIT_POLL_S = 0.01
BEGUN_PER_CORE = 2
"""How many short attempts of the process lane start at once; others start a moment later."""
STARTING_PER_CORE = 2
"""How many process children start at a time: a start is work for a core. If all started at once,
they would be ready together at the end, and jobs in ready children would wait for a core."""
KEEPER_DELAY = seconds(0.1)
"""How much later than the supervisor the keeper kills. Less than a lease's margin."""
SHOWN_OUTPUT = 4000

_log = logging.getLogger("tenure.worker")


class _Slot:
    """What the pool knows of one attempt."""

    child: Child | None = None  # that has it
    stop_request: frames.AskToStop | None = None
    was_sent_before = False  # to a child that died before it called the handler
    asking: int | None = None  # the id of what its handler waits for

    def __init__(self, run: int, lane: Isolation, grant: Grant, until: Boot) -> None:
        self.run = run
        self.lane = lane
        self.grant = grant
        self.until = until  # the end of its lease


class ChildPool:
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
        session: WorkerSession,
        store_output: Callable[[AttemptOutput, bool], None],
        carry_out: Callable[[HandlerRequest], None] = lambda request: None,
    ) -> None:
        self._app = app
        self._carry_out = carry_out
        self._lanes = {lane: _children_of(lane, warm, options) for lane, warm in lanes.items()}
        self._options = options
        self._environment = environment
        self._selector = selector
        self._clock = clock
        self._session = session
        self._stats = session.stats
        self._keeper: KeeperClient | None = None
        self._children: dict[Child, None] = {}
        self._by_number: dict[int, Child] = {}
        self._slots: dict[int, _Slot] = {}
        self._child_timers = Timers()  # by number of the child: when to check it
        self._stop_timers = Timers()  # by run: to have stopped
        self._outputs = OutputRelay(options, clock, session.actor, store_output)
        self._recent = RecentlyBegun(most=BEGUN_PER_CORE * _cores())
        self._unflushed: dict[Child, None] = {}  # with frames or a deadline that were not sent
        self._failed_starts = 0
        self._refused_starts = 0  # in a row, by the system
        self._start_log = FailureLog()
        self._shown_failure: str | None = None
        self._restart_at = Boot(0)
        self._spawn_at = NEVER  # when to try again to start what is missing
        self._is_closing = False

    def start(self) -> None:
        """Start to warm up every lane."""
        self._keeper = KeeperClient(self._selector, self._clock)
        self.maintain()

    @property
    def next_at(self) -> Boot:
        """When to call `maintain` again."""
        return min(
            self._child_timers.next_at,
            self._stop_timers.next_at,
            self._outputs.timers.next_at,
            self._spawn_at,
            self._spread_at,
            NEVER if self._keeper is None else self._keeper.next_at,
        )

    @property
    def _spread_at(self) -> Boot:
        """When the attempts start that waited for a child that was used just now."""
        lane = self._lanes.get(Isolation.PROCESS)
        return self._recent.next_at if lane and lane.waiting and lane.has_free else NEVER

    # --- what the session wants ----------------------------------------------------------------

    def begin(self, run: int, lane: Isolation, grant: Grant, until: Boot) -> None:
        """Call its handler in a child, as soon as one may take it."""
        slot = self._slots[run] = _Slot(run, lane, grant, until)
        self._assign(slot)
        if not self._lanes[lane].has_free:
            self._spawn_missing(lane)

    def renew(self, renewed: frames.LeaseRenewed) -> None:
        """Pass a renewal on, or keep it for the child that will run the attempt."""
        slot = self._slots.get(renewed.run)
        if slot is None:
            return
        slot.until = renewed.until
        if slot.child is not None:
            self._send(slot.child, renewed)
            if slot.run not in slot.child.doomed:
                slot.child.ends.put(slot.run, renewed.until)

    def ask_to_stop(self, request: frames.AskToStop) -> None:
        """Pass the request on, or keep it for the child that will run the attempt."""
        slot = self._slots.get(request.run)
        if slot is None:
            return
        slot.stop_request = request
        if slot.child is not None:
            self._send(slot.child, request)

    def answer(self, answer: frames.AskAnswer) -> None:
        """Pass an answer on to the handler that asked."""
        slot = self._slots.get(answer.run)
        if slot is not None and slot.asking == answer.id and slot.child is not None:
            slot.asking = None
            self._send(slot.child, answer)

    def kill(self, run: int) -> None:
        """End a handler as its lane allows; `Finished` follows when it is gone."""
        slot = self._slots.get(run)
        if slot is None:
            return
        child = slot.child
        if child is None:
            self._finish(slot, messages.Killed())
            return
        match child.lane:
            case Isolation.PROCESS:
                self._doom(child, run, None)
                self._kill(child)
            case Isolation.ASYNC | Isolation.THREAD:
                by = Boot(self._clock() + self._options.stubborn_us)
                self._doom(child, run, by)
                self._stop_timers.put(run, by)
                self._send(child, frames.LeaseLost(run))
            case _:
                assert_never(child.lane)

    def _overdue(self, child: Child, run: int) -> None:
        """It did not stop in time. A thread cannot be killed alone, and need not be: its process
        takes no more work and ends when the others in it are done. A coroutine blocks its loop."""
        if child.lane is Isolation.THREAD:
            self._stats.leaked += 1
            self._doom(child, run, None)
            self._retire(child)
        else:
            self._kill(child)

    def _doom(self, child: Child, run: int, by: Boot | None) -> None:
        """It has to stop by then; None: it ends with its process."""
        child.doomed[run] = by
        if by is None:
            child.ends.drop(run)
        else:
            child.ends.put(run, by)
        self._unflushed[child] = None

    def _kill(self, child: Child) -> None:
        child.was_killed = True
        child.kill()
        self._stop_using(child)

    def _stop_using(self, child: Child) -> None:
        """Give it no more work, and check for its exit, on systems that do not report it."""
        self._leave(child)
        self._child_timers.by(child.number, Boot(self._clock() + EXIT_POLL))

    def _leave(self, child: Child) -> None:
        lane = self._lanes[child.lane]
        serving = lane.serving
        lane.leave(child)
        if lane.serving != serving:
            self._session.children_serving(child.lane, lane.serving)

    # --- telling children and keeper ------------------------------------------------------------

    def _send(self, child: Child, message: frames.ToChild) -> None:
        child.send(message)
        self._unflushed[child] = None

    def flush(self) -> None:
        """Write what has gathered: first to the keeper when the last run of each child has to be
        over, then to the children. The keeper waits a moment longer than the supervisor does, which
        may be late with a renewal."""
        if not self._unflushed:
            return
        unflushed, self._unflushed = self._unflushed, {}
        if self._keeper is not None:
            self._keeper.kill_at({child.pid: _deadline(child) for child in unflushed})
        for child in unflushed:
            child.flush()

    # --- assigning ------------------------------------------------------------------------------

    def _assign(self, slot: _Slot) -> None:
        lane = self._lanes[slot.lane]
        child = lane.take() if self._may_begin(slot) else None
        if child is None:
            lane.waiting[slot.run] = None
        else:
            lane.waiting.pop(slot.run, None)
            self._begin(slot, child)

    def _may_begin(self, slot: _Slot) -> bool:
        """Whether it need not wait for attempts that started just now."""
        return slot.lane is not Isolation.PROCESS or self._recent.has_room(self._clock())

    def _begin(self, slot: _Slot, child: Child) -> None:
        if child.lane is Isolation.PROCESS:
            if not child.jobs_begun:
                child.drain_output()  # of imports; later ones are read in every round
            self._recent.begun(slot.run, self._clock())
            child.output.take()  # of imports, or of threads between two jobs
            self._outputs.begin(slot.run, slot.grant, child.output)
        slot.child = child
        child.runs.add(slot.run)
        child.ends.put(slot.run, slot.until)
        self._send(child, frames.Run.of(slot.run, slot.grant, until=slot.until))
        if slot.stop_request is not None:
            self._send(child, slot.stop_request)
        child.jobs_begun += 1

    def _finish(self, slot: _Slot, outcome: messages.Outcome) -> None:
        """Free the slot; the session gets how the attempt ended."""
        run, child = slot.run, slot.child
        del self._slots[run]
        lane = self._lanes[slot.lane]
        if child is None:
            lane.waiting.pop(run, None)
        else:
            child.runs.discard(run)
            child.ends.drop(run)
            if child.doomed.pop(run, None) is not None:
                self._stop_timers.drop(run)
            self._unflushed[child] = None
            lane.give_back(child)
        if slot.lane is Isolation.PROCESS:
            self._recent.ended(run)
        self._outputs.end(run)
        self._session.finished(run, outcome)

    def _assign_waiting(self, lane: Isolation) -> None:
        children = self._lanes[lane]
        while children.waiting and children.has_free:
            slot = self._slots[next(iter(children.waiting))]
            self._assign(slot)
            if slot.child is None:
                return

    def _spread(self, now: Boot) -> None:
        """The attempts that started last have not ended soon, so the others wait no longer."""
        if now < self._spread_at:
            return
        lane = self._lanes[Isolation.PROCESS]
        while lane.waiting and lane.has_free:
            self._recent.forget()
            self._assign(self._slots[next(iter(lane.waiting))])

    def _printed(self, child: Child, lines: list[str]) -> None:
        """A child wrote to its streams. Only a process child's output belongs to one attempt."""
        is_alone = child.lane is Isolation.PROCESS
        self._outputs.printed(next(iter(child.runs), None) if is_alone else None, lines)

    # --- children ------------------------------------------------------------------------------

    def _readable(self, child: Child) -> None:
        """Its socket can be read, or written to after it could not."""
        if child not in self._children:
            return
        received, is_closed = child.receive()
        for message in received:
            self._take(child, message)
        if is_closed and not self._has_ended(child) and not child.is_retiring:
            # Most likely it is about to exit; else it is broken, and killed soon.
            child.is_retiring = True
            child.deadline = Boot(self._clock() + EXIT_WITHIN)
            self._stop_using(child)

    def _has_ended(self, child: Child) -> bool:
        """Whether its process is gone; if so, its attempts are over."""
        if child not in self._children:
            return True
        if not child.has_exited():
            return False
        self._reap(child)
        return True

    def _take(self, child: Child, message: frames.ToSupervisor) -> None:
        match message:
            case frames.Ended():
                self._ended(child, message)
            case frames.Ready():
                self._ready(child)
            case frames.CheckpointSaved() | frames.ProgressMade() | frames.SelfCompleted():
                if message.run in child.runs:
                    self._session.child_sent(message)
            case frames.Ask():
                if message.run in child.runs:
                    self._asked(self._slots[message.run], message)
            case frames.Printed():
                if message.run in child.runs:
                    grant = self._slots[message.run].grant
                    self._outputs.write(message.run, grant, message.text.encode())
            case frames.LoopBlocked():
                self._stats.blocked_loops += 1
                took_s = message.for_us / 1e6
                below = {"below": message.stack[-SHOWN_OUTPUT:]}
                _log.warning("a handler blocked the event loop for %.1f s", took_s, extra=below)
            case _:
                assert_never(message)

    def _asked(self, slot: _Slot, ask: frames.Ask) -> None:
        if slot.asking is not None:
            return  # a handler waits for each answer: other user code wrote to the socket
        slot.asking = ask.id
        if isinstance(ask.what, frames.BorrowLease):
            authority = self._session.lend(slot.run)
            if authority is not None:  # else it is about to be stopped
                result = msgspec.Raw(msgspec.msgpack.encode(authority))
                self.answer(frames.AskAnswer(slot.run, ask.id, result))
        else:
            with tracing.use_trace(tracing.trace_of_jobs([slot.grant.job])):
                self._carry_out(HandlerRequest(ask, slot.grant.job_id, slot.grant.lease_id))

    def _ready(self, child: Child) -> None:
        if child.is_ready or child.is_retiring or child.was_killed:
            return
        child.is_ready = True
        child.output.last_line()  # of the imports
        child.deadline = None
        self._failed_starts = 0
        lane = self._lanes[child.lane]
        for replaced in lane.ready(child):
            self._retire(replaced)
        self._session.children_serving(child.lane, lane.serving)
        self._assign_waiting(child.lane)
        self._spawn_missing(child.lane)

    def _ended(self, child: Child, message: frames.Ended) -> None:
        slot = self._slots.get(message.run)
        if slot is None or slot.child is not child:
            return  # not an attempt of this child: user code wrote to the socket
        if child.lane is Isolation.PROCESS:
            child.drain_output()
        # What a handler raises while it is being stopped comes from the stop; a result counts.
        was_stopped = message.run in child.doomed and not isinstance(
            message.outcome, frames.Returned
        )
        self._finish(slot, messages.Killed() if was_stopped else message.outcome)
        self._check_wear(child, message.rss_bytes)
        if child.is_retiring:
            self._retire(child)
        else:
            self._assign_waiting(child.lane)

    def _check_wear(self, child: Child, rss_bytes: int) -> None:
        """Retire a process child that is used up. A shared one keeps running until its successor is
        ready, so that its lane never pauses."""
        rss_limit = self._options.child_rss_bytes
        is_too_large = rss_limit is not None and rss_bytes > rss_limit
        if child.lane is not Isolation.PROCESS:
            if is_too_large:
                self._lanes[child.lane].expire(child)
                self._spawn_missing(child.lane)
        elif is_too_large or child.jobs_begun >= self._options.jobs_per_child:
            child.is_retiring = True

    def _retire(self, child: Child) -> None:
        child.is_retiring = True
        self._stop_using(child)
        if child.runs:
            leaked = {run for run, by in child.doomed.items() if by is None}
            if child.runs <= leaked:
                self._kill(child)
        elif child.deadline is None:
            self._stats.children_recycled += 1
            self._send(child, frames.Retire())
            child.deadline = Boot(self._clock() + RETIRE_WITHIN)
        self._spawn_missing(child.lane)

    def _reap(self, child: Child) -> None:
        for message in child.receive()[0]:
            self._take(child, message)
        was_due = self._keeper is not None and self._keeper.is_due(child.pid)
        if self._keeper is not None:
            self._keeper.forget(child.pid)
        how = child.reap()
        del self._children[child]
        del self._by_number[child.number]
        self._unflushed.pop(child, None)
        self._child_timers.drop(child.number)
        self._leave(child)
        if not child.is_ready:
            self._start_failed(child, how)
        elif not child.jobs_begun and not child.is_retiring:
            self._restart_at = Boot(
                self._clock() + FIRST_RESTART
            )  # so that idle deaths do not loop
        for run in list(child.runs):
            slot = self._slots[run]
            if run in child.doomed:
                self._finish(slot, messages.Killed())
            elif child.was_killed:
                self._finish(slot, messages.Displaced())
            elif child.is_sigkilled and (was_due or self._clock() >= slot.until):
                self._finish(slot, frames.Stopped())  # by the keeper
            elif not child.has_begun(run) and not slot.was_sent_before and not self._is_closing:
                self._send_again(slot, how)
            else:
                self._finish(slot, messages.Died(how))
        child.forget()
        self._unflushed.pop(child, None)
        if not self._is_closing:
            self._assign_waiting(child.lane)  # others may have waited for what ran in it
        self._spawn_missing(child.lane)

    def _send_again(self, slot: _Slot, how: str) -> None:
        """No code of the application ran for it. Once: its payload may be what kills. [WP21]"""
        _log.warning("a child %s before it called a handler; another one takes its job", how)
        slot.was_sent_before = True
        slot.child = None
        self._recent.ended(slot.run)
        self._outputs.drop(slot.run)
        self._assign(slot)

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
            self._session.break_off(f"children cannot start {self._app}; the last one {how}")

    def _spawn(self, lane: Isolation) -> None:
        limits = self._options.limits
        setup = frames.Setup(
            app=self._app,
            lane=lane,
            path=tuple(sys.path),
            body_bytes=limits.body_bytes,
            depth=limits.depth,
            memory_bytes=self._options.child_memory_bytes,
            measures_memory=self._options.child_rss_bytes is not None,
        )
        child = Child(
            setup,
            number=self._stats.children_started,
            environment=self._environment,
            output_bytes=self._options.output_bytes,
            selector=self._selector,
            on_readable=self._readable,
            on_exit=self._has_ended,
            on_output=self._printed,
        )
        if self._keeper is not None:
            self._keeper.watch(child.pid)
        now = self._clock()
        child.deadline = Boot(now + self._options.child_start_us)
        self._children[child] = None
        self._by_number[child.number] = child
        self._child_timers.put(child.number, self._check_at(child, now))
        self._lanes[lane].started(child)
        self._stats.children_started += 1

    def _spawn_missing(self, lane: Isolation) -> None:
        if self._is_closing:
            return
        missing = self._lanes[lane].missing
        if missing > 0 and self._clock() < self._restart_at:
            self._spawn_at = self._restart_at
            return
        for _ in range(missing):
            try:
                self._spawn(lane)
            except OSError as failure:  # too few descriptors, processes or too little memory
                self._could_not_spawn(lane, failure)
                return
        if missing > 0 and self._start_log.succeeded(self._clock()) is not None:
            _log.warning("children can be started again")
            self._refused_starts = 0

    def _could_not_spawn(self, lane: Isolation, failure: OSError) -> None:
        """Try again later: the worker keeps the children that it has. If none is free, hand back
        what waits for one. [WP25]"""
        now = self._clock()
        why = f"no child can be started: {failure.strerror or failure}"
        children = self._lanes[lane]
        if self._start_log.failed(now) is not None:
            _log.error("%s; trying again, with %d children until then", why, children.serving)
        delay_us = FIRST_RESTART * 2 ** min(self._refused_starts, MAX_RESTART_DOUBLINGS)
        self._refused_starts += 1
        self._spawn_at = self._restart_at = Boot(now + delay_us)
        for run in list(children.waiting) if not children.has_free else ():
            self._finish(self._slots[run], messages.Unstarted(why))

    # --- time ----------------------------------------------------------------------------------

    def maintain(self) -> None:
        """Start missing children, end overdue ones, send output."""
        now = self._clock()
        if self._keeper is not None:
            self._keeper.maintain()
        for number in self._child_timers.due(now):
            self._maintain_child(self._by_number[number], now)
        for run in self._stop_timers.due(now):
            child = self._slots[run].child
            if child is not None and not child.was_killed and child.fault is None:
                self._overdue(child, run)
        self._spread(now)
        self._outputs.send_due(now)
        self._spawn_at = NEVER
        for lane in self._lanes:
            self._spawn_missing(lane)
        self.flush()

    def _maintain_child(self, child: Child, now: Boot) -> None:
        if self._has_ended(child):
            return
        is_expected_to_end = child.was_killed or child.fault is not None
        if child.deadline is not None and now >= child.deadline and not is_expected_to_end:
            child.fault = "did not respond to its supervisor and was killed"
            child.kill()
            self._stop_using(child)
        self._child_timers.put(child.number, self._check_at(child, now))

    def _check_at(self, child: Child, now: Boot) -> Boot:
        """When to check it again: at its deadline, and often while its exit is expected or on a
        system that does not report exits."""
        is_leaving = child.was_killed or child.is_retiring or child.fault is not None
        if is_leaving or not child.reports_exit:
            return Boot(now + EXIT_POLL)
        return NEVER if child.deadline is None else child.deadline

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
            self._send(child, frames.Retire())
        self.flush()
        until = time.monotonic() + EXIT_ALONE_WITHIN_S
        while time.monotonic() < until and not all(child.has_exited() for child in idle):
            time.sleep(EXIT_POLL_S)


def _children_of(lane: Isolation, warm: int, options: WorkerOptions) -> LaneChildren:
    most_starting = STARTING_PER_CORE * _cores()
    return LaneChildren(lane, warm=warm, most=options.concurrency, most_starting=most_starting)


def _cores() -> int:
    """How many cores this process may use."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


def _deadline(child: Child) -> Boot | None:
    """When the keeper kills it."""
    latest = child.ends.latest
    return None if latest is None else Boot(latest + KEEPER_DELAY)
