"""The obligations of a worker, by name. Each cites its rule in docs/spec/worker-protocol.md."""

import msgspec


class Obligation(msgspec.Struct, frozen=True):
    """One obligation: its name in reports, its rule in docs/spec, and what a worker must do."""

    name: str
    sentence: str
    asks: str


SPEAKS = Obligation("speaks-the-protocol", "WP1", "sends well-formed messages with its token")
REPORTS = Obligation("reports-outcome", "WP2", "reports success and failure truthfully")
HEARTBEATS = Obligation("heartbeats", "WP3", "renews its lease in time, with a rising hb_seq")
SAME_ID = Obligation("same-request-id", "WP4", "retries a request under the same id")
BOUNDED = Obligation("bounded-retries", "WP5", "sends one request at most 20 times")
BOUNDED_CLAIMS = Obligation("bounded-claims", "WP20", "sends one claim at most 20 times")
RETRY_AFTER = Obligation("honours-retry-after", "WP6", "waits as long as Retry-After says")
COMMITTED = Obligation("committed-is-final", "WP7", "reports nothing more after COMMITTED")
CANCELLED = Obligation("cancelled-is-final", "WP8", "reports nothing more after CANCELLED")
REJECTED = Obligation("rejected-is-fatal", "WP9", "stops and retries nothing after REJECTED")
NO_HEARTBEAT = Obligation(
    "no-heartbeat-after-end", "WP10", "sends no heartbeat after a final verdict"
)
NO_EFFECTS = Obligation(
    "no-effects-after-cancelled", "WP11", "causes no side effect after CANCELLED"
)
FENCES = Obligation("stops-with-its-lease", "WP12", "stops by itself when its lease ends unrenewed")
HEEDS = Obligation("heeds-a-cancel-request", "WP13", "stops in time when a cancel is requested")
ONCE = Obligation("executes-once", "WP14", "executes a grant once, never again by itself")
NO_GUESS = Obligation("no-verdict-from-5xx", "WP26", "does not treat a failed request as a verdict")
SURFACES = Obligation(
    "surfaces-rejected", "WP16", "prints that it was REJECTED, or exits with a failure"
)
CLAIMS = Obligation("claims-in-order", "WP17", "sends one claim at a time, with a rising claim_seq")

OBLIGATIONS: tuple[Obligation, ...] = (
    SPEAKS,
    REPORTS,
    HEARTBEATS,
    SAME_ID,
    BOUNDED,
    BOUNDED_CLAIMS,
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
