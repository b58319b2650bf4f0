"""Stands in for the pages where jinja2 is not installed, and says so."""

from starlette.exceptions import HTTPException
from starlette.responses import PlainTextResponse
from starlette.types import ASGIApp, Receive, Scope, Send

from tenure.errors import install_hint
from tenure.server.services import Services

TEXT = f"The dashboard needs the extra dashboard; {install_hint('dashboard')}.\n"


def missing_pages(services: Services) -> ASGIApp:
    """One page, at `/`."""

    async def say(scope: Scope, receive: Receive, send: Send) -> None:
        if scope["path"] != "/":
            raise HTTPException(404)
        await PlainTextResponse(TEXT, 503)(scope, receive, send)

    return say
