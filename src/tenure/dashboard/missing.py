"""Stands in for the pages where jinja2 is not installed, and says so."""

from starlette.exceptions import HTTPException
from starlette.responses import PlainTextResponse
from starlette.types import ASGIApp, Receive, Scope, Send

from tenure.server.services import Services

TEXT = "The dashboard needs one more package: run `pip install 'tenure[dashboard]'`.\n"


def missing_pages(services: Services) -> ASGIApp:
    """One page, at `/`."""

    async def say(scope: Scope, receive: Receive, send: Send) -> None:
        if scope["path"] != "/":
            raise HTTPException(404)
        await PlainTextResponse(TEXT, 503)(scope, receive, send)

    return say
