"""Calls of job functions, checked and encoded but not sent, and what stands for jobs that were."""

from typing import Any, Generic, TypeVar

import msgspec

from tenure.core.checks import MAX_DEDUPE_KEY
from tenure.core.commands import JobSpec
from tenure.core.ids import JobId
from tenure.errors import InvalidInput

_R_co = TypeVar("_R_co", covariant=True)


class Call(Generic[_R_co]):
    """A call of a job function, checked and encoded but not sent: for `app.enqueue_many` and
    `ctx.enqueue`.

    Calls are equal if they ask for the same job, whatever id it would get. `_R_co` is what the
    function returns.
    """

    __slots__ = ("has_chosen_id", "job_id", "spec")

    def __init__(self, spec: JobSpec, job_id: JobId, *, has_chosen_id: bool = False) -> None:
        self.spec = spec
        self.job_id = job_id
        """The id of the job that `enqueue_many` makes: sending a call twice makes one job."""
        self.has_chosen_id = has_chosen_id
        """Whether the caller chose the id; `ctx.enqueue` takes no such call. [D8]"""

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Call) and other._asked() == self._asked()

    def __hash__(self) -> int:
        return hash((self.spec.kind, self.spec.payload))

    def _asked(self) -> tuple[JobSpec, JobId | None]:
        return self.spec, self.job_id if self.has_chosen_id else None

    def __repr__(self) -> str:
        return f"<Call of {self.spec.kind}, job {self.job_id}>"


class Enqueued(msgspec.Struct, frozen=True):
    """A job that a handler enqueued; `app.get(enqueued.id)` is a handle on it."""

    id: JobId
    is_new: bool
    """Whether this call made the job. If not, an earlier attempt did, or a job has the key."""


class JobHandle:
    """Stands for a job that was sent."""

    id: JobId


def checked_call(call: object, *, example: str) -> Call[Any]:
    """This, if it is a call of a job; otherwise the error shows how one is given."""
    if not isinstance(call, Call):
        raise InvalidInput(
            "call", f"{type(call).__name__} is not a call of a job", hint=f"write {example}"
        )
    return call


def check_id_is_derived(call: Call[Any]) -> None:
    """Refuse a call in a handler whose job was given an id. [D8]"""
    if call.has_chosen_id:
        raise InvalidInput(
            "job_id",
            "the id of a job that a handler enqueues follows from the handler's own job",
            hint="omit job_id",
        )


def checked_step(step: object) -> str:
    """The name of a step of a handler's work, if this is one."""
    if type(step) is int:
        step = str(step)
    if not isinstance(step, str) or len(step) > MAX_DEDUPE_KEY or not step.isprintable():
        raise InvalidInput(
            "step",
            "is not the name of a step",
            hint=f"give a text of at most {MAX_DEDUPE_KEY} printable characters, or a number",
        )
    return str.__str__(step)


def checked_follow_up(call: object, step: object) -> tuple[JobSpec, str]:
    """What `ctx.enqueue` was given, if it is a call and the name of a step."""
    checked = checked_call(call, example="ctx.enqueue(function.call(argument, …))")
    check_id_is_derived(checked)
    return checked.spec, checked_step(step)


def already_enqueued(call: JobSpec, step: str) -> InvalidInput:
    """The error of an attempt that enqueues two jobs under one id."""
    return _already(f"enqueued a job of the kind {call.kind}", step, "ctx.enqueue(…, step=…)")


def already_made(step: str) -> InvalidInput:
    """The error of an attempt that makes two flows under one id."""
    return _already("made a flow", step, "ctx.flow(step=…)")


def _already(done: str, step: str, example: str) -> InvalidInput:
    at = f" at the step {step!a}" if step else ""
    return InvalidInput(
        "step",
        f"this attempt has already {done}{at}",
        hint=f"name each one, the same in every attempt: {example}",
    )
