"""Sweeps with everything real: Slurm, the product's processes, the shipped playbook. Its tests are short."""

import os
import re
import shutil
import signal
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from healer.decisions.sweeps import SWEEP_JOBS
from healer.embedded.embedded_slurm import RealSlurm
from healer.model import SlurmJob
from tests.support.site import XID_79, Site, site_on
from tests.support.slurm import sbatch
from tests.support.stack import scratch_folder
from tests.support.wait import wait_until

pytestmark = pytest.mark.slurm

RULES = Path(__file__).parents[3] / "rules"
#: A substitute for the tests of GPUs, of which there are none: its output is in a file named as the node.
PLAYS = """\
#!/bin/sh
echo "healer-result answered_gpus 8"
for _ in $(seq 600); do
    if [ -e {folder}/fails-$SLURMD_NODENAME ]; then
        echo "healer-says GPU 3: a wrong answer in fp32"
        exit 1
    fi
    [ -e {folder}/ends-$SLURMD_NODENAME ] && exit 0
    sleep 0.1
done
exit 0
"""
#: Slurm is polled at least every 5 s while a sweep runs, and the run looks each second: what Slurm itself
#: takes comes on top.
AT_ONCE_S = 10


class Sweeps:
    def __init__(self, site: Site, folder: Path) -> None:
        self.site, self.folder = site, folder

    def ask(self, node: str) -> str:
        """By hand; once its job runs, the run's id."""
        body = {"cluster": "pod1", "node": node, "reason": "its turn"}
        run = self.site.post("/playbooks/sweep/runs", body, status=202)["id"]
        wait_until(lambda: self.running(node), 30, what=f"the sweep of {node} runs", every_s=0.1)
        return run

    def jobs(self, node: str) -> list[SlurmJob]:
        """Jobs of sweeps of this node that Slurm knows, by their runs."""
        shown = self.site.scheduler.snapshot().jobs.values()
        runs = {run["id"] for run in self.site.runs(node)}
        return [job for job in shown if job.comment.partition(":")[0] in runs]

    def running(self, node: str) -> bool:
        return any(job.state == "RUNNING" for job in self.jobs(node))

    def ended(self, run: str, timeout_s: float = 30) -> dict[str, Any]:
        """The step of the run that has ended."""

        def over() -> dict[str, Any] | None:
            run_shown = self.site.get(f"/runs/{run}")
            return run_shown if run_shown["state"] == "done" else None

        wait_until(over, timeout_s, what=f"run {run} has ended", every_s=0.1)
        return self.site.steps(run)["test"]


@pytest.fixture(scope="module")
def sweeps(real_slurm: RealSlurm) -> Iterator[Sweeps]:
    with scratch_folder() as folder:
        rules = folder / "rules"
        shutil.copytree(RULES, rules)
        plays = rules / "validation" / "plays.sh"
        plays.write_text(PLAYS.format(folder=folder))
        depths = rules / "validation" / "depths.yaml"
        text, count = re.subn(
            r"(?m)^  sweep: .*$", "  sweep: {tests: [plays], limit_s: 120}", depths.read_text()
        )
        assert count == 1
        depths.write_text(text)
        with site_on(real_slurm, HEALER_RULES_DIR=str(rules)) as site:
            yield Sweeps(site, folder)


@pytest.fixture(autouse=True)
def cleaned(sweeps: Sweeps) -> Iterator[None]:
    yield
    sweeps.site.clean()
    sweeps.site.jobs.clear()


def test_sweep_that_passes_takes_no_slot(sweeps: Sweeps) -> None:
    node, site = "gpu0001", sweeps.site
    run = sweeps.ask(node)
    assert site.drains(node) == 0 and site.node(node).in_service
    (job,) = sweeps.jobs(node)
    assert job.name.startswith(SWEEP_JOBS) and not job.requeue
    assert f"Nice={1_000_000}" in site.slurm.run("scontrol", "show", "job", job.id)
    (sweeps.folder / f"ends-{node}").touch()
    assert "plays passed" in sweeps.ended(run)["text"]
    assert site.sql("SELECT count(*) FROM slots WHERE node = %s", node) == [(0,)]


