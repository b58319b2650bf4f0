"""Follow-ups over HTTP: who may make them, and what is answered."""

from typing import Any

import pytest

from tenure.core.commands import Sweep
from tenure.core.ids import JobId, Kind, QueueName, follow_up_id
from tenure.core.vocabulary import Role
from tenure_conformance.spec import spec
from tests.server.harness import Answer, Stage


def follow(
    stage: Stage, lease: dict[str, Any], *, token: str | None = None, step: str = "", **job: Any
) -> Answer:
    message = {
        "lease_id": lease["lease_id"],
        "step": step,
        "job": {"queue": "q", "kind": "k", **job},
    }
    path = f"/v1/jobs/{lease['job_id']}/follow-ups"
    return stage.ask("POST", path, message, token=token or stage.of(Role.WORKER))


@spec("D8", "D9", "D12")
def test_a_worker_makes_a_follow_up_once(stage: Stage) -> None:
    lease = stage.leased()

    made = follow(stage, lease, payload=1)
    again = follow(stage, lease, payload=2)

    expected = follow_up_id(JobId(lease["job_id"]), kind=Kind("k"), step="")
    assert (made.status, made.json["job"]["id"]) == (201, expected)
    assert (again.status, again.json["replayed"]) == (200, True)
    assert stage.job(expected).payload == b"1"


@spec("OB4", "OB26")
def test_a_follow_up_that_names_no_trace_has_its_parents(stage: Stage) -> None:
    labelled = stage.enqueue(1, trace_id="order 7's trace", correlation_id="order-7")
    plain = stage.enqueue(2)
    leases = {lease["job_id"]: lease for lease in stage.claim(limit=2)}

    inherited = follow(stage, leases[labelled]).json["job"]
    named = follow(stage, leases[labelled], step="2", trace_id="t", correlation_id="c").json["job"]
    of_plain = follow(stage, leases[plain]).json["job"]

    assert (inherited["trace_id"], inherited["correlation_id"]) == ("order 7's trace", "order-7")
    assert (named["trace_id"], named["correlation_id"]) == ("t", "c")
    assert of_plain["correlation_id"] == leases[plain]["correlation_id"] == plain


@spec("D12")
def test_a_worker_makes_no_other_jobs(stage: Stage) -> None:
    refused = stage.call("enqueue", {"queue": "q", "kind": "k"}, role=Role.WORKER)

    assert (refused.status, refused.code) == (403, "out_of_scope")


@spec("D12")
@pytest.mark.parametrize("elsewhere", [{"queue": "other"}, {"kind": "other"}])
def test_a_limited_worker_makes_follow_ups_only_within_its_limits(
    stage: Stage, elsewhere: dict[str, str]
) -> None:
    limited = stage.token(Role.WORKER, "limited", queues=(QueueName("q"),), kinds=(Kind("k"),))
    stage.enqueue(1)
    [lease] = stage.claim(token=limited)

    refused = follow(stage, lease, token=limited, **elsewhere)
    undo = {"compensation": {"kind": "k", "queue": "other"}}
    by_undoing = follow(stage, lease, token=limited, policy=undo)

    assert [(each.status, each.code) for each in (refused, by_undoing)] == [
        (403, "out_of_scope")
    ] * 2
    [(what, name)] = elsewhere.items()
    assert refused.json["message"] == f"the token limited is not for the {what} {name}"
    assert follow(stage, lease, token=limited).status == 201


@spec("D6")
def test_a_follow_up_whose_key_a_hidden_job_holds_is_a_conflict_without_details(
    stage: Stage,
) -> None:
    limited = stage.token(Role.WORKER, "limited", queues=(QueueName("q"),))
    stage.enqueue(1)
    [lease] = stage.claim(token=limited)
    hidden = stage.enqueue(2, queue="other", dedupe_key="d")

    refused = follow(stage, lease, token=limited, dedupe_key="d")

    assert (refused.status, refused.json["cause"]) == (409, "dedupe_key_held")
    assert refused.json["job"] is None
    assert hidden.encode() not in refused.body


@spec("D9", "H41")
def test_a_follow_up_that_exists_in_a_hidden_queue_is_replayed_without_the_job(
    stage: Stage,
) -> None:
    limited = stage.token(Role.WORKER, "both", queues=(QueueName("q"),))
    everywhere = stage.token(Role.WORKER, "both")
    stage.enqueue(1)
    [lease] = stage.claim(token=limited)
    made = follow(stage, lease, token=everywhere, queue="other")
    assert made.status == 201

    again = follow(stage, lease, token=limited)

    assert (again.status, again.json["replayed"]) == (200, True)
    assert again.json["job"] is None


@spec("D10")
def test_no_follow_up_is_made_under_another_callers_lease(stage: Stage) -> None:
    lease = stage.leased()

    refused = follow(stage, lease, token=stage.token(Role.WORKER, "thief"))

    assert (refused.status, refused.json["cause"]) == (409, "invalid_lease")


@spec("R24", "OB11")
def test_an_own_lease_that_expired_is_not_foreign(stage: Stage) -> None:
    lease = stage.leased()
    job = stage.job(lease["job_id"])
    stage.clock.advance(61)
    stage.coordinator.execute(Sweep(job_id=job.id))
    worker, path = stage.of(Role.WORKER), f"/v1/jobs/{job.id}"
    member = {"job": {"queue": "q", "kind": "k"}, "name": "a", "after": []}
    flow = {"lease_id": lease["lease_id"], "name": "f", "jobs": [member]}

    read = stage.ask("POST", f"{path}/parents", {"lease_id": lease["lease_id"]}, token=worker)
    made = stage.ask("POST", f"{path}/flows", flow, token=worker)
    followed = follow(stage, lease)
    sent = stage.ask(
        "PUT",
        f"{path}/artifacts/a",
        token=worker,
        headers={"Tenure-Lease": lease["lease_id"]},
        pieces=[b"x"],
    )

    for answer in (read, sent):
        assert (answer.json["verdict"], answer.json["cause"]) == ("CANCELLED", "lease_expired")
    for answer in (made, followed):
        assert (answer.status, answer.json["cause"]) == (409, "lease_expired")
    assert stage.security.counts()["foreign_lease"] == 0


@spec("D8")
def test_a_caller_cannot_choose_the_id_of_a_follow_up(stage: Stage) -> None:
    lease = stage.leased()

    refused = follow(stage, lease, job_id="01930000-0000-7000-8000-00000000000f")

    assert (refused.status, refused.json["field"]) == (422, "job.job_id")
