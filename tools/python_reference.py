"""Prints docs/reference/python.md, made from the public names.

One line each: a signature and the first paragraph of its docstring. The guides explain; what stands
here and nowhere in the code are the meanings of attributes, and one without a meaning is an error.
"""

import inspect
import json
import re
import sys
from collections.abc import Iterator, Mapping
from enum import StrEnum
from types import EllipsisType, NoneType, UnionType
from typing import Any, Literal, Union, Unpack, get_args, get_origin

import msgspec

import tenure
from tenure import contract, testing
from tenure.client.administration import DeadLetters, Jobs, Kinds, Queues, Workers
from tenure.client.app import JobOptions
from tenure.client.flows import Flows
from tenure.client.records import DeadLetterRecord
from tenure.client.schedules import Schedules
from tenure.handlers.options import EnqueueOptions
from tenure.protocol.records import (
    ArtifactRecord,
    ErrorRecord,
    EventRecord,
    JobOutcome,
    KindRecord,
    ObservationRecord,
    QueueRecord,
    ResolutionRecord,
    ScheduleRecord,
    WorkerRecord,
)

_SENTENCE = re.compile(r" \[[A-Z]+[0-9.]+\]")
_MADE_BY_USERS = ("Tenure", "Retry", "FakeContext")
"""Classes that users construct; they get instances of the others."""

_INTERNAL = (
    "transaction_on",
    "atransaction_on",
    "coordination",
    "own_url",
    "own_token",
    "command",
    "handler",
)
"""Without an underscore because other modules of ours use them; not for applications."""

_OPENING = """\
# The Python API

`make docs-generated` writes this page from the code: one line for each public name. The guides say
how to use them: [jobs](../guide/jobs.md), [workers](../guide/worker.md) and, for servers,
[http](../guide/http.md). Names that begin with an underscore, and modules that this page does not
name, may change at any time.

A duration is `"250ms"`, `"90s"`, `"5m"`, `"2h"`, `"7d"`, a `timedelta` or a number of seconds.
"""

_CLASSES = (
    "JobFunction",
    "Enqueueable",
    "Retry",
    "Job",
    "JobStatus",
    "Flow",
    "FlowJob",
    "HandlerFlow",
    "Context",
    "Attempt",
    "Call",
    "Enqueued",
)

_ADMINISTRATION = {
    "app.jobs": Jobs,
    "app.queues": Queues,
    "app.kinds": Kinds,
    "app.schedules": Schedules,
    "app.workers": Workers,
    "app.dead_letters": DeadLetters,
    "app.flows": Flows,
}

_RECORDS = (
    tenure.JobRecord,
    JobOutcome,
    ErrorRecord,
    EventRecord,
    ObservationRecord,
    ArtifactRecord,
    QueueRecord,
    KindRecord,
    ScheduleRecord,
    WorkerRecord,
    DeadLetterRecord,
    ResolutionRecord,
)

_RECORDS_OPENING = """\
What is shown of jobs, queues and so on. `record.to_dict()` gives the document of the same name that
HTTP and `--json` give, ready for `json.dumps`; `dict(record)` does likewise. FastAPI and pydantic
serialise a record as it is. Times are aware datetimes in UTC, durations are seconds.
"""

