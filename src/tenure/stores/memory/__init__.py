"""The reference store: everything in memory, in one process."""
