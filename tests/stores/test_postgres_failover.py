"""Failover between real PostgreSQL servers: a loss is proved, a stray primary is refused.

A "process" here is a coordinator over a store of its own: what it remembers is its own.
"""

import os
from collections.abc import Iterator
from contextlib import ExitStack, closing
from itertools import count

import psycopg
import pytest
from click.testing import CliRunner, Result
from msgspec.structs import replace

from tenure.cli.main import main
from tenure.conformance import lives as jobs
from tenure.conformance.spec import spec
from tenure.coordinator.service import Coordinator
from tenure.core.claims import ClaimRequest
from tenure.core.commands import Command, Complete, Enqueue, Heartbeat
from tenure.core.failover import SETTLING, Server
from tenure.core.ids import (
    DEFAULT_NAMESPACE,
    Epoch,
    JobId,
    Kind,
    QueueName,
    RequestId,
    WorkerId,
    client_actor,
    new_job_id,
    worker_actor,
)
from tenure.core.outcomes import Change
from tenure.core.policy import Policy
from tenure.core.verdicts import Grant, Verdict
from tenure.core.vocabulary import Cause, HealthState, VerdictKind
from tenure.errors import ServerBehind, StoreRestored
from tenure.observing.metrics import Gauge, Metrics
from tenure.ports import Locked
from tenure.stores.sql.postgres import PostgresStore
from tenure.stores.sql.postgres_failover import Memory
from tenure.verify import verify
from tests.stores import lives
from tests.support.postgres import PostgresCluster

SMALL = {"max_connections": "30", "shared_buffers": "16MB", "max_wal_size": "64MB"}
QUEUE = QueueName("mail")
WORKER = worker_actor("w")
STOP = (VerdictKind.CANCELLED, Cause.EPOCH_CHANGED)
_numbers = count(1)


class Process:
    """What a program with a store of its own does."""

    def __init__(self, url: str) -> None:
        self.store = PostgresStore(url)
        self.coordinator = Coordinator(self.store)

    def enqueue(self) -> JobId:
        job_id = new_job_id(self.store.now(), os.urandom(16))
        self.coordinator.execute(
            Enqueue(
                job_id=job_id,
                namespace=DEFAULT_NAMESPACE,
                queue=QUEUE,
                kind=Kind("send"),
                actor=client_actor("c"),
                policy=Policy(max_attempts=1),
            )
        )
        return job_id

    def claim(self, limit: int) -> tuple[Grant, ...]:
        number = next(_numbers)
        request = ClaimRequest(
            namespace=DEFAULT_NAMESPACE,
            worker=WorkerId("w"),
            actor=WORKER,
            queues=(QUEUE,),
            limit=limit,
            claim_seq=number,
            request_id=RequestId(f"claim-{number}"),
        )
        return self.coordinator.claim(request).grants

    def heartbeat(self, grant: Grant) -> Verdict:
        return self._verdict(
            Heartbeat(job_id=grant.job_id, lease_id=grant.lease_id, actor=WORKER, hb_seq=1)
        )

    def complete(self, grant: Grant) -> Verdict:
        return self._verdict(
            Complete(
                job_id=grant.job_id,
                lease_id=grant.lease_id,
                actor=WORKER,
                request_id=RequestId(f"done-{next(_numbers)}"),
            )
        )

    def _verdict(self, command: Command) -> Verdict:
        answer = self.coordinator.execute(command)
        assert isinstance(answer, Verdict)
        return answer

    def epoch(self) -> Epoch:
        return self.store.load([]).epoch

    def close(self) -> None:
        self.coordinator.close()
        self.store.close()


class Pair:
    """A primary and a standby, and the programs that use them."""

    def __init__(self) -> None:
        self._opened = ExitStack()
        self.primary = PostgresCluster.start(durable=False, settings=SMALL)
        self._opened.callback(self.primary.stop)
        self.database = self.primary.create_database().rpartition("/")[2]
        PostgresStore(self.url(self.primary), migrate=True).close()
        self.standby = PostgresCluster.standby_of(self.primary)
        self._opened.callback(self.standby.stop)

    def url(self, *clusters: PostgresCluster) -> str:
        return PostgresCluster.url_of(*clusters, database=self.database)

    def process(self, *clusters: PostgresCluster) -> Process:
        process = Process(self.url(*(clusters or (self.primary, self.standby))))
        self._opened.callback(process.close)
        return process

    def catch_up(self) -> None:
        """Wait until the standby has everything."""
        position = self.primary.run("SELECT pg_current_wal_lsn()")
        self.standby._wait_until(f"SELECT pg_last_wal_replay_lsn() >= '{position}'")

    def fail_over(self) -> None:
        """The primary dies, the standby takes over."""
        self.primary.kill()
        self.standby.promote()

    def follow_again(self) -> None:
        """The new primary gets a standby of its own."""
        self.primary = self.standby
        self.standby = PostgresCluster.standby_of(self.primary)
        self._opened.callback(self.standby.stop)

    def run(self, cluster: PostgresCluster, statement: str) -> None:
        with psycopg.connect(self.url(cluster), autocommit=True) as connection:
            connection.execute(statement.encode())

    def settle(self) -> None:
        """Let the time pass in which nothing is granted: by as much as it is long."""
        change = f"UPDATE tenure.meta SET settling_since = settling_since - {SETTLING}"
        self.run(self.standby, change)

    def close(self) -> None:
        self._opened.close()


