"""The worker: runs handlers in child processes under leases that its supervisor keeps.

`session` decides (pure), `supervisor` does (input and output, no user code), `child_main` and what
it imports live in the children. Knows a coordinator only through `tenure.ports.Coordination`.
"""
