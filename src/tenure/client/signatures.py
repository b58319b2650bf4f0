"""What type checkers see of `enqueue`, `aenqueue` and `prepare`: the arguments of the function.

Nothing here runs: methods stay methods, and the protocols only describe how they may be called. A
parameter specification cannot be extended by keywords, so a call with options beside the arguments
is not checked further; every other call is, and `using(...)` is for those who want both.
"""

from collections.abc import Callable
from datetime import datetime
from typing import (
    Any,
    Concatenate,
    Literal,
    ParamSpec,
    Protocol,
    TypeAlias,
    TypeVar,
    cast,
    overload,
)

from tenure.client.options import Retry, Span
from tenure.core.instants import Instant
from tenure.core.vocabulary import OnLost
from tenure.handlers.context import Context

P = ParamSpec("P")  # how the function is called
E = ParamSpec("E")  # how it is enqueued if its context comes first
J = TypeVar("J")
J_co = TypeVar("J_co", covariant=True)  # what comes of the call: a handle, a coroutine of one …

# --- functions that take a context ---------------------------------------------------------------


class KeywordContext0(Protocol):
    """Takes nothing else."""

    def __call__(self, *, ctx: Context) -> Any: ...


class KeywordContext1(Protocol):
    """Takes an argument, then `ctx` by its name."""

    def __call__(self, first: Any, /, *, ctx: Context) -> Any: ...


class KeywordContext2(Protocol):
    """Takes two."""

    def __call__(self, first: Any, second: Any, /, *, ctx: Context) -> Any: ...


class KeywordContext3(Protocol):
    """Takes three."""

    def __call__(self, first: Any, second: Any, third: Any, /, *, ctx: Context) -> Any: ...


LaterContext: TypeAlias = (
    Callable[Concatenate[Any, Context, ...], Any]
    | Callable[Concatenate[Any, Any, Context, ...], Any]
    | Callable[Concatenate[Any, Any, Any, Context, ...], Any]
    | Callable[Concatenate[Any, Any, Any, Any, Context, ...], Any]
    | Callable[Concatenate[Any, Any, Any, Any, Any, Context, ...], Any]
    | KeywordContext0
    | KeywordContext1
    | KeywordContext2
    | KeywordContext3
)
"""Functions whose context is somewhere behind: no checker can leave it out of their signature."""


class Calls(Protocol[P]):
    """Something made of a function."""

    @property
    def function(self) -> Callable[P, Any]:
        """The function."""


class CallsWithContextFirst(Protocol[E]):
    """Something made of a function whose first parameter is the context."""

    @property
    def function(self) -> Callable[Concatenate[Context, E], Any]:
        """The function."""


class CallsWithContextLater(Protocol):
    """Something made of a function with its context elsewhere."""

    @property
    def function(self) -> LaterContext:
        """The function."""


# --- how they are enqueued -----------------------------------------------------------------------


class Own(Protocol[P, J_co]):
    """Called with the function's own arguments and nothing else."""

    @property
    def function(self) -> Callable[P, Any]:
        """The function."""

    @overload
    def __call__(self: CallsWithContextFirst[E], *args: E.args, **kwargs: E.kwargs) -> J_co: ...
    @overload
    def __call__(self: CallsWithContextLater, *args: Any, **kwargs: Any) -> J_co: ...
    @overload
    def __call__(self, *args: P.args, **kwargs: P.kwargs) -> J_co: ...


class Inline(Protocol[P, J_co]):
    """Called with the function's own arguments, or with these and at least one option."""

    @property
    def function(self) -> Callable[P, Any]:
        """The function."""

    @overload
    def __call__(self: CallsWithContextFirst[E], *args: E.args, **kwargs: E.kwargs) -> J_co: ...
    @overload
    def __call__(self: CallsWithContextLater, *args: Any, **kwargs: Any) -> J_co: ...
    @overload
    def __call__(self, *args: P.args, **kwargs: P.kwargs) -> J_co: ...
    @overload
    def __call__(self, *args: Any, key: str | None, **kwargs: Any) -> J_co: ...
    @overload
    def __call__(self, *args: Any, delay: Span, **kwargs: Any) -> J_co: ...
    @overload
    def __call__(self, *args: Any, run_at: datetime | Instant | None, **kwargs: Any) -> J_co: ...
    @overload
    def __call__(self, *args: Any, queue: str, **kwargs: Any) -> J_co: ...
    @overload
    def __call__(self, *args: Any, priority: int, **kwargs: Any) -> J_co: ...
    @overload
    def __call__(self, *args: Any, lease: Span, **kwargs: Any) -> J_co: ...
    @overload
    def __call__(self, *args: Any, timeout: Span | None, **kwargs: Any) -> J_co: ...
    @overload
    def __call__(self, *args: Any, start_within: Span, **kwargs: Any) -> J_co: ...
    @overload
    def __call__(self, *args: Any, grace: Span, **kwargs: Any) -> J_co: ...
    @overload
    def __call__(self, *args: Any, retry: Retry, **kwargs: Any) -> J_co: ...
    @overload
    def __call__(
        self, *args: Any, on_lost: Literal["requeue", "hold", "reclaim"] | OnLost, **kwargs: Any
    ) -> J_co: ...
    @overload
    def __call__(self, *args: Any, correlation_id: str | None, **kwargs: Any) -> J_co: ...
    @overload
    def __call__(self, *args: Any, trace_id: str | None, **kwargs: Any) -> J_co: ...
    @overload
    def __call__(self, *args: Any, connection: Any, **kwargs: Any) -> J_co: ...


class OwnMethod(Protocol[J_co]):
    """A method of what is made of a function, called with its own arguments."""

    def __get__(self, instance: Calls[P], owner: Any) -> Own[P, J_co]:
        """Bound to it."""


class InlineMethod(Protocol[J_co]):
    """The same, called with options among them."""

    def __get__(self, instance: Calls[P], owner: Any) -> Inline[P, J_co]:
        """Bound to it."""


def takes_own(method: Callable[..., J]) -> OwnMethod[J]:
    """The method as it is, under the signature of the function."""
    return cast(OwnMethod[J], method)


def takes_options(method: Callable[..., J]) -> InlineMethod[J]:
    """The method as it is, under the signature of the function and that of the options."""
    return cast(InlineMethod[J], method)
