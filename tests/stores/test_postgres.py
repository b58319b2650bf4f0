"""What is PostgreSQL's own: plans, HOT updates, locks, timeouts, lost connections, secrets."""

import os
import re
import threading
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor

import psycopg
import pytest
from msgspec.structs import replace

from tenure.core.claims import ClaimPlan, ClaimView
from tenure.core.ids import DEFAULT_NAMESPACE, Epoch, Kind
from tenure.core.instants import Duration, Instant, seconds
from tenure.core.outcomes import Change
from tenure.core.verdicts import Observation
from tenure.core.views.events import TailFilter
from tenure.core.vocabulary import ObservationType
from tenure.deadlines import deadline
from tenure.errors import (
    Closed,
    OutcomeUnknown,
    StoreError,
    StoreRefused,
    StoreUnavailable,
    UnknownStoreUrl,
)
from tenure.ports import NO_WAIT, DedupeKey, KeyHolders, Locked
from tenure.stores.postgres.store import PostgresStore
from tenure.stores.postgres.wire import PREPARED_AFTER, PreparedStatements
from tenure.stores.sql.batches import CHANGES_PER_STATEMENT
from tenure.stores.sql.candidates import Reading
from tenure.stores.sql.statements import Query
from tenure_conformance.spec import spec
from tests.stores.hands import PostgresHand
from tests.stores.lives import (
    EPOCH,
    QUEUE,
    WORKER,
    change,
    claim,
    claim_request,
    complete,
    enqueue,
    enqueue_changes,
    planner,
    save,
    start,
    start_command,
    taken,
)
from tests.support.counted_work import queries_of
from tests.support.postgres import PostgresCluster, PostgresServer
from tests.support.waiting import PATIENCE_S, joined, until

# --- Plans ---------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def big_store(postgres: PostgresServer) -> Iterator[tuple[PostgresStore, str]]:
    """20,000 queued jobs of which the statistics know nothing, as after a burst."""
    dsn = postgres.create_database()
    store = PostgresStore(dsn, migrate=True)
    for _ in range(20):
        enqueue(store, 1000)
    yield store, dsn
    store.close()
    postgres.drop_database(dsn)


def _plan(store: PostgresStore, dsn: str, query: Query) -> str:
    with psycopg.connect(dsn, cursor_factory=psycopg.RawCursor) as raw:
        settings = store.database.settings(deadline(10), None)
        raw.execute(settings.text, settings.parameters)
        rows = raw.execute("EXPLAIN " + query.text, query.parameters).fetchall()
        raw.rollback()
    return "\n".join(row[0] for row in rows)


@spec("E32")
def test_the_tail_reads_its_index_in_order(big_store: tuple[PostgresStore, str]) -> None:
    store, dsn = big_store
    with psycopg.connect(dsn, autocommit=True) as raw:
        raw.execute("ANALYZE")
    middle = store.events.tail(after=None, limit=9_000)[-1].position
    position, job_id, seq = middle.split(":")

    after = {"position": int(position), "job_id": job_id, "seq": int(seq)}
    plan = _plan(store, dsn, store.database.query("tail_events", limit=100, **after))

    assert "Index Scan using job_event_position" in plan
    assert "Seq Scan on job_event" not in plan


@spec("E10")
@pytest.mark.parametrize("analyzed", [False, True], ids=["no statistics", "statistics"])
@pytest.mark.parametrize("newest", [None, 10], ids=["after a position", "the newest"])
def test_a_follower_reads_the_index_in_order(
    big_store: tuple[PostgresStore, str], analyzed: bool, newest: int | None
) -> None:
    store, dsn = big_store
    if analyzed:
        with psycopg.connect(dsn, autocommit=True) as raw:
            raw.execute("ANALYZE")
    middle = store.events.tail(after=None, limit=9_000)[-1].position
    after = middle if newest is None else None
    wanted = TailFilter(
        namespace=DEFAULT_NAMESPACE, after=after, newest=newest, limit=100, reads=100
    )

    for query in queries_of(store, lambda: store.events.follow(wanted)):
        plan = _plan(store, dsn, query)

        assert "using job_event_position" in plan
        assert "Seq Scan on job" not in plan


