"""A leaf that goes away and planned work, on a real Slurm: nothing healthy is drained, what is dead is.

Both at the same time, with the breaker as it ships. Only the detector's waits are shorter
(`tests.support.hurried`).
"""

import os
import signal
import time
from collections.abc import Iterator
from contextlib import nullcontext, suppress
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest

from healer.embedded.embedded_slurm import RealSlurm
from tests.support.right_act import Leaf, maintenance, rules_with
from tests.support.site import CLUSTER, WIDE_GUARDS, XID_79, Site, site_on, stays
from tests.support.slurm import sbatch
from tests.support.stack import scratch_folder
from tests.support.wait import wait_until

pytestmark = pytest.mark.slurm

NAMES = [f"gpu{number:04d}" for number in range(1, 33)]
LEAF, OTHERS, WORKED_ON = NAMES[:8], NAMES[8:20], NAMES[20:26]
LAST_BACK, DIED = LEAF[2], LEAF[5]
STILL_LOST, LOST_AFTER = WORKED_ON[0], NAMES[27]
UPDATED = NAMES[28:32]
LOOPS = NAMES[26]
#: After the update.
FLAPS, LOST_LATER = UPDATED[1], UPDATED[2]
NIC_DOWN = "mlx5_core 0000:5e:00.0 ib0: Link down"
#: Five of 32 nodes are a storm, as it ships.
BREAKER = {"HEALER_BREAKER_SHARE": "0.15"}
STORM = OTHERS[:6]
ROW = "NVRM: Xid (PCI:{pci}): 63, pid=7, Row Remapper: New row marked for remapping, reset gpu to activate."
PLACES = {"gpu[0001-0008]": {"switch": "leaf1"}, "gpu[0009-0032]": {"switch": "leaf2"}}


@pytest.fixture(scope="module")
def site(real_slurm: RealSlurm) -> Iterator[Site]:
    with scratch_folder() as folder:
        rules = rules_with(folder, (), PLACES)
        with site_on(
            real_slurm,
            program=("-m", "tests.support.hurried", "silence", "proof", "events", "plans"),
            HEALER_RULES_DIR=str(rules),
            **WIDE_GUARDS | BREAKER,
        ) as one:
            yield one


@pytest.fixture(scope="module")
def leaf(site: Site) -> Iterator[Leaf]:
    """It went away, one node before the others, and came back but for two nodes."""
    one = Leaf(site, LEAF + OTHERS)
    with one.beating():
        first, *rest = LEAF
        one.silence(first)
        wait_until(lambda: not site.node(first).responding, 20, what="Slurm misses the first", every_s=0.1)
        for node in rest:
            one.silence(node)
        wait_until(lambda: of_leaf(site), 40, what="the outage is an incident", every_s=0.2)
        for node in LEAF:
            if node not in {LAST_BACK, DIED}:
                one.answer(node)
        try:
            yield one
        finally:
            for node in LEAF:
                site.slurm.start_node(node)


def of_leaf(site: Site) -> dict[str, Any] | None:
    found = (one for one in site.get("/incidents", limit=500)["items"] if one["rule"] == "switch-silent")
    return next(found, None)


def drained(site: Site, nodes: list[str]) -> list[str]:
    """Those that healer ever drained."""
    return [node for node in nodes if site.drains(node)]


def test_reboots_of_a_persons_update_are_one_note(site: Site) -> None:
    with maintenance(site, UPDATED):
        for node in UPDATED:
            boot(site, node)
        assert all(site.incidents(node) == [] for node in UPDATED)
    note = wait_until(lambda: note_of_reboots(site), 20, what="the note", every_s=0.2)
    assert (note["severity"], note["cause"]) == ("P3", "maintenance")
    assert {one["node"] for one in note["affected"]} == set(UPDATED)
    for node in UPDATED:
        site.scontrol(f"NodeName={node}", "State=RESUME")
    wait_until(lambda: note_of_reboots(site)["state"] == "resolved", 30, what="the note is over")
    assert drained(site, UPDATED) == []
    assert all(site.runs(node) == [] for node in UPDATED)


