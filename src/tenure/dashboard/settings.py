"""How a dashboard is served. Proxy headers are ignored, so its public address is a setting."""

import re

import msgspec

from tenure.core.ids import DEFAULT_NAMESPACE, Namespace
from tenure.errors import InvalidInput

_ORIGIN = re.compile(r"(https?)://(?:[a-z0-9.-]+|\[[0-9a-f:.]+\])(?::([1-9][0-9]{0,4}))?")
_DEFAULT_PORTS = {"http": "80", "https": "443"}
MAX_PORT = 65_535


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
    """The origin that a setting names, as browsers send it: without a trailing slash and without
    the port that its scheme has anyway. Raises `InvalidInput`."""
    origin = text.removesuffix("/").lower()
    found = _ORIGIN.fullmatch(origin)
    if found is None or int(found[2] or 1) > MAX_PORT:
        raise InvalidInput(
            "--public-origin",
            f"{ascii(text)[:80]} is not the origin of a site",
            hint="give scheme, host and perhaps a port: https://jobs.example.com",
        )
    default = _DEFAULT_PORTS[found[1]]
    return origin.removesuffix(f":{default}") if found[2] == default else origin
