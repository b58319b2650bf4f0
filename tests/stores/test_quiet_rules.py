"""A rule that lets nothing through does not put the claims of other jobs in a row. [RL8] [CK4]"""

import os
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from threading import Barrier
from typing import Any

import msgspec
import psycopg
import pytest
from msgspec.structs import replace

from tenure.core.claims import ClaimPlan
from tenure.core.commands import Enqueue
from tenure.core.ids import DEFAULT_NAMESPACE, Actor, Kind, QueueName, new_job_id
from tenure.core.job import Job
from tenure.core.kind_settings import KindChange
from tenure.core.rates import Rate, parse_rate
from tenure.stores.postgres.store import PostgresStore
from tenure.stores.sql import quiet_rules
from tenure.stores.sql.quiet_rules import CLAIMS_UNTIL_QUIET, NO_RULES, QuietRules, Rules
from tenure.stores.sql.rows import Row
from tenure.stores.sql.transactions import Transaction
from tenure.stores.sql.turns import rate_group
from tenure_conformance.spec import spec
from tests.stores.lives import change, claim_request, complete, planner, save, start

RULED, OTHER = Kind("ruled"), Kind("other")
QUEUE, RULED_QUEUE = QueueName("ordinary"), QueueName("ruled")
ONE_A_DAY = parse_rate("rate", "1/d", 1)

PATIENCE_S = 60


class Rule(msgspec.Struct, frozen=True, kw_only=True):
    """A rule, the jobs that are under it, and the lock of whoever grants such a job."""

    name: str
    lock: tuple[str, str]
    queue: QueueName = QUEUE
    rate: Rate | None = None
    queue_rate: Rate | None = None
    queue_limit: int | None = None
    concurrency_key: str | None = None
    rate_key: str | None = None

    def put(self, store: PostgresStore) -> None:
        """Set it."""
        if self.rate is not None:
            store.settings.put_kind(DEFAULT_NAMESPACE, KindChange(kind=RULED, rate=self.rate))
        if self.queue is RULED_QUEUE:
            store.settings.put_queue(
                DEFAULT_NAMESPACE,
                self.queue,
                paused=None,
                limit=self.queue_limit,
                rate=self.queue_rate,
            )


RULES = (
    Rule(name="the rate of a kind", lock=("kind", RULED), rate=ONE_A_DAY),
    Rule(
        name="the rate of a queue",
        lock=("queue", RULED_QUEUE),
        queue=RULED_QUEUE,
        queue_rate=ONE_A_DAY,
    ),
    Rule(
        name="the limit of a queue", lock=("queue", RULED_QUEUE), queue=RULED_QUEUE, queue_limit=1
    ),
    Rule(name="a concurrency key", lock=("group", RULED), concurrency_key="42"),
    Rule(name="a rate key", lock=("group", rate_group(RULED)), rate=ONE_A_DAY, rate_key="42"),
    Rule(
        name="both keys",
        lock=("group", RULED),
        rate=ONE_A_DAY,
        rate_key="42",
        concurrency_key="42",
    ),
)


class Scene:
    """A store, and claims of one scope, all of the same session."""

    def __init__(self, store: PostgresStore, url: str, rule: Rule, *, worker: str = "w") -> None:
        self.store, self._url, self.rule = store, url, rule
        self._worker = worker
        self._claims = 0

    def enqueue(self, count: int = 1, *, kind: Kind = RULED) -> None:
        now, rule = self.store.now(), self.rule
        is_ruled = kind is RULED
        changes = []
        for _ in range(count):
            command = Enqueue(
                job_id=new_job_id(now, os.urandom(16)),
                namespace=DEFAULT_NAMESPACE,
                queue=rule.queue if is_ruled else QUEUE,
                kind=kind,
                actor=Actor("client:c"),
                concurrency_key=rule.concurrency_key if is_ruled else None,
                rate_key=rule.rate_key if is_ruled else None,
            )
            changes.append(change(None, command, now))
        save(self.store, changes)

    def claim(self, limit: int = 5) -> ClaimPlan:
        """A claim of both kinds and both queues."""
        self._claims += 1
        request = replace(
            claim_request(limit, seq=self._claims, worker=self._worker),
            kinds=(RULED, OTHER),
            queues=(QUEUE, RULED_QUEUE),
        )
        return self.store.claims.claim(request.scope, [request.session], limit, planner(request))

    def claim_until_quiet(self) -> None:
        """The next claim leaves out the lock of the rule."""
        found = [kinds_of(self.claim()) for _ in range(CLAIMS_UNTIL_QUIET)]
        assert found == [[]] * CLAIMS_UNTIL_QUIET

    def let_more_through(self, running: Sequence[Job]) -> None:
        """What ran has ended, and a day is over for the rates. This store learns nothing of it."""
        with self.beside() as beside:
            complete(beside.store, start(beside.store, running))
        with psycopg.connect(self._url) as other:
            other.execute("DELETE FROM tenure.rate_state")
            other.execute("UPDATE tenure.key_change SET at = 1 WHERE noted_at > 0")

    @contextmanager
    def beside(self, opened: type[PostgresStore] = PostgresStore) -> Iterator["Scene"]:
        """The same in another process."""
        store = opened(self._url)
        yield Scene(store, self._url, self.rule, worker=f"w-{id(store)}")
        store.close()

    @contextmanager
    def claimed_by_another_process(self) -> Iterator[None]:
        """Another process holds the rule's lock: for a claim under the rule, or, of a queue, for
        one of other jobs, for which whoever grants under the rule waits."""
        scope, name = self.rule.lock
        suffix = "_shared" if scope == "queue" else ""
        with psycopg.connect(self._url) as other:
            other.execute(
                f"SELECT pg_advisory_xact_lock{suffix}(%s)".encode(),
                [self.store._key(scope, DEFAULT_NAMESPACE, name)],
            )
            yield


