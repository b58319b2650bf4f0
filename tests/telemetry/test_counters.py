"""Counters are those of the log, labels are bounded, and a scrape never fails for the store."""

import logging
import threading
from collections.abc import Iterator

import pytest
from msgspec.structs import replace

from tenure.coordinator.service import Coordinator
from tenure.coordinator.sweeper import Sweeper
from tenure.core.checks import check_name
from tenure.core.claims import ClaimConflict
from tenure.core.ids import (
    Kind,
    Namespace,
    QueueName,
    worker_actor,
)
from tenure.core.instants import Instant, seconds
from tenure.core.policy import Compensation, Policy
from tenure.core.rates import parse_rate
from tenure.core.vocabulary import OnLost, ReasonCode, ReleaseKind
from tenure.errors import InvalidInput, StoreUnavailable
from tenure.ports import Measures, QueueMeasure
from tenure.telemetry.counts import OTHER, Counts
from tenure.telemetry.metrics import Gauge, Metrics
from tenure_conformance.harness import (
    LIMITS,
    WORKER,
    Kit,
    MemoryFactory,
    StoreFactory,
    counted_entropy,
    policy,
)
from tenure_conformance.spec import spec
from tests.conformance.test_load import Load
from tests.support.waiting import joined
from tests.telemetry.logs import assert_agree, counters_of
from tests.telemetry.scrape import samples, total

PAGE = 250


class Observed(Kit):
    """A kit whose coordinator is counted."""

    def __init__(self, factory: StoreFactory, counts: Counts | None = None) -> None:
        super().__init__(factory)
        self.counts = counts or Counts(sweep_interval_s=1.0)
        self.metrics = Metrics(self.counts)
        self.coordinator = self.observed()

    def observed(self) -> Coordinator:
        made = Coordinator(
            self.store,
            limits=LIMITS,
            entropy=counted_entropy("observed"),
            monotonic=self.monotonic,
            observer=self.counts,
        )
        self._coordinators.append(made)
        return made


@pytest.fixture
def kit(tenure_store_factory: StoreFactory) -> Iterator[Observed]:
    kit = Observed(tenure_store_factory)
    yield kit
    kit.close()


@spec("I23")
@pytest.mark.slow
def test_after_a_thousand_jobs_of_every_fate_the_counters_are_those_of_the_log(
    kit: Observed,
) -> None:
    load = Load(kit)
    load.enqueue()
    load.drain()

    text = kit.metrics.text()

    assert_agree(text, kit.store.audit.records(page_size=PAGE))
    assert total(text, "tenure_retries_total", cause="lease_expired") == 50
    assert total(text, "tenure_releases_total", cause="released") == 50
    assert total(text, "tenure_transitions_total", type="dead_lettered") == 100


@spec("I23")
def test_holds_reclaims_compensations_and_operators_count_as_the_log_has_them(
    kit: Observed,
) -> None:
    undo = Compensation(kind=Kind("undo"), queue=QueueName("undo"), policy=Policy())
    held = kit.stalled_job(policy=policy(lease_s=30, on_lost=OnLost.HOLD))
    kit.requeue(held)
    stalled = kit.stalled_job(policy=policy(lease_s=30, on_lost=OnLost.RECLAIM), priority=5)
    kit.advance_to(stalled.run_at)
    reclaimed = kit.claimed()
    kit.complete(reclaimed[0])
    kit.cancel_hard(kit.running_job(policy=policy(compensation=undo), priority=6))
    snoozed = kit.running_job(priority=7)
    kit.release(snoozed, kind=ReleaseKind.SNOOZE, delay_us=seconds(10))
    kit.dead_letter(kit.running_job(priority=8), reason_code=ReasonCode.POLICY_VIOLATION)
    dead = kit.dead_letter_job(priority=9)
    kit.redrive(dead)

    text = kit.metrics.text()

    assert reclaimed[0].id == stalled.id
    assert_agree(text, kit.store.audit.records(page_size=PAGE))
    assert total(text, "tenure_transitions_total", kind="undo", type="enqueued") == 1


