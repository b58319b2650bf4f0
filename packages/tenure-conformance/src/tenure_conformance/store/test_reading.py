"""Reading: listings, and the iterators that verify reads."""

import msgspec

from tenure.core.ids import DEFAULT_NAMESPACE, JobId, Kind, Namespace, QueueName
from tenure.core.instants import Duration, Instant
from tenure.core.views.events import EventFilter, EventPage
from tenure.core.views.job_search import PREVIEW_CHARS, JobFilter
from tenure.core.vocabulary import JobStatus, OnLost
from tenure.ports import Audit, DedupeKey, DueJobs, JobHistory, PruneResult
from tenure_conformance.harness import CLIENT, KIND, QUEUE, Kit, ids, policy
from tenure_conformance.spec import spec

ALL = JobFilter(namespace=DEFAULT_NAMESPACE)


def _newest_first(found: list[JobId]) -> list[JobId]:
    return sorted(found, reverse=True)


# --- jobs ----------------------------------------------------------------------------------------


def test_jobs_are_listed_newest_first(kit: Kit) -> None:
    jobs = [kit.enqueue() for _ in range(5)]
    kit.enqueue(namespace=Namespace("elsewhere"))

    listed = kit.store.views.jobs(ALL).jobs

    assert ids(listed) == _newest_first(ids(jobs))
    assert listed[-1] == jobs[0]


def test_jobs_are_listed_page_by_page(kit: Kit) -> None:
    jobs = [kit.enqueue() for _ in range(5)]
    expected = _newest_first(ids(jobs))

    pages: list[list[JobId]] = []
    before = None
    while page := kit.store.views.jobs(
        JobFilter(namespace=DEFAULT_NAMESPACE, before=before, limit=2)
    ).jobs:
        pages.append(ids(page))
        before = page[-1].id

    assert pages == [expected[:2], expected[2:4], expected[4:]]


@spec("B25")
def test_jobs_of_any_statuses_are_listed_page_by_page(kit: Kit) -> None:
    """Of several kinds and queues, and merged however a store finds them."""
    kinds, queues = [Kind("a"), Kind("b"), Kind("c")], [QueueName("x"), QueueName("y")]
    by_status: dict[JobStatus, list[JobId]] = {status: [] for status in JobStatus}
    for make in (kit.succeeded_job, kit.running_job, kit.enqueue):
        for kind in kinds:
            for queue in queues:
                job = kit.reload(make(kind=kind, queue=queue))
                by_status[job.status].append(job.id)
    asked: list[tuple[JobStatus, ...]] = [
        *[(status,) for status in JobStatus],
        (JobStatus.QUEUED, JobStatus.SUCCEEDED),
        (JobStatus.QUEUED, JobStatus.FAILED, JobStatus.RUNNING),
        (JobStatus.SUCCEEDED, JobStatus.CANCELLED),
    ]

    for statuses in asked:
        found: list[JobId] = []
        wanted = JobFilter(namespace=DEFAULT_NAMESPACE, statuses=statuses, limit=4)
        while page := kit.store.views.jobs(wanted).jobs:
            found += ids(page)
            wanted = msgspec.structs.replace(wanted, before=page[-1].id)

        assert found == _newest_first([each for status in statuses for each in by_status[status]])
        elsewhere = msgspec.structs.replace(wanted, namespace=Namespace("elsewhere"), before=None)
        assert kit.store.views.jobs(elsewhere).jobs == []


def test_jobs_are_filtered_by_status_queue_kind_and_correlation(kit: Kit) -> None:
    queue, kind = QueueName("q2"), Kind("k2")
    plain = kit.enqueue()
    by_queue = kit.enqueue(queue=queue)
    by_kind = kit.enqueue(kind=kind)
    by_correlation = kit.enqueue(correlation_id="c")
    running = kit.running_job(queue=queue, kind=kind, correlation_id="c", priority=9)

    def listed(**fields: object) -> set[JobId]:
        wanted = JobFilter(namespace=DEFAULT_NAMESPACE, **fields)  # type: ignore[arg-type]  # fields are named by the tests below
        return set(ids(kit.store.views.jobs(wanted).jobs))

    assert listed(queue=queue) == {by_queue.id, running.id}
    assert listed(kind=kind) == {by_kind.id, running.id}
    assert listed(correlation_id="c") == {by_correlation.id, running.id}
    assert listed(statuses=(JobStatus.RUNNING,)) == {running.id}
    assert listed(statuses=(JobStatus.RUNNING, JobStatus.QUEUED), kind=KIND) == {
        plain.id,
        by_queue.id,
        by_correlation.id,
    }
    assert listed(queue=queue, kind=kind, correlation_id="c") == {running.id}
    assert listed(correlation_id="C") == set()


