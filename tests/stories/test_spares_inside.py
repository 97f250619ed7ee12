"""A simulated job that holds spare nodes inside its allocation goes on without a bad one."""

from collections.abc import Iterable
from dataclasses import dataclass
from typing import TypeVar

import msgspec
import pytest

from healer.actions.hang import is_quiet
from healer.model import Ruleset
from healer.model.goodput import Spent
from healer.sim.fleet.menders import Healer, Nobody, with_rules
from healer.sim.fleet.people import People
from healer.sim.fleet.playing import Happenings, play, simulate
from healer.sim.fleet.scenario import FaultSpec, Happening, Repair, Scenario, load
from healer.sim.fleet.score import Card, Inside
from healer.sim.fleet.site import Site
from healer.sim.fleet.windows import Windows
from tests.support.loop import shipped

T = TypeVar("T")
HOUR_S = 3600.0
NODES = 8
WORKER, SPARE = "gpu0005", "gpu0009"


def fault(at_h: float, node: str, way: str = "off-the-bus") -> Happening:
    return Happening(at_h=at_h, what="fault", way=way, place=node, nodes=1)


def small(*happenings: Happening, spares: int = 2, days: float = 0.2, nodes: int = NODES) -> Scenario:
    """Twelve nodes more than the job works on, no faults but these, repairs of an hour."""
    usual = load("llama3-54d-spares", days=days)
    return msgspec.structs.replace(
        usual,
        nodes=nodes + 12,
        job=msgspec.structs.replace(usual.job, nodes=nodes, spares=spares),
        fillers=(),
        faults=FaultSpec(per_node_day=0.0),
        happenings=happenings,
        planned_stops_per_day=0.0,
        people=msgspec.structs.replace(usual.people, sigma=0.0),
        telemetry=msgspec.structs.replace(usual.telemetry, innocent_per_day=0.0),
        repair=Repair(median_h=1.0, p90_h=1.5),
    )


def rules_of(scenario: Scenario) -> Ruleset:
    guards = {**scenario.guards, "share_per_hour": 1.0, "max_share": 0.5, "min_service_share": 0.3}
    return msgspec.structs.replace(shipped(), guards=msgspec.structs.replace(shipped().guards, **guards))


def healed(scenario: Scenario, seed: int = 1) -> Card:
    return simulate(scenario, rules_of(scenario), seed, "healer")


def inside(card: Card) -> Inside:
    assert isinstance(card.inside, Inside)
    return card.inside


@dataclass
class Seen:
    """What the job did at each moment."""

    site: Site
    doing: list[tuple[float, Spent]]
    nodes: list[tuple[float, int]]


def watched(scenario: Scenario) -> Seen:
    site = Site(scenario, 1)
    healer = site.mender = Healer(site, with_rules(rules_of(scenario), scenario.rules))
    people, windows = People(site, healer), Windows(site, healer)
    seen = Seen(site, [], [])

    def look() -> None:
        at_s = (site.now - scenario.start).total_seconds()
        note(seen.doing, at_s, site.work.doing)
        note(seen.nodes, at_s, len(site.snapshot().jobs[site.job].nodes))

    Happenings(site)
    site.begin()
    play(site, (windows.look, people.look, look))
    return seen


def note(changes: list[tuple[float, T]], at_s: float, value: T) -> None:
    if not changes or changes[-1][1] != value:
        changes.append((at_s, value))


def after(changes: Iterable[tuple[float, object]], at_s: float) -> list[tuple[float, object]]:
    return [(round(moment - at_s, 1), value) for moment, value in changes if moment >= at_s]


def test_the_job_goes_on_without_the_node_and_loses_what_no_checkpoint_holds() -> None:
    seen = watched(small(fault(2.0, WORKER)))
    spec, work = seen.site.scenario.job, seen.site.work
    # The line arrives after 0.2 s and settles for 2 s; the workers meet in 10 s and start in 90 s.
    assert after(seen.doing, 2 * HOUR_S) == [
        (0.0, Spent.hung),
        (2.2, Spent.starting),
        (102.2, Spent.productive),
    ]
    job = seen.site.snapshot().jobs[seen.site.job]
    assert (job.restarts, len(job.nodes), WORKER in job.nodes) == (0, NODES + 1, False)
    assert SPARE in seen.site.workers(job) and len(seen.site.workers(job)) == NODES
    cycle_s = spec.checkpoint_s + spec.checkpoint_stall_s
    assert work.total(Spent.lost) == pytest.approx((2 * HOUR_S - spec.startup_s) % cycle_s)
    (shrunk_s, _) = after(seen.nodes, 2 * HOUR_S)[0]
    assert isinstance(shrunk_s, float) and 12.2 <= shrunk_s < 60, "not before the others are at work"


def test_a_fault_on_a_spare_stops_nothing() -> None:
    quiet, card = healed(small()), healed(small(fault(2.0, SPARE)))
    assert (card.faults, card.stopped_job, card.drains, card.wrong_drains) == (1, 0, 1, 0)
    assert (inside(card).swaps, inside(card).requeues) == (1, 0)
    assert card.effective == quiet.effective and card.lost_gpu_hours == quiet.lost_gpu_hours


