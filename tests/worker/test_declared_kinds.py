"""What an application declares for its kinds, and what the store keeps of it."""

import logging

import pytest

from tenure.core.ids import DEFAULT_NAMESPACE, Kind, Namespace
from tenure.core.kind_settings import KindChange, KindSettings
from tenure.core.policy import Policy
from tenure.core.rates import Rate, parse_rate
from tenure.errors import InvalidInput, RequestRefused
from tenure.handlers.registry import Handler, Registry, make_handler
from tenure.stores.sqlite.memory import MemoryStore
from tenure.worker.supervisor.declarations import change_in_words, declare_and_warn, declare_kinds
from tenure_conformance.spec import spec
from tests.support.doubles import instead

LETTER = Kind("letter")


def nothing() -> None: ...


def registry(rate: str | None) -> Registry:
    """An application with one kind that has a rate, and one that has none."""
    made = Registry()
    limit = None if rate is None else parse_rate("rate", rate)
    made.add(make_handler(nothing, kind=LETTER, rate=limit))
    made.add(make_handler(nothing, kind="plain"))
    return made


def rates(store: MemoryStore) -> dict[Kind, Rate | None]:
    """The rates of kinds that limits were ever set for."""
    found = store.settings.kinds(DEFAULT_NAMESPACE)
    return {each.kind: each.rate for each in found if each.limits_set}


@spec("RL6")
def test_only_what_the_store_has_never_seen_is_written() -> None:
    store = MemoryStore()

    first = list(declare_kinds(store, DEFAULT_NAMESPACE, registry("10/s")))
    second = list(declare_kinds(store, DEFAULT_NAMESPACE, registry("99/s")))
    nothing = list(declare_kinds(store, DEFAULT_NAMESPACE, registry(None)))

    assert (first, nothing) == ([], [])
    assert [str(each) for each in second] == [
        "kind letter is declared with rate 99/s, burst 9, the store has rate 10/s, burst 1"
    ]
    assert rates(store) == {LETTER: parse_rate("rate", "10/s")}


@spec("RL6")
def test_a_starting_worker_says_that_it_declares_something_else(
    caplog: pytest.LogCaptureFixture,
) -> None:
    store = MemoryStore()
    store.settings.put_kind(DEFAULT_NAMESPACE, KindChange(kind=LETTER, rate=None))
    caplog.set_level(logging.WARNING, logger="tenure.worker")

    declare_and_warn(store, DEFAULT_NAMESPACE, list(registry("10/s")), app="jobs:app")

    assert caplog.messages == [
        "kind letter is declared with rate 10/s, burst 1, the store has no rate;"
        " `tenure kinds sync jobs:app` writes what is declared"
    ]
    assert rates(store) == {LETTER: None}


@spec("RL6")
def test_a_worker_under_development_writes_what_the_code_declares_and_says_so(
    caplog: pytest.LogCaptureFixture,
) -> None:
    store = MemoryStore()
    store.settings.put_kind(
        DEFAULT_NAMESPACE, KindChange(kind=LETTER, rate=parse_rate("rate", "2/s"))
    )
    store.settings.put_kind(
        DEFAULT_NAMESPACE, KindChange(kind=Kind("foreign"), concurrency_limit=3)
    )
    caplog.set_level(logging.INFO, logger="tenure.worker")

    declare_and_warn(
        store, DEFAULT_NAMESPACE, list(registry("10/s")), app="jobs:app", overwrites=True
    )

    assert caplog.messages == [
        "kind letter: rate 10/s, burst 1 (was rate 2/s, burst 1)",
    ]
    assert rates(store) == {LETTER: parse_rate("rate", "10/s"), "foreign": None}


@spec("RL6")
def test_a_setting_that_the_code_does_not_declare_is_said(caplog: pytest.LogCaptureFixture) -> None:
    store = MemoryStore()
    store.settings.put_kind(DEFAULT_NAMESPACE, KindChange(kind=Kind("plain"), concurrency_limit=2))
    caplog.set_level(logging.WARNING, logger="tenure.worker")

    for overwrites in (False, True):
        declare_and_warn(
            store, DEFAULT_NAMESPACE, list(registry("2/s")), app="jobs:app", overwrites=overwrites
        )

    said = (
        "kind plain: the store has 2 per key, which the code does not declare;"
        " `tenure kinds sync jobs:app --prune` removes it"
    )
    assert caplog.messages == [said, said]


