"""A small fleet that measures every 30 s, for the isolation forest: from a seed, with nodes made unusual."""

from datetime import timedelta

import numpy as np

from healer.detection.forest import Forest
from healer.detection.protocol import TickInput
from healer.detection.scorers import Model
from healer.model import Detections, Finding, Part, Scope, SignalKind, SlurmNode, Topology
from healer.model.feature_rows import FeatureRow
from healer.observations.steps import StepTimes
from healer.observations.telemetry_windows import Telemetry
from healer.sim.stores import MemoryColumns
from tests.support.measured import CLUSTER, START, Sender, catalogue, shown, signal

GPUS = 4
GAUGES = {"gpu_temp_c": 60.0, "power_w": 500.0, "sm_clock_mhz": 1755.0, "gpu_util_percent": 96.0}
NOISE = {"gpu_temp_c": 2.0, "power_w": 12.0, "sm_clock_mhz": 10.0, "gpu_util_percent": 1.0}


class Fleet:
    """`nodes` nodes of one model, all allocated. `odd`: node -> signal -> what is added on its GPUs."""

    def __init__(self, nodes: int = 24, *, state: str = "ALLOCATED", seed: int = 1) -> None:
        self.names = [f"gpu{index:04}" for index in range(nodes)]
        self.state = dict.fromkeys(self.names, (state,))
        self.telemetry = Telemetry(
            CLUSTER,
            catalogue(
                *(signal(name, SignalKind.gauge, Scope.gpu) for name in GAUGES),
                signal("pcie_replay_total", SignalKind.counter, Scope.gpu),
                signal("load1", SignalKind.gauge, Scope.node),
            ),
        )
        self.book = MemoryColumns()
        self.sender = Sender(self.book)
        self.random = np.random.default_rng(seed)
        self.odd: dict[str, dict[str, float]] = {}
        self.silent: set[str] = set()
        self.rows: list[FeatureRow] = []
        self.models: list[Model] = []
        self.forest = Forest(lambda: self.models, self.rows.append)
        self.replays = 0.0
        self.at_s = 0.0

    @property
    def now(self):
        return START + timedelta(seconds=self.at_s)

    def measure(self) -> None:
        """30 s pass, and every node sends."""
        self.at_s += 30
        nodes = [
            SlurmNode(name=name, state=self.state[name], gpus=GPUS, gpu_model="h100") for name in self.names
        ]
        self.telemetry.show(shown(*nodes, at_s=self.at_s), Topology())
        self.replays += 1
        reports = []
        for name in self.names:
            values: dict = {("load1", Part()): 20 + self.random.normal()}
            odd = self.odd.get(name, {})
            for gpu in range(GPUS):
                for key, usual in GAUGES.items():
                    values[key, Part(gpu=gpu)] = usual + NOISE[key] * self.random.normal() + odd.get(key, 0.0)
                values["pcie_replay_total", Part(gpu=gpu)] = self.replays * odd.get("pcie_replay_total", 0.0)
            if name not in self.silent:
                reports.append(self.sender.report(name, self.at_s, values))
        self.telemetry.update(reports, self.book)

    def run(self, minutes: float, watched: frozenset = frozenset()) -> list[Finding]:
        found: list[Finding] = []
        for _ in range(int(minutes * 2)):
            self.measure()
            self.sensed: Detections = self.forest.tick(
                TickInput(self.now, self.telemetry, StepTimes(CLUSTER), None, watched)
            )
            found += self.sensed.findings
        return found
