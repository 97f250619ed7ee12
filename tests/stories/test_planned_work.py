"""Planned work, before, during and after: what arises under it is its own until it is seen after it."""

from datetime import datetime, timedelta
from typing import Any

import msgspec
import pytest

from healer.model import Maintenance, Mode, Reservation, Ruleset, RunState, SlurmSnapshot, StepEvent
from healer.observations.picture import Picture
from tests.stories.test_judged_contexts import beats, listed
from tests.stories.test_replay import actions, clock, job, jobs, kernel, nodes, played, row
from tests.support.loop import CLUSTER, DEGRADED, LOST, START, Site, later, name, rules_in

pytestmark = pytest.mark.heavy

Row = dict[str, Any]
HOUR = 3600
REBOOTED = {"state": ["DOWN"], "reason": "Node unexpectedly rebooted", "boot_id": "b2"}
REQUESTED = {"state": ["IDLE", "DRAIN", "REBOOT_REQUESTED"], "reason": "Reboot ASAP"}
WORKED_ON = {"state": ["IDLE", "MAINTENANCE"]}
#: Another line of a lost GPU than the one under the work.
STILL_LOST = LOST.replace("pid=1", "pid=2") if "pid=1" in LOST else f"{LOST} (again)"
TEN = range(1, 11)


def shown(at: float, state: Row, numbers: Any = (1,)) -> Row:
    """Slurm's nodes; those with these numbers as `state` says."""
    return nodes(at, **{name(number): state for number in numbers})


def drained(document: Row) -> list[str]:
    return [node or "" for action, node, _ in actions(document) if action == "drain"]


def of_node(document: Row, number: int) -> Row:
    (found,) = (one for one in document["incidents"] if one["root"].get("node") == name(number))
    return found


def test_faults_under_planned_work_are_not_due_at_its_end_and_a_gpu_lost_after_it_is() -> None:
    held = [kernel(10 + number, number, LOST) for number in TEN]
    document = played(
        shown(0, WORKED_ON, TEN),
        *held,
        nodes(HOUR),
        clock(HOUR + 60),
        kernel(HOUR + 100, 15, LOST),
        clock(9000),
    )
    assert drained(document) == [name(15)]
    assert of_node(document, 15)["severity"] == "P1"
    for number in TEN:
        quiet = of_node(document, number)
        assert (quiet["severity"], quiet["cause"]) == ("P3", "maintenance")
        assert quiet["closed"] is not None


def test_a_gpu_that_is_still_lost_after_the_work_is_acted_upon() -> None:
    document = played(
        shown(0, WORKED_ON),
        kernel(10, 1, LOST),
        nodes(HOUR),
        kernel(HOUR + 600, 1, STILL_LOST),
        clock(HOUR + 700),
    )
    assert drained(document) == [name(1)]
    assert (of_node(document, 1)["severity"], of_node(document, 1)["cause"]) == ("P1", "unclear")


def test_another_fault_after_the_work_proves_nothing_and_is_one_of_its_own() -> None:
    elsewhere = (
        "NVRM: Xid (PCI:0000:18:00): 63, Row Remapper: New row marked for remapping, reset gpu to activate."
    )
    document = played(
        shown(0, WORKED_ON),
        kernel(10, 1, "NVRM: Xid (PCI:0000:9b:00): 95, Uncontained: LTC TAG (0x2, 0x1). RST: Yes, D-RST: No"),
        nodes(HOUR),
        jobs(HOUR, job("1", name(1))),  # what is new waits for its end
        kernel(HOUR + 600, 1, elsewhere),
        clock(HOUR + 2400),
    )
    assert drained(document) == []
    states = {one["rule"]: one["closed"] is None for one in document["incidents"]}
    assert states == {"gpu-fatal": False, "gpu-degraded": True}


def test_gpus_that_the_node_does_not_list_after_the_work_drain_it() -> None:
    counts = [listed(at, 8 if at < 100 else 7) for at in range(5, HOUR + 900, 35)]
    rows = [nodes(0), shown(60, WORKED_ON), *counts, nodes(HOUR), clock(HOUR + 910)]
    document = played(*sorted(rows, key=lambda one: one["at"]))
    assert drained(document) == [name(1)]
    at = next(one["at"] for one in document["actions"] if one["action"] == "drain")
    assert at > later(HOUR).isoformat()