@pytest.mark.parametrize(
    ("before", "after", "said"),
    [
        (None, KindSettings(kind=LETTER, concurrency_limit=2), "2 per key"),
        (KindSettings(kind=LETTER, concurrency_limit=2), None, "1 per key (was 2)"),
        (None, None, "no rate"),
    ],
)
def test_a_change_is_said_with_what_was_before(
    before: KindSettings | None, after: KindSettings | None, said: str
) -> None:
    assert change_in_words(before, after or KindSettings(kind=LETTER)) == said


ONCE = Policy(max_attempts=1)


def once(policy: Policy = ONCE) -> list[Handler]:
    """An application with one kind that is attempted once, and one that has the default policy."""
    return [
        make_handler(nothing, kind="once", policy=policy),
        make_handler(nothing, kind="plain"),
    ]


def policies(store: MemoryStore) -> dict[Kind, Policy | None]:
    return {each.kind: each.policy for each in store.settings.kinds(DEFAULT_NAMESPACE)}


@spec("F10")
def test_a_worker_declares_the_policy_of_every_kind_and_says_where_the_store_has_another(
    caplog: pytest.LogCaptureFixture,
) -> None:
    store = MemoryStore()
    caplog.set_level(logging.WARNING, logger="tenure.worker")
    declare_and_warn(store, DEFAULT_NAMESPACE, once(), app="jobs:app")
    assert caplog.messages == []

    declare_and_warn(store, DEFAULT_NAMESPACE, once(Policy(max_attempts=3)), app="jobs:app")

    assert caplog.messages == [
        "kind once is declared with 3 attempts, lease 1m, timeout 1h, the store has 1 attempt,"
        " lease 1m, timeout 1h; `tenure kinds sync jobs:app` writes what is declared"
    ]
    assert policies(store) == {"once": ONCE, "plain": Policy()}


@spec("F10")
def test_an_operators_limit_stays_when_a_worker_declares_only_a_policy(
    caplog: pytest.LogCaptureFixture,
) -> None:
    store = MemoryStore()
    limit = parse_rate("rate", "2/s")
    store.settings.put_kind(DEFAULT_NAMESPACE, KindChange(kind=Kind("once"), rate=limit))
    caplog.set_level(logging.INFO, logger="tenure.worker")

    for overwrites in (False, True):
        declare_and_warn(store, DEFAULT_NAMESPACE, once(), app="jobs:app", overwrites=overwrites)

    assert caplog.messages == []
    assert rates(store) == {"once": limit}
    assert policies(store)[Kind("once")] == ONCE


class Refusing(MemoryStore):
    """A store that refuses what is declared for one kind."""

    def __init__(self) -> None:
        super().__init__()
        self._own_put_kind = instead(self, "settings.put_kind", self._put_kind)

    def _put_kind(
        self, namespace: Namespace, change: KindChange, *, only_new: bool = False
    ) -> KindSettings:
        if change.kind == "once":
            raise InvalidInput("policy.lease_us", "1 s is outside 30 to 120 s")
        kept: KindSettings = self._own_put_kind(namespace, change, only_new=only_new)
        return kept


@spec("F10")
def test_a_refused_declaration_is_logged_and_the_others_are_written(
    caplog: pytest.LogCaptureFixture,
) -> None:
    store = Refusing()
    caplog.set_level(logging.WARNING, logger="tenure.worker")

    declare_and_warn(store, DEFAULT_NAMESPACE, once(), app="jobs:app")

    assert caplog.messages == [
        "what is declared for kind once was not written: policy.lease_us: 1 s is outside 30 to"
        " 120 s"
    ]
    assert policies(store) == {"plain": Policy()}


class Undeclaring(MemoryStore):
    """A store behind a server whose token may not declare."""

    asked = 0

    def __init__(self) -> None:
        super().__init__()
        instead(self, "settings.put_kind", self._put_kind)

    def _put_kind(
        self, namespace: Namespace, change: KindChange, *, only_new: bool = False
    ) -> KindSettings:
        self.asked += 1
        raise RequestRefused(
            "it was created without --may-declare", reason="out_of_scope", field=None
        )


@spec("H78")
def test_a_worker_that_may_not_declare_asks_and_logs_once(
    caplog: pytest.LogCaptureFixture,
) -> None:
    store = Undeclaring()
    caplog.set_level(logging.WARNING, logger="tenure.worker")

    declare_and_warn(store, DEFAULT_NAMESPACE, once(), app="jobs:app")

    assert store.asked == 1
    assert caplog.messages == [
        "what is declared for once, plain was not written: out_of_scope: it was created without"
        " --may-declare"
    ]
