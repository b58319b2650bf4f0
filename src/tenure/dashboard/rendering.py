"""Templates: Jinja with autoescape, the filters that pages share, and the files that they load.

Every text that a template prints passes `visible`: characters that would hide or reorder the text
beside them are shown by their code point instead. [DB9]
"""

import hashlib
import re
from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from importlib.resources import files
from importlib.resources.abc import Traversable
from itertools import dropwhile, islice
from typing import Any
from urllib.parse import quote, urlencode

import msgspec
from jinja2 import Environment, PackageLoader, StrictUndefined
from markupsafe import Markup
from starlette.responses import Response
from starlette.types import Receive, Scope, Send

from tenure.core.ids import short_id
from tenure.core.instants import seconds
from tenure.core.vocabulary import counted, noun_after

MAX_SHOWN = 200
"""Characters of a text in a table cell; the whole is on the text's own page."""
MAX_TITLE = 1_000
"""Characters that hovering shows."""
THIN_SPACE = "\u202f"

_INVISIBLE = re.compile(
    "[\x00-\x08\x0b\x0c\r\x0e-\x1f\x7f-\x9f\xad\u034f\u061c\u115f\u1160\u17b4\u17b5\u180b-\u180f"
    "\u200b-\u200f\u2028-\u202e\u2060-\u206f\u2800\u3164\ufeff\uffa0\ufff9-\ufffb"
    "\U000e0000-\U000e0fff\ud800-\udfff]"
)
_UNITS = (
    ("d", 86_400_000_000),
    ("h", 3_600_000_000),
    ("min", 60_000_000),
    ("s", 1_000_000),
    ("ms", 1_000),
    ("µs", 1),
)
_DECIMALS_BELOW_US = 10_000_000
SHOWN_UNITS = 2
_WORDS = (
    (60.0, 1.0, "s"),
    (3_600.0, 60.0, "min"),
    (86_400.0, 3_600.0, "h"),
    (float("inf"), 86_400.0, "d"),
)


def make_environment(static: Callable[[str], str]) -> Environment:
    """The templates of the dashboard."""
    environment = Environment(
        loader=PackageLoader("tenure.dashboard", "templates"),
        autoescape=True,
        undefined=StrictUndefined,
        finalize=visible,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    environment.globals["static"] = static
    environment.globals["url"] = url
    environment.filters.update(
        {
            "ago": ago,
            "exact": exact,
            "iso": iso,
            "span": span,
            "number": number,
            "counted": counted_words,
            "noun_after": noun_after,
            "rate": rate,
            "cut": cut,
            "title_text": title_text,
            "words": words,
            "short_id": short_id,
        }
    )
    return environment


def visible(value: Any) -> Any:
    """A text with its invisible characters shown by code point. Markup stays unchanged."""
    if not isinstance(value, str) or isinstance(value, Markup):
        return value
    text = str(value)  # a StrEnum prints its value
    return _INVISIBLE.sub(lambda found: f"⟨U+{ord(found[0]):04X}⟩", text)


def url(path: str, /, *parts: str, **query: object) -> str:
    """A path with these parts, and a query without what is None or empty."""
    whole = "/".join([path, *(quote(part, safe="") for part in parts)])
    pairs: list[tuple[str, str]] = []
    for name, value in query.items():
        several = value if isinstance(value, list | tuple) else [value]
        pairs += [(name, str(each)) for each in several if each is not None and each != ""]
    return f"{whole}?{urlencode(pairs)}" if pairs else whole


def exact(at: datetime) -> str:
    """An instant in UTC, to the millisecond."""
    shown = at.astimezone(UTC)
    return f"{shown:%Y-%m-%d %H:%M:%S}.{shown.microsecond // 1000:03d} UTC"


def iso(at: datetime) -> str:
    """An instant as the `datetime` of a `<time>` element."""
    return at.astimezone(UTC).isoformat(timespec="milliseconds").replace("+00:00", "Z")


def ago(at: datetime, now: datetime) -> str:
    """How far an instant is from now, in one unit."""
    away_s = (now - at).total_seconds()
    if abs(away_s) < 1:
        return "now"
    for below, unit_s, unit in _WORDS:
        if abs(away_s) < below:
            amount = int(abs(away_s) / unit_s)
            return f"{amount} {unit} ago" if away_s > 0 else f"in {amount} {unit}"
    raise AssertionError("every time is below infinity")


def span(value: float | timedelta | None) -> str:
    """A duration, given in seconds, in at most two units."""
    if value is None:
        return "–"
    duration_s = value.total_seconds() if isinstance(value, timedelta) else float(value)
    return duration_words(seconds(duration_s))


def duration_words(span_us: int) -> str:
    """`350 µs`, `5 ms`, `1.2 s`, `3 min 20 s`, `2 d 4 h`; a negative span counts as none. Two units
    at most, rounded down: exact times are shown beside it."""
    span_us = max(0, span_us)
    if span_us == 0:
        return "0 s"
    if 1_000_000 <= span_us < _DECIMALS_BELOW_US:
        return f"{span_us // 100_000 / 10:g} s"
    if span_us < 60_000_000:
        unit, unit_us = next(each for each in _UNITS if span_us >= each[1])
        return f"{span_us // unit_us} {unit}"
    parts = []
    for unit, unit_us in _UNITS:
        amount, span_us = divmod(span_us, unit_us)
        parts.append((amount, unit))
    shown = islice(dropwhile(lambda part: part[0] == 0, parts), SHOWN_UNITS)
    return " ".join(f"{amount} {unit}" for amount, unit in shown if amount)


def number(value: int | None) -> str:
    """A count with thin spaces between thousands."""
    return "–" if value is None else f"{value:,}".replace(",", THIN_SPACE)


def counted_words(count: int, noun: str, plural: str = "") -> str:
    """A count and its noun, with thin spaces between thousands."""
    return counted(count, noun, plural, thousands=THIN_SPACE)


def rate(value: float) -> str:
    """Jobs per second, to three digits."""
    return f"{value:.3g}/s"


def cut(text: str, most: int = MAX_SHOWN) -> str:
    """The beginning of a text, in one line."""
    line = " ".join(text[: 2 * most].split())
    return line if len(line) <= most else f"{line[:most]}…"


def title_text(text: str) -> str:
    """As much of a text as hovering shows."""
    return text if len(text) <= MAX_TITLE else f"{text[:MAX_TITLE]}…"


def words(name: str) -> str:
    """A word of the vocabulary as people write it."""
    return str(name).replace("_", " ")


# --- Files that pages load ------------------------------------------------------------------------

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
    """The files that pages load: our own and vendored ones, each under a URL with its hash. They
    are read once, when the dashboard is made, so a request cannot name any other file."""

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
