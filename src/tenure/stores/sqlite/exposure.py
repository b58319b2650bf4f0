"""Who else can change the file of a SQLite store: its mode, its folder, and links to it.

A user who can write the file can change every job and its history; one who can write the folder can
replace the file. Only reads modes and links, and never opens the file. [B29] [B30]
"""

import logging
import os
import stat
from pathlib import Path

from tenure.core.vocabulary import HealthState
from tenure.errors import StoreError
from tenure.ports import HealthFact, fact

_log = logging.getLogger("tenure.stores")


def check_exposure(path: Path) -> None:
    """Raise `StoreError` if the file is not safe to use; log a warning if it may not be."""
    for found in exposure(path):
        if found.state is HealthState.BAD:
            raise StoreError(f"{path} is not safe to use: {found.value}", hint=found.advice)
        if found.state is HealthState.WARNING:
            _log.warning("%s: %s; %s", path, found.value, found.advice)


def exposure(path: Path, *, trusted: frozenset[int] | None = None) -> list[HealthFact]:
    """What is known of the file, whether it exists or not. `trusted` are the users whose links are
    followed: by default this process's own user and root."""
    facts = []
    if path.is_symlink():
        facts.append(_link(path, trusted or frozenset({os.geteuid(), 0})))
        path = path.resolve()
    facts.append(_folder(path.parent))
    if path.exists():
        facts.append(_file(path))
    return facts


def _link(path: Path, trusted: frozenset[int]) -> HealthFact:
    target = path.resolve()
    if path.lstat().st_uid not in trusted:
        value = f"a link of another user, to {target}"
        return fact("link", value, bad=True, advice="name the file itself, or make the link anew")
    if not target.exists():
        value = f"a link to {target}, which does not exist"
        return fact("link", value, bad=True, advice="name a file, or remove the link")
    value = f"a link to {target}"
    return fact("link", value, warning=True, advice="name the file itself")


def _folder(folder: Path) -> HealthFact:
    mode = folder.stat().st_mode
    if not mode & stat.S_IWOTH:
        return fact("folder_mode", f"{stat.S_IMODE(mode):04o}")
    value = f"every user can write in the folder {folder}"
    if mode & stat.S_ISVTX:
        # As in /tmp: others cannot replace an existing file, but they can create a missing one.
        advice = "use a folder of your own"
        return fact("folder_mode", value, warning=True, advice=advice)
    return fact("folder_mode", value, bad=True, advice=f"run `chmod o-w {folder}`")


def _file(path: Path) -> HealthFact:
    mode = path.stat().st_mode
    if not mode & stat.S_IWOTH:
        return fact("file_mode", f"{stat.S_IMODE(mode):04o}")
    value = f"every user can write the file {path}"
    return fact("file_mode", value, bad=True, advice=f"run `chmod o-w {path}`")
