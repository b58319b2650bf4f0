"""THE table of routes: what can be asked over HTTP, by whom, with which message, and the answer.

The server mounts it, the client calls by it, the OpenAPI description, the reference page and the
role matrix are made of it. A route that is not here does not exist; one that names no role is
public, and only what says nothing may be. [H1] [H22]
"""

from collections.abc import Callable
from enum import StrEnum
from functools import partial
from typing import Any
from urllib.parse import quote

import msgspec

from tenure.core.artifacts import MAX_ARTIFACT_BYTES
from tenure.core.claims import QueueState
from tenure.core.commands import Cancel, Command, DeadLetter, Discard, Redrive, Requeue
from tenure.core.vocabulary import EventCause, Role
from tenure.protocol import replies, requests
from tenure.protocol.fields import JobIdField, Name, QueueField, WorkerField
from tenure.protocol.translation import to_core, to_wire

MAX_BODY_BYTES = (1 << 20) + (64 << 10)
"""A payload, result or checkpoint of the largest size, and what is said around it."""

MAX_BATCH_BYTES = 4 << 20

C, P, W, O, V = Role  # noqa: E741 - the table's columns: client, producer, worker, operator, viewer

PATH_FIELDS: dict[str, Any] = {
    "job_id": JobIdField,
    "name": Name,
    "queue": QueueField,
    "worker": WorkerField,
}
"""What stands in braces in a path. Names may contain slashes, which are percent-encoded. [H3]"""


class Shape(StrEnum):
    """What a body is."""

    NONE = "none"
    JSON = "json"
    BYTES = "bytes"
    TEXT = "text"


class Route(msgspec.Struct, frozen=True, kw_only=True):
    """One thing that can be asked.

    `reply` is the message of a success; `conflict` says that a refusal by the coordinator comes as
    409 with the same message. Only worker routes answer verdicts, and those are always 200. [H4]

    A route about one job may be a command of the core: then its request has the command's fields,
    `sets` are those that the route itself stands for, and nothing else has to know the command.
    """

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
    """What a 404 is about, where there can be one."""
    command: type[Command] | None = None
    sets: dict[str, Any] = {}
    to_command: Callable[..., Command] | None = None
    to_message: Callable[[Command], Any] | None = None

    def url(self, **parts: str) -> str:
        """The path with its parts filled in."""
        return self.path.format(**{name: quote(part, safe="") for name, part in parts.items()})

    @property
    def is_public(self) -> bool:
        """Whether it is answered without a token."""
        return not self.roles

    @property
    def only_reads(self) -> bool:
        """Whether it changes nothing, so that it can be refused after it was carried out."""
        return self.method == "GET" or self.name == "lookup"

    @property
    def path_fields(self) -> tuple[str, ...]:
        """What stands in braces in its path."""
        return tuple(name for name in PATH_FIELDS if f"{{{name}}}" in self.path)


def _get(name: str, path: str, summary: str, *roles: Role, **more: Any) -> Route:
    return Route(name=name, method="GET", path=path, summary=summary, roles=roles, **more)


def _post(
    name: str,
    path: str,
    summary: str,
    *roles: Role,
    request: type[Any] | None = None,
    max_body_bytes: int = MAX_BODY_BYTES,
    **more: Any,
) -> Route:
    return Route(
        name=name,
        method="POST",
        path=path,
        summary=summary,
        roles=roles,
        request=request,
        request_shape=Shape.NONE if request is None else Shape.JSON,
        max_body_bytes=0 if request is None else max_body_bytes,
        **more,
    )


def _report(name: str, summary: str, request: type[Any], **more: Any) -> Route:
    more.setdefault("reply", replies.VerdictReply)
    return _post(name, f"/v1/{name}", summary, W, request=request, **more)


def _decide(name: str, summary: str, command: type[Command], *roles: Role, **more: Any) -> Route:
    sets = more.pop("sets", {})
    request = requests.operator_message(command, frozenset(sets))
    return _post(
        name,
        more.pop("path", f"/v1/jobs/{{job_id}}/{name}"),
        summary,
        *roles,
        request=request,
        command=command,
        sets=sets,
        to_command=partial(to_core(request, command, given=("job_id", "actor", *sets)), **sets),
        to_message=to_wire(command, request),
        query=requests.BodiesQuery,
        reply=replies.JobReply,
        conflict=True,
        finds="job",
        **more,
    )


