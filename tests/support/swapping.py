"""Training jobs of torchrun's agents on a real Slurm, with nodes to spare: five, of which four are enough,
where nothing else is said. Each node has its follower, and healer-node behind an sshd.

All nodes are on one machine without GPUs: nvidia-smi is a stand-in whose GPUs compute while the node's rank
makes steps. Slurm's own programs say which processes a job has on a node.
"""

import json
import os
import signal
import time
from collections import Counter
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any, NamedTuple

from healer.embedded.embedded_slurm import RealSlurm
from tests.support import slurm as slurm_support
from tests.support.elastic import StepLog, step_of_agents
from tests.support.follower import XID_79, Following, following
from tests.support.looking import asking
from tests.support.node_ssh import SshNode, SshSite
from tests.support.right_act import rules_with
from tests.support.site import CLUSTER, WIDE_GUARDS, Site
from tests.support.wait import wait_until

NODES, LEAST = 5, 4
SWAP, REQUEUE = f"healer:swap={LEAST}", "healer:requeue"
#: The site's policies name the playbook for a GPU that is gone, and for each other fatal fault of a GPU.
#: Nodes stay out: how one is repaired is a matter of other tests.
RULES = (
    ("policies.yaml", r"(name: gpu-lost\n(?:  .*\n)*?  playbook: )gpu-fatal", r"\1swap"),
    ("policies.yaml", r"(name: gpu-fatal\n(?:  .*\n)*?  playbook: )gpu-fatal", r"\1swap"),
    ("playbooks/gpu-fatal.yaml", r"still_s: 300", "still_s: 7200"),
)
#: `elastic_job.py` saves so often, in steps. In each its loss, the square of a sum of nine parameters, falls
#: by this factor, on any number of nodes: gradient descent takes 1e-4 times twice the sum from each.
SAVE_EVERY, LOSS_FALLS = 5, (1 - 2 * 9 * 1e-4) ** 2
#: A rank makes ten steps a second. One that has made none for so long does not compute.
COMPUTES_S = 2
_BUSY = f"""
util=0 draw=90.00
[ -z "$(find "$(cat "$world/steps")" -newermt '-{COMPUTES_S} seconds' 2>/dev/null)" ] || util=97 draw=612.00
case $1 in"""


#: Moments of a job; of the last two it is asked to let one last.
MEETING, CHECKPOINT, ALL_REDUCE = "rendezvous", "checkpoint", "all-reduce"
#: So many steps more an end is announced ahead, so that no rank misses it.
LAST_STEPS = 30


class Fault(NamedTuple):
    """A line of the kernel, and a signal that a worker on the node gets with it."""

    title: str
    line: str
    number: int = 0


_GONE = XID_79
FATAL = (
    Fault("Xid 79", _GONE),
    Fault("Xid 79 and its worker dies", _GONE, signal.SIGKILL),
    Fault("Xid 79 and its worker freezes", _GONE, signal.SIGSTOP),
    Fault(
        "Xid 48, uncorrectable ECC error",
        "NVRM: Xid (PCI:0000:9b:00): 48, pid=3031, name=python3, DBE (double bit error) ECC Error",
        signal.SIGKILL,
    ),
    Fault(
        "Xid 95, uncontained memory error",
        "NVRM: Xid (PCI:0000:9b:00): 95, pid=7062, Uncontained: LTC TAG (0x2, 0x1). RST: Yes, D-RST: No",
    ),
    Fault(
        "Xid 119, GSP firmware silent",
        "NVRM: Xid (PCI:0000:9b:00): 119, pid=7, name=python3, Timeout after 6s of waiting for RPC response "
        "from GPU4 GSP! Expected function 76 (GSP_RM_CONTROL) (0x20803032 0x58c).",
        signal.SIGSTOP,
    ),
    Fault(
        "Xid 74, NVLink",
        "NVRM: Xid (PCI:0000:9b:00): 74, pid=5, name=python3, NVLink: fatal error detected on link "
        "4(0x10000, 0x0, 0x0, 0x0, 0x0, 0x0, 0x0)",
    ),
)
#: Of the job's own making: no node is bad.
ITS_OWN = (
    Fault(
        "Xid 13, out of range",
        "NVRM: Xid (PCI:0000:9b:00): 13, pid=4242, name=python3, Graphics SM Warp Exception on "
        "(GPC 1, TPC 3, SM 0): Out Of Range Address",
        signal.SIGKILL,
    ),
    Fault(
        "Xid 31, page fault",
        "NVRM: Xid (PCI:0000:9b:00): 31, pid=4242, name=python3, Ch 00000008, intr 10000000. "
        "MMU Fault: ENGINE GRAPHICS",
    ),
    Fault(
        "Xid 43, channel reset",
        "NVRM: Xid (PCI:0000:9b:00): 43, pid=77, name=python3, Ch 00000010",
        signal.SIGKILL,
    ),
)


