"""With whole steps alone: which nodes are suspects of a slow job, and why. No node is blamed."""

from datetime import timedelta

import numpy as np
import pytest

from healer.detection.suspects import Outcome, Suspects, first_half, posterior, suspects
from healer.detection.tick import Senses
from healer.incidents.lifecycle import open_faults
from healer.model import Component, FaultClass, Incident, SlurmJob, SlurmNode, SlurmSnapshot
from healer.sim.stores import MemoryColumns
from tests.support.loop import shipped
from tests.support.steps import CLUSTER, START, batch, node_name


def on(*nodes: int) -> frozenset[str]:
    return frozenset(node_name(one) for one in nodes)


def outcome(job: str, *nodes: int, slow_h: float | None = None, until_h: float = 0) -> Outcome:
    """Hours after START."""
    slow = None if slow_h is None else START + timedelta(hours=slow_h)
    return Outcome(job, on(*nodes), slow, START + timedelta(hours=until_h))


def test_a_node_common_to_slow_jobs_and_in_no_fast_one_comes_first() -> None:
    jobs = [(on(*range(8)), True), (on(7, *range(8, 15)), True), (on(*range(6)), False)]
    found = posterior(jobs, {})
    assert max(found, key=lambda node: found[node]) == node_name(7)
    assert found[node_name(7)] > 0.5
    assert found[node_name(0)] < 0.01 < found[node_name(6)] < 0.2
    assert posterior([*jobs, (on(7, *range(15, 22)), True)], {})[node_name(7)] > 0.9


def test_two_bad_nodes_in_different_jobs_are_both_found() -> None:
    rng = np.random.default_rng(4)
    bad = {3, 17}
    jobs = []
    for _ in range(60):
        nodes = set(rng.choice(24, 6, replace=False).tolist())
        jobs.append((on(*nodes), bool(nodes & bad)))
    found = posterior(jobs, {})
    assert set(sorted(found, key=lambda node: -found[node])[:2]) == on(*bad)
    assert all(found[node_name(one)] < 0.05 for one in range(24) if one not in bad)


def test_one_slow_job_proves_nothing_and_an_open_fault_does() -> None:
    own = outcome("1", *range(16), slow_h=0)
    even = suspects(own, [own], {})
    assert len({round(one.share, 6) for one in even}) == 1 and not any(one.why for one in even)
    suspected = suspects(own, [own], {node_name(9): ["GPU clock low"]})
    assert suspected[0].node == node_name(9) and suspected[0].why == ("open there: GPU clock low",)
    assert suspected[0].share > 0.4 > 10 * suspected[1].share


def test_only_fast_jobs_after_the_onset_clear_a_suspect() -> None:
    own = outcome("1", 0, 1, 2, 3, slow_h=0, until_h=2)
    before, since = outcome("2", 0, 1, until_h=-1), outcome("3", 2, 3, until_h=1)
    share = {one.node: one.share for one in suspects(own, [own, before, since], {})}
    assert share[node_name(0)] > 3 * share[node_name(2)]


def test_a_job_that_was_slow_the_day_before_counts_and_an_older_one_does_not() -> None:
    own = outcome("1", 0, 1, 2, 3, slow_h=0)
    lately = outcome("2", 1, 9, slow_h=-20, until_h=-18)
    long_ago = outcome("3", 2, 9, slow_h=-30, until_h=-29)
    first, second, *_ = suspects(own, [own, lately, long_ago], {})
    assert first.node == node_name(1) and first.why == ("slow in job 2 too",)
    assert second.why == ()


def test_the_first_half_to_test_is_as_likely_as_the_rest() -> None:
    own = outcome("1", *range(16), slow_h=0)
    assert len(first_half(suspects(own, [own], {}))) == 8
    one = suspects(own, [own], {node_name(9): ["x"]})
    assert first_half(one)[0] == node_name(9) and len(first_half(one)) < 8


@pytest.mark.heavy
def test_slow_job_with_whole_steps_is_reported_with_its_suspects() -> None:
    """Job 1 was slow on nodes 0 to 3; job 2 is slow on 3 to 6, and a fault is open on node 5."""
    senses = Senses(CLUSTER, shipped(), MemoryColumns())
    nodes = {node_name(one): SlurmNode(name=node_name(one), state=("ALLOCATED",), gpus=1) for one in range(8)}
    number, found = 0, []

    def run(job: str, held: range, steps: int, step_s: float) -> None:
        nonlocal number
        for _ in range(steps):
            number += 1
            now = START + timedelta(seconds=5 * number)
            shown = SlurmJob(id=job, state="RUNNING", nodes=tuple(node_name(one) for one in held))
            slurm = SlurmSnapshot(cluster=CLUSTER, taken_at=now, nodes=nodes, jobs={job: shown})
            sent = batch(number, None, job=job, ranks=4, step_s=step_s, placed=False, at=now)
            senses.take([], [sent], slurm, now)
            faults = {node_name(5): ("GPU clock low",)}
            found.extend(senses.tick(slurm, now, (), None, faults).findings)

    run("1", range(4), 60, 5.0)
    run("1", range(4), 30, 7.0)
    run("2", range(3, 7), 60, 5.0)
    run("2", range(3, 7), 30, 7.0)
    slow = [one for one in found if one.fault == "job-slow"]
    assert "its 4 nodes cannot be told apart" in slow[0].evidence[1].text and slow[0].affected == ()
    last = slow[-1]
    assert last.component == Component(cluster=CLUSTER, job="2")
    assert {one.node for one in last.affected} == {node_name(3), node_name(5)}
    text = last.evidence[1].text
    assert "slow in job 1 too" in text and "open there: GPU clock low" in text
    assert "none of them blamed" in text and "`healer run bisect --job 2`: it tests halves" in text


def test_a_repaired_node_is_no_suspect_for_what_was_before() -> None:
    kept = Suspects()
    kept._outcomes = {("1", 0): outcome("1", 0, 1, slow_h=0)}
    kept.forget(node_name(1))
    assert kept._outcomes["1", 0].nodes == on(0)


def test_open_faults_are_those_that_speak_of_the_hardware() -> None:
    def incident(fault: str, fault_class: FaultClass, **fields: object) -> Incident:
        where = Component(cluster=CLUSTER, node=node_name(1))
        about = {
            "id": fault,
            "cluster": CLUSTER,
            "rule": fault,
            "fault": fault,
            "title": fault,
            "root": where,
        }
        about |= {"opened": START, "updated": START, "settle_until": START, "fault_class": fault_class}
        return Incident(**(about | fields))  # type: ignore[arg-type]

    faults = open_faults(
        [
            incident("gpu-hot", FaultClass.degraded),
            incident("unusual-node", FaultClass.informational),
            incident("person-drain", FaultClass.informational),
            incident("gpu-slow", FaultClass.degraded, clear_since=START),
        ]
    )
    assert faults == {node_name(1): ("gpu-hot", "unusual-node")}