@pytest.fixture
def pair() -> Iterator[Pair]:
    made = Pair()
    yield made
    made.close()


@spec("A8", "A9", "A10", "A6", "R2")
def test_a_lossy_failover_is_proved_and_begins_one_new_epoch(
    pair: Pair, caplog: pytest.LogCaptureFixture
) -> None:
    loser, second_loser, other = pair.process(), pair.process(), pair.process()
    kept = [loser.enqueue() for _ in range(3)]
    pair.catch_up()
    pair.standby.stop_following()
    lost = [loser.enqueue() for _ in range(5)]
    grants = loser.claim(3)
    assert {grant.job_id for grant in grants} == set(kept)
    second_loser.enqueue()

    pair.fail_over()

    # A process that lost nothing comes first: it neither grants nor rejects.
    assert other.claim(8) == ()
    assert other.epoch() == 1
    assert {_said(other.heartbeat(grant)) for grant in grants} == {STOP}
    # The first process that lost something raises the epoch, with its first call.
    assert loser.epoch() == 2
    assert "acknowledged work was lost" in caplog.text
    assert second_loser.epoch() == 2
    assert {_said(each.complete(grant)) for each in (loser, other) for grant in grants} == {STOP}
    assert loser.claim(8) == other.claim(8) == ()

    pair.settle()

    again = other.claim(8)
    assert {grant.job_id for grant in again} == set(kept)
    assert min(grant.fence for grant in again) > max(grant.fence for grant in grants)
    assert not other.store.load(lost).jobs
    assert loser.epoch() == other.epoch() == 2
    assert verify(other.store).violated == []
    _assert_it_is_told(other.store)


def _assert_it_is_told(store: PostgresStore) -> None:
    """In `doctor` and in a metric. [OB20]"""
    facts = {fact.name: fact for fact in store.health()}
    assert (facts["losses"].value, facts["losses"].state) == (1, HealthState.WARNING)
    gauge = Gauge(lambda namespace: store.measure(queues=10, jobs=10))
    assert "\ntenure_losses 1.0" in Metrics(gauge=gauge).text().decode()


def _lossless_round(pair: Pair) -> Process:
    """A failover to a standby that every commit waited for: nobody notices more than a pause."""
    pair.primary.wait_for_standby()
    process = pair.process()
    process.enqueue()
    process.store.tick()
    [grant] = process.claim(1)

    pair.fail_over()

    assert process.epoch() == 1
    assert process.heartbeat(grant).kind is VerdictKind.OK
    assert process.complete(grant).kind is VerdictKind.COMMITTED
    return process


@spec("A8", "A10", "A11", "OB20")
def test_a_synchronous_standby_takes_over_and_the_old_primary_is_refused(
    pair: Pair, caplog: pytest.LogCaptureFixture
) -> None:
    process = _lossless_round(pair)
    job_id = process.enqueue()
    assert process.claim(1) == ()
    pair.settle()
    assert [grant.job_id for grant in process.claim(1)] == [job_id]
    assert "nothing that this process was told is missing" in caplog.text

    pair.primary.restart()  # it takes writes, and is listed first
    fresh = pair.process(pair.primary, pair.standby)
    job_id = fresh.enqueue()

    assert "was passed over" in caplog.text
    assert job_id in process.store.load([job_id]).jobs
    pair.standby.shut_down()
    with pytest.raises(ServerBehind, match="old primary: it is on timeline 1"):
        fresh.store.now()
    with pytest.raises(ServerBehind):
        process.store.now()


@pytest.mark.proof
@spec("A8")
def test_five_synchronous_failovers_leave_the_epoch_alone(pair: Pair) -> None:
    for _ in range(5):
        _lossless_round(pair)
        pair.settle()
        pair.follow_again()


