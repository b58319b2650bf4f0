"""The client of a server: a coordinator over HTTP, by the table of routes.

It translates requests and sends them again after failures; it decides nothing about jobs. Only the
body of an answer is a verdict: after any other failure the same request can be sent again.
"""
