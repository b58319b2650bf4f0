"""A coordinator over HTTP: translates requests into commands and answers into responses.

Decides nothing about jobs. Needs the extra `tenure[server]`; nothing outside this package imports
Starlette or uvicorn, and this package is imported only when a server is started.
"""