@spec("Z1")
@pytest.mark.parametrize("analyzed", [False, True], ids=["no statistics", "statistics"])
def test_the_claim_reads_its_index_in_order(
    big_store: tuple[PostgresStore, str], analyzed: bool
) -> None:
    store, dsn = big_store
    if analyzed:
        with psycopg.connect(dsn, autocommit=True) as raw:
            raw.execute("ANALYZE")
    scope = claim_request(200).scope

    plan = _plan(
        store, dsn, store.candidates.queries(Reading.of_all(scope, {QUEUE: [Kind("send")]}, 200))[0]
    )

    assert "Index Scan using job_ready" in plan
    assert "Seq Scan" not in plan
    assert "Sort" not in plan
    # The index's own predicate, and whether the job has expired since the last sweep.
    assert re.findall("Filter: (.*)", plan) == [
        "(((start_by IS NULL) OR (start_by > $0)) AND (not_before = 0))",
        "((start_by IS NULL) OR (start_by > $2))",  # of the count, if there are too few
    ]


@pytest.mark.parametrize("expected_rev", [1, 2, 77], ids=["common", "rare", "unknown"])
def test_saving_finds_its_rows_by_their_ids(
    big_store: tuple[PostgresStore, str], expected_rev: int
) -> None:
    """Statistics of rev are always behind; a plan must not depend on them."""
    store, dsn = big_store
    request = claim_request(200, worker="planner")
    view = _view_of(store, 200)
    changes = [
        type(each)(job=each.job, expected_rev=expected_rev, events=each.events)
        for each in planner(request)(view).changes
    ]

    # In another epoch, nothing is applied.
    saving = queries_of(store, lambda: store.jobs.save(changes, epoch=Epoch(EPOCH + 1)))
    plan = _plan(store, dsn, saving[-1])

    assert plan.count("Index Scan using job_pkey on job") == 2
    assert "Seq Scan on job " not in plan


def _view_of(store: PostgresStore, wanted: int) -> ClaimView:
    """What a claim sees, without claiming."""
    seen: list[ClaimView] = []

    def look(view: ClaimView) -> ClaimPlan:
        seen.append(view)
        return ClaimPlan(changes=(), sessions=(), answers=())

    request = claim_request(wanted, worker="looker")
    store.claims.claim(request.scope, [request.session], wanted, look)
    return seen[0]


@spec("Z1", "Z4")
def test_a_claim_locks_no_more_rows_than_it_wants(
    big_store: tuple[PostgresStore, str],
) -> None:
    """Whatever the planner may do with a LIMIT."""
    store, dsn = big_store
    scope = claim_request(7).scope
    query = store.candidates.queries(Reading.of_all(scope, {QUEUE: [Kind("send")]}, 7))[0]
    with psycopg.connect(dsn, cursor_factory=psycopg.RawCursor) as raw:
        for setting in ("hashjoin", "mergejoin", "material", "indexscan"):
            raw.execute(f"SET LOCAL enable_{setting} = off")
        rows = raw.execute(query.text, query.parameters).fetchall()

        others = _view_of(store, 20_100).candidates

        assert len(rows) == 7
        assert len(others) == 20_000 - 7


# --- Races ---------------------------------------------------------------------------------------


def _together(count: int, work: Callable[[int], object]) -> list[object]:
    """What `count` threads answer that begin at the same time."""
    barrier = threading.Barrier(count)
    answers: list[object] = [None] * count

    def run(index: int) -> None:
        barrier.wait(10)
        try:
            answers[index] = work(index)
        except Exception as failure:
            answers[index] = failure

    threads = [threading.Thread(target=run, args=(index,)) for index in range(count)]
    for thread in threads:
        thread.start()
    for thread in threads:
        joined(thread, "its calls are over")
    return answers


