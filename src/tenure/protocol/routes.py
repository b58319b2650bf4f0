"""THE table of routes: each request over HTTP, who may send it, its message and its answer.

The server mounts it, the client calls by it; the OpenAPI description, the reference page and the
role matrix are made from it. A route that is not here does not exist. A route without roles is
public; only routes that reveal nothing may be. [H1] [H22]
"""

import re
from enum import StrEnum
from typing import Any
from urllib.parse import quote

import msgspec

from tenure.core.artifacts import MAX_ARTIFACT_BYTES
from tenure.core.commands import Cancel, Command, DeadLetter, Discard, Redrive, Requeue, Stall
from tenure.core.vocabulary import EventCause, Role
from tenure.protocol import replies, requests
from tenure.protocol.fields import (
    JobIdField,
    KindField,
    Name,
    QueueField,
    ScheduleField,
    WorkerField,
)
from tenure.protocol.records import DeadLetterGroupsReply, KindRecord, OverviewReply, QueueRecord

MAX_BODY_BYTES = (1 << 20) + (64 << 10)
"""A payload, result or checkpoint of the largest size, and the fields around it."""

MAX_BATCH_BYTES = 4 << 20
MAX_FLOW_BYTES = 16 << 20
"""Ten thousand jobs cannot be sent in parts: a flow is made as a whole. [FL3]"""

_ROLES = {role.value[0].upper(): role for role in Role}

PATH_FIELDS: dict[str, Any] = {
    "job_id": JobIdField,
    "flow_id": JobIdField,
    "name": Name,
    "queue": QueueField,
    "kind": KindField,
    "worker": WorkerField,
    "schedule": ScheduleField,
}
"""The parts of a path in braces. Names may contain slashes, which are percent-encoded. [H3]"""


class Shape(StrEnum):
    """What a body is."""

    NONE = "none"
    JSON = "json"
    BYTES = "bytes"
    TEXT = "text"


class Limit(StrEnum):
    """What a token can be limited to."""

    QUEUES = "queues"
    KINDS = "kinds"


class Route(msgspec.Struct, frozen=True, kw_only=True):
    """One sort of request.

    `reply` is the message of a success; `conflict`: a refusal by the coordinator comes as
    409 with the same message. Only worker routes answer verdicts, and those are always 200. [H4]

    A route about one job may be a command of the core: then its request has the command's fields,
    `sets` are the fields that the route itself stands for, and nothing else has to know the
    command."""

    name: str
    method: str
    path: str
    summary: str
    roles: tuple[Role, ...]
    request: type[Any] | None = None
    query: type[Any] | None = None
    reply: type[Any] | None = None
    success: int = 200
    request_shape: Shape = Shape.NONE
    reply_shape: Shape = Shape.JSON
    max_body_bytes: int = 0
    conflict: bool = False
    finds: str = ""
    """What a 404 is about, if not the job or flow of the path."""
    command: type[Command] | None = None
    sets: dict[str, Any] = {}
    about_all: tuple[Limit, ...] = ()
    """A token that is limited to some of these may not use the route. [H41]"""
    declares: bool = False
    """A worker's token may use the route only if it was created to declare. [H78]"""

    @property
    def not_found(self) -> str:
        """What a 404 is about; empty if there is none."""
        if self.finds:
            return self.finds
        return next((each for each in ("job", "flow") if f"{{{each}_id}}" in self.path), "")

    def url(self, **parts: str) -> str:
        """The path with its parts filled in."""
        return self.path.format(**{name: quote(part, safe="") for name, part in parts.items()})

    @property
    def is_public(self) -> bool:
        """Whether it is answered without a token."""
        return not self.roles

    @property
    def only_reads(self) -> bool:
        """Whether it changes nothing, so that it can still be refused after it was carried out."""
        return self.method == "GET" or self.name == "lookup"

    @property
    def action(self) -> str:
        """What it does, in words that follow "may"."""
        first = re.split("[:;]", self.summary, maxsplit=1)[0]
        return first[0].lower() + first[1:]

    @property
    def path_fields(self) -> tuple[str, ...]:
        """What stands in braces in its path."""
        return tuple(name for name in PATH_FIELDS if f"{{{name}}}" in self.path)


def _roles(letters: str) -> tuple[Role, ...]:
    """Such as COV: client, operator, viewer."""
    return tuple(_ROLES[letter] for letter in letters)


def _get(name: str, path: str, summary: str, roles: str = "", **more: Any) -> Route:
    return Route(name=name, method="GET", path=path, summary=summary, roles=_roles(roles), **more)


def _list(
    name: str, summary: str, roles: str, query: type[Any], reply: type[Any], **more: Any
) -> Route:
    return _get(name, f"/v1/{name}", summary, roles, query=query, reply=reply, **more)


