"""What a worker has done since it started, counted."""

import msgspec


class Stats(msgspec.Struct):
    """Counters that only rise. Written by the supervisor's thread, read by anyone."""

    claims: int = 0
    granted: int = 0
    started: int = 0
    heartbeats: int = 0
    succeeded: int = 0
    failed: int = 0
    retried: int = 0
    dead_lettered: int = 0
    released: int = 0
    acknowledged_cancels: int = 0
    cancelled: int = 0  # reports, starts and heartbeats answered CANCELLED
    rejected: int = 0
    fenced: int = 0  # leases that this worker gave up by its own clock, not renewed in time
    timed_out: int = 0  # handlers stopped because their time, or that of their cancel, was up
    conflicts: int = 0
    unreported: int = 0  # reports given up after the last transport retry
    transport_failures: int = 0
    crashes: int = 0
    kills: int = 0
    displaced: int = 0
    leaked: int = 0
    children_started: int = 0
    children_recycled: int = 0
    blocked_loops: int = 0

    def summary(self) -> str:
        """One line: every counter of how jobs ended or what went wrong."""
        quiet = ("claims", "granted", "heartbeats", "children_started", "children_recycled")
        shown = {name: getattr(self, name) for name in self.__struct_fields__ if name not in quiet}
        parts = [f"{count} {name.replace('_', ' ')}" for name, count in shown.items() if count]
        return ", ".join(parts) or "it ran no jobs"
