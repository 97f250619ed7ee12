"""The demo's cluster life: jobs, heartbeats, faults and a technician.

It sends what real nodes would send, through the public API, and submits its jobs to the Slurm of the demo.
"""

import random
import shlex
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any, Protocol

import httpx

from healer.model import SlurmJob, SlurmSnapshot
from healer.model.reasons import is_ours

#: PCI addresses of GPU 0 … 7 on the demo's nodes.
PCI = tuple(f"0000:{bus}:00" for bus in ("18", "2a", "3a", "5d", "9a", "ab", "ba", "db"))
HEARTBEAT_S = 5.0
FIRST_FAULT_S = 5.0
#: So long the technician takes; real ones take days.
REPAIR_S = 15.0
PACE_S = 60.0

_JOBS = (
    ("pretrain-70b", 8, 8),
    ("pretrain-8b", 4, 8),
    ("finetune", 2, 8),
    ("finetune", 2, 8),
    ("evaluate", 1, 8),
    ("notebook", 1, 1),
    ("notebook", 1, 1),
)


class Site(Protocol):
    """The demo's Slurm as its users have it."""

    def submit(self, name: str, nodes: int, gpus: int) -> None: ...
    def snapshot(self) -> SlurmSnapshot: ...
    def person_drain(self, node: str, reason: str) -> None: ...


class RealSite:
    """Users of a real Slurm: sbatch, and an administrator's scontrol."""

    def __init__(self, snapshot: Callable[[], SlurmSnapshot]) -> None:
        self.snapshot = snapshot

    def submit(self, name: str, nodes: int, gpus: int) -> None:
        command = f"sbatch --parsable --requeue -J {name} -N{nodes} --gres=gpu:{gpus} -o /dev/null"
        _run([*shlex.split(command), "--wrap", "sleep 86400"])

    def person_drain(self, node: str, reason: str) -> None:
        _run(["scontrol", "update", f"NodeName={node}", "State=DRAIN", f"Reason={reason}"])


class SimSite:
    """Users of the simulated Slurm."""

    def __init__(self, client: Any) -> None:
        self._client = client

    def submit(self, name: str, nodes: int, gpus: int) -> None:
        self._client.submit(name=name, nodes=nodes, gpus=gpus)

    def snapshot(self) -> SlurmSnapshot:
        return self._client.snapshot()

    def person_drain(self, node: str, reason: str) -> None:
        self._client.person_drain(node, reason, "bob")


