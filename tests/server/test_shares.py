"""Of what all callers share, no namespace and no token has everything."""

import asyncio
import threading

from tenure.core.ids import Namespace
from tenure.core.tokens import TokenId
from tenure.server.threads import Requester, SharedBlocking, Shares, call_for
from tenure_conformance.spec import spec


def caller(namespace: str, token: str) -> Requester:
    return Requester(Namespace(namespace), TokenId(token))


@spec("H60")
def test_a_token_has_half_and_a_namespace_three_quarters() -> None:
    shares = Shares(8)
    first, second, other = caller("acme", "1"), caller("acme", "2"), caller("globex", "3")

    shares.take(first, 4)
    assert not shares.has_room(first)
    assert shares.has_room(second, 2)
    assert not shares.has_room(second, 3)
    shares.take(second, 2)

    assert not shares.has_room(second)
    assert shares.has_room(other, 2)
    assert not shares.has_room(other, 3)


@spec("H60")
def test_what_is_given_back_can_be_taken_again() -> None:
    shares = Shares(4)
    one = caller("acme", "1")

    shares.take(one, 2)
    shares.give_back(one, 2)

    assert shares.has_room(one, 2)
    assert (shares.used, shares.used_by(one)) == (0, (0, 0))


@spec("H60")
def test_without_a_token_there_is_only_the_whole() -> None:
    shares = Shares(4)

    shares.take(None, 3)

    assert shares.has_room(None)
    assert not shares.has_room(None, 2)


@spec("H60")
def test_one_of_something_can_be_had_by_anybody() -> None:
    assert Shares(1).has_room(caller("acme", "1"))


@spec("H61")
def test_a_namespace_with_fewer_threads_is_next_and_then_a_token_with_fewer() -> None:
    begun: list[str] = []
    goes_on = threading.Semaphore(0)

    def call(name: str) -> None:
        begun.append(name)
        goes_on.acquire()

    async def ask(threads: SharedBlocking, who: Requester, name: str) -> None:
        call_for(who)
        await threads(lambda: call(name))

    async def scenario() -> None:
        threads = SharedBlocking(4)
        asked = []
        order = [("acme", "1", 3), ("acme", "2", 2), ("initech", "3", 2), ("globex", "4", 1)]
        for namespace, token, calls in order:
            for number in range(calls):
                who = caller(namespace, token)
                name = f"{namespace}-{token}-{number}"
                asked.append(asyncio.create_task(ask(threads, who, name)))
                await asyncio.sleep(0)
        for each in range(len(asked)):
            while len(begun) < min(4 + each, len(asked)):
                await asyncio.sleep(0)
            goes_on.release()
        await asyncio.gather(*asked)
        threads.close()

    asyncio.run(scenario())

    # Two of the first token, one of the second, and one of the second namespace begin at once.
    assert sorted(begun[:4]) == ["acme-1-0", "acme-1-1", "acme-2-0", "initech-3-0"]
    assert begun[4] == "globex-4-0"
    assert len(begun) == 8


@spec("H61")
def test_a_call_that_is_given_up_while_it_waits_leaves_its_place() -> None:
    goes_on = threading.Event()

    async def scenario() -> list[str]:
        threads = SharedBlocking(1)
        running = asyncio.create_task(threads(goes_on.wait))
        await asyncio.sleep(0)
        gives_up = asyncio.create_task(threads(lambda: "given up"))
        waits = asyncio.create_task(threads(lambda: "done"))
        await asyncio.sleep(0)
        gives_up.cancel()
        goes_on.set()
        await running
        heard = [await waits, await threads(lambda: "after")]
        threads.close()
        return heard

    assert asyncio.run(scenario()) == ["done", "after"]
