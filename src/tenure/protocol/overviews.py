"""Overviews as they are shown: what a namespace is doing. [OB28]"""

from tenure.core.dead_letter_groups import DeadLetterGroup, DeadLetterGroups
from tenure.core.overview import (
    Attention,
    Durations,
    KindOverview,
    OutcomeBucket,
    OutcomeCounts,
    Overview,
    QueueOverview,
    WorkerCounts,
)
from tenure.protocol.records import DerivedRecord
from tenure.protocol.translation import derived, to_core, to_wire


@derived(OutcomeCounts)
class OutcomeCountsRecord(DerivedRecord, frozen=True, kw_only=True):
    """Events by type: how many jobs were enqueued, claimed, requeued after an attempt, and how many
    ended in which way."""


@derived(OutcomeBucket)
class OutcomeBucketRecord(DerivedRecord, frozen=True, kw_only=True):
    """The events of the bucket that begins at `at`."""


@derived(QueueOverview)
class QueueOverviewRecord(DerivedRecord, frozen=True, kw_only=True):
    """A queue: its jobs now, since when the oldest ready one is ready, what is set for it, how many
    live workers claim from it, and its events since `since`."""


@derived(Durations)
class DurationsRecord(DerivedRecord, frozen=True, kw_only=True):
    """The median and the 95th percentile of durations, and how many jobs were looked at; null
    without any."""


durations_record = to_wire(Durations, DurationsRecord)
"""Durations as they are shown."""


@derived(KindOverview)
class KindOverviewRecord(DerivedRecord, frozen=True, kw_only=True):
    """A kind: its jobs now in all queues, its events since `since`, and how long its jobs waited
    and ran since then. [OB50]"""


@derived(WorkerCounts)
class WorkerCountsRecord(DerivedRecord, frozen=True, kw_only=True):
    """Workers by their state."""


@derived(Attention)
class AttentionRecord(DerivedRecord, frozen=True, kw_only=True):
    """Something that somebody should look at: how many jobs it is about, and where they are."""


@derived(DeadLetterGroup)
class DeadLetterGroupRecord(DerivedRecord, frozen=True, kw_only=True):
    """Dead letters of one kind with one error: how many, since when, until when, and how many in
    each bucket. `error` has # for numbers and ids; `headline` is that of the newest letter.
    `job_ids` are the newest ones: one, or up to 500 if the group was asked for by `key`. `in_flows`
    of the letters belong to flows and can only be redriven with them; `redrivable_ids` are the
    newest of the others. `flow_ids`, up to 20, are there if the group was asked for by `key`."""


@derived(DeadLetterGroups)
class DeadLetterGroupsReply(DerivedRecord, frozen=True, kw_only=True):
    """Groups of unresolved dead letters, the largest first, and how many letters they have. The
    buckets begin at `since` and are `bucket_s` long. If it is not `complete`, there are older dead
    letters that were not looked at. [OB31]"""


dead_letter_groups_reply = to_wire(DeadLetterGroups, DeadLetterGroupsReply)
"""Groups of dead letters as they are shown."""
dead_letter_groups_of = to_core(DeadLetterGroupsReply, DeadLetterGroups)
"""The groups that were shown."""


@derived(Overview)
class OverviewReply(DerivedRecord, frozen=True, kw_only=True):
    """What a namespace is doing, at `now` and since `since`, in buckets of `bucket_s`. The last
    bucket is still going on. `wait` is from ready to claimed, `run` from the start to the end of
    the attempt that succeeded. A number of jobs as large as its limit means "that many or more".
    [OB28]"""


overview_reply = to_wire(Overview, OverviewReply)
"""An overview as it is shown."""
overview_of = to_core(OverviewReply, Overview)
"""The overview that was shown."""
