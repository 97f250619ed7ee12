"""The first loop, from outside: a lost GPU, a drain, a restart elsewhere, a return; what keeps it back."""

from datetime import UTC, datetime
from typing import Any

import pytest

from healer.embedded.embedded_slurm import RealSlurm
from tests.support.site import XID_79, Site, site_on, stays
from tests.support.wait import wait_until

pytestmark = pytest.mark.slurm


def lose_gpu_under_a_job(site: Site) -> tuple[str, str]:
    """A job of two nodes loses a GPU on its first; (job, that node)."""
    job = site.sbatch("--nodes=2", "--requeue")
    first = site.job(job).nodes[0]
    site.snapshot()
    site.kernel(first, XID_79)
    return job, first


def wait_drained(site: Site, node: str, timeout_s: float = 10) -> None:
    wait_until(lambda: site.drained_by_us(node), timeout_s, what=f"healer drains {node}", every_s=0.05)


def restarted_once(site: Site, job: str) -> bool:
    shown = site.job(job)
    return shown.state == "RUNNING" and shown.restarts == 1


def test_a_lost_gpu_is_drained_its_job_restarted_once_and_the_node_comes_back(site: Site) -> None:
    job, node = lose_gpu_under_a_job(site)
    wait_drained(site, node)
    incident = site.incident(node)
    assert site.node(node).reason == f"healer:gpu-lost inc:{incident['id'][:8]} Xid 79: GPU fell off the bus"

    wait_until(lambda: restarted_once(site, job), 30, what=f"job {job} runs again", every_s=0.1)
    assert node not in site.job(job).nodes
    run = site.run_in(node, "waiting")
    assert site.steps(run["id"])["jobs"]["evidence"]["jobs"] == {job: 0}
    assert site.drains(node) == 1
    site.keep("lost-gpu")
    site.audit_holds()

    assert site.resume(node).status_code == 202
    wait_until(lambda: site.node(node).in_service, 20, what=f"{node} is back", every_s=0.1)
    wait_until(lambda: site.incident(node)["state"] == "resolved", 10, what="resolved", every_s=0.1)
    wait_until(lambda: site.runs(node)[0]["state"] == "done", 10, what="its run is over", every_s=0.1)
    assert site.job(job).restarts == 1
    assert (site.drains(node), len(site.incidents(node))) == (1, 1)
    assert site.sql("SELECT count(*) FROM slots WHERE released_at IS NULL") == [(0,)]
    site.audit_holds()


def test_a_pause_holds_a_fault_at_once_and_its_end_lets_it_go_on(site: Site) -> None:
    job = site.sbatch("--nodes=2", "--requeue")
    node = site.job(job).nodes[0]
    site.api("signals")
    pause = site.post("/pauses", {"reason": "we are working on the fabric"}, status=201)
    site.kernel(node, XID_79)
    held = wait_until(
        lambda: next((one for one in site.runs(node) if one["state"] == "held"), None),
        10,
        what="the run is held",
    )
    assert site.incident(node)["held_by"] == "pause"
    assert site.incident(node)["severity"] == "P0"
    stays(lambda: site.drains(node) == 0, 2.0, what="nothing is drained in a pause")

    answer = site.api("operator").delete(f"/pauses/{pause['id']}", params={"reason": "fabric is done"})
    assert answer.status_code == 200, answer.text
    wait_drained(site, node)
    wait_until(lambda: restarted_once(site, job), 30, what=f"job {job} runs again", every_s=0.1)
    assert site.run_in(node, "waiting")["id"] == held["id"]
    assert site.drains(node) == 1


def test_a_pause_that_comes_after_the_drain_keeps_the_job_where_it_is(site: Site) -> None:
    """Within a second of the answer nothing more is started, of runs that are under way too."""
    job, node = lose_gpu_under_a_job(site)
    wait_until(lambda: site.drained_by_us(node), 10, what="drained", every_s=0.005)
    site.api("operator")
    site.post("/pauses", {"reason": "stop it", "until": None}, status=201)
    paused_at = datetime.now(UTC)

    def requeue() -> list[Any]:
        return site.sql("SELECT event, at FROM run_log WHERE step = %s ORDER BY seq", f"requeue:{job}")

    event, at = wait_until(requeue, 10, what="the requeue came up")[0]
    assert event == "held" or (at - paused_at).total_seconds() < 1.0
    if event == "held":
        stays(lambda: site.job(job).restarts == 0, 2.0, what="a held job stays where it is")
    assert site.drains(node) == 1


def test_a_persons_resume_in_slurm_is_a_veto(site: Site) -> None:
    job, node = lose_gpu_under_a_job(site)
    wait_drained(site, node)
    site.run_in(node, "waiting")
    site.scontrol(f"NodeName={node}", "State=RESUME")
    wait_until(lambda: site.incident(node)["state"] == "resolved", 15, what="resolved", every_s=0.1)
    assert "resumed" in site.incident(node)["closed_why"]

    site.kernel(node, XID_79, gpu=1)
    again = wait_until(
        lambda: next((one for one in site.incidents(node) if one["state"] != "resolved"), None),
        10,
        what="the next fault is seen",
    )
    wait_until(lambda: site.incidents(node)[0]["held_by"] == "ownership", 10, what="held by ownership")
    stays(lambda: site.drains(node) == 1, 2.0, what="no second drain")
    assert site.node(node).in_service
    assert site.incidents(node)[0]["id"] == again["id"]
    assert site.job(job).restarts == 1
    site.audit_holds()


def test_in_mode_approve_a_person_decides(real_slurm: RealSlurm) -> None:
    with site_on(real_slurm, HEALER_MODE="approve") as site:
        job, node = lose_gpu_under_a_job(site)
        run = site.run_in(node, "waiting_approval")
        stays(lambda: site.drains(node) == 0, 2.0, what="nothing happens without approval")
        site.post(f"/runs/{run['id']}/approve", {"reason": "it is dead indeed"})
        wait_drained(site, node)
        wait_until(lambda: restarted_once(site, job), 30, what=f"job {job} runs again", every_s=0.1)
        waiting = site.run_in(node, "waiting")
        assert (waiting["id"], waiting["approved_by"]) == (run["id"], "test operator")
        site.audit_holds()


def test_in_mode_shadow_nothing_is_touched_and_the_run_is_walked_to_its_end(real_slurm: RealSlurm) -> None:
    with site_on(real_slurm, HEALER_MODE="shadow") as site:
        job, node = lose_gpu_under_a_job(site)
        before = site.shown(node)
        run: dict[str, Any] = site.run_in(node, "done")
        assert run["shadow"] is True
        assert "would drain" in site.steps(run["id"])["drain"]["text"]
        stays(lambda: site.drains(node) == 0, 2.0, what="nothing is drained")
        assert site.shown(node) == before
        assert (site.job(job).state, site.job(job).restarts) == ("RUNNING", 0)
        assert site.sql("SELECT count(*) FROM slots") == [(0,)]
        site.audit_holds()
