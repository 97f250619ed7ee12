"""Every remedy carried to its end on a real Slurm: plans, resets over sshd, reboots, tests, and the return.

One `healer up` for all of them: each has nodes of its own, and all faults come at once. The detector's wait
before a plan and the time that a failure is heard out are shorter (`tests.support.right_act`).
"""

import getpass
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import pytest

from healer.embedded.embedded_slurm import RealSlurm
from tests.support import slurm as slurm_support
from tests.support.node_ssh import SshNode, SshSite, ssh_site
from tests.support.right_act import REPAIRS, booting, rules_with
from tests.support.site import CLUSTER, WIDE_GUARDS, XID_79, Site, site_on, stays
from tests.support.slurm import Hooks
from tests.support.stack import scratch_folder
from tests.support.wait import wait_until

pytestmark = pytest.mark.slurm

ROW = (
    "NVRM: Xid (PCI:{pci}): 63, pid=1896, Row Remapper: New row marked for remapping, reset gpu to activate."
)
ASKS = "NVRM: Xid (PCI:{{pci}}): 154, GPU recovery action changed from {} to {}"
NONE, NOW, P2P, AFTER = "0x0 (None)", "0x1 (GPU Reset Required)", "0x3 (Drain P2P)", "0x4 (Drain and Reset)"

# By what happens there.
PLANNED, NO_NEW_JOBS, TAKEN_BACK, BY_A_PERSON = "gpu0001", "gpu0002", "gpu0003", "gpu0004"
RESET, RESET_FAILS, LOST, TICKET_ALONE = "gpu0005", "gpu0006", "gpu0007", "gpu0008"
LIMITED = "gpu0009"
CONTAINED = "NVRM: Xid (PCI:{pci}): 94, pid=7, name=python, Contained: DRAM. RST: No, D-RST: No"
#: Faults that wait for the end of the job on the node.
WAITING = {
    PLANNED: ROW,
    NO_NEW_JOBS: ASKS.format(NONE, AFTER),
    TAKEN_BACK: ASKS.format(NONE, P2P),
    BY_A_PERSON: ROW,
    LIMITED: CONTAINED,
}
#: The plan of a contained error waits for so long and no longer; all others as they ship.
LIMIT_S = 8
SHORT_PLAN = (
    "policies.yaml",
    r"(name: gpu-contained\n(?:  .*\n)*?  playbook: )repair-when-idle",
    r"\1repair-soon",
)
FATAL = {
    RESET: ASKS.format(NONE, NOW),
    RESET_FAILS: ASKS.format(NONE, NOW),
    LOST: XID_79,
}


#: The driver has nothing to repair here: a person has to look at its versions.
VGPU = "NVRM: Xid (PCI:{pci}): 78, vGPU start failed"

#: Of GPU 0 as the nodes' nvidia-smi shows it.
AT = "0000:10:00"
NEXT_BOOT = "11111111-0000-4000-8000-000000000000"