@spec("OB26")
def test_a_job_that_was_given_no_correlation_id_is_found_by_its_own_id(kit: Kit) -> None:
    queue = QueueName("q2")
    first = kit.enqueue(queue=queue)
    related = [kit.enqueue(correlation_id=first.id) for _ in range(2)]
    given = kit.enqueue(correlation_id="c")
    family = [related[1].id, related[0].id, first.id]

    def listed(correlation_id: str, **fields: object) -> list[JobId]:
        wanted = JobFilter(
            namespace=DEFAULT_NAMESPACE,
            correlation_id=correlation_id,
            **fields,  # type: ignore[arg-type]  # fields are named by the tests below
        )
        return ids(kit.store.views.jobs(wanted).jobs)

    assert listed(first.id) == family
    assert listed(first.id, limit=2) == family[:2]
    assert listed(first.id, before=family[0]) == family[1:]
    assert listed(first.id, queue=queue) == [first.id]
    assert listed(first.id, statuses=(JobStatus.RUNNING,)) == []
    assert listed(given.id) == []
    elsewhere = JobFilter(namespace=Namespace("elsewhere"), correlation_id=first.id)
    assert kit.store.views.jobs(elsewhere).jobs == []


def test_jobs_are_filtered_by_the_beginning_of_their_id(kit: Kit) -> None:
    jobs = [kit.enqueue() for _ in range(5)]
    kit.enqueue(namespace=Namespace("elsewhere"))
    wanted = jobs[2]

    def listed(prefix: str) -> list[JobId]:
        found = kit.store.views.jobs(JobFilter(namespace=DEFAULT_NAMESPACE, id_prefix=prefix)).jobs
        return ids(found)

    assert listed(wanted.id) == [wanted.id]
    for length in (1, 8, 9, 13, 18, 24, 35):
        prefix = wanted.id[:length]
        expected = [job_id for job_id in ids(jobs) if job_id.startswith(prefix)]
        assert listed(prefix) == _newest_first(expected)
    assert listed("ffffffff-f") == []


@spec("H53")
def test_the_beginnings_of_payloads_are_read(kit: Kit) -> None:
    plain = kit.enqueue(payload=b'{"to":"anna@example.org"}')
    long = kit.enqueue(payload=b'"' + b"x" * 100_000 + b'"')
    # Four bytes a character: the limit counts characters.
    wide = kit.enqueue(payload=('"' + "\U0001f600" * 1_000 + '"').encode())

    wanted = JobFilter(namespace=DEFAULT_NAMESPACE, previews=True, bodies=False)
    found = kit.store.views.jobs(wanted)

    assert kit.store.views.jobs(msgspec.structs.replace(wanted, previews=False)).previews == {}
    assert found.previews == {
        plain.id: '{"to":"anna@example.org"}',
        long.id: '"' + "x" * (PREVIEW_CHARS - 1),
        wide.id: '"' + "\U0001f600" * (PREVIEW_CHARS - 1),
    }


@spec("H90")
def test_the_sizes_of_bodies_are_read(kit: Kit) -> None:
    running = kit.running_job(payload=b"[1]")
    kit.heartbeat(running, checkpoint=b'{"at":2}')
    ended = kit.succeeded_job()
    wide = kit.enqueue(payload='"ä"'.encode())

    found = kit.store.jobs.body_sizes([wide.id, running.id, ended.id, kit.new_id()])

    result = kit.reload(ended).result
    assert found == {wide.id: 4, running.id: 11, ended.id: len(ended.payload) + len(result or b"")}


def test_jobs_are_read_without_their_bodies(kit: Kit) -> None:
    running = kit.running_job(payload=b"[1]")
    plain = kit.enqueue(payload=b'{"secret":1}')
    kit.heartbeat(running, checkpoint=b'{"at":2}')
    jobs = [kit.reload(plain), kit.reload(running)]
    expected = {job.id: job.without_bodies for job in jobs}

    by_id = kit.store.jobs.read([plain.id, running.id, kit.new_id()], bodies=False)
    listed = kit.store.views.jobs(
        JobFilter(namespace=DEFAULT_NAMESPACE, bodies=False, statuses=(*JobStatus,))
    ).jobs

    assert by_id == expected
    assert {job.id: job for job in listed} == expected
    assert expected[running.id].payload == b"null"
    assert (expected[running.id].checkpoint, expected[running.id].result) == (None, None)


