"""A hung job is reported with the missing ranks; what only looks like a hang makes no finding."""

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from datetime import datetime, timedelta
from typing import Any

import msgspec
import numpy as np
import pytest

from healer.detection.hangs import Hangs
from healer.detection.protocol import TickInput
from healer.model import Component, Evidence, FaultClass, Finding, NodeReport, Sense, SlurmSnapshot
from healer.model.telemetry import DOING, StepBatch
from healer.observations.steps import StepTimes
from tests.support.looks import look
from tests.support.steps import CLUSTER, START, batch, node_name, slurm

RANKS, PER = 32, 8
JOB = Component(cluster=CLUSTER, job="4711")
HANG = ("hang", JOB)


@dataclass
class Job:
    """A job on 4 nodes: steps of 5 s, a tick every 5 s. `says`: by rank, what it does while it is stuck."""

    shown: SlurmSnapshot = field(default_factory=lambda: slurm(4))
    watched: frozenset = frozenset({HANG})
    rest: bool | None = None
    links: Mapping[str, NodeReport] = field(default_factory=dict)

    def __post_init__(self) -> None:
        self.steps, self.detector = StepTimes(CLUSTER), Hangs(lambda *_: self.rest)
        self.number, self.at_s, self.restart = 0, 0.0, 0
        self.found: list[Finding] = []
        self.clear: dict = {}

    @property
    def now(self) -> datetime:
        return START + timedelta(seconds=self.at_s)

    def run(self, steps: int, *, step_s: float = 5.0, ranks: np.ndarray | None = None) -> None:
        """`ranks`: those whose steps are reported, else all."""
        for _ in range(steps):
            self.number, self.at_s = self.number + 1, self.at_s + step_s
            compute = np.full(RANKS, 4.0)
            if ranks is not None:
                compute[~np.isin(np.arange(RANKS), ranks)] = np.nan
            done = batch(self.number, compute, at=self.now, step_s=step_s)
            self.take(replace(done, restart=self.restart))

    def stand(self, seconds: float, says: Mapping[str, list[int]] | None = None, *, step: int = 1) -> None:
        """No step ends. `says`: doing -> ranks, reported every 10 s; `step`: after the last that ended."""
        since_s = self.at_s
        while self.at_s < since_s + seconds:
            self.at_s += 5
            due = says and self.at_s - since_s >= 10 and (self.at_s - since_s) % 10 == 0
            sent = [
                self.words(doing, ranks, self.at_s - since_s, step) for doing, ranks in (says or {}).items()
            ]
            self.take(*(sent if due else []))

    def words(self, doing: str, ranks: list[int], open_s: float, step: int) -> StepBatch:
        whole = batch(
            self.number + step * (doing in ("compute", "collective")), np.full(RANKS, 4.0), at=self.now
        )
        rows = np.array(ranks)
        columns = {
            name: getattr(whole, name)[rows] for name in ("rank", "step", "at", "node", "gpu", "stage")
        }
        none = np.full(len(rows), np.nan)
        figures = dict.fromkeys(("compute_s", "comm_s", "data_s", "work", "loss", "grad_norm"), none)
        return StepBatch(
            cluster=CLUSTER,
            job="4711",
            restart=self.restart,
            arrived_at=self.now,
            nodes=whole.nodes,
            **columns,
            **figures,
            step_s=np.full(len(rows), open_s),
            doing=np.full(len(rows), DOING.index(doing), np.int8),
        )

    def look(self, **more: Any) -> TickInput:
        return look(self.now, steps=self.steps, slurm=self.shown, **more)

    def take(self, *batches: StepBatch) -> None:
        jobs = {
            name: msgspec.structs.replace(shown, restarts=self.restart)
            for name, shown in self.shown.jobs.items()
        }
        self.shown = msgspec.structs.replace(self.shown, taken_at=self.now, jobs=jobs)
        self.steps.update(batches, self.shown, self.now)
        sensed = self.detector.tick(self.look(watched=self.watched, node_reports=self.links))
        self.found += sensed.findings
        self.clear = dict(sensed.clear_since)


def others(*missing: int) -> list[int]:
    return [rank for rank in range(RANKS) if rank not in missing]


def standing(says: Mapping[str, list[int]] | None, seconds: float = 90, **fields: object) -> Job:
    job = Job(**fields)  # type: ignore[arg-type]
    job.run(40)
    assert job.found == []
    job.stand(seconds, says)
    return job


