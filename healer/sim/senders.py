"""What the nodes and jobs of the demo send, through the public API: heartbeats, kernel lines, samples.

One thread beats and measures; the story's thread breaks things meanwhile, under one lock.
"""

import random
import sys
import threading
import time
from collections.abc import Callable, Sequence
from datetime import UTC, datetime
from typing import Any

import httpx

from healer.model import SlurmSnapshot
from healer.sim.telemetry import SimTelemetry

#: PCI addresses of GPU 0 … 7 on the demo's nodes.
PCI = tuple(f"0000:{bus}:00" for bus in ("18", "2a", "3a", "5d", "9a", "ab", "ba", "db"))
#: Heartbeats and metrics are sent so often.
ROUND_S = 5.0


class Senders:
    """All nodes of one cluster. `snapshot` is asked each round for nodes and jobs."""

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
        self._cluster, self._snapshot, self._chance = cluster, snapshot, chance
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
                print(f"senders: {error}", file=sys.stderr, flush=True)
            due = max(due + ROUND_S, time.monotonic())
            time.sleep(max(0.0, due - time.monotonic()))

    def round(self) -> None:
        """One heartbeat of every node, and what all measured since the last round."""
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
        """Kernel lines of the node's current boot."""
        now = datetime.now(UTC).isoformat()
        entries = []
        for line in lines:
            self._seq += 1
            entries.append({"time": now, "seq": self._seq, "line": line})
        body = {"cluster": self._cluster, "node": node, "boot_id": self._boot(node), "entries": entries}
        self._post("kernel-log", body)

    # --- what is wrong with them

    def plant(self, fault: str, node: str, gpu: int | None = None) -> None:
        with self._lock:
            self._sensors.plant(fault, node, gpu)

    def mend(self, node: str) -> None:
        with self._lock:
            self._sensors.mend(node)

    def hang(self, job: str) -> None:
        """No step any more in this life of the job."""
        with self._lock:
            self._sensors.hang(job)

    def boot(self, node: str) -> None:
        """The node comes up anew, whole."""
        with self._lock:
            self._sensors.mend(node)
            self._sensors.reboot(node)
        self._boots.pop(node, None)
        self._post("heartbeat", self._heartbeat(node))

    def _heartbeat(self, node: str) -> dict[str, Any]:
        gpus = [{"index": index, "pci": pci} for index, pci in enumerate(PCI)]
        return {"cluster": self._cluster, "node": node, "boot_id": self._boot(node), "gpus": gpus}

    def _boot(self, node: str) -> str:
        return self._boots.setdefault(node, f"{self._chance.getrandbits(128):032x}")

    def _post(self, route: str, body: Any) -> None:
        answer = self._http.post(f"/api/v1/signals/{route}", json=body)
        if answer.status_code >= 300:
            raise RuntimeError(f"{route}: {answer.status_code} {answer.text[:300]}")
