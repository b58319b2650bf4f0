"""Waiting claims alone: who asks the store, when, and what becomes of grants that nobody takes.

Nothing here passes by the clock: a line looks again after an hour, so whatever happens was caused.
"""

import asyncio
from collections.abc import Coroutine, Sequence
from concurrent.futures import Future
from typing import Any, cast

import pytest
from msgspec.structs import replace

from tenure.core.claims import ClaimAnswer, ClaimRequest
from tenure.core.commands import Command, Release
from tenure.core.ids import (
    DEFAULT_NAMESPACE,
    JobId,
    LeaseId,
    Namespace,
    QueueName,
    RequestId,
    WorkerId,
    worker_actor,
)
from tenure.core.instants import seconds
from tenure.core.tokens import TokenId
from tenure.core.verdicts import Answer, Grant
from tenure.core.vocabulary import ReleaseKind
from tenure.errors import Closed
from tenure.ports import Coordination
from tenure.server.limits import ServerSettings
from tenure.server.waiting import Waiter, WaitingClaims
from tenure_conformance.spec import spec
from tests.server.harness import JOB
from tests.support.waiting import auntil

NEVER_S = 3600.0
SETTINGS = ServerSettings(poll_every_s=NEVER_S, recheck_token_s=NEVER_S)


class Held:
    """`Coordination` whose claims are answered when a test says so."""

    def __init__(self) -> None:
        self.asked: list[tuple[str, Future[ClaimAnswer]]] = []
        self.released: list[Command] = []
        self.is_closed = False

    def submit_claim(self, request: ClaimRequest) -> "Future[ClaimAnswer]":
        future: Future[ClaimAnswer] = Future()
        future.set_running_or_notify_cancel()  # it is in flight, and cannot be called back
        self.asked.append((request.worker, future))
        return future

    def submit_many(self, commands: Sequence[Command]) -> "Future[list[Answer]]":
        if self.is_closed:
            raise Closed
        self.released += commands
        done: Future[list[Answer]] = Future()
        done.set_result([])
        return done


class Anybody:
    """`waiting_claims.Claimer` of a caller without limits."""

    def __init__(self) -> None:
        self.settled: list[tuple[int, int]] = []

    async def check_token(self) -> None:
        """It is."""

    async def reserve(self, leases: int) -> bool:
        return True

    def settle(self, reserved: int, granted: int) -> None:
        self.settled.append((reserved, granted))

    async def without_room(self, request: ClaimRequest) -> ClaimAnswer:
        raise AssertionError("there is room")


class Scene:
    """Waiting claims and a coordinator that answers when told."""

    def __init__(self, settings: ServerSettings = SETTINGS) -> None:
        self.coordination = Held()
        self.host = Anybody()
        self.claims = WaitingClaims(cast(Coordination, self.coordination), settings)

    def serve(
        self, request: ClaimRequest, waiter: Waiter | None = None, *, wait_s: float = NEVER_S
    ) -> "asyncio.Task[ClaimAnswer]":
        served = self.claims.serve(request, waiter or Waiter(), self.host, wait_s=wait_s)
        return asyncio.create_task(served)

    async def answered(self, worker: str, *grants: Grant) -> None:
        """Answer the claim that this worker has before the store."""
        coordination = self.coordination
        await auntil(lambda: bool(coordination.asked) and not coordination.asked[-1][1].done())
        asked, future = coordination.asked[-1]
        assert asked == worker
        future.set_result(ClaimAnswer(grants=grants))

    async def lined_up(self, *requests: ClaimRequest) -> "list[asyncio.Task[ClaimAnswer]]":
        """These wait, and nobody has anything before the store."""
        tasks = [await self.waiting(each) for each in requests]
        self.coordination.asked.clear()
        return tasks

    async def waiting(
        self, asked: ClaimRequest, waiter: Waiter | None = None
    ) -> "asyncio.Task[ClaimAnswer]":
        """A claim that found nothing, and nothing again if it opened a line."""
        is_first = asked.scope not in self.claims._lines
        task = self.serve(asked, waiter)
        for _ in range(1 + is_first):
            await self.answered(asked.worker)
        await self.quiet()
        return task

    async def quiet(self) -> None:
        """Whatever was woken has had its turn."""
        for _ in range(20):
            await asyncio.sleep(0)

    @property
    def workers(self) -> list[str]:
        return [worker for worker, _ in self.coordination.asked]


def request(worker: str, number: int = 1, **fields: Any) -> ClaimRequest:
    given: dict[str, Any] = {"namespace": DEFAULT_NAMESPACE, "queues": (QueueName("q"),)}
    return ClaimRequest(
        **{**given, **fields},
        worker=WorkerId(worker),
        actor=worker_actor("tests"),
        limit=1,
        claim_seq=number,
        request_id=RequestId(f"{worker}-{number}"),
    )


def granted(number: int = 1) -> Grant:
    return Grant(
        job_id=JobId(JOB.format(number)),
        lease_id=LeaseId(f"1-{number:032x}"),
        attempt=1,
        fence=1,
        ttl_us=seconds(60),
        job=cast(Any, None),  # nothing here reads it
    )