ROUTES: tuple[Route, ...] = (
    # --- workers
    _post(
        "claim",
        "/v1/claim",
        "Ask for work, and wait for it",
        W,
        request=requests.ClaimMessage,
        reply=replies.ClaimReply,
    ),
    _report("start", "Begin to execute", requests.StartMessage, finds="job"),
    _report("complete", "Report success", requests.CompleteMessage, finds="job"),
    _report("fail", "Report a failed attempt", requests.FailMessage, finds="job"),
    _report("release", "Hand a job back unharmed", requests.ReleaseMessage, finds="job"),
    _report(
        "heartbeat",
        "Renew leases",
        requests.HeartbeatsMessage,
        reply=replies.VerdictsReply,
        max_body_bytes=MAX_BATCH_BYTES,
    ),
    _report(
        "report",
        "Send any reports together",
        requests.ReportsMessage,
        reply=replies.VerdictsReply,
        max_body_bytes=MAX_BATCH_BYTES,
    ),
    _post(
        "look",
        "/v1/look",
        "See which leases have news",
        W,
        request=requests.LookMessage,
        reply=replies.LookReply,
        max_body_bytes=MAX_BATCH_BYTES,
    ),
    _report(
        "output",
        "Leave what a handler wrote",
        requests.OutputMessage,
        reply=replies.KeptReply,
        finds="job",
    ),
    Route(
        name="upload-artifact",
        method="PUT",
        path="/v1/jobs/{job_id}/artifacts/{name}",
        summary="Leave a file with the attempt",
        roles=(W,),
        reply=replies.StagingReply,
        finds="job",
        request_shape=Shape.BYTES,
        max_body_bytes=MAX_ARTIFACT_BYTES,
    ),
    _post(
        "follow-up",
        "/v1/jobs/{job_id}/follow-ups",
        "Make a job that follows from this one",
        W,
        request=requests.FollowUpMessage,
        reply=replies.JobReply,
        success=201,
        conflict=True,
        finds="job",
    ),
    _post(
        "alive",
        "/v1/workers/{worker}/alive",
        "Give a sign of life",
        W,
        request=requests.AliveMessage,
        reply=replies.AliveReply,
    ),
    # --- clients
    _post(
        "enqueue",
        "/v1/jobs",
        "Make a job",
        C,
        P,
        O,
        request=requests.EnqueueMessage,
        query=requests.BodiesQuery,
        reply=replies.JobReply,
        success=201,
        conflict=True,
    ),
    _post(
        "enqueue-many",
        "/v1/jobs/batch",
        "Make jobs",
        C,
        P,
        O,
        request=requests.EnqueueManyMessage,
        query=requests.BodiesQuery,
        reply=replies.JobsReply,
        max_body_bytes=MAX_BATCH_BYTES,
    ),
    _post(
        "lookup",
        "/v1/jobs/lookup",
        "Look at several jobs",
        C,
        P,
        O,
        V,
        request=requests.LookupMessage,
        query=requests.BodiesQuery,
        reply=replies.JobPage,
    ),
    _get("jobs", "/v1/jobs", "List jobs", C, O, V, query=requests.JobsQuery, reply=replies.JobPage),
    _get(
        "job",
        "/v1/jobs/{job_id}",
        "Look at a job",
        C,
        P,
        O,
        V,
        query=requests.BodiesQuery,
        reply=replies.JobReply,
        finds="job",
    ),
    _get(
        "events",
        "/v1/jobs/{job_id}/events",
        "Read a job's log",
        C,
        O,
        V,
        query=requests.EventsQuery,
        reply=replies.EventsReply,
        finds="job",
    ),
    _get(
        "logs",
        "/v1/jobs/{job_id}/logs",
        "Read what its attempts wrote",
        C,
        O,
        reply=replies.LogsReply,
        finds="job",
    ),
    _get(
        "artifacts",
        "/v1/jobs/{job_id}/artifacts",
        "List a job's artifacts",
        C,
        O,
        V,
        reply=replies.ArtifactsReply,
        finds="job",
    ),
    _get(
        "artifact",
        "/v1/jobs/{job_id}/artifacts/{name}",
        "Download an artifact",
        C,
        O,
        reply_shape=Shape.BYTES,
        finds="job or artifact",
    ),
    _decide("cancel", "Stop a job", Cancel, C, O),
    # --- operators
    _decide("requeue", "Let a held job go on", Requeue, O),
    _decide("dead-letter", "Take a job out of circulation", DeadLetter, O),
    _decide(
        "redrive",
        "Make a new job of a dead letter",
        Redrive,
        O,
        sets={"cause": EventCause.REDRIVE},
        success=201,
    ),
    _decide(
        "rerun",
        "Make a new job of a finished one",
        Redrive,
        O,
        sets={"cause": EventCause.RERUN},
        success=201,
    ),
    _get(
        "dead-letters",
        "/v1/dead-letters",
        "List dead letters",
        C,
        O,
        V,
        query=requests.DeadLettersQuery,
        reply=replies.DeadLetterPage,
    ),
    _decide(
        "discard",
        "Close the file on a dead letter",
        Discard,
        O,
        path="/v1/dead-letters/{job_id}/discard",
    ),
    _get(
        "queues",
        "/v1/queues",
        "List queues",
        C,
        O,
        V,
        query=requests.NamespaceQuery,
        reply=replies.QueuesReply,
    ),
    _post(
        "pause",
        "/v1/queues/{queue}/pause",
        "Grant nothing more",
        O,
        query=requests.NamespaceQuery,
        reply=QueueState,
        sets={"paused": True},
    ),
    _post(
        "resume",
        "/v1/queues/{queue}/resume",
        "Grant again",
        O,
        query=requests.NamespaceQuery,
        reply=QueueState,
        sets={"paused": False},
    ),
    _post(
        "limit",
        "/v1/queues/{queue}/limit",
        "Limit a queue's leases",
        O,
        request=requests.LimitMessage,
        query=requests.NamespaceQuery,
        reply=QueueState,
    ),
    _get(
        "workers",
        "/v1/workers",
        "List workers",
        O,
        V,
        query=requests.NamespaceQuery,
        reply=replies.WorkersReply,
    ),
    _post(
        "drain",
        "/v1/workers/{worker}/drain",
        "Ask a worker to stop",
        O,
        query=requests.NamespaceQuery,
        reply=replies.DrainReply,
        finds="worker",
    ),
    _get(
        "stats",
        "/v1/stats",
        "Count the events of a span of time",
        O,
        V,
        query=requests.StatsQuery,
        reply=replies.StatsReply,
    ),
    # --- everybody
    _get("time", "/v1/time", "Read the store's clock", C, P, W, O, V, reply=replies.TimeReply),
    _get("openapi", "/openapi.json", "This description", C, P, W, O, V, reply=None),
    _get("metrics", "/metrics", "Prometheus metrics", O, V, reply_shape=Shape.TEXT),
    _get("healthz", "/healthz", "Whether the server lives", reply=replies.HealthReply),
    _get("readyz", "/readyz", "Whether it is ready for work", reply=replies.HealthReply),
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
