"""The demo's story: what breaks in its cluster, when, and who mends it.

The senders tell what real nodes would tell, through the public API; the site's users submit their jobs to the
Slurm of the demo. `say` tells the reader what is being broken, before healer does.
"""

import random
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Protocol

import httpx

from healer.model import SlurmJob, SlurmNode
from healer.model.reasons import is_ours
from healer.ports.node_exec import NodeError
from healer.sim.fleet_steps import Pace
from healer.sim.senders import PCI, ROUND_S, Senders
from healer.sim.sites import Site

FIRST_FAULT_S = 5.0
#: So long the technician takes; real ones take days.
REPAIR_S = 15.0
PACE_S = 60.0
#: So long healer tests a slow node once it is empty; the technician lets it.
TESTS_S = 25.0
#: A slow node waits for its job's checkpoint: the technician is patient.
PATIENCE_S = 900.0
#: Steps of two seconds and a checkpoint each minute: real jobs are slower, and so would be the demo.
PACE = Pace(compute_s=1.7, collective_s=0.25, checkpoint_every=25, checkpoint_s=3.0)

_JOBS = (
    ("pretrain-70b", 8, 8),
    ("pretrain-8b", 4, 8),
    ("finetune", 2, 8),
    ("finetune", 2, 8),
    ("evaluate", 1, 8),
    ("notebook", 1, 1),
    ("notebook", 1, 1),
)


class Nodes(Protocol):
    """The simulated nodes as healer reaches them: a fault planted there is found, and ended, there."""

    def plant(self, node: str, fault: str) -> None: ...
    def mend(self, node: str, fault: str | None = None) -> None: ...
    def faults(self, node: str) -> list[str]: ...


@dataclass(frozen=True)
class Fault:
    """One fault as the kernel tells it. `lines` take the GPU's PCI address."""

    name: str
    lines: tuple[str, ...]


FAULTS = (
    Fault("off the bus", ("NVRM: Xid (PCI:{pci}): 79, pid=4242, name=python3, GPU has fallen off the bus.",)),
    Fault(
        "double-bit ECC",
        (
            "NVRM: Xid (PCI:{pci}): 48, pid=4242, name=python3, An uncorrectable double bit error (DBE) has "
            "been detected on GPU in the framebuffer at partition 6, subpartition 0.",
            "NVRM: Xid (PCI:{pci}): 63, pid=4242, Row Remapper: New row marked for remapping, reset gpu to "
            "activate.",
        ),
    ),
    Fault(
        "GSP time-out",
        (
            "NVRM: Xid (PCI:{pci}): 119, pid=4242, name=python3, Timeout after 6s of waiting for RPC "
            "response from GPU3 GSP! Expected function 76 (GSP_RM_CONTROL) (0x20803032 0x58c).",
        ),
    ),
)
_APPLICATION = Fault(
    "application",
    (
        "NVRM: Xid (PCI:{pci}): 31, pid=4242, name=python3, Ch 0000000b, intr 00000000. MMU Fault: ENGINE "
        "GRAPHICS GPCCLIENT_T1_0 faulted @ 0x7f4b_1a000000. Fault is of type FAULT_PDE ACCESS_TYPE_VIRT_READ",
    ),
)
_TEARDOWN = "NVRM: Xid (PCI:{pci}): 45, pid=4242, name=python3, Ch 00000008"