def test_a_users_job_gets_the_node_at_once(sweeps: Sweeps) -> None:
    node, site = "gpu0002", sweeps.site
    run = sweeps.ask(node)
    asked_at = time.monotonic()
    theirs = sbatch(site.slurm, f"--nodelist={node}", gpus=8)
    site.jobs.append(theirs)
    wait_until(lambda: site.job(theirs).state == "RUNNING", 30, what="the user's job runs", every_s=0.05)
    took_s = time.monotonic() - asked_at
    print(f"given back after {took_s:.1f} s")
    assert took_s < AT_ONCE_S
    assert f"Job {theirs} is pending" in sweeps.ended(run)["text"]
    assert [job.state for job in sweeps.jobs(node)] == ["CANCELLED"]


def test_a_worker_that_is_killed_leaves_one_job_which_is_found_again(sweeps: Sweeps) -> None:
    node, site = "gpu0003", sweeps.site
    run = sweeps.ask(node)
    os.kill(site.stack.pids()["worker"], signal.SIGKILL)
    time.sleep(1)
    (sweeps.folder / f"ends-{node}").touch()
    assert "plays passed" in sweeps.ended(run, 60)["text"]
    assert len(sweeps.jobs(node)) == 1


def test_a_pause_ends_it(sweeps: Sweeps) -> None:
    node, site = "gpu0004", sweeps.site
    run = sweeps.ask(node)
    pause = site.post("/pauses", {"reason": "hands off"}, status=201)
    try:
        assert "hands off" in sweeps.ended(run)["text"]
    finally:
        site.api("operator").delete(f"/pauses/{pause['id']}")
    assert [job.state for job in sweeps.jobs(node)] == ["CANCELLED"]


def test_a_cancelled_run_leaves_no_job(sweeps: Sweeps) -> None:
    node, site = "gpu0005", sweeps.site
    run = sweeps.ask(node)
    site.post(f"/runs/{run}/cancel", {"reason": "not now"})
    wait_until(lambda: not sweeps.running(node), 20, what="its job has ended", every_s=0.1)


def test_a_fatal_fault_is_drained_at_once_and_ends_it(sweeps: Sweeps) -> None:
    node, site = "gpu0006", sweeps.site
    run = sweeps.ask(node)
    site.kernel(node, XID_79)
    wait_until(lambda: site.drained_by_us(node), 10, what="the drain", every_s=0.1)
    sweeps.ended(run)
    assert [job.state for job in sweeps.jobs(node)] == ["CANCELLED"]
    # Its drain is in Slurm before the run that made it has read it back and ended.
    answer = wait_until(
        lambda: found if (found := site.resume(node)).status_code != 409 else None,
        20,
        what="no run works on it",
    )
    assert answer.status_code == 202, answer.text
    try:
        wait_until(lambda: site.node(node).in_service, 30, what=f"{node} is back", every_s=0.1)
    except AssertionError as error:
        raise AssertionError(f"{error}; {answer.text}; {site.runs(node)}; {site.shown(node)}") from None


def test_a_wrong_answer_is_a_finding_and_no_drain(sweeps: Sweeps) -> None:
    node, site = "gpu0007", sweeps.site
    run = sweeps.ask(node)
    (sweeps.folder / f"fails-{node}").touch()
    assert "plays (GPU 3: a wrong answer in fp32) failed" in sweeps.ended(run)["text"]
    found = site.incident(node)
    assert (found["rule"], found["severity"], found["state"]) == ("sweep-failed", "P2", "open")

    def proposed() -> list[str]:
        return [one["state"] for one in site.runs(node) if one["playbook"] == "validate"]

    assert wait_until(proposed, 10, what="the finding has settled") == ["proposed"]
    assert site.node(node).in_service and site.drains(node) == 0
