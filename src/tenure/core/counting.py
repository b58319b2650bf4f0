"""Counts in words, for every text that people read: `1 job`, `1,200 jobs`. Pure."""


def noun_after(count: int, noun: str, plural: str = "") -> str:
    """The noun that follows a count: `noun` after one, and `plural` after any other number (by
    itself `noun` with an s). Both may have more words: `noun_after(left, "job is", "jobs are")`."""
    return noun if count == 1 else plural or f"{noun}s"


def counted(count: int, noun: str, plural: str = "", *, thousands: str = ",") -> str:
    """The count and the noun that follows it."""
    number = f"{count:,}".replace(",", thousands)
    return f"{number} {noun_after(count, noun, plural)}"