@spec("A11")
def test_a_transaction_is_refused_by_a_server_on_another_timeline(postgres_url: str) -> None:
    """As behind a pooler, whose connections outlive a failover."""
    store = PostgresStore(postgres_url, migrate=True)
    identifier, timeline = _identity(store)
    store._memory.expect(Server(identifier, timeline - 1))

    assert store.load([]).epoch == 1  # it was checked once more, and is ahead of what was known
    assert store._memory.timeline == timeline
    store._memory.expect(Server(identifier, timeline + 1))
    with pytest.raises(ServerBehind):
        store.now()
    store.close()


@spec("A12")
def test_a_restored_store_is_refused_until_the_epoch_is_raised(postgres_url: str) -> None:
    store = PostgresStore(postgres_url, migrate=True)
    with psycopg.connect(postgres_url, autocommit=True) as raw:  # as a dump of another cluster has
        raw.execute("UPDATE tenure.meta SET system_identifier = system_identifier - 1")
    store._pool.drop_idle()

    with pytest.raises(StoreRestored, match="run `tenure raise-epoch`"):
        store.now()
    with pytest.raises(StoreRestored):
        PostgresStore(postgres_url)
    with closing(PostgresStore(postgres_url, accept_restored=True)) as restored:
        facts = {fact.name: fact for fact in restored.health()}
        assert facts["system_identifier"].state is HealthState.BAD
        assert "raise-epoch" in facts["system_identifier"].advice
        assert restored.raise_epoch() == 2

    assert store.load([]).epoch == 2
    store.close()


@spec("A12")
def test_raise_epoch_and_doctor_open_a_restored_store(postgres_url: str) -> None:
    PostgresStore(postgres_url, migrate=True).close()
    with psycopg.connect(postgres_url, autocommit=True) as raw:
        raw.execute("UPDATE tenure.meta SET system_identifier = system_identifier - 1")

    refused = run("queues", "ls", "--url", postgres_url)
    examined = run("doctor", "--url", postgres_url)
    raised = run("raise-epoch", "--yes", "--url", postgres_url)

    assert (refused.exit_code, "tenure raise-epoch" in refused.stderr) == (2, True)
    assert (examined.exit_code, "tenure raise-epoch" in examined.stdout) == (1, True)
    assert (raised.exit_code, raised.stdout) == (0, "2\n")
    assert run("queues", "ls", "--url", postgres_url).exit_code == 0


def run(*words: str) -> Result:
    return CliRunner().invoke(main, list(words), catch_exceptions=False)


def _identity(store: PostgresStore) -> tuple[int, int]:
    server = store._memory.remembered().server
    assert server is not None
    assert server.timeline is not None
    return server.system_identifier, server.timeline


def _said(verdict: Verdict) -> tuple[VerdictKind, Cause | None]:
    return verdict.kind, verdict.cause


@spec("A8")
def test_every_way_to_write_a_change_is_remembered(postgres_url: str) -> None:
    with closing(PostgresStore(postgres_url, migrate=True)) as store:
        [enqueued] = lives.enqueue(store)
        assert _remembered(store) == [(enqueued, 1)]

        [job] = lives.claim(store, 1)
        assert _remembered(store) == [(job.id, 2)]

        def start(locked: Locked) -> list[Change]:
            return [lives.change(job, lives.start_command(job), locked.now)]

        store.save_locked([job.id], [], start)
        assert _remembered(store) == [(job.id, 3)]
        assert store._memory.remembered().tick is None
        _, now = store.tick()
        assert store._memory.remembered().tick == now


@spec("A8")
def test_of_concurrent_transactions_each_is_remembered_until_a_later_one() -> None:
    memory = Memory()
    one, two, three = (_change(number) for number in (1, 2, 3))
    begun_first, begun_second = memory.begin(), memory.begin()

    memory.acknowledged([one], begun=begun_second)
    memory.acknowledged([two], begun=begun_first)  # it was under way: neither came first
    assert [each.seq for each in memory.remembered().changes] == [1, 2]
    memory.acknowledged([three], begun=memory.begin())

    assert [each.seq for each in memory.remembered().changes] == [3]


def _change(seq: int) -> Change:
    driver = jobs.queued()
    event = replace(driver.events[-1], seq=seq)
    return Change(job=driver.job, expected_rev=seq - 1, events=(event,))


def _remembered(store: PostgresStore) -> list[tuple[JobId, int]]:
    return [(each.job_id, each.seq) for each in store._memory.remembered().changes]
