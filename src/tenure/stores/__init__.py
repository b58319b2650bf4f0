"""Stores: memory (the reference), SQLite and PostgreSQL behind the one port `tenure.ports.Store`."""
