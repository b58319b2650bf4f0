"""The coordinator as workers, clients and operators use it, over HTTP.

Futures are filled by a few threads of its own; looking and leaving things is done by the caller's.
Reports and claims are sent once, because a worker repeats them by its own rules; everything else is
repeated here. Who acts is the token's holder: the actor of a command does not travel. [H21]
"""

from collections.abc import Callable, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from contextvars import copy_context
from typing import TypeVar

from tenure.core.artifacts import Artifact, ArtifactUpload, Staging, StoredArtifact
from tenure.core.attempt_logs import AttemptLog, AttemptOutput
from tenure.core.checks import MAX_DURATION, check_job_id, check_name
from tenure.core.claims import ClaimAnswer, ClaimRequest
from tenure.core.commands import Command
from tenure.core.events import Event
from tenure.core.ids import Actor, JobId
from tenure.core.instants import MICROSECONDS_PER_SECOND, Duration, Instant
from tenure.core.job import Job
from tenure.core.leases import HeldLease
from tenure.core.policy import LeaseBounds
from tenure.core.validation import Limits, check_claim, check_commands
from tenure.core.verdicts import Answer
from tenure.core.vocabulary import Cause, LeaseNews
from tenure.core.workers import WorkerProcess
from tenure.errors import Closed
from tenure.ports import NO_WAIT
from tenure.protocol import LEASE_HEADER
from tenure.protocol.fields import instant
from tenure.protocol.records import artifact_of, event_of
from tenure.protocol.replies import (
    AliveReply,
    ArtifactsReply,
    ClaimReply,
    EventsReply,
    KeptReply,
    LogsReply,
    LookReply,
    StagingReply,
    TimeReply,
    claim_answer,
    staging_of,
)
from tenure.protocol.requests import (
    LONGEST_WAIT_S,
    EventsQuery,
    alive_message,
    claim_message,
    look_messages,
    output_message,
)
from tenure.remote.administering import RemoteAdministered
from tenure.remote.answers import NotFound
from tenure.remote.caller import Call, Caller
from tenure.remote.commands import check_sendable, load_jobs, send

THREADS = 8
CLAIM_THREADS = 2

# How long leases may be is the coordinator's setting, and its answer says so.
_LIMITS = Limits(lease=LeaseBounds(shortest_us=Duration(0), longest_us=Duration(MAX_DURATION)))

_T = TypeVar("_T")


