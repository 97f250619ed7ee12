"""Every kind of job under a lost GPU, on a real Slurm: the right thing happens, and it is said in words.

One `healer up` for all of them: each has nodes of its own, and all faults come at once.
"""

import shutil
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx
import pytest

from healer.embedded.embedded_slurm import RealSlurm
from healer.model import SlurmJob
from tests.support import slurm as slurm_support
from tests.support.signing_in import press_sign_in
from tests.support.site import CLUSTER, XID_79, Site, site_on
from tests.support.wait import wait_until

pytestmark = pytest.mark.slurm

RULES = Path(__file__).parents[3] / "rules"
#: A job that ends badly in its first life and works in its next; one that ends well on request.
CRASHES = '[ -n "$SLURM_RESTART_COUNT" ] && exec sleep 600; exit 1'
SAVES = "trap 'exit 0' USR1; sleep 600 & wait"
FIRST_TASK_ENDS = '[ "$SLURM_ARRAY_TASK_ID" = 0 ] && exit 0; exec sleep 600'
HET = """#!/bin/sh
#SBATCH --nodelist=gpu0012 --gres=gpu:8
#SBATCH hetjob
#SBATCH --nodelist=gpu0013 --gres=gpu:8
sleep 600
"""
SPARES = ("gpu0031", "gpu0032")


class Story:
    """The site after all faults were reported; `jobs` by kind."""

    def __init__(self, site: Site, folder: Path) -> None:
        self.site, self.slurm, self.folder = site, site.slurm, folder
        self.jobs: dict[str, str] = {}
        self.nodes: dict[str, str] = {}

    def submit(self, kind: str, node: str, *options: str, script: str = "exec sleep 600") -> None:
        self.nodes[kind] = node
        self.jobs[kind] = slurm_support.sbatch(self.slurm, *options, gpus=8, script=script)
        self.site.jobs.append(self.jobs[kind])

    def at_a_terminal(self, node: str) -> str:
        """A user's salloc that goes on."""
        command = ["salloc", "--kill-command", "--gres=gpu:8", f"--nodelist={node}", "sleep", "600"]
        with (self.folder / "terminal").open("w") as terminal:
            self.salloc = subprocess.Popen(command, env=self.slurm.env, cwd="/", stderr=terminal)
        held = wait_until(lambda: self.site.scheduler.jobs_on(node), 20, what="salloc has its node")
        return held[0].id

    def tasks(self) -> dict[int | None, SlurmJob]:
        """The array's tasks by their number; those that wait together are one without a number."""
        shown = self.site.scheduler.snapshot().jobs.values()
        return {one.array_task: one for one in shown if one.array_job == self.jobs["array"]}

    def second_task_runs(self) -> bool:
        task = self.tasks().get(1)
        return task is not None and task.state == "RUNNING"

    def job(self, kind: str) -> SlurmJob:
        return self.site.job(self.jobs[kind])

    def is_at(self, kind: str, state: str, restarts: int = 0) -> bool:
        shown = self.job(kind)
        return (shown.state, shown.restarts) == (state, restarts)

    def begin(self) -> None:
        on = "--nodelist={}".format
        # Not by --nodelist: a job that requires its lost node takes no spare.
        only = "--exclude=gpu[0001-{:04},{:04}-0030]".format
        self.submit("two nodes", "gpu0001", "--nodes=2", "--exclude=gpu[0010-0030]")
        self.submit("array", "gpu0010", "--array=0-3", on("gpu0010"), script=FIRST_TASK_ENDS)
        self.submit("crashed", "gpu0014", only(13, 15), "--comment=healer:requeue", script=CRASHES)
        self.submit("unasked", "gpu0015", on("gpu0015"), script="exit 1")
        self.submit("no requeue", "gpu0016", on("gpu0016"), "--no-requeue")
        self.submit("saves", "gpu0020", on("gpu0020"), "--comment=healer:signal=USR1@30", script=SAVES)
        self.submit("keep", "gpu0022", on("gpu0022"), "--comment=healer:keep")
        script = self.folder / "het.sh"
        script.write_text(HET)
        options = ("--parsable", "--chdir=/", "--output=/dev/null", "--requeue")
        self.jobs["het"] = self.slurm.run("sbatch", *options, str(script)).strip()
        self.nodes["het"] = "gpu0013"
        self.jobs["no shell"] = slurm_support.interactive(self.slurm, on("gpu0017"), "--gres=gpu:8")
        self.jobs["salloc"] = self.at_a_terminal("gpu0018")
        self.nodes |= {"no shell": "gpu0017", "salloc": "gpu0018"}
        self.site.jobs += [self.jobs[kind] for kind in ("het", "no shell", "salloc")]
        for kind in ("two nodes", "no requeue", "saves", "keep", "het", "no shell"):
            wait_until(lambda kind=kind: self.is_at(kind, "RUNNING"), 20, what=f"{kind} runs", every_s=0.1)
        self.nodes["two nodes"] = self.job("two nodes").nodes[0]
        for kind in ("crashed", "unasked"):
            wait_until(lambda kind=kind: self.is_at(kind, "FAILED"), 20, what=f"{kind} fails", every_s=0.1)
        wait_until(self.second_task_runs, 20, what="the second task runs", every_s=0.1)
        # The two that crashed are known from the poller's picture: it is to have looked since.
        for kind in ("crashed", "unasked"):
            wait_until(lambda kind=kind: self.seen(kind) == "FAILED", 20, what=f"healer saw {kind}")

    def seen(self, kind: str) -> str:
        answer = self.site.api("viewer").get(f"/jobs/{CLUSTER}/{self.jobs[kind]}")
        return answer.json()["job"]["state"] if answer.status_code == 200 else ""

    def last_texts(self, kind: str, job: str | None = None) -> dict[str, str]:
        """What the API says of the job: the last sentence of each step."""
        done = self.site.get(f"/jobs/{CLUSTER}/{job or self.jobs[kind]}")["done"]
        return {one["step"]: one["text"] for one in done}

    def settled(self, kind: str) -> Any:
        return self.site.run_in(self.nodes[kind], "waiting", "stuck", timeout_s=60)


