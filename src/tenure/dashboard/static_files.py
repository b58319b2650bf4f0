"""The files that pages load: our own and vendored ones, each under a URL with its hash.

They are read once, when the dashboard is made, so a request cannot name any other file.
"""

import hashlib
from importlib.resources import files
from importlib.resources.abc import Traversable

import msgspec
from starlette.responses import Response
from starlette.types import Receive, Scope, Send

MEDIA_TYPES = {
    "css": "text/css; charset=utf-8",
    "js": "text/javascript; charset=utf-8",
    "svg": "image/svg+xml",
}
HASH_DIGITS = 16
_FOREVER = "public, max-age=31536000, immutable"


class _File(msgspec.Struct, frozen=True):
    body: bytes
    media_type: str


class StaticFiles:
    """Finds each file by its URL, and the URL of each file by its name."""

    def __init__(self) -> None:
        self._urls: dict[str, str] = {}
        self._files: dict[str, _File] = {}
        root = files("tenure.dashboard") / "static"
        for folder in (root, root / "vendor"):
            for each in folder.iterdir():
                self._add(each)

    def _add(self, file: Traversable) -> None:
        media_type = MEDIA_TYPES.get(file.name.rpartition(".")[2])
        if media_type is None or not file.is_file():
            return
        body = file.read_bytes()
        url = f"/static/{hashlib.sha256(body).hexdigest()[:HASH_DIGITS]}/{file.name}"
        self._urls[file.name] = url
        self._files[url] = _File(body, media_type)

    def url(self, name: str) -> str:
        """The URL of a file."""
        return self._urls[name]

    def __contains__(self, url: str) -> bool:
        return url in self._files

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Answer a request for a file."""
        file = self._files[scope["path"]]
        response = Response(
            file.body, headers={"Cache-Control": _FOREVER}, media_type=file.media_type
        )
        await response(scope, receive, send)
