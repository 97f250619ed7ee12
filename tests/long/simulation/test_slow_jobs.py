"""Slow jobs without a straggler, on the whole path: what is reported, about whom, what is proposed, what is
not."""

from datetime import timedelta

import pytest

from healer.detection.fleet_figures import FleetFigures
from healer.model import Figure, IncidentState, NodeFigures, RunState
from tests.support.loop import CLUSTER, START, name
from tests.support.stepping import Stepping

#: What is learned of each rank, and the job's warm-up.
WELL_S = 360.0


def proposed(site: Stepping) -> list[str]:
    return [one.id for one in site.runs if one.playbook == "bisect"]


@pytest.mark.parametrize(
    ("change", "what"),
    [
        ({"collective_s": 2.4}, "all ranks wait longer for communication: the network"),
        ({"data_s": 1.6}, "all ranks wait longer for data: storage"),
        ({"compute_s": 5.4}, "all ranks compute longer: clocks, power, cooling"),
    ],
)
def test_slowness_of_all_ranks_is_reported_and_no_node_is_blamed(change: dict[str, float], what: str) -> None:
    site = Stepping()
    hit = site.begin(range(1, 9))
    site.begin(range(9, 17))
    site.train(WELL_S)
    assert site.found == []
    hit.change(**change)
    incident = site.train_until_found("slowness-shared", 180)
    assert incident is not None and incident.root.job == hit.id and what in incident.evidence[0].text
    site.train(300)
    assert {one.component.job for one in site.found} == {hit.id} and site.blamed() == set()
    assert site.runs == [] and site.scheduler.writes == []


def test_a_node_slow_from_the_start_of_a_small_job_is_found_by_other_jobs() -> None:
    site = Stepping()
    for first in (1, 5):
        site.begin(range(first, first + 4))
    site.train(WELL_S)
    site.slow(11, 1.1)
    site.slow(12, 1.1)
    site.begin(range(9, 13))  # two of four: they cannot be distinguished from the other two
    incident = site.train_until_found("slower-than-elsewhere", 400)
    assert incident is not None and "% more compute per unit of work" in incident.evidence[0].text
    site.train(200)
    assert site.blamed() == {name(11), name(12)}
    assert site.scheduler.writes == []


def test_a_slow_job_of_whole_steps_names_its_suspect_and_the_search_by_halves_proves_it() -> None:
    """Node 3 begins to be slow amid two jobs, one after the other: the second one's incident says so. A
    person lets the proposed search go; it waits for the job's end, and names the node."""
    site = Stepping()
    first = site.begin(range(1, 9), whole=True)
    site.train(WELL_S)
    site.slow(3, 1.3)
    incident = site.train_until_found("job-slow", 180)
    assert incident is not None and incident.affected == () and len(proposed(site)) == 1
    site.end(first)
    site.slow(3)
    site.train(420)
    assert site.open_incidents == [] and site.run_named(proposed(site)[0]).state is not RunState.running

    second = site.begin([3, *range(9, 16)], whole=True)
    site.train(WELL_S)
    site.slow(3, 1.3)
    incident = site.train_until_found("job-slow", 240)
    assert incident is not None and [one.node for one in incident.affected] == [name(3)]
    run = proposed(site)[-1]
    site.approve(run)
    site.train(120)
    assert site.run_named(run).state is RunState.running and site.groups() == []
    site.end(second)
    site.train(400)
    assert site.run_named(run).state is RunState.done, site.run_named(run).question
    assert site.verdict(run)["slow"] == [name(3)]
    (node,) = site.open_incidents
    assert (node.fault, node.root.node, node.jobs_hit) == ("node-test:together", name(3), (second.id,))
    job = next(one for one in site.incidents if one.id == incident.id)
    assert job.state is IncidentState.resolved
    assert set(site.scheduler.writes) == {"submit"} and timedelta(0) < site.now - incident.opened


def test_node_with_slow_tests_is_reported_suspected_first_and_searched_first() -> None:
    figures_by_node = {one: 610.0 if one == 5 else 695.0 + one % 7 for one in range(1, 33)}
    figures = [
        NodeFigures(name(one), {"gemm_tflop_per_s": Figure(figures_by_node[one], START)})
        for one in figures_by_node
    ]
    site = Stepping(figures=FleetFigures(CLUSTER, lambda _: figures, lambda *_: None))
    job = site.begin(range(1, 9), whole=True)
    site.train(WELL_S)
    (low,) = site.open_incidents
    assert (low.rule, low.root.node, low.run) == ("slower-than-fleet", name(5), None)
    site.slow(5, 1.3)
    slow = site.train_until_found("job-slow", 180)
    assert slow is not None and [one.node for one in slow.affected] == [name(5)]
    (run,) = proposed(site)
    site.approve(run)
    site.train(10)
    site.end(job)
    site.train(400)
    doubt = next(one.data["doubt"] for one in site.log(run, "halves") if one.data.get("doubt"))
    assert list(doubt["named"]) == [name(5)] and site.verdict(run)["slow"] == [name(5)]
    assert set(site.scheduler.writes) == {"submit"}


def test_jobs_that_only_save_evaluate_or_pause_raise_nothing() -> None:
    site = Stepping()
    for first, whole in ((1, False), (9, True), (13, False)):
        site.begin(range(first, first + 4), title="whole" if whole else "pretrain", whole=whole)
    site.train(1800)
    assert site.found == [] and site.incidents == []
