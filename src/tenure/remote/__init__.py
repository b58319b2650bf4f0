"""The client of a server: a coordinator over HTTP, by the table of routes.

It translates and repeats requests; it decides nothing about jobs. A verdict comes from the body of
an answer or not at all: after any other failure the same request can be sent again.
"""