def test_without_a_spare_left_the_job_is_requeued_and_has_its_first_size_again() -> None:
    faults = [fault(1.0 + number / 2, node) for number, node in enumerate(("gpu0003", "gpu0004", "gpu0006"))]
    seen = watched(small(*faults))
    job = seen.site.snapshot().jobs[seen.site.job]
    assert (seen.site.launcher.swaps, job.restarts) == (2, 1)
    assert len(job.nodes) == NODES + 2 and seen.site.launcher.left == frozenset()
    sizes = [size for _, size in seen.nodes]
    assert sizes == [NODES + 2, NODES + 1, NODES, 0, NODES + 2]


def test_a_spare_that_failed_and_left_takes_no_place() -> None:
    """With one spare: it fails, then a worker does."""
    seen = watched(small(fault(1.0, SPARE), fault(2.0, WORKER), spares=1))
    assert (seen.site.launcher.swaps, seen.site.snapshot().jobs[seen.site.job].restarts) == (1, 1)


def test_the_node_that_left_is_repaired_and_returned_while_the_job_runs() -> None:
    seen = watched(small(fault(1.0, WORKER), days=0.5))
    assert not seen.site.slurm.node(WORKER).held
    (record,) = seen.site.records.values()
    assert record.repaired_at is not None and record.returned_at is not None
    job = seen.site.snapshot().jobs[seen.site.job]
    assert (job.restarts, WORKER in job.nodes) == (0, False)
    assert [value for _, value in after(seen.doing, HOUR_S + 103)] == [], "nothing stopped it since"


def test_nodes_show_the_job_as_it_is() -> None:
    site = watched(small(fault(2.0, WORKER), days=0.1)).site
    shown = {node: site.nodes.job_on_node(node, site.job) for node in ("gpu0001", "gpu0010", WORKER)}
    assert {node: seen.processes for node, seen in shown.items()} == {"gpu0001": 9, "gpu0010": 1, WORKER: 0}
    assert all(seen.counted for seen in shown.values())
    assert [is_quiet(shown[node].gpus) for node in ("gpu0001", "gpu0010")] == [False, True]


def test_spares_that_idle_are_counted_apart_from_the_work() -> None:
    card = healed(small(fault(2.0, WORKER)))
    hours = 24 * card.days
    assert card.job_gpu_hours == pytest.approx(NODES * 8 * hours, rel=1e-3)
    # Two spares, and one less from the shrink on.
    assert inside(card).spare_gpu_hours == pytest.approx(8 * (2 * 2 + hours - 2), rel=0.01)
    assert sum(card.spent.values()) == pytest.approx(1.0, abs=1e-3)


def test_a_node_that_does_not_answer_cannot_read_that_it_is_to_leave() -> None:
    """Its kernel panics: healer drains it and asks in vain whether the job has left it."""
    seen = watched(small(fault(2.0, WORKER, "panic")))
    hung, queued = after(seen.doing, 2 * HOUR_S)[:2]
    assert (hung[1], queued[1]) == (Spent.hung, Spent.queued)
    assert seen.site.launcher.swaps == 0


def test_the_batch_host_does_not_leave() -> None:
    seen = watched(small(fault(2.0, "gpu0001")))
    assert (seen.site.launcher.swaps, seen.site.snapshot().jobs[seen.site.job].restarts) == (0, 1)


@pytest.mark.heavy
@pytest.mark.parametrize("way", ["slow", "corruption"])
def test_a_spare_does_not_show_what_only_work_shows(way: str) -> None:
    card = healed(small(fault(2.0, "gpu0041", way), nodes=40))
    assert (card.faults, card.drains, card.wrong_drains) == (1, 0, 0)
    assert card.spent[Spent.slowed] == 0


@pytest.mark.heavy
def test_a_slow_spare_is_found_once_it_takes_a_place() -> None:
    card = healed(small(fault(0.3, "gpu0041", "slow"), fault(2.0, WORKER), nodes=40))
    assert card.incidents["straggler"] == 1
    assert (card.undiagnosed, card.wrong_drains) == (0, 0)
    assert card.spent[Spent.slowed] > 0


def test_where_healer_has_drained_nothing_no_launcher_leaves() -> None:
    scenario = small(fault(2.0, WORKER))
    site = Site(scenario, 1)
    site.mender = Nobody(site)
    Happenings(site)
    site.begin()
    play(site)
    assert (site.launcher.swaps, site.snapshot().jobs[site.job].restarts) == (0, 1)


@pytest.mark.heavy
def test_the_same_seed_gives_the_same_card() -> None:
    scenario = load("llama3-54d-spares", days=0.5)
    first, again = (simulate(scenario, rules_of(scenario), 5, "healer") for _ in range(2))
    assert msgspec.json.encode(first) == msgspec.json.encode(again)
    assert inside(first).spare_gpu_hours > 0


def test_the_card_of_a_job_without_spares_says_nothing_of_them() -> None:
    card = healed(small(spares=0))
    assert b"inside" not in msgspec.json.encode(card)
