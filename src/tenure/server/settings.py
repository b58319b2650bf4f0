"""What a server allows, each limit with a name. The defaults are the documented ones."""

import msgspec


class ServerSettings(msgspec.Struct, frozen=True, kw_only=True):
    """Limits and deadlines of one server. [H43] [H13]"""

    max_connections: int = 4096
    max_connections_per_address: int = 3072
    """So that one address cannot take all of them; a proxy in front has one address too."""
    max_header_bytes: int = 16 << 10
    max_memory_bytes: int = 256 << 20
    """What large bodies may take together, coming and going. [H45]"""
    handshake_within_s: float = 5.0
    """How long a TLS handshake may take, from the moment the connection is accepted. [H44]"""
    head_within_s: float = 10.0
    body_within_s: float = 30.0
    send_within_s: float = 60.0
    slowest_bytes_per_s: int = 512 << 10
    """How fast an answer has to be read once that time is over."""
    idle_s: int = 75
    shutdown_within_s: int = 10
    poll_every_s: float = 0.25
    """How often the store is asked for work while claims wait: the truth behind every hint."""
    max_idle_claims_per_s: int = 200
    """How often all that wait together may ask, whatever they wait for."""
    recheck_token_s: float = 2.0
    """How old what is known of a token may be; a revoked one is out within twice that. [H25]"""
    max_remembered_tokens: int = 10_000
    strangers_at_once: int = 2
    """Tokens not yet known that are looked up at a time, on the threads that all reads share."""
    max_strangers: int = 64
    """Tokens not yet known that may wait for that; past it nobody waits. [H30]"""
    blocking_calls: int = 8
    """Threads for reads that wait for the store."""
    listing_calls: int = 4
    """Threads for lists and metrics, which may take long: they hold up no other read. [H34]"""
