"""A long walk: the rules of the differential machine in the proportions of a real life.

Hypothesis finds short, odd programs and shrinks them; a seeded walk goes deep, through many
attempts of many jobs. On a difference the program so far is printed, ready to be replayed.
"""

from collections.abc import Callable
from random import Random

from tenure.core.vocabulary import CatchUp, EventCause, Overlap, Stage
from tenure_conformance.harness import StoreFactory
from tests.conformance.differential import (
    FAILS,
    KEY_LIMITS,
    KEYS,
    KINDS,
    POLICIES,
    QUEUES,
    RATES,
    RELEASES,
    SCHEDULE_REQUESTS,
    Differential,
)

BODIES = (b"null", b"1", b'"x"', b'{"a":[1,2]}')
REPORTS = ("complete", "complete", "complete", "news", "news", "beat", "beat", *FAILS, *RELEASES)
MAX_LIVE_JOBS = 40

Arguments = dict[str, object]


def _enqueue(luck: Random) -> Arguments:
    return {
        "queue": luck.randint(0, 1),
        "kind": luck.randint(0, 1),
        "priority": luck.choice([0, 0, 5, -5]),
        "delay_s": luck.choice([0.0, 0.0, 3.0]),
        "key": luck.choice(KEYS),
        "how": luck.choice(sorted(POLICIES)),
    }


def _claim(luck: Random) -> Arguments:
    return {
        "limit": luck.randint(1, 5),
        "who": luck.randint(0, 1),
        "queues": luck.choice([QUEUES[:1], QUEUES, QUEUES[::-1]]),
        "kinds": luck.choice([None, KINDS[:1], KINDS]),
    }


def _reports(luck: Random) -> Arguments:
    count = luck.randint(2, 6)
    reports = [
        (luck.randint(0, 9), luck.choice(REPORTS), luck.choice(BODIES)) for _ in range(count)
    ]
    return {"reports": reports, "stolen": luck.random() < 0.1}


# How often each rule comes, and what it is given.
STEPS: dict[str, tuple[float, Callable[[Random], Arguments]]] = {
    "enqueue": (6, _enqueue),
    "flow": (
        0.8,
        lambda luck: {
            "pick": luck.randint(0, 9),
            "how": luck.choice(sorted(POLICIES)),
            "ended": luck.random() < 0.4,
            "out": luck.random() < 0.4,
        },
    ),
    "take": (
        5,
        lambda luck: {
            "limit": luck.randint(1, 4),
            "who": luck.randint(0, 1),
            "start": luck.random() < 0.7,
        },
    ),
    "claim": (1, _claim),
    "claim_again": (
        1,
        lambda luck: {"pick": luck.randint(0, 3), "other_body": luck.random() < 0.2},
    ),
    "report_one": (
        8,
        lambda luck: {"pick": luck.randint(0, 9), "how": luck.choice(REPORTS)},
    ),
    "reports": (4, _reports),
    "cancel": (
        2,
        lambda luck: {
            "pick": luck.randint(0, 4),
            "hard": luck.random() < 0.3,
            "reason": luck.choice(["", "why"]),
            "rev": luck.choice([None, None, None, 3]),
        },
    ),
    "requeue": (0.7, lambda luck: {"pick": luck.randint(0, 2)}),
    "dead_letter": (
        0.4,
        lambda luck: {"pick": luck.randint(0, 9), "stage": luck.choice([None, *Stage])},
    ),
    "redrive": (
        1,
        lambda luck: {
            "pick": luck.randint(0, 5),
            "cause": luck.choice([EventCause.REDRIVE, EventCause.RERUN]),
        },
    ),
    "discard": (
        0.5,
        lambda luck: {"pick": luck.randint(0, 2), "note": luck.choice(["", "seen"])},
    ),
    "send_again": (
        2,
        lambda luck: {"pick": luck.randint(0, 60), "other_body": luck.random() < 0.4},
    ),
    "advance": (3, lambda luck: {"by_s": luck.choice([0.000001, 1.0, 3.0, 10.0])}),
    "lose": (2, lambda luck: {"outage": luck.random() < 0.2}),
    "sweep": (1, lambda luck: {"limit": luck.randint(1, 4), "outage": False}),
    "put_queue": (
        0.5,
        lambda luck: {
            "queue": luck.randint(0, 1),
            "paused": luck.choice([None, False, False, False, True]),
            "limit": luck.choice([None, 0, 0, 2, 4]),
            "rate": luck.choice(RATES),
        },
    ),
    "put_kind": (
        0.4,
        lambda luck: {
            "kind": luck.randint(0, 2),
            "rate": luck.choice(RATES),
            "limit": luck.choice(KEY_LIMITS),
            "only_new": luck.random() < 0.3,
        },
    ),
    "put_schedule": (
        0.2,
        lambda luck: {
            "pick": luck.randint(0, 1),
            "every_s": luck.choice([1.0, 60.0]),
            "overlap": luck.choice(list(Overlap)),
            "catch_up": luck.choice([CatchUp.LATEST, CatchUp.NONE]),
        },
    ),
    "change_schedule": (
        0.2,
        lambda luck: {
            "pick": luck.randint(0, 1),
            "what": luck.choice(SCHEDULE_REQUESTS),
        },
    ),
    "fire": (0.4, lambda _: {}),
    "keep_house": (
        1.5,
        lambda luck: {
            "what": luck.choices(
                [
                    "look",
                    "unblock",
                    "fold",
                    "tick",
                    "prune",
                    "expire",
                    "step back",
                    "purge",
                    "epoch",
                ],
                weights=[4, 3, 2, 1, 3, 2, 1, 2.5, 0.5],
            )[0]
        },
    ),
}
NEEDS_GRANTS = {"report_one", "reports"}


def walk(
    factories: dict[str, Callable[[], StoreFactory]], *, seed: int, steps: int
) -> Differential:
    """Take so many steps; the machine as it stands at the end, closed."""
    luck = Random(seed)
    machine = Differential(factories)
    program = ["some_jobs()"]
    try:
        machine.some_jobs()
        names, weights = list(STEPS), [weight for weight, _ in STEPS.values()]
        for _ in range(steps):
            name = luck.choices(names, weights=weights)[0]
            arguments = STEPS[name][1](luck)
            live = sum(
                each.job is not None and not each.job.finished_at for each in machine.worlds.records
            )
            if name in NEEDS_GRANTS and not machine.grants:
                continue
            if name == "claim_again" and not machine.claims:
                continue
            if name in ("enqueue", "flow") and live > MAX_LIVE_JOBS:
                continue
            program.append(f"{name}({', '.join(f'{k}={v!r}' for k, v in arguments.items())})")
            getattr(machine, name)(**arguments)
    except BaseException as difference:
        difference.add_note(f"the program, seed {seed}:\n  " + "\n  ".join(program))
        machine.worlds.close()
        raise
    machine.teardown()
    return machine