def _of_job(
    name: str, summary: str, roles: str, reply: type[Any], query: type[Any] | None = None
) -> Route:
    path = f"/v1/jobs/{{job_id}}/{name}"
    return _get(name, path, summary, roles, query=query, reply=reply)


def _post(
    name: str,
    path: str,
    summary: str,
    roles: str,
    request: type[Any] | None = None,
    max_body_bytes: int = MAX_BODY_BYTES,
    *,
    makes: bool = False,
    **more: Any,
) -> Route:
    """A route that `makes` something may be refused, and found to have made it before."""
    if makes:
        more |= {"success": 201, "conflict": True}
    return Route(
        name=name,
        method="POST",
        path=path,
        summary=summary,
        roles=_roles(roles),
        request=request,
        request_shape=Shape.NONE if request is None else Shape.JSON,
        max_body_bytes=0 if request is None else max_body_bytes,
        **more,
    )


def _report(name: str, summary: str, request: type[Any], **more: Any) -> Route:
    more.setdefault("reply", replies.VerdictReply)
    return _post(name, f"/v1/{name}", summary, "W", request, **more)


def _decide(name: str, summary: str, command: type[Command], roles: str, **more: Any) -> Route:
    sets = more.pop("sets", {})
    request = requests.operator_message(command, frozenset(sets))
    return _post(
        name,
        more.pop("path", f"/v1/jobs/{{job_id}}/{name}"),
        summary,
        roles,
        request,
        command=command,
        sets=sets,
        reply=replies.JobReply,
        conflict=True,
        **more,
    )


