"""The reference page is the table of metrics, and the table is what is exposed."""

import re
from pathlib import Path

from prometheus_client.parser import text_string_to_metric_families

from tenure.telemetry.catalogue import METRICS, Sort
from tenure.telemetry.counts import Counts
from tenure.telemetry.metrics import Gauge, Metrics
from tenure.telemetry.security import SecurityLog
from tenure.worker.session.messages import Stats
from tenure_conformance.harness import Kit, MemoryFactory
from tools.metrics_reference import page

PAGE = Path(__file__).parents[2] / "docs/reference/metrics.md"


def test_the_page_is_written_from_the_table() -> None:
    assert PAGE.read_text(encoding="utf-8") == page(), "run `make docs-generated`"


def test_what_is_exposed_is_what_the_table_says() -> None:
    kit = Kit(MemoryFactory())
    counts = Counts(sweep_interval_s=1.0)
    metrics = Metrics(
        counts,
        gauge=Gauge(lambda namespace: kit.store.views.measure(queues=1, jobs=1)),
        worker=lambda: dict.fromkeys(Stats.__struct_fields__, 0),
        security=SecurityLog().counts,
    )

    families = {
        family.name: (family.type, family.documentation)
        for family in text_string_to_metric_families(metrics.text().decode())
    }
    kit.close()

    assert families == {
        re.sub("_total$", "", metric.name): (metric.sort.value, metric.help) for metric in METRICS
    }


def test_every_query_uses_the_metric_it_is_shown_with() -> None:
    for metric in METRICS:
        name = f"{metric.name}_bucket" if metric.sort is Sort.HISTOGRAM else metric.name
        assert re.search(rf"\b{name}\b", metric.query), metric.name
        for grouped in re.findall(r"by \(([^)]*)\)", metric.query):
            assert set(grouped.split(", ")) - {"le"} <= set(metric.labels), metric.name


def test_every_histogram_has_a_query_for_the_median_and_one_for_p95() -> None:
    for metric in METRICS:
        if metric.sort is Sort.HISTOGRAM:
            quantiles = re.findall(
                r"histogram_quantile\(([0-9.]+), sum by \(kind, le\)", metric.query
            )
            assert quantiles == ["0.5", "0.95"], metric.name