def test_a_rank_that_never_comes_is_named_a_minute_later() -> None:
    job = standing({"collective": others(13), "compute": [13]})
    (found,) = job.found
    assert (found.fault, found.fault_class, found.component) == ("hang", FaultClass.informational, JOB)
    assert found.jobs == ("4711",)
    assert found.affected == (Component(cluster=CLUSTER, node=node_name(1), gpu=5),)
    assert found.arrived_at - found.at == timedelta(seconds=65)
    assert found.text == (
        "job 4711: no step since 03:03:20 UTC, for 65 s; the last one was step 40; a step usually takes 5 s; "
        "step 41: 31 of 32 ranks wait in its collective; rank 13 (gpu0001, GPU 5) is still computing"
    )


def test_a_rank_that_says_nothing_any_more_is_named() -> None:
    """Its process is stopped or gone: the others' senders go on."""
    (found,) = standing({"collective": others(30)}).found
    assert "rank 30 (gpu0003, GPU 6) no longer reports" in found.text


def test_all_came_and_it_does_not_end() -> None:
    (found,) = standing({"collective": others()}).found
    assert "all 32 ranks reached the collective of step 41" in found.text and found.affected == ()


def test_many_missing_ranks_share_a_cause_and_none_is_named() -> None:
    (found,) = standing({"collective": others(*range(8, 24)), "compute": list(range(8, 24))}).found
    assert "16 of 32 ranks never reached step 41: no single rank is named" in found.text
    assert found.affected == ()


@pytest.mark.parametrize(
    ("says", "seconds", "why"),
    [
        (None, 1200, "its senders died, or healer cannot be reached: nobody says that it stands"),
        ({"collective": list(range(10))}, 1200, "most senders are gone: it may come to its end"),
        ({"checkpoint": [0], "collective": others(0)}, 1200, "it saves, as it says"),
        ({"evaluation": others()}, 1200, "it evaluates, as it says"),
        ({"between": others()}, 1200, "nobody is in a step"),
        ({"between": [0], "collective": others(0)}, 170, "one rank may save for all"),
        ({"compute": others()}, 170, "all compile a new shape"),
        ({"collective": others(3), "compute": [3]}, 55, "one rank collects its garbage"),
    ],
)
def test_pauses_and_lost_senders_are_not_reported_as_hangs(
    says: dict[str, list[int]] | None, seconds: float, why: str
) -> None:
    assert standing(says, seconds).found == [], why


def test_gpus_that_rest_speak_where_no_rank_does() -> None:
    job = standing(None, 175, rest=True)
    assert job.found == []
    job.stand(20)
    (found,) = job.found
    assert "its ranks do not report their position" in found.text and found.confidence == 0.7


@pytest.mark.parametrize("rest", [False, None])
def test_gpus_that_work_or_are_unknown_make_no_hang(rest: bool | None) -> None:
    assert standing(None, 1200, rest=rest).found == []


def test_ranks_that_all_compute_are_believed_as_long_as_their_gpus_work() -> None:
    assert standing({"compute": others()}, 1200, rest=False).found == []
    assert len(standing({"compute": others()}, 300, rest=True).found) == 1


def test_a_lost_link_is_enough_as_soon_as_a_step_is_overdue() -> None:
    job = Job()
    job.run(40)
    job.links = {node_name(2): NodeReport(at=job.now, text="mlx5_0: Link down")}
    job.stand(10)
    (found,) = job.found
    assert found.affected == (Component(cluster=CLUSTER, node=node_name(2)),)
    assert found.arrived_at - found.at == timedelta(seconds=10)
    assert "gpu0002 reported at 03:03:20 UTC: mlx5_0: Link down" in found.text


def test_a_link_lost_long_before_or_in_a_job_that_goes_on_or_rests_is_nothing() -> None:
    job = Job()
    job.run(40)
    job.links = {node_name(2): NodeReport(at=job.now - timedelta(seconds=90), text="Link down")}
    job.stand(30)
    assert job.found == []
    job = Job(links={node_name(2): NodeReport(at=START + timedelta(seconds=200), text="Link down")})
    job.run(60)
    assert job.found == []
    job.steps.update([job.words("checkpoint", [0], 1.0, 0)], job.shown, job.now)
    job.links = {node_name(2): NodeReport(at=job.now, text="Link down")}
    job.stand(30)
    assert job.found == []


def test_a_job_with_long_pauses_of_its_own_is_waited_for_longer() -> None:
    job = Job()
    job.run(20)
    job.run(1, step_s=80)
    job.run(20)
    job.stand(155, {"collective": others(3), "compute": [3]})
    assert job.found == []
    job.stand(20, {"collective": others(3), "compute": [3]})
    assert len(job.found) == 1


