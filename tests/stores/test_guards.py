"""Guards of the schema: what no hand, ours or foreign, can write.

A guard decides nothing; it is the second lock behind the core. Each test types SQL into a database
that a store made, as an operator with good intentions would.
"""

import pytest

from tenure.core.ids import Kind, QueueName
from tenure.core.instants import Duration, Instant, seconds
from tenure.core.job import Job
from tenure.core.tokens import TOKEN_ENTROPY_BYTES, NewToken, mint
from tenure.core.views.event_counts import EventSpan
from tenure.core.vocabulary import Role
from tenure.errors import StoreError
from tenure.verify import verify
from tenure_conformance.spec import spec
from tests.stores.hands import ForeignHand, PostgresHand, Refused, SqliteHand
from tests.stores.lives import (
    claim,
    complete,
    enqueue,
    enqueue_changes,
    heartbeat,
    save,
    start,
)


def _running(hand: ForeignHand) -> Job:
    enqueue(hand.store)
    [job] = start(hand.store, claim(hand.store, 1))
    return job


def _finished(hand: ForeignHand) -> Job:
    [job] = complete(hand.store, [_running(hand)])
    return job


@spec("E3")
@pytest.mark.parametrize(
    "statement",
    [
        "UPDATE {t}job_event SET ts = ts + 1",
        "UPDATE {t}job_event SET payload = '{}' WHERE type = 'claimed'",
        "DELETE FROM {t}job_event",
        "DELETE FROM {t}job_event WHERE type = 'started'",
    ],
)
def test_a_transition_is_neither_changed_nor_deleted(hand: ForeignHand, statement: str) -> None:
    job = _finished(hand)
    before = hand.store.events.load([job.id])

    with pytest.raises(Refused):
        hand.run(statement)

    assert hand.store.events.load([job.id]) == before


@spec("E3")
def test_an_event_is_not_inserted_twice(hand: ForeignHand) -> None:
    job = _running(hand)
    events = hand.store.events.load([job.id])

    with pytest.raises(Refused):
        hand.run(
            "INSERT INTO {t}job_event (job_id, seq, ts, attempt, version, type, to_status,"
            f" actor, request_id, payload, position) VALUES ('{job.id}', 1, 1, 0, 1, 'enqueued',"
            " 'queued', 'me', 'r', '{}', 99)"
        )

    assert hand.store.events.load([job.id]) == events


@spec("E3")
@pytest.mark.parametrize("type_", ["a word of tomorrow", "cancel_requested"])
def test_an_event_of_any_type_but_a_renewal_is_kept(hand: ForeignHand, type_: str) -> None:
    job = _running(hand)
    hand.run(_an_event(job, type_))

    with pytest.raises(Refused):
        hand.run(f"DELETE FROM {{t}}job_event WHERE type = '{type_}'")

    assert hand.run(f"SELECT count(*) FROM {{t}}job_event WHERE type = '{type_}'") == [(1,)]


def _an_event(job: Job, type_: str) -> str:
    return (
        "INSERT INTO {t}job_event (job_id, seq, ts, attempt, version, type, to_status, actor,"
        f" request_id, payload, position) VALUES ('{job.id}', 9, 1, 1, 1, '{type_}', 'running',"
        " 'me', 'r', '{}', 99)"
    )


@spec("I24")
@pytest.mark.parametrize(
    ("statement", "problem"),
    [
        ("UPDATE {t}job SET rev = rev + 1, origin_cause = 'whim'", "origin_cause is 'whim'"),
        ("UPDATE {t}job SET rev = rev + 1, policy = '[]'", "policy is not the document"),
        (
            "UPDATE {t}job SET rev = rev + 1, status = 'napping', run_at = NULL, not_before = NULL",
            "status is 'napping'",
        ),
        ("event", "an event's type is 'bogus'"),
        (
            "INSERT INTO {t}observation (job_id, lease, ordinal, ts, type, actor)"
            " SELECT id, '', 1, 1, 'rumour', 'me' FROM {t}job",
            "an observation's type is 'rumour'",
        ),
    ],
)
def test_verify_reports_what_it_cannot_read(
    hand: ForeignHand, statement: str, problem: str
) -> None:
    [job_id] = enqueue(hand.store)
    [sound] = enqueue(hand.store) if statement == "event" else [None]
    job = hand.store.jobs.load([job_id]).jobs[job_id]

    hand.run(_an_event(job, "bogus") if statement == "event" else statement)

    report = verify(hand.store)
    [found] = [each for finding in report.findings for each in finding.first]
    assert (found.invariant, found.job_id) == ("I24", job_id)
    assert problem in found.message
    assert report.jobs == 1 + (sound is not None)


def test_the_error_about_an_unknown_word_is_one_sentence(hand: ForeignHand) -> None:
    hand.run(
        "INSERT INTO {t}token (id, secret_sha256, name, role, namespace, queues, kinds, max_leases,"
        f" max_polls, may_declare, created_at) VALUES ('t', '{'0' * 64}', 'n', 'king', 'default',"
        " '[]', '[]', 1, 1, 1 = 0, 1)"
    )

    with pytest.raises(StoreError, match="the role of token t is 'king'"):
        hand.store.tokens.all()


