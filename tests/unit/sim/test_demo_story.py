"""The people of the demo, on a simulated Slurm."""

from datetime import UTC, datetime

from healer.sim.demo_story import SimSite, restart_left
from healer.sim.sim_clock import SimClock
from healer.sim.sim_slurm import SimScheduler


def test_jobs_that_healer_leaves_on_a_drained_node_are_restarted_by_their_owners() -> None:
    """healer restarts a job twice a day at most: without its owner the node would never be empty, and after a
    quarter of an hour every cap of the demo was used up by such nodes."""
    clock = SimClock(datetime(2026, 11, 20, 9, 0, tzinfo=UTC))
    slurm = SimScheduler("pod1", clock, 2)
    site = SimSite(slurm)
    site.submit("notebook", 1, 1)
    slurm.add_job(name="of-a-guest", nodes=1, gpus=1)
    clock.advance(1)
    jobs = site.snapshot().jobs
    ours, guest = sorted(jobs.values(), key=lambda job: int(job.id))
    slurm.drain(ours.nodes, "healer:gpu-lost inc:12345678 Xid 79")
    assert [job.id for job in restart_left(site, ours.nodes[0])] == [ours.id]
    clock.advance(10)
    shown = site.snapshot().jobs
    assert shown[ours.id].state == "CANCELLED"
    assert shown[guest.id].state == "RUNNING"
    (again,) = [job for job in shown.values() if job.id not in jobs]
    assert (again.name, again.state) == ("notebook", "RUNNING")
    assert again.nodes != ours.nodes