def test_slow_steps_are_waited_for_by_their_own_measure() -> None:
    job = Job()
    job.run(20, step_s=40)
    job.stand(195, {"collective": others(3), "compute": [3]})
    assert job.found == []


def test_a_suspended_job_and_an_old_picture_are_no_hang() -> None:
    job = Job()
    job.run(40)
    running = job.shown
    job.shown = msgspec.structs.replace(
        running, jobs={"4711": msgspec.structs.replace(running.jobs["4711"], state="SUSPENDED")}
    )
    says = {"collective": others(3), "compute": [3]}
    job.stand(600, says)
    job.shown = running
    job.stand(50, says)
    assert job.found == []


def test_it_is_over_when_steps_go_on_or_the_job_ends() -> None:
    job = standing({"collective": others(13), "compute": [13]})
    assert HANG not in job.clear
    job.run(3)
    assert HANG in job.clear and len(job.found) == 1
    job.stand(90, {"collective": others(13), "compute": [13]})
    assert len(job.found) == 2 and HANG not in job.clear
    job.shown = msgspec.structs.replace(job.shown, jobs={})
    job.stand(5)
    assert HANG in job.clear


def test_persisting_hang_is_repeated_and_missing_ranks_are_named_once_known() -> None:
    job = Job()
    job.run(40)
    job.links = {node_name(2): NodeReport(at=job.now, text="Link down")}
    job.stand(10)
    job.stand(80, {"collective": others(17), "compute": [17]})
    first, second = job.found
    assert first.evidence[0].digest != second.evidence[0].digest
    assert "rank 17" in second.text and "rank 17" not in first.text
    job.stand(240, {"collective": others(17), "compute": [17]})
    assert len(job.found) == 2
    job.stand(120, {"collective": others(17), "compute": [17]})
    assert len(job.found) == 3 and job.found[2].evidence[0].digest == second.evidence[0].digest


def test_hung_job_is_still_known_after_a_restart_of_healer() -> None:
    job = Job()
    job.run(40)
    says = {"collective": others(13), "compute": [13]}
    job.stand(30, says)
    job.detector = Hangs(lambda *_: job.rest)
    job.stand(40, says)
    assert len(job.found) == 1 and HANG not in job.clear


def test_no_hang_while_healer_received_nothing() -> None:
    job = Job(rest=True)
    job.run(40)
    job.at_s += 1200
    job.shown = msgspec.structs.replace(job.shown, taken_at=job.now)
    sensed = job.detector.tick(job.look(listening_since=job.now - timedelta(seconds=20)))
    assert sensed.findings == ()


def test_a_rank_of_another_node_has_no_say() -> None:
    """A word for a rank that runs elsewhere, by a node of the same job, counts for nothing."""
    job = Job()
    job.run(40)
    forged = job.words("collective", [9], 60.0, 5)
    foreign = replace(forged, node=np.zeros(1, np.int32))
    job.take(foreign)
    assert job.steps.dropped == 1


def test_check_between_ticks_reports_links_only() -> None:
    job = Job(rest=False)
    job.run(40)
    job.stand(290, {"compute": others()})
    assert job.found == []
    elsewhere = {"gpu9999": NodeReport(at=job.now, text="Link down")}
    assert job.detector.tick_early(job.look(node_reports=elsewhere)) == (), (
        "what its GPUs do is asked by ticks"
    )


def loss(at: datetime, node: int = 2, *, kind: str = "fs-read-only") -> dict[str, NodeReport]:
    where = Component(cluster=CLUSTER, node=node_name(node))
    line = Evidence(digest="d1", at=at, component=where, text="read-only", sense=Sense.kernel, line="EXT4-fs")
    return {node_name(node): NodeReport(at=at, text="read-only", fault=kind, evidence=line)}


def blamed(job: Job) -> list[Finding]:
    """The first of each node: it is reported again while the job hangs."""
    found = [one for one in reversed(job.found) if one.fault == "node-stopped-job"]
    return list({one.component: one for one in found}.values())


@pytest.mark.parametrize("kind", ["fs-read-only", "disk-lost", "host-memory-uncorrected", "kernel-oops"])
def test_a_node_that_lost_its_disk_or_memory_is_blamed_as_its_job_stops(kind: str) -> None:
    job = Job()
    job.run(40)
    job.links = loss(job.now, kind=kind)
    job.stand(120)
    (found,) = blamed(job)
    assert found.component == Component(cluster=CLUSTER, node=node_name(2)) and found.jobs == ("4711",)
    assert (found.fault_class, found.unusable) == (FaultClass.fatal, True)
    assert [evidence.sense for evidence in found.evidence] == [Sense.kernel, Sense.step_times]
    assert [evidence.job for evidence in found.evidence] == ["4711", None]
    assert found.arrived_at - START == timedelta(seconds=225)