ATTRIBUTES: Mapping[str, Mapping[str, str]] = {
    "Context": {
        "job_id": "The job's id.",
        "kind": "What it does: the name of its function, or as `name=` says.",
        "queue": "The queue it came from.",
        "attempt": "1 for the first attempt; rises with every claim.",
        "fence": "The fencing token: higher than that of every earlier attempt of this job.",
        "correlation_id": "As it was enqueued with, or taken over from the job that enqueued it;"
        " otherwise the job's own id.",
        "trace_id": "As it was enqueued with: a traceparent or any text; None without one.",
        "traceparent": "W3C's, to hand on to whatever the handler calls; None without one.",
        "meta": "What the job was enqueued with, read-only; empty without any.",
        "scheduled_for": "The nominal time in UTC, if a schedule made the job; else None.",
        "checkpoint": "What the last attempt saved; None at first.",
    },
    "Attempt": {
        "kind": "The kind of the job.",
        "ctx": "The `Context` that the handler gets.",
        "arguments": "The handler's arguments by name.",
        "is_ended": "Whether the handler has ended.",
        "result": "What the handler returned; None before that.",
        "error": "What the handler, or a hook within this one, raised; None otherwise.",
    },
    "Job": {
        "id": "Its id.",
        "deduplicated": "Whether `enqueue` found the key held: then it is the earlier job.",
    },
    "Flow": {"id": "Its id, which each of its jobs shows.", "name": "As it was given."},
    "HandlerFlow": {
        "id": "Its id, the same in every attempt.",
        "name": "What others see.",
        "is_new": "Whether this attempt made the flow; None before the end of the block.",
    },
    "FlowJob": {
        "id": "The job's id.",
        "name": "Its name within the flow.",
        "call": "The call that it was made of.",
    },
    "Inline": {"clock": "A `FakeClock`: the time it is for these jobs."},
    "FakeContext": {
        "saved": "Checkpoints, in order.",
        "progressed": "What `progress` was told, in order.",
        "logged": "Lines, in order.",
        "completed": "Results of committed `ctx.transaction` blocks.",
        "artifacts": "Files by name.",
        "enqueued": "Calls given to `enqueue`, in order.",
    },
    "Call": {
        "spec": "What the job is to be: its kind, queue, payload and so on.",
        "job_id": "The id of the job that `enqueue_many` makes: sending it twice makes one job.",
    },
    "Enqueued": {
        "id": "The job's id.",
        "is_new": "Whether this call made it: not if an earlier attempt did, or if another job has"
        " the key.",
    },
}
"""Attributes that only an instance has, or that have no docstring."""

_CONTRACT = """\
[Its page](contract.md) shows how to use it. Besides these functions it has the tables `TABLE`,
`EDGES` and `ROW_TABLE`, the names of fields and rules that the checks use, the vocabulary and the
paths of the two JSON files.
"""

_CHECKS = (
    contract.is_allowed,
    contract.check_row,
    contract.check_log,
    contract.response_matrix,
    contract.response_vectors,
)

_FIXTURE = """\
`pytest_plugins = ["tenure.testing.fixtures"]` gives pytest a fixture `tenure_inline`, which is
`inline(app)` for one test; it needs a fixture `tenure_app` of yours that returns the application.
"""


def page() -> str:
    """The whole page."""
    public = {name: getattr(tenure, name) for name in tenure.__all__}
    errors = {name: each for name, each in public.items() if _is_error(each)}
    lines = [_OPENING]
    lines += _class("Tenure", "## ")
    lines += _options("Options of `@app.job`", JobOptions)
    lines += _options("Options of `using`, and of `app.enqueue` and `app.call`", EnqueueOptions)
    for name in _CLASSES:
        lines += _class(name, "## ")
    for name, cls in _ADMINISTRATION.items():
        lines += [f"## `{name}`", "", _paragraph(cls), "", *_members(cls), ""]
    lines += ["## Records", "", _RECORDS_OPENING]
    for record in _RECORDS:
        lines += _record(record)
    lines += ["## Errors", "", *_errors(errors), ""]
    lines += ["## `tenure.contract`", "", _paragraph(contract), "", _CONTRACT]
    lines += [f"- `{_signature(each.__name__, each)}`: {_paragraph(each)}" for each in _CHECKS]
    lines += ["", "## `tenure.testing`", "", _paragraph(testing), ""]
    block = _signature("inline", testing.inline).partition(" -> ")[0]
    lines += [f"- `with {block} as jobs`: {_paragraph(testing.inline)}", ""]
    for name in ("Inline", "FakeClock", "FakeContext"):
        lines += _class(name, "### ")
    lines += [_FIXTURE]
    return "\n".join(lines)


def _is_error(value: Any) -> bool:
    return isinstance(value, type) and issubclass(value, tenure.TenureError)


def _class(name: str, heading: str) -> Iterator[str]:
    cls = getattr(tenure, name, None) or getattr(testing, name)
    yield f"{heading}`{name}`"
    yield ""
    if name in _MADE_BY_USERS:
        yield f"`{_signature(name, cls)}`"
        yield ""
    yield _paragraph(cls)
    yield ""
    if issubclass(cls, StrEnum):
        yield ", ".join(f"`{each.value}`" for each in cls) + "."
    else:
        yield from _members(cls)
    yield ""


def _record(cls: type[msgspec.Struct]) -> Iterator[str]:
    yield f"### `{cls.__name__}`"
    yield ""
    yield _paragraph(cls)
    yield ""
    for field in msgspec.structs.fields(cls):
        if field.type is not Any:
            yield f"- `{field.name}: {_plain(field.type)}`"
        else:
            yield f"- `{field.name}`"
    yield ""


