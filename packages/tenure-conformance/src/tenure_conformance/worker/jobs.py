"""The job of the worker kit, implemented for each lane of Tenure's own worker.

tenure conform worker -- tenure worker -q conform tenure_conformance.worker.jobs:app
tenure conform worker -- tenure worker -q conform tenure_conformance.worker.jobs:async_app
tenure conform worker -- tenure worker -q conform tenure_conformance.worker.jobs:thread_app
"""

import asyncio
import time
from typing import Literal
from urllib.request import Request, urlopen

from tenure.app import Tenure
from tenure.errors import TransientError
from tenure.handlers.context import Context
from tenure_conformance.worker.scenarios import KIND

EFFECT_WITHIN_S = 10.0
QUEUE = "conform"

app = Tenure()
async_app = Tenure()
thread_app = Tenure()

Outcome = Literal["succeed", "fail"]


@app.job(name=KIND, queue=QUEUE)
def run(effects: int, every_s: float, effect_url: str, outcome: Outcome) -> dict[str, int]:
    """Cause `effects` side effects, pausing `every_s` after each, then succeed or fail."""
    for _ in range(effects):
        _cause(effect_url)
        time.sleep(every_s)
    return _end(effects, outcome)


@async_app.job(name=KIND, queue=QUEUE)
async def run_as_coroutine(
    effects: int, every_s: float, effect_url: str, outcome: Outcome
) -> dict[str, int]:
    """The same in the `async` lane: when the task is cancelled, nothing follows."""
    for _ in range(effects):
        await asyncio.to_thread(_cause, effect_url)
        await asyncio.sleep(every_s)
    return _end(effects, outcome)


@thread_app.job(name=KIND, queue=QUEUE, isolation="thread")
def run_in_thread(
    ctx: Context, effects: int, every_s: float, effect_url: str, outcome: Outcome
) -> dict[str, int]:
    """The same in the `thread` lane. A thread cannot be killed, so it asks before each effect
    whether it may continue. [WP11]"""
    for _ in range(effects):
        ctx.check()
        _cause(effect_url)
        time.sleep(every_s)
    return _end(effects, outcome)


def _cause(effect_url: str) -> None:
    # The address comes from the kit, which listens on loopback.
    with urlopen(Request(effect_url, method="POST"), timeout=EFFECT_WITHIN_S):  # noqa: S310 - see above
        pass


def _end(effects: int, outcome: Outcome) -> dict[str, int]:
    if outcome == "fail":
        raise TransientError("the scenario asks for a failure")
    return {"effects": effects}
