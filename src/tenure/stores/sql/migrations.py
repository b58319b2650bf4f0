"""Migrations: numbered SQL scripts of a dialect, applied in order, each in one transaction.

They are in the folder `migrations` of the dialect's package. A script is never edited once
released; a change of the schema is a new number. The dialect applies them, because each one locks
in its own way.
"""

import re
from importlib.resources import files

import msgspec

_FILE = re.compile(r"(\d{4})_(\w+)\.sql")


class Migration(msgspec.Struct, frozen=True):
    """One step of the schema, and the version it leads to."""

    version: int
    name: str
    text: str


def migrations(package: str) -> list[Migration]:
    """Every migration of a dialect's package in order."""
    found = []
    for entry in files(package).joinpath("migrations").iterdir():
        match = _FILE.fullmatch(entry.name)
        if match is not None:
            text = entry.read_text(encoding="utf-8")
            found.append(Migration(int(match[1]), match[2], text))
    return sorted(found, key=lambda migration: migration.version)


def newest_version(package: str) -> int:
    """The schema version this code was written for. [Y3]"""
    return migrations(package)[-1].version


def transaction(scripts: list[str]) -> str:
    """Scripts as somebody would run them by hand, each in a transaction."""
    return "".join(f"BEGIN;\n\n{script}\nCOMMIT;\n" for script in scripts)
