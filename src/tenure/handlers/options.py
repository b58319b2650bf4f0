"""The names of options as users write them, for error messages."""

import re

from tenure.errors import InvalidInput
from tenure.handlers.context import JobSpec

_FIELDS = {
    "dedupe_key": "key",
    "policy.max_attempts": "retry.max_attempts",
    "policy.max_releases": "retry.max_releases",
    "policy.on_exhausted": "retry.on_exhausted",
    "policy.backoff.initial": "retry.initial",
    "policy.backoff.factor": "retry.factor",
    "policy.backoff.cap": "retry.cap",
}
"""Options whose fields have other names in commands and in the messages of a server."""
_POSITION = re.compile(r"^jobs\[[0-9]+\]\.|^job\.")
_UNIT = re.compile(r"_u?s$")
_UNDO = "policy.compensation."
_POLICY = ("lease", "timeout", "start_within", "grace", "retry", "on_lost")
_OPTIONS = frozenset(
    {
        *(_FIELDS.get(name, _UNIT.sub("", name)) for name in JobSpec.__struct_fields__),
        *_POLICY,
        *("job_id", "connection"),
    }
) - {"kind", "payload", "policy"}


def as_option(wrong: InvalidInput) -> InvalidInput:
    """The error with the option's name instead of the field's: `lease=…`, not `policy.lease_us`. An
    error about something else is returned as it is."""
    field = _POSITION.sub("", wrong.field)
    whose = " of the compensation" if field.startswith(_UNDO) else ""
    field = _UNIT.sub("", field.removeprefix(_UNDO))
    option = _FIELDS.get(field, field.removeprefix("policy."))
    name, _, part = option.partition(".")
    if name not in _OPTIONS or type(wrong) is not InvalidInput:
        return wrong
    written = f"Retry({part}=…)" if part else f"{name}=…"
    return InvalidInput(option, wrong.problem, hint=wrong.hint, written=written + whose)
