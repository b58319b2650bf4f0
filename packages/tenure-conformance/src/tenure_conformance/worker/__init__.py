"""The worker kit: a scripted coordinator that injects faults and judges how a worker reacts.

It speaks the protocol of `docs/spec/worker-protocol.md` over HTTP and needs no store. It sees a
worker only through its requests, its output and the side effects that the job asks for.
`tenure conform worker` runs it.
"""
