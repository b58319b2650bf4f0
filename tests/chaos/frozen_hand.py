"""Claims one job, or fires the schedules that are due, and freezes itself with SIGSTOP inside its
first transaction.

Run as `python -m tests.chaos.frozen_hand URL claim|fire`. Prints how many jobs it granted or made.
"""

import signal
import sys
import threading
from typing import Any

from tenure.coordinator.schedules import Firer
from tenure.coordinator.service import Coordinator
from tenure.stores.postgres.store import PostgresStore
from tests.stores.lives import claim_request
from tests.support.doubles import instead

TIMEOUT_S = 60.0
"""Of the store: far longer than the server waits for a process that is frozen."""


class FreezingStore(PostgresStore):
    """Freezes its process once, when it holds the locks and has not written all."""

    is_frozen = False

    def __init__(self, url: str, *, timeout_s: float) -> None:
        super().__init__(url, timeout_s=timeout_s)
        self._own_save = instead(self, "jobs.save_held", self._save)
        self._own_write = instead(self, "claims._write_plan", self._write_claim)

    def _freeze(self) -> None:
        if not self.is_frozen:
            self.is_frozen = True
            # To this thread: if another one took the signal, this one would write and commit first.
            signal.pthread_kill(threading.get_ident(), signal.SIGSTOP)

    def _write_claim(self, *planned: Any) -> None:
        self._freeze()
        self._own_write(*planned)

    def _save(self, *changes: Any) -> Any:
        self._freeze()
        return self._own_save(*changes)


def main(url: str, what: str) -> None:
    store = FreezingStore(url, timeout_s=TIMEOUT_S)
    coordinator = Coordinator(store)
    if what == "claim":
        made = len(coordinator.claim(claim_request(1, worker="frozen")).grants)
    else:
        made = Firer(coordinator).fire_due().fired
    sys.stdout.write(f"{made}\n")
    coordinator.close()
    store.close()


if __name__ == "__main__":
    main(*sys.argv[1:])