class Swaps:
    """One `healer up` with the playbook, its Slurm, and the nodes that jobs came to."""

    def __init__(self, site: Site, ssh: SshSite, folder: Path) -> None:
        self.site, self.folder = site, folder
        self._ssh, self._nodes = ssh, dict[str, SshNode]()
        #: Nodes that had a fault: no further job comes to them.
        self.faulty = set[str]()
        #: Lines that each node's kernel has said: two of one boot never have the same number.
        self.lines = Counter[str]()
        self._tokens, self._count = dict[str, str](), 0

    def node(self, name: str) -> SshNode:
        """The node's sshd and healer-node, with Slurm's own scontrol."""
        if name not in self._nodes:
            self._nodes[name] = one = self._ssh.node(name)
            one.programs.gpus(8)
            one.programs.configure(PROC="/proc")
            scontrol, smi = one.programs.bin / "scontrol", one.programs.bin / "nvidia-smi"
            conf = self.site.slurm.slurm_conf
            scontrol.write_text(f'#!/bin/sh\nSLURM_CONF={conf} exec /usr/bin/scontrol "$@"\n')
            text = smi.read_text().replace("<gpu_util>100 %", "<gpu_util>$util %").replace("182.41", "$draw")
            smi.write_text(text.replace("\ncase $1 in", _BUSY, 1))
        return self._nodes[name]

    def token(self, name: str) -> str:
        """Of the node's follower."""
        if name not in self._tokens:
            self._tokens[name] = self.site.token("signals", node=name, cluster=CLUSTER)
        return self._tokens[name]

    @property
    def fresh(self) -> int:
        """How many nodes have had no fault."""
        return len(self.site.slurm.node_names) - len(self.faulty)

    @contextmanager
    def training(
        self, comment: str, nodes: int = NODES, least: int = LEAST, *, at_work: bool = True
    ) -> Iterator["Training"]:
        """Without `at_work`: its agents have just been started."""
        self._count += 1
        folder = self.folder / f"job{self._count}"
        folder.mkdir()
        with ExitStack() as stack:
            one = Training(self, folder, comment, nodes, least)
            stack.callback(one.cancel)
            one.follow(stack)
            if at_work:
                one.log.work(nodes, one.nodes)
            yield one


