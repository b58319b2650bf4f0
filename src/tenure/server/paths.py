"""Mounts endpoints at exactly their paths. [H1] [H3]"""

import re

from starlette.convertors import Convertor, register_url_convertor
from starlette.routing import Route
from starlette.types import ASGIApp

_BRACES = re.compile(r"\{(\w+)\}")
_NAME = "tenure_name"


def mounted(path: str, endpoint: ASGIApp) -> Route:
    """Mount an endpoint at exactly its path: Starlette's `$` would allow a trailing line feed.
    [H1]"""
    register_url_convertor(_NAME, _Name())
    route = Route(_BRACES.sub(_converter, path), endpoint)
    pattern = route.path_regex.pattern
    assert pattern.endswith("$")
    route.path_regex = re.compile(pattern.removesuffix("$") + r"\Z")
    return route


def _converter(found: re.Match[str]) -> str:
    """Names may contain slashes, and arrive decoded; job ids have none. [H3]"""
    return found[0] if found[1] == "job_id" else f"{{{found[1]}:{_NAME}}}"


class _Name(Convertor[str]):
    """Matches any text, even line breaks: an illegal name gets a 422, not a 404."""

    regex = "(?s:.*)"

    def convert(self, value: str) -> str:
        return value

    def to_string(self, value: str) -> str:
        return value
