"""Reads request bodies within their limits. [H43] [H62]"""

import asyncio

from starlette.requests import Request

from tenure.protocol.problem_codes import ProblemCode
from tenure.server.memory import RequestMemory
from tenure.server.problems import Refused

CLOSE = {"Connection": "close"}


def media_type(http: Request) -> str:
    """The media type of the body, without parameters. Raises a 415 problem if it is compressed."""
    if http.headers.get("content-encoding", "identity").lower() != "identity":
        raise Refused(415, ProblemCode.UNSUPPORTED_MEDIA_TYPE, "compressed bodies are not accepted")
    return http.headers.get("content-type", "").partition(";")[0].strip().lower()


async def read_body(http: Request, most: int, within_s: float, memory: RequestMemory) -> bytes:
    """Read the body, counting its bytes: Content-Length is only a hint. [H43] [H62]"""
    declared = http.headers.get("content-length", "")
    if declared.isdigit() and int(declared) > most:
        raise _too_large(most, http)
    body = bytearray()
    try:
        async with asyncio.timeout(within_s):
            async for piece in http.stream():
                body += piece
                if len(body) > most:
                    raise _too_large(most, http)
                memory.receive(len(piece))
    except TimeoutError as late:
        raise Refused(
            408, ProblemCode.TOO_SLOW, f"the body took longer than {within_s:g} s", headers=CLOSE
        ) from late
    return bytes(body)


def _too_large(most: int, http: Request) -> Refused:
    """The 413 problem. Many callers write the whole body before they read the answer, and would see
    a reset instead of it, so the server reads and drops the rest for as long as a head may take.
    A caller that sent `Expect: 100-continue` has not begun to send. [H43]"""
    has_asked = "expect" in http.headers
    return Refused(
        413,
        ProblemCode.TOO_LARGE,
        f"the body is over the limit of {most} bytes",
        hint="send less at a time; put large data into an object store",
        headers=CLOSE if has_asked else {},
    )
