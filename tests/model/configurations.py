"""Which corners of the model are explored: a small set for every test run, the full one as proof.

The small set has every row of the table and every status; of the widest searches, of new epochs, of
a bounded network and of crashes only the proof has any.

With everything allowed at once the space is a product of histories that do not touch each other,
so each configuration is wide in one direction and narrow in the others.
"""

from typing import Any

from tenure.core.vocabulary import OnExhausted, OnLost
from tests.model.world import ASKED, SETTLES, START_AS_CLAIMED, Bounds, tiny_policy

NARROW: dict[str, Any] = {
    "reports": ("complete", "fail"),
    "starts": ("start",),
    "renews": ("heartbeat 1",),
}
BARE: dict[str, Any] = {"reports": ("complete",), "starts": ("start",), "renews": ()}
CLAIMS_START: dict[str, Any] = {
    "reports": ("complete", "fail"),
    "starts": ("start", START_AS_CLAIMED),
    "renews": ("heartbeat 1",),
}

EVERYTHING = Bounds(name="open network, requeue")

EVERY_REPORT = Bounds(
    name="every report", asked=(), reports=SETTLES[:-1], starts=("start",), renews=()
)

SMALL = (
    EVERY_REPORT,
    Bounds(
        name="hold",
        policy=tiny_policy(on_lost=OnLost.HOLD),
        asked=("soft cancel", "requeue 1"),
        **NARROW,
    ),
    Bounds(name="stalled by an operator", asked=("stall", "requeue 1"), **BARE),
    Bounds(
        name="fail when exhausted",
        policy=tiny_policy(on_exhausted=OnExhausted.FAIL),
        asked=(),
        **NARROW,
    ),
    Bounds(
        name="releases",
        policy=tiny_policy(max_releases=1),
        asked=(),
        reports=("complete", "release"),
        starts=("start",),
        renews=(),
    ),
    Bounds(
        name="dead letters by the worker",
        asked=("soft cancel",),
        reports=("complete", "fail", "bury"),
        starts=("start",),
        renews=(),
    ),
    Bounds(name="grants taken back", undelivered=1, asked=(), **BARE),
    Bounds(name="outage credit", outages=1, asked=(), **BARE),
    Bounds(
        name="compensated",
        policy=tiny_policy(compensated=True),
        asked=("hard cancel",),
        **NARROW,
    ),
    Bounds(
        name="compensation",
        policy=tiny_policy(compensated=True),
        is_compensation=True,
        asked=("hard cancel",),
        **NARROW,
    ),
    Bounds(
        name="expires, reclaim",
        policy=tiny_policy(on_lost=OnLost.RECLAIM),
        expires=2,
        asked=("requeue 1",),
        **NARROW,
    ),
    Bounds(name="waits for a parent", waits=True, asked=("soft cancel", "dead-letter"), **BARE),
    Bounds(name="claims that start", claims_start=True, asked=("soft cancel",), **CLAIMS_START),
    Bounds(
        name="claims that start, taken back",
        claims_start=True,
        undelivered=1,
        asked=(),
        **CLAIMS_START,
    ),
)

SMALL_AND_LATE = (Bounds(name="late writes", is_racy=True, asked=("soft cancel",), **NARROW),)

FULL = (
    EVERYTHING,
    Bounds(name="waits for a parent", waits=True, **NARROW),
    Bounds(name="hold", policy=tiny_policy(on_lost=OnLost.HOLD), asked=ASKED),
    Bounds(name="reclaim", policy=tiny_policy(on_lost=OnLost.RECLAIM), asked=ASKED),
    Bounds(
        name="hold, fail when exhausted",
        policy=tiny_policy(on_lost=OnLost.HOLD, on_exhausted=OnExhausted.FAIL),
        asked=ASKED,
    ),
    Bounds(name="fail when exhausted", policy=tiny_policy(on_exhausted=OnExhausted.FAIL)),
    Bounds(
        name="releases",
        policy=tiny_policy(max_releases=1),
        asked=("soft cancel",),
        reports=("complete", "fail", "release"),
        starts=("start",),
        renews=("heartbeat 1",),
    ),
    Bounds(
        name="snoozes, taken back",
        snoozes=1,
        undelivered=1,
        asked=(),
        **BARE,
    ),
    Bounds(name="outage credit", outages=1, asked=("soft cancel",), **NARROW),
    Bounds(
        name="hold, outage credit",
        policy=tiny_policy(on_lost=OnLost.HOLD),
        outages=1,
        asked=("soft cancel", "requeue 1", "requeue 2"),
        **BARE,
    ),
    Bounds(name="epoch", epochs=2),
    Bounds(name="stalled by an operator", asked=("soft cancel", "stall", "requeue 1"), **NARROW),
    Bounds(name="expires", expires=2, undelivered=1, asked=("soft cancel",), **NARROW),
    Bounds(
        name="late writes",
        is_racy=True,
        asked=("soft cancel", "hard cancel"),
        reports=("complete", "fail", "release"),
        starts=("start",),
        renews=("heartbeat 1",),
    ),
    Bounds(
        name="late writes, hold, epoch",
        policy=tiny_policy(on_lost=OnLost.HOLD),
        is_racy=True,
        epochs=2,
        asked=("soft cancel", "hard cancel", "requeue 1"),
        **NARROW,
    ),
    Bounds(name="compensated", policy=tiny_policy(compensated=True)),
    Bounds(name="compensation", policy=tiny_policy(compensated=True), is_compensation=True),
    Bounds(
        name="claims that start, taken back",
        claims_start=True,
        undelivered=1,
        asked=("soft cancel", "hard cancel"),
        **CLAIMS_START,
    ),
    Bounds(
        name="claims that start, reclaim, late writes",
        policy=tiny_policy(on_lost=OnLost.RECLAIM),
        claims_start=True,
        is_racy=True,
        asked=("soft cancel",),
        **CLAIMS_START,
    ),
    Bounds(
        name="claims that start, 2 in flight, 1 crash",
        claims_start=True,
        in_flight=2,
        crashes=1,
        asked=("soft cancel",),
        **BARE,
    ),
    Bounds(
        name="expires, claims that start, late writes",
        expires=2,
        claims_start=True,
        is_racy=True,
        asked=("soft cancel",),
        **CLAIMS_START,
    ),
    Bounds(name="3 in flight", in_flight=3, asked=(), **BARE),
    Bounds(name="1 in flight, 1 crash", in_flight=1, crashes=1, asked=(), **BARE),
    Bounds(name="2 in flight, 1 crash", in_flight=2, crashes=1, asked=("soft cancel",), **BARE),
    Bounds(
        name="1 in flight, 2 crashes",
        in_flight=1,
        crashes=2,
        asked=("soft cancel",),
        reports=("complete", "fail"),
        starts=("start",),
        renews=(),
    ),
)
