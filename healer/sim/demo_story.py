"""The demo's story: what breaks in its cluster, when, and who mends it.

The senders send what real nodes would send, through the public API; the site's users submit their jobs to the
Slurm of the demo. `say` prints what is being broken before healer finds it. One thread sends heartbeats and
metrics; the story's thread breaks things meanwhile, under one lock."""

import itertools
import random
import shlex
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Sequence
from datetime import UTC, datetime
from typing import Any, Protocol

import httpx

from healer.model import SlurmJob, SlurmSnapshot
from healer.model.shown import shown
from healer.model.slurm import is_ours
from healer.ports.node_exec import NodeError
from healer.sim.fleet_steps import Pace
from healer.sim.nodes import SimNodes
from healer.sim.planted_faults import PCI, TEARDOWN, WAYS
from healer.sim.sim_telemetry import SimTelemetry
from healer.text import say

#: Seconds between heartbeats and metrics.
ROUND_S = 5.0


class Senders:
    """Sends for all nodes of one cluster. `snapshot` gives nodes and jobs each round."""

    def __init__(
        self,
        *,
        url: str,
        cluster: str,
        token: str,
        snapshot: Callable[[], SlurmSnapshot],
        sensors: SimTelemetry,
        chance: random.Random,
    ) -> None:
        self.cluster, self._snapshot, self._chance = cluster, snapshot, chance
        headers = {"Authorization": f"Bearer {token}"}
        self._http = httpx.Client(base_url=url, headers=headers, timeout=10, trust_env=False)
        self._sensors = sensors
        self._lock = threading.Lock()
        self._boots: dict[str, str] = {}
        self._seq = 0

    def start(self) -> None:
        threading.Thread(target=self._rounds, daemon=True).start()

    def _rounds(self) -> None:
        due = time.monotonic()
        while True:
            try:
                self.round()
            except (httpx.HTTPError, OSError, RuntimeError) as error:
                print(f"senders: {shown(str(error))}", file=sys.stderr, flush=True)
            due = max(due + ROUND_S, time.monotonic())
            time.sleep(max(0.0, due - time.monotonic()))

    def round(self) -> None:
        """Sends one heartbeat of every node, and the metrics since the last round."""
        snapshot = self._snapshot()
        self._post("heartbeat", [self._heartbeat(name) for name in snapshot.nodes])
        with self._lock:
            self._sensors.show(snapshot)
            sent = self._sensors.advance(datetime.now(UTC))
        self._post("metrics", sent.metrics)
        if sent.step_times:
            self._post("step-times", sent.step_times)
        for body in sent.checkpoints:
            self._post("checkpoints", body)

    def lines(self, node: str, lines: Sequence[str]) -> None:
        """Sends kernel lines of the node's current boot."""
        now = datetime.now(UTC).isoformat()
        entries = []
        for line in lines:
            self._seq += 1
            entries.append({"time": now, "seq": self._seq, "line": line})
        body = {"cluster": self.cluster, "node": node, "boot_id": self._boot(node), "entries": entries}
        self._post("kernel-log", body)

    # --- faults

    def plant(self, fault: str, node: str, gpu: int | None = None) -> None:
        with self._lock:
            self._sensors.plant(fault, node, gpu)

    def mend(self, node: str) -> None:
        with self._lock:
            self._sensors.mend(node)

    def hang(self, job: str) -> None:
        """The job makes no step until it is restarted."""
        with self._lock:
            self._sensors.hang(job)

    def boot(self, node: str) -> None:
        """The node reboots and is healthy."""
        with self._lock:
            self._sensors.mend(node)
            self._sensors.reboot(node)
        self._boots.pop(node, None)
        self._post("heartbeat", self._heartbeat(node))

    def _heartbeat(self, node: str) -> dict[str, Any]:
        gpus = [{"index": index, "pci": pci} for index, pci in enumerate(PCI)]
        return {"cluster": self.cluster, "node": node, "boot_id": self._boot(node), "gpus": gpus}

    def _boot(self, node: str) -> str:
        return self._boots.setdefault(node, f"{self._chance.getrandbits(128):032x}")

    def _post(self, route: str, body: Any) -> None:
        answer = self._http.post(f"/api/v1/signals/{route}", json=body)
        if answer.status_code >= 300:
            raise RuntimeError(f"{route}: {answer.status_code} {answer.text[:300]}")


# --- the story

