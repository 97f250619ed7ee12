"""`healer simulate`, scaled down: each scenario shows what it must; the same seed gives the same bytes."""

import io
from collections import Counter
from collections.abc import Mapping
from functools import lru_cache
from pathlib import Path

import msgspec
import pytest

from healer.bootstrap.offline import card_text, compared, entries_in, load, replayed, rules_for, simulated
from healer.model import Ruleset
from healer.model.goodput import Spent
from healer.sim.fleet.playing import MENDERS, simulate
from healer.sim.fleet.scenario import BadScenario, FaultSpec, Happening, Scenario
from healer.sim.fleet.score import Card
from tests.support.loop import SHIPPED, shipped

SEED = 1


def rules_of(scenario: Scenario) -> Ruleset:
    given = {name: value for name, value in scenario.guards.items() if name != "spares"}
    guards = msgspec.structs.replace(shipped().guards, **given)
    return msgspec.structs.replace(shipped(), guards=guards)


@lru_cache
def healed(name: str) -> Card:
    scenario = load(name, days=0.16)
    return simulate(scenario, rules_of(scenario), SEED, "healer")


def scaled(
    scenario: Scenario, *, nodes: int, days: float, more: Mapping[str, object] | None = None
) -> Scenario:
    """A small one of the same kind: the job takes the same share of the fleet."""
    share = scenario.job.nodes / scenario.nodes
    job = msgspec.structs.replace(scenario.job, nodes=max(1, int(nodes * share)))
    small = msgspec.structs.replace(scenario, nodes=nodes, spares=0, days=days, job=job, fillers=())
    return msgspec.structs.replace(small, **(more or {}))


def small(**fields: object) -> Scenario:
    """A day of 64 nodes that fail thirty times as often as Llama 3's."""
    scenario = load("llama3-54d", days=None)
    faults = msgspec.structs.replace(scenario.faults, per_node_day=0.1)
    guards = scenario.guards | {
        "rack_share": 1.0,
        "share_per_hour": 1.0,
        "max_share": 0.2,
        "min_service_share": 0.5,
    }
    more: Mapping[str, object] = {"faults": faults, "guards": guards, **fields}
    return scaled(scenario, nodes=64, days=1.0, more=more)


@lru_cache
def of_small(mender: str) -> Card:
    scenario = small()
    return simulate(scenario, rules_of(scenario), SEED, mender)


# --- the large one, small ---


def test_the_same_seed_gives_the_same_bytes() -> None:
    scenario = small(days=0.5)
    first, again = (simulate(scenario, rules_of(scenario), SEED, "healer") for _ in range(2))
    assert msgspec.json.encode(first) == msgspec.json.encode(again)
    assert card_text(first) == card_text(again)


def test_another_seed_is_another_day() -> None:
    scenario = small(days=0.2)
    assert simulate(scenario, shipped(), 1, "nobody") != simulate(scenario, shipped(), 2, "nobody")


@pytest.mark.parametrize("mender", MENDERS)
def test_gpu_hours_add_up(mender: str) -> None:
    card = of_small(mender)
    kept = (card.spent[Spent.productive] + card.spent[Spent.unsaved]) * card.job_gpu_hours
    assert kept + sum(card.lost_gpu_hours.values()) == pytest.approx(card.job_gpu_hours, rel=1e-3)
    assert sum(card.spent.values()) == pytest.approx(1.0, abs=1e-3)
    assert card.effective == card.spent[Spent.productive]


def test_healer_detects_quickly_without_false_actions() -> None:
    card = of_small("healer")
    assert card.stopped_job >= 3
    assert card.wrong_drains == 0
    assert card.missed == 0
    assert card.stuck == 0
    assert card.detect.median_s is not None
    assert card.detect.median_s < 5


def test_healer_trains_more_than_those_it_is_compared_with() -> None:
    cards = [of_small(mender) for mender in MENDERS]
    assert all(cards[0].effective > other.effective for other in cards[1:])
    assert cards[3].wrong_drains > cards[0].wrong_drains  # a mender that drains at the first sign
    assert [row[0] for row in compared(cards)[1:]] == list(MENDERS)