class Injector:
    """Breaks things one after the other, and is the technician who mends them."""

    def __init__(
        self,
        *,
        url: str,
        cluster: str,
        technician_token: str,
        site: Site,
        senders: Senders,
        nodes: Nodes,
        chance: random.Random,
        say: Callable[[str], None],
    ) -> None:
        self._cluster, self._site, self._chance, self._say = cluster, site, chance, say
        self._senders, self._nodes = senders, nodes
        headers = {"Authorization": f"Bearer {technician_token}"}
        self._people = httpx.Client(base_url=url, headers=headers, timeout=10, trust_env=False)
        self._broken: set[str] = set()

    def run(self) -> None:
        """Never returns by itself."""
        for name, nodes, gpus in _JOBS:
            self._site.submit(name, nodes, gpus)
        self._senders.start()
        time.sleep(FIRST_FAULT_S)
        self._break(FAULTS[0], on="pretrain-8b")
        time.sleep(PACE_S / 2)
        self._application_error()
        self._administrator()
        self._slow_node()
        time.sleep(PACE_S)
        self._fabric_manager()
        for round_ in range(1, 10**9):
            time.sleep(PACE_S)
            self._break(FAULTS[round_ % len(FAULTS)])

    # --- what breaks ---

    def _break(self, fault: Fault, on: str | None = None) -> None:
        job = self._victim(on)
        if job is None:
            return
        node, gpu = job.nodes[0], self._chance.choice(job.gpus.get(job.nodes[0], tuple(range(8))))
        pci = PCI[gpu]
        self._say(f"breaking {node} GPU {gpu}: {fault.name} under job {job.id} ({job.name})")
        self._broken.add(node)
        self._senders.lines(node, [line.format(pci=pci) for line in fault.lines])
        self._senders.hang(job.id)
        for other in job.nodes:  # what the crash of the job leaves on all its nodes
            self._senders.lines(other, [_TEARDOWN.format(pci=one) for one in PCI[:4]])
        self._call_technician(node, "GPU board replaced")

    def _slow_node(self) -> None:
        """Nothing in the kernel log: the job is slow, its GPU is hot, and both senses have to agree."""
        job = self._victim("pretrain-70b")
        if job is None:
            return
        node, gpu = job.nodes[len(job.nodes) // 2], self._chance.randrange(8)
        self._say(
            f"slowing {node} GPU {gpu}: a cold plate came loose; it throttles by heat, and job {job.id} "
            f"({job.name}) waits for it at each step. healer needs some minutes to be sure, then waits for "
            "the next checkpoint"
        )
        self._broken.add(node)
        self._nodes.plant(node, f"GPU {gpu} throttles by heat")
        self._senders.plant("thermal-throttle", node, gpu)
        self._call_technician(node, f"cold plate of GPU {gpu} mounted again", after_s=TESTS_S + REPAIR_S)

    def _fabric_manager(self) -> None:
        idle = self._idle()
        if not idle:
            return
        node = idle[-1]  # jobs fill a cluster from its first node on: this one stays empty
        self._say(f"the fabric manager of {node} dies; healer may restart it, nobody else will")
        self._broken.add(node)
        self._nodes.plant(node, "fabric-manager")
        self._senders.plant("fabric-manager-down", node)
        threading.Thread(target=self._until_restarted, args=(node,), daemon=True).start()

    def _application_error(self) -> None:
        job = self._victim("evaluate")
        if job is not None:
            self._say(f"job {job.id} ({job.name}) reads past its memory: an error of the program")
            self._senders.lines(job.nodes[0], [line.format(pci=PCI[0]) for line in _APPLICATION.lines])

    def _administrator(self) -> None:
        idle = self._idle()
        if idle:
            self._say(f"an administrator drains {idle[-1]} for a power supply; healer must leave it alone")
            self._broken.add(idle[-1])
            self._site.person_drain(idle[-1], "PSU 2 makes noise - bob")

    def _victim(self, name: str | None) -> SlurmJob | None:
        for _ in range(60):
            running = [job for job in self._site.snapshot().jobs.values() if job.state == "RUNNING"]
            fit = [job for job in running if not self._broken.intersection(job.nodes)]
            named = [job for job in fit if job.name == name] if name else fit
            if named or fit:
                return self._chance.choice(sorted(named or fit, key=lambda job: int(job.id)))
            time.sleep(1)
        return None

    def _idle(self) -> list[str]:
        shown = self._site.snapshot().nodes
        return [
            name
            for name, node in shown.items()
            if node.base == "IDLE" and not node.drain and name not in self._broken
        ]

    # --- who mends it ---

    def _call_technician(self, node: str, done: str, after_s: float = REPAIR_S) -> None:
        threading.Thread(target=self._repair, args=(node, done, after_s), daemon=True).start()

    def _repair(self, node: str, done: str, after_s: float) -> None:
        """The technician: waits until healer has emptied the node and tested it, mends, boots, says so."""
        if not self._until(node, lambda shown: shown.drain and is_ours(shown.reason) and not shown.busy):
            return
        time.sleep(after_s)
        self._nodes.mend(node)
        self._senders.boot(node)
        body = {"cluster": self._cluster, "node": node, "reason": done}
        answer = self._people.post("/api/v1/playbooks/resume/runs", json=body)
        self._say(f"the technician gives {node} back: {done} ({answer.status_code})")
        self._broken.discard(node)

    def _until(self, node: str, met: Callable[[SlurmNode], bool]) -> bool:
        end = time.monotonic() + PATIENCE_S
        while time.monotonic() < end:
            time.sleep(1)
            if met(self._site.snapshot().nodes[node]):
                return True
        return False

    def _until_restarted(self, node: str) -> None:
        """What the sensors show follows the service: whoever restarts it ends the fault."""
        while True:
            time.sleep(ROUND_S / 2)
            try:
                if "fabric-manager" not in self._nodes.faults(node):
                    break
            except NodeError:
                continue
        self._senders.mend(node)
        self._say(f"the fabric manager of {node} runs again")
        self._broken.discard(node)
