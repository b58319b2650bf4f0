"""The worker's own process: leases, heartbeats, reports and children. It runs no user code."""