def _members(cls: type) -> Iterator[str]:
    for name, meaning in ATTRIBUTES.get(cls.__name__, {}).items():
        yield f"- `{name}`: {meaning}"
    for name in _in_order(cls):
        member = inspect.getattr_static(cls, name)
        if isinstance(member, property):
            assert member.fget is not None
            returned = inspect.signature(member.fget).return_annotation
            yield f"- `{name}: {_plain(returned)}`: {_paragraph(member.fget)}"
        elif inspect.isfunction(member):
            word = "await " if inspect.iscoroutinefunction(member) else ""
            yield f"- `{word}{_signature(name, member)}`: {_paragraph(member)}"


def _in_order(cls: type) -> list[str]:
    """What a class and its bases here have, each as it is written, its own first."""
    ours = [each for each in cls.__mro__ if each.__module__.startswith("tenure.")]
    names = dict.fromkeys(name for each in ours for name in vars(each))
    return [name for name in names if not name.startswith("_") and name not in _INTERNAL]


def _options(title: str, options: Any) -> Iterator[str]:
    yield f"### {title}"
    yield ""
    for name, annotation in inspect.get_annotations(options).items():
        yield f"- `{name}: {_plain(annotation)}`"
    yield ""
    yield "[What they mean](../guide/jobs.md), and the defaults."
    yield ""


def _errors(errors: Mapping[str, type[tenure.TenureError]]) -> Iterator[str]:
    yield "Every error has a stable `code`, a `message`, a `hint` and `nothing_changed`: whether it"
    yield "is certain that nothing was done."
    yield ""
    for name, error in errors.items():
        base = next(each.__name__ for each in error.__mro__[1:])
        kind = "" if base in ("Exception", "TenureError") else f", a `{base}`"
        yield f"- `{name}` (`{error.code}`{kind}): {_paragraph(error)}"


def _signature(name: str, called: Any) -> str:
    """A call as people read it, without `self`; the same in every version of Python."""
    signature = inspect.signature(called)
    words: list[str] = []
    before = ""
    for parameter in signature.parameters.values():
        if parameter.name == "self":
            continue
        kind = parameter.kind.name
        if before == "POSITIONAL_ONLY" != kind:
            words.append("/")
        if kind == "KEYWORD_ONLY" and before not in ("KEYWORD_ONLY", "VAR_POSITIONAL"):
            words.append("*")
        words.append(_parameter(parameter))
        before = kind
    returned = "" if inspect.isclass(called) else f" -> {_plain(signature.return_annotation)}"
    return f"{name}({', '.join(words)}){returned}"


def _parameter(parameter: inspect.Parameter) -> str:
    stars = {"VAR_POSITIONAL": "*", "VAR_KEYWORD": "**"}.get(parameter.kind.name, "")
    text = f"{stars}{parameter.name}: {_plain(parameter.annotation)}"
    if parameter.default is inspect.Parameter.empty:
        return text
    default = parameter.default
    return f"{text} = {json.dumps(default) if isinstance(default, str) else repr(default)}"


def _plain(annotation: Any) -> str:
    """A type as people write it: short names, and our names for plain types as what they are."""
    origin, parts = get_origin(annotation), get_args(annotation)
    match annotation:
        case str():
            return annotation.strip("'\"")
        case None | EllipsisType():
            return "None" if annotation is None else "..."
        case _ if annotation is NoneType:
            return "None"
    if origin is Literal:
        return " | ".join(json.dumps(part) for part in parts)
    if origin in (Union, UnionType):
        return " | ".join(_plain(part) for part in parts)
    if origin is Unpack:
        return _plain(parts[0])
    if origin is not None:
        return f"{origin.__name__}[{', '.join(_plain(part) for part in parts)}]"
    if hasattr(annotation, "__forward_arg__"):
        return str(annotation.__forward_arg__)
    if hasattr(annotation, "__supertype__"):
        return _plain(annotation.__supertype__)
    return str(annotation.__name__).removesuffix("_co")


def _paragraph(documented: Any) -> str:
    """The first paragraph of a docstring, on one line, without the ids of sentences."""
    text = inspect.cleandoc(documented.__doc__ or "").partition("\n\n")[0]
    assert text, f"{documented} says nothing of itself"
    return _SENTENCE.sub("", " ".join(text.split()))


if __name__ == "__main__":
    sys.stdout.write(page())
