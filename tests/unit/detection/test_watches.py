"""A state in Slurm's snapshot becomes an incident when it persists too long, and ends when it is gone."""

from collections.abc import Iterable, Sequence
from datetime import datetime, timedelta

import msgspec
import pytest

from healer.detection import WalkInput
from healer.detection.reported import drain_findings as drains
from healer.detection.watches import is_offline, watch_findings
from healer.engine.walk import walk
from healer.model import (
    Controller,
    Finding,
    Incident,
    Mode,
    Observation,
    SlurmJob,
    SlurmNode,
    SlurmSnapshot,
    Trouble,
    WatchSettings,
)
from healer.observations import Picture
from healer.sim.memory_ledger import MemoryLedger
from healer.sim.sim_clock import SimClock
from tests.support.loop import CLUSTER, START, beat, later, name, rules_in

NODES = [
    SlurmNode(name=name(number), state=("IDLE",), switch=f"leaf{(number - 1) // 8}")
    for number in range(1, 33)
]
SETTINGS = WatchSettings(not_waiting=("Dependency*", "BeginTime", "JobHeld*"))
AWAY = ("DOWN", "NOT_RESPONDING")


class Watched:
    """Slurm's picture at moments of the test's choosing, with the shipped rules behind it."""

    def __init__(self) -> None:
        self.clock = SimClock(START)
        self.picture = Picture(CLUSTER, watching_since=START)
        self.ledger = MemoryLedger(CLUSTER, self.clock)
        self.rules = rules_in(watches=SETTINGS)
        self.nodes = {node.name: node for node in NODES}
        self.jobs: dict[str, SlurmJob] = {}
        self.look()

    def set(self, numbers: Iterable[int], *state: str, reason: str = "", user: str = "") -> None:
        for number in numbers:
            shown = msgspec.structs.replace(
                self.nodes[name(number)], state=state, reason=reason, reason_user=user,
                reason_at=self.clock.now() if reason else None,
            )  # fmt: skip
            self.nodes[name(number)] = shown

    def show(self) -> None:
        before = self.picture.slurm
        same = before is not None and dict(before.nodes) == self.nodes
        nodes = before.nodes if before is not None and same else dict(self.nodes)
        self.picture.show(
            SlurmSnapshot(cluster=CLUSTER, taken_at=self.clock.now(), nodes=nodes, jobs=dict(self.jobs))
        )
        self.ledger.snapshot = self.picture.slurm

    def look(self, seconds: float = 0, batch: Sequence[Observation] = ()) -> None:
        """Time passes, with a poll and a walk every two seconds; the first takes the batch."""
        end = self.clock.now() + timedelta(seconds=seconds)
        while True:
            self.show()
            walk(self.ledger, self.rules, self.picture, batch, self.clock.now())
            batch = ()
            if self.clock.now() >= end:
                return
            self.clock.advance(min(2.0, (end - self.clock.now()).total_seconds()))

    def found(self) -> list[Finding]:
        self.show()
        return watch_findings(WalkInput(self.rules, self.picture, self.clock.now()))

    @property
    def open(self) -> list[Incident]:
        known = self.ledger.tables.incidents.values()
        return sorted(
            (one for one in known if one.is_open), key=lambda one: (one.opened, one.fault, str(one.root))
        )

    @property
    def faults(self) -> list[tuple[str, str | None]]:
        return [(one.fault, one.root.node or one.root.switch or one.root.job) for one in self.open]

    @property
    def runs(self) -> int:
        return len(self.ledger.tables.runs)


@pytest.fixture
def slurm() -> Watched:
    return Watched()


# --- nodes that Slurm does not reach ------------------------------------------------------------------------


def test_a_node_that_is_down_is_an_incident_at_once_and_over_a_while_after_it_is_back(slurm: Watched) -> None:
    slurm.clock.advance(60)
    slurm.set([3], *AWAY, reason="Not responding", user="slurm")
    slurm.look()
    (one,) = slurm.open
    assert (one.rule, one.root.node, one.owner, one.severity) == ("node-offline", name(3), "Slurm", "P2")
    assert slurm.runs == 0
    slurm.set([3], "IDLE")
    slurm.look(50)
    assert slurm.faults == [("node-offline", name(3))]
    slurm.look(15)
    assert slurm.open == []
    slurm.set([3], *AWAY, reason="Not responding")
    slurm.look()
    assert [one.id == old.id for one, old in zip(slurm.open, [one], strict=True)] == [False]


