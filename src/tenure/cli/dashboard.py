"""Composes the dashboard of a server, or says what is missing for it."""

import os
from pathlib import Path

from starlette.exceptions import HTTPException
from starlette.responses import PlainTextResponse
from starlette.types import ASGIApp, Receive, Scope, Send

from tenure.core.ids import DEFAULT_NAMESPACE, Namespace
from tenure.errors import install_hint
from tenure.server.lifetime import MakePages
from tenure.server.services import Services
from tenure.stores.sqlite.path import sqlite_path


def pages_of(
    url: str,
    *,
    authenticated: bool,
    public_origin: str | None = None,
    session_key: Path | None = None,
    namespace: Namespace = DEFAULT_NAMESPACE,
) -> MakePages:
    """What makes the pages of a server on this store. Without jinja2 there is one page, which says
    what to install. Where nobody signs in, no session outlives the server, so its key is not
    kept."""
    try:
        from tenure.dashboard.app import make_pages
    except ModuleNotFoundError as missing:
        if missing.name != "jinja2":
            raise
        return missing_pages
    from tenure.dashboard.sessions import KEY_BYTES
    from tenure.dashboard.settings import SUFFIX, DashboardSettings, check_origin, read_or_make_key

    is_file = authenticated and url.partition(":")[0].lower() == "sqlite"
    if session_key is None and is_file:
        session_key = Path(f"{sqlite_path(url).resolve()}{SUFFIX}")
    origin = None if public_origin is None else check_origin(public_origin)

    def make(services: Services) -> ASGIApp:
        # Not before the store is open: a wrong URL must not leave a key behind.
        key = os.urandom(KEY_BYTES) if session_key is None else read_or_make_key(session_key)
        settings = DashboardSettings(
            key=key, authenticated=authenticated, public_origin=origin, namespace=namespace
        )
        return make_pages(services, settings)

    return make


def missing_pages(services: Services) -> ASGIApp:
    """One page, at `/`, which says that jinja2 is missing."""

    async def say(scope: Scope, receive: Receive, send: Send) -> None:
        if scope["path"] != "/":
            raise HTTPException(404)
        text = f"The dashboard needs the extra dashboard; {install_hint('dashboard')}.\n"
        await PlainTextResponse(text, 503)(scope, receive, send)

    return say
