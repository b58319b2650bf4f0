"""A server names the transaction that delays events, to those who may know."""

from collections.abc import Iterator

import psycopg
import pytest

from tenure.coordinator.service import Coordinator
from tenure.core.ids import DEFAULT_NAMESPACE, QueueName
from tenure.core.views.events import TailFilter
from tenure.core.vocabulary import Role
from tenure.stores.postgres.store import PostgresStore
from tenure_conformance.spec import spec
from tests.remote.serving import ThreadedServer, connect, new_token
from tests.stores.lives import QUEUE, enqueue


@pytest.fixture
def served(server: ThreadedServer, postgres_url: str) -> Iterator[Coordinator]:
    coordinator = Coordinator(PostgresStore(postgres_url, migrate=True))
    mounted = server.mount(coordinator)
    yield coordinator
    mounted.close()
    coordinator.close()
    coordinator.store.close()


@spec("E35")
@pytest.mark.parametrize(
    ("role", "queues", "is_told"),
    [
        (Role.OPERATOR, (), True),
        (Role.OPERATOR, (QUEUE,), False),
        (Role.VIEWER, (), False),
    ],
)
def test_an_operator_for_all_queues_and_kinds_is_told_what_delays_events(
    server: ThreadedServer,
    served: Coordinator,
    postgres_url: str,
    role: Role,
    queues: tuple[QueueName, ...],
    is_told: bool,
) -> None:
    token = new_token(served.store, role, "somebody", queues=queues)
    caller = connect(server.url, token)
    store = caller.store
    at_the_end = store.events.follow(TailFilter(namespace=DEFAULT_NAMESPACE, newest=0)).next

    before = store.events.delay()
    with psycopg.connect(postgres_url, application_name="a report") as raw:
        raw.execute("SELECT pg_current_xact_id()")
        enqueue(served.store)
        during = store.events.delay()
        pid = raw.info.backend_pid
    after = store.events.delay()
    wanted = TailFilter(namespace=DEFAULT_NAMESPACE, after=at_the_end)
    shown = store.events.follow(wanted).events
    caller.close()

    assert (before, after) == (None, None)
    assert (during is not None) == is_told
    assert during is None or (during.pid, during.name, during.state) == (
        pid,
        "a report",
        "idle in transaction",
    )
    assert len(shown) == 1
