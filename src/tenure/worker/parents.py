"""Results of parents, on their way from the store through the supervisor to a handler. [FL7]

The child has neither a token nor the lease; the supervisor has both. A page fits a frame.
"""

import threading
from collections.abc import Callable

import msgspec

from tenure.core.flow_rows import ParentPage
from tenure.core.ids import Actor, JobId, LeaseId
from tenure.core.leases import HeldLease
from tenure.errors import LeaseConflictError, TenureError, TransientError
from tenure.ports import Coordination
from tenure.worker.messages import ParentsAnswer, ParentsWanted, ToSupervisor
from tenure.worker.wire import Answers

# --- in the child ------------------------------------------------------------------------------


class ParentPages:
    """Asks for one page at a time. Any thread of the handler."""

    def __init__(
        self, run: int, send: Callable[[ToSupervisor], None], *, still_mine: Callable[[], bool]
    ) -> None:
        self._run = run
        self._send = send
        self._lock = threading.Lock()
        self._answers: Answers[ParentsAnswer] = Answers(still_mine)

    def load(self, after: int) -> ParentPage:
        """The parents after this position; raises if they cannot be had."""
        with self._lock:
            number = self._answers.next_number()
            self._send(ParentsWanted(self._run, number, after))
            answer = self._answers.wait_for(number)
        if answer.failure:
            raise TransientError(answer.failure, dependency_unavailable=True)
        if answer.page.cause is not None:
            raise LeaseConflictError(f"the attempt has lost its lease ({answer.page.cause})")
        return answer.page

    def heard(self, answer: ParentsAnswer) -> None:
        """The supervisor's answer."""
        self._answers.put(answer)


# --- in the supervisor -------------------------------------------------------------------------


class ParentsRequest(msgspec.Struct, frozen=True, kw_only=True):
    """A page that a handler wants, with what only the supervisor knows: its lease."""

    wanted: ParentsWanted
    job_id: JobId
    lease_id: LeaseId


def load_parents(
    coordination: Coordination, request: ParentsRequest, actor: Actor
) -> ParentsAnswer:
    """The answer to a handler's question."""
    run, number, after = request.wanted.run, request.wanted.number, request.wanted.after
    held = HeldLease(request.job_id, request.lease_id)
    try:
        page = coordination.store.load_parents(held, actor, after=after)
    except TenureError as failure:
        return ParentsAnswer(run, number, failure=f"the parents could not be read: {failure}")
    return ParentsAnswer(run, number, page=page)
