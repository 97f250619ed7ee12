"""All senses at once: whose end is known without any measurement."""

from dataclasses import replace
from datetime import timedelta

import numpy as np
import pytest

from healer.detection.forest import Forest
from healer.detection.lemons import MARKS, Lemons
from healer.detection.level_shift import DRIFTED
from healer.detection.tick import Senses
from healer.model import Column, Component, Part, SlurmJob, SlurmNode, SlurmSnapshot
from healer.model.telemetry import Report
from healer.observations.job_marks import JobMarks
from healer.sim.stores import MemoryColumns
from tests.support import steps
from tests.support.loop import shipped
from tests.support.measured import CLUSTER, START

JOB = Component(cluster=CLUSTER, job="7")
NODE = Component(cluster=CLUSTER, node="gpu1")
GPU = Component(cluster=CLUSTER, node="gpu1", gpu=9, job="7")


def picture(nodes: tuple[str, ...] = ("gpu0", "gpu1"), state: str | None = "RUNNING") -> SlurmSnapshot:
    jobs = {"7": SlurmJob(id="7", state=state, nodes=nodes)} if state else {}
    shown = {name: SlurmNode(name=name, state=("ALLOCATED",), gpus=8) for name in nodes}
    return SlurmSnapshot(cluster=CLUSTER, taken_at=START, nodes=shown, jobs=jobs)


@pytest.mark.parametrize(
    ("where", "after", "clear"),
    [
        (JOB, picture(state="COMPLETED"), True),
        (JOB, picture(state="PENDING"), True),
        (JOB, picture(state=None), True),
        (JOB, picture(), False),
        (NODE, picture(("gpu0",)), True),
        (GPU, picture(("gpu0",)), True),
        # A GPU beyond those that Slurm has is unknown, and a job that ended leaves its node's faults there.
        (GPU, picture(state=None), False),
        # Slurm reports nothing at all.
        (NODE, picture(()), False),
        (JOB, picture((), state=None), False),
    ],
)
def test_finding_clears_when_slurm_no_longer_has_its_subject(
    where: Component, after: SlurmSnapshot, clear: bool
) -> None:
    senses = Senses(CLUSTER, shipped(), MemoryColumns())
    pair = ("any-fault", where)
    since = []
    for step, slurm in enumerate((picture(), after, after)):
        now = START + timedelta(seconds=5 * step)
        senses.take((), (), slurm, now)
        since.append(senses.tick(slurm, now, {pair}).clear_since.get(pair))
    gone_at = START + timedelta(seconds=5)
    assert since == [None, gone_at, gone_at] if clear else [None] * 3


@pytest.mark.parametrize("by", ["", "prometheus (a1)"])
def test_a_finding_names_the_relay_whose_figures_it_rests_on(by: str) -> None:
    book, slurm, found = MemoryColumns(), picture(), []
    senses = Senses(CLUSTER, shipped(), book)
    ids = np.array(book.ids([Column("row_remap_failed", Part(gpu=3))]), np.int32)
    for step in range(12):
        now = START + timedelta(seconds=5 * step)
        reports = [
            Report(CLUSTER, "gpu1", now, now, ids, np.ones(1), by),
            Report(CLUSTER, "gpu0", now, now, ids, np.zeros(1), "another relay (b2)"),
        ]
        senses.take(reports, (), slurm, now)
        found += senses.tick(slurm, now, ()).findings
    (finding,) = found
    assert (finding.rule, finding.component.node) == ("gpu-row-remap-failed", "gpu1")
    assert [item.relayed_by for item in finding.evidence] == [by]


def test_step_times_carry_their_senders_to_the_evidence() -> None:
    senses, slurm, found = Senses(CLUSTER, shipped(), MemoryColumns()), steps.slurm(), []
    for number in range(40):
        now = steps.START + timedelta(seconds=5 * number)
        compute_s = np.where(np.arange(32) == 5, 2.0, 1.0) * (1 + 0.002 * np.sin(np.arange(32) + number))
        sent = replace(steps.batch(number, compute_s), sent_by="job 4711 (c3)")
        senses.take((), [sent], slurm, now)
        found += senses.tick(slurm, now, ()).findings
    (item,) = {one.fault: one.evidence[0] for one in found if one.fault == "straggler"}.values()
    assert (item.sent_by, item.relayed_by) == ("job 4711 (c3)", "")


def whole(marks: JobMarks | None = None) -> Senses:
    """As in production: with a forest, and with lemons."""
    lemons = Lemons(CLUSTER, marks or JobMarks(), lambda *_: [], lambda *_: None)
    return Senses(CLUSTER, shipped(), MemoryColumns(), Forest(lambda: (), lambda _: None), lemons)


def test_detectors_save_learnt_state_and_save_nothing_when_empty() -> None:
    first = whole()
    assert first.has_samples, "lemons need no samples"
    assert first.pack() == {}
    slurm = picture(state="FAILED")
    first.take((), (), slurm, START)
    first.tick(slurm, START, ())
    packed = first.pack()
    assert {DRIFTED, MARKS} <= packed.keys()
    marks = JobMarks()
    second = whole(marks)
    assert second.load(packed) == []
    assert marks.marks["gpu0"].failed_of_many == 0.5
    assert sorted(whole().load({DRIFTED: b"x", MARKS: b"x"})) == [DRIFTED, MARKS]
