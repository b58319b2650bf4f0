"""The benchmark: table, plot and JSON from made-up rounds, and a tiny session without peers."""

from pathlib import Path
from xml.etree import ElementTree

import msgspec
import pytest

from bench.contestants import FLUSHES, Contestant, field
from bench.harness import Figure, Target
from bench.peers import HERE
from bench.processes import Started, process_table, tree
from bench.queues import SHAPES, TARGETS, Rounds, section, versions
from bench.report import Report, as_json, as_markdown, as_svg, from_json, joined
from bench.sessions import Measured, Session, Sizes, percentile
from bench.sites import site
from tests.support.waiting import until

TINY = Sizes(jobs=20, singles=2, probes=2, busy=4, idle_s=0.1)


def measured(per_s: float) -> Measured:
    return Measured(
        drain_per_s=per_s,
        drain_cpu_us=1e6 / per_s,
        single_per_s=per_s,
        single_cpu_us=1.0,
        bulk_per_s=per_s,
        bulk_cpu_us=1.0,
        idle_p50_ms=2.0,
        idle_p95_ms=3.0,
        busy_p50_ms=4.0,
        busy_p95_ms=5.0,
        idle_cpu_percent=0.0,
    )


def contestant(beginning: str) -> Contestant:
    return next(each for each in field() if each.name.startswith(beginning))


def report(contestants: list[Contestant], rounds: Rounds, left_out: dict[str, str]) -> Report:
    return Report(
        date="2026-01-01",
        machine="a <machine>",
        rounds=3,
        is_quick=True,
        load_before=0.0,
        load_after=0.0,
        versions={"huey": "1.0"},
        sections=tuple(section(shape, contestants, rounds, left_out) for shape in SHAPES),
        explanations=(),
        problems=(),
    )


@pytest.fixture
def made_up() -> Report:
    tenure, huey, rq = contestant("Tenure, SQLite"), contestant("Huey"), contestant("RQ")
    rounds = {
        tenure.name: [measured(per_s) for per_s in (200.0, 400.0, 900.0)],
        huey.name: [measured(per_s) for per_s in (100.0, 100.0, 300.0)],
        rq.name: [],
    }
    return report([tenure, huey, rq], rounds, {rq.name: "there is no redis-server"})


def test_a_line_has_the_median_the_spread_the_ratio_to_its_peer_and_the_cpu(
    made_up: Report,
) -> None:
    text = as_markdown(made_up)

    expected = (
        "1 process** | 400.0 (200.0–900.0) | 3.00× Huey (2.00–4.00); ≥ 1.5×: met |"
        " 2,500 µs (1,110–5,000) |"
    )
    assert expected in text


def test_enqueueing_is_shown_by_store_and_says_who_has_no_call_for_many(made_up: Report) -> None:
    text = as_markdown(made_up)

    assert "| **Tenure, SQLite** | 400.0 (200.0–900.0) | 3.00× Huey, one by one" in text


def test_a_queue_that_was_left_out_has_a_line_that_says_why(made_up: Report) -> None:
    line = "| RQ, appendfsync everysec, 1 process | left out: there is no redis-server |"
    assert line in as_markdown(made_up)


def test_the_plot_is_well_formed_and_has_a_bar_for_every_line_with_figures(
    made_up: Report,
) -> None:
    root = ElementTree.fromstring(as_svg(made_up))  # noqa: S314 - we wrote it ourselves

    bars = root.findall("{http://www.w3.org/2000/svg}rect")
    lines = [line for each in made_up.sections for line in each.lines if line.figure]
    assert len(bars) == len(lines) > 0


def test_the_json_has_every_figure_of_every_round(made_up: Report) -> None:
    assert msgspec.json.decode(as_json(made_up), type=Report) == made_up


def test_reports_of_several_runs_are_joined(made_up: Report) -> None:
    other = msgspec.structs.replace(made_up, date="2026-01-02", is_quick=False)

    both = joined([made_up, from_json(as_json(other))])

    assert both.sections == made_up.sections + other.sections
    assert "2026-01-01, quick run" in both.facts
    assert "2026-01-02, 3 rounds" in both.facts


def test_a_ratio_below_its_target_is_not_met() -> None:
    assert Target(at_least=0.5).is_met_by(Figure((0.5,)))
    assert not Target(at_least=0.5).is_met_by(Figure((0.49,)))
    assert not Target(at_most=2.0).is_met_by(Figure((2.01,)))


def test_every_target_is_that_of_a_contestant() -> None:
    known = {(shape.key, each.name) for shape in SHAPES for each in field()}

    assert known >= TARGETS.keys()


def test_every_peer_has_a_module_and_pinned_requirements() -> None:
    peers = {each.queue for each in field() if not each.is_ours}

    assert set(versions()) == peers
    for each in field():
        assert (HERE / "peer" / f"queue_{each.queue}.py").exists()
        assert any(each.beside == other.name for other in field())


def test_each_queue_on_redis_is_measured_with_both_ways_of_flushing() -> None:
    """Only with `always` Redis keeps what it acknowledged, as the databases beside it do."""
    on_redis = [each for each in field() if each.store == "redis"]

    for queue in {each.queue for each in on_redis}:
        assert {each.appendfsync for each in on_redis if each.queue == queue} == {*FLUSHES}
    assert {each.appendfsync for each in on_redis if each.is_in_quick} == {*FLUSHES}


def test_a_percentile_is_a_value_that_was_measured() -> None:
    assert percentile([3.0, 1.0, 2.0], 95) == 3.0
    assert percentile(list(range(1, 101)), 95) == 95


@pytest.mark.process
def test_a_session_measures_a_real_worker_and_verifies_its_history(tmp_path: Path) -> None:
    tenure = contestant("Tenure, SQLite, async lane, 1")

    with site(tenure, None, tmp_path) as at:
        found = Session(tenure, at, TINY, tmp_path).run()

    assert all(value is not None for value in msgspec.structs.astuple(found))
    text = as_markdown(report([tenure], {tenure.name: [found]}, {}))
    assert text.count(tenure.producer_name) == len(SHAPES)


@pytest.mark.process
def test_processes_of_a_benchmark_are_gone_afterwards_with_their_children(tmp_path: Path) -> None:
    with Started(tmp_path) as started:
        started.start(["sh", "-c", "sleep 60 & wait"], {}, cwd=tmp_path)
        pids = tree(started.pids, process_table())

    assert pids
    until(lambda: not set(pids) & set(process_table()), "they are gone")
