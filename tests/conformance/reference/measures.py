"""How full the reference store is. A mixin of `ReferenceStore`."""

from tenure.core.claims import QueueState
from tenure.core.ids import JobId, Namespace, QueueName, ScheduleName
from tenure.core.instants import Instant
from tenure.core.leases import is_suspect
from tenure.core.schedules import Schedule
from tenure.core.verdicts import Resolution
from tenure.core.views.overview import KnownQueue, fair_share
from tenure.ports import Measures, QueueMeasure
from tests.conformance.reference.part import MemoryPart


class MemoryMeasures(MemoryPart):
    """`Store.measure` over dictionaries."""

    _queues: dict[tuple[Namespace, QueueName], QueueState]
    _resolutions: dict[JobId, Resolution]
    _schedules: dict[tuple[Namespace, ScheduleName], Schedule]

    def measure(self, *, queues: int, jobs: int, namespace: Namespace | None = None) -> Measures:
        """How full the store is, within these limits."""
        with self._lock:
            self._open()
            now = self._clock()
            known = {*self._queues, *((job.namespace, job.queue) for job in self._jobs.values())}
            measured = {
                each: self._measure(*each, jobs, now)
                for each in known
                if namespace in (None, each[0])
            }
            chosen = fair_share(
                (KnownQueue(_is_empty(found), *each) for each, found in measured.items()), queues
            )
            return Measures(
                now=now,
                queues=tuple(measured[each.namespace, each.queue] for each in chosen),
                left_out=len(measured) - len(chosen),
                dead_letters={
                    each.namespace: self._count_dead_letters(each.namespace, jobs)
                    for each in chosen
                },
                schedules_due_since=self._due_since(namespace, now),
            )

    def _due_since(self, only: Namespace | None, now: Instant) -> dict[Namespace, Instant]:
        found: dict[Namespace, Instant] = {}
        for each in self._schedules.values():
            at = each.next_at
            if at is not None and at <= now and only in (None, each.namespace):
                found[each.namespace] = min(at, found.get(each.namespace, at))
        return found

    def _measure(
        self, namespace: Namespace, queue: QueueName, most: int, now: Instant
    ) -> QueueMeasure:
        here = [
            job for job in self._jobs.values() if (job.namespace, job.queue) == (namespace, queue)
        ]
        waiting = [job for job in here if job.run_at is not None]
        ready = [job for job in waiting if job.not_before is not None and job.not_before <= now]
        return QueueMeasure(
            namespace=namespace,
            queue=queue,
            ready=min(most, len(ready)),
            delayed=min(most, len(waiting) - len(ready)),
            leased=min(most, sum(job.lease_id is not None for job in here)),
            suspect=min(most, sum(is_suspect(job, now) for job in here)),
            oldest_ready_at=min(
                (job.run_at for job in ready if job.run_at is not None), default=None
            ),
        )

    def _count_dead_letters(self, namespace: Namespace, most: int) -> int:
        dead = [
            job.id
            for job in self._jobs.values()
            if job.namespace == namespace and job.reason_code is not None
        ]
        newest = sorted(dead, reverse=True)[:most]
        return sum(job_id not in self._resolutions for job_id in newest)


def _is_empty(measure: QueueMeasure) -> bool:
    return not (measure.ready or measure.delayed or measure.leased)
