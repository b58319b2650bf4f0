"""The dashboard and the alert rules of examples/grafana use metrics as the catalogue has them."""

import json
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml

from tenure.core.vocabulary import EventType
from tenure.telemetry.catalogue import METRICS, TRANSITIONS, Metric, Sort
from tests.support.cases import each_case
from tests.support.promql import NotUnderstood, Use, uses

ROOT = Path(__file__).parents[2]
FOLDER = ROOT / "examples" / "grafana"
DASHBOARD: dict[str, Any] = json.loads((FOLDER / "dashboard.json").read_text())
RULES: list[dict[str, Any]] = [
    rule
    for group in yaml.safe_load((FOLDER / "alerts.yml").read_text())["groups"]
    for rule in group["rules"]
]
BY_NAME = {metric.name: metric for metric in METRICS}
COUNTED_BY = frozenset({"rate", "increase"})


def panel_expressions() -> Iterator[str]:
    for panel in DASHBOARD["panels"]:
        yield from (target["expr"] for target in panel.get("targets", ()))


EXPRESSIONS = [*panel_expressions(), *(rule["expr"] for rule in RULES)]


def problems(expression: str) -> list[str]:
    """What is wrong with an expression, by the catalogue."""
    return [problem for use in uses(expression) for problem in _problems(use)]


def _problems(use: Use) -> Iterator[str]:
    name = re.sub(r"_(bucket|sum|count)$", "", use.metric)
    metric = BY_NAME.get(use.metric) or BY_NAME.get(name)
    if metric is None:
        yield f"there is no metric {use.metric}"
        return
    is_part = metric.sort is Sort.HISTOGRAM and use.metric != metric.name
    if (metric.sort is Sort.HISTOGRAM) != is_part:
        yield f"{use.metric} is not a series of {metric.name}"
    labels = {*metric.labels, *(["le"] if use.metric.endswith("_bucket") else [])}
    for label in {*use.matchers, *(each for group in use.grouped_by for each in group)} - labels:
        yield f"{use.metric} has no label {label}"
    yield from _misuses(use, metric)


def _misuses(use: Use, metric: Metric) -> Iterator[str]:
    first = use.functions[0] if use.functions else ""
    is_counted = first in COUNTED_BY
    if metric.sort is Sort.GAUGE and is_counted:
        yield f"{first}() of the gauge {metric.name}"
    if metric.sort is not Sort.GAUGE and not is_counted:
        yield f"{use.metric} only grows: it needs rate() or increase()"
    if use.is_range != (first in {*COUNTED_BY, "delta"}):
        yield f"{use.metric}: a range belongs to rate, increase and delta"
    if "histogram_quantile" in use.functions and (
        not use.metric.endswith("_bucket") or "le" not in use.grouped_by[0]
    ):
        yield f"histogram_quantile() needs buckets by le, not {use.metric}"
    if metric.sort is Sort.GAUGE and "sum" in use.functions and "max" not in use.functions:
        yield f"{metric.name} has the same value in every process: max before sum"


@each_case("expression", EXPRESSIONS)
def test_an_expression_uses_metrics_as_the_catalogue_has_them(expression: str) -> None:
    assert uses(expression)
    assert problems(expression) == []


@each_case(
    ("expression", "problem"),
    [
        ("rate(tenure_nothing_total[5m])", "there is no metric tenure_nothing_total"),
        ("rate(tenure_queue_depth[5m])", "rate() of the gauge tenure_queue_depth"),
        ("sum(tenure_claims_total)", "it needs rate() or increase()"),
        ("rate(tenure_claims_total)", "a range belongs to rate, increase and delta"),
        ("max(tenure_queue_depth[5m])", "a range belongs to rate, increase and delta"),
        ("sum by (queue) (rate(tenure_claims_total[5m]))", "has no label queue"),
        ('max(tenure_queue_depth{kind="a"})', "has no label kind"),
        ("sum(tenure_queue_depth)", "max before sum"),
        ("rate(tenure_wait_seconds[5m])", "is not a series of tenure_wait_seconds"),
        (
            "histogram_quantile(0.5, sum by (kind) (rate(tenure_wait_seconds_bucket[5m])))",
            "needs buckets by le",
        ),
        (
            "histogram_quantile(0.5, sum by (kind) (rate(tenure_wait_seconds_sum[5m])))",
            "needs buckets by le",
        ),
    ],
)
def test_a_wrong_expression_is_found(expression: str, problem: str) -> None:
    assert any(problem in each for each in problems(expression)), problems(expression)


@pytest.mark.parametrize(
    "expression",
    ["sum(", "tenure_x[5m", "sum by kind (tenure_running)", "label_replace(tenure_running)", "a b"],
)
def test_what_is_not_understood_is_refused(expression: str) -> None:
    with pytest.raises(NotUnderstood):
        uses(expression)


def test_the_catalogue_s_own_queries_pass() -> None:
    for metric in METRICS:
        for line in metric.query.splitlines():
            assert problems(line) == [], line


def test_event_types_in_matchers_are_types_of_events() -> None:
    words = [
        word
        for expression in EXPRESSIONS
        for use in uses(expression)
        if use.metric == TRANSITIONS.name and "type" in use.matchers
        for word in use.matchers["type"].split("|")
    ]

    assert words
    assert set(words) <= {each.value for each in EventType}


def test_legends_name_labels_that_the_series_have() -> None:
    for panel in DASHBOARD["panels"]:
        for target in panel.get("targets", ()):
            kept = {label for use in uses(target["expr"]) for label in use.grouped_by[-1]}
            named = set(re.findall(r"{{(\w+)}}", target["legendFormat"]))
            assert named <= kept, target


def test_panels_do_not_overlap_and_have_ids_of_their_own() -> None:
    taken: set[tuple[int, int]] = set()
    for panel in DASHBOARD["panels"]:
        at = panel["gridPos"]
        assert at["x"] + at["w"] <= 24
        cells = {
            (at["x"] + column, at["y"] + row) for column in range(at["w"]) for row in range(at["h"])
        }
        assert not cells & taken, panel["title"]
        taken |= cells
    ids = [panel["id"] for panel in DASHBOARD["panels"]]
    assert len(set(ids)) == len(ids)


def test_every_metric_of_the_catalogue_is_on_the_dashboard_or_has_an_alert() -> None:
    shown = {re.sub(r"_bucket$", "", use.metric) for each in EXPRESSIONS for use in uses(each)}

    # Renewals and releases are normal; left out queues are a warning of `tenure doctor`.
    unshown = {"tenure_lease_renewals_total", "tenure_releases_total", "tenure_queues_left_out"}
    assert BY_NAME.keys() - shown == unshown


def test_the_guide_s_alerts_are_rules() -> None:
    page = (ROOT / "docs" / "guide" / "production.md").read_text()
    in_guide = re.findall(r"^\| `([^`]+)` \|", page.partition("## Alerts")[2], re.MULTILINE)

    assert len(in_guide) >= 10
    assert set(in_guide) <= {rule["expr"] for rule in RULES}


def test_each_rule_says_what_happened_and_what_to_do() -> None:
    names = [rule["alert"] for rule in RULES]

    assert len(set(names)) == len(names)
    for rule in RULES:
        assert rule["labels"]["severity"] in ("warning", "critical")
        assert rule["annotations"].keys() == {"summary", "description"}
        kept = {label for use in uses(rule["expr"]) for label in (use.grouped_by or ((),))[-1]}
        text = "".join(rule["annotations"].values())
        assert set(re.findall(r"\$labels\.(\w+)", text)) <= kept, rule["alert"]
