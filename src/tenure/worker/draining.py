"""The stations of a worker's end: when handlers are asked, when they are killed, when it is over.

Pure arithmetic on the boot clock; what is done at each station is the session's business.
"""

import msgspec

from tenure.core.instants import Duration, seconds
from tenure.worker.clock import Boot

QUICK_STOP = seconds(3)
TIME_TO_STOP = seconds(2)
"""How long a handler that was asked to stop has for it, on a busy machine too."""

LAST_CLAIM_TRIES = 4
"""How often a drain repeats a claim whose answer it lacks before it holds the coordinator for gone.
One of them may be the claim that it hung up on itself."""

CLAIM_LOST = (
    "ending without the answer to a claim: jobs it was granted, if any, wait for their leases"
)


class Drain(msgspec.Struct, frozen=True):
    """The three stations."""

    ask_at: Boot
    kill_at: Boot
    end_at: Boot

    def next_at(self, now: Boot) -> Boot:
        """The station that comes next."""
        return min((at for at in (self.ask_at, self.kill_at) if now < at), default=self.end_at)


def drain_within(grace_us: Duration, now: Boot) -> Drain:
    """Ask at three quarters of the grace, kill and hand back at nine tenths. Of a short grace
    handlers are asked earlier, at half of it at the earliest: to stop takes a moment."""
    kill_us = grace_us * 9 // 10
    ask_us = max(grace_us // 2, min(grace_us * 3 // 4, kill_us - TIME_TO_STOP))
    return Drain(
        ask_at=Boot(now + ask_us),
        kill_at=Boot(now + kill_us),
        end_at=Boot(now + grace_us),
    )


def stop_at_once(before: Drain | None, now: Boot) -> Drain:
    """Kill now, and hand back what can be handed back quickly; never later than was said before."""
    end_at = Boot(now + QUICK_STOP)
    if before is not None:
        end_at = min(end_at, before.end_at)
    return Drain(ask_at=now, kill_at=now, end_at=end_at)