@pytest.fixture(scope="module")
def story(real_slurm: RealSlurm, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Story]:
    folder = tmp_path_factory.mktemp("jobs")
    rules = folder / "rules"
    shutil.copytree(RULES, rules)
    with (rules / "guards.yaml").open("a") as file:
        file.write("\nspares: {reservation: spares}\n")
    settings: dict[str, Any] = {
        "HEALER_GUARD_MIN_SERVICE_SHARE": "0.5",
        "HEALER_BREAKER_SHARE": "1.0",
        "HEALER_RULES_DIR": str(rules),
    }
    real_slurm.run(
        "scontrol", "create", "reservation", "ReservationName=spares", f"Nodes={','.join(SPARES)}",
        "Users=nobody", "StartTime=now", "Duration=UNLIMITED",
    )  # fmt: skip
    try:
        with site_on(real_slurm, **settings) as site:
            one = Story(site, folder)
            try:
                one.begin()
                for node in one.nodes.values():
                    site.kernel(node, XID_79)
                yield one
            finally:
                real_slurm.run("scontrol", "delete", "ReservationName=spares")
        one.salloc.wait(20)  # its job was ended with all others
    finally:
        shutil.rmtree(folder)


def test_two_node_job_runs_again_elsewhere_and_its_owner_is_notified(story: Story) -> None:
    wait_until(lambda: story.is_at("two nodes", "RUNNING", 1), 60, what="it runs again", every_s=0.2)
    run = story.settled("two nodes")
    node = story.nodes["two nodes"]
    assert node not in story.job("two nodes").nodes
    incident = story.site.incident(node)["id"][:8]
    remark = wait_until(lambda: story.job("two nodes").admin_comment, 10, what="the owner is notified")
    assert remark.startswith(f"healer: Xid 79: GPU fell off the bus on {node}. Job ")
    assert "was requeued" in remark and f"(incident {incident})" in remark
    assert story.last_texts("two nodes")["owner"].startswith("Notified root in the job's admin comment")
    assert story.site.steps(run["id"])["jobs"]["evidence"]["jobs"] == {story.jobs["two nodes"]: 0}