#: The jobs of the demo agree to be requeued for a slow node too (law of consent).
COMMENT = "healer:requeue"


class Site(Protocol):
    """What the story needs of a Slurm."""

    def submit(self, name: str, nodes: int, gpus: int) -> None: ...
    def cancel(self, job: str) -> None: ...
    def snapshot(self) -> SlurmSnapshot: ...
    def person_drain(self, node: str, reason: str) -> None: ...


class RealSite:
    """Users of a real Slurm: sbatch, and an administrator's scontrol."""

    def __init__(self, snapshot: Callable[[], SlurmSnapshot]) -> None:
        self.snapshot = snapshot

    def submit(self, name: str, nodes: int, gpus: int) -> None:
        command = f"sbatch --parsable --requeue -J {name} -N{nodes} --gres=gpu:{gpus} -o /dev/null"
        _run([*shlex.split(command), f"--comment={COMMENT}", "--wrap", "sleep 86400"])

    def cancel(self, job: str) -> None:
        _run(["scancel", job])

    def person_drain(self, node: str, reason: str) -> None:
        _run(["scontrol", "update", f"NodeName={node}", "State=DRAIN", f"Reason={reason}"])


class SimSite:
    """Users of the simulated Slurm."""

    def __init__(self, client: Any) -> None:
        self._client = client

    def submit(self, name: str, nodes: int, gpus: int) -> None:
        self._client.add_job(name=name, nodes=nodes, gpus=gpus, comment=COMMENT)

    def cancel(self, job: str) -> None:
        self._client.cancel(job)

    def snapshot(self) -> SlurmSnapshot:
        return self._client.snapshot()

    def person_drain(self, node: str, reason: str) -> None:
        self._client.person_drain(node, reason, "bob")


def _run(command: Sequence[str]) -> None:
    done = subprocess.run(command, capture_output=True, text=True, timeout=20, check=False)
    if done.returncode:
        raise RuntimeError(f"{command[0]}: {done.stderr.strip()}")


FIRST_FAULT_S = 5.0
#: Seconds of a repair; real ones take days.
REPAIR_S = 15.0
PACE_S = 60.0
#: Seconds in which healer tests a drained slow node before the technician starts.
TESTS_S = 25.0
#: Seconds that a job may stay on a drained node until its owner restarts it: healer restarts it twice a day
#: at most, and leaves those that the fault did not hit. Nothing else would ever empty the node.
OWNER_S = 30.0
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


#: Faults of the demo in turn: name -> how it shows.
FAULTS = {
    "off_the_bus": WAYS["off-the-bus"],
    "double_bit": WAYS["double-bit"],
    "gsp_timeout": WAYS["gsp-timeout"],
}


def restart_left(site: Site, node: str) -> list[SlurmJob]:
    """Their owners cancel the demo's jobs that run on this node and submit them again. Returns the jobs."""
    shapes = {name: (nodes, gpus) for name, nodes, gpus in _JOBS}
    jobs = site.snapshot().jobs.values()
    left = [job for job in jobs if node in job.nodes and job.state == "RUNNING" and job.name in shapes]
    for job in left:
        site.cancel(job.id)
        site.submit(job.name, *shapes[job.name])
    return left


