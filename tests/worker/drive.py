"""A session in virtual time against a real coordinator: no processes, no threads of its own.

The drive carries out what the session wants: requests go to the coordinator at once, unless the
network is cut; handlers are pretended by the test, which says how they end.
"""

from collections.abc import Callable, Mapping
from typing import Any, TypeVar

from tenure.clock import Boot
from tenure.core.commands import Cancel, WorkerCommand
from tenure.core.ids import DEFAULT_NAMESPACE, Actor, JobId, Kind, QueueName, RequestId, WorkerId
from tenure.core.instants import seconds
from tenure.core.job import Job
from tenure.core.policy import Policy
from tenure.core.verdicts import Grant, Verdict
from tenure.core.vocabulary import CancelMode, JobStatus
from tenure.handlers.registry import Isolation
from tenure.worker.frames import Returned
from tenure.worker.session.claims import ClaimSettings
from tenure.worker.session.messages import (
    Action,
    Begin,
    Kill,
    Killed,
    Outcome,
    PollLeases,
    Send,
    SendClaim,
    Stats,
)
from tenure.worker.session.session import WorkerSession
from tests.support.coordinators import CLIENT, KIND, QUEUE, World

A = TypeVar("A", bound=Action)
ACTOR = Actor("worker:w1")


class Network:
    """Whether requests arrive and whether answers return."""

    def __init__(self) -> None:
        self.requests_arrive = True
        self.answers_return = True
        self.claim_takes_s = 0.0

    def cut(self) -> None:
        self.requests_arrive = self.answers_return = False

    def heal(self) -> None:
        self.requests_arrive = self.answers_return = True


