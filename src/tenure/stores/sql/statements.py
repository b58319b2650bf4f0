"""Loads named statements from `.sql` files.

`-- name: x` starts a statement; one in a dialect's file adds to those of `common.sql`, or replaces
the one of the same name. `{placeholder}` is filled in when the files are loaded, `:name` is a
parameter. Nothing that a caller of Tenure sends ever becomes text of a statement.
"""

import re
from collections.abc import Mapping
from functools import lru_cache
from importlib.resources import files

import msgspec

MOST_COMPILED = 1024
"""Compiled statements that are kept. The text of a batch depends on which columns are equal."""

_BEGINNING = re.compile(r"^-- name: (\w+)\n", re.MULTILINE)
_COMMENT = re.compile(r"^\s*--.*\n?", re.MULTILINE)
_PLACEHOLDER = re.compile(r"\{(\w+)\}")
_PARAMETER = re.compile(r"(?<![:\w]):([a-z_]\w*)")


class Statement(msgspec.Struct, frozen=True):
    """SQL with numbered placeholders, and the parameter of each number."""

    text: str
    names: tuple[str, ...]


def fill(text: str, values: Mapping[str, str]) -> str:
    """`text` with every known `{placeholder}` replaced; other ones stay unchanged."""
    return _PLACEHOLDER.sub(lambda found: values.get(found[1], found[0]), text)


def compile_statement(text: str, *, placeholder: str) -> Statement:
    """`:name` becomes a number after `placeholder`, the same number wherever it is repeated."""
    names: list[str] = []

    def number(found: re.Match[str]) -> str:
        if found[1] not in names:
            names.append(found[1])
        return f"{placeholder}{names.index(found[1]) + 1}"

    return Statement(_PARAMETER.sub(number, text), tuple(names))


def load_texts(package: str, values: Mapping[str, str]) -> dict[str, str]:
    """Every statement of `common.sql`, then of the dialect's own package, by name."""
    texts: dict[str, str] = {}
    sources = ((__package__, "common"), (package, "statements"), (package, "health"))
    for place, name in sources:
        source = files(place).joinpath(f"{name}.sql").read_text("utf-8")
        parts = _BEGINNING.split(source)[1:]
        for title, body in zip(parts[::2], parts[1::2], strict=True):
            texts[title] = fill(_COMMENT.sub("", body).strip().rstrip(";"), values)
    return texts


class Query(msgspec.Struct, frozen=True):
    """One statement with its parameters bound."""

    text: str
    parameters: tuple[object, ...]


Shape = tuple[tuple[str, str], ...]
"""Words that are still open in a statement, each with the fragment of ours that replaces it."""


class Statements:
    """The statements of one dialect, compiled on first use; those used last are kept.

    `package` is the dialect's, with its `statements.sql` and `health.sql`.
    """

    def __init__(self, package: str, values: Mapping[str, str], *, placeholder: str) -> None:
        self._values = values
        self._texts = load_texts(package, values)
        self._placeholder = placeholder
        self.shaped = lru_cache(maxsize=MOST_COMPILED)(self._shaped)

    def text(self, name: str) -> str:
        """A statement, or a part of one, with parameters still by name."""
        return self._texts[name]

    def _shaped(self, name: str, shape: Shape = ()) -> Statement:
        """The statement `name` with its open placeholders filled from `shape`."""
        text = fill(fill(self._texts[name], dict(shape)), self._values)
        return compile_statement(text, placeholder=self._placeholder)

    def query(self, name: str, shape: Shape = (), /, **parameters: object) -> Query:
        """The statement `name` in this shape with these parameters."""
        statement = self.shaped(name, shape)
        return Query(statement.text, tuple(map(parameters.__getitem__, statement.names)))