def test_they_all_meet_the_same_faults() -> None:
    """Up to what was out of service when it came, and what follows from a return."""
    scenario = small(days=0.3)
    rules = rules_of(scenario)
    met = [simulate(scenario, rules, SEED, mender) for mender in ("nobody", "thresholds")]
    assert met[0].by_cause == met[1].by_cause


# --- each of the others ---


def test_a_rack_without_power_is_one_incident_and_no_drain() -> None:
    card = healed("rack-power")
    assert card.faults == 8
    # Slurm misses the nodes before their beats are missed.
    assert card.incidents == {"place-silent": 1, "nodes-offline (part of another)": 1}
    assert card.drains == 0


def test_a_leaf_switch_is_one_root() -> None:
    card = healed("leaf-switch")
    assert card.faults == 16
    assert card.incidents == {
        "leaf-switch": 1,
        "link-drops-of-switch (part of another)": 1,
        "hang": 1,  # the job in its place
    }
    assert card.wrong_drains == 0


def test_roll_out_is_announced_and_drains_no_node() -> None:
    card = healed("driver-rollout")
    assert card.incidents == {"drift": 1}
    assert (card.drains, card.people) == (0, {})


def test_a_storm_of_xid_45_is_one_incident_and_one_drain() -> None:
    card = healed("xid45-storm")
    assert card.fed["kernel lines"] > 1500
    assert card.incidents == {"gpu-lost": 1}
    assert (card.drains, card.wrong_drains) == (1, 0)


def test_a_node_that_is_a_tenth_slower_is_found_and_leaves_at_a_checkpoint() -> None:
    card = healed("slow-node-10pct")
    assert card.incidents == {"straggler": 1}
    assert (card.drains, card.wrong_drains, card.missed) == (1, 0, 0)
    assert card.decide.median_s is not None
    assert card.decide.median_s < 600
    assert card.people == {}


def test_slow_storage_is_the_servers() -> None:
    card = healed("storage-brownout")
    assert card.incidents == {"storage-away": 1}
    assert card.drains == 0
    assert card.spent[Spent.slowed] > 0


def test_while_slurm_is_away_nothing_is_done_and_then_at_once() -> None:
    card = healed("controller-outage")
    assert card.incidents == {"gpu-lost": 1}
    assert (card.drains, card.wrong_drains, card.missed) == (1, 0, 0)
    # The GPU is gone 6 min after Slurm, which is away for 30 min.
    assert card.decide.median_s == pytest.approx(24 * 60, abs=60)


def test_lost_signals_drain_no_node() -> None:
    card = healed("telemetry-loss")
    assert card.incidents == {"signals-lost": 1}
    assert card.drains == 0


def test_a_bad_rule_does_little_harm_before_it_asks_first() -> None:
    scenario = load("bad-rule", days=0.4)
    card = simulate(scenario, rules_of(scenario), SEED, "healer")
    assert 1 <= card.wrong_drains <= 5
    assert card.people["rules fallen back"] == 1
    assert card.incidents["gpu-application"] >= 2 * card.wrong_drains


# --- a hung job ---


def one_fault(way: str, **more: object) -> Card:
    """The large job on 64 nodes, and one fault two hours later. People answer as soon as they usually do.
    `more`: other fields of the scenario."""
    usual = load("llama3-54d", days=None)
    fields = {
        "faults": FaultSpec(per_node_day=0.0),
        "happenings": (Happening(at_h=2.0, what="fault", way=way, place="gpu0005", nodes=1),),
        "planned_stops_per_day": 0.0,
        "people": msgspec.structs.replace(usual.people, sigma=0.0),
        **more,
    }
    return simulate(scaled(usual, nodes=64, days=0.2, more=fields), rules_of(usual), SEED, "healer")


@pytest.mark.parametrize(("way", "within_s"), [("host-memory", 260), ("disk-errors", 260), ("disk", 290)])
def test_a_fault_that_comes_while_the_job_starts_is_found_too(way: str, within_s: float) -> None:
    """A GPU is lost, and a minute later another node fails under the job that starts again."""
    happenings = (
        Happening(at_h=2.0, what="fault", way="off-the-bus", place="gpu0009", nodes=1),
        Happening(at_h=2.0 + 60 / 3600, what="fault", way=way, place="gpu0005", nodes=1),
    )
    card = one_fault(way, happenings=happenings)
    assert (card.incidents["node-stopped-job"], card.drains, card.wrong_drains) == (1, 2, 0)
    # Both are over once the job works again: the later one is found, the job requeued, and started in 90 s.
    assert card.restart.count == 1 and (card.restart.p95_s or 0) < within_s
    assert "taken out by hand" not in card.people