def test_one_missed_ping_is_no_incident(slurm: Watched) -> None:
    slurm.set([3], "IDLE", "NOT_RESPONDING")
    slurm.look(4)
    assert slurm.open == []
    slurm.set([3], "IDLE")
    slurm.look(70)
    assert slurm.open == []
    slurm.set([3], "IDLE", "NOT_RESPONDING")
    slurm.look(12)
    assert slurm.faults == [("node-offline", name(3))]


def test_pings_that_are_missed_now_and_then_are_not_one_long_silence(slurm: Watched) -> None:
    """The time between two of them, when Slurm reached the node, does not count."""
    for _ in range(5):
        slurm.set([3], "IDLE", "NOT_RESPONDING")
        slurm.look(4)
        slurm.set([3], "IDLE")
        slurm.look(30)
    assert slurm.open == []
    slurm.set([3], "IDLE", "NOT_RESPONDING")
    since = slurm.clock.now()
    slurm.look(12)
    assert slurm.faults == [("node-offline", name(3))]
    assert slurm.open[0].opened >= since


def test_looks_that_are_far_apart_do_not_interrupt_what_lasts(slurm: Watched) -> None:
    """A slow detector, or the simulator, looks every 20 s: no look found the node well in between."""
    slurm.set([3], "IDLE", "NOT_RESPONDING")
    slurm.look()
    slurm.clock.advance(20)
    slurm.look()
    assert slurm.faults == [("node-offline", name(3))]


@pytest.mark.parametrize(
    ("state", "reason"),
    [
        (("IDLE", "DRAIN", "NOT_RESPONDING"), "ann: PSU"),
        (("DOWN", "DRAIN", "REBOOT_ISSUED", "NOT_RESPONDING"), "healer:x inc:1 y : reboot issued"),
        (("DOWN", "NOT_RESPONDING"), "ann: dead PSU"),
        (("DOWN", "NOT_RESPONDING"), "healer:x inc:1 y"),
        (("DOWN",), "Not responding"),
        (("IDLE", "MAINTENANCE", "NOT_RESPONDING"), ""),
        (("UNKNOWN", "NOT_RESPONDING"), ""),
    ],
)
def test_node_kept_out_by_a_person_is_not_offline(state: tuple[str, ...], reason: str) -> None:
    assert not is_offline(SlurmNode(name="n1", state=state, reason=reason))


@pytest.mark.parametrize(
    "state",
    [
        ("IDLE", "POWERED_DOWN", "NOT_RESPONDING"),
        ("IDLE", "POWERING_DOWN", "NOT_RESPONDING"),
        ("IDLE", "POWERING_UP", "NOT_RESPONDING"),
        ("IDLE", "PLANNED"),
        ("IDLE", "BLOCKED"),
    ],
)
def test_pitfall_19_no_incident_for_planned_blocked_and_powered_down_nodes(
    slurm: Watched, state: tuple[str, ...]
) -> None:
    slurm.set(range(1, 33), *state)
    slurm.look(120)
    assert slurm.open == []


def test_power_saving_ends_no_incident_of_a_node_that_is_down(slurm: Watched) -> None:
    """SuspendTime passes for a dead node too: Slurm switches it off, and no job wakes it (seen on 22.05)."""
    slurm.set([3], *AWAY, reason="Not responding", user="slurm")
    slurm.look()
    slurm.set([3], "DOWN", "POWERING_DOWN", "NOT_RESPONDING", reason="Not responding", user="slurm")
    slurm.look(10)
    slurm.set([3], "DOWN", "POWERED_DOWN", reason="Not responding", user="slurm")
    slurm.look(120)
    assert slurm.faults == [("node-offline", name(3))]
    slurm.set([3], "IDLE", "POWERED_DOWN", "NOT_RESPONDING")
    slurm.look(70)
    assert slurm.open == []


