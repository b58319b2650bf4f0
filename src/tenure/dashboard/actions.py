"""Actions: what a visitor can change, each a route of `/v1`, confirmed on a page of its own.

`GET /actions/NAME?target=…` shows what will happen, to what, and asks for the fields; it changes
nothing. `POST` of the same path asks the route once for each target. With JavaScript the page opens
as a dialog. A page offers an action by the macro `action` of macros.html, which leaves it out where
the visitor's role may not use it.
"""

import os
from collections import Counter
from collections.abc import Awaitable, Callable, Mapping, Sequence
from typing import Any

import msgspec
from starlette.responses import Response

from tenure.core.ids import ENTROPY_BYTES, JobId, new_job_id
from tenure.core.views.dead_letter_groups import MAX_GROUP_IDS
from tenure.core.vocabulary import Cause
from tenure.dashboard.rendering import counted_words, url
from tenure.dashboard.sessions import Notice
from tenure.dashboard.visits import Page, Visit, local_path
from tenure.errors import InvalidInput, UnknownJob
from tenure.protocol.replies import JobReply, JobsReply, ProblemCode
from tenure.protocol.requests import MAX_CANCELLED
from tenure.protocol.routes import BY_NAME, Route
from tenure.server.calls import Message
from tenure.server.problems import RefusedRequest

REQUEST_ID_BYTES = 12
MAX_TARGETS = MAX_GROUP_IDS
"""How many things one action may be about."""


class Field(msgspec.Struct, frozen=True, kw_only=True):
    """A field of an action's form, and of the route's message. An empty one is left out."""

    name: str
    label: str
    hint: str = ""
    kind: str = "text"
    """`text`, `number`, or `choice` of one of `choices`."""
    choices: tuple[tuple[str, str], ...] = ()
    """Values and what they mean."""
    is_required: bool = False


class Target(msgspec.Struct, frozen=True):
    """What an action is about: the part of the route's path that names it, what one is called, and
    the page that shows such things."""

    part: str
    noun: str
    page: str


JOB = Target("job_id", "job", "/jobs")
DEAD_LETTER = Target("job_id", "dead letter", "/dead-letters")
FLOW = Target("flow_id", "flow", "/flows")
QUEUE = Target("queue", "queue", "/queues")
KIND = Target("kind", "kind", "/kinds")
WORKER = Target("worker", "worker", "/workers")
SCHEDULE = Target("schedule", "schedule", "/schedules")


class Action(msgspec.Struct, frozen=True, kw_only=True):
    """A change that visitors may ask for. `name` is that of its route."""

    name: str
    target: Target
    verb: str
    """What the button says, and the link that leads here: `Pause`."""
    phrase: str = ""
    """How verb and targets are one phrase, if not in this order: `Run {} again`."""
    explains: str
    """What will happen, in a sentence or two."""
    done: str
    """What was done, after the number or the name: `paused`."""
    done_many: str = ""
    """The same after several, if it differs: `redriven as {} new jobs`."""
    icon: str
    fields: tuple[Field, ...] = ()
    is_severe: bool = False
    """Whether it cannot be undone."""
    message: Callable[[Mapping[str, str]], dict[str, Any]] | None = None
    """From the form's texts to the message, where that is more than the fields."""
    many: str = ""
    """The route that does it to several jobs at once: it takes them as `job_ids`, and the same
    message otherwise."""
    current: Callable[[Visit, str], Awaitable[Mapping[str, str]]] | None = None
    """What is set for a target now, by the names of the fields: the form opens with it."""

    def about(self, targets: int) -> str:
        """The action on this many targets, in words: `Pause 2 queues`."""
        noun = self.target.noun
        what = noun if targets == 1 else counted_words(targets, noun)
        return (self.phrase or f"{self.verb} {{}}").format(what)

    def body(self, form: Mapping[str, str]) -> dict[str, Any]:
        """The route's message, from a form. Raises `InvalidInput`."""
        if self.message is not None:
            return self.message(form)
        found: dict[str, Any] = {}
        for field in self.fields:
            text = form.get(field.name, "").strip()
            if not text:
                if field.is_required:
                    raise InvalidInput(field.name, "is missing", hint=f"fill in {field.label}")
                continue
            found[field.name] = whole_number(field.name, text) if field.kind == "number" else text
        return found


def whole_number(name: str, text: str) -> int:
    """The number that a field says. Raises `InvalidInput`."""
    if not (text.isascii() and text.isdecimal() and len(text) <= 18):
        raise InvalidInput(name, f"{ascii(text)[:40]} is not a whole number")
    return int(text)


class Outcome(msgspec.Struct):
    """How an action went, target by target."""

    done: list[str] = []
    refused: Counter[str] = msgspec.field(default_factory=Counter)
    flow_ids: set[str] = set()
    """The flows whose jobs were refused because only the whole flow can be redriven."""

    def refuse(self, reply: object, cause: Cause) -> None:
        """Keep why the core refused a target."""
        if cause is Cause.PART_OF_FLOW and isinstance(reply, JobReply) and reply.job is not None:
            self.flow_ids.add(str(reply.job.flow_id))
            self.refused["refused: a job of a flow is redriven with its flow"] += 1
        else:
            self.refused[f"refused: {str(cause).replace('_', ' ')}"] += 1

    def notice(self, action: Action) -> Notice:
        """What the next page says. Jobs that were refused as part of a flow lead to its redrive."""
        notice = self._result(action)
        if len(self.flow_ids) != 1:
            return notice
        path = url("/flows", *self.flow_ids, "redrive")
        return msgspec.structs.replace(notice, link_text="Redrive the flow", link_path=path)

    def _result(self, action: Action) -> Notice:
        refused = "; ".join(f"{number} × {why}" for why, number in self.refused.most_common(3))
        if not self.done:
            one = self.refused.total() == 1
            return Notice(next(iter(self.refused)) if one else refused, is_good=False)
        only = len(self.done) == 1 and not self.refused
        what = self.done[0] if only else counted_words(len(self.done), action.target.noun)
        done = action.done
        if len(self.done) > 1 and action.done_many:
            done = action.done_many.format(len(self.done))
        text = f"{action.target.noun} {what}: {done}" if only else f"{what}: {done}"
        text = text[0].upper() + text[1:]
        return Notice(f"{text}. Not done: {refused}" if refused else text, is_good=not refused)