class Story:
    """The site; `jobs` by the node that they run on."""

    def __init__(self, site: Site, ssh: SshSite, hooks: Hooks) -> None:
        self.site, self.hooks = site, hooks
        self.nodes: dict[str, SshNode] = {one.name: one for one in ssh.nodes}
        self.jobs: dict[str, str] = {}

    def submit(self, node: str, *options: str, gpus: int = 4) -> str:
        job = slurm_support.sbatch(self.site.slurm, f"--nodelist={node}", *options, gpus=gpus)
        self.site.jobs.append(job)
        return job

    def begin(self) -> None:
        for fault, nodes in (("remap-pending", (PLANNED,)), ("reset-fails", (RESET_FAILS,))):
            for node in nodes:
                self.nodes[node].programs.plant(node, fault)
        # A job of all GPUs is surely on the one that is lost; beside one of four another one can start.
        self.jobs = {node: self.submit(node) for node in WAITING}
        self.jobs |= {node: self.submit(node, gpus=8) for node in FATAL}
        for node in self.jobs:
            wait_until(lambda node=node: self.job(node).state == "RUNNING", 30, what=f"a job runs on {node}")
        for node, line in (WAITING | FATAL).items():
            self.say(node, line)

    def say(self, node: str, line: str) -> None:
        """The node's kernel says it: the worker looks there before it restarts a job."""
        if node in self.nodes:
            self.nodes[node].programs.kmsg(line.format(pci=AT))
        self.site.kernel(node, line.format(pci=AT))

    def job(self, node: str) -> Any:
        return self.site.job(self.jobs[node])

    def end_job(self, node: str) -> None:
        self.site.slurm.run("scancel", self.jobs[node])

    def plan(self, node: str) -> dict[str, Any]:
        """The run of the node's plan, which waits."""
        run = self.site.run_in(node, "running", "waiting")
        wait_until(lambda: self.site.steps(run["id"])["moment"]["state"] == "waiting", 20, every_s=0.1)
        return run

    def done(self, node: str) -> list[str]:
        """The steps of the node's newest run that were done, in their order."""
        (run, *_) = self.site.runs(node)
        return [key for key, step in self.site.steps(run["id"]).items() if step["state"] == "done"]

    def back(self, node: str) -> dict[str, Any]:
        """The incident of the node that has come back."""
        site = self.site
        try:
            wait_until(lambda: site.incident(node)["state"] == "resolved", 60, what="it ended", every_s=0.2)
            wait_until(lambda: site.node(node).in_service, 20, what=f"{node} is back", every_s=0.2)
        except AssertionError as error:
            raise AssertionError(f"{error}; {site.shown(node)}; {self.log(node)}") from None
        return site.get(f"/incidents/{site.incident(node)['id']}")

    def log(self, node: str) -> list[str]:
        """What the newest run of the node has come to, step by step."""
        runs = self.site.runs(node)
        steps = self.site.steps(runs[0]["id"]) if runs else {}
        return [f"{key} {step['state']}: {step.get('text')}" for key, step in steps.items()]


def rules_here(folder: Path) -> Path:
    rules = rules_with(folder, (*REPAIRS, SHORT_PLAN))
    plan = (rules / "playbooks" / "repair-when-idle.yaml").read_text()
    soon = plan.replace("repair-when-idle", "repair-soon").replace("limit_s: 259200", f"limit_s: {LIMIT_S}")
    (rules / "playbooks" / "repair-soon.yaml").write_text(soon)
    return rules


@pytest.fixture(scope="module")
def story(real_slurm: RealSlurm) -> Iterator[Story]:
    """Jobs at work, and all faults reported."""
    with ExitStack() as stack:
        folder = stack.enter_context(scratch_folder())
        ssh = stack.enter_context(ssh_site(folder / "ssh"))
        for node in (*WAITING, *FATAL):
            programs = ssh.node(node).programs
            programs.gpus(8)
            programs.finish()  # its own tests are short
        hooks = stack.enter_context(booting(real_slurm, (*WAITING, *FATAL)))
        site = stack.enter_context(
            site_on(
                real_slurm,
                program=("-m", "tests.support.hurried", "plans", "tickets"),
                HEALER_RULES_DIR=str(rules_here(folder)),
                HEALER_SSH_KEY_FILE=str(ssh.key),
                HEALER_SSH_SIGNING_KEY_FILE=str(ssh.signing_key),
                HEALER_SSH_KNOWN_HOSTS=str(ssh.known_hosts),
                HEALER_SSH_CONFIG=str(ssh.config),
                HEALER_SSH_USER=getpass.getuser(),
                **WIDE_GUARDS,
            )
        )
        ssh.let_worker_read()
        one = Story(site, ssh, hooks)
        one.begin()
        yield one


@pytest.fixture(scope="module")
def ended(story: Story) -> Story:
    """The jobs have ended that plans wait for. One of the nodes is a person's, who reboots it."""
    for node in (PLANNED, BY_A_PERSON):
        story.plan(node)
    story.site.scontrol(f"NodeName={BY_A_PERSON}", "State=DRAIN", "Reason=bob: new kernel")
    for node in (PLANNED, NO_NEW_JOBS, BY_A_PERSON):
        story.site.slurm.run("scancel", story.jobs[node])
    return story