def test_lines_that_come_late_from_under_the_work_are_its_own() -> None:
    def late_line(at: float) -> Row:
        body = {"cluster": CLUSTER, "node": name(1), "boot_id": "b1"}
        entry = {"time": later(600).isoformat().replace("+00:00", "Z"), "line": LOST}
        return row(at, "signals/kernel-log", body | {"entries": [entry]})

    late = played(nodes(0), shown(60, WORKED_ON), nodes(HOUR), late_line(HOUR + 60), clock(9000))
    assert drained(late) == [] and of_node(late, 1)["closed"] is not None
    assert drained(played(nodes(0), late_line(HOUR + 60), clock(9000))) == [name(1)]


def test_faults_that_are_new_after_the_work_are_a_storm_again() -> None:
    held = [kernel(10 + number, number, LOST) for number in TEN]
    again = [kernel(HOUR + 600 + number, number, STILL_LOST) for number in TEN]
    document = played(
        shown(0, WORKED_ON, TEN), *held, nodes(HOUR), *again, kernel(HOUR + 700, 15, LOST), clock(HOUR + 800)
    )
    assert "breaker" in {one["guard"] for one in document["held"]}
    assert len(drained(document)) < 3


def test_a_window_of_the_sites_list_is_planned_work_too() -> None:
    window = Maintenance(nodes=(name(1),), why="PSU swap", until=START + timedelta(seconds=HOUR))
    rules: Ruleset = rules_in(Mode.auto)
    rules = msgspec.structs.replace(
        rules, guards=msgspec.structs.replace(rules.guards, maintenance=(window,))
    )
    document = played(nodes(0), kernel(10, 1, LOST), clock(HOUR + 60), clock(HOUR + 2400), rules=rules)
    assert drained(document) == []
    assert of_node(document, 1)["closed"] is not None


def site_in(*windows: Maintenance) -> Ruleset:
    rules = rules_in(Mode.auto)
    guards = msgspec.structs.replace(rules.guards, maintenance=windows)
    return msgspec.structs.replace(rules, guards=guards)


@pytest.mark.parametrize("end", ["gone from the list", "an end that is over", "other nodes"])
def test_work_that_is_taken_off_the_sites_list_has_ended(end: str) -> None:
    """Its late lines counted as faults of a node in service, and drained a healthy one."""
    window = Maintenance(nodes=(name(1), name(2)), why="PSU swap", until=later(2 * HOUR))
    site = Site(10, rules=site_in(window))
    site.run_for(HOUR, step_s=60)
    of_the_work = site.say(1, LOST, at=site.now - timedelta(minutes=10))
    changed = {
        "gone from the list": (),
        "an end that is over": (msgspec.structs.replace(window, until=site.now - timedelta(minutes=2)),),
        "other nodes": (msgspec.structs.replace(window, nodes=(name(2),)),),
    }
    site.rules = site_in(*changed[end])
    ended_at = site.now
    site.run_for(60, step_s=10)
    site.run_for(60, *of_the_work, step_s=5)
    assert (site.runs, site.incident.severity, site.node(1).in_service) == ([], "P3", True)
    kept = {inventory.node: inventory.worked_until for inventory in site.ledger.inventories()}
    assert kept == {name(1): ended_at, name(2): None if end == "other nodes" else ended_at}
    site.run_for(60, *site.say(1, STILL_LOST), step_s=5)
    assert not site.node(1).in_service


def test_work_that_a_node_joined_after_it_began_ends_for_it_too() -> None:
    """A node got the feature that the entry names while the work went on, or was added to Slurm then."""
    window = Maintenance(nodes=("feature:psu",), why="PSU swap", until=later(2 * HOUR))
    site = Site(10, rules=site_in(window))
    site.run_for(HOUR, step_s=60)
    world = site.slurm._world
    world.nodes[name(1)].spec = msgspec.structs.replace(world.nodes[name(1)].spec, features=("psu",))
    world.changed, world._shown, world._traits, world._shown_nodes = True, None, {}, {}
    site.run_for(HOUR / 2, step_s=60)
    of_the_work = site.say(1, LOST, at=site.now - timedelta(minutes=10))
    site.rules = site_in()
    site.run_for(60, step_s=10)
    site.run_for(60, *of_the_work, step_s=5)
    assert (site.runs, site.incident.severity, site.node(1).in_service) == ([], "P3", True)


