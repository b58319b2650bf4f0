"""The key that signs sessions: made at random, kept in a file that only its owner can read.

See docs/adr/0060. There is no default key: a key that several installations share would let one
sign sessions for another.
"""

import os
import stat
from pathlib import Path

from tenure.dashboard.sessions import KEY_BYTES
from tenure.errors import InvalidInput, TenureError

SUFFIX = ".session-key"
MAX_KEY_FILE_BYTES = 4096


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
            # Root can read any file: somebody else may have put a key here that they know.
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