# --- a remedy that may wait is a plan --------------------------------------------------------------------


def test_deferrable_remedy_lets_jobs_continue_and_start(story: Story) -> None:
    story.plan(PLANNED)
    beside = story.submit(PLANNED, gpus=1)
    wait_until(lambda: story.site.job(beside).state == "RUNNING", 20, what="a new job starts there")
    assert story.job(PLANNED).state == "RUNNING"
    assert story.nodes[PLANNED].programs.resets(PLANNED) == []
    story.site.slurm.run("scancel", beside)


def test_node_is_drained_and_its_job_continues_when_the_vendor_retires_the_gpu(story: Story) -> None:
    wait_until(lambda: story.site.drained_by_us(NO_NEW_JOBS), 20, what="drained at once", every_s=0.1)
    story.site.run_in(NO_NEW_JOBS, "waiting")
    assert (story.job(NO_NEW_JOBS).state, story.job(NO_NEW_JOBS).restarts) == ("RUNNING", 0)
    assert story.nodes[NO_NEW_JOBS].programs.resets(NO_NEW_JOBS) == []


def test_a_plan_that_reached_its_limit_takes_the_node_from_new_jobs_and_lets_the_running_one_end(
    story: Story,
) -> None:
    wait_until(lambda: story.site.drained_by_us(LIMITED), 40, what="drained at the limit", every_s=0.2)
    assert (story.job(LIMITED).state, story.job(LIMITED).restarts) == ("RUNNING", 0)
    assert story.nodes[LIMITED].programs.resets(LIMITED) == []
    story.end_job(LIMITED)


def test_incident_with_only_a_ticket_closes_when_it_is_filed(story: Story) -> None:
    """The node stays in service, and its job goes on."""
    site, job = story.site, story.submit(TICKET_ALONE)
    wait_until(lambda: site.job(job).state == "RUNNING", 30, what="a job runs there")
    story.say(TICKET_ALONE, VGPU)
    wait_until(lambda: site.incident(TICKET_ALONE)["state"] == "resolved", 90, every_s=0.5)
    incident = site.get(f"/incidents/{site.incident(TICKET_ALONE)['id']}")
    assert incident["remedy"] == ["ticket"]
    (run,) = site.runs(TICKET_ALONE)
    assert story.done(TICKET_ALONE)[0] == "ticket", story.log(TICKET_ALONE)
    assert run["state"] == "done"
    assert site.node(TICKET_ALONE).in_service
    assert site.job(job).state == "RUNNING"


def test_an_ask_that_is_withdrawn_ends_its_plan(story: Story) -> None:
    story.plan(TAKEN_BACK)
    story.say(TAKEN_BACK, ASKS.format(P2P, NONE))
    wait_until(lambda: story.site.incident(TAKEN_BACK)["state"] == "resolved", 20, every_s=0.1)
    wait_until(lambda: story.site.runs(TAKEN_BACK)[0]["state"] in {"done", "cancelled"}, 20, every_s=0.1)
    story.site.slurm.run("scancel", story.jobs[TAKEN_BACK])


def test_at_the_end_of_the_job_a_row_is_remapped_by_one_reset(ended: Story) -> None:
    incident = ended.back(PLANNED)
    assert ended.nodes[PLANNED].programs.faults(PLANNED) == []
    assert len(ended.nodes[PLANNED].programs.resets(PLANNED)) == ended.site.drains(PLANNED) == 1
    assert incident["nodes"] == {PLANNED: "watch"}
    assert incident["probation_until"] is not None


def test_at_the_end_of_the_job_the_gpu_that_the_vendor_took_is_reset(ended: Story) -> None:
    ended.back(NO_NEW_JOBS)
    assert len(ended.nodes[NO_NEW_JOBS].programs.resets(NO_NEW_JOBS)) == 1
    assert (ended.job(NO_NEW_JOBS).state, ended.job(NO_NEW_JOBS).restarts) == ("CANCELLED", 0)


