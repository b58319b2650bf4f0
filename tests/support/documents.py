"""Fields that documents must have, written down once from the spec."""

REQUIRED_OF_DEAD_LETTERS = frozenset(
    {
        *("reason_code", "stage", "last_error", "attempts", "last_owner"),
        *("last_lease_expires_at", "correlation_id"),
    }
)
"""[F7]"""
