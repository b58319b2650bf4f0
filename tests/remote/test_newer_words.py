"""A client of a server reads words that are younger than both."""

import pytest

from tenure.core.ids import DEFAULT_NAMESPACE
from tenure.core.verdicts import Verdict
from tenure.core.views.job_search import JobFilter
from tenure.core.vocabulary import CancelMode, VerdictKind
from tenure.errors import TenureError
from tenure.protocol.codec import decode
from tenure.protocol.replies import ClaimReply, JobReply, VerdictsReply
from tenure.protocol.translation import to_core
from tenure_conformance.harness import OPERATOR
from tenure_conformance.spec import spec
from tenure_conformance.store.test_unknown_words import of_tomorrow
from tests.remote.over_http import RemoteKit


@spec("Y4")
def test_a_client_shows_the_words_of_a_newer_version_as_they_are(kit: RemoteKit) -> None:
    job = of_tomorrow(kit)
    store = kit.far.of(OPERATOR).store

    listed = store.views.jobs(JobFilter(namespace=DEFAULT_NAMESPACE)).jobs
    [event] = store.events.load([job.id])[job.id]

    assert kit.reload(job) == job  # and the client was shown the same
    assert [str(each.origin_cause) for each in listed] == ["split"]
    assert str(event.cause) == "split"


@spec("Y5")
def test_a_client_that_asks_about_such_a_job_hears_to_upgrade(kit: RemoteKit) -> None:
    job = of_tomorrow(kit)

    with pytest.raises(TenureError, match=r"origin_cause is 'split'.*upgrade"):
        kit.cancel(job, mode=CancelMode.HARD)

    assert kit.reload(job) == job


@spec("Y4")
def test_verdicts_and_refusals_of_a_newer_server_are_read() -> None:
    body = (
        b'{"verdicts":[{"verdict":"COMMITTED","job_status":"napping","disposition":"split"},'
        b'{"verdict":"CANCELLED","cause":"eclipse"}]}'
    )

    accepted, stopped = (to_core(Verdict, each) for each in decode(VerdictsReply, body).verdicts)
    claim = decode(ClaimReply, b'{"verdict":"REJECTED","cause":"eclipse"}')
    reply = decode(JobReply, b'{"job":null,"cause":"eclipse"}')

    assert (str(accepted.disposition), str(accepted.job_status)) == ("split", "napping")
    assert (stopped.kind, str(stopped.cause)) == (VerdictKind.CANCELLED, "eclipse")
    assert str(claim.cause) == str(reply.cause) == "eclipse"
