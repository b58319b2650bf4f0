"""The wire, version 1: messages, their translation from and to the core, and the table of routes.

Server, client, OpenAPI description and reference page read the same table (`routes.ROUTES`).
Plain values only: no sockets, no store, no clock. Decides nothing about jobs.
"""

import ipaddress

PROTOCOL_VERSION = 1
"""What `/v1` speaks. Later releases of version 1 add optional fields, never change one. [H2]"""

VERSION_HEADER = "Tenure-Protocol"
REQUEST_ID_HEADER = "X-Request-Id"
"""Names one exchange, for logs; it is not the `request_id` that makes a call repeatable."""

LEASE_HEADER = "Tenure-Lease"
"""The lease an artifact is uploaded under; the body of such a request is the file itself."""

TRACEPARENT_HEADER = "traceparent"
"""W3C's: the trace that a request is in."""
CORRELATION_HEADER = "Tenure-Correlation-Id"
"""The correlation id of the attempt that asks, or of the jobs that a request is about. [OB6]"""

URL_VARIABLE = "TENURE_URL"
"""The variable that tells a process where its jobs are kept: a server, or a store."""
TOKEN_VARIABLE = "TENURE_TOKEN"  # noqa: S105 - the name of a variable
"""The variable that tells it who it is to a server."""
TOKEN_FILE_VARIABLE = "TENURE_TOKEN_FILE"  # noqa: S105 - the name of a variable
"""The variable that names a file with the token, read where `TENURE_TOKEN` is not set."""


def is_loopback(host: str) -> bool:
    """Whether a name or address, as a URL or a `Host` header has it, is this machine's own: then a
    token may be sent to it unencrypted, and a server without tokens answers it. No resolver is
    asked: an uncertain name is another machine."""
    if host.lower() == "localhost":
        # No other spelling: "localhost." may be asked of a name server.
        return True
    is_bracketed = host.startswith("[") and host.endswith("]")
    try:
        address = ipaddress.ip_address(host[1:-1] if is_bracketed else host)
    except ValueError:
        return False
    if isinstance(address, ipaddress.IPv4Address):
        return address.is_loopback and not is_bracketed
    # Versions of Python differ about the IPv4 addresses among those of IPv6.
    return (address.ipv4_mapped or address).is_loopback
