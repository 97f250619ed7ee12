"""The nodes of `benchmarks/slurm_day.py`: what their hooks read, their followers, and what breaks on them.

One process plays the followers of all nodes by the follower's protocol (docs/nodes.md): a kept connection and
a token of the node's own, a heartbeat each 10 s, kernel lines at once and until they are answered with 202,
questions for the verdict after a fault. In place of `nvidia-smi -q -x` each sends columnar metrics, once a
minute.
"""

import asyncio
import json
import random
import threading
import time
import uuid
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, NamedTuple

from benchmarks._load import CLUSTER
from healer.embedded.user import system_users
from healer.model import SlurmJob, SlurmSnapshot
from healer.model.hostlist import expand
from healer.sim.fleet.schedule import Fault
from healer.sim.fleet_steps import Pace
from healer.sim.nodes import HUNG, NodesServer, SimNodes
from healer.sim.planted_faults import PCI
from healer.sim.planted_faults import Fault as Sensed
from healer.sim.sim_telemetry import SimTelemetry
from tests.support.hooks import HOOK, MOUNTS, smi

HOOKS = {"Prolog": "prolog", "Epilog": "epilog", "HealthCheckProgram": "health-check"}
GPUS = 8
BEAT_S, MEASURE_S, REQUEST_S = 10.0, 60.0, 10.0
#: Of a minute, how long the nodes' measurements are spread over.
SPREAD_S = 50.0
#: After a fault line the node asks so often for the verdict, for so long.
ASK_EVERY_S, ASK_FOR_S = 1.0, 16.0
#: States of an InfiniBand port, as `node_infiniband_state_id` numbers them.
PORT_DOWN, PORT_ACTIVE = 1, 4
#: A port that flapped has its link again after so long.
FLAP_S, FLAP_OVER = 10.0, "mlx5_core 0000:5c:00.0 ib0: Link up"
#: Ways that a reset or a boot ends; other broken hardware waits for a technician.
SOFT = frozenset({"double-bit", "gsp-timeout", "pmu-halt", "nvlink-fatal"})
RESET_S = 10.0


@dataclass
class Node:
    """`seq` numbers the kernel's lines; `faults` are those of the whole day, `broken` those of now."""

    name: str
    root: Path
    boot_id: str = ""
    seq: int = 0
    silent: bool = False
    faults: list[Fault] = field(default_factory=list)
    broken: list[Fault] = field(default_factory=list)

    def boot(self) -> None:
        """A new boot: its kernel's log is empty."""
        self.boot_id, self.seq = str(uuid.uuid4()), 0
        (self.root / "proc/sys/kernel/random/boot_id").write_text(f"{self.boot_id}\n")
        (self.root / "dev/kmsg").write_text("")

    def show_gpus(self, missing: int | None = None) -> None:
        """What nvidia-smi prints from now on."""
        shown = [f"00000000:{pci[5:]}.0" for number, pci in enumerate(PCI) if number != missing]
        script = smi(*shown).replace("<uuid>GPU-", f"<uuid>GPU-{self.name}-")
        fresh = self.root / "nvidia-smi.new"
        fresh.write_text(f"#!/bin/sh\n{script}\n")
        fresh.chmod(0o755)
        fresh.rename(self.root / "usr/bin/nvidia-smi")

    def log(self, line: str) -> dict[str, Any]:
        """The kernel prints the line; as the follower sends it."""
        self.seq += 1
        micros = int(time.clock_gettime(time.CLOCK_MONOTONIC) * 1e6)
        with (self.root / "dev/kmsg").open("a") as kmsg:
            kmsg.write(f"4,{self.seq},{micros},-;{line}\n")
        return {"time": datetime.now(UTC).isoformat(), "seq": self.seq, "line": line}


