"""Failover between real PostgreSQL servers: a loss is proved, a stray primary is refused."""

from collections.abc import Iterator
from contextlib import closing

import psycopg
import pytest
from click.testing import CliRunner, Result
from msgspec.structs import replace

from tenure.cli.main import main
from tenure.core.failover import Server
from tenure.core.ids import JobId
from tenure.core.outcomes import Change
from tenure.core.verdicts import Verdict
from tenure.core.vocabulary import Cause, HealthState, VerdictKind
from tenure.errors import ServerBehind, StoreRestored
from tenure.ports import Locked
from tenure.stores.postgres.failover import FailoverMemory
from tenure.stores.postgres.store import PostgresStore
from tenure.telemetry.metrics import Gauge, Metrics
from tenure.verify import verify
from tenure_conformance.spec import spec
from tests.stores import lives
from tests.support.failover import Pair, Process
from tools import lives as jobs

pytestmark = pytest.mark.process

STOP = (VerdictKind.CANCELLED, Cause.EPOCH_CHANGED)


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
    assert not other.store.jobs.load(lost).jobs
    assert loser.epoch() == other.epoch() == 2
    assert verify(other.store).violated == []
    _assert_it_is_told(other.store)


def _assert_it_is_told(store: PostgresStore) -> None:
    """In `doctor` and in a metric. [OB20]"""
    facts = {fact.name: fact for fact in store.health()}
    assert (facts["losses"].value, facts["losses"].state) == (1, HealthState.WARNING)
    gauge = Gauge(lambda namespace: store.views.measure(queues=10, jobs=10))
    assert "\ntenure_losses 1.0" in Metrics(gauge=gauge).text().decode()


def _lossless_round(pair: Pair) -> Process:
    """A failover to a standby that every commit waited for: nobody notices more than a pause."""
    pair.primary.wait_for_standby()
    process = pair.process()
    process.enqueue()
    process.store.upkeep.tick()
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
    assert "nothing that was acknowledged to this process is missing" in caplog.text

    pair.primary.restart()  # it takes writes, and is listed first
    fresh = pair.process(pair.primary, pair.standby)
    job_id = fresh.enqueue()

    assert "was skipped" in caplog.text
    assert job_id in process.store.jobs.load([job_id]).jobs
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
    store.database.memory.expect(Server(identifier, timeline - 1))

    assert (
        store.jobs.load([]).epoch == 1
    )  # it was checked once more, and is ahead of what was known
    assert store.database.memory.timeline == timeline
    store.database.memory.expect(Server(identifier, timeline + 1))
    with pytest.raises(ServerBehind):
        store.now()
    store.close()


@spec("A12")
def test_a_restored_store_is_refused_until_the_epoch_is_raised(postgres_url: str) -> None:
    store = PostgresStore(postgres_url, migrate=True)
    with psycopg.connect(postgres_url, autocommit=True) as raw:  # as a dump of another cluster has
        raw.execute("UPDATE tenure.meta SET system_identifier = system_identifier - 1")
    store.database.pool.drop_idle()

    with pytest.raises(StoreRestored, match="run `tenure raise-epoch`"):
        store.now()
    with pytest.raises(StoreRestored):
        PostgresStore(postgres_url)
    with closing(PostgresStore(postgres_url, accept_restored=True)) as restored:
        facts = {fact.name: fact for fact in restored.health()}
        assert facts["system_identifier"].state is HealthState.BAD
        assert "raise-epoch" in facts["system_identifier"].advice
        assert restored.raise_epoch() == 2

    assert store.jobs.load([]).epoch == 2
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
    server = store.database.memory.remembered().server
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

        store.jobs.save_locked([job.id], [], start)
        assert _remembered(store) == [(job.id, 3)]
        assert store.database.memory.remembered().tick is None
        now = store.upkeep.tick().now
        assert store.database.memory.remembered().tick == now


@spec("A8")
def test_of_concurrent_transactions_each_is_remembered_until_a_later_one() -> None:
    memory = FailoverMemory()
    one, two, three = (_change(number) for number in (1, 2, 3))
    begun_first, begun_second = memory.acknowledgements, memory.acknowledgements

    memory.acknowledged([one], begun=begun_second)
    memory.acknowledged([two], begun=begun_first)  # it was under way: neither came first
    assert [each.seq for each in memory.remembered().changes] == [1, 2]
    memory.acknowledged([three], begun=memory.acknowledgements)

    assert [each.seq for each in memory.remembered().changes] == [3]


def _change(seq: int) -> Change:
    driver = jobs.queued()
    event = replace(driver.events[-1], seq=seq)
    return Change(job=driver.job, expected_rev=seq - 1, events=(event,))


def _remembered(store: PostgresStore) -> list[tuple[JobId, int]]:
    return [(each.job_id, each.seq) for each in store.database.memory.remembered().changes]