def test_starting_a_test_restarts_the_job_on_the_node() -> None:
    card = one_fault("corruption")
    assert card.people["restarts agreed to"] == 1
    assert card.restart.median_s is not None
    # The answer to the page, and the restart; not the repair of the node, which takes hours.
    assert card.restart.median_s < 15 * 60


def test_telemetry_of_other_nodes_ends_no_incident() -> None:
    """Here windows over sixteen of the 64 nodes are open nearly all the time."""
    often = msgspec.structs.replace(load("llama3-54d").telemetry, samples_per_day=150)
    card = one_fault("corruption", telemetry=often)
    assert card.people["restarts agreed to"] == 1
    assert "taken out by hand" not in card.people


@pytest.mark.parametrize(
    ("way", "within_s"), [("host-memory", 130), ("disk-errors", 130), ("disk", 220), ("port-down", 260)]
)
def test_a_node_whose_own_fault_stops_its_job_is_taken_out_and_the_job_restarted(
    way: str, within_s: float
) -> None:
    """Seconds of simulated time; a disk that dies reports so after 90, a start takes 93."""
    card = one_fault(way)
    assert card.incidents["node-stopped-job"] == 1
    assert (card.drains, card.wrong_drains, card.stuck, card.undiagnosed) == (1, 0, 0, 0)
    assert "approvals" not in card.people
    assert card.restart.median_s is not None
    assert card.restart.median_s < within_s


def test_a_hang_that_ranks_and_gpus_prove_is_restarted_before_the_watchdog() -> None:
    card = one_fault("hang")
    assert (card.incidents, card.people) == ({"hang": 1}, {})
    assert card.restart.median_s is not None and card.restart.median_s < 260


def test_a_job_that_works_again_by_itself_is_not_restarted_by_people() -> None:
    """Where the rule for hangs does not act alone."""
    card = one_fault("hang", rules={})
    assert card.incidents["hang"] == 1
    assert card.people == {"rejections": 1}
    assert card.restart.median_s == pytest.approx(600 + 100, abs=1), "NCCL's watchdog, and a start"


# --- what can be known of a node that does not work ---

#: Not in the large job.
SPARE = "gpu0064"


def soon_noticed() -> dict[str, object]:
    return {"people": msgspec.structs.replace(load("llama3-54d").people, sigma=0.0, notice_h=1.0)}


@pytest.mark.parametrize("way", ["slow", "throttle", "corruption"])
def test_fault_visible_only_in_jobs_goes_unnoticed_on_an_idle_node(way: str) -> None:
    happenings = (Happening(at_h=0.5, what="fault", way=way, place=SPARE, nodes=1),)
    card = one_fault(way, happenings=happenings, **soon_noticed())
    assert (card.faults, card.undiagnosed) == (1, 0)
    assert "taken out by hand" not in card.people


def test_a_fault_on_a_node_that_has_just_come_back_is_measured_too() -> None:
    """Work on the host takes it out for two hours; ten seconds later its port goes down."""
    happenings = (
        Happening(at_h=0.5, what="fault", way="unplanned-work", place=SPARE, nodes=1),
        Happening(at_h=2.5 + 10 / 3600, what="fault", way="port-down", place=SPARE, nodes=1),
    )
    card = one_fault("port-down", happenings=happenings, **soon_noticed())
    assert (card.faults, card.undiagnosed) == (2, 0)
    assert any("port" in rule for rule in card.incidents)


def test_wrong_numbers_from_the_first_step_are_found_where_the_job_has_run_before() -> None:
    """A node that was no part of the job goes wrong; then the job loses another, and starts with this one."""
    happenings = (
        Happening(at_h=0.5, what="fault", way="corruption", place="gpu0062", nodes=1),
        Happening(at_h=2.0, what="fault", way="off-the-bus", place="gpu0009", nodes=1),
    )
    card = one_fault("corruption", happenings=happenings)
    assert card.incidents["result-differs"] == 1
    assert (card.undiagnosed, card.stuck, card.wrong_drains) == (0, 0, 0)