ROUTES: tuple[Route, ...] = (
    # --- workers
    _post(
        "claim",
        "/v1/claim",
        "Claim jobs, and wait for the first one if asked to",
        "W",
        request=requests.ClaimMessage,
        reply=replies.ClaimReply,
    ),
    _report("start", "Report that an attempt starts", requests.StartMessage, finds="job"),
    _report("complete", "Report success", requests.CompleteMessage, finds="job"),
    _report("fail", "Report that an attempt failed", requests.FailMessage, finds="job"),
    _report(
        "release",
        "Release a job back to its queue without a failure",
        requests.ReleaseMessage,
        finds="job",
    ),
    _report(
        "heartbeat",
        "Renew leases",
        requests.HeartbeatsMessage,
        reply=replies.VerdictsReply,
        max_body_bytes=MAX_BATCH_BYTES,
    ),
    _report(
        "report",
        "Send several reports of any sort",
        requests.ReportsMessage,
        reply=replies.VerdictsReply,
        max_body_bytes=MAX_BATCH_BYTES,
    ),
    _report(
        "peek-leases",
        "Ask which leases need a heartbeat now",
        requests.PeekLeasesMessage,
        reply=replies.PeekLeasesReply,
        max_body_bytes=MAX_BATCH_BYTES,
    ),
    _report(
        "output",
        "Store the output of an attempt",
        requests.OutputMessage,
        reply=replies.KeptReply,
        finds="job",
    ),
    _post(
        "parents",
        "/v1/jobs/{job_id}/parents",
        "Read what the parents of a leased job returned",
        "W",
        request=requests.ParentsMessage,
        reply=replies.ParentsReply,
    ),
    Route(
        name="upload-artifact",
        method="PUT",
        path="/v1/jobs/{job_id}/artifacts/{name}",
        summary="Upload an artifact of the running attempt",
        roles=_roles("W"),
        reply=replies.StagingReply,
        request_shape=Shape.BYTES,
        max_body_bytes=MAX_ARTIFACT_BYTES,
    ),
    _list(
        "flows",
        "List flows",
        "COV",
        requests.FlowsQuery,
        replies.FlowsReply,
        about_all=(Limit.QUEUES, Limit.KINDS),
    ),
    _post(
        "redrive-flow",
        "/v1/flows/{flow_id}/redrive",
        "Replace the jobs of a flow that did not succeed",
        "O",
        request=requests.RedriveFlowMessage,
        reply=replies.FlowRedriveReply,
        makes=True,
    ),
    _get(
        "show-flow",
        "/v1/flows/{flow_id}",
        "Read a flow with its jobs",
        "COV",
        query=requests.NamespaceQuery,
        reply=replies.FlowReply,
    ),
    _post(
        "flow",
        "/v1/flows",
        "Enqueue jobs that wait for each other, all of them or none",
        "CPO",
        request=requests.FlowMessage,
        max_body_bytes=MAX_FLOW_BYTES,
        reply=replies.JobReply,
        makes=True,
    ),
    _post(
        "follow-up",
        "/v1/jobs/{job_id}/follow-ups",
        "Enqueue a follow-up of this job",
        "W",
        request=requests.FollowUpMessage,
        reply=replies.JobReply,
        makes=True,
    ),
    _post(
        "handler-flow",
        "/v1/jobs/{job_id}/flows",
        "Make a flow from this job's handler",
        "W",
        request=requests.HandlerFlowMessage,
        max_body_bytes=MAX_FLOW_BYTES,
        reply=replies.HandlerFlowReply,
        makes=True,
    ),
    _post(
        "alive",
        "/v1/workers/{worker}/alive",
        "Report that a worker is alive",
        "W",
        request=requests.AliveMessage,
        reply=replies.AliveReply,
    ),
    # --- clients
    _post(
        "enqueue",
        "/v1/jobs",
        "Enqueue a job",
        "CPO",
        request=requests.EnqueueMessage,
        reply=replies.JobReply,
        makes=True,
    ),
    _post(
        "enqueue-many",
        "/v1/jobs/batch",
        "Enqueue jobs",
        "CPO",
        request=requests.EnqueueManyMessage,
        reply=replies.JobsReply,
        max_body_bytes=MAX_BATCH_BYTES,
    ),
    _post(
        "lookup",
        "/v1/jobs/lookup",
        "Read several jobs",
        "CPOV",
        request=requests.LookupMessage,
        query=requests.BodiesQuery,
        reply=replies.JobPage,
    ),
    _post(
        "cancel-many",
        "/v1/jobs/cancel",
        "Stop jobs",
        "CO",
        request=requests.CancelManyMessage,
        reply=replies.JobsReply,
    ),
    _list(
        "jobs",
        "List jobs",
        "COV",
        requests.JobsQuery,
        replies.JobPage,
    ),
    _get(
        "job",
        "/v1/jobs/{job_id}",
        "Read a job",
        "CPOV",
        query=requests.BodiesQuery,
        reply=replies.JobReply,
    ),
    _of_job("events", "Read a job's log", "COV", replies.EventsReply, requests.EventsQuery),
    _of_job(
        "observations",
        "Read what was observed of a job beside its log",
        "COV",
        replies.ObservationsReply,
        requests.BodiesQuery,
    ),
    _get(
        "verify-job",
        "/v1/jobs/{job_id}/verification",
        "Check a job's row and log against the invariants",
        "COV",
        reply=replies.VerificationReply,
    ),
    _of_job("wait-reasons", "Read why a job waits", "COV", replies.WaitReasonsReply),
    _of_job("logs", "Read the output of a job's attempts", "CO", replies.LogsReply),
    _of_job("artifacts", "List a job's artifacts", "COV", replies.ArtifactsReply),
    _get(
        "artifact",
        "/v1/jobs/{job_id}/artifacts/{name}",
        "Download an artifact",
        "CO",
        reply_shape=Shape.BYTES,
        finds="job or artifact",
    ),
    _decide("cancel", "Stop a job", Cancel, "CO"),
    # --- operators
    _decide("stall", "Stall a job that a worker has", Stall, "O"),
    _decide("requeue", "Requeue a held job", Requeue, "O"),
    _decide("dead-letter", "Dead-letter a live job", DeadLetter, "O"),
    _decide(
        "redrive",
        "Redrive a dead letter as a new job",
        Redrive,
        "O",
        sets={"cause": EventCause.REDRIVE},
        success=201,
    ),
    _decide(
        "rerun",
        "Run a finished job again as a new job",
        Redrive,
        "O",
        sets={"cause": EventCause.RERUN},
        success=201,
    ),
    _list(
        "dead-letters",
        "List dead letters",
        "COV",
        requests.DeadLettersQuery,
        replies.DeadLetterPage,
    ),
    _list(
        "dead-letter-groups",
        "Count unresolved dead letters by kind and error",
        "COV",
        requests.DeadLetterGroupsQuery,
        DeadLetterGroupsReply,
    ),
    _decide(
        "discard",
        "Discard a dead letter: mark it as resolved",
        Discard,
        "O",
        path="/v1/dead-letters/{job_id}/discard",
    ),
    _list("queues", "List queues", "COV", requests.QueuesQuery, replies.QueuesReply),
    _post(
        "pause",
        "/v1/queues/{queue}/pause",
        "Pause a queue: nothing of it is granted",
        "O",
        query=requests.NamespaceQuery,
        reply=QueueRecord,
        sets={"paused": True},
        about_all=(Limit.KINDS,),
    ),
    _post(
        "resume",
        "/v1/queues/{queue}/resume",
        "Resume a queue",
        "O",
        query=requests.NamespaceQuery,
        reply=QueueRecord,
        sets={"paused": False},
        about_all=(Limit.KINDS,),
    ),
    _post(
        "limit",
        "/v1/queues/{queue}/limit",
        "Limit the leases of a queue, or its rate",
        "O",
        request=requests.LimitMessage,
        query=requests.NamespaceQuery,
        reply=QueueRecord,
        about_all=(Limit.KINDS,),
    ),
    _list(
        "kinds", "List what is set for kinds", "CWOV", requests.NamespaceQuery, replies.KindsReply
    ),
    _post(
        "set-kind",
        "/v1/kinds/{kind}/limit",
        "Set what holds for a kind, for all workers together",
        "O",
        request=requests.KindMessage,
        query=requests.NamespaceQuery,
        reply=KindRecord,
        about_all=(Limit.QUEUES,),
    ),
    _post(
        "declare-kind",
        "/v1/kinds/{kind}/declare",
        "Set what holds for a kind, if nothing was ever set for it",
        "WO",
        request=requests.KindMessage,
        query=requests.NamespaceQuery,
        reply=KindRecord,
        about_all=(Limit.QUEUES,),
        declares=True,
    ),
    _list("schedules", "List schedules", "COV", requests.SchedulesQuery, replies.SchedulesReply),
    _get(
        "schedule",
        "/v1/schedules/{schedule}/spec",
        "Read a schedule and its next times",
        "COV",
        query=requests.NamespaceQuery,
        reply=replies.ScheduleReply,
        finds="schedule",
    ),
    Route(
        name="put-schedule",
        method="PUT",
        path="/v1/schedules/{schedule}/spec",
        summary="Make a schedule, or change it; a worker makes new ones only",
        roles=_roles("OW"),
        request=requests.PutScheduleMessage,
        request_shape=Shape.JSON,
        max_body_bytes=MAX_BODY_BYTES,
        reply=replies.ScheduleReply,
        declares=True,
    ),
    *(
        _post(
            f"{word}-schedule",
            f"/v1/schedules/{{schedule}}/{word}",
            summary,
            "O",
            query=requests.NamespaceQuery,
            reply=replies.ScheduleReply,
            finds="schedule",
        )
        for word, summary in (
            ("pause", "Pause a schedule: it fires no more"),
            ("resume", "Resume a schedule"),
            ("remove", "Remove a schedule; its jobs stay"),
        )
    ),
    _post(
        "run-schedule",
        "/v1/schedules/{schedule}/run",
        "Make a job of a schedule now",
        "O",
        request=requests.RunScheduleMessage,
        query=requests.NamespaceQuery,
        reply=replies.ScheduleReply,
        finds="schedule",
    ),
    _list("workers", "List workers", "OV", requests.WorkersQuery, replies.WorkersReply),
    _post(
        "drain",
        "/v1/workers/{worker}/drain",
        "Drain a worker: it finishes its jobs and stops",
        "O",
        query=requests.NamespaceQuery,
        reply=replies.DrainReply,
        finds="worker",
    ),
    _get(
        "log",
        "/v1/events",
        "List the events of all jobs",
        "OV",
        query=requests.LogQuery,
        reply=replies.LogReply,
    ),
    _get(
        "tail",
        "/v1/events/tail",
        "Follow the events of all jobs: none is missed and none comes twice",
        "OV",
        query=requests.TailQuery,
        reply=replies.TailReply,
    ),
    _list(
        "stats", "Count the events of a span of time", "OV", requests.StatsQuery, replies.StatsReply
    ),
    _list(
        "overview",
        "Read what a namespace is doing: rates, depths, durations and what needs attention",
        "OV",
        requests.OverviewQuery,
        OverviewReply,
    ),
    # --- every role
    _get("time", "/v1/time", "Read the store's clock", "CPWOV", reply=replies.TimeReply),
    _get("openapi", "/openapi.json", "Read this API as OpenAPI 3.1", "CPWOV", reply=None),
    _get(
        "metrics",
        "/metrics",
        "Read Prometheus metrics",
        "OV",
        reply_shape=Shape.TEXT,
        about_all=(Limit.QUEUES, Limit.KINDS),  # not every metric is split by both [OB2]
    ),
    _get("healthz", "/healthz", "Whether the server is alive", reply=replies.HealthReply),
    _get("readyz", "/readyz", "Whether the server is ready for work", reply=replies.HealthReply),
)

BY_NAME: dict[str, Route] = {route.name: route for route in ROUTES}


def route_of(command: Command) -> Route:
    """The route by which a client sends a command about one job."""
    for route in ROUTES:
        if route.command is type(command) and all(
            getattr(command, name) == value for name, value in route.sets.items()
        ):
            return route
    raise LookupError(f"no route takes {type(command).__name__}")