def test_work_that_is_taken_off_the_sites_list_while_no_detector_runs_has_ended() -> None:
    """Only a running detector noticed: after an upgrade the late lines of the work drained a healthy node."""
    kept = Maintenance(nodes=(name(3),), why="PSU swap", until=later(3 * HOUR))
    window = Maintenance(nodes=(name(1), name(2)), why="PSU swap", until=later(2 * HOUR))
    site = Site(10, rules=site_in(window, kept))
    site.run_for(HOUR, step_s=60)
    of_the_work = site.say(1, LOST, at=site.now - timedelta(minutes=10))
    site.rules = site_in(kept)
    site.clock.advance(600)
    site.picture = Picture(site.picture.cluster, watching_since=site.now)
    site.picture.load_inventories(site.ledger.inventories())
    ended_at = site.now
    site.run_for(60, step_s=10)
    site.run_for(60, *of_the_work, step_s=5)
    assert (site.runs, site.incident.severity, site.node(1).in_service) == ([], "P3", True)
    ends = {inventory.node: inventory.worked_until for inventory in site.ledger.inventories()}
    assert ends == {name(1): ended_at, name(2): ended_at, name(3): None}
    site.run_for(60, *site.say(1, STILL_LOST), step_s=5)
    assert not site.node(1).in_service


def test_a_remedy_planned_before_the_work_is_still_planned_after_it() -> None:
    """A network window over a whole rack ended each plan of its nodes: half an hour later the pending row
    remap was "not seen after the work", though its line comes only once and no one had touched the GPU."""
    window = Maintenance(nodes=(name(2),), why="new leaf", since=later(600), until=later(600 + HOUR))
    site = Site(10, rules=site_in(window), test_s=60)
    work = site.slurm.add_job(required=[name(2)], gpus=8)
    site.run_for(300, *site.say(2, DEGRADED), step_s=10)
    assert (site.incident.severity, site.runs[0].state) == ("P2", RunState.running)
    site.run_for(600, step_s=10)
    assert site.incident.severity == "P3"
    site.run_for(2 * HOUR, step_s=10)
    assert (site.incident.severity, site.incident.is_open, site.node(2).in_service) == ("P2", True, True)
    site.slurm.complete(work)
    site.run_for(HOUR, step_s=10)
    assert (site.runs[0].state, site.open_incidents, site.node(2).in_service) == (RunState.done, [], True)
    assert site.log(site.runs[0].id, "now-reset")[-1].event is StepEvent.done


def test_work_that_begins_before_a_run_has_taken_its_node_makes_it_wait_for_proof() -> None:
    """It was a P0 under planned work, and at its end the run drained the node that people had repaired."""
    window = Maintenance(nodes=(name(1),), why="GPU swap", since=later(600), until=later(600 + HOUR))
    site = Site(10, rules=site_in(window), test_s=60)
    site.walk(*site.say(1, LOST))
    site.clock.advance(3)
    site.walk()
    assert site.runs[0].state is RunState.running
    site.pause("node", name(1))  # between the run's start and its drain
    site.run_for(590, step_s=10)
    assert site.incident.severity == "P0"
    site.run_for(30, step_s=10)
    site.end_pause()
    site.run_for(HOUR - 60, step_s=10)
    assert (site.incident.severity, site.incident.held_by, site.node(1).in_service) == (
        "P3",
        "maintenance",
        True,
    )
    site.run_for(600, step_s=10)
    assert site.incident.waits_since == window.until and site.node(1).in_service
    site.run_for(60, *site.say(1, STILL_LOST), step_s=5)
    assert site.incident.severity == "P1" and not site.node(1).in_service
    assert [run.state for run in site.runs] == [RunState.rejected, RunState.waiting]


