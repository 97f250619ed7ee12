"""Findings into incidents in a storm: 10,000 findings of one batch among 5,000 open incidents.

    python -m benchmarks.correlate

Three storms over 1,250 nodes: links of all nodes of 18 NVLink domains, one job torn down around one lost
GPU, and faults of any kind. The figure to reach is < 2 s of one core each.
"""

import random
import time
from collections.abc import Sequence
from datetime import UTC, datetime, timedelta
from pathlib import Path

import msgspec

from healer.incidents import Book, take_findings
from healer.model import (
    Component,
    Evidence,
    FaultClass,
    Finding,
    Incident,
    Mode,
    Ruleset,
    Sense,
    SlurmJob,
    SlurmNode,
    SlurmSnapshot,
)
from healer.observations import Picture
from healer.rulebook.ruleset import load

NOW = datetime(2026, 11, 20, 3, 0, tzinfo=UTC)
NODES, OPEN, STORM = 1250, 5000, 10_000
CLUSTER = "pod1"
_RULES = Path(__file__).parents[1] / "rules"


def name(number: int) -> str:
    return f"gpu{number % NODES:04d}"


def finding(number: int, fault: str, fault_class: FaultClass, *, teardown: bool = False) -> Finding:
    where = Component(cluster=CLUSTER, node=name(number), gpu=number // NODES % 8)
    text = f"{fault} on {where}"
    evidence = Evidence(
        digest=f"{fault}-{number}", at=NOW, component=where, text=text, line=text, sense=Sense.kernel
    )
    return Finding(
        rule="",
        fault=fault,
        fault_class=fault_class,
        component=where,
        at=NOW,
        arrived_at=NOW,
        text=text,
        confidence=1.0,
        evidence=(evidence,),
        teardown=teardown,
    )


def picture() -> Picture:
    """18 domains and 20 leaf switches; one job over half of the nodes, and one on each other node."""
    seen = Picture(CLUSTER, watching_since=NOW)
    nodes = {
        name(n): SlurmNode(
            name=name(n),
            state=("ALLOCATED",),
            gpus=8,
            domain=f"d{n // 70}",
            switch=f"l{n // 64}",
            rack=f"r{n // 4}",
            driver="580.65",
        )
        for n in range(NODES)
    }
    wide = tuple(name(n) for n in range(NODES // 2))
    jobs = {"1": SlurmJob(id="1", state="RUNNING", nodes=wide)}
    jobs |= {
        str(n): SlurmJob(id=str(n), state="RUNNING", nodes=(name(n),)) for n in range(NODES // 2 + 1, NODES)
    }
    seen.show(SlurmSnapshot(cluster=CLUSTER, taken_at=NOW, nodes=nodes, jobs=jobs))
    return seen


def opened(rules: Ruleset) -> list[Incident]:
    """Four on each node, of an hour ago: what a bad day leaves open."""
    work = Book(rules, [], picture(), NOW - timedelta(hours=1))
    take_findings(work, [finding(0, "xid-63", FaultClass.degraded)])
    (model,) = work.by_id.values()
    return [
        msgspec.structs.replace(
            model,
            id=f"{turn}-{n}",
            root=Component(cluster=CLUSTER, node=name(n), gpu=turn),
            jobs_hit=(str(n),),
        )
        for turn in range(OPEN // NODES)
        for n in range(NODES)
    ]


def storms() -> dict[str, list[Finding]]:
    draw = random.Random(1)
    mixed = [
        ("xid-95", FaultClass.fatal),
        ("xid-63", FaultClass.degraded),
        ("xid-13", FaultClass.application),
    ]
    torn = [finding(n, "xid-45", FaultClass.application, teardown=True) for n in range(STORM - 1)]
    return {
        "links of all domains": [finding(n, "xid-149", FaultClass.fatal) for n in range(STORM)],
        "one job torn down": [finding(STORM, "xid-79", FaultClass.fatal), *torn],
        "faults of any kind": [finding(n, *draw.choice(mixed)) for n in range(STORM)],
    }


def measure(rules: Ruleset, known: Sequence[Incident], storm: Sequence[Finding]) -> tuple[float, float, int]:
    """Seconds to index what is open, seconds of the batch, and incidents open after it."""
    seen = picture()
    begun = time.process_time()
    work = Book(rules, known, seen, NOW)
    indexed = time.process_time()
    take_findings(work, storm)
    return indexed - begun, time.process_time() - indexed, sum(one.is_open for one in work.by_id.values())


def main() -> None:
    rules = load(_RULES, default_mode=Mode.auto, prove=False)
    known = opened(rules)
    for what, storm in storms().items():
        index_s, storm_s, after = measure(rules, known, storm)
        print(
            f"{what}: {len(known)} open indexed in {index_s:.2f} s, "
            f"{len(storm)} findings in {storm_s:.2f} s, {after} open after"
        )


if __name__ == "__main__":
    main()
