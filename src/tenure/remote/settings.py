"""Settings of a client: the server's address, TLS and token, and time-outs.

A caller with a token can act as its principal, so it goes into one header and appears in no error,
no log and no repr. It is not sent to another machine without TLS unless the user allows that."""

import ssl
from collections.abc import Mapping
from pathlib import Path
from urllib.parse import urlsplit

import msgspec

from tenure.core.instants import seconds
from tenure.core.policy import Backoff
from tenure.core.tokens import read_token
from tenure.deadlines import RETRY_FOR_S
from tenure.errors import InvalidInput, UnknownStoreUrl
from tenure.protocol import TOKEN_FILE_VARIABLE, TOKEN_VARIABLE, is_loopback

CA_VARIABLE = "TENURE_CA_FILE"
CERTIFICATE_VARIABLE = "TENURE_CLIENT_CERT"
KEY_VARIABLE = "TENURE_CLIENT_KEY"
INSECURE_VARIABLE = "TENURE_INSECURE"

MAX_TOKEN_FILE_BYTES = 4096

DEFAULT_PORTS = {"http": 80, "https": 443}


class Address(msgspec.Struct, frozen=True, kw_only=True):
    """Where a server is. `prefix` is what a proxy puts before its paths."""

    scheme: str
    host: str
    port: int
    prefix: str = ""

    def __str__(self) -> str:
        host = f"[{self.host}]" if ":" in self.host else self.host
        return f"{self.scheme}://{host}:{self.port}{self.prefix}"

    @property
    def is_private(self) -> bool:
        """Whether no one else on the network can read the traffic: TLS, or an address of this
        machine."""
        return self.scheme == "https" or is_loopback(self.host)


def parse_address(url: str) -> Address:
    """The server that a URL names. Errors never quote the URL, which may contain a password."""
    try:
        parts = urlsplit(url)
        host, port = parts.hostname, parts.port
    except ValueError as wrong:  # such as a port that is not a number
        raise UnknownStoreUrl("a server's URL is http(s)://host:port") from wrong
    if parts.username is not None or parts.password is not None:
        raise UnknownStoreUrl(
            f"a server's URL takes no user and no password, {TOKEN_VARIABLE} is for that"
        )
    if parts.query or parts.fragment:
        raise UnknownStoreUrl("a server's URL takes no options")
    scheme = parts.scheme.lower()
    if scheme not in DEFAULT_PORTS or not host or not _is_plain(host + parts.path):
        raise UnknownStoreUrl("a server's URL is http(s)://host:port")
    return Address(
        scheme=scheme,
        host=host,
        port=DEFAULT_PORTS[scheme] if port is None else port,
        prefix=parts.path.rstrip("/"),
    )


def _is_plain(text: str) -> bool:
    return text.isascii() and text.isprintable() and " " not in text


class Secret:
    """A token whose repr does not contain it."""

    __slots__ = ("_text",)

    def __init__(self, text: str) -> None:
        self._text = text

    def header(self) -> str:
        """The value of the `Authorization` header."""
        return f"Bearer {self._text}"

    def __repr__(self) -> str:
        return "Secret(…)"


class Trust(msgspec.Struct, frozen=True, kw_only=True):
    """How client and server authenticate each other."""

    token: Secret | None = None
    ca_file: Path | None = None
    client_certificate: Path | None = None
    client_key: Path | None = None
    is_insecure: bool = False
    """Whether the token may be sent without TLS."""


def trust_from_environment(environment: Mapping[str, str], token: str | None = None) -> Trust:
    """Read it from the environment; `token` is the application's own token, if it has one."""
    insecure = environment.get(INSECURE_VARIABLE, "")
    if insecure not in ("", "0", "1"):
        raise InvalidInput(INSECURE_VARIABLE, "is neither 0 nor 1")
    return Trust(
        token=_secret(token, "token")
        or _secret(environment.get(TOKEN_VARIABLE), TOKEN_VARIABLE)
        or _secret(_token_file(environment), TOKEN_FILE_VARIABLE),
        ca_file=_path(environment, CA_VARIABLE),
        client_certificate=_path(environment, CERTIFICATE_VARIABLE),
        client_key=_path(environment, KEY_VARIABLE),
        is_insecure=insecure == "1",
    )


def _token_file(environment: Mapping[str, str]) -> str | None:
    """The content of the file that `TENURE_TOKEN_FILE` names, if `TENURE_TOKEN` is not set."""
    path = _path(environment, TOKEN_FILE_VARIABLE)
    if path is None or environment.get(TOKEN_VARIABLE):
        return None
    try:
        with path.open("rb") as file:
            text = file.read(MAX_TOKEN_FILE_BYTES).decode("ascii", "replace")
    except OSError as failure:
        raise InvalidInput(TOKEN_FILE_VARIABLE, f"cannot be read: {failure.strerror}") from failure
    return text.strip() or "empty"  # which is then refused as not a token


def _secret(text: str | None, field: str) -> Secret | None:
    if not text:
        return None
    if read_token(text.strip()) is None:
        # Checked here: the HTTP library's error about an illegal header would show the token.
        hint = "`tenure tokens create` prints one, as tenure_…"
        raise InvalidInput(field, "is not a Tenure token", hint=hint)
    return Secret(text.strip())


def _path(environment: Mapping[str, str], name: str) -> Path | None:
    given = environment.get(name)
    return Path(given) if given else None


def check_trust(address: Address, trust: Trust) -> None:
    """Raise if the token would be sent to another machine without TLS."""
    if trust.token is not None and not address.is_private and not trust.is_insecure:
        raise InvalidInput(
            TOKEN_VARIABLE,
            f"would be sent to {address} without TLS",
            hint=f"use https:, or set {INSECURE_VARIABLE}=1 where the network can be trusted",
        )


def tls_context(trust: Trust) -> ssl.SSLContext:
    """The TLS context. It always checks certificates and host names; `ca_file` adds an
    authority."""
    context = ssl.create_default_context()
    context.minimum_version = ssl.TLSVersion.TLSv1_2
    try:
        if trust.ca_file is not None:
            context.load_verify_locations(trust.ca_file)
    except (OSError, ssl.SSLError) as failure:
        raise InvalidInput(CA_VARIABLE, f"cannot be used: {failure}") from failure
    if trust.client_certificate is None:
        return context
    try:
        context.load_cert_chain(trust.client_certificate, trust.client_key)
    except (OSError, ssl.SSLError) as failure:
        raise InvalidInput(CERTIFICATE_VARIABLE, f"cannot be used: {failure}") from failure
    return context


class Patience(msgspec.Struct, frozen=True, kw_only=True):
    """How long a caller waits for an answer, and for how long it retries."""

    connect_s: float = 5.0
    answer_s: float = 15.0
    """Between two pieces of an answer."""
    after_wait_s: float = 5.0
    """How much longer than the requested wait an answer may take."""
    whole_answer_s: float = 120.0
    retry_for_s: float = RETRY_FOR_S
    """For how long a request without an answer is sent again; 0: it is sent once."""
    backoff: Backoff = Backoff(initial_us=seconds(0.2), cap_us=seconds(5), floor=0.1)