@spec("I17", "D5")
def test_of_two_equal_keys_in_one_batch_one_is_applied(postgres_store: PostgresStore) -> None:
    changes = enqueue_changes(postgres_store, 2, dedupe_key="k")

    saved = postgres_store.jobs.save(changes, epoch=EPOCH)

    assert saved.applied == {changes[0].job.id}


@spec("K1")
def test_batches_that_meet_in_opposite_order_both_end(postgres_store: PostgresStore) -> None:
    enqueue(postgres_store, 40)
    jobs = claim(postgres_store, 40)
    now = postgres_store.now()
    changes = [change(job, start_command(job), now) for job in jobs]

    answers = _together(
        4,
        lambda index: postgres_store.jobs.save(
            changes if index % 2 else list(reversed(changes)), epoch=EPOCH
        ),
    )

    applied = [len(answer.applied) for answer in answers]  # type: ignore[attr-defined]  # all are Saved
    assert sorted(applied) == [0, 0, 0, 40]


@spec("Z2")
def test_a_pause_waits_for_claims_that_have_not_seen_it(
    postgres_store: PostgresStore, postgres_hand: PostgresHand
) -> None:
    enqueue(postgres_store, 5)
    planning, go_on = threading.Event(), threading.Event()
    request = claim_request(1)
    paused: list[object] = []

    def plan(view: ClaimView) -> ClaimPlan:
        planning.set()
        assert go_on.wait(PATIENCE_S)
        return planner(request)(view)

    claimer = threading.Thread(
        target=lambda: postgres_store.claims.claim(request.scope, [request.session], 1, plan)
    )
    pauser = threading.Thread(
        target=lambda: paused.append(
            postgres_store.settings.put_queue(DEFAULT_NAMESPACE, QUEUE, paused=True, limit=None)
        )
    )
    claimer.start()
    assert planning.wait(PATIENCE_S)
    pauser.start()
    until(postgres_hand.waiting, "the pause waits for a lock")
    is_waiting = not paused
    go_on.set()
    joined(claimer, "it has claimed")
    joined(pauser, "the queue is paused")

    assert is_waiting
    assert paused
    assert claim(postgres_store, 1, seq=2) == []


@spec("A5")
def test_a_write_under_an_old_epoch_writes_nothing(postgres_store: PostgresStore) -> None:
    changes = enqueue_changes(postgres_store, 1)
    postgres_store.raise_epoch()

    saved = postgres_store.jobs.save(changes, epoch=Epoch(1))

    assert saved.applied == frozenset()
    assert not postgres_store.jobs.load([changes[0].job.id]).jobs


# --- Settings ------------------------------------------------------------------------------------


def test_settings_end_with_their_transaction(postgres_store: PostgresStore) -> None:
    """Behind a pooler the next transaction of this session is somebody else's."""
    names = ("statement_timeout", "lock_timeout", "enable_seqscan", "jit")
    show = [Query("SELECT current_setting($1)", (name,)) for name in names]
    inside = postgres_store.database.read(lambda tx: tx.fetch(*show))
    with taken(postgres_store) as wire:
        outside = [
            wire.connection.execute("SELECT current_setting($1)", [name]).fetchall()
            for name in names
        ]

    assert [rows[0][0] for rows in inside][2:] == ["off", "off"]
    limits_ms = [int(rows[0][0].removesuffix("ms")) for rows in inside[:2]]
    assert 8000 < limits_ms[1] < limits_ms[0] < 10_000  # what is left of ten seconds
    assert outside[0] == [("0",)]
    assert outside[2] == [("on",)]


# --- Prepared statements -------------------------------------------------------------------------

PREPARED = "SELECT count(*) FROM pg_prepared_statements WHERE name LIKE 'tenure_%'"


def prepared_by(store: PostgresStore) -> int:
    with taken(store) as wire:
        [(number,)] = wire.connection.execute(PREPARED).fetchall()
    return int(number)


def test_a_statement_is_prepared_after_several_uses(postgres_url: str) -> None:
    store = PostgresStore(postgres_url, migrate=True, pool_size=1)
    store.now()
    assert prepared_by(store) == 0

    for _ in range(PREPARED_AFTER):
        store.now()

    assert prepared_by(store) > 0
    store.close()