@spec("U4", "M2")
def test_every_observation_that_is_kept_is_one_log_line_and_is_counted(
    kit: Observed, caplog: pytest.LogCaptureFixture
) -> None:
    undo = Compensation(kind=Kind("undo"), queue=QueueName("undo"), policy=Policy())
    job = kit.running_job(policy=policy(lease_s=30, compensation=undo))
    caplog.set_level(logging.INFO, logger="tenure.coordinator")

    kit.complete(job, actor=worker_actor("thief"), result=b'"stolen"')
    kit.cancel_hard(job)
    for _ in range(12):  # ten are kept of a lease
        kit.complete(job, result=b'"a secret"')
    [undoing] = kit.claimed(queues=(QueueName("undo"),))
    kit.complete(undoing)

    text = kit.metrics.text()
    lines = [record.getMessage() for record in caplog.records if "observation" in vars(record)]
    assert total(text, "tenure_observations_total", type="foreign_lease") == 1
    assert total(text, "tenure_observations_total", type="result_discarded") == 9
    assert total(text, "tenure_observations_total", type="compensated", kind="undo") == 1
    assert lines == [
        f"job {job.id}: worker:thief reported under a lease that is not its own",
        *[f"job {job.id}: a report of {WORKER} was discarded: job_cancelled (10 bytes)"] * 9,
        f"job {job.id} was compensated by job {undoing.id}",
    ]
    assert vars(caplog.records[0])["job_id"] == job.id
    assert "secret" not in caplog.text
    assert str(job.lease_id) not in caplog.text