def run(work: Coroutine[Any, Any, None]) -> None:
    asyncio.run(work)


# --- grants that nobody takes --------------------------------------------------------------------


@spec("H35")
def test_a_grant_to_a_claim_that_the_server_abandoned_is_taken_back() -> None:
    async def scenario() -> None:
        scene = Scene()
        waiter, asked = Waiter(), request("a")
        task = scene.serve(asked, waiter)
        await auntil(lambda: scene.workers == ["a"])
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task
        scene.claims.finish(waiter, ClaimAnswer())
        scene.coordination.asked[0][1].set_result(ClaimAnswer(grants=(granted(),)))
        await scene.quiet()

        released = [
            (each.lease_id, each.kind)
            for each in scene.coordination.released
            if isinstance(each, Release)
        ]
        assert released == [(granted().lease_id, ReleaseKind.UNDELIVERED)]
        assert scene.host.settled == [(1, 0)]

    run(scenario())


def test_nothing_is_taken_back_from_a_claim_that_failed() -> None:
    async def scenario() -> None:
        scene = Scene()
        task = scene.serve(request("a"))
        await auntil(lambda: scene.workers == ["a"])
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task
        scene.coordination.asked[0][1].set_exception(Closed())

        assert scene.coordination.released == []

    run(scenario())


def test_grants_of_a_coordinator_that_is_closed_are_left_to_their_leases(
    caplog: pytest.LogCaptureFixture,
) -> None:
    async def scenario() -> None:
        scene = Scene()
        waiter, asked = Waiter(), request("a")
        task = scene.serve(asked, waiter)
        await scene.answered("a", granted())
        scene.coordination.is_closed = True
        waiter.leave()

        scene.claims.finish(waiter, await task)

    run(scenario())

    assert "could not take grants back" in caplog.text


# --- time ----------------------------------------------------------------------------------------


class Hours:
    """The loop's clock, which a test moves on."""

    def __init__(self) -> None:
        loop = asyncio.get_running_loop()
        plain = loop.time
        self.ahead_s = 0.0

        def later() -> float:
            return plain() + self.ahead_s

        loop.time = later  # type: ignore[method-assign]  # of this loop only


@spec("H10", "WP12")
def test_an_answer_says_how_long_the_claim_was_held_before_the_store_was_asked() -> None:
    async def scenario() -> None:
        scene, hours = Scene(), Hours()
        at_once, held = scene.serve(request("a")), request("b")
        await scene.answered("a", granted(1))
        task = await scene.waiting(held)

        hours.ahead_s += 1800
        scene.claims.enqueued(DEFAULT_NAMESPACE, [QueueName("q")])
        await auntil(
            lambda: scene.workers[-1] == "b" and not scene.coordination.asked[-1][1].done()
        )
        hours.ahead_s += 600  # the store takes its time: there may be a lease already
        await scene.answered("b", granted(2))

        assert (await at_once).waited_us < seconds(600)
        assert seconds(1800) <= (await task).waited_us < seconds(2400)

    run(scenario())


@spec("H10")
def test_the_wait_of_a_claim_counts_from_its_arrival() -> None:
    async def scenario() -> None:
        scene, hours = Scene(), Hours()
        task = scene.serve(request("a"), wait_s=600)
        await auntil(lambda: scene.workers == ["a"])

        hours.ahead_s += 601  # its first look at the store took that long
        await scene.answered("a")
        await scene.quiet()

        assert task.done()
        assert scene.workers == ["a"], "it did not begin to wait"

    run(scenario())


# --- the line ------------------------------------------------------------------------------------


@spec("H10")
def test_a_claim_that_receives_a_job_lets_the_next_one_ask() -> None:
    async def scenario() -> None:
        scene = Scene()
        first, second = await scene.lined_up(request("a"), request("b"))

        scene.claims.enqueued(DEFAULT_NAMESPACE, [QueueName("q")])
        await scene.answered("a", granted(1))
        await scene.answered("b", granted(2))

        assert [grant.job_id for grant in (await first).grants] == [JOB.format(1)]
        assert [grant.job_id for grant in (await second).grants] == [JOB.format(2)]

    run(scenario())


@spec("H10")
def test_a_claim_that_finds_nothing_wakes_no_other() -> None:
    async def scenario() -> None:
        scene = Scene()
        tasks = await scene.lined_up(request("a"), request("b"))

        scene.claims.enqueued(DEFAULT_NAMESPACE, [QueueName("q")])
        await scene.answered("a")
        await scene.quiet()

        assert scene.workers == ["a"]
        for task in tasks:
            task.cancel()

    run(scenario())


@spec("H10")
def test_an_unused_wake_up_passes_to_the_next_claim() -> None:
    async def scenario() -> None:
        scene = Scene()
        gone = Waiter()
        task = await scene.waiting(request("a"), gone)
        [second] = await scene.lined_up(request("b"))

        scene.claims.enqueued(DEFAULT_NAMESPACE, [QueueName("q")])
        gone.leave()  # woken, and away before it could ask
        await scene.answered("b", granted())

        assert (await task).grants == ()
        assert len((await second).grants) == 1
        assert scene.workers == ["b"]

    run(scenario())