def test_a_statement_that_is_sent_many_times_at_once_is_prepared_once(postgres_url: str) -> None:
    store = PostgresStore(postgres_url, migrate=True, pool_size=1)
    keys = tuple(DedupeKey(DEFAULT_NAMESPACE, Kind("k"), f"{number}") for number in range(8))
    store.jobs.load(KeyHolders(keys))
    before = prepared_by(store)

    store.jobs.load(KeyHolders(keys))
    for _ in range(PREPARED_AFTER):
        store.now()

    assert 0 < before < prepared_by(store)
    store.close()


def test_a_batch_of_many_changes_keeps_its_connection(postgres_url: str) -> None:
    store = PostgresStore(postgres_url, migrate=True, pool_size=1)
    store.jobs.save(iter(enqueue_changes(store, 2 * CHANGES_PER_STATEMENT + 1)), epoch=EPOCH)
    with taken(store) as before:
        pass
    jobs = claim(store, 2 * CHANGES_PER_STATEMENT + 1)
    now = store.now()

    starts = (change(job, start_command(job), now) for job in jobs)
    saved = store.jobs.save(starts, epoch=EPOCH)

    assert len(saved.applied) == 2 * CHANGES_PER_STATEMENT + 1
    with taken(store) as after:
        assert after is before
    store.close()


def test_statements_that_a_pooler_forgot_are_sent_whole(postgres_url: str) -> None:
    """Behind one, the next transaction may run on a connection that never saw them."""
    store = PostgresStore(postgres_url, migrate=True, pool_size=1)
    early = [enqueue(store) for _ in range(PREPARED_AFTER + 1)]
    with taken(store) as wire:
        wire.connection.execute("DEALLOCATE ALL")

    late = enqueue(store, 3)

    ids = [job_id for [job_id] in early] + late
    assert store.jobs.load(ids).jobs.keys() == set(ids)
    assert prepared_by(store) == 0
    store.close()


def test_statements_that_another_client_of_a_pooler_prepared_are_sent_whole(
    postgres_url: str,
) -> None:
    store = PostgresStore(postgres_url, migrate=True, pool_size=1)
    early = [enqueue(store) for _ in range(PREPARED_AFTER + 1)]
    before = prepared_by(store)
    with taken(store) as wire:
        wire.prepared = PreparedStatements()  # of a client that has sent none of them here

    late = [job_id for _ in range(PREPARED_AFTER + 1) for job_id in enqueue(store)]

    ids = [job_id for [job_id] in early] + late
    assert store.jobs.load(ids).jobs.keys() == set(ids)
    assert prepared_by(store) == before
    store.close()


def test_waiting_for_a_lock_has_a_limit(postgres_store: PostgresStore, postgres_url: str) -> None:
    impatient = PostgresStore(postgres_url, timeout_s=0.5)
    [job_id] = enqueue(postgres_store)
    [job] = claim(postgres_store, 1)
    changes = [change(job, start_command(job), postgres_store.now())]
    with psycopg.connect(postgres_url) as other:
        other.execute("SELECT 1 FROM tenure.job WHERE id = %s FOR UPDATE", [job_id])

        with pytest.raises(StoreUnavailable, match="lock timeout"):
            impatient.jobs.save(changes, epoch=EPOCH)

    save(impatient, changes)
    impatient.close()


def test_more_callers_than_connections_are_answered_in_time(postgres_url: str) -> None:
    store = PostgresStore(postgres_url, migrate=True, pool_size=1, timeout_s=0.05)

    with taken(store), pytest.raises(StoreUnavailable, match="busy"):
        store.jobs.load([])

    assert not store.jobs.load([]).jobs
    store.close()


# --- Lost connections ----------------------------------------------------------------------------


