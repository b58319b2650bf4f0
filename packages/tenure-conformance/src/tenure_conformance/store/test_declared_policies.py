"""The policies that workers declare for kinds: an enqueue that brings none uses them."""

import pytest

from tenure.coordinator.schedules import Firer
from tenure.core.ids import DEFAULT_NAMESPACE, Kind, Namespace, ScheduleName
from tenure.core.instants import seconds
from tenure.core.kind_settings import KindChange, KindSettings
from tenure.core.policy import Backoff, Policy
from tenure.core.rates import parse_rate
from tenure.core.schedules import PutSchedule, ScheduleSpec
from tenure.core.views.job_search import JobFilter
from tenure.core.vocabulary import OnExhausted, OnLost
from tenure_conformance.harness import KIND, OPERATOR, QUEUE, Kit
from tenure_conformance.spec import spec

ONCE = Policy(
    lease_us=seconds(45),
    max_attempts=1,
    max_releases=3,
    backoff=Backoff(initial_us=seconds(7)),
    timeout_us=None,
    start_within_us=seconds(90),
    grace_us=seconds(5),
    on_exhausted=OnExhausted.FAIL,
    on_lost=OnLost.HOLD,
)


def declare(kit: Kit, policy: Policy, kind: Kind = KIND) -> KindSettings:
    change = KindChange(kind=kind, policy=policy)
    return kit.store.settings.put_kind(DEFAULT_NAMESPACE, change, only_new=True)


@spec("F9")
def test_an_enqueue_without_a_policy_uses_the_one_that_its_kind_declares(kit: Kit) -> None:
    declare(kit, ONCE)

    used = kit.reply(kit.new())
    own = kit.reply(kit.new(policy=Policy()))
    flow = kit.flow({"one": [], "two": ["one"]})

    assert used.job is not None
    assert own.job is not None
    assert (kit.reload(used.job).policy, kit.reload(own.job).policy) == (ONCE, Policy())
    assert [kit.reload(job).policy for job in flow.values()] == [ONCE, ONCE]
    assert not used.undeclared
    assert not own.undeclared


@spec("F11")
def test_a_kind_that_no_worker_declared_has_the_default_policy_and_the_answer_says_so(
    kit: Kit,
) -> None:
    kit.rate_of_kind(parse_rate("rate", "1/s"))  # by an operator

    reply = kit.reply(kit.new())

    assert reply.job is not None
    assert (reply.job.policy, reply.undeclared) == (Policy(), True)


@spec("F5", "F9")
def test_a_repeated_enqueue_is_the_same_job_after_the_declaration_changed(kit: Kit) -> None:
    declare(kit, ONCE)
    command = kit.new()
    made = kit.reply(command)
    kit.store.settings.put_kind(
        DEFAULT_NAMESPACE, KindChange(kind=KIND, policy=Policy(max_attempts=2))
    )
    kit.advance(seconds=2)

    repeated, later = kit.reply(command), kit.reply(kit.new())

    assert (repeated.job, repeated.replayed) == (made.job, True)
    assert later.job is not None
    assert later.job.policy.max_attempts == 2


@spec("F10")
def test_a_worker_declares_a_policy_where_there_is_none_and_changes_nothing_else(kit: Kit) -> None:
    limited = kit.rate_of_kind(parse_rate("rate", "5/s"))

    first, second = declare(kit, ONCE), declare(kit, Policy())

    assert (first.policy, first.rate, first.rate_since) == (ONCE, limited.rate, limited.rate_since)
    assert second == first
    assert kit.factory.reopen().settings.kinds(DEFAULT_NAMESPACE) == [first]


@spec("RL6", "F10")
def test_a_rate_that_is_declared_later_than_the_policy_is_written(kit: Kit) -> None:
    declare(kit, ONCE)
    wanted = KindChange(kind=KIND, rate=parse_rate("rate", "5/s"), policy=Policy())

    kept = kit.store.settings.put_kind(DEFAULT_NAMESPACE, wanted, only_new=True)
    kit.rate_of_kind(None)
    removed = kit.store.settings.put_kind(DEFAULT_NAMESPACE, wanted, only_new=True)

    assert (kept.rate, kept.policy) == (wanted.rate, ONCE)
    assert (removed.rate, removed.policy) == (None, ONCE)


@spec("F9")
def test_declared_policies_are_read_by_namespace_and_kind(kit: Kit) -> None:
    declare(kit, ONCE)
    declare(kit, Policy(max_attempts=3), Kind("other"))
    kit.rate_of_kind(parse_rate("rate", "1/s"), Kind("rated"))
    names = [KIND, Kind("rated"), Kind("unknown")]

    found = kit.store.settings.kinds(DEFAULT_NAMESPACE, names)

    assert [(each.kind, each.policy) for each in found] == sorted(
        [(KIND, ONCE), (Kind("rated"), None)]
    )
    assert kit.store.settings.kinds(Namespace("elsewhere"), names) == []
    assert kit.store.settings.kinds(DEFAULT_NAMESPACE, []) == []


@spec("F9")
@pytest.mark.parametrize("own", [None, Policy(max_attempts=4)])
def test_a_schedule_without_a_policy_uses_the_one_that_its_kind_declares(
    kit: Kit, own: Policy | None
) -> None:
    declare(kit, ONCE)
    named = ScheduleSpec(kind=KIND, queue=QUEUE, every_us=seconds(60), policy=own)
    put = PutSchedule(
        namespace=DEFAULT_NAMESPACE, name=ScheduleName("minutely"), actor=OPERATOR, spec=named
    )
    kit.coordinator.change_schedule(put)
    kit.advance(seconds=61)

    fired = Firer(kit.coordinator).fire_due().fired

    [job] = kit.store.views.jobs(JobFilter(namespace=DEFAULT_NAMESPACE)).jobs
    assert fired == 1
    assert job.policy == (own or ONCE)
