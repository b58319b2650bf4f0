"""The worker: runs handlers in child processes under leases that its supervisor keeps.

A package for each process, and one for what has no process: `session` decides (pure), `supervisor`
does (input and output, no user code), `child` runs handlers. `frames` is what those two send each
other. Knows a coordinator only through `tenure.ports.Coordination`.
"""
