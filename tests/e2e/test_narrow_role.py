"""A worker's whole life as the database role that the guide to production recommends."""

import re
import secrets
import signal
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path
from urllib.parse import urlsplit, urlunsplit

import msgspec
import psycopg
import pytest

from tenure.coordinator.retention import Retention
from tenure.coordinator.schedules import Firer
from tenure.coordinator.service import Coordinator
from tenure.core.claims import ClaimRequest
from tenure.core.commands import Enqueue
from tenure.core.ids import (
    DEFAULT_NAMESPACE,
    Actor,
    JobId,
    Kind,
    QueueName,
    RequestId,
    ScheduleName,
    WorkerId,
    new_job_id,
)
from tenure.core.instants import Duration, seconds
from tenure.core.kind_settings import KindChange
from tenure.core.rates import parse_rate
from tenure.core.schedules import PutSchedule, ScheduleSpec
from tenure.core.tokens import NewToken, TokenId
from tenure.core.vocabulary import CancelMode, JobStatus, Role
from tenure.errors import StoreError
from tenure.wiring import open_store
from tests.e2e.workers import Site
from tests.support.waiting import until

pytestmark = pytest.mark.process

PAGE = (Path(__file__).parents[2] / "docs" / "guide" / "production.md").read_text()
AT_ONCE = Duration(0)


@pytest.fixture
def narrow_url(postgres_url: str) -> Iterator[str]:
    """A migrated database, as the role of the guide under a name of its own."""
    [script] = re.findall(r"^```sql\n(CREATE ROLE jobs .*?)^```$", PAGE, re.MULTILINE | re.DOTALL)
    name, password = f"jobs_{secrets.token_hex(4)}", secrets.token_hex(8)
    script = re.sub(r"\bjobs\b", name, script)
    open_store(postgres_url, migrate=True).close()
    with psycopg.connect(postgres_url, autocommit=True) as owner:
        owner.execute(script.encode())
        owner.execute(f"ALTER ROLE {name} PASSWORD '{password}'".encode())
    parts = urlsplit(postgres_url)
    place = parts.netloc.rpartition("@")[2]
    yield urlunsplit(parts._replace(netloc=f"{name}:{password}@{place}"))
    with psycopg.connect(postgres_url, autocommit=True) as owner:
        owner.execute(f"DROP OWNED BY {name}".encode())
        owner.execute(f"DROP ROLE {name}".encode())


@pytest.fixture
def narrow_site(narrow_url: str) -> Iterator[Site]:
    site = Site(narrow_url)
    yield site
    site.close()


def test_workers_live_and_die_as_the_narrow_role(narrow_site: Site) -> None:
    site = narrow_site
    site.start("first", concurrency=3)
    added = site.enqueue("add", one=1, two=2)
    written = site.enqueue("write", how="raises")
    poison = site.enqueue("poison", how="exit")
    lead = site.enqueue("lead")
    softly = site.enqueue("linger", seconds=60)
    site.until_status(softly, JobStatus.RUNNING)
    site.cancel(softly, CancelMode.SOFT)

    assert site.until_ended(added).result == b"3"
    assert site.until_ended(written).status is JobStatus.SUCCEEDED
    assert site.until_ended(poison).status is JobStatus.DEAD_LETTERED
    assert site.until_ended(softly).status is JobStatus.CANCELLED
    followed = site.until_ended(lead).result
    assert followed is not None
    for each in followed.decode()[1:-1].split():
        site.until_ended(JobId(each))

    lost = site.enqueue("linger", seconds=3)
    site.until_status(lost, JobStatus.RUNNING)
    site.signal("first", signal.SIGKILL)
    site.start("second")
    assert site.until_ended(lost).attempt == 2  # its lease expired and was swept

    assert site.tenure("dlq", "redrive", poison).returncode == 0
    assert site.tenure("doctor").returncode in (0, 1)  # it was asked; 1: this server has no fsync
    assert site.tenure("queues", "pause", "default").returncode == 0


