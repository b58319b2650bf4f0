"""The concurrency key of a call: an argument's value, or what a function makes of the arguments.

Computed where a job is enqueued, so that a store and workers in other languages need no user code.
"""

import inspect
from collections.abc import Callable, Mapping
from typing import Any, TypeAlias

import msgspec

from tenure.core.checks import MAX_DEDUPE_KEY, check_label, check_name
from tenure.core.concurrency import check_concurrency_limit
from tenure.core.ids import Kind
from tenure.errors import InvalidInput
from tenure.handlers.options import concurrency_key, plain

KeySource: TypeAlias = str | Callable[..., str | int | None]
"""The name of an argument, or a function that takes some of the arguments by their names."""


class KeyRule(msgspec.Struct, frozen=True, kw_only=True):
    """How the calls of one kind get their concurrency key."""

    kind: Kind
    source: KeySource
    group: str | None
    limit: int | None
    names: tuple[str, ...]
    """The arguments that the key is made of."""

    def key_of(self, arguments: Mapping[str, Any]) -> str | None:
        """The key of a call with these arguments; None if it has none. [CK5]"""
        for name in self.names:
            if name not in arguments:  # the context, which is known only when the job runs
                raise InvalidInput("concurrency_key", f"{name} of {self.kind} is not enqueued")
        chosen = {name: arguments[name] for name in self.names}
        if isinstance(self.source, str):
            value = chosen[self.source]
        else:
            try:
                value = self.source(**chosen)
            except Exception as failure:
                what = f"the key function of {self.kind} raised {type(failure).__name__}"
                raise InvalidInput("concurrency_key", f"{what}: {failure}") from failure
        key = concurrency_key(value)
        if key is not None:
            check_label("concurrency_key", key, most=MAX_DEDUPE_KEY)
        return key


def key_rule(
    kind: Kind,
    parameters: Mapping[str, inspect.Parameter],
    *,
    source: Any,
    group: Any,
    limit: Any,
) -> KeyRule | None:
    """How a kind's calls get their key; `InvalidInput` if that names no argument. [CK5]"""
    source, group = plain(source), plain(group)
    if source is None:
        for name, value in (("concurrency_group", group), ("concurrency_limit", limit)):
            if value is not None:
                raise InvalidInput(name, "given without a key", hint="give concurrency_key= too")
        return None
    if limit is not None:
        check_concurrency_limit("concurrency_limit", limit)
    if group is not None:
        check_name("concurrency_group", group)
    if isinstance(source, str):
        names: tuple[str, ...] = (source,)
    elif callable(source):
        names = tuple(inspect.signature(source).parameters)
    else:
        raise InvalidInput(
            "concurrency_key",
            f"{type(source).__name__} is neither an argument's name nor a function",
            hint='write concurrency_key="customer_id"',
        )
    for name in names:
        if name not in parameters:
            raise InvalidInput(
                "concurrency_key",
                f"{kind} has no argument {name[:60]!a}",
                hint=f"its arguments are {', '.join(parameters) or 'none'}",
            )
    return KeyRule(kind=kind, source=source, group=group, limit=limit, names=names)