def _run(command: Sequence[str]) -> None:
    done = subprocess.run(command, capture_output=True, text=True, timeout=20, check=False)
    if done.returncode:
        raise RuntimeError(f"{command[0]}: {done.stderr.strip()}")


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
    """The story. `say` tells the reader what is being broken, before healer does."""

    def __init__(
        self,
        *,
        url: str,
        cluster: str,
        signals_token: str,
        technician_token: str,
        site: Site,
        chance: random.Random,
        say: Callable[[str], None],
    ) -> None:
        self._cluster, self._site, self._chance, self._say = cluster, site, chance, say
        self._signals = httpx.Client(base_url=url, headers=_bearer(signals_token), timeout=10)
        self._people = httpx.Client(base_url=url, headers=_bearer(technician_token), timeout=10)
        self._boots: dict[str, str] = {}
        self._seq = 0
        self._broken: set[str] = set()

    def run(self) -> None:
        """Never returns by itself."""
        for name, nodes, gpus in _JOBS:
            self._site.submit(name, nodes, gpus)
        threading.Thread(target=self._beat, daemon=True).start()
        time.sleep(FIRST_FAULT_S)
        self._break(FAULTS[0], on="pretrain-8b")
        time.sleep(PACE_S / 2)
        self._application_error()
        self._administrator()
        for round_ in range(1, 10**9):
            time.sleep(PACE_S)
            self._break(FAULTS[round_ % len(FAULTS)])

    # --- what nodes send ---

    def _beat(self) -> None:
        while True:
            try:
                names = list(self._site.snapshot().nodes)
                self._post("heartbeat", [self._heartbeat(name) for name in names])
            except (httpx.HTTPError, OSError, RuntimeError) as error:
                print(f"heartbeats: {error}", file=sys.stderr, flush=True)
            time.sleep(HEARTBEAT_S)

    def _heartbeat(self, node: str) -> dict[str, Any]:
        gpus = [{"index": index, "pci": pci} for index, pci in enumerate(PCI)]
        return {"cluster": self._cluster, "node": node, "boot_id": self._boot(node), "gpus": gpus}

    def _boot(self, node: str) -> str:
        return self._boots.setdefault(node, f"{self._chance.getrandbits(128):032x}")

    def _lines(self, node: str, lines: Sequence[str]) -> None:
        now = datetime.now(UTC).isoformat()
        entries = []
        for line in lines:
            self._seq += 1
            entries.append({"time": now, "seq": self._seq, "line": line})
        self._post(
            "kernel-log",
            {"cluster": self._cluster, "node": node, "boot_id": self._boot(node), "entries": entries},
        )

    def _post(self, route: str, body: Any) -> None:
        answer = self._signals.post(f"/api/v1/signals/{route}", json=body)
        if answer.status_code >= 300:
            raise RuntimeError(f"{route}: {answer.status_code} {answer.text[:300]}")

    # --- the story ---

    def _break(self, fault: Fault, on: str | None = None) -> None:
        job = self._victim(on)
        if job is None:
            return
        node, gpu = job.nodes[0], self._chance.choice(job.gpus.get(job.nodes[0], tuple(range(8))))
        pci = PCI[gpu]
        self._say(f"breaking {node} GPU {gpu}: {fault.name} under job {job.id} ({job.name})")
        self._broken.add(node)
        self._lines(node, [line.format(pci=pci) for line in fault.lines])
        for other in job.nodes:  # what the crash of the job leaves on all its nodes
            self._lines(other, [_TEARDOWN.format(pci=one) for one in PCI[:4]])
        threading.Thread(target=self._repair, args=(node,), daemon=True).start()

    def _victim(self, name: str | None) -> SlurmJob | None:
        for _ in range(60):
            running = [job for job in self._site.snapshot().jobs.values() if job.state == "RUNNING"]
            fit = [job for job in running if not self._broken.intersection(job.nodes)]
            named = [job for job in fit if job.name == name] if name else fit
            if named or fit:
                return self._chance.choice(sorted(named or fit, key=lambda job: int(job.id)))
            time.sleep(1)
        return None

    def _application_error(self) -> None:
        job = self._victim("evaluate")
        if job is not None:
            self._say(f"job {job.id} ({job.name}) reads past its memory: an error of the program")
            self._lines(job.nodes[0], [line.format(pci=PCI[0]) for line in _APPLICATION.lines])

    def _administrator(self) -> None:
        idle = [name for name, node in self._site.snapshot().nodes.items() if node.base == "IDLE"]
        fit = [name for name in idle if name not in self._broken]
        if fit:
            self._say(f"an administrator drains {fit[-1]} for a power supply; healer must leave it alone")
            self._broken.add(fit[-1])
            self._site.person_drain(fit[-1], "PSU 2 makes noise - bob")

    def _repair(self, node: str) -> None:
        """The technician: waits for healer's drain, mends, boots, and says so."""
        for _ in range(120):
            time.sleep(1)
            shown = self._site.snapshot().nodes[node]
            if shown.drain and is_ours(shown.reason) and not shown.busy:
                break
        else:
            return
        time.sleep(REPAIR_S)
        del self._boots[node]
        self._post("heartbeat", self._heartbeat(node))
        body = {"cluster": self._cluster, "node": node, "reason": "GPU board replaced"}
        answer = self._people.post("/api/v1/playbooks/resume/runs", json=body)
        self._say(f"the technician has replaced the board of {node} and gives it back ({answer.status_code})")
        self._broken.discard(node)


def _bearer(token: str) -> dict[str, str]:
    return {"Authorization": f"Bearer {token}"}