class Injector:
    """Breaks things one after the other, and repairs them as a technician: `people` is the technician's
    client of the API."""

    def __init__(
        self,
        *,
        people: httpx.Client,
        site: Site,
        senders: Senders,
        nodes: SimNodes,
        chance: random.Random,
        announce: Callable[[str], None],
    ) -> None:
        self._people, self._site, self._chance, self._say = people, site, chance, announce
        self._senders, self._nodes = senders, nodes
        self._broken: set[str] = set()

    def run(self) -> None:
        """Never returns by itself."""
        for name, nodes, gpus in _JOBS:
            self._site.submit(name, nodes, gpus)
        self._senders.start()
        time.sleep(FIRST_FAULT_S)
        self._break("off_the_bus", on="pretrain-8b")
        time.sleep(PACE_S / 2)
        self._application_error()
        self._administrator()
        self._slow_node()
        time.sleep(PACE_S)
        self._fabric_manager()
        for fault in itertools.islice(itertools.cycle(FAULTS), 1, None):
            time.sleep(PACE_S)
            self._break(fault)

    # --- what breaks ---

    def _break(self, fault: str, on: str | None = None) -> None:
        job = self._victim(on)
        if job is None:
            return
        node, gpu = job.nodes[0], self._chance.choice(job.gpus.get(job.nodes[0], tuple(range(8))))
        pci = PCI[gpu]
        self._say(
            say("simulation.demo_breaks", fault=say(f"simulation.fault_{fault}"), **_place(node, gpu, job))
        )
        self._broken.add(node)
        self._senders.lines(node, [line.format(pci=pci) for line in FAULTS[fault].lines])
        self._senders.hang(job.id)
        for other in job.nodes:  # the crash of the job leaves these on all its nodes
            self._senders.lines(other, [TEARDOWN.format(pci=address) for address in PCI[:4]])
        self._call_technician(node, say("simulation.demo_board_replaced"))

    def _slow_node(self) -> None:
        """Nothing in the kernel log: the job is slow, its GPU is hot, and both senses have to agree."""
        job = self._victim("pretrain-70b")
        if job is None:
            return
        node, gpu = job.nodes[len(job.nodes) // 2], self._chance.randrange(8)
        self._say(say("simulation.demo_slows", **_place(node, gpu, job)))
        self._broken.add(node)
        self._nodes.plant(node, f"GPU {gpu} throttles by heat")
        self._senders.plant("thermal-throttle", node, gpu)
        self._call_technician(node, say("simulation.demo_cold_plate", gpu=gpu), after_s=TESTS_S + REPAIR_S)

    def _fabric_manager(self) -> None:
        idle = self._idle()
        if not idle:
            return
        node = idle[-1]  # jobs fill a cluster from its first node on: this one stays empty
        self._say(say("simulation.demo_fabric_manager", node=node))
        self._broken.add(node)
        self._nodes.plant(node, "fabric-manager")
        self._senders.plant("fabric-manager-down", node)
        threading.Thread(target=self._until_restarted, args=(node,), daemon=True).start()

    def _application_error(self) -> None:
        job = self._victim("evaluate")
        if job is not None:
            self._say(say("simulation.demo_program", job=job.id, name=job.name))
            self._senders.lines(job.nodes[0], [line.format(pci=PCI[0]) for line in WAYS["program"].lines])

    def _administrator(self) -> None:
        idle = self._idle()
        if idle:
            self._say(say("simulation.demo_person", node=idle[-1]))
            self._broken.add(idle[-1])
            self._site.person_drain(idle[-1], "PSU 2 fan is noisy - bob")

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

    # --- the technician ---

    def _call_technician(self, node: str, done: str, after_s: float = REPAIR_S) -> None:
        threading.Thread(target=self._repair, args=(node, done, after_s), daemon=True).start()

    def _repair(self, node: str, done: str, after_s: float) -> None:
        """The technician waits until healer has drained and tested the node, repairs and boots it, and
        reports it."""
        self._until_empty(node)
        time.sleep(after_s)
        self._nodes.mend(node)
        self._senders.boot(node)
        body = {"cluster": self._senders.cluster, "node": node, "reason": done}
        answer = self._people.post("/api/v1/playbooks/resume/runs", json=body)
        self._say(say("simulation.demo_returned", node=node, done=done, status=answer.status_code))
        self._broken.discard(node)

    def _until_empty(self, node: str) -> None:
        """healer may hold the drain for long: for a checkpoint, or a cap."""
        drained_at: float | None = None
        while True:
            time.sleep(1)
            seen = self._site.snapshot().nodes[node]
            if not (seen.drain and is_ours(seen.reason)):
                drained_at = None
            elif not seen.busy:
                return
            elif drained_at is None:
                drained_at = time.monotonic()
            elif time.monotonic() - drained_at > OWNER_S:
                drained_at = None
                for job in restart_left(self._site, node):
                    self._say(say("simulation.demo_owner", job=job.id, name=job.name, node=node))

    def _until_restarted(self, node: str) -> None:
        """Ends the fault in the sensors as soon as the service is restarted."""
        while True:
            time.sleep(ROUND_S / 2)
            try:
                if "fabric-manager" not in self._nodes.faults(node):
                    break
            except NodeError:
                continue
        self._senders.mend(node)
        self._say(say("simulation.demo_fabric_runs", node=node))
        self._broken.discard(node)


def _place(node: str, gpu: int, job: SlurmJob) -> dict[str, Any]:
    return {"node": node, "gpu": gpu, "job": job.id, "name": job.name}
