"""Training jobs of torchrun's agents on a real Slurm: five nodes, of which four are enough. Each node has its
follower, and healer-node behind an sshd.

All nodes are on one machine without GPUs: nvidia-smi is a stand-in whose GPUs compute while the node's rank
makes steps. Slurm's own programs say which processes a job has on a node.
"""

import os
import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any

from healer.embedded.embedded_slurm import RealSlurm
from tests.support import slurm as slurm_support
from tests.support.elastic import Told, step_of_agents
from tests.support.follower import XID_79, Following, following
from tests.support.looking import asking
from tests.support.node_ssh import SshNode, SshSite
from tests.support.right_act import rules_with
from tests.support.site import CLUSTER, WIDE_GUARDS, Site
from tests.support.wait import wait_until

NODES, LEAST = 5, 4
SWAP, REQUEUE = f"healer:swap={LEAST}", "healer:requeue"
#: The site's policies name the playbook for a GPU that is gone.
POLICY = ("policies.yaml", r"(name: gpu-lost\n(?:  .*\n)*?  playbook: )gpu-fatal", r"\1swap")
#: A rank makes ten steps a second. One that has made none for so long does not compute.
COMPUTES_S = 2
_BUSY = f"""
util=0 draw=90.00
[ -z "$(find "$(cat "$world/steps")" -newermt '-{COMPUTES_S} seconds' 2>/dev/null)" ] || util=97 draw=612.00
case $1 in"""


class Swaps:
    """One `healer up` with the playbook, its Slurm, and the nodes that jobs came to."""

    def __init__(self, site: Site, ssh: SshSite, folder: Path) -> None:
        self.site, self.folder = site, folder
        self._ssh, self._nodes = ssh, dict[str, SshNode]()
        self._count = 0

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

    @contextmanager
    def training(self, comment: str) -> Iterator["Training"]:
        self._count += 1
        folder = self.folder / f"job{self._count}"
        folder.mkdir()
        with ExitStack() as stack:
            one = Training(self, folder, comment)
            stack.callback(one.cancel)
            one.begin(stack)
            yield one


class Training:
    """One job; `bad` is the node that a fault line named, `said_at` when that was."""

    def __init__(self, swaps: Swaps, folder: Path, comment: str) -> None:
        self.swaps, self.site, self.folder = swaps, swaps.site, folder
        self.told = Told(folder)
        self.bad, self.said_at = "", 0.0
        self._followers: dict[str, Following] = {}
        self.job = self._submit(comment)
        self.nodes = self.site.job(self.job).nodes

    def _submit(self, comment: str) -> str:
        said = f"{self.folder}/$SLURM_RESTART_COUNT-%t.txt"
        job = slurm_support.sbatch(
            self.site.slurm, f"--nodes={NODES}", f"--ntasks={NODES}", "--ntasks-per-node=1",
            f"--comment={comment}", gpus=8, name="elastic",
            script=step_of_agents(self.folder, LEAST, NODES, "--wait=0", f"--output={said}"),
        )  # fmt: skip
        self.site.jobs.append(job)
        wait_until(lambda: self.site.job(job).state == "RUNNING", 30, what=f"job {job} runs", every_s=0.1)
        return job

    def begin(self, stack: ExitStack) -> None:
        """Followers on all its nodes, and it is at work."""
        for name in self.nodes:
            self.swaps.node(name).programs.world.joinpath("steps").write_text(f"{self.folder}/{name}.jsonl")
            file = str(self.folder / f"{name}.verdict")
            settings = {"HEALER_NODE": name, "HEALER_CLUSTER": CLUSTER, "HEALER_VERDICT_FILE": file}
            place = self.folder / "followers" / name
            one = stack.enter_context(following(place, self.site.stack.url, **settings))
            one.token.write_text(self.site.token("signals", node=name, cluster=CLUSTER))
            self._followers[name] = one.start()
        self.told.work(NODES, self.nodes)

    def cancel(self) -> None:
        """Its agents end by themselves: killed ones leave semaphores in /dev/shm."""
        self.site.slurm.run("scancel", self.job)
        wait_until(lambda: not self.site.job(self.job).active, 60, what=f"job {self.job} ends", every_s=0.1)

    def fault(self, node: str) -> None:
        """Its kernel says that a GPU is gone."""
        self.bad = node
        self.swaps.node(node).programs.kmsg(XID_79)
        self.said_at = time.time()
        self._followers[node].say(XID_79)

    @property
    def others(self) -> tuple[str, ...]:
        return tuple(name for name in self.nodes if name != self.bad)

    def goes_on(self, world: int, timeout_s: float = 120) -> dict[str, Any]:
        """The first step after the fault that follows a start from a checkpoint, at so many nodes."""

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
        lines = self.told.of(name)
        began = [n for n, one in enumerate(lines) if "from_step" in one and one["at"] > self.said_at]
        steps = lines[began[-1] :] if began else []
        return next((one for one in steps if "step" in one and one["world"] == world), None)

    def check_losses(self) -> None:
        """Each step has one loss, on whichever nodes and how often it was made: none goes on with a state
        that is not that step's."""
        losses: dict[int, float] = {}
        for file in self.folder.glob("*.jsonl"):
            for one in self.told.of(file.stem):
                if "step" in one:
                    loss = losses.setdefault(one["step"], one["loss"])
                    assert abs(one["loss"] - loss) < 1e-4 * loss, (file.stem, one, loss)
        made = sorted(losses)
        assert made == list(range(1, len(made) + 1)), "no step was left out"
        assert all(losses[step] > losses[step + 1] for step in made[:-1]), "another step is another loss"

    def shown(self) -> dict[str, str]:
        """What `scontrol show job` says."""
        text = self.site.slurm.run("scontrol", "show", "job", self.job)
        return dict(word.split("=", 1) for word in text.split() if "=" in word)

    def held(self) -> list[str]:
        """The job's nodes, as Slurm names them."""
        return self.site.slurm.run("scontrol", "show", "hostnames", self.shown()["NodeList"]).split()

    def has_shrunk(self) -> bool:
        """It runs on without the bad node. While a job completes, Slurm counts only the nodes still at it."""
        shown = self.shown()
        told = shown["JobState"], shown["Restarts"], shown["NumNodes"]
        return told == ("RUNNING", "0", str(LEAST)) and self.held() == list(self.others)

    def said(self) -> str:
        return "\n".join(
            f"--- {file.name}\n{file.read_text(errors='replace')[-2000:]}"
            for file in sorted(self.folder.glob("*.txt"))
        )


@contextmanager
def swapping(cluster: RealSlurm, folder: Path, **environ: str) -> Iterator[Swaps]:
    """A site whose policies name the playbook, with healer's hands on its nodes."""
    os.chmod(folder, 0o711)
    rules = rules_with(folder, (POLICY,))
    with asking(cluster, folder, (), HEALER_RULES_DIR=str(rules), **WIDE_GUARDS, **environ) as (site, ssh):
        yield Swaps(site, ssh, folder)
