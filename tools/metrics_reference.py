"""Prints docs/reference/metrics.md, made from the table of metrics."""

import sys

from tenure.telemetry.catalogue import METRICS, Metric, Source
from tenure.telemetry.counts import BOUNDS_S, MAX_KINDS, MAX_NAMESPACES
from tenure.telemetry.metrics import MAX_COUNTED, MAX_QUEUES, MEASURE_EVERY_S

_INTRODUCTION = f"""\
# Metrics

This page is written from the table of metrics by `make docs-generated`.

A server has them at `/metrics`, for tokens of operators and viewers: give Prometheus a viewer's
token as the `credentials_file` of its `authorization`. A worker on a database exposes
its own with `tenure worker --metrics-port 9464`, on 127.0.0.1 unless you give `--metrics-host`, and
without a token. An application shows its own in a registry of prometheus_client:
`Tenure(metrics=True)`. Both need `pip install 'path/to/the/clone[metrics]'`.

## Where the numbers come from

**This process**: counters and histograms of what this process committed since it started. A server
commits for all of its clients and workers; of several servers or workers on one database, take the
sum. Jobs that are enqueued or completed in a transaction of your own are not counted, nor is a
write that the database committed without answering; the log has them.

**The store**: gauges that are read from the database at a scrape, at most every
{MEASURE_EVERY_S:g} seconds. Every process that shows them shows the same, so take `max`, not `sum`.
Counting stops at {MAX_COUNTED:,} jobs of a sort in a queue, and {MAX_COUNTED:,} means "or more"; at
most {MAX_QUEUES} queues are measured, those with jobs first. Of waiting jobs the first
{MAX_COUNTED:,} in the order of claims are counted.

**This worker**: what the supervisor of a `tenure worker` saw and did. A worker of a server has only
these; the rest is the server's.

Labels are bounded: the first {MAX_KINDS} kinds and the first {MAX_NAMESPACES} namespaces that a
process meets have numbers of their own, later ones are counted as `(other)`. A token sees the
numbers of its own namespace, and none at all if it is limited to queues or kinds.

The buckets of the histograms end at {", ".join(f"{bound:g}" for bound in BOUNDS_S)} seconds.
"""

_TITLES = {
    Source.PROCESS: "Of this process",
    Source.STORE: "Of the store",
    Source.WORKER: "Of this worker",
    Source.SERVER: "Of this server",
}


def page() -> str:
    """The whole page."""
    parts = [_INTRODUCTION]
    for source, title in _TITLES.items():
        parts.append(f"\n## {title}\n")
        parts += [_section(metric) for metric in METRICS if metric.source is source]
    return "".join(parts)


def _section(metric: Metric) -> str:
    labels = ", ".join(f"`{label}`" for label in metric.labels)
    told = f" with the labels {labels}" if labels else ""
    return (
        f"\n### `{metric.name}`\n\n"
        f"A {metric.sort}{told}. {metric.help}\n\n"
        f"```promql\n{metric.query}\n```\n"
    )


if __name__ == "__main__":
    sys.stdout.write(page())