@spec("I21")
def test_no_caller_gets_an_error_after_a_server_restart(durable_postgres: PostgresCluster) -> None:
    store = PostgresStore(durable_postgres.create_database(), migrate=True)
    ids = enqueue(store, 10)
    _together(4, lambda _: store.jobs.load(ids))  # several idle connections, all of them soon dead

    durable_postgres.restart()

    assert set(store.jobs.load(ids).jobs) == set(ids)
    durable_postgres.restart()
    assert len(claim(store, 10)) == 10
    durable_postgres.restart()
    enqueue(store)
    store.close()


def test_a_server_that_is_gone_is_unavailable(durable_postgres: PostgresCluster) -> None:
    store = PostgresStore(durable_postgres.create_database(), migrate=True)
    changes = enqueue_changes(store, 1)

    durable_postgres.kill()

    until(lambda: _is_unavailable(store), "the orphans have noticed")
    with pytest.raises(StoreUnavailable):
        store.jobs.save(changes, epoch=EPOCH)
    durable_postgres.restart()
    save(store, changes)
    store.close()


def _is_unavailable(store: PostgresStore) -> bool:
    """The children of a killed server answer until they have noticed that they are orphans."""
    try:
        store.jobs.load([])
    except StoreUnavailable:
        return True
    return False


@spec("K3")
def test_a_connection_cut_before_the_commit_is_replaced(
    postgres_store: PostgresStore, postgres_hand: PostgresHand
) -> None:
    enqueue(postgres_store, 3)
    key = postgres_store.database.key("settings", DEFAULT_NAMESPACE)
    postgres_hand.run(f"SELECT pg_advisory_lock({key})")
    grants: list[int] = []

    claimer = threading.Thread(target=lambda: grants.append(len(claim(postgres_store, 3))))
    claimer.start()
    _cut_whoever_waits(postgres_hand)
    postgres_hand.run(f"SELECT pg_advisory_unlock({key})")
    joined(claimer, "it has claimed")

    assert grants == [3]


def _cut_whoever_waits(hand: PostgresHand) -> None:
    until(hand.waiting, "somebody waits for a lock")
    for pid in hand.waiting():
        hand.run(f"SELECT pg_terminate_backend({pid})")


@spec("I21")
def test_after_a_connection_cut_at_the_commit_the_outcome_is_unknown(
    postgres_store: PostgresStore, postgres_hand: PostgresHand, postgres_url: str
) -> None:
    enqueue(postgres_store)
    [job] = claim(postgres_store, 1)
    changes = [change(job, start_command(job), postgres_store.now())]
    with psycopg.connect(postgres_url) as other:
        other.execute("SELECT 1 FROM tenure.job WHERE id = %s FOR UPDATE", [job.id])
        answers: list[BaseException] = []

        def try_to_save() -> None:
            try:
                postgres_store.jobs.save(changes, epoch=EPOCH)
            except OutcomeUnknown as unknown:
                answers.append(unknown)

        saver = threading.Thread(target=try_to_save)
        saver.start()
        _cut_whoever_waits(postgres_hand)
        joined(saver, "it has saved")

    assert len(answers) == 1
    save(postgres_store, changes)


def test_a_refused_batch_leaves_nothing_and_the_connection_usable(
    postgres_store: PostgresStore,
) -> None:
    good, bad = enqueue_changes(postgres_store, 2)
    twice = bad.events * 2

    with pytest.raises(StoreRefused):
        save(postgres_store, [good, type(bad)(job=bad.job, expected_rev=0, events=twice)])

    assert not postgres_store.jobs.load([good.job.id, bad.job.id]).jobs
    save(postgres_store, [good, bad])


def test_a_store_does_not_cross_a_fork(postgres_store: PostgresStore) -> None:
    enqueue(postgres_store)
    reading, writing = os.pipe()
    child = os.fork()
    if child == 0:  # pragma: no cover - the child reports through the pipe and ends
        try:
            postgres_store.jobs.load([])
            report = b"it worked"
        except StoreError as refusal:
            report = str(refusal).encode()
        os.write(writing, report)
        os._exit(0)
    os.waitpid(child, 0)

    assert b"before a fork" in os.read(reading, 1000)
    os.close(reading)
    os.close(writing)
    assert claim(postgres_store, 1)


