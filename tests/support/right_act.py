"""What stories of the right act on a real Slurm have in common: shorter waits, boots, heartbeats, windows."""

import re
import shutil
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

import yaml

from healer.observations.node_picture import BEATS_FOR_CADENCE
from tests.support.breakable_slurm import BreakableSlurm
from tests.support.loop import SHIPPED
from tests.support.site import CLUSTER, Site, boot_of
from tests.support.slurm import Hooks
from tests.support.wait import in_background, wait_until

BEAT_S = 1.0
#: A substitute for the tests of GPUs, of which there are none.
PASSES = '#!/bin/sh\necho "healer-result answered_gpus 8"\n'
#: A file of the rules, its text, and the substitute here. Repairs begin at once and are proven:
REPAIRS = (
    ("playbooks/gpu-fatal.yaml", r"still_s: 300", "still_s: 2"),
    ("validation/depths.yaml", r"soft: \{tests: .*\}", "soft: {tests: [passes], limit_s: 120}"),
    ("validation/depths.yaml", r"power_cycle: full\n  replace: full", "power_cycle: soft\n  replace: soft"),
)
#: What an exporter says is believed sooner:
MEASURES = (("detection/gpu.yaml", r"(xid_last, 5m\) and xid_last > 0\n  for): 30s", r"\1: 5s"),)


def rules_with(
    folder: Path, changes: Sequence[tuple[str, str, str]], places: dict[str, dict[str, str]] | None = None
) -> Path:
    """The rules that ship with these changes, in a folder of their own; `places` as in topology.yaml."""
    rules = folder / "rules"
    shutil.copytree(SHIPPED, rules)
    for name, ships, here in changes:
        text, count = re.subn(ships, here, (rules / name).read_text())
        assert count == 1, f"{name} has no {ships}"
        (rules / name).write_text(text)
    (rules / "validation" / "passes.sh").write_text(PASSES)
    (rules / "topology.yaml").write_text(yaml.safe_dump({"places": places or {}, "gpu_pci": {}}))
    return rules


@contextmanager
def booting(cluster: BreakableSlurm, nodes: Sequence[str]) -> Iterator[Hooks]:
    """A node whose RebootProgram Slurm ran boots, as a machine does."""
    hooks = Hooks(cluster.directory.parent)
    for node in nodes:
        hooks.clear(node)  # the request before it is over

    def boot() -> None:
        for node in nodes:
            if hooks.asked_to_boot(node):
                hooks.clear(node)
                cluster.boot_node(node)

    with in_background(boot, 0.2):
        yield hooks


class Leaf:
    """Nodes with heartbeats that may fall silent, for Slurm too."""

    def __init__(self, site: Site, nodes: Sequence[str]) -> None:
        self.site, self.away, self.rounds = site, set[str](), 0
        self._nodes = nodes
        self._http = site.api("signals")

    @contextmanager
    def beating(self) -> Iterator[None]:
        """Once each node has a cadence, until the end."""
        with in_background(self._beat, BEAT_S):
            wait_until(lambda: self.rounds > BEATS_FOR_CADENCE, 20, what="heartbeats are sent")
            yield

    def _beat(self) -> None:
        beats = [
            {"cluster": CLUSTER, "node": node, "boot_id": boot_of(node)}
            for node in self._nodes
            if node not in self.away
        ]
        answer = self._http.post("/signals/heartbeat", json=beats)
        assert answer.status_code == 202, answer.text
        self.rounds += 1

    def silence(self, node: str) -> None:
        self.away.add(node)
        self.site.slurm.kill_node(node)

    def answer(self, node: str) -> None:
        self.site.slurm.start_node(node)
        wait_until(lambda: self.site.node(node).responding, 30, what=f"Slurm reaches {node}", every_s=0.1)
        self.away.discard(node)


@contextmanager
def maintenance(site: Site, nodes: Sequence[str]) -> Iterator[None]:
    """Planned work: a maintenance reservation, from when healer knows of it until healer knows of its end."""

    def shown(there: bool) -> bool:
        items = site.get("/nodes", limit=500)["items"]
        return all((one["status"] == "maintenance") is there for one in items if one["name"] in nodes)

    site.slurm.run(
        "scontrol", "create", "reservation", "ReservationName=work", f"Nodes={','.join(nodes)}",
        "Users=root", "Flags=MAINT,IGNORE_JOBS", "StartTime=now", "Duration=60",
    )  # fmt: skip
    try:
        wait_until(lambda: shown(True), 20, what="healer knows of the work", every_s=0.1)
        yield
    finally:
        site.slurm.run("scontrol", "delete", "ReservationName=work")
    wait_until(lambda: shown(False), 20, what="healer knows of its end", every_s=0.1)