def boot(site: Site, node: str) -> None:
    """Slurm overlooks a boot in the second of the node's last answer: then it boots once more."""
    for patience_s in (5, 30):
        site.slurm.boot_node(node)
        with suppress(AssertionError) if patience_s == 5 else nullcontext():
            wait_until(lambda: "rebooted" in site.node(node).reason, patience_s, what=f"{node} has booted")
            return


def note_of_reboots(site: Site) -> dict[str, Any] | None:
    found = [one for one in site.get("/incidents", limit=500)["items"] if UPDATED[0] in str(one["affected"])]
    assert [one["rule"] for one in found] in ([], ["planned-reboots"])
    return site.get(f"/incidents/{found[0]['id']}") if found else None


def test_faults_under_planned_work_are_not_due_at_its_end_and_a_gpu_lost_after_it_is(
    site: Site, leaf: Leaf
) -> None:
    with maintenance(site, WORKED_ON):
        for node in WORKED_ON:
            site.kernel(node, XID_79)
        held = [site.incident(node) for node in WORKED_ON]
        assert {(one["severity"], one["cause"]) for one in held} == {("P3", "maintenance")}
    site.kernel(LOST_AFTER, XID_79)
    wait_until(lambda: site.drained_by_us(LOST_AFTER), 20, what=f"{LOST_AFTER} is drained", every_s=0.1)
    site.kernel(STILL_LOST, XID_79)
    wait_until(lambda: site.drained_by_us(STILL_LOST), 20, what=f"{STILL_LOST} is drained", every_s=0.1)
    rest = [node for node in WORKED_ON if node != STILL_LOST]
    assert drained(site, rest) == []
    assert site.get("/breaker")["state"] == "closed"
    for node in rest:
        wait_until(lambda node=node: site.incident(node)["state"] == "resolved", 40, every_s=0.2)
        assert "was not seen in the" in site.incident(node)["closed_why"]
    assert drained(site, rest) == []


def test_reports_of_nodes_in_an_outage_are_part_of_it(site: Site, leaf: Leaf) -> None:
    """Two of the nodes are still away."""
    for node in (LEAF[0], LEAF[1], FLAPS):
        for _ in range(3):
            site.kernel(node, NIC_DOWN)
            time.sleep(2.5)
    wait_until(lambda: site.incidents(FLAPS), 20, what="elsewhere such flaps are a fault", every_s=0.1)
    for node in (LEAF[0], LEAF[1]):
        own = [one["rule"] for one in site.incidents(node) if one["merged_into"] is None]
        assert own in ([], ["switch-silent"])
    assert drained(site, LEAF) == []


def test_of_a_leaf_that_was_away_only_the_node_that_died_is_drained(site: Site, leaf: Leaf) -> None:
    assert drained(site, LEAF) == [], "its last two nodes are part of its outage"
    leaf.answer(LAST_BACK)
    wait_until(lambda: site.drained_by_us(DIED), 40, what=f"{DIED} is drained", every_s=0.2)
    wait_until(lambda: (of_leaf(site) or {})["state"] == "resolved", 30, what="the outage is over")
    assert drained(site, LEAF + OTHERS) == [DIED]
    assert site.incident(DIED)["rule"] == "node-silent"


def test_boots_under_jobs_that_slurm_alone_shows_take_the_node_out_when_they_repeat(site: Site) -> None:
    job = boot_under_a_job(site)
    wait_until(lambda: site.incidents(LOOPS), 40, what="the boot is an incident", every_s=0.1)
    (first,) = site.incidents(LOOPS)
    assert (first["rule"], first["jobs_hit"], first["nodes"]) == ("slurm-drain", [job], {LOOPS: "suspect"})
    assert drained(site, [LOOPS]) == []
    # A loop. On a busy machine a boot may come between two looks of healer at its job.
    for _ in range(3):
        site.slurm.run("scancel", job)  # which would start there before the next
        site.scontrol(f"NodeName={LOOPS}", "State=RESUME")
        job = boot_under_a_job(site)
        with suppress(AssertionError):
            wait_until(
                lambda: "reboots-under-jobs" in rules_of(site, LOOPS), 8, what="the loop is an incident"
            )
            break
    assert "reboots-under-jobs" in rules_of(site, LOOPS)
    wait_until(lambda: site.drained_by_us(LOOPS), 40, what=f"{LOOPS} is drained", every_s=0.1)