def test_a_closed_store_says_so(postgres_store: PostgresStore) -> None:
    postgres_store.close()
    postgres_store.close()

    with pytest.raises(Closed):
        postgres_store.jobs.load([])


# --- Secrets -------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "url",
    [
        "postgresql://u:hunter2@127.0.0.1:1/x",
        "postgresql://u:hunter2@127.0.0.1:notaport/x",
        "postgresql://u@127.0.0.1:1/x?password=hunter2&nonsense=hunter2",
        "postgresql://u:hunter2@[::1/x",
    ],
)
def test_no_error_repeats_a_password(url: str) -> None:
    with pytest.raises((StoreUnavailable, UnknownStoreUrl)) as refusal:
        PostgresStore(url)

    assert "hunter2" not in str(refusal.value)
    assert "hunter2" not in repr(refusal.value.__cause__)


@spec("B6", "U1")
def test_an_observation_waits_for_a_purge_and_is_not_left_behind(
    postgres_hand: PostgresHand, postgres_url: str
) -> None:
    store = postgres_hand.store
    enqueue(store)
    [job] = complete(store, start(store, claim(store, 1)))
    seen = Observation(
        job_id=job.id, type=ObservationType.RESULT_DISCARDED, ts=Instant(1), actor=WORKER
    )
    with psycopg.connect(postgres_url) as purge:
        purge.execute("DELETE FROM tenure.job")
        purge.execute("DELETE FROM tenure.job_event")
        late = threading.Thread(target=store.jobs.observe, args=([seen],))
        late.start()
        until(postgres_hand.waiting, "the observation waits for the purge")
    late.join(30)

    assert store.jobs.observations(job.id) == []


def test_a_process_that_is_frozen_in_a_transaction_holds_its_locks_for_two_seconds(
    postgres_store: PostgresStore,
) -> None:
    [change] = enqueue_changes(postgres_store, 1)
    postgres_store.jobs.save([change], epoch=EPOCH)
    ids, is_locked, thaw = [change.job.id], threading.Event(), threading.Event()

    def freeze(locked: Locked) -> list[Change]:
        is_locked.set()
        assert thaw.wait(60)
        return []

    with ThreadPoolExecutor(1) as executor:
        frozen = executor.submit(postgres_store.jobs.save_locked, ids, [], freeze)
        assert is_locked.wait(60)
        try:
            postgres_store.jobs.save_locked(
                ids, [], lambda locked: []
            )  # else its time-out is first
        finally:
            thaw.set()
        frozen.result(60)  # nothing was written, so it was done again


@spec("OB53")
@pytest.mark.parametrize("kinds", [None, (Kind("send"),), (Kind("send"), Kind("other"))])
@pytest.mark.parametrize("delay_us", [NO_WAIT, seconds(0.001)])
def test_a_claim_that_is_short_because_others_have_locked_jobs_says_so(
    kinds: tuple[Kind, ...] | None,
    delay_us: Duration,
    postgres_store: PostgresStore,
    postgres_url: str,
) -> None:
    def claimed(count: int, seq: int) -> tuple[int, bool]:
        request = replace(claim_request(count, seq=seq), kinds=kinds)
        planned = postgres_store.claims.claim(
            request.scope, [request.session], count, planner(request)
        )
        return len(planned.changes), planned.skipped_locked

    changes = enqueue_changes(postgres_store, 4, delay_us=delay_us)
    save(postgres_store, changes)
    due_at = max(change.job.run_at or 0 for change in changes)
    until(lambda: postgres_store.now() >= due_at, "they are due")
    with psycopg.connect(postgres_url) as other:
        other.execute("SELECT 1 FROM tenure.job WHERE id = %s FOR UPDATE", [changes[1].job.id])
        full, short, empty = claimed(2, 1), claimed(2, 2), claimed(2, 3)

    assert (full, short, empty) == ((2, False), (1, True), (0, True))
    assert (claimed(2, 4), claimed(2, 5)) == ((1, False), (0, False))