@spec("I23")
def test_claimers_that_race_count_each_grant_once(tenure_store_factory: StoreFactory) -> None:
    kit = Observed(tenure_store_factory)
    others = [kit.observed() for _ in range(3)]
    for _ in range(40):
        kit.enqueue()

    def work(coordinator: Coordinator, name: str) -> None:
        for _ in range(12):
            request = kit.claim_request(limit=2, worker=name)
            for grant in coordinator.claim(request).grants:
                coordinator.execute(kit.completion(grant.job))

    threads = [
        threading.Thread(target=work, args=(coordinator, f"racer-{number}"))
        for number, coordinator in enumerate(others)
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        joined(thread, "its work is done")

    text = kit.metrics.text()
    assert_agree(text, kit.store.audit.records(page_size=PAGE))
    assert total(text, "tenure_claims_total") == 40
    kit.close()


def test_a_lost_compare_and_swap_is_a_lost_race_and_what_follows_is_counted_once(
    kit: Observed,
) -> None:
    job = kit.claimed_job()
    kit.rival().execute(kit.starting(job))

    kit.complete(kit.reload(job))
    kit.enqueue(dedupe_key="k")
    kit.reply(kit.new(dedupe_key="k"))

    races = samples(kit.metrics.text())["tenure_lost_races_total"]
    assert races == {(("operation", "complete"),): 1, (("operation", "enqueue"),): 1}
    assert total(kit.metrics.text(), "tenure_transitions_total", type="succeeded") == 1


def conflicts(kit: Observed) -> dict[str, float]:
    found = samples(kit.metrics.text()).get("tenure_claim_conflicts_total", {})
    return {dict(labels)["conflict"]: number for labels, number in found.items()}


@spec("OB53")
def test_a_claim_that_a_rate_held_back_is_counted(kit: Observed) -> None:
    kit.enqueue()
    kit.enqueue()
    kit.rate(parse_rate("rate", "1/m"))

    for _ in range(3):
        kit.claim()

    assert conflicts(kit)["held"] == 2


@spec("OB53")
def test_a_refused_claim_is_a_claim_conflict(kit: Observed) -> None:
    kit.enqueue()
    kit.enqueue()
    first = kit.claim_request(claim_seq=5)
    kit.coordinator.claim(first)

    kit.coordinator.claim(kit.claim_request(claim_seq=4))
    kit.coordinator.claim(replace(first, limit=2))
    kit.coordinator.repeat_claim(kit.claim_request(claim_seq=3))
    kit.coordinator.claim(first)  # a repeat is none
    kit.coordinator.claim(kit.claim_request(claim_seq=6))

    assert conflicts(kit) == dict.fromkeys(ClaimConflict, 0) | {"refused": 3}


@spec("OB53")
def test_each_conflict_of_claims_is_counted_from_0(kit: Observed) -> None:
    assert conflicts(kit) == dict.fromkeys(ClaimConflict, 0)


def test_replays_and_refusals_count_nothing_but_observations(kit: Observed) -> None:
    def counted() -> list[bytes]:
        lines = kit.metrics.text().splitlines()
        return [line for line in lines if b"tenure_observations_total" not in line]

    job = kit.running_job()
    kit.complete(job, request_id="r-1")
    before = counted()

    kit.complete(job, request_id="r-1")
    kit.complete(job, request_id="r-2")
    kit.heartbeat(job)

    assert counted() == before
    assert total(kit.metrics.text(), "tenure_observations_total") == 1


def test_quantiles_can_be_read_per_kind(kit: Observed) -> None:
    for wait_s, run_s in ((1, 20), (3, 20), (3, 200)):
        job = kit.enqueue(kind=Kind("report"), policy=policy(lease_s=600))
        kit.advance(seconds=wait_s)
        (claimed,) = kit.claimed()
        kit.start(claimed)
        kit.advance(seconds=run_s)
        kit.complete(claimed)
        assert job.id == claimed.id

    text = kit.metrics.text()

    def at(name: str, bound: str) -> float:
        return total(text, f"{name}_bucket", kind="report", le=bound)

    assert [at("tenure_wait_seconds", bound) for bound in ("0.5", "1.0", "2.5", "5.0")] == [
        0,
        1,
        1,
        3,
    ]
    assert [at("tenure_run_seconds", bound) for bound in ("10.0", "30.0", "300.0")] == [0, 2, 3]
    assert total(text, "tenure_run_seconds_sum", kind="report") == 240


# --- bounds --------------------------------------------------------------------------------------


@spec("OB10")
def test_kinds_beyond_the_limit_are_counted_under_other(
    tenure_store_factory: StoreFactory,
) -> None:
    kit = Observed(tenure_store_factory, Counts(sweep_interval_s=1.0, kinds=3, namespaces=2))
    for number in range(6):
        kit.enqueue(kind=Kind(f"k{number}"))
    kit.enqueue(kind=Kind("k1"))
    kit.enqueue(kind=Kind("z"), namespace=Namespace("second"))
    kit.enqueue(kind=Kind("z"), namespace=Namespace("third"))
    kit.enqueue(kind=Kind("y"), namespace=Namespace("fourth"))

    found = samples(kit.metrics.text())["tenure_transitions_total"]
    kit.close()

    by_kind = {(dict(at)["namespace"], dict(at)["kind"]): count for at, count in found.items()}
    assert by_kind == {
        ("default", "k0"): 1,
        ("default", "k1"): 2,
        ("default", "k2"): 1,
        ("default", "(other)"): 3,
        ("second", "(other)"): 1,
        ("(other)", "(other)"): 2,
    }


@spec("OB2")
@pytest.mark.parametrize("name", ["other", "later"])
def test_a_namespace_without_numbers_of_its_own_sees_none(name: str) -> None:
    kit = Observed(MemoryFactory(), Counts(sweep_interval_s=1.0, namespaces=1))
    kit.enqueue()
    for namespace in ("secret", name):
        kit.enqueue(namespace=Namespace(namespace))

    shown = samples(kit.metrics.text(Namespace(name)))
    kit.close()

    assert not any(name.startswith("tenure_transitions") for name in shown)
    with pytest.raises(InvalidInput):
        check_name("namespace", OTHER)


@spec("OB2")
def test_a_namespace_sees_nothing_of_the_others() -> None:
    kit = Observed(MemoryFactory())
    kit.enqueue()
    kit.claimed_job(namespace=Namespace("secret"))
    kit.close()
    measures = Measures(
        now=Instant(10_000_000),
        queues=tuple(
            QueueMeasure(namespace=Namespace(name), queue=QueueName("q"), ready=2)
            for name in ("default", "secret")
        ),
        left_out=0,
        dead_letters={Namespace("default"): 1, Namespace("secret"): 2},
    )
    metrics = Metrics(kit.counts, gauge=Gauge(lambda namespace: measures))

    text = metrics.text(Namespace("default"))

    assert b"secret" in metrics.text()
    assert b"secret" not in text
    assert total(text, "tenure_transitions_total") == 1
    assert total(text, "tenure_queue_depth", queue="q") == 2
    assert total(text, "tenure_dlq_count") == 1


# --- gauges --------------------------------------------------------------------------------------


def test_gauges_are_the_stores_measures(kit: Observed) -> None:
    kit.enqueue(delay_us=seconds(60))
    kit.claimed_job(priority=3)
    kit.enqueue()
    kit.advance(seconds=7)
    kit.dead_letter_job(priority=9)
    metrics = Metrics(gauge=Gauge(lambda namespace: kit.store.views.measure(queues=10, jobs=10)))

    text = metrics.text()

    where = {"namespace": "default", "queue": "default"}
    assert total(text, "tenure_queue_depth", **where) == 1
    assert total(text, "tenure_queue_delayed", **where) == 1
    assert total(text, "tenure_running", **where) == 1
    assert total(text, "tenure_queue_oldest_ready_age_seconds", **where) == 7
    assert total(text, "tenure_dlq_count", namespace="default") == 1
    assert total(text, "tenure_store_up") == 1


@spec("L18")
def test_the_suspect_jobs_of_each_queue_are_a_gauge(kit: Observed) -> None:
    kit.claimed_job(lease_s=120)
    kit.claimed_job(lease_s=120, queue=QueueName("other"))
    kit.advance(seconds=60)
    kit.claimed_job(lease_s=120)
    metrics = Metrics(gauge=Gauge(lambda namespace: kit.store.views.measure(queues=10, jobs=10)))

    text = metrics.text()

    assert total(text, "tenure_suspect", namespace="default", queue="default") == 1
    assert total(text, "tenure_suspect", namespace="default", queue="other") == 1
    assert total(text, "tenure_running") == 3


@spec("W5", "OB24")
def test_a_lease_that_a_reader_found_over_is_counted_by_its_process(kit: Observed) -> None:
    job = kit.running_job(lease_s=60)
    sweeper = Sweeper(
        kit.coordinator,
        monotonic=kit.monotonic,
        pause=lambda pause_s: kit.advance(seconds=pause_s),
    )
    kit.coordinator.sweep_overdue = sweeper.sweep_overdue
    kit.advance(seconds=480)

    kit.coordinator.read_jobs([job.id])

    text = Metrics(kit.counts).text()
    assert total(text, "tenure_lease_expiries_total", cause="lease_expired") == 1


def test_the_store_is_measured_once_for_many_scrapes() -> None:
    asked = []

    def measure(namespace: Namespace | None) -> Measures:
        asked.append(1)
        return Measures(now=Instant(0), queues=(), left_out=0, dead_letters={})

    patient, eager = Gauge(measure, every_s=1000), Gauge(measure, every_s=0)

    for _ in range(3):
        Metrics(gauge=patient).text()
    assert len(asked) == 1
    for _ in range(3):
        Metrics(gauge=eager).text()
    assert len(asked) == 4


def test_a_store_that_fails_costs_its_gauges_and_not_the_counters() -> None:
    def measure(namespace: Namespace | None) -> Measures:
        raise StoreUnavailable("gone")

    counts = Counts(sweep_interval_s=1.0)
    counts.swept(seconds(3))
    text = Metrics(counts, gauge=Gauge(measure)).text()

    assert total(text, "tenure_store_up") == 0
    assert "tenure_queue_depth" not in samples(text)
    assert total(text, "tenure_sweeper_lag_seconds") == 3


def test_a_sweeper_that_no_longer_comes_is_late(monkeypatch: pytest.MonkeyPatch) -> None:
    now = 100.0
    monkeypatch.setattr("tenure.telemetry.counts.time.monotonic", lambda: now)
    counts = Counts(sweep_interval_s=1.0)
    assert "tenure_sweeper_lag_seconds" not in samples(Metrics(counts).text())

    counts.swept(seconds(0))
    now = 100.9
    assert total(Metrics(counts).text(), "tenure_sweeper_lag_seconds") == 0
    now = 131.0
    assert total(Metrics(counts).text(), "tenure_sweeper_lag_seconds") == 30


def test_operators_are_no_failures_of_workers(kit: Observed) -> None:
    job = kit.running_job()
    kit.dead_letter(job)

    expected = counters_of(kit.store.audit.records(page_size=PAGE))
    text = kit.metrics.text()

    assert "tenure_failures_total" not in expected
    assert total(text, "tenure_failures_total") == 0
    assert total(text, "tenure_dead_letters_total") == 1


@spec("U5")
def test_a_refused_report_that_is_sent_again_is_one_line_and_is_counted_once(
    kit: Observed, caplog: pytest.LogCaptureFixture
) -> None:
    job = kit.running_job(policy=policy(lease_s=30))
    kit.cancel_hard(job)
    caplog.set_level(logging.INFO, logger="tenure.coordinator")

    for _ in range(3):
        kit.complete(job, result=b"1", request_id="late")

    text = kit.metrics.text()
    assert total(text, "tenure_observations_total", type="result_discarded") == 1
    assert len([record for record in caplog.records if "observation" in vars(record)]) == 1
