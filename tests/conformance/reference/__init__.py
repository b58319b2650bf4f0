"""The store that others are compared with: dictionaries, and no SQL."""
