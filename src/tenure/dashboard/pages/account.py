"""Signing in and out, the settings of a browser, and the page of keys."""

import os

from starlette.responses import Response

from tenure.core.checks import check_name
from tenure.core.vocabulary import Role
from tenure.dashboard.sessions import NONCE_BYTES, Notice, new_session
from tenure.dashboard.visits import THEME_COOKIE, THEMES, Page, Visit, cookie_of_port, local_path
from tenure.errors import InvalidInput
from tenure.server.handling import in_time
from tenure.server.problems import RefusedRequest, out_of_scope

ROLES = (Role.VIEWER, Role.OPERATOR)
MAX_TOKEN_FIELD = 200


async def sign_in_form(visit: Visit) -> Response:
    """Ask for a token."""
    return await visit.show("sign_in.html", next=visit.query("next") or "/", problem=None)


async def sign_in(visit: Visit) -> Response:
    """Start a session of the token's holder, under a new cookie. [DB3] [H30]"""
    there = local_path(visit.field("next"))
    text = visit.field("token").strip()[:MAX_TOKEN_FIELD]
    try:
        async with in_time(visit.services, is_read=True):
            principal = await visit.services.authenticator.principal(f"Bearer {text}")
        token = principal.token
        assert token is not None
        if token.role not in ROLES:
            raise out_of_scope(
                f"this token is a {token.role}'s: the dashboard is for viewers and operators"
            )
    except RefusedRequest as refused:
        if refused.status >= 500:
            raise
        visit.audit.refused(refused)
        return await visit.show("sign_in.html", status=refused.status, next=there, problem=refused)
    entropy = os.urandom(NONCE_BYTES)
    visit.new_session = new_session(token.id, now=visit.instant, entropy=entropy)
    visit.audit.principal = principal
    visit.audit.signed_in()
    return visit.go(there)


async def sign_out(visit: Visit) -> Response:
    """Forget the session of this browser."""
    entropy = os.urandom(NONCE_BYTES)
    visit.new_session = new_session(None, now=visit.instant, entropy=entropy)
    if visit.principal is not None and visit.principal.token is not None:
        visit.audit.signed_out()
    return visit.go("/sign-in", Notice("Signed out"))


async def set_theme(visit: Visit) -> Response:
    """Choose light or dark colours."""
    theme = visit.field("theme")
    if theme not in THEMES:
        raise InvalidInput("theme", f"is one of {', '.join(THEMES)}")
    visit.cookies[THEME_COOKIE] = theme
    return visit.go(local_path(visit.field("back")))


async def set_namespace(visit: Visit) -> Response:
    """Choose the namespace that pages show where there are no tokens. [DB11]"""
    namespace = visit.field("namespace").strip()
    check_name("namespace", namespace)
    visit.cookies[cookie_of_port("namespace", visit.http)] = namespace
    return visit.go("/", Notice(f"Pages now show the namespace {namespace}"))


async def keys(visit: Visit) -> Response:
    """The keys of the keyboard."""
    return await visit.show("help.html")


PAGES = (
    Page("sign-in", "/sign-in", sign_in_form, is_public=True),
    Page("signing-in", "/sign-in", sign_in, method="POST", is_public=True),
    Page("sign-out", "/sign-out", sign_out, method="POST", is_public=True),
    Page("theme", "/theme", set_theme, method="POST", is_public=True),
    Page("namespace", "/namespace", set_namespace, method="POST"),
    Page("help", "/help", keys),
)
