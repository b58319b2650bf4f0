"""The limits of a server. The defaults are the documented ones."""

import msgspec


class ServerSettings(msgspec.Struct, frozen=True, kw_only=True):
    """Limits and deadlines of one server. [H43] [H62]"""

    max_connections: int = 4096
    max_connections_per_address: int = 3072
    """Keeps one address from using all connections. A proxy in front counts as one address."""
    max_header_bytes: int = 16 << 10
    max_memory_bytes: int = 256 << 20
    """Memory for all large requests and responses together. [H45]"""
    handshake_within_s: float = 5.0
    """How long a TLS handshake may take, from the moment the connection is accepted. [H44]"""
    head_within_s: float = 10.0
    body_within_s: float = 30.0
    send_within_s: float = 20.0
    slowest_bytes_per_s: int = 320 << 10
    """How fast a client has to read an answer once that time is over, on average so far. [H62]"""
    idle_s: int = 75
    unknown_idle_s: int = 10
    """How long a connection may be idle on which no request had a valid token or session. [H75]"""
    shutdown_within_s: int = 10
    poll_every_s: float = 0.25
    """How often waiting claims poll the store. Wake-ups are only hints; polling finds every job."""
    max_idle_claims_per_s: int = 200
    """How often all waiting claims together may poll the store."""
    max_followers: int = 64
    """Readers of the tail that may wait for events at a time; others are answered at once."""
    recheck_token_s: float = 2.0
    """How long a token is cached; a revoked one is refused within twice that. [H25]"""
    max_remembered_tokens: int = 10_000
    strangers_at_once: int = 2
    """Unknown tokens that are looked up at a time, on the threads that all reads share."""
    max_strangers: int = 64
    """Unknown tokens that may wait for a look-up; more get a 503. [H30]"""
    blocking_calls: int = 8
    """Threads for reads that wait for the store."""
    listing_calls: int = 4
    """Separate threads for lists, so that these do not delay other reads. [H61]"""
    max_queues: int = 10_000
    max_schedules: int = 1_000
    max_live_workers: int = 2_000
    max_kinds: int = 2_000
    """How many of each a namespace may have; removed schedules, silent workers and kinds without
    settings not counted. [H77]"""