def test_a_node_that_did_not_start_for_its_job_is_an_incident(slurm: Watched) -> None:
    slurm.set([3], "IDLE", "POWERING_UP", "NOT_RESPONDING")
    slurm.look(10)
    assert slurm.open == []
    slurm.set([3], "DOWN", "POWERED_DOWN", reason="ResumeTimeout reached", user="slurm")
    slurm.look(10)
    (one,) = slurm.open
    assert (one.fault, one.root.node, one.owner) == ("slurm-drain:power", name(3), "Slurm")


def test_nodes_that_were_left_off_over_weeks_are_no_outage_while_the_others_sleep(slurm: Watched) -> None:
    slurm.set(range(1, 27), "IDLE", "POWERED_DOWN")
    for number in (27, 28, 29):
        slurm.set([number], "DOWN", "POWERED_DOWN", reason="Not responding", user="slurm")
        slurm.clock.advance(86400)
        slurm.look()
    assert slurm.faults == [("node-offline", name(number)) for number in (27, 28, 29)]


def test_an_outage_stays_one_incident_when_power_saving_switches_its_nodes_off(slurm: Watched) -> None:
    slurm.set(range(1, 7), *AWAY, reason="Not responding", user="slurm")
    slurm.look()
    for number in range(1, 7):
        slurm.set([number], "DOWN", "POWERED_DOWN", reason="Not responding", user="slurm")
        slurm.look(90)
        assert slurm.faults == [("switch-offline", "leaf0")]
    (one,) = slurm.open
    assert len(one.affected) == 6


def test_most_of_the_nodes_that_are_on_are_the_fleet_while_the_others_sleep(slurm: Watched) -> None:
    slurm.set(range(1, 27), "IDLE", "POWERED_DOWN")
    slurm.set([26], "DOWN", "POWERED_DOWN", reason="Not responding", user="slurm")
    slurm.look()
    slurm.set(range(27, 31), *AWAY, reason="Not responding", user="slurm")
    slurm.look()
    assert [one.fault for one in slurm.open] == ["fleet-offline"]


def test_many_nodes_under_one_switch_are_one_incident(slurm: Watched) -> None:
    slurm.set([1], *AWAY)
    slurm.look(4)
    assert slurm.faults == [("node-offline", name(1))]
    slurm.set(range(1, 6), *AWAY)
    slurm.look()
    assert slurm.faults == [("switch-offline", "leaf0")]
    (one,) = slurm.open
    assert {part.node for part in one.affected} == {name(number) for number in range(1, 6)}
    assert one.severity == "P1"
    slurm.set(range(2, 6), "IDLE")
    slurm.look(130)
    assert slurm.faults == [("node-offline", name(1))]


def test_the_fleet_at_once_is_one_incident_and_no_node_is_named(slurm: Watched) -> None:
    slurm.set(range(1, 9), *AWAY)
    slurm.look()
    assert slurm.faults == [("switch-offline", "leaf0")]
    slurm.set(range(1, 25), *AWAY)
    slurm.look()
    assert slurm.faults == [("fleet-offline", None)]
    assert slurm.open[0].nodes == {}
    slurm.set(range(1, 33), "IDLE")
    slurm.look(70)
    assert slurm.open == []


def test_a_drain_of_slurms_and_a_node_that_it_does_not_reach_are_two_things() -> None:
    picture = Picture(CLUSTER, watching_since=START)
    away = SlurmNode(name="n1", state=AWAY, reason="Not responding", reason_user="slurm")
    back = SlurmNode(name="n2", state=("DOWN",), reason="Not responding", reason_user="slurm")
    picture.show(SlurmSnapshot(cluster=CLUSTER, taken_at=START, nodes={"n1": away, "n2": back}))
    assert [
        (one.fault, one.component.node)
        for one in drains(WalkInput(rules_in(watches=SETTINGS), picture, START))
    ] == [("slurm-drain:not-responding", "n2")]
    watched = [
        (one.fault, one.component.node)
        for one in watch_findings(WalkInput(rules_in(watches=SETTINGS), picture, START))
    ]
    assert watched == [("node-offline", "n1")]


@pytest.mark.parametrize("down_at", [40, 10])
def test_a_node_that_fell_silent_too_is_one_incident_and_comes_back_as_one(
    slurm: Watched, down_at: int
) -> None:
    """The silence is the worse news, in any order of the two."""
    slurm.rules = rules_in(Mode.off, watches=SETTINGS)
    for _ in range(4):
        slurm.look(batch=[beat(name(3), slurm.clock.now())])
        slurm.clock.advance(5)
    slurm.look(down_at)
    slurm.set([3], *AWAY, reason="Not responding")
    slurm.look(60)
    assert slurm.faults == [("node-silent", name(3))]


