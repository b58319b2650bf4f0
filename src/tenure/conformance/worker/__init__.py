"""The worker kit: a scripted coordinator that plays faults, and judges what a worker makes of them.

It speaks the protocol of `docs/spec/worker-protocol.md` over HTTP, needs no store, and knows a
worker only by its requests, its output and the side effects it is asked for. `tenure conform
worker` runs it.
"""
