"""Handlers of the routes for workers: claims, reports, output, artifacts, `alive`."""

import asyncio
import os
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import TypeVar

import msgspec
from starlette.responses import Response
from starlette.types import Receive, Scope, Send

from tenure.core.artifacts import ArtifactUpload, AttemptOutput
from tenure.core.claims import ClaimAnswer, ClaimRequest
from tenure.core.commands import WorkerCommand
from tenure.core.ids import ENTROPY_BYTES, JobId, LeaseId, WorkerId, new_job_id
from tenure.core.leases import LeaseRef
from tenure.core.verdicts import Verdict, verdict_for
from tenure.core.vocabulary import Cause, VerdictKind
from tenure.core.workers import WorkerProcess
from tenure.errors import InvalidInput, UnknownJob
from tenure.protocol import LEASE_HEADER, replies, requests
from tenure.protocol.codec import encode
from tenure.protocol.translation import to_core, to_wire
from tenure.server.calls import Handler, Message, ResponseInPieces, ServerCall, answer
from tenure.server.limits import LARGE_BYTES
from tenure.server.problems import too_many
from tenure.server.waiting import Waiter

_C = TypeVar("_C", bound=WorkerCommand | AttemptOutput)


TURNS_TO_NOTICE = 3

_NOT_HERE = Verdict(kind=VerdictKind.REJECTED, cause=Cause.UNKNOWN_JOB)


class _TokenClaimer:
    """`waiting_claims.Claimer` for the caller of one claim."""

    def __init__(self, call: ServerCall) -> None:
        self._call = call

    async def check_token(self) -> None:
        await self._call.services.authenticator.check_still_valid(self._call.principal)

    async def reserve(self, leases: int) -> bool:
        return await self._call.services.quotas.reserve(self._call.principal.token, leases)

    def settle(self, reserved: int, granted: int) -> None:
        self._call.services.quotas.settle(self._call.principal.token, reserved, granted)

    async def without_room(self, request: ClaimRequest) -> ClaimAnswer:
        # This may repeat a claim whose response was lost, and its own grants use up the limit.
        coordinator = self._call.coordinator
        found = await self._call.services.blocking(lambda: coordinator.repeat_claim(request))
        if found.grants or found.cause is not None:
            return found
        raise too_many(
            replies.ProblemCode.TOO_MANY_LEASES,
            "this token would have too many leases",
            hint="report on some, claim fewer, or make a token with a higher --max-leases",
        )


async def claim(call: ServerCall) -> Response:
    """Ask for work, and wait for it. [H10] [H35]"""
    message = call.message(requests.ClaimMessage)
    call.principal.check_queues(message.queues)
    kinds = call.principal.claimed_kinds(message.kinds)
    request = to_core(
        ClaimRequest, message, actor=call.actor, namespace=call.namespace(), kinds=kinds
    )
    waiter = Waiter(call.principal.token_id)
    watching = asyncio.create_task(_watch(call, waiter))
    found = ClaimAnswer()

    def finish() -> None:
        watching.cancel()
        call.services.waiting_claims.finish(waiter, found)

    try:
        with call.services.quotas.polling(call.principal.token):
            found = await call.services.waiting_claims.serve(
                request, waiter, _TokenClaimer(call), wait_s=message.wait_s
            )
        return _Delivery(await _encoded(call, found), waiter, finish)
    except BaseException:
        waiter.leave()  # the caller does not receive the grants
        finish()
        raise


async def _encoded(call: ServerCall, found: ClaimAnswer) -> bytes:
    """The encoded reply. A large one is encoded on a thread."""
    jobs = [grant.job for grant in found.grants]
    if sum(len(job.payload) + len(job.checkpoint or b"") for job in jobs) <= LARGE_BYTES:
        return encode(replies.claim_reply(found))
    return await call.services.blocking(lambda: encode(replies.claim_reply(found)))


async def _watch(call: ServerCall, waiter: Waiter) -> None:
    """Watch for the caller to hang up."""
    while (await call.http.receive())["type"] != "http.disconnect":
        pass
    waiter.leave()


