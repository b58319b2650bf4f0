"""What a worker owes its coordinator, by name. The sentences are those of the worker protocol."""

import msgspec


class Obligation(msgspec.Struct, frozen=True):
    """One obligation: its name in reports, its sentence in docs/spec, and what it asks."""

    name: str
    sentence: str
    asks: str


SPEAKS = Obligation("speaks-the-protocol", "WP1", "sends well-formed messages with its token")
REPORTS = Obligation("reports-outcome", "WP2", "reports a success as such, a failure as such")
HEARTBEATS = Obligation("heartbeats", "WP3", "renews its lease in time, with a rising hb_seq")
SAME_ID = Obligation("same-request-id", "WP4", "repeats what got no answer under the same id")
BOUNDED = Obligation("bounded-retries", "WP5", "gives up repeating after a while")
RETRY_AFTER = Obligation("honours-retry-after", "WP6", "waits as long as Retry-After says")
COMMITTED = Obligation("committed-is-final", "WP7", "reports nothing more after COMMITTED")
CANCELLED = Obligation("cancelled-is-final", "WP8", "reports nothing more after CANCELLED")
REJECTED = Obligation("rejected-is-fatal", "WP9", "stops and repeats nothing after REJECTED")
NO_HEARTBEAT = Obligation("no-heartbeat-after-end", "WP10", "sends no heartbeat after the end")
NO_EFFECTS = Obligation("no-effects-after-cancelled", "WP11", "has no effect after CANCELLED")
FENCES = Obligation("stops-with-its-lease", "WP12", "stops by itself when its lease ends unrenewed")
HEEDS = Obligation("heeds-a-cancel-request", "WP13", "ends in time when it is asked to")
ONCE = Obligation("executes-once", "WP14", "executes a grant once, and repeats nothing by itself")
NO_GUESS = Obligation("no-verdict-from-5xx", "WP15", "does not take a failed request for a verdict")
SURFACES = Obligation("surfaces-rejected", "WP16", "says that it was REJECTED")
CLAIMS = Obligation(
    "claims-in-order", "WP17", "claims one after the other, with a rising claim_seq"
)

OBLIGATIONS: tuple[Obligation, ...] = (
    SPEAKS,
    REPORTS,
    HEARTBEATS,
    SAME_ID,
    BOUNDED,
    RETRY_AFTER,
    COMMITTED,
    CANCELLED,
    REJECTED,
    NO_HEARTBEAT,
    NO_EFFECTS,
    FENCES,
    HEEDS,
    ONCE,
    NO_GUESS,
    SURFACES,
    CLAIMS,
)