def test_a_persons_reboot_completes_the_remap(ended: Story) -> None:
    site = ended.site

    def remap() -> dict[str, Any]:
        return next(one for one in site.incidents(BY_A_PERSON) if one["rule"] == "gpu-degraded")

    before = site.node(BY_A_PERSON).boot_at
    site.slurm.run("scontrol", "reboot", BY_A_PERSON)
    wait_until(lambda: site.node(BY_A_PERSON).boot_at != before, 30, what="it has booted", every_s=0.1)
    site.signal("heartbeat", {"cluster": CLUSTER, "node": BY_A_PERSON, "boot_id": NEXT_BOOT})
    wait_until(lambda: remap()["state"] == "resolved", 20, what="the boot has completed it")
    site.scontrol(f"NodeName={BY_A_PERSON}", "State=RESUME")
    stays(lambda: site.drains(BY_A_PERSON) == 1, 6.0, what="bob's own is the only drain")
    assert ended.nodes[BY_A_PERSON].programs.resets(BY_A_PERSON) == []


# --- the loop of a fatal fault is closed -------------------------------------------------------------------


def test_a_gpu_that_asks_for_a_reset_is_reset_tested_and_back_on_probation(story: Story) -> None:
    incident = story.back(RESET)
    assert [one for one in story.done(RESET) if one in {"reset", "test", "reboot", "resume"}] == [
        "reset", "test", "resume",
    ]  # fmt: skip
    assert len(story.nodes[RESET].programs.resets(RESET)) == story.job(RESET).restarts == 1
    assert incident["probation_until"] is not None


def test_a_lost_gpu_is_rebooted_tested_and_back(story: Story) -> None:
    assert story.back(LOST)["probation_until"] is not None
    assert {"reboot", "proof", "resume"} <= set(story.done(LOST))
    assert story.job(LOST).restarts == 1


def test_a_reset_that_fails_climbs_to_a_reboot(story: Story) -> None:
    story.back(RESET_FAILS)
    assert {"reboot", "proof", "resume"} <= set(story.done(RESET_FAILS))
    assert story.nodes[RESET_FAILS].programs.resets(RESET_FAILS) != []


def test_a_withdrawn_ask_returns_the_node_that_waits_for_a_person(story: Story) -> None:
    """Reset and reboot were tried just now, so neither is repeated."""
    story.back(RESET_FAILS)
    (first, *_) = story.site.runs(RESET_FAILS)
    resets = story.nodes[RESET_FAILS].programs.resets(RESET_FAILS)
    story.say(RESET_FAILS, ASKS.format(NONE, NOW))
    wait_until(lambda: story.site.runs(RESET_FAILS)[0]["id"] != first["id"], 20, what="another run")
    again = story.site.run_in(RESET_FAILS, "waiting", timeout_s=40)
    wait_until(lambda: story.site.steps(again["id"])["repair"]["state"] == "waiting", 20, every_s=0.2)
    assert story.site.drained_by_us(RESET_FAILS)
    assert story.nodes[RESET_FAILS].programs.resets(RESET_FAILS) == resets

    story.say(RESET_FAILS, ASKS.format(NOW, NONE))
    assert story.back(RESET_FAILS)["probation_until"] is not None
    (tested, *_) = story.site.runs(RESET_FAILS)
    assert (tested["playbook"], story.site.steps(tested["id"])["test"]["state"]) == ("validate", "done")


def test_a_plan_that_reached_its_limit_is_carried_out_when_the_job_has_ended(story: Story) -> None:
    story.back(LIMITED)
    assert len(story.nodes[LIMITED].programs.resets(LIMITED)) == story.site.drains(LIMITED) == 1


def test_no_other_node_was_touched_and_the_chain_is_whole(story: Story) -> None:
    out = {node for node in story.site.scheduler.snapshot().nodes if story.site.drains(node)}
    assert out == {PLANNED, NO_NEW_JOBS, BY_A_PERSON, LIMITED, *FATAL}
    story.site.audit_holds()