class _Delivery(ResponseInPieces):
    """The answer to a claim. Its end waits until a failed write would be known."""

    holds_end_back = True

    def __init__(self, body: bytes, waiter: Waiter, finish: Callable[[], None]) -> None:
        super().__init__(body, media_type="application/json")
        self._waiter = waiter
        self._finish = finish

    async def last(self, send: Send) -> None:
        """Wait a few turns of the loop, within which a failed write shows, then end the
        response."""
        for _ in range(TURNS_TO_NOTICE):
            await asyncio.sleep(0)
        self._finish()
        self._finish = _nothing
        await super().last(send)

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Send it."""
        self._waiter.write()
        try:
            await super().__call__(scope, receive, send)
        except BaseException:
            self._waiter.leave()  # the caller did not read it in time, or the server shuts down
            raise
        finally:
            self._finish()


def _nothing() -> None:
    """Do nothing: the claim was finished before."""


async def report_one(call: ServerCall) -> Response:
    """Start, complete, fail or release: one report, one verdict."""
    [verdict] = await _verdicts(call, [call.body])
    if verdict.cause is Cause.UNKNOWN_JOB:
        raise UnknownJob(call.body.job_id)
    return answer(to_wire(replies.VerdictReply, verdict))


async def heartbeat(call: ServerCall) -> Response:
    """Renew leases."""
    return await _batch(call, call.message(requests.HeartbeatsMessage).leases, "leases")


async def report(call: ServerCall) -> Response:
    """A batch of reports, of any kinds. [H42]"""
    return await _batch(call, call.message(requests.ReportsMessage).reports, "reports")


async def _batch(
    call: ServerCall, messages: Sequence[requests.WorkerMessage], within: str
) -> Response:
    verdicts = await _verdicts(call, messages, within)

    def reply() -> replies.VerdictsReply:
        verdicts_ = tuple([to_wire(replies.VerdictReply, each) for each in verdicts])
        return replies.VerdictsReply(verdicts=verdicts_)

    return await call.work(lambda: Message(reply()).encoded())


async def _verdicts(
    call: ServerCall, messages: Sequence[requests.WorkerMessage], within: str = ""
) -> list[Verdict]:
    actor = call.actor
    commands = await call.work(lambda: [requests.worker_command(each, actor) for each in messages])
    hidden = await hidden_jobs(call, (command.job_id for command in commands))
    commands = [_decidable(command, hidden) for command in commands]
    answers = await call.decide(commands, within=within)
    verdicts = [verdict for verdict in answers if isinstance(verdict, Verdict)]
    foreign = [
        command
        for command, verdict in zip(commands, verdicts, strict=True)
        if verdict.cause is Cause.INVALID_LEASE
    ]
    if foreign:
        call.audit.foreign_lease(foreign[0].job_id, foreign[0].lease_id, number=len(foreign))
    visible = await _visible_causes(
        call,
        [
            (command.job_id, verdict.cause)
            for command, verdict in zip(commands, verdicts, strict=True)
        ],
    )
    return [
        _NOT_HERE if cause is Cause.UNKNOWN_JOB else verdict
        for cause, verdict in zip(visible, verdicts, strict=True)
    ]


async def hidden_jobs(call: ServerCall, job_ids: Iterable[JobId]) -> dict[JobId, JobId]:
    """The jobs out of the token's queues and kinds, each with a substitute id that no job has, so
    that questions about them are answered as about an unknown job. A lease does not tell its queue
    or kind, so the jobs are looked up, but only for tokens limited to some of them. [H41]"""
    if not call.principal.is_limited:
        return {}
    ids = sorted(set(job_ids))
    jobs = await call.services.blocking(lambda: call.store.jobs.read(ids, bodies=False))
    now = await call.services.now()
    hidden = [job.id for job in jobs.values() if not call.principal.sees(job)]
    if hidden:
        call.audit.hidden_job(hidden[0], number=len(hidden))
    return {each: new_job_id(now, os.urandom(ENTROPY_BYTES)) for each in hidden}


def _decidable(command: _C, hidden: Mapping[JobId, JobId]) -> _C:
    """The command; about its substitute id if its job is hidden."""
    if command.job_id not in hidden:
        return command
    return msgspec.structs.replace(command, job_id=hidden[command.job_id])


async def _visible_causes(
    call: ServerCall, causes: Sequence[tuple[JobId, Cause | None]]
) -> list[Cause | None]:
    """The causes as the caller may see them: an invalid lease of a job in another namespace becomes
    an unknown job. [H21]"""
    doubtful = sorted({job_id for job_id, cause in causes if cause is Cause.INVALID_LEASE})
    if not doubtful:
        return [cause for _, cause in causes]
    jobs = await call.services.blocking(lambda: call.store.jobs.read(doubtful, bodies=False))
    elsewhere = {job.id for job in jobs.values() if not call.principal.is_here(job)}
    return [
        Cause.UNKNOWN_JOB if cause is Cause.INVALID_LEASE and job_id in elsewhere else cause
        for job_id, cause in causes
    ]


async def _check_known(
    call: ServerCall, job_id: JobId, lease_id: LeaseId, cause: Cause | None
) -> None:
    """Raise `UnknownJob` if the job is unknown to the caller's namespace."""
    if cause is Cause.INVALID_LEASE:
        call.audit.foreign_lease(job_id, lease_id, number=1)
    [visible] = await _visible_causes(call, [(job_id, cause)])
    if visible is Cause.UNKNOWN_JOB:
        raise UnknownJob(job_id)


