"""The coordinator: the only one that decides what is true. Import its modules directly."""
