"""The job of the worker kit, implemented for Tenure's own worker.

tenure conform worker -- tenure worker -q conform tenure.conformance.worker.jobs:app
"""

import time
from typing import Literal
from urllib.request import Request, urlopen

from tenure.app import Tenure
from tenure.conformance.worker.scenarios import KIND
from tenure.errors import TransientError

EFFECT_WITHIN_S = 10.0

app = Tenure()


@app.job(name=KIND, queue="conform")
def run(
    effects: int, every_s: float, effect_url: str, outcome: Literal["succeed", "fail"]
) -> dict[str, int]:
    """Cause `effects` side effects, pausing `every_s` after each, then succeed or fail."""
    for _ in range(effects):
        # The address comes from the kit, which listens on loopback.
        with urlopen(Request(effect_url, method="POST"), timeout=EFFECT_WITHIN_S):  # noqa: S310 - see above
            pass
        time.sleep(every_s)
    if outcome == "fail":
        raise TransientError("the scenario asks for a failure")
    return {"effects": effects}
