"""The senders of a whole site: metrics, step times and checkpoints of its nodes, by HTTP, every 5 s.

They follow the real Slurm, and the simulated nodes: what healer restarts is well in the metrics too.
"""

import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from datetime import UTC, datetime, timedelta
from typing import Any

import httpx
import msgspec

from healer.detection.forest import Forest
from healer.detection.protocol import TickInput
from healer.model import Ruleset, SlurmSnapshot
from healer.model.feature_rows import FeatureRow
from healer.observations.steps import StepTimes
from healer.observations.telemetry_windows import Telemetry
from healer.signals.translate import Translator
from healer.sim.fleet_steps import Pace
from healer.sim.nodes import NodesClient
from healer.sim.sim_telemetry import Sent, SimTelemetry
from healer.sim.stores import MemoryColumns
from tests.support.site import CLUSTER, Site
from tests.support.wait import wait_until

ROUND_S = 5.0
#: So long a sender repeats what healer is too busy for.
PATIENCE_S = 30.0
SEED = 11
#: Steps of two seconds, a checkpoint each half minute.
PACE = Pace(compute_s=1.7, collective_s=0.25, checkpoint_every=15, checkpoint_s=2.0)


class Sensors:
    """One thread sends; the test's thread plants. Failed sends are in `errors`."""

    def __init__(self, site: Site, nodes: list[str], simulated: NodesClient) -> None:
        self.errors: list[str] = []
        self._site, self._nodes = site, simulated
        self._http = httpx.Client(
            base_url=f"{site.stack.url}/api/v1/signals",
            headers={"Authorization": f"Bearer {site.token('signals', 'sensors')}"},
            timeout=20,
        )
        self._sim = SimTelemetry(CLUSTER, nodes, start=datetime.now(UTC), seed=SEED, pace=PACE)
        self._sim.quiet = True
        self._lock = threading.Lock()
        self._waits_for_restart: set[str] = set()
        #: Node -> what is done to its body before it is sent: faults that the simulation does not know.
        self._bent: dict[str, Callable[[dict[str, Any]], None]] = {}

    @contextmanager
    def sending(self) -> Iterator["Sensors"]:
        stopped = threading.Event()
        thread = threading.Thread(target=self._rounds, args=(stopped,))
        thread.start()
        try:
            yield self
        finally:
            stopped.set()
            thread.join()
            self._http.close()

    def plant(self, fault: str, node: str, gpu: int | None = None) -> None:
        with self._lock:
            self._sim.plant(fault, node, gpu)

    def break_fabric_manager(self, node: str) -> None:
        """Until it is restarted."""
        self._nodes.plant(node, "fabric-manager")
        with self._lock:
            self._sim.plant("fabric-manager-down", node)
            self._waits_for_restart.add(node)

    def bend(self, node: str, change: Callable[[dict[str, Any]], None]) -> None:
        with self._lock:
            self._bent[node] = change

    def _rounds(self, stopped: threading.Event) -> None:
        while not stopped.wait(ROUND_S):
            try:
                self._round()
            except Exception as error:  # the test asks for them; the thread has to go on
                self.errors.append(f"{type(error).__name__}: {error}")

    def _round(self) -> None:
        snapshot = self._site.scheduler.snapshot()
        with self._lock:
            for node in list(self._waits_for_restart):
                if "fabric-manager" not in self._nodes.faults(node):
                    self._sim.mend(node)
                    self._waits_for_restart.discard(node)
            self._sim.show(snapshot)
            sent = self._sim.advance(datetime.now(UTC))
            for body in sent.metrics:
                self._bent.get(body["node"], lambda _: None)(body)
        self._post("metrics", sent.metrics)
        if sent.step_times:
            self._post("step-times", sent.step_times)
        if sent.checkpoints:
            self._post("checkpoints", sent.checkpoints)

    def _post(self, route: str, body: Any) -> None:
        answer = wait_until(
            lambda: self._answer(route, body), PATIENCE_S, what=f"{route} is taken", every_s=1.0
        )
        assert answer is not None
        counts = answer.json() if answer.status_code == 202 else {}
        if answer.status_code != 202 or counts["rejected"] or counts["unrecognised"]:
            self.errors.append(f"{route}: {answer.status_code} {answer.text[:300]}")

    def _answer(self, route: str, body: Any) -> httpx.Response | None:
        """None where healer asks to send it again, as senders then do."""
        answer = self._http.post(f"/{route}", json=body)
        return None if answer.status_code in (429, 503) else answer


def healthy_history(
    rules: Ruleset, snapshot: SlurmSnapshot, nodes: list[str], *, until: datetime, rounds: int = 90
) -> list[FeatureRow]:
    """What the forest of a detector keeps of these very nodes in `rounds` half minutes when all is well."""
    book, rows = MemoryColumns(), list[FeatureRow]()
    translator = Translator(rules.catalogue, book, CLUSTER)
    telemetry = Telemetry(CLUSTER, rules.catalogue, rules.gpu_models)
    forest = Forest(lambda: (), rows.append)
    at = until - timedelta(seconds=30 * rounds)
    sim = SimTelemetry(CLUSTER, nodes, start=at, seed=SEED, pace=PACE)
    sim.quiet = True
    sim.show(snapshot)
    for _ in range(rounds):
        at += timedelta(seconds=30)
        sent: Sent = sim.advance(at)
        raw = msgspec.json.encode(sent.metrics)
        measured = translator.columnar(raw, lambda _cluster, _node: True, at)
        telemetry.show(msgspec.structs.replace(snapshot, taken_at=at), rules.topology)
        telemetry.update(measured.reports, book)
        forest.tick(TickInput(at, telemetry, StepTimes(CLUSTER)))
    return rows
