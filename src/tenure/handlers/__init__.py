"""Job functions as the client that enqueues them and the worker that runs them both see them.

Nothing here runs a job. Import the modules, not this package: it re-exports nothing.
"""
