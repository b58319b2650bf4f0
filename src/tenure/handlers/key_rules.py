"""The keys of a call, for concurrency and for rates: an argument's value, or what a function makes
of the arguments.

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
from tenure.handlers.options import job_key, plain

KeySource: TypeAlias = str | Callable[..., str | int | None]
"""The name of an argument, or a function that takes some of the arguments by their names."""


class KeyRule(msgspec.Struct, frozen=True, kw_only=True):
    """How the calls of one kind get the key that `option` is about."""

    option: str
    kind: Kind
    source: KeySource
    names: tuple[str, ...]
    """The arguments that the key is made of."""

    def key_of(self, arguments: Mapping[str, Any]) -> str | None:
        """The key of a call with these arguments; None if it has none. [CK5] [RL12]"""
        for name in self.names:
            if name not in arguments:  # the context, which is known only when the job runs
                raise InvalidInput(self.option, f"{name} of {self.kind} is not enqueued")
        chosen = {name: arguments[name] for name in self.names}
        if isinstance(self.source, str):
            value = chosen[self.source]
        else:
            try:
                value = self.source(**chosen)
            except Exception as failure:
                what = f"the key function of {self.kind} raised {type(failure).__name__}"
                hint = "make it return a key, or None, for every call of this kind"
                raise InvalidInput(self.option, f"{what}: {failure}", hint=hint) from failure
        key = job_key(self.option, value)
        if key is not None:
            check_label(self.option, key, most=MAX_DEDUPE_KEY)
        return key


class ConcurrencyRule(msgspec.Struct, frozen=True, kw_only=True):
    """How the calls of one kind get their concurrency key, and what is declared for its group."""

    rule: KeyRule
    group: str | None
    limit: int | None
    fair: bool


def key_rule(
    option: str, kind: Kind, parameters: Mapping[str, inspect.Parameter], source: Any
) -> KeyRule | None:
    """How a kind's calls get a key; `InvalidInput` if that names no argument. [CK5] [RL12]"""
    source = plain(source)
    if source is None:
        return None
    if isinstance(source, str):
        names: tuple[str, ...] = (source,)
    elif callable(source):
        names = tuple(inspect.signature(source).parameters)
    else:
        raise InvalidInput(
            option,
            f"{type(source).__name__} is neither an argument's name nor a function",
            hint=f'write {option}="customer_id"',
        )
    for name in names:
        if name not in parameters:
            raise InvalidInput(
                option,
                f"{kind} has no argument {name[:60]!a}",
                hint=f"its arguments are {', '.join(parameters) or 'none'}",
            )
    return KeyRule(option=option, kind=kind, source=source, names=names)


def concurrency_rule(
    kind: Kind,
    parameters: Mapping[str, inspect.Parameter],
    *,
    source: Any,
    group: Any,
    limit: Any,
    fair: Any,
) -> ConcurrencyRule | None:
    """What a kind declares about concurrency keys. [CK5] [CK7] [CK8]"""
    group = plain(group)
    if fair is not None and type(fair) is not bool:
        raise InvalidInput("fair", f"{type(fair).__name__} is neither True nor False")
    rule = key_rule("concurrency_key", kind, parameters, source)
    if rule is None:
        given = {"concurrency_group": group, "concurrency_limit": limit, "fair": fair or None}
        for name, value in given.items():
            if value is not None:
                raise InvalidInput(name, "given without a key", hint="give concurrency_key= too")
        return None
    if limit is not None:
        check_concurrency_limit("concurrency_limit", limit)
    if group is not None:
        check_name("concurrency_group", group)
    return ConcurrencyRule(rule=rule, group=group, limit=limit, fair=bool(fair))
