"""The second look: a relay's text answered 202 -> the node's answer -> the drain, on a real Slurm, sshd and
healer-node.

    python benchmarks/look.py [--count 30]

One claim at a time: true ones, forged ones, and for comparison the node's own report, which needs no second
look within the caps; past them the worker looks itself. Settling time off, as many slots as claims.
nvidia-smi is a stand-in that answers at once. Needs root and Debian's Slurm.
"""

import argparse
import math
import statistics
import sys
import time
from collections.abc import Callable
from contextlib import ExitStack
from datetime import UTC, datetime
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[1]))

from healer.embedded.embedded_slurm import RealSlurm
from healer.incidents.second_look import SECOND_LOOK
from tests.support.looking import GPU, asking, relay_of
from tests.support.site import WIDE_GUARDS, XID_79, Site
from tests.support.stack import scratch_folder

PATIENCE_S = 30


def until(seen: Callable[[], bool], what: str) -> datetime:
    ends = time.monotonic() + PATIENCE_S
    while not seen():
        if time.monotonic() > ends:
            raise SystemExit(f"gave up waiting for {what}")
        time.sleep(0.01)
    return datetime.now(UTC)


def looked_s(site: Site, node: str, since: datetime) -> float:
    """From `since` to the end of the look, by the product's own stamps."""
    query = (
        "SELECT doc->>'ended_at' FROM runs WHERE node = %s AND playbook = %s AND doc->>'ended_at' IS NOT NULL"
    )
    until(lambda: bool(site.sql(query, node, SECOND_LOOK)), f"the look at {node}")
    ((ended_at,),) = site.sql(query, node, SECOND_LOOK)
    return (datetime.fromisoformat(ended_at) - since).total_seconds()


def report(what: str, seconds: list[float]) -> None:
    ordered = sorted(seconds)
    p95 = ordered[math.ceil(0.95 * len(ordered)) - 1]
    figures = f"p50 {statistics.median(ordered):.2f} s, p95 {p95:.2f} s, max {ordered[-1]:.2f} s"
    print(f"{what}: n={len(ordered)} {figures}", flush=True)


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--count", type=int, default=30)
    count = parser.parse_args().count
    names = [f"gpu{number:04d}" for number in range(1, 4 * count + 1)]
    true, forged, own, past = (names[start::4] for start in range(4))
    with ExitStack() as stack:
        folder = stack.enter_context(scratch_folder())
        folder.chmod(0o711)
        slurm = stack.enter_context(RealSlurm(folder / "s", nodes=4 * count + 2))
        # Claims that cannot be verified (`own`) use all slots.
        settings = {**WIDE_GUARDS, "HEALER_GUARD_MAX_NODES": str(count), "HEALER_SETTLE_S": "0"}
        site, ssh = stack.enter_context(asking(slurm, folder, [*true, *forged, *past], **settings))
        relay = stack.enter_context(relay_of(site))
        nodes = {node.name: node.programs for node in ssh.nodes}
        looks: dict[str, list[float]] = {"true": [], "forged": []}
        drains: dict[str, list[float]] = {"true": [], "own": [], "past": []}
        kinds = {"true": true, "own": own, "past": past, "forged": forged}
        for kind, node in [(kind, node) for kind, chosen in kinds.items() for node in chosen]:
            line = XID_79.format(pci=GPU)
            if kind == "past":
                nodes[node].kmsg(line)
            if kind in ("own", "past"):
                site.signal("kernel-log", site.kernel_body(node, line))
            else:
                nodes[node].kmsg(*([line] if kind == "true" else ["usb 1-1: new device"]))
                nodes[node].has_gpu(f"{GPU}.0")
                assert relay.post("/signals/kernel-log", json=site.kernel_body(node, line)).status_code == 202
            answered = datetime.now(UTC)
            if kind != "forged":
                drained = until(lambda node=node: site.drains(node) > 0, f"the drain of {node}")
                drains[kind].append((drained - answered).total_seconds())
            if kind in looks:
                looks[kind].append(looked_s(site, node, answered))
        report("own word, answered -> drain", drains["own"])
        report("own word past the caps, answered -> drain", drains["past"])
        report("true text of a relay, answered -> end of the look", looks["true"])
        report("true text of a relay, answered -> drain", drains["true"])
        report("forged text of a relay, answered -> end of the look", looks["forged"])
        assert not any(site.node(node).drain for node in forged)


if __name__ == "__main__":
    main()
