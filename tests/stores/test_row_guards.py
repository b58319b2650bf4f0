"""The guards of a job's row beside the core: every combination of a status and of columns that
are there.

The conditions are read out of a schema that a store made and asked of rows that no table holds;
the database must accept exactly those in which `row_violations` finds nothing.
"""

import re
from collections.abc import Iterator
from itertools import product

import pytest
from msgspec.structs import replace

from tenure.core.ids import DEFAULT_NAMESPACE, FlowId, Kind, QueueName, new_job_id
from tenure.core.instants import Instant
from tenure.core.job import AT_ONCE, Job, row_violations
from tenure.core.policy import Policy
from tenure.core.vocabulary import JobStatus, OnLost
from tenure_conformance.spec import spec
from tests.stores.hands import ForeignHand, PostgresHand, SqliteHand

pytestmark = pytest.mark.slow

_LEASE = (
    "lease_id", "owner", "principal", "claimed_at", "lease_expires_at", "due_at", "claimed_run_at",
)  # fmt: skip
_TEXTS = {
    "stall_cause": "outage",
    "result": "null",
    "error": "{}",
    "reason_code": "timeout",
    "stage": "exec",
    "cancel_reason": "x",
}
_COLUMNS = (
    *_LEASE, "started_at", "run_at", "finished_at", "cancel_requested_at", *_TEXTS,
)  # fmt: skip
_WHOLE = (1 << len(_LEASE)) - 1
_LEASES = {0, _WHOLE} | {each for n in range(len(_LEASE)) for each in (1 << n, _WHOLE - (1 << n))}
"""None, a whole one, each of its columns alone, each of them missing; bits as in `present`."""

_REQUEUE, _RECLAIM = '["requeue"]', '["reclaim"]'
_Row = tuple[int, str, str]  # which columns are present (a bit for each), status, policy


def _rows() -> list[_Row]:
    others = range(0, 1 << len(_COLUMNS), 1 << len(_LEASE))
    present = [rest + lease for rest, lease in product(others, _LEASES)]
    return [
        *product(present, JobStatus, [_REQUEUE]),
        *product(others, JobStatus, [_RECLAIM]),
    ]


def _accepted(hand: ForeignHand, guards: str) -> set[_Row]:
    """The rows that a database would take."""
    columns = [
        f"CASE WHEN present & {1 << place} > 0 THEN {_literal(name)} END AS {name}"
        for place, name in enumerate(_COLUMNS)
    ]
    request = 1 << _COLUMNS.index("cancel_requested_at")
    run_at = 1 << _COLUMNS.index("run_at")
    lease = f"present & {_WHOLE}"
    statuses = ", ".join([f"('{each}')" for each in JobStatus])
    found = hand.run(
        f"WITH RECURSIVE n(present) AS (SELECT 0 UNION ALL SELECT present + 1 FROM n"
        f" WHERE present < {(1 << len(_COLUMNS)) - 1}),"
        f" s(status) AS (VALUES {statuses}),"
        f" p(policy) AS (VALUES ('{_REQUEUE}'), ('{_RECLAIM}'))"
        f" SELECT present, status, policy FROM (SELECT present, status, policy,"
        f" {', '.join(columns)}, CASE WHEN present & {request} > 0 THEN 1 END AS cancel_deadline,"
        f" CASE WHEN present & {run_at} > 0 THEN {AT_ONCE} END AS not_before,"
        f" 1 AS rev, CASE WHEN status = 'waiting' THEN 0 ELSE 1 END AS attempt, 'x' AS flow_id,"
        f" 0 AS failures, 0 AS releases, 0 AS outage_credits,"
        f" 0 AS renewals, 0 AS priority, 0 AS was_started, CAST(NULL AS text) AS origin_cause"
        f" FROM n, s, p WHERE {lease} IN ({', '.join(map(str, _LEASES))})"
        f" AND ({lease} = 0 OR policy = '{_REQUEUE}')) AS rows WHERE {guards}"
    )
    return {(present, status, policy) for present, status, policy in found}


def _literal(name: str) -> str:
    return f"'{_TEXTS[name]}'" if name in _TEXTS else "'x'" if name in _LEASE[:3] else "1"


def _lawful() -> Iterator[_Row]:
    blank = Job(
        new_job_id(Instant(1), bytes(16)), DEFAULT_NAMESPACE, QueueName("q"), Kind("k"), 0,
        b"null", Policy(), None, None, None, None, None, None, None, None, None, FlowId("x"),
        "step", None, None, None, None, Instant(1),
        JobStatus.QUEUED, 1, Instant(1), None, None, attempt=1,
    )  # fmt: skip
    policies = {_REQUEUE: blank.policy, _RECLAIM: Policy(on_lost=OnLost.RECLAIM)}
    for present, status, policy in _rows():
        there = {name: 1 for place, name in enumerate(_COLUMNS) if present & 1 << place}
        if "cancel_requested_at" in there:
            there["cancel_deadline"] = 1
        if "run_at" in there:
            there["not_before"] = AT_ONCE
        attempt = 0 if status is JobStatus.WAITING else 1
        job = replace(blank, **there, status=status, policy=policies[policy], attempt=attempt)
        if not row_violations(job):
            yield present, status, policy


def _agree(accepted: set[_Row]) -> None:
    lawful = set(_lawful())
    run_at = 1 << _COLUMNS.index("run_at")
    # Only the core knows that what waits for a reclaim has an instant for it. [S4]
    waiting = {
        (present - run_at, status, policy)
        for present, status, policy in lawful
        if policy == _RECLAIM and status == JobStatus.STALLED
    }

    assert accepted - waiting == lawful
    assert waiting <= accepted


@spec("I8", "S1", "S4", "S8", "S11")
def test_postgres_accepts_the_rows_that_the_core_does(postgres_hand: PostgresHand) -> None:
    [(guards,)] = postgres_hand.run(
        "SELECT string_agg(pg_get_expr(conbin, conrelid), ' AND ') FROM pg_constraint"
        " WHERE conrelid = '{t}job'::regclass AND contype = 'c'"
    )

    _agree(_accepted(postgres_hand, f"({guards}) IS NOT FALSE"))


@spec("S2", "S3", "S5", "S6", "S7")
def test_sqlite_accepts_the_rows_that_the_core_does(sqlite_hand: SqliteHand) -> None:
    [(table,)] = sqlite_hand.run("SELECT sql FROM sqlite_master WHERE name = '{t}job'")
    table = re.sub(r"--.*", "", str(table))
    guards = [_parenthesised(table[found.end() :]) for found in re.finditer(r"CHECK\s*", table)]

    _agree(_accepted(sqlite_hand, f"({' AND '.join(guards)}) IS NOT FALSE"))


def _parenthesised(text: str) -> str:
    depth = 0
    for place, letter in enumerate(text):
        depth += {"(": 1, ")": -1}.get(letter, 0)
        if depth == 0:
            return text[: place + 1]
    raise AssertionError("a parenthesis is missing")
