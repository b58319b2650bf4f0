"""Stores: SQLite, in a file or in memory, and PostgreSQL, behind the port `tenure.ports.Store`."""
