"""Commands of an operator whose token does not reach everything, asked of a real server."""

from collections.abc import Callable, Iterator
from pathlib import Path
from subprocess import CompletedProcess

import pytest

from tenure.core.ids import QueueName
from tenure_conformance.spec import spec
from tests.remote.sites import RemoteSite

pytestmark = pytest.mark.process

Ask = Callable[..., "CompletedProcess[str]"]
Limited = tuple[Ask, Ask]


@pytest.fixture
def limited(tmp_path: Path) -> Iterator[Limited]:
    """An operator of everything, and one of the queue `mine`."""
    site = RemoteSite(f"sqlite:///{tmp_path / 'tenure.db'}", tmp_path)
    address, token = site.serve().address, site.token("operator", "ann")
    less = site.token("operator", "bob", queues=(QueueName("mine"),))
    yield (
        lambda *words: site.ask(address, token, *words),
        lambda *words: site.ask(address, less, *words),
    )
    site.close()


@spec("D6", "H41")
def test_a_redrive_does_not_name_a_job_out_of_scope_that_holds_its_key(limited: Limited) -> None:
    ann, bob = limited
    job_id = ann("enqueue", "mail", "-q", "mine", "--key", "k").stdout.strip()
    ann("jobs", "dead-letter", job_id)
    hidden = ann("enqueue", "mail", "-q", "hidden", "--key", "k").stdout.strip()

    heard = [bob("dlq", "redrive", job_id), bob("jobs", "rerun", job_id)]

    assert [each.returncode for each in heard] == [1, 1]
    for each in heard:
        assert "its dedupe key is held by" in each.stderr
        assert "out of this token's scope" in each.stderr
        assert hidden not in each.stderr + each.stdout