# --- iterators -----------------------------------------------------------------------------------


def test_records_give_every_job_with_its_log_and_observations_by_id(kit: Kit) -> None:
    jobs = [kit.running_job() for _ in range(5)]
    jobs.append(kit.enqueue(namespace=Namespace("elsewhere")))
    kit.complete(jobs[1])
    kit.complete(jobs[1])

    for page_size in (1, 2, 100):
        records = list(kit.store.audit.records(page_size=page_size))

        assert [record.job_id for record in records] == sorted(ids(jobs))
        for record in records:
            assert record.job is not None
            assert list(record.events) == kit.events(record.job)
            assert list(record.observations) == kit.observations(record.job)
            assert record.job == kit.reload(record.job)


def test_records_can_be_read_while_the_store_is_written(kit: Kit) -> None:
    jobs = [kit.running_job() for _ in range(6)]
    reading = kit.store.audit.records(page_size=2)
    first = next(reading)

    for job in jobs:
        kit.complete(job)
    rest = list(reading)

    assert isinstance(first, JobHistory)
    assert [first.job_id, *(record.job_id for record in rest)] == sorted(ids(jobs))
    for record in (first, *rest):
        assert record.job is not None
        assert record.job.rev == len(record.events), "a record is one snapshot"


def test_an_abandoned_iterator_holds_nothing(kit: Kit) -> None:
    jobs = [kit.running_job() for _ in range(3)]
    next(kit.store.audit.records(page_size=1))

    for job in jobs:
        kit.complete(job)

    assert all(kit.reload(job).status is JobStatus.SUCCEEDED for job in jobs)


def test_live_keys_are_those_of_live_jobs_in_order(kit: Kit) -> None:
    held = kit.stalled_job(dedupe_key="held", policy=policy(lease_s=30, on_lost=OnLost.HOLD))
    running = kit.running_job(dedupe_key="b")
    ended = kit.running_job(dedupe_key="ended")
    kit.complete(ended)
    queued = kit.enqueue(dedupe_key="a")
    other = kit.enqueue(dedupe_key="a", kind=Kind("aaa"))
    kit.enqueue()

    keys = list(kit.store.audit.live_keys())
    from_records = list(Audit.live_keys(kit.store.audit))

    assert keys == from_records
    assert keys == [
        (DedupeKey(DEFAULT_NAMESPACE, Kind("aaa"), "a"), other.id),
        (DedupeKey(DEFAULT_NAMESPACE, KIND, "a"), queued.id),
        (DedupeKey(DEFAULT_NAMESPACE, KIND, "b"), running.id),
        (DedupeKey(DEFAULT_NAMESPACE, KIND, "held"), held.id),
    ]


def test_lease_holders_are_the_leased_jobs_in_order_of_their_lease(kit: Kit) -> None:
    leased = [kit.running_job(), kit.claimed_job(), kit.running_job()]
    kit.succeeded_job()
    kit.enqueue()

    holders = list(kit.store.audit.lease_holders())
    from_records = list(Audit.lease_holders(kit.store.audit))

    assert holders == from_records
    assert holders == sorted((job.lease_id or "", job.id) for job in leased)


def test_an_empty_store_has_nothing_to_show(kit: Kit) -> None:
    store = kit.store

    assert store.views.jobs(ALL).jobs == []
    for asked in ({}, {"correlation_id": "c"}, {"newest_first": True}):
        wanted = EventFilter(namespace=DEFAULT_NAMESPACE, **asked)
        assert store.events.page(wanted) == EventPage()
    assert list(store.audit.records(page_size=10)) == []
    assert list(store.audit.live_keys()) == []
    assert list(store.audit.lease_holders()) == []
    assert store.settings.queues(DEFAULT_NAMESPACE) == []
    assert store.jobs.load(DueJobs(10)).jobs == {}
    assert store.upkeep.outages(since=Instant(0)) == []
    assert store.upkeep.delete("renewals", older_than_us=Duration(0), limit=10) == PruneResult(
        0, hit_limit=False
    )
    assert kit.claimed(queues=(QUEUE,)) == []
    assert kit.cancel(kit.change(kit.new(actor=CLIENT)).job).job is None


def test_a_store_does_its_work_on_at_least_one_thread(kit: Kit) -> None:
    assert kit.store.parallelism >= 1
