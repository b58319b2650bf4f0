"""A coordinator far away: `tenure.ports.Coordination` over HTTP, by the table of routes.

Translates and repeats; decides nothing about jobs. A verdict comes out of an answer's body or not
at all: whatever else happens on the way is no answer, and the same request can be sent again.
"""