def boot_under_a_job(site: Site) -> str:
    """The job that it ends. Slurm counts in seconds: it must have begun some before."""
    site.jobs.append(job := sbatch(site.slurm, f"--nodelist={LOOPS}", gpus=8))
    wait_until(lambda: has_run(site, job, 3.0), 40, what="its job is at work", every_s=0.2)
    boot(site, LOOPS)
    return job


def has_run(site: Site, job: str, seconds: float) -> bool:
    """By the picture that healer acts on."""
    answer = site.api("viewer").get(f"/jobs/{CLUSTER}/{job}")
    shown = answer.json()["job"] if answer.status_code == 200 else {"state": None}
    if shown["state"] != "RUNNING":
        return False
    return datetime.now(UTC) - datetime.fromisoformat(shown["start_at"]) >= timedelta(seconds=seconds)


def rules_of(site: Site, node: str) -> set[str]:
    return {incident["rule"] for incident in site.incidents(node)}


def after_its_start(site: Site) -> str:
    """The log of the detector that runs."""
    return site.stack.log("detector").rpartition("detector became leader")[2]


def test_a_detector_that_dies_over_half_a_rule_file_detects_by_the_rules_before(site: Site) -> None:
    """The line comes while none runs."""
    rules = Path(site.stack.environ["HEALER_RULES_DIR"]) / "escalations.yaml"
    whole = rules.read_text()
    wait_until(
        lambda: "metric windows rebuilt" in site.stack.log("detector"), 30, what="its rules are proven"
    )
    rules.write_text(whole[: len(whole) // 2] + "\n  - {")
    try:
        before = site.stack.pids()["detector"]
        os.kill(before, signal.SIGKILL)
        site.kernel(LOST_LATER, XID_79)
        wait_until(lambda: site.stack.pids().get("detector", before) != before, 20, what="another detector")
        wait_until(lambda: site.drained_by_us(LOST_LATER), 30, what=f"{LOST_LATER} is drained", every_s=0.1)
        log = site.stack.log("detector")
        assert "using the last proven set" in log
        wait_until(
            lambda: "metric windows rebuilt" in after_its_start(site), 30, what="figures are judged too"
        )
    finally:
        rules.write_text(whole)


def test_plans_of_a_wave_are_kept_until_the_breaker_is_reset_and_then_carried_out(site: Site) -> None:
    jobs = {node: site.sbatch(f"--nodelist={node}") for node in STORM}
    for node in STORM:
        site.kernel(node, ROW)
    wait_until(lambda: site.get("/breaker")["state"] == "open", 20, what="the breaker opens", every_s=0.1)
    for node in STORM:
        wait_until(lambda node=node: site.runs(node), 20, what=f"the plan of {node}", every_s=0.1)
    assert [one["rule"] for one in site.open_incidents() if one["rule"] == "wave"] == ["wave"]
    own = [one for node in STORM for one in site.incidents(node) if one["rule"] == "gpu-degraded"]
    assert [one["merged_into"] for one in own] == [None] * len(STORM)

    (first, *rest) = STORM
    site.slurm.run("scancel", jobs[first])
    stays(lambda: drained(site, STORM) == [], 3.0, what="nothing is taken while it is open")
    site.post("/breaker/reset", {"reason": "a batch of worn boards, and no roll-out"}, role="admin")
    wait_until(lambda: site.drained_by_us(first), 40, what="the plan of the free node", every_s=0.2)
    assert drained(site, rest) == []
    assert {site.job(jobs[node]).state for node in rest} == {"RUNNING"}
