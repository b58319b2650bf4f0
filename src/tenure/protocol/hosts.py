"""Which hosts are this machine: whether a token may be sent unencrypted, and which requests a
server without tokens answers. It asks no resolver: an uncertain name is another machine.
"""

import ipaddress


def is_loopback(host: str) -> bool:
    """Whether a name or address, as a URL or a `Host` header has it, is this machine's own."""
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