def test_a_picture_without_the_node_is_no_planned_work(monkeypatch: pytest.MonkeyPatch) -> None:
    """The guard of planned work holds for an unknown node too: the waiting run ended as rejected."""
    site = Site(10, test_s=60)
    site.walk(*site.say(1, LOST))
    site.clock.advance(3)
    site.walk()
    site.pause("node", name(1))  # between the run's start and its drain
    site.run_for(60, step_s=10)
    whole = site.slurm.snapshot

    def cut() -> SlurmSnapshot:
        snapshot = whole()
        nodes = {node: row for node, row in snapshot.nodes.items() if node != name(1)}
        return msgspec.structs.replace(snapshot, nodes=nodes)

    with monkeypatch.context() as patch:
        patch.setattr(site.slurm, "snapshot", cut)
        site.run_for(30, step_s=10)
    site.end_pause()
    site.run_for(60, step_s=5)
    assert len(site.runs) == 1 and not site.node(1).in_service


@pytest.mark.parametrize("job_ends", ["after the drain", "under the drain"])
def test_a_remedy_planned_before_a_persons_drain_is_still_planned_after_it(job_ends: str) -> None:
    """A person had the node for an hour, for a cable, and resumed it. Half an hour later the pending row
    remap was "not seen after the work", and its run ended."""
    site = Site(10, rules=rules_in(Mode.auto), test_s=60)
    work = site.slurm.add_job(required=[name(2)], gpus=8)
    site.run_for(300, *site.say(2, DEGRADED), step_s=10)
    site.slurm.person_drain(name(2), "cable of the BMC", "ann")
    site.run_for(600, step_s=10)
    if job_ends == "under the drain":
        site.slurm.complete(work)
    site.run_for(HOUR, step_s=10)
    assert (site.node(2).reason, site.node(2).in_service) == ("cable of the BMC", False)
    site.slurm.resume(name(2))
    site.run_for(HOUR, step_s=10)
    if job_ends == "after the drain":
        assert (site.incident.is_open, site.node(2).in_service) == (True, True)
        site.slurm.complete(work)
    site.run_for(HOUR, step_s=10)
    assert (site.runs[-1].state, site.open_incidents, site.node(2).in_service) == (RunState.done, [], True)
    assert site.log(site.runs[-1].id, "now-reset")[-1].event is StepEvent.done


def test_fault_reported_during_manual_work_belongs_to_that_person() -> None:
    swap = {"state": ["IDLE", "DRAIN"], "reason": "PSU swap", "reason_user": "ann"}
    quiet = played(shown(0, swap), kernel(10, 1, LOST), nodes(HOUR), clock(HOUR + 600))
    assert drained(quiet) == []
    again = played(
        shown(0, swap), kernel(10, 1, LOST), nodes(HOUR), kernel(HOUR + 600, 1, STILL_LOST), clock(HOUR + 700)
    )
    assert drained(again) == [name(1)]


@pytest.mark.parametrize(("drained_at", "acts"), [(80, False), (101, True)])
def test_a_fault_that_arose_under_manual_work_is_none_of_ours_though_slurm_was_read_later(
    drained_at: float, acts: bool
) -> None:
    """healer saw the drain three seconds after the line, though it was older: the work caused it. A fault
    that is older than the drain is still planned after it."""
    since = (START + timedelta(seconds=drained_at)).isoformat()
    swap = {"state": ["IDLE", "DRAIN"], "reason": "cable", "reason_user": "ann", "reason_at": since}
    rows = [nodes(0), kernel(100, 1, DEGRADED), shown(103, swap), nodes(HOUR)]
    assert (drained(played(*rows, clock(HOUR + 7000))) == [name(1)]) == acts


def test_fault_before_the_work_keeps_its_cause_and_needs_the_same_proof() -> None:
    rows = [nodes(), kernel(10, 1, LOST), shown(600, WORKED_ON), nodes(HOUR)]
    document = played(*rows, clock(HOUR + 2400), mode=Mode.shadow)
    found = of_node(document, 1)
    assert found["cause"] == "unclear"
    assert found["closed"] is not None


