"""How many Python functions one call runs on PostgreSQL: a clock would measure the machine."""

import gc
import sys
from collections.abc import Callable
from types import FrameType

from msgspec.structs import replace

from tenure.app import Tenure
from tenure.coordinator.service import Coordinator, _Claim
from tenure.deadlines import deadline
from tenure.stores.postgres.store import PostgresStore
from tests.stores.lives import claim_request, enqueue

MOST_OF_AN_ENQUEUE = 150
MOST_OF_A_CLAIM = 250
CALLS = 20
"""The lowest of this many counts: a busy machine delivers the server's answer in more pieces, and
each piece is waited for once more."""


def functions_during(work: Callable[[], object]) -> int:
    """How many Python functions this thread called."""
    called = 0

    def count(_: FrameType, event: str, __: object) -> None:
        nonlocal called
        called += event == "call"

    gc.disable()
    sys.setprofile(count)
    try:
        work()
    finally:
        sys.setprofile(None)
        gc.enable()
    return called


def test_an_enqueue_calls_few_functions(postgres_url: str) -> None:
    PostgresStore(postgres_url, migrate=True).close()
    app = Tenure(postgres_url)

    @app.job
    def add(number: int) -> None: ...

    with app:
        for number in range(10):
            add.enqueue(number)

        called = min(functions_during(lambda: add.enqueue(1)) for _ in range(CALLS))

    assert called <= MOST_OF_AN_ENQUEUE


def test_a_claim_of_one_job_calls_few_functions(postgres_store: PostgresStore) -> None:
    coordinator = Coordinator(postgres_store)
    kind = postgres_store.jobs.load(enqueue(postgres_store, 2 * CALLS)).jobs.popitem()[1].kind

    def called_by_a_claim(seq: int) -> int:
        request = replace(claim_request(1, seq=seq), kinds=(kind,))
        call = _Claim(request, deadline(10))
        called = functions_during(lambda: coordinator._run_claims([call]))
        assert len(call.future.result().grants) == 1
        return called

    called = min([called_by_a_claim(seq) for seq in range(1, CALLS)])
    coordinator.close()

    assert called <= MOST_OF_A_CLAIM