def test_pitfall_12_of_an_array_the_task_that_was_hit_is_put_back_and_no_other(story: Story) -> None:
    wait_until(lambda: story.tasks()[1].restarts == 1, 60, what="the task that ran is requeued", every_s=0.2)
    story.settled("array")
    tasks = story.tasks()
    assert (tasks[0].state, tasks[0].restarts) == ("COMPLETED", 0)
    # Its siblings wait for the node, together or one by one.
    rest = [one for number, one in tasks.items() if number not in {0, 1}]
    assert rest and all((one.state, one.restarts) == ("PENDING", 0) for one in rest)


def test_pitfall_10_a_component_that_was_hit_puts_its_whole_job_back_once(story: Story) -> None:
    wait_until(lambda: story.job("het").restarts == 1, 60, what="the leader is requeued", every_s=0.2)
    story.settled("het")
    parts = [one for one in story.site.scheduler.snapshot().jobs.values() if one.het_job == story.jobs["het"]]
    assert [one.restarts for one in parts] == [1, 1]
    assert story.site.incident("gpu0013")["jobs_hit"] == [story.jobs["het"]]


def test_a_job_that_crashed_before_its_line_came_is_revived_if_it_agreed(story: Story) -> None:
    story.settled("crashed")
    story.settled("unasked")
    # It asks for its old node, which is out: it waits there.
    assert story.job("crashed").restarts == 1
    assert story.job("crashed").state in {"PENDING", "RUNNING"}
    assert "was revived" in story.last_texts("crashed")["revive"]
    assert story.is_at("unasked", "FAILED")
    assert "healer:requeue" in story.last_texts("unasked")["revive"]
    assert story.site.incident("gpu0015")["jobs_hit"] == [story.jobs["unasked"]]


@pytest.mark.parametrize(
    ("kind", "words"),
    [
        ("no requeue", "forbids requeueing"),
        ("keep", "the decision is its owner's"),
        ("no shell", "was not submitted with sbatch"),
        ("salloc", "was not submitted with sbatch"),
    ],
)
def test_job_that_may_not_be_requeued_keeps_running_and_the_log_says_why(
    story: Story, kind: str, words: str
) -> None:
    story.settled(kind)
    assert story.is_at(kind, "RUNNING")
    assert words in story.last_texts(kind)["requeue"]
    assert "Notified root" in story.last_texts(kind)["owner"]


def test_interactive_user_is_notified_at_the_terminal(story: Story) -> None:
    story.settled("salloc")
    assert "on the job's terminal" in story.last_texts("salloc")["owner"]
    read = (story.folder / "terminal").read_text
    wait_until(lambda: "GPU fell off the bus on gpu0018" in read(), 10, what="it is shown on the terminal")


def test_pitfall_17_a_job_that_saves_on_a_signal_ends_in_its_time(story: Story) -> None:
    story.settled("saves")
    assert story.is_at("saves", "COMPLETED")
    assert "ended COMPLETED before" in story.last_texts("saves")["requeue"]


def test_two_lost_nodes_took_the_places_of_the_two_spares(story: Story) -> None:
    for kind in ("two nodes", "array", "het", "crashed"):
        story.settled(kind)
    spares = story.site.scheduler.snapshot().reservations["spares"].nodes
    assert len(spares) == 2
    assert not set(spares) & set(SPARES)
    assert set(spares) <= set(story.nodes.values())


def test_the_pages_say_it_too_and_the_chain_is_whole(story: Story) -> None:
    story.settled("no requeue")
    with httpx.Client(base_url=story.site.stack.url, follow_redirects=True) as page:
        press_sign_in(page, story.site.stack.token("viewer", "--once"))
        incident = story.site.incident("gpu0016")["id"]
        assert "forbids requeueing" in page.get(f"/incidents/{incident}").text
        assert "forbids requeueing" in page.get(f"/jobs/{CLUSTER}/{story.jobs['no requeue']}").text
    story.site.audit_holds()