@spec("Y4")
def test_words_of_tomorrow_are_shown_as_they_are(hand: ForeignHand) -> None:
    job = _running(hand)
    hand.run(_an_event(job, "split"))
    hand.run(
        "INSERT INTO {t}dead_letter_resolution (job_id, ts, kind, actor, request_id, fingerprint,"
        f" note) VALUES ('{job.id}', 1, 'forgotten', 'me', 'r', 'f', '')"
    )
    hand.run(
        "INSERT INTO {t}observation (job_id, lease, ordinal, ts, type, actor)"
        f" VALUES ('{job.id}', '', 1, 1, 'rumour', 'me')"
    )

    span = EventSpan(namespace=job.namespace, since=Instant(0), until=Instant(10), limit=10)
    counted = hand.store.events.count(span)
    event = hand.store.events.load([job.id])[job.id][-1]

    assert {each.type for each in counted.counts} == {"split"}
    assert (event.type, event.event_class, event.type.is_known) == ("split", "transition", False)
    assert hand.store.jobs.resolutions([job.id])[job.id].kind == "forgotten"
    assert [each.type for each in hand.store.jobs.observations(job.id)] == ["rumour"]


@spec("Y4", "Y5")
def test_a_status_of_tomorrow_is_shown_and_left_alone(hand: ForeignHand) -> None:
    [waiting, ready] = enqueue(hand.store, 2)
    hand.run(
        "UPDATE {t}job SET rev = rev + 1, status = 'napping', run_at = NULL, not_before = NULL"
        f" WHERE id = '{waiting}'"
    )

    assert hand.store.jobs.read([waiting])[waiting].status == "napping"
    assert [job.id for job in claim(hand.store, 5)] == [ready]


@spec("I8", "I24")
def test_an_unknown_status_is_accepted_only_for_a_live_job_that_cannot_be_claimed(
    hand: ForeignHand,
) -> None:
    job = _running(hand)

    with pytest.raises(Refused):
        hand.run("UPDATE {t}job SET rev = rev + 1, status = 'napping'")

    assert hand.store.jobs.load([job.id]).jobs == {job.id: job}


@spec("E3")
def test_renewals_of_a_job_may_be_deleted_by_hand(hand: ForeignHand) -> None:
    job = _running(hand)
    heartbeat(hand.store, [job])

    hand.run("DELETE FROM {t}job_event WHERE type IN ('lease_renewed', 'heartbeat')")

    assert len(hand.store.events.load([job.id])[job.id]) == 3


@spec("T26", "G6")
def test_a_live_job_cannot_be_deleted(hand: ForeignHand) -> None:
    job = _running(hand)

    with pytest.raises(Refused):
        hand.run("DELETE FROM {t}job")

    assert hand.store.jobs.load([job.id]).jobs == {job.id: job}


@spec("T25", "I19")
@pytest.mark.parametrize(
    "assignment",
    ["priority = 9", "rev = rev + 1", "result = '43', rev = rev + 1", "payload = '{}'"],
)
def test_a_finished_row_is_immutable(hand: ForeignHand, assignment: str) -> None:
    job = _finished(hand)

    with pytest.raises(Refused):
        hand.run("UPDATE {t}job SET " + assignment)

    assert hand.store.jobs.load([job.id]).jobs == {job.id: job}


@spec("I19")
@pytest.mark.parametrize(
    "assignment",
    ["priority = 9", "rev = rev + 1", "payload = '{}'", "unique_for_us = 1", "finished_at = 1"],
)
def test_a_finished_row_whose_key_stays_taken_is_immutable_too(
    hand: ForeignHand, assignment: str
) -> None:
    save(hand.store, enqueue_changes(hand.store, 1, dedupe_key="k", unique_for_us=seconds(60)))
    [job] = complete(hand.store, start(hand.store, claim(hand.store, 1)))

    with pytest.raises(Refused):
        hand.run(f"UPDATE {{t}}job SET {assignment}")

    assert hand.store.jobs.load([job.id]).jobs == {job.id: job}


@spec("K1", "A2")
@pytest.mark.parametrize("assignment", ["priority = 9", "rev = rev - 1", "rev = rev, attempt = 7"])
def test_a_live_row_does_not_change_without_a_higher_rev(
    hand: ForeignHand, assignment: str
) -> None:
    job = _running(hand)

    with pytest.raises(Refused):
        hand.run("UPDATE {t}job SET " + assignment)

    assert hand.store.jobs.load([job.id]).jobs == {job.id: job}