async def upload_artifact(call: ServerCall) -> Response:
    """Store an artifact of the attempt. [B7]"""
    lease_id = call.http.headers.get(LEASE_HEADER)
    if lease_id is None:
        raise InvalidInput(LEASE_HEADER, "is missing", hint="send the lease_id of the grant")
    hidden = await hidden_jobs(call, [call.job_id])
    upload = ArtifactUpload(
        job_id=hidden.get(call.job_id, call.job_id),
        lease_id=LeaseId(lease_id),
        actor=call.actor,
        name=call.path["name"],
        body=call.body,
        media_type=call.http.headers.get("content-type", "application/octet-stream"),
    )
    staging = await call.services.blocking(lambda: call.store.artifacts.stage(upload))
    await _check_known(call, call.job_id, upload.lease_id, staging.cause)
    verdict = verdict_for(staging.cause)
    return answer(to_wire(replies.StagingReply, staging, verdict=verdict))


async def output(call: ServerCall) -> Response:
    """Store the output of a handler. [B20]"""
    sent = to_core(AttemptOutput, call.message(requests.OutputMessage), actor=call.actor)
    kept = _decidable(sent, await hidden_jobs(call, [sent.job_id]))
    cause = await call.services.blocking(lambda: call.store.artifacts.put_log(kept))
    await _check_known(call, sent.job_id, sent.lease_id, cause)
    return answer(replies.KeptReply(verdict=verdict_for(cause), cause=cause))


async def parents(call: ServerCall) -> Response:
    """Read what the parents of a leased job returned. [FL7]"""
    message = call.message(requests.ParentsMessage)
    hidden = await hidden_jobs(call, [call.job_id])
    held = LeaseRef(hidden.get(call.job_id, call.job_id), message.lease_id)
    page = await call.services.blocking(
        lambda: call.store.flows.parents(held, call.actor, after=message.after)
    )
    await _check_known(call, call.job_id, message.lease_id, page.cause)
    return answer(to_wire(replies.ParentsReply, page, verdict=verdict_for(page.cause)))


async def peek_leases(call: ServerCall) -> Response:
    """Say which leases need a heartbeat now. [C2]"""
    sent = call.message(requests.PeekLeasesMessage).leases
    held = [to_core(LeaseRef, each) for each in sent]
    hidden = await hidden_jobs(call, (each.job_id for each in held))
    leases = [LeaseRef(hidden.get(each.job_id, each.job_id), each.lease_id) for each in held]
    news = await call.services.blocking(lambda: call.store.jobs.peek_leases(leases, call.actor))
    return answer(replies.PeekLeasesReply(news=tuple(news)))


async def alive(call: ServerCall) -> Response:
    """Record that a worker is alive. [B12]"""
    message = call.message(requests.AliveMessage)
    call.principal.check_queues(message.queues)
    call.principal.check_kinds(message.kinds)
    process = to_core(
        WorkerProcess,
        message,
        worker=WorkerId(call.path["worker"]),
        actor=call.actor,
        namespace=call.namespace(),
    )
    await call.services.namespace_limits.check_worker(process)
    drain = await call.services.blocking(lambda: call.store.workers.see(process))
    return answer(replies.AliveReply(drain=drain))


HANDLERS: dict[str, Handler] = {
    "claim": claim,
    "start": report_one,
    "complete": report_one,
    "fail": report_one,
    "release": report_one,
    "heartbeat": heartbeat,
    "report": report,
    "peek-leases": peek_leases,
    "output": output,
    "parents": parents,
    "upload-artifact": upload_artifact,
    "alive": alive,
}