class NodeFiles:
    """A folder in place of / for the hooks of each node; their programs and settings; the nodes' tokens."""

    def __init__(self, folder: Path, names: Sequence[str]) -> None:
        self.folder = folder
        for part in ("programs", "tokens", "spool", "broken"):
            (folder / part).mkdir()
        self.nodes = {name: self._node(name) for name in names}
        self.point_hooks_at("http://127.0.0.1:9")  # where nothing answers, until healer has started

    def _node(self, name: str) -> Node:
        node = Node(name, self.folder / "root" / name)
        for part in ("dev", "proc/sys/kernel/random", "usr/bin", "tmp", "scratch"):
            (node.root / part).mkdir(parents=True)
        (node.root / "proc/mounts").write_text(MOUNTS)
        (node.root / "proc/stat").write_text("procs_blocked 0\n")
        node.boot()
        node.show_gpus()
        return node

    def slurm_settings(self) -> dict[str, str]:
        """The hooks' programs; their lines of slurm.conf."""
        for hook in HOOKS.values():
            program = self.folder / "programs" / hook
            program.write_text(f"#!/bin/sh\nexec {HOOK} {hook} --conf {self.folder}/hook.conf\n")
            program.chmod(0o755)
        return {name: str(self.folder / "programs" / hook) for name, hook in HOOKS.items()}

    def point_hooks_at(self, url: str) -> None:
        settings = {
            "HEALER_URL": url,
            "HEALER_TOKEN_FILE": f"{self.folder}/tokens/%n",
            "HEALER_HOOK_SPOOL": f"{self.folder}/spool/%n",
            "HEALER_HOOK_ROOT": f"{self.folder}/root/%n",
            "HEALER_HOOK_GPUS": str(GPUS),
            "HEALER_HOOK_JITTER_S": "0",
        }
        fresh = self.folder / "hook.new"
        fresh.write_text("".join(f"{key}={value}\n" for key, value in settings.items()))
        fresh.rename(self.folder / "hook.conf")

    def keep_tokens(self, tokens: dict[str, str]) -> None:
        for name, token in tokens.items():
            file = self.folder / "tokens" / name
            file.touch(0o600)
            file.write_text(f"{token}\n")


class ReachedNodes(SimNodes):
    """The nodes as healer reaches them by SSH. A node whose tests find something has a file in `broken`."""

    def __init__(self, clock: Any, broken: Path) -> None:
        super().__init__(clock, diagnosis_s=RESET_S, gpus=GPUS)
        self._broken = broken

    def start_reset(self, node: str, key: str, gpu: str) -> None:
        super().start_reset(node, key, gpu)
        self._show(node)

    def plant(self, node: str, fault: str) -> None:
        super().plant(node, fault)
        self._show(node)

    def mend(self, node: str, fault: str | None = None) -> None:
        super().mend(node, fault)
        self._show(node)

    def _show(self, node: str) -> None:
        if {*self.faults(node)} - {"unreachable"}:
            (self._broken / node).touch()
        else:
            (self._broken / node).unlink(missing_ok=True)


def serve_nodes(nodes: ReachedNodes, folder: Path) -> NodesServer:
    """On a socket that healer's worker may use, as it alone has the key of SSH."""
    worker = system_users().worker
    server = NodesServer(nodes, worker.meeting_folder(folder) / "nodes.sock")
    worker.chown(server.path)
    server.start()
    return server


class Answer(NamedTuple):
    """A request with kernel lines that was answered with 202; moments in seconds since 1970."""

    node: str
    sent: float
    answered: float


class Link:
    """A follower's kept connection."""

    def __init__(self, port: int, token: str) -> None:
        self._port = port
        self._head = f"Host: 127.0.0.1:{port}\r\nContent-Type: application/json\r\n"
        self._head += f"User-Agent: healer-follow/1\r\nAuthorization: Bearer {token}\r\n"
        self._turn = asyncio.Lock()
        self._reader: asyncio.StreamReader | None = None
        self._writer: asyncio.StreamWriter | None = None

    async def post(self, route: str, body: Any) -> tuple[int, bytes]:
        """The status of the answer, 0 where there was none, and its body."""
        data = json.dumps(body, separators=(",", ":")).encode()
        head = f"POST /api/v1/signals/{route} HTTP/1.1\r\n{self._head}Content-Length: {len(data)}\r\n\r\n"
        async with self._turn:
            try:
                return await asyncio.wait_for(self._exchange(head.encode() + data), REQUEST_S)
            except (OSError, asyncio.IncompleteReadError, TimeoutError):
                self.close()
                return 0, b""

    async def _exchange(self, request: bytes) -> tuple[int, bytes]:
        if self._writer is None or self._reader is None:
            self._reader, self._writer = await asyncio.open_connection("127.0.0.1", self._port)
        self._writer.write(request)
        head = (await self._reader.readuntil(b"\r\n\r\n")).lower()
        length = head.partition(b"content-length: ")[2].partition(b"\r")[0]
        return int(head.split(b" ", 2)[1]), await self._reader.readexactly(int(length or 0))

    def close(self) -> None:
        writer, self._writer = self._writer, None
        if writer is not None:
            writer.close()


