"""Waiting for a job that others end around: hints shorten the wait, and bound what it costs."""

import asyncio
from collections.abc import Callable
from typing import cast

import pytest

from tenure.client.channel import Link
from tenure.client.jobs import EndHints
from tenure.core.ids import DEFAULT_NAMESPACE, QueueName
from tenure.ports import Coordination, Hint, HintedChange, OnHint
from tenure_conformance.spec import spec

ENDED = Hint(HintedChange.ENDED, DEFAULT_NAMESPACE, QueueName("others"))
READ_S = 0.001


class BusyLink:
    """A clock that only reads and pauses move, and a store where jobs end at every moment."""

    def __init__(self) -> None:
        self.now_s = 0.0
        self.on_hint: OnHint | None = None
        self.link = Link(
            coordination=cast(Coordination, None),
            close=lambda: None,
            watch=self._watch,
            monotonic=lambda: self.now_s,
            pause=self._pause,
            apause=self._apause,
        )

    def read(self) -> None:
        self.now_s += READ_S
        assert self.on_hint is not None
        self.on_hint(ENDED)

    def _watch(self, on_hint: OnHint) -> Callable[[], None]:
        self.on_hint = on_hint
        return lambda: None

    def _pause(self, pause_s: float) -> None:
        self.now_s += pause_s

    async def _apause(self, pause_s: float) -> None:
        self.now_s += pause_s


@spec("Z7")
@pytest.mark.parametrize("in_a_loop", [False, True], ids=["blocking", "async"])
def test_whoever_waits_long_does_not_read_at_every_hint(in_a_loop: bool) -> None:
    busy = BusyLink()
    hints = EndHints(busy.link, DEFAULT_NAMESPACE)
    reads_within = {0.01: 0, 10.0: 0}

    async def pause() -> None:
        await hints.pausing(0.25).awaiting()

    while busy.now_s < 10:
        busy.read()
        for within_s in reads_within:
            reads_within[within_s] += busy.now_s < within_s
        if in_a_loop:
            asyncio.run(pause())
        else:
            hints.pausing(0.25).blocking()

    assert reads_within[0.01] >= 5, "a short job is noticed at once"
    assert reads_within[10.0] < 200, "ten times a second in the long run"