def test_a_slow_node_without_its_peers_in_the_open_window_is_measured_with_them_in_its_job() -> None:
    """Idle among nodes that are out of service it becomes slow; minutes later the job starts on it."""
    happenings = (
        Happening(at_h=1.0, what="fault", way="unplanned-work", place="gpu0041", nodes=23),
        Happening(at_h=1.9, what="fault", way="slow", place=SPARE, nodes=1),
        Happening(at_h=2.0, what="fault", way="off-the-bus", place="gpu0009", nodes=1),
    )
    job = msgspec.structs.replace(load("llama3-54d").job, nodes=40)
    card = one_fault("slow", job=job, happenings=happenings, **soon_noticed())
    assert card.incidents["straggler"] == 1
    assert (card.undiagnosed, card.missed, card.wrong_drains) == (0, 0, 0)


def test_a_fault_while_no_signal_arrives_is_found_when_the_node_sends_what_it_kept() -> None:
    happenings = (
        Happening(at_h=1.9, what="signals-lost", minutes=20),
        Happening(at_h=2.0, what="fault", way="off-the-bus", place="gpu0005", nodes=1),
    )
    card = one_fault("off-the-bus", happenings=happenings)
    assert card.incidents["gpu-lost"] == 1
    # The gap ends 14 min after the fault.
    assert card.detect.median_s == pytest.approx(14 * 60, abs=60)
    assert (card.drains, card.wrong_drains, card.undiagnosed) == (1, 0, 0)


def test_silence_is_found_after_missed_beats_and_no_sooner() -> None:
    card = one_fault("silent")
    assert (card.incidents["node-silent"], card.drains, card.wrong_drains) == (1, 1, 0)
    assert card.detect.median_s is not None and 15 < card.detect.median_s < 60


# --- what the command gives ---


def test_a_recording_replays_to_the_same_incident() -> None:
    scenario = msgspec.structs.replace(load("xid45-storm", days=0.1), nodes=240)
    file = io.BytesIO()
    (card,) = simulated(scenario, rules_of(scenario), SEED, ["healer"], file=file)  # type: ignore[arg-type]
    document, _ = replayed(rules_of(scenario), entries_in(io.StringIO(file.getvalue().decode()), None))
    assert Counter(one["rule"] for one in document["incidents"]) == card.incidents
    assert [one["action"] for one in document["actions"] if one["action"] == "drain"] == ["drain"]
    assert card.drains == 1


@pytest.mark.parametrize("name", ["rack-power", "leaf-switch", "telemetry-loss", "driver-rollout"])
def test_a_recording_holds_every_heartbeat_and_reference(name: str) -> None:
    """The simulator leaps over quiet time. A replay of its recording sees no silence there, no node away that
    has come back (of a rack after 40 minutes), and knows the reference of a drift."""
    scenario = load(name, days=0.15)
    file = io.BytesIO()
    (card,) = simulated(scenario, rules_of(scenario), SEED, ["healer"], file=file)  # type: ignore[arg-type]
    document, _ = replayed(rules_of(scenario), entries_in(io.StringIO(file.getvalue().decode()), None))
    own = {rule: count for rule, count in card.incidents.items() if not rule.endswith("(part of another)")}
    assert Counter(one["rule"] for one in document["incidents"]) == own != {}


def test_a_guard_that_does_not_exist_is_named(tmp_path: Path) -> None:
    scenario = msgspec.structs.replace(load("xid45-storm", days=0.1), guards={"max_noodles": 3})
    with pytest.raises(BadScenario, match="max_noodles"):
        rules_for(scenario, SHIPPED, 2.0)


def test_guards_of_a_scenario_are_settings_with_their_own_parts() -> None:
    scenario = load("xid45-storm", days=0.1)
    given = msgspec.structs.replace(scenario, guards={"max_nodes": 7, "sweep": {"max_nodes": 3}})
    guards = rules_for(given, SHIPPED, 2.0).guards
    assert (guards.max_nodes, guards.sweep.max_nodes) == (7, 3)
    wrong = msgspec.structs.replace(scenario, guards={"max_nodes": "many"})
    with pytest.raises(BadScenario, match="max_nodes"):
        rules_for(wrong, SHIPPED, 2.0)