# --- less than configured -----------------------------------------------------------------------------------


def test_a_node_that_registers_with_less_than_configured(slurm: Watched) -> None:
    slurm.set([2], "IDLE", "INVALID_REG")
    slurm.look()
    assert slurm.faults == [("below-configured", name(2))]
    slurm.set(
        [2], "IDLE", "INVALID_REG", "DRAIN", reason="gres/gpu count reported lower than configured (7 < 8)"
    )
    slurm.look(4)
    assert {(one.rule, one.root.node) for one in slurm.open} == {("below-configured", name(2))}
    slurm.set([2], "IDLE")
    slurm.look(70)
    assert slurm.open == []


# --- jobs ---------------------------------------------------------------------------------------------------


def waiting(job: str, reason: str, since: datetime, **about: object) -> SlurmJob:
    job_fields = {"partition": "train", "submit_at": since, "eligible_at": since} | about
    return SlurmJob(id=job, state="PENDING", reason=reason, **job_fields)  # type: ignore[arg-type]


def test_jobs_that_wait_long_are_one_incident_for_each_partition_and_reason(slurm: Watched) -> None:
    early = START - timedelta(hours=2)
    slurm.jobs = {
        job.id: job
        for job in (
            waiting("1", "Resources", early),
            waiting("2", "Resources", early),
            waiting("3", "Priority", early),
            waiting("4", "Resources", early, partition="big"),
            waiting("5", "Resources", START),
            waiting("6", "Dependency", early),
            waiting("7", "BeginTime", early),
            waiting("8", "JobHeldUser", early, priority=0, held_by="user"),
            waiting("9", "Resources", early, eligible_at=START),
            SlurmJob(id="10", state="PENDING", reason="Resources", partition="quiet"),
        )
    }
    slurm.look(8)
    assert sorted(one.fault for one in slurm.open) == [
        "jobs-waiting:big:Resources", "jobs-waiting:train:Priority", "jobs-waiting:train:Resources",
    ]  # fmt: skip
    one = next(one for one in slurm.open if one.fault.endswith("train:Resources"))
    assert (one.severity, one.evidence[0].text) == ("P3", "2 jobs; 1 has been pending longest, for 2.0 h")
    slurm.jobs = {}
    slurm.look(70)
    assert slurm.open == []


def test_a_job_begins_to_wait_when_it_could_run(slurm: Watched) -> None:
    slurm.jobs = {"1": waiting("1", "Resources", START)}
    slurm.look(3590)
    assert slurm.open == []
    slurm.look(20)
    assert [one.fault for one in slurm.open] == ["jobs-waiting:train:Resources"]


def completing(job: str, *nodes: str, ended: datetime | None) -> SlurmJob:
    return SlurmJob(id=job, state="COMPLETED", flags=("COMPLETING",), nodes=nodes, end_at=ended)


def test_a_job_that_cannot_complete_names_its_node(slurm: Watched) -> None:
    slurm.jobs = {"7": completing("7", name(4), ended=START)}
    slurm.look(290)
    assert slurm.open == []
    slurm.look(20)
    (one,) = slurm.open
    assert (one.fault, one.root.node, one.jobs_hit) == ("jobs-completing", name(4), ("7",))
    assert "Job 7 cannot complete on gpu0004" in one.evidence[0].text
    slurm.jobs = {}
    slurm.look(70)
    assert slurm.open == []


def test_a_job_that_cannot_complete_on_many_nodes_is_one_incident(slurm: Watched) -> None:
    slurm.jobs = {"7": completing("7", name(4), name(5), ended=START - timedelta(minutes=6))}
    slurm.look(8)
    (one,) = slurm.open
    assert (one.root.job, one.root.node) == ("7", None)
    assert {part.node for part in one.affected} == {name(4), name(5)}


def test_short_jobs_that_complete_one_after_the_other_are_no_stuck_job(slurm: Watched) -> None:
    for number in range(60):
        slurm.jobs = {str(number): completing(str(number), name(4), ended=slurm.clock.now())}
        slurm.look(10)
    assert slurm.open == []