@spec("H10")
def test_a_wake_up_is_for_its_namespace_and_queues() -> None:
    async def scenario() -> None:
        scene = Scene()
        other = Namespace("other")
        tasks = await scene.lined_up(
            request("here"),
            request("there", namespace=other),
            request("z", queues=(QueueName("y"), QueueName("z"))),
        )

        scene.claims.enqueued(other, [QueueName("q")])
        scene.claims.enqueued(DEFAULT_NAMESPACE, [QueueName("z"), QueueName("x")])
        await scene.quiet()

        assert sorted(scene.workers) == ["there", "z"]
        for task in tasks:
            task.cancel()

    run(scenario())


@spec("Z7")
def test_hints_that_may_be_about_any_queue_wake_no_more_often_than_lines_may_ask() -> None:
    async def scenario() -> None:
        scene = Scene(replace(SETTINGS, max_idle_claims_per_s=1))
        tasks = await scene.lined_up(*[request(q, queues=(QueueName(q),)) for q in ("x", "y", "z")])

        for _ in range(20):
            scene.claims.hinted(None)
            await scene.quiet()
            for _, future in scene.coordination.asked:
                if not future.done():
                    future.set_result(ClaimAnswer())
            await scene.quiet()

        assert sorted(scene.workers) == ["x", "y", "z"]
        for task in tasks:
            task.cancel()

    run(scenario())


def test_many_lines_together_ask_no_more_often_than_they_may() -> None:
    async def scenario() -> None:
        scene = Scene(replace(SETTINGS, poll_every_s=0.25, max_idle_claims_per_s=2))
        waits: list[float] = []
        loop = asyncio.get_running_loop()
        later = loop.call_later

        def noted(delay_s: float, *rest: Any, **more: Any) -> asyncio.TimerHandle:
            waits.append(delay_s)
            return later(NEVER_S if delay_s in (0.5, 1.0, 1.5) else delay_s, *rest, **more)

        loop.call_later = noted  # type: ignore[assignment]  # its overloads are not repeated here
        tasks = await scene.lined_up(*[request(q, queues=(QueueName(q),)) for q in ("x", "y", "z")])

        assert [each for each in waits if each in (0.25, 0.5, 1.0, 1.5)] == [0.5, 1.0, 1.5]
        for task in tasks:
            task.cancel()

    run(scenario())


def without_polls() -> list[float]:
    """The delays of all timers from now on, which do not go off."""
    delays: list[float] = []
    loop = asyncio.get_running_loop()
    later = loop.call_later

    def noted(delay_s: float, *rest: Any, **more: Any) -> asyncio.TimerHandle:
        delays.append(delay_s)
        return later(NEVER_S, *rest, **more)

    loop.call_later = noted  # type: ignore[assignment]  # its overloads are not repeated here
    return delays


@spec("H63")
def test_claims_of_one_namespace_do_not_make_those_of_others_ask_less_often() -> None:
    async def scenario() -> None:
        scene = Scene(replace(SETTINGS, poll_every_s=0.25, max_idle_claims_per_s=4))
        acme, globex = Namespace("acme"), Namespace("globex")
        many = [QueueName(f"q{number}") for number in range(30)]
        delays = without_polls()

        tasks = [scene.serve(request(each, namespace=acme, queues=(each,))) for each in many]
        await found_nothing(scene)
        crowded_s = delays[-1]
        tasks.append(scene.serve(request("alone", namespace=globex)))
        await found_nothing(scene)

        assert crowded_s == 30 / 4
        assert delays[-1] == 2 / 4  # half of the polls are for its namespace
        for task in tasks:
            task.cancel()

    run(scenario())


@spec("H63")
def test_claims_of_one_token_do_not_make_those_of_others_ask_less_often() -> None:
    async def scenario() -> None:
        scene = Scene(replace(SETTINGS, poll_every_s=0.25, max_idle_claims_per_s=4))
        many = [QueueName(f"q{number}") for number in range(30)]
        greedy, other = TokenId("greedy"), TokenId("other")
        delays = without_polls()

        tasks = [scene.serve(request(each, queues=(each,)), Waiter(greedy)) for each in many]
        await found_nothing(scene)
        crowded_s = delays[-1]
        tasks.append(scene.serve(request("beside", queues=(many[0],)), Waiter(other)))
        await found_nothing(scene)

        assert crowded_s == 30 / 4
        assert delays[-1] == 2 / 4  # also in a line with claims of the other token
        for task in tasks:
            task.cancel()

    run(scenario())


async def found_nothing(scene: Scene) -> None:
    """Every claim before the store finds nothing, until none asks any more."""
    await scene.quiet()
    while pending := [future for _, future in scene.coordination.asked if not future.done()]:
        for future in pending:
            future.set_result(ClaimAnswer())
        await scene.quiet()
