"""`memory://`: a store in this process, which forgets everything when it is closed."""

from tenure.stores.memory.store import MemoryStore
from tenure.stores.urls import StoreOptions


def open_store(_url: str, _options: StoreOptions) -> MemoryStore:
    """A new and empty store, whatever the URL and the options are."""
    return MemoryStore()