class Training:
    """One job. `bad` is the node that the last fault line named, `said_at` when that was; `faulty`: all."""

    def __init__(self, swaps: Swaps, folder: Path, comment: str, nodes: int, least: int) -> None:
        self.swaps, self.site, self.folder = swaps, swaps.site, folder
        self.log = StepLog(folder)
        self.bad, self.said_at, self.faulty = "", 0.0, set[str]()
        #: When a worker on another node was last ended, so that all meet again.
        self.broken_at = 0.0
        self._followers: dict[str, Following] = {}
        self.job = self._submit(comment, nodes, least)
        self.nodes = self.site.job(self.job).nodes

    def _submit(self, comment: str, nodes: int, least: int) -> str:
        said = f"{self.folder}/$SLURM_RESTART_COUNT-%t.txt"
        without = [f"--exclude={','.join(sorted(self.swaps.faulty))}"] if self.swaps.faulty else []
        job = slurm_support.sbatch(
            self.site.slurm, f"--nodes={nodes}", f"--ntasks={nodes}", "--ntasks-per-node=1",
            f"--comment={comment}", *without, gpus=8, name="elastic",
            script=step_of_agents(self.folder, least, nodes, "--wait=0", f"--output={said}"),
        )  # fmt: skip
        self.site.jobs.append(job)
        wait_until(lambda: self.site.job(job).state == "RUNNING", 30, what=f"job {job} runs", every_s=0.1)
        return job

    def follow(self, stack: ExitStack) -> None:
        """Followers on all its nodes."""
        for name in self.nodes:
            self.swaps.node(name).programs.world.joinpath("steps").write_text(f"{self.folder}/{name}.jsonl")
            settings = {
                "HEALER_NODE": name,
                "HEALER_CLUSTER": CLUSTER,
                "HEALER_VERDICT_FILE": str(self.verdict(name)),
            }
            place = self.folder / "followers" / name
            one = stack.enter_context(following(place, self.site.stack.url, **settings))
            one.token.write_text(self.swaps.token(name))
            self._followers[name] = one.start()

    def verdict(self, node: str) -> Path:
        return self.folder / f"{node}.verdict"

    def is_to_leave(self, node: str) -> bool:
        """Its launcher was asked to leave it."""
        file = self.verdict(node)
        return file.exists() and '"leave"' in file.read_text()

    def cancel(self) -> None:
        """Its agents end by themselves: killed ones leave semaphores in /dev/shm."""
        if self.site.job(self.job).active:
            self._let_go()
            self.site.slurm.run("scancel", self.job)
        wait_until(lambda: not self.site.job(self.job).active, 60, what=f"job {self.job} ends", every_s=0.1)

    def _let_go(self) -> None:
        """A frozen worker would take no signal."""
        for name in self.nodes:
            self._signal(name, signal.SIGCONT)

    def end(self) -> None:
        """Its script comes to its last step, and Slurm calls the job completed."""
        self._ask(last_step=self.newest() + LAST_STEPS)
        wait_until(lambda: not self.site.job(self.job).active, 60, what=f"{self.job} ends", every_s=0.1)
        assert self.site.job(self.job).state == "COMPLETED", self.shown()

    # --- what happens to it

    def fault(self, node: str, fault: Fault = FATAL[0], *, of_node: bool = True) -> None:
        """The node's kernel says so. Unless `of_node`, the node is well."""
        self.bad = node
        if of_node:
            self.faulty.add(node)
            self.swaps.faulty.add(node)
        self.swaps.node(node).programs.kmsg(fault.line)
        self._followers[node].seq = self.swaps.lines[node]
        self.swaps.lines[node] += 1
        self.said_at = time.time()
        self._followers[node].say(fault.line)
        self._signal(node, fault.number)
        self._ask()  # what begins again from a checkpoint may come to the same step

    def break_off(self, node: str) -> None:
        """A worker ends there by itself, so that all agents meet again."""
        self.broken_at = time.time()
        self._signal(node, signal.SIGKILL)

    def _signal(self, node: str, number: int) -> None:
        pid = self.log.pid(node)
        if number and pid and self._runs_there(pid, node):
            os.kill(pid, number)

    def bring(self, moment: str, lasts_s: float, rank: int) -> None:
        """Makes such a moment last, for which one rank is to blame, and returns once it has begun."""
        (self.folder / "begun").unlink(missing_ok=True)
        step = (self.newest() // SAVE_EVERY + 2) * SAVE_EVERY
        self._ask(moment=moment, step=step, lasts_s=lasts_s, rank=rank)
        wait_until(
            (self.folder / "begun").exists, 60, what=f"a moment of {moment} in job {self.job}", every_s=0.01
        )

    def _ask(self, **what: Any) -> None:
        fresh = self.folder / "asked.new"
        fresh.write_text(json.dumps(what))
        fresh.rename(self.folder / "asked.json")

    # --- what it says

    def newest(self) -> int:
        """The last step that any rank has made."""
        made = (one["step"] for name in self.nodes for one in self.log.of(name) if "loss" in one)
        return max(made, default=0)

    def was_in(self, moment: str, at: float) -> bool:
        """Whether it was then in this moment, by what its ranks have written."""
        lines = [self.log.of(file.stem) for file in self.folder.glob("*.jsonl")]
        if moment == MEETING:
            begun = [one["at"] for rank in lines for one in rank if "from_step" in one and one["at"] > at]
            steps = [one["at"] for rank in lines for one in rank if "loss" in one and one["at"] > at]
            return self.broken_at <= at and bool(begun) and min(begun) < min(steps, default=begun[0] + 1)
        now = [one for rank in lines if (one := last_before(rank, at)) and one.get("moment") == moment]
        holds = [one for one in now if one["holds"] and one["at"] <= at < one["at"] + one["lasts_s"]]
        return bool(holds) and (moment != ALL_REDUCE or len(now) == holds[0]["world"])

    @property
    def others(self) -> tuple[str, ...]:
        return tuple(name for name in self.nodes if name not in self.faulty)

    def goes_on(self, world: int, timeout_s: float = 120) -> dict[str, Any]:
        """The first step after the fault that follows a start from a checkpoint, at so many nodes, with what
        the same worker wrote at that start."""

        def first() -> dict[str, Any] | None:
            found = [
                step
                for file in self.folder.glob("*.jsonl")
                if (step := self._resumed(file.stem, world)) is not None
            ]
            return min(found, key=lambda one: one["at"], default=None)

        found = wait_until(first, timeout_s, what=f"a step at {world} nodes", every_s=0.05)
        assert found is not None
        return found

    def _resumed(self, name: str, world: int) -> dict[str, Any] | None:
        lines = self.log.of(name)
        began = [n for n, one in enumerate(lines) if "from_step" in one and one["at"] > self.said_at]
        steps = lines[began[-1] :] if began else []
        return next((steps[0] | one for one in steps if "step" in one and one["world"] == world), None)

    def check_losses(self) -> None:
        """Each step has the loss that it has in a run that nothing disturbs, on whichever nodes and how often
        it was made: none goes on with a state that is not that step's."""
        losses: dict[int, float] = {}
        for file in self.folder.glob("*.jsonl"):
            for one in self.log.of(file.stem):
                if "loss" in one:
                    loss = losses.setdefault(one["step"], one["loss"])
                    assert abs(one["loss"] - loss) < 1e-4 * loss, (file.stem, one, loss)
        made = sorted(losses)
        assert made == list(range(1, len(made) + 1)), "no step was left out"
        for step, loss in losses.items():
            undisturbed = losses[1] * LOSS_FALLS ** (step - 1)
            assert abs(loss - undisturbed) < 1e-3 * undisturbed, (step, loss, undisturbed)

    def check_starts(self) -> None:
        """Each start went on from the newest checkpoint. The rank that saved it may have died since."""
        lines = [one for file in self.folder.glob("*.jsonl") for one in self.log.of(file.stem)]
        saved = [one for one in lines if "loss" in one and one["step"] % SAVE_EVERY == 0]
        for start in (one for one in lines if "from_step" in one):
            steps = [one["step"] for one in saved if one["rank"] == 0 and one["at"] < start["at"]]
            newest = max(steps, default=0)
            assert start["from_step"] in (newest, newest + SAVE_EVERY), (start, newest)

    def left_on(self, node: str) -> list[int]:
        """Processes of the job that run on the node, by the environment that they were started with."""
        return [
            int(entry.name)
            for entry in Path("/proc").glob("[0-9]*")
            if self._runs_there(int(entry.name), node)
        ]

    def _runs_there(self, pid: int, node: str) -> bool:
        try:
            words = Path(f"/proc/{pid}/environ").read_bytes().split(b"\0")
        except OSError:
            return False
        return {f"TMPDIR={self.folder}".encode(), f"SLURMD_NODENAME={node}".encode()} <= set(words)

    def shown(self) -> dict[str, str]:
        """What `scontrol show job` says."""
        text = self.site.slurm.run("scontrol", "show", "job", self.job)
        return dict(word.split("=", 1) for word in text.split() if "=" in word)

    def held(self) -> list[str]:
        """The job's nodes, as Slurm names them."""
        return self.site.slurm.run("scontrol", "show", "hostnames", self.shown()["NodeList"]).split()

    def has_shrunk(self) -> bool:
        """It runs on without its bad nodes. Of one that completes Slurm counts only nodes still at it."""
        shown = self.shown()
        state = shown["JobState"], shown["Restarts"], shown["NumNodes"]
        return state == ("RUNNING", "0", str(len(self.others))) and self.held() == list(self.others)

    def said(self) -> str:
        return "\n".join(
            f"--- {file.name}\n{file.read_text(errors='replace')[-2000:]}"
            for file in sorted(self.folder.glob("*.txt"))
        )


def last_before(rank: list[dict[str, Any]], at: float) -> dict[str, Any] | None:
    """The last that it had written by then."""
    return next((one for one in reversed(rank) if one["at"] <= at), None)


@contextmanager
def swapping(cluster: RealSlurm, folder: Path, **environ: str) -> Iterator[Swaps]:
    """A site whose policies name the playbook, with healer's hands on its nodes."""
    os.chmod(folder, 0o711)
    rules = rules_with(folder, RULES)
    with asking(cluster, folder, (), HEALER_RULES_DIR=str(rules), **WIDE_GUARDS, **environ) as (site, ssh):
        yield Swaps(site, ssh, folder)
