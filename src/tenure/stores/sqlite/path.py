"""The file that a `sqlite:` URL names. Opens nothing."""

from pathlib import Path
from urllib.parse import unquote, urlsplit

from tenure.errors import UnknownStoreUrl


def sqlite_path(url: str) -> Path:
    """The file of a `sqlite:///relative` or `sqlite:////absolute` URL."""
    try:
        parts = urlsplit(url)
    except ValueError as wrong:  # such as a bracket that is never closed
        raise UnknownStoreUrl("a SQLite URL is sqlite:///file.db") from wrong
    if parts.netloc or not parts.path.startswith("/") or len(parts.path) < 2:
        raise UnknownStoreUrl("a SQLite URL is sqlite:///file.db or sqlite:////absolute/file.db")
    if parts.query or parts.fragment:
        raise UnknownStoreUrl("a SQLite URL takes no options")
    path = unquote(parts.path[1:])
    if "\x00" in path:
        raise UnknownStoreUrl("a file's name cannot contain NUL")
    return Path(path)


def is_missing_or_empty(path: Path) -> bool:
    """Whether opening a store there creates it."""
    return not (path.is_file() and path.stat().st_size)
