"""Which name was probably meant by one that does not exist. Pure."""

from collections.abc import Iterable
from difflib import get_close_matches


def closest(name: str, known: Iterable[str]) -> str | None:
    """The known name that is written most nearly like this one; None if none is close."""
    alike = get_close_matches(name, sorted(known), n=1)
    return alike[0] if alike else None


def did_you_mean(name: str, known: Iterable[str], otherwise: str = "") -> str:
    """`did you mean charge?`, or the other text if no known name is close."""
    meant = closest(name, known)
    return otherwise if meant is None else f"did you mean {meant}?"
