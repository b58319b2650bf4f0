"""How a dashboard is served: its address, and the key that signs its sessions.

Proxy headers are ignored, so the public address is a setting. The key is made at random and kept in
a file that only its owner can read. There is no default key: a key that several installations share
would let one sign sessions for another. See docs/adr/0060.
"""

import os
import re
import stat
from pathlib import Path

import msgspec

from tenure.core.ids import DEFAULT_NAMESPACE, Namespace
from tenure.dashboard.sessions import KEY_BYTES
from tenure.errors import InvalidInput, TenureError

_ORIGIN = re.compile(r"(https?)://(?:[a-z0-9.-]+|\[[0-9a-f:.]+\])(?::([1-9][0-9]{0,4}))?")
_DEFAULT_PORTS = {"http": "80", "https": "443"}
MAX_PORT = 65_535
SUFFIX = ".session-key"
MAX_KEY_FILE_BYTES = 4096


class DashboardSettings(msgspec.Struct, frozen=True, kw_only=True):
    """`key` signs sessions. Without `authenticated` there is no sign-in, and only requests to
    localhost are answered."""

    key: bytes
    authenticated: bool = True
    public_origin: str | None = None
    """What browsers call this server, such as `https://jobs.example.com`, if a proxy is in
    front."""
    namespace: Namespace = DEFAULT_NAMESPACE
    """What pages show at first, where there are no tokens. [DB11]"""


def check_origin(text: str) -> str:
    """The origin that a setting names, as browsers send it: without a trailing slash and without
    the port that its scheme has anyway. Raises `InvalidInput`."""
    origin = text.removesuffix("/").lower()
    found = _ORIGIN.fullmatch(origin)
    if found is None or int(found[2] or 1) > MAX_PORT:
        raise InvalidInput(
            "--public-origin",
            f"{ascii(text)[:80]} is not the origin of a site",
            hint="give scheme, host and perhaps a port: https://jobs.example.com",
        )
    default = _DEFAULT_PORTS[found[1]]
    return origin.removesuffix(f":{default}") if found[2] == default else origin


def read_or_make_key(path: Path) -> bytes:
    """The key in a file, which is made if it does not exist."""
    try:
        return _read(path)
    except FileNotFoundError:
        pass
    except OSError as failure:
        raise _cannot("read", path, failure) from failure
    # Written under another name and linked: a server that starts at the same moment reads either
    # no file or a whole key, and both end up with the same one.
    new = path.with_name(f"{path.name}.{os.getpid()}.new")
    try:
        handle = os.open(new, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600)
        try:
            os.write(handle, os.urandom(KEY_BYTES).hex().encode() + b"\n")
            os.fsync(handle)
        finally:
            os.close(handle)
        try:
            os.link(new, path)
        except FileExistsError:
            pass
        finally:
            new.unlink()
        return _read(path)
    except OSError as failure:
        raise _cannot("write", path, failure) from failure


def _read(path: Path) -> bytes:
    handle = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
    try:
        found = os.fstat(handle)
        if found.st_uid != os.geteuid():
            # Root can read any file: another user may have put a key here that they know.
            raise InvalidInput(
                "--session-key",
                f"{path} belongs to another user, who can read it",
                hint="remove it to have a new one made, or name another file",
            )
        if stat.S_IMODE(found.st_mode) & 0o077:
            raise InvalidInput(
                "--session-key",
                f"others can read or write {path}",
                hint=f"run `chmod 600 {path}`, or remove it to have a new one made",
            )
        text = os.read(handle, MAX_KEY_FILE_BYTES).strip()
    finally:
        os.close(handle)
    try:
        key = bytes.fromhex(text.decode("ascii"))
    except ValueError:
        key = b""
    if len(key) < KEY_BYTES:
        raise InvalidInput(
            "--session-key",
            f"{path} has no key of {2 * KEY_BYTES} hexadecimal digits",
            hint="remove it to have a new one made",
        )
    return key


def _cannot(verb: str, path: Path, failure: OSError) -> TenureError:
    return TenureError(
        f"cannot {verb} the key of sessions {path}: {failure.strerror}",
        hint="name another file with --session-key",
    )