def new_request_id() -> str:
    """Names one confirmation: the log has it beside what was done."""
    return f"page-{os.urandom(REQUEST_ID_BYTES).hex()}"


async def perform(
    visit: Visit, action: Action, targets: list[str], form: Mapping[str, str]
) -> Outcome:
    """Ask the route for each target, or for many at once where there is such a route. One that is
    refused does not stop the others, unless the visitor may do none of them."""
    outcome = Outcome()
    body = action.body(form)
    route = BY_NAME[action.name]
    # A form that is sent twice asks for the same thing twice, not for two things. [DB22]
    if takes(route, "request_id"):
        body["request_id"] = form.get("request_id") or new_request_id()
    elif takes(route, "job_id") and form.get("job_id"):
        body["job_id"] = form["job_id"]
    if action.many and len(targets) > 1:
        await _perform_many(visit, action.many, targets, body, outcome)
        return outcome
    for target in targets:
        try:
            response = await visit.response(
                action.name, path={action.target.part: target}, body=body
            )
        except (RefusedRequest, InvalidInput, UnknownJob) as refused:
            if len(targets) == 1:
                raise
            outcome.refused[refused.message] += 1
            continue
        assert isinstance(response, Message)
        reply = response.message
        cause = getattr(reply, "cause", None)
        if response.status_code >= 400 and cause is not None:
            outcome.refuse(reply, cause)
        else:
            outcome.done.append(target)
    return outcome


async def _perform_many(
    visit: Visit, route: str, targets: list[str], body: dict[str, Any], outcome: Outcome
) -> None:
    """Ask for as many jobs at a time as the route takes, in this order. What it cannot read stops
    all of them: a form that a page made has nothing like that."""
    for start in range(0, len(targets), MAX_CANCELLED):
        some = targets[start : start + MAX_CANCELLED]
        answer = await visit.ask(route, JobsReply, body={**body, "job_ids": some})
        for target, reply in zip(some, answer.replies, strict=True):
            if reply.cause is None:
                outcome.done.append(target)
            else:
                outcome.refuse(reply, reply.cause)


def takes(route: Route, field: str) -> bool:
    """Whether the route's message has a field: by `request_id`, or by the `job_id` of the job that
    it makes, a route recognises a request that it has carried out before."""
    return field in getattr(route.request, "__struct_fields__", ())


async def ask_first(
    visit: Visit,
    action: Action,
    targets: Sequence[str],
    *,
    back: str,
    remarks: Sequence[str] = (),
    left: int = 0,
    names: Mapping[str, str] | None = None,
) -> Response:
    """The page that asks before an action. `remarks` say more about its targets, `left` how many
    more there are than one action may be about. A target in `names` is shown by its name."""
    current: Mapping[str, str] = {}
    if action.current is not None and len(targets) == 1:
        current = await action.current(visit, targets[0])
    return await visit.show(
        "confirm.html",
        action=action,
        targets=targets,
        remarks=remarks,
        left=left,
        back=back,
        names=names or {},
        given=lambda name: visit.query(name) or current.get(name),
        request_id=new_request_id(),
        job_id=_made_job_id(visit) if takes(BY_NAME[action.name], "job_id") else None,
    )


def _made_job_id(visit: Visit) -> JobId:
    """The id of the job that a confirmed action makes."""
    return new_job_id(visit.instant, os.urandom(ENTROPY_BYTES))


def action_pages(actions: tuple[Action, ...]) -> tuple[Page, ...]:
    """The pages of these actions: one that asks, and one that does it."""
    by_name = {action.name: action for action in actions}
    assert len(by_name) == len(actions)

    def found(visit: Visit) -> Action:
        action = by_name.get(visit.part("action"))
        if action is None:
            raise RefusedRequest(404, ProblemCode.UNKNOWN_ROUTE, "there is no such action")
        return action

    async def confirm(visit: Visit) -> Response:
        action = found(visit)
        targets = checked_targets(visit.queries("target"), action)
        back = local_path(visit.query("back") or "", action.target.page)
        return await ask_first(visit, action, targets, back=back)

    async def perform_form(visit: Visit) -> Response:
        action = found(visit)
        targets = checked_targets(visit.fields("target"), action)
        outcome = await perform(visit, action, targets, dict(visit.form))
        back = local_path(visit.field("back"), action.target.page)
        return visit.go(back, outcome.notice(action))

    return (
        Page("confirm-action", "/actions/{action}", confirm),
        Page("action", "/actions/{action}", perform_form, method="POST"),
    )


def checked_targets(targets: Sequence[str], action: Action) -> list[str]:
    """Each target once. Raises `InvalidInput` if there are none, or too many."""
    unique = list(dict.fromkeys(targets))
    if not unique:
        hint = f"choose at least one {action.target.noun} on the page before"
        raise InvalidInput("target", f"no {action.target.noun} is chosen", hint=hint)
    if len(unique) > MAX_TARGETS:
        raise InvalidInput("target", f"at most {MAX_TARGETS} at a time")
    return unique
