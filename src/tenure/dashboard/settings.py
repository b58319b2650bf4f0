"""How a dashboard is served. Proxy headers are ignored, so its public address is a setting."""

import re

import msgspec

from tenure.core.ids import DEFAULT_NAMESPACE, Namespace
from tenure.errors import InvalidInput

_ORIGIN = re.compile(r"https?://(?:[a-z0-9.-]+|\[[0-9a-f:.]+\])(?::\d{1,5})?")


class DashboardSettings(msgspec.Struct, frozen=True, kw_only=True):
    """`key` signs sessions. Without `authenticated` nobody signs in, and only requests to localhost
    are answered."""

    key: bytes
    authenticated: bool = True
    public_origin: str | None = None
    """What browsers call this server, such as `https://jobs.example.com`, if a proxy is in
    front."""
    namespace: Namespace = DEFAULT_NAMESPACE
    """What pages show at first, where there are no tokens. [DB11]"""


def check_origin(text: str) -> str:
    """The origin that a setting names, without a trailing slash. Raises `InvalidInput`."""
    origin = text.removesuffix("/").lower()
    if _ORIGIN.fullmatch(origin) is None:
        raise InvalidInput(
            "--public-origin",
            f"{ascii(text)[:80]} is not the origin of a site",
            hint="give scheme, host and perhaps a port: https://jobs.example.com",
        )
    return origin