class Followers:
    """The followers of all nodes, in a thread of their own."""

    def __init__(self, nodes: dict[str, Node], running: Path) -> None:
        self.answers: list[Answer] = []
        #: Answers that did not take all that was sent, by route, status and reason; and when the last came.
        self.refused: Counter[str] = Counter()
        self.refused_at = 0.0
        self.sent = 0
        self._nodes, self._running = nodes, running
        self.sensors = SimTelemetry(
            CLUSTER, nodes, start=datetime.now(UTC), pace=Pace(reports=lambda _: False)
        )
        self._links: dict[str, Link] = {}
        self._lock = threading.Lock()
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._loop.run_forever, daemon=True)

    def start(self, port: int, tokens: dict[str, str]) -> None:
        self._links = {name: Link(port, token) for name, token in tokens.items()}
        self._thread.start()
        for node in self._nodes.values():
            asyncio.run_coroutine_threadsafe(self._beats(node), self._loop)
        asyncio.run_coroutine_threadsafe(self._measure(), self._loop)

    def stop(self) -> None:
        if self._thread.is_alive():
            asyncio.run_coroutine_threadsafe(self._cancel_all(), self._loop).result()
            self._loop.call_soon_threadsafe(self._loop.stop)
            self._thread.join()

    def say(self, node: Node, lines: Sequence[str]) -> None:
        """The node's kernel prints these lines."""
        body = {"node": node.name, "boot_id": node.boot_id, "entries": [node.log(line) for line in lines]}
        asyncio.run_coroutine_threadsafe(self._deliver(node, body), self._loop)

    def change(self, act: Callable[[SimTelemetry], None]) -> None:
        """Plants in the sensors, or mends there."""
        with self._lock:
            act(self.sensors)

    async def _cancel_all(self) -> None:
        tasks = asyncio.all_tasks() - {asyncio.current_task()}
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        for link in self._links.values():
            link.close()

    async def _deliver(self, node: Node, body: dict[str, Any]) -> None:
        sent, pause_s = time.time(), 0.5
        while await self._post(node, "kernel-log", body) != 202:
            await asyncio.sleep(pause_s)
            pause_s = min(15.0, pause_s * 2)
        self.answers.append(Answer(node.name, sent, time.time()))
        until = time.monotonic() + ASK_FOR_S
        while time.monotonic() < until and not node.silent:
            await asyncio.sleep(ASK_EVERY_S)
            await self._post(node, "heartbeat", {"node": node.name, "boot_id": node.boot_id, "asks": True})

    async def _beats(self, node: Node) -> None:
        await asyncio.sleep(random.uniform(0, BEAT_S))
        while True:
            due = time.monotonic() + BEAT_S
            if not node.silent:
                now = datetime.now(UTC).isoformat()
                beat = {"node": node.name, "boot_id": node.boot_id, "time": now, "lost": 0}
                await self._post(node, "heartbeat", beat)
            await asyncio.sleep(max(BEAT_S / 2, due - time.monotonic()))

    async def _measure(self) -> None:
        while True:
            due = time.monotonic() + MEASURE_S
            bodies = await asyncio.to_thread(self._advance)
            for body in bodies:
                if not self._nodes[body["node"]].silent:
                    asyncio.ensure_future(self._post(self._nodes[body["node"]], "metrics", body))  # noqa: RUF006
                await asyncio.sleep(SPREAD_S / len(bodies))
            await asyncio.sleep(max(0.0, due - time.monotonic()))

    def jobs(self) -> dict[str, SlurmJob]:
        """Those that run, as the users saw them last."""
        listed: dict[str, str] = json.loads(self._running.read_text())
        return {
            job: SlurmJob(id=job, state="RUNNING", nodes=tuple(expand(nodes)))
            for job, nodes in listed.items()
            if nodes
        }

    def _advance(self) -> list[dict[str, Any]]:
        """What all sensors show now."""
        now, jobs = datetime.now(UTC), self.jobs()
        with self._lock:
            self.sensors.show(SlurmSnapshot(cluster=CLUSTER, taken_at=now, jobs=jobs))
            bodies = self.sensors.advance(now).metrics
        for body in bodies:
            down = any(fault.way.port_down for fault in self._nodes[body["node"]].broken)
            for number, port in enumerate(body["ports"].values()):
                port["node_infiniband_state_id"] = PORT_DOWN if down and not number else PORT_ACTIVE
        return bodies

    async def _post(self, node: Node, route: str, body: Any) -> int:
        status, answer = await self._links[node.name].post(route, body)
        self.sent += 1
        if status != 202 or b'"rejected":[{' in answer:
            said = answer.partition(b'"detail":"')[2].partition(b'"')[0].decode(errors="replace")
            self.refused[f"{route} {status} {said[:80]}"] += 1
            self.refused_at = time.time()
        return status