@pytest.fixture
def scene(
    request: pytest.FixtureRequest, postgres_store: PostgresStore, postgres_url: str
) -> Scene:
    return Scene(postgres_store, postgres_url, request.param)


each_rule = pytest.mark.parametrize("scene", RULES, indirect=True, ids=lambda rule: rule.name)


def kinds_of(planned: ClaimPlan) -> list[Kind]:
    return [change.job.kind for change in planned.changes]


@spec("RL8", "CK4")
@each_rule
def test_other_jobs_are_claimed_without_the_lock_of_a_rule_that_lets_nothing_through(
    scene: Scene,
) -> None:
    scene.rule.put(scene.store)
    scene.enqueue(3)
    assert kinds_of(scene.claim()) == [RULED]
    scene.claim_until_quiet()
    scene.enqueue(2, kind=OTHER)

    with scene.claimed_by_another_process():
        received = [kinds_of(scene.claim(1)) for _ in range(3)]

    assert received == [[OTHER], [OTHER], []]


@spec("RL8", "CK4")
@each_rule
def test_other_jobs_are_claimed_without_the_lock_of_a_rule_that_no_job_is_under(
    scene: Scene,
) -> None:
    scene.rule.put(scene.store)
    scene.enqueue()
    [granted] = scene.claim().changes
    complete(scene.store, start(scene.store, [granted.job]))
    assert kinds_of(scene.claim()) == []  # this one still finds what has ended
    scene.claim_until_quiet()
    scene.enqueue(kind=OTHER)

    with scene.claimed_by_another_process():
        received = scene.claim()

    assert kinds_of(received) == [OTHER]


@spec("RL1", "Z3", "CK3", "CK4")
@each_rule
def test_a_claim_that_finds_a_job_under_a_rule_that_it_passed_by_begins_again_and_grants_it(
    scene: Scene,
) -> None:
    scene.rule.put(scene.store)
    scene.enqueue(3)
    running = [change.job for change in scene.claim().changes]
    scene.claim_until_quiet()
    passing = scene.claim()
    scene.let_more_through(running)

    one, none = scene.claim(), scene.claim()

    assert passing.restarts == 0
    assert (kinds_of(one), one.restarts) == ([RULED], 1)
    assert kinds_of(none) == []


@spec("RL1", "Z3", "CK3")
@each_rule
def test_what_has_no_job_for_long_is_granted_at_once_when_one_comes(scene: Scene) -> None:
    scene.rule.put(scene.store)
    scene.claim_until_quiet()
    scene.claim()

    scene.enqueue(3)
    first, second = scene.claim(), scene.claim()

    assert (kinds_of(first), kinds_of(second)) == ([RULED], [])


