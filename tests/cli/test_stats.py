"""`tenure stats`: the events of a span, and how long the jobs of each kind waited and ran."""

import json

from tenure.coordinator.service import Coordinator
from tenure.core.commands import Complete
from tenure.core.ids import RequestId
from tenure_conformance.spec import spec
from tests.cli.harness import Run, enqueued, started


@spec("OB25", "OB52")
def test_by_kind_it_also_shows_how_long_jobs_waited_and_ran(run: Run, serving: Coordinator) -> None:
    enqueued(run, "mail")
    serving.execute(Complete(**started(serving), request_id=RequestId("done")))
    enqueued(run, "scan")

    shown = run("stats", "--by", "kind")
    document = json.loads(run("stats", "--by", "kind", "--since", "50m", "--json").stdout)

    assert "mail  4\n" in shown.stdout
    assert "KIND  WAIT P50  WAIT P95  RUN P50  RUN P95" in shown.stdout
    assert "waits and runs of the last 24h, from " in shown.stderr
    durations = document["durations"]
    assert durations["range"] == "1h"
    [mail] = durations["kinds"]
    assert mail["kind"] == "mail"
    assert mail["wait"]["samples"] == mail["run"]["samples"] == 1
    assert mail["wait"]["p50_s"] == mail["wait"]["p95_s"] >= 0
    assert mail["run"]["p50_s"] == mail["run"]["p95_s"] >= 0


@spec("OB52")
def test_a_span_that_ended_and_other_groups_have_no_durations(
    run: Run, serving: Coordinator
) -> None:
    enqueued(run, "mail")
    serving.execute(Complete(**started(serving), request_id=RequestId("done")))

    past = run("stats", "--by", "kind", "--until", "0s")
    by_type = run("stats")
    document = json.loads(run("stats", "--json").stdout)

    assert "WAIT P50" not in past.stdout + by_type.stdout
    assert document["durations"] is None