class Breaking:
    """Faults as the nodes show them, and their repair. `after` calls a function some seconds later;
    `person` runs an administrator's scontrol."""

    def __init__(
        self,
        followers: Followers,
        reached: ReachedNodes,
        *,
        kill: Callable[[str], None],
        boot: Callable[[str], None],
        after: Callable[[float, Callable[[], None]], None],
        person: Callable[..., object],
    ) -> None:
        self._followers, self._reached = followers, reached
        self._kill, self._boot, self._after, self._person = kill, boot, after, person
        self.struck: list[tuple[float, Fault]] = []
        self.skipped = 0

    def strike(self, node: Node, fault: Fault, *, is_out: bool) -> None:
        """A fault of a node that is out of service, or broken already, is skipped."""
        if is_out or node.broken:
            self.skipped += 1
            return
        self.struck.append((time.time(), fault))
        node.faults.append(fault)
        node.broken.append(fault)
        way = fault.way
        if way.lines:
            self._say(node, fault, way.lines)
        for seconds, line in way.later:
            self._after(seconds, lambda line=line: self._say(node, fault, (line,)))
        for sensed in way.sensors:
            self._plant(sensed, node, fault.gpu)
        if way.hardware and fault.way_name != "unplanned-work":
            self._reached.plant(node.name, HUNG if fault.way_name in SOFT else way.planted)
        self._strike_more(node, fault)

    def _strike_more(self, node: Node, fault: Fault) -> None:
        """What only some ways show."""
        if fault.way_name == "off-the-bus":
            node.show_gpus(missing=fault.gpu)
            self._plant(Sensed.gpu_missing, node, fault.gpu)
        if fault.way_name == "port-flap":
            self._after(FLAP_S, lambda: self._say(node, fault, (FLAP_OVER,)))
        if fault.way.silent:
            self._after(1.0, lambda: self._die(node))  # its last lines are on their way
        if fault.way_name == "unplanned-work":
            reason = "Reason=work on the host, ticket 1"
            self._person("scontrol", "update", f"NodeName={node.name}", "State=DRAIN", reason)
            self._after(300.0, lambda: self._end_work(node))
        elif not fault.way.hardware:
            self._after(60.0, lambda: self._over(node, fault))

    def _plant(self, sensed: Sensed, node: Node, gpu: int) -> None:
        self._followers.change(lambda sensors: sensors.plant(sensed, node.name, gpu))

    def _say(self, node: Node, fault: Fault, lines: Sequence[str]) -> None:
        if fault in node.broken and not node.silent:
            filled = [line.format(pci=PCI[fault.gpu]) for line in lines]
            self._reached.keep_log(node.name, *filled)
            self._followers.say(node, filled)

    def _die(self, node: Node) -> None:
        node.silent = True
        self._reached.plant(node.name, "unreachable")
        self._kill(node.name)

    def _end_work(self, node: Node) -> None:
        node.broken.clear()
        self._person("scontrol", "update", f"NodeName={node.name}", "State=RESUME")

    def _over(self, node: Node, fault: Fault) -> None:
        if fault in node.broken:
            node.broken.remove(fault)

    def repair(self, node: Node) -> None:
        """A technician replaces what is broken, and boots the node."""
        self.boot(node)
        node.broken.clear()
        node.show_gpus()
        self._reached.mend(node.name)
        self._followers.change(lambda sensors: sensors.mend(node.name))

    def boot(self, node: Node) -> None:
        """The node boots, which ends what is soft."""
        self._boot(node.name)
        self._reached.keep_log(node.name, booted_at=datetime.now(UTC))
        for fault in [fault for fault in node.broken if fault.way_name in SOFT]:
            node.broken.remove(fault)
        self._reached.mend(node.name, HUNG)
        self._reached.mend(node.name, "unreachable")
        self._followers.change(lambda sensors: sensors.reboot(node.name))
        node.boot()
        node.silent = False