def test_a_job_that_goes_on_saves_or_stops_for_two_nodes_blames_none() -> None:
    goes_on = Job(links=loss(START + timedelta(seconds=100)))
    goes_on.run(60)
    saves = Job()
    saves.run(40)
    saves.links = loss(saves.now)
    saves.steps.update([saves.words("checkpoint", [0], 1.0, 0)], saves.shown, saves.now)
    saves.stand(40)
    several = Job()
    several.run(40)
    several.links = loss(several.now) | loss(several.now, 3)
    several.stand(120)
    assert blamed(goes_on) == blamed(saves) == blamed(several) == []


def test_an_older_loss_is_blamed_only_where_the_job_waits_for_that_node() -> None:
    found = []
    for rank in (13, 30):
        job = Job()
        job.run(40)
        job.links = loss(job.now - timedelta(seconds=120), 1)
        job.stand(90, {"collective": others(rank), "compute": [rank]})
        found.append([blamed_of.component.node for blamed_of in blamed(job)])
    assert found == [[node_name(1)], []]


@pytest.mark.parametrize("switch", ["", "leaf1"])
def test_of_several_that_lost_something_none_is_blamed_though_the_job_waits_for_one(switch: str) -> None:
    """Also where the other one is not a node of the job: their switch may be gone."""
    job = Job()
    nodes = {name: msgspec.structs.replace(node, switch=switch) for name, node in slurm(5).nodes.items()}
    job.shown = msgspec.structs.replace(job.shown, nodes=nodes)
    job.run(40)
    before = job.now - timedelta(seconds=120)
    job.links = loss(before, 1) | loss(before + timedelta(seconds=30), 4 if switch else 3)
    job.stand(90, {"collective": others(13), "compute": [13]})
    assert blamed(job) == []


def test_a_lost_link_alone_blames_no_node() -> None:
    """Its port has to be down by its own state, for a while."""
    job = Job()
    job.run(40)
    job.links = loss(job.now, kind="nic-link-down")
    job.stand(120)
    assert blamed(job) == [] and job.found


def quiet_looks(job: Job) -> list[datetime]:
    """When all GPUs were reported as quiet, as evidence of the hang."""
    return [sign.at for one in job.found for sign in one.evidence if sign.sense is Sense.metrics]


def test_quiet_gpus_are_a_second_sense_and_are_looked_at_twice_a_minute_apart() -> None:
    says = {"collective": others(13), "compute": [13]}
    looks = quiet_looks(standing(says, 200, rest=True))
    assert len(looks) == 2
    assert timedelta(seconds=60) <= looks[1] - looks[0] <= timedelta(seconds=70)
    assert quiet_looks(standing(says, 200, rest=False)) == []
    assert quiet_looks(standing(says, 200, rest=None)) == []


def test_ranks_that_wait_for_no_peer_prove_nothing_with_quiet_gpus() -> None:
    assert quiet_looks(standing(None, 400, rest=True)) == []


def test_a_restarted_job_keeps_the_pace_of_its_life_before() -> None:
    job = Job()
    job.run(40)
    job.restart = 1
    job.run(4)
    job.stand(90, {"collective": others(13), "compute": [13]})
    (found,) = job.found
    assert f"rank 13 ({node_name(1)}" in found.text


def test_a_first_life_of_four_steps_is_waited_for() -> None:
    job = Job()
    job.run(4)
    job.stand(90, {"collective": others(13), "compute": [13]})
    assert job.found == []


@pytest.mark.parametrize(("steps", "step_s", "after_s"), [(2, 5.0, 65), (4, 5.0, 65), (4, 40.0, 125)])
def test_a_first_life_of_few_steps_is_judged_beside_a_nodes_own_loss_alone(
    steps: int, step_s: float, after_s: int
) -> None:
    job = Job()
    job.run(steps, step_s=step_s)
    stalled_at, job.links = job.now, loss(job.now)
    job.stand(after_s - 5)
    assert blamed(job) == []
    job.stand(60)
    (found,) = blamed(job)
    assert found.component.node == node_name(2) and found.arrived_at - stalled_at <= timedelta(
        seconds=after_s + 5
    )
    goes_on = Job(links=loss(START))
    goes_on.run(7, step_s=59.0)
    assert goes_on.found == []
