"""Writing first and being judged afterwards: what waited for a lock is judged when it has it."""

from concurrent.futures import ThreadPoolExecutor

import psycopg
from msgspec.structs import replace

from tenure.core.ids import Epoch
from tenure.core.instants import Instant, seconds
from tenure.stores.postgres.store import PostgresStore
from tenure_conformance.spec import spec
from tests.stores.hands import PostgresHand
from tests.stores.lives import EPOCH, change, claim, enqueue, start_command
from tests.support.waiting import until


@spec("K2")
def test_a_change_that_waited_for_its_row_past_the_end_of_its_lease_is_refused(
    postgres_store: PostgresStore, postgres_hand: PostgresHand, postgres_url: str
) -> None:
    enqueue(postgres_store, 2)
    late, early = claim(postgres_store, 2)
    now = postgres_store.now()
    end = Instant(now + seconds(0.3))
    changes = [
        replace(change(late, start_command(late), now), not_after=end),
        change(early, start_command(early), now),
    ]
    with psycopg.connect(postgres_url) as other, ThreadPoolExecutor(1) as pool:
        other.execute("SELECT 1 FROM tenure.job WHERE id = %s FOR UPDATE", [late.id])
        saving = pool.submit(postgres_store.jobs.save, changes, epoch=EPOCH)
        until(postgres_hand.waiting, "the change waits for its row")
        until(lambda: postgres_store.now() >= end, "its lease has ended")
        other.rollback()

        saved = saving.result()

    assert saved.applied == {early.id}
    assert postgres_store.jobs.load([late.id]).jobs[late.id] == late
    assert len(postgres_store.events.load([late.id])[late.id]) == late.rev


@spec("A5")
def test_a_change_of_an_old_epoch_is_rolled_back_even_if_it_was_written_first(
    postgres_store: PostgresStore,
) -> None:
    enqueue(postgres_store, 1)
    [job] = claim(postgres_store, 1)
    started = change(job, start_command(job), postgres_store.now())
    raised = postgres_store.raise_epoch()

    assert not postgres_store.jobs.save([started], epoch=EPOCH).applied
    assert postgres_store.jobs.load([job.id]).jobs[job.id] == job
    assert raised == Epoch(EPOCH + 1)


def test_batches_that_share_rows_in_opposite_order_do_not_deadlock(
    postgres_store: PostgresStore,
) -> None:
    enqueue(postgres_store, 50)
    jobs = claim(postgres_store, 50)
    now = postgres_store.now()
    changes = [change(job, start_command(job), now) for job in jobs]
    with ThreadPoolExecutor(2) as pool:
        one = pool.submit(postgres_store.jobs.save, changes, epoch=EPOCH)
        other = pool.submit(postgres_store.jobs.save, changes[::-1], epoch=EPOCH)

        applied = [one.result().applied, other.result().applied]

    assert applied[0] | applied[1] == {job.id for job in jobs}
    assert not applied[0] & applied[1]