@pytest.mark.parametrize("ended", [None, later(days=365)])
def test_job_end_that_is_missing_or_in_the_future_counts_from_first_sight(
    slurm: Watched, ended: datetime | None
) -> None:
    slurm.jobs = {"7": completing("7", name(4), ended=ended)}
    slurm.look(290)
    assert slurm.open == []
    slurm.look(20)
    assert slurm.faults == [("jobs-completing", name(4))]


def test_jobs_held_after_failed_launches_are_one_incident_per_partition(slurm: Watched) -> None:
    about = {"priority": 0, "held_by": "admin"}
    slurm.jobs = {
        "1": waiting("1", "JobHeldUser", START, why="launch failed requeued held", **about),
        "2": waiting("2", "JobHoldMaxRequeue", START, **about),
        "3": waiting("3", "JobHeldAdmin", START, **about),
        "4": waiting("4", "JobHeldUser", START, priority=0, held_by="user"),
        "5": waiting("5", "JobHeldUser", START, why="launch failed requeued held", partition="big", **about),
    }
    slurm.look(8)
    assert {(one.fault, one.jobs_hit) for one in slurm.open} == {
        ("jobs-held:train", ("1", "2")),
        ("jobs-held:big", ("5",)),
    }


# --- slurmctld ----------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("trouble", "fault", "for_s", "figures"),
    [
        (Trouble.backlog, "controller-backlog", 60, {"threads": 210, "agent_queue": 3}),
        (Trouble.accounting, "accounting-away", 120, {"dbd_queue": 800}),
    ],
)
def test_a_controller_in_trouble_for_too_long(
    slurm: Watched, trouble: Trouble, fault: str, for_s: int, figures: dict[str, int]
) -> None:
    slurm.picture.controller = Controller(cluster=CLUSTER, at=START, since={trouble: START}, **figures)  # type: ignore[arg-type]
    slurm.look(for_s - 4)
    assert slurm.open == []
    slurm.look(12)
    assert slurm.faults == [(fault, None)]
    slurm.picture.controller = Controller(cluster=CLUSTER, at=later(for_s))
    slurm.look(70)
    assert slurm.open == []
    assert slurm.runs == 0


@pytest.mark.parametrize(
    "trouble", [Trouble.away, Trouble.other_cluster, Trouble.backup, Trouble.slow, Trouble.passed_over]
)
def test_a_controller_that_is_away_or_slow_is_no_incident_of_any_node(
    slurm: Watched, trouble: Trouble
) -> None:
    slurm.picture.controller = Controller(
        cluster=CLUSTER, at=START, problem="no answer", since={trouble: START}
    )
    slurm.look(600)
    assert slurm.open == []


# --- persisting states are reported rarely, and never
# lost------------------------------------------------------------


def test_persisting_condition_is_reported_once_and_then_every_minute(slurm: Watched) -> None:
    slurm.set([3], *AWAY)
    (first,) = slurm.found()
    slurm.clock.advance(6)
    (again,) = slurm.found()  # no walk has taken the first one in
    assert again.evidence[0].digest == first.evidence[0].digest
    slurm.picture.note_reported([first], slurm.clock.now())
    slurm.clock.advance(54)
    assert slurm.found() == []
    slurm.clock.advance(6)
    (later_on,) = slurm.found()
    assert later_on.evidence[0].digest == first.evidence[0].digest


def test_a_clock_set_back_a_day_stops_no_look(slurm: Watched) -> None:
    slurm.set([3], *AWAY)
    slurm.picture.looked_at = slurm.clock.now() + timedelta(days=1)
    slurm.show()
    slurm.picture.nodes_changed = False
    assert slurm.found()


def test_restarted_detector_continues_the_incident(slurm: Watched) -> None:
    slurm.set([3], *AWAY, reason="Not responding")
    slurm.look(30)
    (one,) = slurm.open
    slurm.picture = Picture(CLUSTER, watching_since=slurm.clock.now())
    slurm.look(30)
    assert [(known.id, known.evidence_count) for known in slurm.open] == [(one.id, 1)]
    slurm.picture = Picture(CLUSTER, watching_since=slurm.clock.now())
    slurm.set([3], "IDLE")
    slurm.look()
    assert slurm.open == []
