"""A small fleet with a catalogue of its own, for tests of the language."""

from collections.abc import Mapping, Sequence
from datetime import UTC, datetime, timedelta

import numpy as np

from healer.model import (
    Catalogue,
    Column,
    GpuModel,
    Part,
    Place,
    Scope,
    Signal,
    SignalKind,
    SlurmJob,
    SlurmNode,
    SlurmSnapshot,
    Topology,
)
from healer.model.telemetry import Report
from healer.observations.telemetry_windows import Telemetry
from healer.sim.stores import MemoryColumns

START = datetime(2026, 11, 20, 3, 0, tzinfo=UTC)
MODELS = [GpuModel(name="H100", match=("h100",), values={"limit": 4.0}, source="test")]


def signal(name: str, unit: str, kind: str, scope: str, **more: object) -> Signal:
    made = {"name": name, "unit": unit, "kind": SignalKind(kind), "scope": Scope(scope)}
    return Signal(**made, text=f"the {name}", source="test", **more)  # type: ignore[arg-type]


SIGNALS = {
    one.name: one
    for one in (
        signal("heat", "count", "gauge", "gpu"),
        signal("work", "count", "gauge", "gpu"),
        signal("errors", "count", "counter", "gpu"),
        signal("flag", "bool", "gauge", "gpu"),
        signal("state", "state", "enum", "gpu", words={"Good": 0, "Bad": 1, "Worse": 2}),
        signal("reasons", "bits", "bits", "gpu", bits={"idle": 1, "hot": 4}),
        signal("load", "count", "gauge", "node"),
        signal("crashes", "count", "counter", "node"),
        signal("noise", "count", "gauge", "link"),
        signal("temp_c", "°C", "gauge", "gpu"),
        signal("power_w", "W", "gauge", "gpu"),
        signal("energy_j", "J", "counter", "gpu"),
        signal("use_percent", "%", "gauge", "gpu"),
        signal("use_ratio", "ratio", "gauge", "gpu"),
        signal("clock_mhz", "MHz", "gauge", "gpu"),
        signal("slow_ns", "ns", "counter", "gpu"),
        signal("offset_s", "s", "gauge", "node"),
    )
}


class Fleet:
    """Three nodes of four GPUs; n1 and n2 run job 1, n3 is idle. Each GPU has an NVLink, each node a port."""

    def __init__(self, names: Sequence[str] = ("n1", "n2", "n3"), gpus: int = 4) -> None:
        self.catalogue = Catalogue(signals=SIGNALS)
        self.telemetry = Telemetry("c", self.catalogue, MODELS)
        self.book = MemoryColumns()
        self.names, self.gpus = list(names), gpus
        self.now = START
        nodes = {name: SlurmNode(name=name, state=("IDLE",), gpus=gpus, gpu_model="h100") for name in names}
        job = SlurmJob(id="1", state="RUNNING", nodes=tuple(names[:2]))
        places = {name: Place(switch="s1" if name != "n3" else "s2", rack="r1") for name in names}
        snapshot = SlurmSnapshot(cluster="c", taken_at=START, nodes=nodes, jobs={"1": job})
        self.telemetry.show(snapshot, Topology(places=places))

    def after(self, seconds: float) -> datetime:
        self.now += timedelta(seconds=seconds)
        return self.now

    def send(self, node: str, values: Mapping[tuple[str, Part], float]) -> None:
        columns = [Column(name, part) for name, part in values]
        ids = np.array(self.book.ids(columns), np.int32)
        numbers = np.array(list(values.values()), np.float64)
        self.telemetry.update([Report("c", node, self.now, self.now, ids, numbers)], self.book)

    def send_gpus(self, node: str, **series: Sequence[float]) -> None:
        """Values by GPU of one node."""
        values = {
            (name, Part(gpu=gpu)): value for name, list_ in series.items() for gpu, value in enumerate(list_)
        }
        self.send(node, values)