@pytest.mark.parametrize(
    "reboots",
    [
        # Slurm holds them when the reservation is over.
        [
            shown(0, WORKED_ON, TEN),
            shown(600, REBOOTED | {"state": ["DOWN", "MAINTENANCE"]}, TEN),
            shown(HOUR, REBOOTED, TEN),
        ],
        # A person asked Slurm for them, one after the other.
        [
            nodes(0),
            *(shown(60 * last, REQUESTED, range(1, last)) for last in range(2, 12)),
        ],
    ],
)  # fmt: skip
def test_many_reboots_of_one_change_are_one_note(reboots: list[Row]) -> None:
    document = played(*reboots, clock(HOUR + 60))
    (note,) = document["incidents"]
    assert (note["rule"], note["severity"], note["cause"]) == ("planned-reboots", "P3", "maintenance")
    assert {one["node"] for one in note["affected"]} == {name(number) for number in TEN}
    assert document["actions"] == [] and note["closed"] is None
    over = played(*reboots, nodes(HOUR + 60), clock(HOUR + 300))
    assert [one["closed"] is None for one in over["incidents"]] == [False]


def test_unplanned_reboot_stays_a_separate_incident() -> None:
    down = {"state": ["DOWN"], "reason": "Node unexpectedly rebooted"}
    document = played(nodes(0), jobs(0, job()), shown(60, down), clock(HOUR))
    assert [one["rule"] for one in document["incidents"]] == ["slurm-drain"]


def test_the_gate_that_knows_of_the_works_end_first_lets_nothing_go(monkeypatch: pytest.MonkeyPatch) -> None:
    """It reads Slurm's picture later than the walk did that judges the incident."""
    site = Site(10)
    work = Reservation(name="work", nodes=(name(1),), users=("root",), maintenance=True)
    site.slurm.reserve(work)
    site.run_for(5, *site.say(1, LOST))
    assert site.incident.held_by == "maintenance"
    site.slurm.unreserve("work")
    site.clock.advance(1)
    with monkeypatch.context() as patch:
        patch.setattr(site, "look", lambda: None)
        site.ledger.snapshot = site.slurm.snapshot()
        site.walk()
    site.run_for(60)
    assert site.node(1).in_service and site.runs[0].state is not RunState.running


def asleep_until(wakes_at: float, *more: Row) -> Row:
    """A GPU is lost just before power saving switches its node off; a job wakes the node, which registers 100
    s later with another boot."""

    def slept(at: float, *state: str, boot_s: float = -86_400) -> Row:
        known = {"boot_id": "", "boot_at": later(-86_400).isoformat()}
        woken = known | {"state": list(state), "boot_at": later(boot_s).isoformat()}
        return nodes(at, **{name(number): known for number in range(1, 21)} | {name(1): woken})

    awake = {"boot_s": wakes_at + 80}
    rows = [
        slept(0, "IDLE"),
        *beats(0, 100, [1]),
        kernel(100, 1, LOST),
        slept(100.5, "IDLE", "POWERING_DOWN"),
        slept(160, "IDLE", "POWERED_DOWN"),
        slept(wakes_at, "ALLOCATED", "POWERING_UP"),
        *(slept(wakes_at + after, "ALLOCATED", **awake) for after in (100, 102, 200)),
        jobs(wakes_at + 100, job("9", name(1))),
        clock(wakes_at + HOUR),
        *more,
    ]
    return played(*sorted(rows, key=lambda each: datetime.fromisoformat(each["at"])))


@pytest.mark.parametrize("heard_after_s", [None, 75, 90, 105, 130])
def test_a_fault_from_before_its_node_slept_is_not_due_when_a_job_wakes_the_node(
    heard_after_s: int | None,
) -> None:
    """That was a boot, also while no sender has named it yet."""
    heard = 1000 + heard_after_s if heard_after_s else None
    document = asleep_until(1000, *(beats(heard, heard + 600, [1], boot="b2") if heard else ()))
    assert drained(document) == []
    (lost,) = (one for one in document["incidents"] if one["rule"] == "gpu-lost")
    assert lost["closed"] is not None


def test_a_gpu_that_is_still_lost_after_its_node_was_woken_is_acted_upon() -> None:
    document = asleep_until(
        1000, *beats(1105, 1700, [1], boot="b2"), kernel(1120, 1, STILL_LOST, boot_id="b2")
    )
    assert drained(document) == [name(1)]
