"""Migrations: numbered SQL scripts of a dialect, applied in order, each in one transaction.

They are in the folder `migrations` of the dialect's package. A script is never edited once
released; a change of the schema is a new number. The dialect applies them, because each one locks
in its own way.
"""

import hashlib
import re
from functools import cache
from importlib.resources import files

import msgspec

from tenure.errors import SchemaDiffers

_COMMENT = re.compile(r"--[^\n]*")
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


def schema_digest(package: str, version: int) -> str:
    """Identifies the schema that the migrations up to this version make. Two states of Tenure may
    give different schemas one number before the first release; the digest distinguishes them.
    [Y7]"""
    return _digests(package)[version]


@cache
def _digests(package: str) -> dict[int, str]:
    digests: dict[int, str] = {}
    text = ""
    for migration in migrations(package):
        text += " ".join(_COMMENT.sub("", migration.text).split()) + "\n"
        digests[migration.version] = hashlib.sha256(text.encode()).hexdigest()[:16]
    return digests


def checked_version(package: str, *, version: int, digest: str | None) -> int:
    """The version, if the migrations of this code lead to the schema that has it, or if a newer
    Tenure made it. Raises `SchemaDiffers` otherwise. [Y7]"""
    known = _digests(package)
    is_ours = known.get(version) == digest if version in known else digest is not None
    if version and not is_ours:
        raise SchemaDiffers(found=version, needed=newest_version(package))
    return version


def transaction(scripts: list[str]) -> str:
    """Scripts for running by hand, each in a transaction."""
    return "".join(f"BEGIN;\n\n{script}\nCOMMIT;\n" for script in scripts)