@spec("RL1", "Z3")
@pytest.mark.parametrize("scene", RULES[:3], indirect=True, ids=lambda rule: rule.name)
def test_two_claims_that_have_both_passed_by_a_rule_grant_no_more_than_it_allows(
    scene: Scene,
) -> None:
    meeting = Barrier(2)

    class Meeting(PostgresStore):
        """The first claim that finds a job waits until the other one has found one too."""

        has_met = False

        def _readable_candidates(
            self, tx: Transaction, *given: Any
        ) -> tuple[list[Job], Sequence[Row]]:
            found = super()._readable_candidates(tx, *given)
            if found[0] and not self.has_met:
                self.has_met = True
                meeting.wait(PATIENCE_S)
            return found

    scene.rule.put(scene.store)
    with (
        scene.beside(Meeting) as one,
        scene.beside(Meeting) as two,
        ThreadPoolExecutor() as threads,
    ):
        for each in (one, two):
            each.claim_until_quiet()
        scene.enqueue(3)

        claims = [threads.submit(each.claim) for each in (one, two)]
        planned = [each.result() for each in claims]

    assert sorted(len(each.changes) for each in planned) == [0, 1]
    assert [each.restarts for each in planned] == [1, 1]


@spec("RL9")
@pytest.mark.parametrize("scene", [RULES[4]], indirect=True, ids=lambda rule: rule.name)
def test_a_claim_that_passes_by_rate_keys_is_told_when_the_first_has_room(scene: Scene) -> None:
    scene.rule.put(scene.store)
    scene.enqueue(3)
    scene.claim()
    scene.claim_until_quiet()
    found = [scene.claim().answers[0].held for _ in range(3)]

    waits_h = [held.wait_us // 3_600_000_000 for held in found if held is not None]
    assert waits_h == [23, 23, 23]
    assert not any(held.is_all for held in found if held is not None)


@spec("CK4")
@pytest.mark.parametrize("scene", RULES[3:5], indirect=True, ids=lambda rule: rule.name)
def test_few_claims_begin_again_beside_a_turn_that_a_callers_own_transaction_keeps_locked(
    scene: Scene, postgres_url: str
) -> None:
    scene.rule.put(scene.store)
    scene.enqueue()
    scene.store.claims.claim(*_of_nobody(scene))  # gives the turn, and grants nothing
    rounds = 4

    with psycopg.connect(postgres_url) as other:
        other.execute("SELECT 1 FROM tenure.job FOR UPDATE")
        scene.claim_until_quiet()
        restarts = [scene.claim().restarts for _ in range(rounds * CLAIMS_UNTIL_QUIET)]
    received = scene.claim()

    assert sum(restarts) == rounds
    assert kinds_of(received) == [RULED]


def _of_nobody(scene: Scene) -> tuple[Any, ...]:
    """A claim that finds what there is and grants nothing."""
    request = replace(
        claim_request(1, worker="nobody"), kinds=(RULED, OTHER), queues=(QUEUE, RULED_QUEUE)
    )
    return request.scope, [request.session], 1, planner(replace(request, limit=0))


def test_what_is_quiet_is_remembered_for_each_scope_until_a_claim_uses_it() -> None:
    scope, other = claim_request(1).scope, replace(claim_request(1).scope, kinds=(OTHER,))
    rules, ruled = Rules(kinds=frozenset({RULED}), groups=frozenset({"g"})), frozenset({RULED})
    quiet = QuietRules()
    assert quiet.of(scope) == NO_RULES

    found = []
    for unused in [rules] * CLAIMS_UNTIL_QUIET + [Rules(kinds=ruled), NO_RULES]:
        quiet.remember(scope, unused)
        found.append(quiet.of(scope))

    assert found[:-3] == [NO_RULES] * (CLAIMS_UNTIL_QUIET - 1)
    assert found[-3:] == [rules, Rules(kinds=ruled), NO_RULES]
    assert quiet.of(other) == NO_RULES


def test_after_a_claim_that_began_again_the_next_ones_take_all_locks() -> None:
    scope, rules, quiet = claim_request(1).scope, Rules(kinds=frozenset({RULED})), QuietRules()
    for _ in range(CLAIMS_UNTIL_QUIET):
        quiet.remember(scope, rules)

    quiet.forget(scope)
    quiet.remember(scope, rules)

    assert quiet.of(scope) == NO_RULES


def test_no_more_than_so_many_scopes_are_remembered(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(quiet_rules, "MAX_REMEMBERED_SCOPES", 2)
    scopes = [replace(claim_request(1).scope, kinds=(Kind(f"k{n}"),)) for n in range(3)]
    quiet, rules = QuietRules(), Rules(kinds=frozenset({RULED}))

    for scope in scopes:
        for _ in range(CLAIMS_UNTIL_QUIET):
            quiet.remember(scope, rules)

    assert [quiet.of(scope) for scope in scopes] == [NO_RULES, NO_RULES, rules]
