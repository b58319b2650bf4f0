"""Testing jobs without a worker or a database: the real core, in this process, in virtual time.

    with inline(app) as jobs:
        job = research.enqueue("leases")
        jobs.drain()
        assert job.result() == {...}

Enqueueing, claiming, retries, dead letters and compensations are decided by the same code as in
production, and handlers run through the worker's own stages; only time and the store are fakes. It
does not show that a handler survives being killed: that needs a worker.
"""

from tenure.testing.context import FakeContext
from tenure.testing.inline import FakeClock, Inline, inline

__all__ = ["FakeClock", "FakeContext", "Inline", "inline"]
