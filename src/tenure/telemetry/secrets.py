"""Secrets in text that was not meant to have any: error messages, tracebacks, log lines.

Known shapes are hidden: a URL's password, tokens and keys of well-known services, private keys, and
what follows `Bearer`. So is what a text calls a password, a token or the like, as in
`password=hunter2`. In the source lines of a traceback only string literals are treated like that:
`token = read_token(path)` is code, and somebody has to read it. A secret of any other shape is not
recognised. Every pattern takes time linear in the text. [OB13]
"""

import re
from collections.abc import Iterator

from tenure.core.tokens import TOKEN_PATTERN

REDACTED = "[redacted]"

_WORDS = (
    r"passw(?:or)?d|passphrase|secret|token|authorization|credential|cookie"
    r"|(?:api|access|account|private|secret|signing|encryption)[_-]?key(?:_?base)?"
    # "first_pass" and "1 pass: all green" are no secrets: `pass` counts after one of these words.
    r"|(?:db|database|sql|mysql|pg|postgres|redis|mongo|ldap|smtp|imap|e?mail|ftp|ssh|proxy|user"
    r"|admin|root|login|auth)[_-]?pass"
)
_NAMES_IN_TEXT = (
    rf"{_WORDS}"
    r"|(?-i:[A-Z0-9]_PASS)|(?<=[?&])pass"  # an environment variable, a parameter of a URL
    r"""|(?<![a-z])pwd(?!["']?\s*[=:]\s*["']?[/~])"""  # PWD=/home/ada is a folder
    r"|(?<=[?&])sig|(?<![a-z_])(?:sig|signature)(?==[a-z0-9+/%_-]{16})"  # a signed URL
)
_NAMED = rf"""((?:{_NAMES_IN_TEXT})s?["']?\s*[=:]\s*)"""
_LITERAL = r"""(?:[rbu]|rb|br)?(?:"(?:[^"\\]|\\.)*"|'(?:[^'\\]|\\.)*')"""
SECRET_NAME = re.compile(rf"{_WORDS}|(?<![a-z])pwd$|^lease_id$", re.IGNORECASE)
_NAMED_LITERAL = re.compile(rf"{_NAMED}({_LITERAL})", re.IGNORECASE)
_NAMED_VALUE = re.compile(
    rf"""{_NAMED}({_LITERAL}|(?:(?:Bearer|Basic)\s+)?[^\s,;&"']+)""", re.IGNORECASE
)
# A password may contain "@": it ends at the last one before a slash, a space or a quote.
_URL = re.compile(r"""(://[^\s:/@]*:)(?!@[^\s/@"']*(?:[\s/"']|\Z))[^\s/@]*(?:@[^\s/@"']*)*(?=@)""")
_PRIVATE_KEY = re.compile(
    r"(-----BEGIN [A-Z ]*PRIVATE KEY-----).*?(?=-----END [A-Z ]*PRIVATE KEY-----|\Z)", re.DOTALL
)
_KEYS = re.compile(
    r"(\bBearer\s+)(?=\S*\d)[A-Za-z0-9._~+/=-]{8,}"
    r"|\b(AKIA|ASIA)[A-Z0-9]{16}\b"  # AWS
    r"|\b(gh[pousr]_|github_pat_|glpat-)[A-Za-z0-9_-]{16,}"  # GitHub, GitLab
    r"|\b(xox[abeoprs]-)[A-Za-z0-9-]{10,}"  # Slack
    r"|\b([sr]k_(?:live|test)_)[A-Za-z0-9]{10,}"  # Stripe
    r"|\b(sk-)[A-Za-z0-9_-]{16,}"  # OpenAI, Anthropic
    r"|\b(AIza)[A-Za-z0-9_-]{30,}"  # Google
    r"|\b(eyJ)[A-Za-z0-9_-]{8,}\.[A-Za-z0-9_-]{8,}\.[A-Za-z0-9_-]*"  # a JSON Web Token
)
_FRAME = re.compile(r'(?P<before>[\s|]*)File ".*", line \d+')


def without_secrets(text: str) -> str:
    """The text without secrets of a known shape, or after a name such as `password`."""
    text = TOKEN_PATTERN.sub(rf"tenure_\1_{REDACTED}", text)  # its id says whose it was
    text = _PRIVATE_KEY.sub(rf"\1{REDACTED}", text)
    text = _URL.sub(rf"\1{REDACTED}", text)
    text = _KEYS.sub(_key, text)
    return "".join(
        _NAMED_LITERAL.sub(_named, line) if is_code else _NAMED_VALUE.sub(_named, line)
        for line, is_code in _lines(text)
    )


def _key(found: re.Match[str]) -> str:
    """Keep the first characters of a key: they say which service it is for."""
    return f"{next(group for group in found.groups() if group is not None)}{REDACTED}"


def _named(found: re.Match[str]) -> str:
    return found[0] if REDACTED in found[2] else f"{found[1]}{REDACTED}"


def _lines(text: str) -> Iterator[tuple[str, bool]]:
    """Each line, and whether it is source code below a frame of a traceback."""
    frame_depth: int | None = None
    for line in text.splitlines(keepends=True):
        frame = _FRAME.match(line)
        if frame is not None:
            frame_depth = len(frame["before"])
            yield line, False
            continue
        is_below = frame_depth is not None and len(line) - len(line.lstrip(" \t|")) > frame_depth
        if not is_below:
            frame_depth = None
        yield line, is_below