class RemoteCoordinator(RemoteAdministered):
    """`tenure.ports.Administration` of a server. Thread-safe; close it when done."""

    def __init__(self, caller: Caller) -> None:
        self._caller = caller
        self._threads = ThreadPoolExecutor(THREADS, thread_name_prefix="tenure-remote")
        self._claims = ThreadPoolExecutor(CLAIM_THREADS, thread_name_prefix="tenure-claims")

    def close(self) -> None:
        """Hang up. What is under way fails, whoever waits for it is told."""
        self._threads.shutdown(wait=False, cancel_futures=True)
        self._claims.shutdown(wait=False, cancel_futures=True)
        self._caller.close()

    # --- deciding ------------------------------------------------------------------------------

    def submit_many(self, commands: Sequence[Command]) -> "Future[list[Answer]]":
        """Answers in the order asked. Raises `InvalidInput` at once, before anything is sent."""
        check_commands(commands, _LIMITS)
        check_sendable(commands)
        asked = tuple(commands)
        return _submitted(self._threads, lambda: send(self._caller, asked))

    def execute(self, command: Command) -> Answer:
        """Submit one command and wait."""
        return self.submit_many([command]).result()[0]

    def submit_claim(
        self, request: ClaimRequest, *, wait_us: Duration = NO_WAIT
    ) -> "Future[ClaimAnswer]":
        """Ask for work; the server waits for some for up to `wait_us`, a minute at most."""
        check_claim(request, _LIMITS)
        wait_s = min(wait_us / MICROSECONDS_PER_SECOND, LONGEST_WAIT_S)
        call = Call(name="claim", message=claim_message(request, wait_s=wait_s))
        since = self._caller.hang_ups  # now: `end_waits` may come before a thread is free

        def ask() -> ClaimAnswer:
            reply = self._caller.ask_and_wait(call, ClaimReply, wait_s=wait_s, since=since)
            return claim_answer(reply)

        return _submitted(self._claims, ask)

    def end_waits(self) -> None:
        """Hang up on claims that wait. What one of them was granted meanwhile, its repetition
        receives or the server takes back. [H35]"""
        self._caller.hang_up_waiting()

    # --- looking -------------------------------------------------------------------------------

    def load_jobs(self, ids: Sequence[JobId]) -> dict[JobId, Job]:
        """The records of these jobs, without the ids of their leases. [H7]"""
        return load_jobs(self._caller, ids)

    def load_events(self, job_id: JobId) -> list[Event]:
        """A job's history in order of seq, asked for page by page."""
        found: list[Event] = []
        after_seq: int | None = 0
        try:
            while after_seq is not None:
                query = EventsQuery(after_seq=after_seq)
                call = Call(name="events", parts={"job_id": job_id}, query=query)
                page = self._caller.ask(call, EventsReply)
                found += [event_of(record) for record in page.events]
                after_seq = page.next_after_seq
        except NotFound:
            return []
        return found

    def now(self) -> Instant:
        """The store's clock."""
        return instant(self._caller.ask(Call(name="time"), TimeReply).now)

    def list_artifacts(self, job_id: JobId) -> list[Artifact]:
        """The artifacts of the attempt that succeeded, by name."""
        check_job_id("job_id", job_id)
        call = Call(name="artifacts", parts={"job_id": job_id})
        try:
            found = self._caller.ask(call, ArtifactsReply).artifacts
        except NotFound:
            return []
        return [artifact_of(record) for record in found]

    def load_artifact(self, job_id: JobId, name: str) -> StoredArtifact | None:
        """One of them with its body: those of an ended job do not change between two looks."""
        check_name("name", name)
        for artifact in self.list_artifacts(job_id):
            if artifact.name == name:
                call = Call(name="artifact", parts={"job_id": job_id, "name": name})
                return StoredArtifact(artifact, self._caller.fetch(call))
        return None

    def load_attempt_logs(self, job_id: JobId) -> list[AttemptLog]:
        """The kept output of each attempt, in order."""
        check_job_id("job_id", job_id)
        call = Call(name="logs", parts={"job_id": job_id})
        try:
            return list(self._caller.ask(call, LogsReply).logs)
        except NotFound:
            return []

    # --- leaving things behind -----------------------------------------------------------------

    def stage_artifact(self, upload: ArtifactUpload) -> Staging:
        """Leave a file with the attempt; the same name again replaces it."""
        call = Call(
            name="upload-artifact",
            parts={"job_id": upload.job_id, "name": upload.name},
            body=upload.body,
            headers={LEASE_HEADER: upload.lease_id, "Content-Type": upload.media_type},
        )
        try:
            return staging_of(self._caller.ask(call, StagingReply))
        except NotFound:
            return Staging(cause=Cause.UNKNOWN_JOB)

    def put_attempt_log(self, output: AttemptOutput) -> Cause | None:
        """Keep what a handler wrote; the first one is kept."""
        call = Call(name="output", message=output_message(output))
        try:
            return self._caller.ask(call, KeptReply).cause
        except NotFound:
            return Cause.UNKNOWN_JOB

    def look(self, leases: Sequence[HeldLease], actor: Actor) -> list[LeaseNews]:
        """Which of this worker's leases deserve a heartbeat now, in this order."""
        found: list[LeaseNews] = []
        for message in look_messages(leases):
            found += self._caller.ask(Call(name="look", message=message), LookReply).news
        return found

    def see_worker(self, process: WorkerProcess) -> bool:
        """A worker's sign of life; whether it is to drain."""
        call = Call(name="alive", parts={"worker": process.worker}, message=alive_message(process))
        return self._caller.ask(call, AliveReply).drain


def _submitted(threads: ThreadPoolExecutor, work: Callable[[], _T]) -> "Future[_T]":
    """On a thread, in the trace of whoever asks. [OB4] [OB6]"""
    try:
        return threads.submit(copy_context().run, work)
    except RuntimeError as closed:
        raise Closed from closed
