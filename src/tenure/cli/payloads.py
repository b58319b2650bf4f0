"""Explains why a payload does not fit its kind: what is wrong, and what the function takes.

The handler itself checks the payload, as it does in a worker.
"""

import inspect
import re
import typing

import msgspec

from tenure.cli.common import CouldNotRun
from tenure.errors import ValidationError
from tenure.handlers.registry import Handler, missing_parameter

_MISSING = re.compile(r"Object missing required field `(.+)`")
_UNKNOWN = re.compile(r"Object contains unknown field `(.+)`")
_JSON_NAMES = {
    str: "a string",
    int: "a number",
    float: "a number",
    bool: "a boolean",
    list: "an array",
}


def check_payload(handler: Handler, payload: bytes) -> None:
    """End the command unless the kind's function can be called with this payload."""
    try:
        given = msgspec.json.decode(payload)
    except (msgspec.DecodeError, RecursionError) as wrong:
        raise CouldNotRun(f"the payload is not JSON: {wrong}") from wrong
    try:
        handler.decode_arguments(payload)
    except ValidationError as wrong:
        problem = _problem(handler, given, wrong)
        raise CouldNotRun(f"kind {handler.kind}: {problem}; {_takes(handler)}") from wrong


def _problem(handler: Handler, given: object, wrong: ValidationError) -> str:
    if given is None:
        return "no payload was given"
    if not isinstance(given, dict):
        return f"the payload is {_JSON_NAMES[type(given)]}, not an object"
    said = wrong.message.removesuffix(f" at {wrong.path}")
    if missing := _MISSING.fullmatch(said):
        is_nested = missing[1] != wrong.path
        return f"{wrong.path} is missing" if is_nested else missing_parameter(missing[1])
    if unknown := _UNKNOWN.fullmatch(said):
        return _unknown(handler, unknown[1], wrong.path)
    plain = said.replace("`", "")
    return f"{wrong.path}: {plain[:1].lower()}{plain[1:]}"


def _unknown(handler: Handler, name: str, path: str) -> str:
    if name != path:
        return f"{path.removesuffix(f'.{name}')} has no field {name}"
    return handler.unknown_parameter(name)


def _takes(handler: Handler) -> str:
    parameters = handler.parameters.values()
    if not parameters:
        return "it takes no payload"
    return f"its payload is an object of {', '.join(_named(handler, each) for each in parameters)}"


def _named(handler: Handler, parameter: inspect.Parameter) -> str:
    """A parameter with its type. Its default is not shown, because it may be a secret."""
    hint = handler.hints.get(parameter.name, typing.Any)
    if typing.get_origin(hint) is typing.Annotated:
        hint = typing.get_args(hint)[0]
    facts = [] if hint is typing.Any else [_type_name(handler, hint)]
    facts += ["optional"] if _is_optional(parameter) else []
    return f"{parameter.name} ({', '.join(facts)})" if facts else parameter.name


def _type_name(handler: Handler, hint: object) -> str:
    return inspect.formatannotation(hint, base_module=handler.function.__module__)


def _is_optional(parameter: inspect.Parameter) -> bool:
    return parameter.default is not inspect.Parameter.empty
