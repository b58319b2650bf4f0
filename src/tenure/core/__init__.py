"""The contract as pure functions: what a job is, how it may change, what a caller gets as an
answer.

Nothing here reads a clock, draws a random number, opens a file or starts a thread; those arrive
as arguments. Import the modules, not this package: it re-exports nothing.
"""