_LAWLESS = {
    "S1": "status = 'queued'",
    "S2": "status = 'claimed'",
    "S3": "owner = NULL",
    "S4": "status = 'stalled'",
    "S5": "status = 'succeeded', result = NULL, finished_at = 1",
    "S6": "status = 'failed', finished_at = 1",
    "S7": "status = 'cancelled', cancel_reason = 'x', finished_at = 1",
    "S8": "status = 'dead_lettered', error = '{}', finished_at = 1",
}


@spec("I8", "S3")
@pytest.mark.parametrize("assignment", list(_LAWLESS.values()), ids=list(_LAWLESS))
def test_a_row_that_does_not_fit_its_status_is_refused(hand: ForeignHand, assignment: str) -> None:
    job = _running(hand)

    with pytest.raises(Refused):
        hand.run("UPDATE {t}job SET rev = rev + 1, " + assignment)

    assert hand.store.jobs.load([job.id]).jobs == {job.id: job}


@spec("J4", "S12")
@pytest.mark.parametrize(
    "assignment",
    [
        "status = 'assigned'",
        "status = 'COMPLETED'",
        "priority = 40000",
        "failures = attempt + 1",
        "cancel_requested_at = 1",
    ],
)
def test_words_and_numbers_outside_their_sets_are_refused(
    hand: ForeignHand, assignment: str
) -> None:
    _running(hand)

    with pytest.raises(Exception, match=r"refused|constraint|CHECK|out of range"):
        hand.run("UPDATE {t}job SET rev = rev + 1, " + assignment)


@spec("I17", "D5")
def test_two_live_jobs_cannot_be_given_one_key(hand: ForeignHand) -> None:
    enqueue(hand.store, 2)

    with pytest.raises(Refused):
        hand.run("UPDATE {t}job SET rev = rev + 1, dedupe_key = 'k'")


@spec("U1")
def test_an_eleventh_observation_of_a_lease_is_refused(hand: ForeignHand) -> None:
    job = _running(hand)

    with pytest.raises(Refused):
        hand.run(
            "INSERT INTO {t}observation (job_id, lease, ordinal, ts, type, actor)"
            f" VALUES ('{job.id}', 'l', 11, 1, 'foreign_lease', 'me')"
        )


@spec("T26")
def test_a_purge_passes_the_guards(hand: ForeignHand) -> None:
    job = _finished(hand)
    [enqueued] = enqueue(hand.store)

    purged = hand.store.upkeep.delete("jobs", older_than_us=Duration(-1), limit=10).deleted

    assert purged == 1
    assert set(hand.store.jobs.load([job.id, enqueued]).jobs) == {enqueued}
    assert hand.store.events.load([job.id]) == {job.id: []}


def test_tables_are_not_truncated(postgres_hand: PostgresHand) -> None:
    _running(postgres_hand)

    with pytest.raises(Refused, match="truncated"):
        postgres_hand.run("TRUNCATE {t}job_event")


def test_sqlite_refuses_to_replace_a_row(sqlite_hand: SqliteHand) -> None:
    job = _finished(sqlite_hand)
    columns = (
        "id, namespace, queue, kind, priority, status, rev, run_at, not_before, enqueued_at,"
        " updated_at"
    )
    zeros = "attempt, failures, releases, outage_credits, hb_seq, renewals, was_started"

    with pytest.raises(Refused, match="replaced"):
        sqlite_hand.run(
            f"INSERT OR REPLACE INTO {{t}}job ({columns}, {zeros}, policy, payload) VALUES"
            f" ('{job.id}', 'default', 'mail', 'send', 0, 'queued', 1, 1, 0, 1, 1,"
            " 0, 0, 0, 0, 0, 0, 0, '[]', 'null')"
        )

    assert sqlite_hand.store.jobs.load([job.id]).jobs == {job.id: job}


@spec("H20")
@pytest.mark.parametrize(
    "change",
    [
        "revoked_at = NULL",
        "expires_at = NULL",
        "role = 'operator'",
        "queues = '[]'",
        "kinds = '[]'",
        "may_declare = NOT may_declare",
        "namespace = 'another'",
        "name = 'another'",
    ],
)
def test_a_token_never_gains_a_right(hand: ForeignHand, change: str) -> None:
    token_id, digest, _ = mint(bytes(TOKEN_ENTROPY_BYTES))
    new = NewToken(
        id=token_id,
        secret_sha256=digest,
        name="w",
        role=Role.WORKER,
        queues=(QueueName("q"),),
        kinds=(Kind("k"),),
        expires_in_us=seconds(60),
    )
    hand.store.tokens.create(new)
    hand.store.tokens.revoke(token_id)
    before = hand.store.tokens.all()

    with pytest.raises(Refused):
        hand.run("UPDATE {t}token SET " + change)

    assert hand.store.tokens.all() == before


@spec("A20")
def test_an_epoch_never_falls(hand: ForeignHand) -> None:
    hand.store.raise_epoch()

    with pytest.raises(Refused, match="an epoch never falls"):
        hand.run("UPDATE {t}meta SET epoch = 1")

    assert hand.store.raise_epoch() == 3
