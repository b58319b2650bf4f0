"""How many requests things cost: what is asked about many jobs is asked together."""

import threading
from collections.abc import Iterator
from contextlib import contextmanager

from msgspec.structs import replace

from tenure.core.job import HIDDEN, Job, Progress
from tenure.core.validation import MAX_PER_JOB
from tenure.core.verdicts import Answer, Reply
from tenure.core.vocabulary import ResolutionKind
from tenure.protocol.records import event_of, event_record
from tenure.protocol.requests import MAX_PAGE
from tenure_conformance.harness import CLIENT
from tenure_conformance.spec import spec
from tests.remote.over_http import RemoteKit
from tests.remote.proxy import SwallowingProxy
from tests.remote.script import Script, World, job_id, new_job
from tests.remote.serving import ThreadedServer

BATCH = "POST /v1/jobs/batch"
LOOKUP = "POST /v1/jobs/lookup"


@contextmanager
def playing(server: ThreadedServer, *, lost: int = 0) -> Iterator[tuple[Script, SwallowingProxy]]:
    """A world behind a proxy that swallows the answer of this number."""
    world = World()
    mounted = server.mount(world.coordinator, world.clock)
    proxy = SwallowingProxy(server.port, lambda number, name: number == lost)
    script = Script(proxy.url, world.tokens)
    try:
        yield script, proxy
    finally:
        script.close()
        proxy.close()
        mounted.close()
        world.close()


def test_a_lost_answer_to_many_new_jobs_costs_one_more_request(server: ThreadedServer) -> None:
    commands = [new_job(number) for number in range(10, 130)]

    with playing(server, lost=1) as (script, proxy):
        replies = script.client.submit_many(commands).result()

        assert {_answered(reply).replayed for reply in replies} == {True}
        assert [_job(reply).id for reply in replies] == [each.job_id for each in commands]
        assert proxy.answers == [BATCH, BATCH]


def test_a_lone_caller_needs_no_thread_and_others_do_not_wait_for_it(
    server: ThreadedServer,
) -> None:
    with playing(server) as (script, proxy):
        before = set(threading.enumerate())
        script.client.execute_many([new_job(10)])
        begun = {thread.name for thread in set(threading.enumerate()) - before}
        callers = [
            threading.Thread(target=script.client.execute_many, args=([new_job(number)],))
            for number in range(11, 31)
        ]
        for caller in callers:
            caller.start()
        for caller in callers:
            caller.join(60)

        assert not any(name.startswith("tenure-remote") for name in begun)
        assert proxy.answers == [BATCH] * 21


@spec("H43")
def test_a_long_log_is_asked_for_page_by_page(kit: RemoteKit) -> None:
    job = kit.running_job()
    beats = [
        kit.beat(job, number, progress=Progress(done=number)) for number in range(1, MAX_PAGE + 3)
    ]
    for first in range(0, len(beats), MAX_PER_JOB):
        kit.coordinator.submit_many(beats[first : first + MAX_PER_JOB]).result()

    events = kit.far.of(CLIENT).store.events.load([job.id])[job.id]

    assert events == [event_of(event_record(event)) for event in kit.events(job)]
    assert len(events) == MAX_PAGE + 5


def test_replies_about_repeated_jobs_have_no_bodies(server: ThreadedServer) -> None:
    commands = [new_job(number) for number in range(10, 130)]

    with playing(server) as (script, proxy):
        script.client.submit_many(commands).result()
        done = script.complete(60, b"[1]")
        before = len(proxy.answers)
        repeated = script.client.submit_many(commands).result()

        ended = {_job(reply).id for reply in repeated if _job(reply).status.is_terminal}
        assert ended == done
        assert {(_job(reply).payload, _job(reply).result) for reply in repeated} == {(HIDDEN, None)}
        assert proxy.answers[before:] == [BATCH]


def test_replies_name_the_jobs_that_hold_the_keys(server: ThreadedServer) -> None:
    commands = [new_job(number, dedupe_key=f"key-{number}") for number in range(10, 70)]
    copies = [
        replace(each, job_id=job_id(1000 + at), payload=b'"copy"')
        for at, each in enumerate(commands)
    ]

    with playing(server) as (script, proxy):
        script.client.submit_many(commands).result()
        before = len(proxy.answers)
        held = script.client.submit_many(copies).result()

        assert {_answered(reply).deduplicated for reply in held} == {True}
        assert [_job(reply).id for reply in held] == [each.job_id for each in commands]
        assert proxy.answers[before:] == [BATCH]


def test_what_became_of_dead_letters_is_asked_for_together(server: ThreadedServer) -> None:
    numbers = range(10, 20)
    unknown = job_id(9999)

    with playing(server) as (script, proxy):
        script.client.submit_many([new_job(number) for number in numbers]).result()
        script.bury(*numbers)
        script.discard(10, 11)
        before = len(proxy.answers)
        found = script.operator.store.jobs.resolutions([*map(job_id, numbers), unknown])

        assert proxy.answers[before:] == [LOOKUP]
        assert {each: found[each].kind for each in found} == {
            job_id(10): ResolutionKind.DISCARDED,
            job_id(11): ResolutionKind.DISCARDED,
        }
        assert found[job_id(10)].actor == "operator:script"


def _answered(answer: Answer) -> Reply:
    assert isinstance(answer, Reply)
    return answer


def _job(answer: Answer) -> Job:
    job = _answered(answer).job
    assert job is not None
    return job