def test_retention_and_purge_work_as_the_narrow_role(narrow_site: Site) -> None:
    store = narrow_site.store
    ended = narrow_site.enqueue("add", one=1, two=2)
    narrow_site.cancel(ended, CancelMode.HARD)
    store.settings.put_queue(DEFAULT_NAMESPACE, QueueName("default"), paused=False, limit=3)

    Retention(store).run_once()
    store.upkeep.delete("outages", older_than_us=AT_ONCE, limit=10)
    store.upkeep.delete("workers", older_than_us=AT_ONCE, limit=10)
    store.upkeep.delete("sessions", older_than_us=AT_ONCE, limit=10)
    store.workers.drain(DEFAULT_NAMESPACE, WorkerId("nobody"))

    assert store.upkeep.delete("jobs", older_than_us=AT_ONCE, limit=10).deleted == 1


def test_schedules_are_made_and_fired_as_the_narrow_role(narrow_site: Site) -> None:
    often = ScheduleSpec(kind=Kind("add"), queue=QueueName("default"), every_us=seconds(1))
    name, actor = ScheduleName("often"), Actor("operator:o")
    put = PutSchedule(namespace=DEFAULT_NAMESPACE, name=name, actor=actor, spec=often)
    narrow_site.coordinator.change_schedule(put)

    until(
        lambda: Firer(narrow_site.coordinator).fire_due().fired > 0,
        "it has fired",
        seen=lambda: narrow_site.store.schedules.page(DEFAULT_NAMESPACE),
    )


def test_rates_and_keys_work_as_the_narrow_role(narrow_site: Site) -> None:
    store = narrow_site.store
    queue, rate = QueueName("default"), parse_rate("rate", "1/h", 2)
    store.settings.put_queue(DEFAULT_NAMESPACE, queue, paused=False, limit=None, rate=rate)
    store.settings.put_kind(DEFAULT_NAMESPACE, KindChange(kind=Kind("add"), rate=rate))
    with closing(Coordinator(store)) as coordinator:
        coordinator.execute_many(
            [
                Enqueue(
                    job_id=new_job_id(store.now(), secrets.token_bytes(16)),
                    namespace=DEFAULT_NAMESPACE,
                    queue=queue,
                    kind=Kind("add"),
                    actor=Actor("client:c"),
                    payload=b"1",
                    concurrency_key=key,
                )
                for key in (None, "a", "a", "b")
            ]
        )
        request = ClaimRequest(
            namespace=DEFAULT_NAMESPACE,
            worker=WorkerId("w"),
            actor=Actor("worker:w"),
            queues=(queue,),
            limit=5,
            claim_seq=1,
            request_id=RequestId("c"),
        )

        assert len(coordinator.claim(request).grants) == 2


def test_the_narrow_role_cannot_change_the_log_tokens_or_the_schema(narrow_url: str) -> None:
    statements = [
        "UPDATE tenure.job_event SET actor = 'client:somebody'",
        "UPDATE tenure.observation SET actor = 'client:somebody'",
        "UPDATE tenure.token SET revoked_at = NULL",
        "UPDATE tenure.token SET role = 'operator'",
        "DELETE FROM tenure.token",
        "UPDATE tenure.meta SET schema_version = 1",
        "TRUNCATE tenure.job_event",
        "ALTER TABLE tenure.job_event DISABLE TRIGGER ALL",
        "DROP TABLE tenure.observation",
        "CREATE TABLE tenure.mine (id integer)",
    ]

    with psycopg.connect(narrow_url, autocommit=True) as connection:
        for statement in statements:
            with pytest.raises(psycopg.errors.InsufficientPrivilege):
                connection.execute(statement.encode())


def test_the_narrow_role_cannot_make_tokens_but_can_use_them(
    narrow_url: str, postgres_url: str
) -> None:
    new = NewToken(id=TokenId("a" * 16), secret_sha256="0" * 64, name="fleet", role=Role.WORKER)
    with (
        closing(open_store(postgres_url, create=False)) as owned,
        closing(open_store(narrow_url, create=False)) as narrow,
    ):
        token = owned.tokens.create(new)
        narrow.tokens.use(token.id)

        assert narrow.tokens.load(token.id).token == owned.tokens.load(token.id).token
        with pytest.raises(StoreError, match="permission denied"):
            narrow.tokens.create(msgspec.structs.replace(new, id=TokenId("b" * 16)))
        with pytest.raises(StoreError, match="permission denied"):
            narrow.tokens.revoke(token.id)
