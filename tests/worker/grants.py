"""Grants of any kind, without a store behind them."""

from functools import cache

from msgspec.structs import replace

from tenure.clock import Boot, boot_now
from tenure.core.ids import Kind
from tenure.core.instants import seconds
from tenure.core.verdicts import Grant
from tests.support.coordinators import World


@cache
def _pattern() -> Grant:
    world = World()
    world.enqueue()
    return world.claim()[0]


def grant_of(kind: str, payload: bytes = b"{}") -> Grant:
    """A grant of a job of this kind."""
    return replace(_pattern(), job=replace(_pattern().job, kind=Kind(kind), payload=payload))


def in_a_minute() -> Boot:
    """The end of a lease."""
    return Boot(boot_now() + seconds(60))
