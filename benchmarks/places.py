"""A leaf switch dies, then a whole row loses its power, in a fleet of 12,500 nodes: what healer makes of it.

    python -m benchmarks.places [--nodes 12500]

Leaf switches of 64 nodes, racks of 4, and a feed for each row of 400. All nodes of the place fall silent
within 5 s, and Slurm takes them down. Prints the incidents, how many nodes each names, what was taken out of
service (nothing should be), and the CPU time of a walk: of the beats of all nodes, and the worst.
"""

import argparse
import statistics
import time
from collections import Counter

import msgspec

from healer.model import SlurmNode
from healer.model.slurm import with_unchanged
from healer.sim.sim_slurm import sim_nodes
from tests.support.loop import Site, beat

LEAF, RACK, ROW = 64, 4, 400
STEP_S, BEAT_S = 5, 15
QUIET_S, AWAY_S = 60, 180


class Placed(Site):
    """The poller adds which feed a node has. What did not change stays the same objects, as after a read."""

    feeds: dict[str, str]

    def look(self) -> None:
        snapshot, before = self.slurm.snapshot(), self.ledger.snapshot
        nodes = {
            name: msgspec.structs.replace(node, pdu=self.feeds[name]) for name, node in snapshot.nodes.items()
        }
        nodes = with_unchanged(before.nodes if before is not None else {}, nodes)
        self.ledger.snapshot = msgspec.structs.replace(snapshot, nodes=nodes)
        self.picture.show(self.ledger.snapshot)


def fleet(count: int) -> list[SlurmNode]:
    return [
        msgspec.structs.replace(
            node, switch=f"leaf{at // LEAF}", rack=f"rack{at // RACK}", pdu=f"row{at // ROW}"
        )
        for at, node in enumerate(sim_nodes(count))
    ]


def play(nodes: list[SlurmNode], lost: set[str]) -> None:
    site = Placed(nodes, slurmd_timeout_s=60)
    site.feeds = {node.name: node.pdu for node in nodes}
    walks, taken = [], set[str]()
    for second in range(0, QUIET_S + AWAY_S, STEP_S):
        if second == QUIET_S:
            for name in lost:
                site.slurm.silence(name)
        gone = lost if second >= QUIET_S else set[str]()
        part = nodes[second % BEAT_S // STEP_S :: BEAT_S // STEP_S]
        beats = [beat(node.name, site.now) for node in part if node.name not in gone]
        site.look()
        begun = time.process_time()
        site.walk(*beats)
        walks.append((time.process_time() - begun) * 1e3)
        site.drive()
        taken |= {slot.node for slot in site.ledger.tables.slots.values()}
        site.clock.advance(STEP_S)
    found = Counter((incident.rule, len(incident.affected)) for incident in site.open_incidents)
    shown = ", ".join(f"{count} {rule} of {size} nodes" for (rule, size), count in found.items())
    print(f"  {len(site.open_incidents)} open: {shown}; taken out of service: {len(taken)}")
    print(f"  a walk p50 {statistics.median(walks):.0f} ms, worst {max(walks):.0f} ms of CPU", flush=True)


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--nodes", type=int, default=12_500)
    nodes = fleet(parser.parse_args().nodes)
    for what, part in (("a leaf switch", "switch"), ("the feed of a row", "pdu")):
        place = getattr(nodes[len(nodes) // 2], part)
        lost = {node.name for node in nodes if getattr(node, part) == place}
        print(f"{len(nodes):,} nodes, {what} with {len(lost)} of them is lost")
        play(nodes, lost)


if __name__ == "__main__":
    main()
