"""Stores: memory (the reference), SQLite and PostgreSQL, behind the port `tenure.ports.Store`."""