class Drive:
    """One session, its coordinator, and everything the session ever wanted."""

    def __init__(
        self,
        *,
        concurrency: int = 2,
        kinds: Mapping[Kind, int | None] | None = None,
        lanes: Mapping[Kind, Isolation] | None = None,
        queues: Mapping[QueueName, int] | None = None,
        random: Callable[[], float] = lambda: 0.5,
        notes_every_end: bool = True,
        kills: bool = True,
    ) -> None:
        self.world = World()
        self.network = Network()
        self.actions: list[Action] = []
        self.stats = Stats()
        self.session = WorkerSession(
            ClaimSettings(
                namespace=DEFAULT_NAMESPACE,
                worker=WorkerId("w1"),
                actor=ACTOR,
                queues=queues or {QUEUE: 1},
                kinds=kinds or {KIND: None},
                lanes=lanes or dict.fromkeys(kinds or [KIND], Isolation.ASYNC),
            ),
            concurrency=concurrency,
            random=random,
            stats=self.stats,
            notes_every_end=notes_every_end,
        )
        self._kills = kills
        self._serves = lanes is None

    # --- time and events -----------------------------------------------------------------------

    @property
    def now(self) -> Boot:
        return Boot(self.world.clock.now)

    def begin(self) -> "Drive":
        """Turn for the first time; a child of the async lane is ready unless there are lanes."""
        if self._serves:
            self.session.children_serving(Isolation.ASYNC, 1)
        self.turn()
        return self

    def feed(self, event: Callable[..., None], *values: Any, **named: Any) -> None:
        """An event of the session, and its turn."""
        self.session.now = self.now
        event(*values, **named)
        self.turn()

    def decide(self, event: Callable[..., None], *values: Any) -> list[Action]:
        """What the session wants after an event; the test carries it out."""
        self.session.now = self.now
        event(*values)
        return self.session.turn()

    def turn(self) -> None:
        self.session.now = self.now
        while actions := self.session.turn():
            if self.network.claim_takes_s:  # and nothing else waits for it
                actions.sort(key=lambda each: isinstance(each, SendClaim))
            for action in actions:
                self._perform(action)

    def is_done(self) -> bool:
        return self.session.is_done

    def advance(self, amount_s: float, *, sleeping: bool = False) -> None:
        """Let time pass, turning whenever the session wants to; asleep, only at the end."""
        end = self.now + seconds(amount_s)
        turns = 0
        while not (sleeping or self.session.is_done) and self.session.next_at <= end:
            self.world.clock.now = max(self.world.clock.now, self.session.next_at)  # type: ignore[assignment]  # both count microseconds
            self.turn()
            turns += 1
            assert turns < 10_000, "the session turns without end"
        self.world.clock.now = end  # type: ignore[assignment]  # both count microseconds
        self.turn()

    def finish(self, run: int, outcome: Outcome | None = None) -> None:
        self.feed(self.session.finished, run, outcome or Returned(b'"done"'))

    # --- jobs ----------------------------------------------------------------------------------

    def enqueue(self, policy: Policy | None = None, queue: QueueName = QUEUE) -> JobId:
        return self.world.enqueue(policy=policy, queue=queue).id

    def begun(self, run: int) -> Grant:
        """The grant under which this run began."""
        [grant] = [each.grant for each in self.wanted(Begin) if each.run == run]
        return grant

    def running(self, policy: Policy | None = None) -> tuple[int, JobId]:
        """A job that this session runs: its number and its id."""
        job_id = self.enqueue(policy)
        self.advance(3)
        (run,) = [each.run for each in self.wanted(Begin) if each.grant.job_id == job_id]
        return run, job_id

    def cancel(self, job_id: JobId, mode: CancelMode = CancelMode.SOFT) -> None:
        self.world.coordinator.execute(
            Cancel(
                job_id=job_id,
                actor=CLIENT,
                request_id=RequestId(f"cancel-{mode}"),
                mode=mode,
                reason="enough",
            )
        )

    def job(self, job_id: JobId) -> Job:
        return self.world.reload(job_id)

    def status(self, job_id: JobId) -> JobStatus:
        return self.job(job_id).status

    def types(self, job_id: JobId) -> list[str]:
        return list(self.world.types(job_id))

    # --- what it wanted --------------------------------------------------------------------------

    def wanted(self, kind: type[A]) -> list[A]:
        return [action for action in self.actions if isinstance(action, kind)]

    def commands(self, kind: type[Any]) -> list[Any]:
        return [c for send in self.wanted(Send) for c in send.commands if isinstance(c, kind)]

    def grants(self) -> list[Grant]:
        return [action.grant for action in self.wanted(Begin)]

    # --- carrying it out -----------------------------------------------------------------------

    def _perform(self, action: Action) -> None:
        self.actions.append(action)
        match action:
            case SendClaim():
                self._claim(action)
            case Send():
                self.send(action.ticket, action.commands)
            case PollLeases():
                self.poll_leases(action)
            case Kill() if self._kills:
                self.session.finished(action.run, Killed())
            case _:
                pass

    def poll_leases(self, action: PollLeases) -> None:
        if self.network.requests_arrive and self.network.answers_return:
            news = self.world.coordinator.store.jobs.peek_leases(
                list(action.leases.values()), ACTOR
            )
            self.session.leases_polled(dict(zip(action.leases, news, strict=True)))
        else:
            self.session.leases_polled(None)

    def _claim(self, action: SendClaim) -> None:
        if self.network.requests_arrive:
            answer = self.world.coordinator.claim(action.request)
            self.world.clock.now += seconds(self.network.claim_takes_s)  # type: ignore[assignment]  # both count microseconds
            self.session.now = self.now
            if self.network.answers_return:
                self.session.claim_answered(action.ticket, answer)
                return
        self.session.unanswered(action.ticket, "cut")

    def send(self, ticket: int, commands: tuple[WorkerCommand, ...]) -> None:
        if self.network.requests_arrive:
            answers = self.world.coordinator.submit_many(commands).result()
            if self.network.answers_return:
                verdicts = [each for each in answers if isinstance(each, Verdict)]
                self.session.answered(ticket, verdicts)
                return
        self.session.unanswered(ticket, "cut")
