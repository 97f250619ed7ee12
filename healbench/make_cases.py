"""Writes the 40 cases into `cases/`: `python -m healbench.make_cases [FOLDER]`."""

import json
import random
import sys
from collections.abc import Iterable
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

CASES = Path(__file__).parent / "cases"
START = datetime(2026, 11, 2, tzinfo=UTC)
DAY_S, HOUR_S = 86_400.0, 3600.0
Row = tuple[float, str, Any]

PROCESS = "pid=4711, name=python3"
DRIVER = "pid='<unknown>', name=<unknown>"


def xid(code: int, text: str, by: str = PROCESS) -> str:
    """A line of the driver, without a prefix."""
    return f"NVRM: Xid (PCI:0000:9b:00): {code}, {by}, {text}"


LOST = xid(79, "GPU has fallen off the bus.")
_RPC = "Timeout after 6s of waiting for RPC response from GPU0 GSP!"
FATAL = {
    "double-bit": xid(48, "DBE (double bit error) ECC Error"),
    "remap-failed": xid(64, "Row Remapper Error: (0x1)", DRIVER),
    "uncontained": xid(95, "Uncontained: FBHUB. RST: Yes, D-RST: No"),
    "gsp-timeout": xid(119, f"{_RPC} Expected function 76 (GSP_RM_CONTROL) (0x20800a4c 0x4)."),
    "halted": xid(62, "2027(1) 00000000 00000000", DRIVER),
}
HARMLESS = {
    "application-13": xid(13, "Graphics Exception: ESR 0x505730=0x1"),
    "application-31": xid(31, "Ch 00000008, intr 00000000. MMU Fault"),
    "application-43": xid(43, "Ch 00000008"),
    "cleanup-45": xid(45, "Ch 00000008"),
}
PENDING = xid(63, "Row Remapper: New row (0x1) marked for remapping", DRIVER)
CONTAINED = xid(94, "Contained: SM (0x1). RST: No, D-RST: No")
SWITCH = "nvidia-nvswitch0: SXid (PCI:0000:c1:00.0): 12028, Non-fatal, Link 32 egress non-posted PRIV error"


class Case:
    """One case. `faults`: node -> seconds; each has to be out of service soon. `maybe`: nodes that may be
    taken out or not. `save`: jobs that have to start again; every other job has to be left alone."""

    def __init__(self, name: str, why: str, *, nodes: int = 32, days: float = 1.0) -> None:
        self.name, self.why, self.days = name, why, days
        self.names = [f"gpu{number:04d}" for number in range(1, nodes + 1)]
        self.rows: list[Row] = []
        self.faults: dict[str, float] = {}
        self.maybe: list[str] = []
        self.save: list[str] = []
        self.roots = 0
        self._jobs: list[dict[str, Any]] = []

    def job(self, number: str, *nodes: str, **more: Any) -> "Case":
        gpus = {node: list(range(8)) for node in nodes}
        job = {"id": number, "state": "RUNNING", "nodes": list(nodes), "gpus": gpus, "user": "mara"}
        self._jobs.append(job | {"name": "train", "partition": "train"} | more)
        return self

    def line(self, at_s: float, node: str, *lines: str, **more: Any) -> "Case":
        entries = [{"time": stamp(at_s), "line": line} for line in lines]
        body = {"cluster": "bench", "node": node, "boot_id": f"boot-{node}", "entries": entries} | more
        self.rows.append((at_s, "signals/kernel-log", {k: v for k, v in body.items() if v is not None}))
        return self

    def nodes(self, at_s: float, **changed: dict[str, Any]) -> "Case":
        rows = [self._node(name) | row for name, row in changed.items()]
        self.rows.append((at_s, "slurm/nodes", {"cluster": "bench", "changed": rows}))
        return self

    def jobs(self, at_s: float, *rows: dict[str, Any]) -> "Case":
        self.rows.append((at_s, "slurm/jobs", {"cluster": "bench", "changed": list(rows)}))
        return self

    def broken(self, node: str, at_s: float, *save: str) -> "Case":
        self.faults[node] = at_s
        self.roots += 1
        self.save += save
        return self

    def _node(self, name: str) -> dict[str, Any]:
        number = int(name[3:]) - 1
        return {
            "name": name, "state": ["IDLE"], "gpus": 8, "gpu_model": "h100", "partitions": ["train"],
            "switch": f"leaf{number // 16 + 1}", "rack": f"rack{number // 8 + 1}"
        }  # fmt: skip

    def lines(self) -> list[str]:
        first = [
            (0.0, "slurm/nodes", {"cluster": "bench", "nodes": [self._node(name) for name in self.names]}),
            (0.0, "slurm/jobs", {"cluster": "bench", "jobs": self._jobs}),
        ]
        ordered = sorted([*self.rows, (self.days * DAY_S, "clock", {})], key=lambda row: row[0])
        return [
            json.dumps({"at": stamp(at_s), "route": route, "body": body}, separators=(",", ":"))
            for at_s, route, body in (*first, *ordered)
        ]

    def truth(self) -> dict[str, Any]:
        return {
            "case": self.name, "why": self.why, "nodes": len(self.names), "days": self.days,
            "faults": {node: stamp(at_s) for node, at_s in sorted(self.faults.items())},
            "maybe": sorted(self.maybe), "save": sorted(self.save), "roots": self.roots,
        }  # fmt: skip


def stamp(at_s: float) -> str:
    return (START + timedelta(seconds=at_s)).isoformat().replace("+00:00", "Z")


def cases() -> list[Case]:
    return [
        *_lost(),
        *_other_codes(),
        *_one_root(),
        *_shared(),
        *_not_hardware(),
        *_not_now(),
        *_people(),
        *_masses(),
    ]


def _lost() -> Iterable[Case]:
    yield (
        Case("lost-gpu-idle", "A GPU falls off the bus of an idle node")
        .line(HOUR_S, "gpu0007", LOST)
        .broken("gpu0007", HOUR_S)
    )
    case = Case("lost-gpu-job", "A GPU falls off the bus under a job, which Slurm may requeue")
    yield case.job("1", "gpu0007", "gpu0008").line(HOUR_S, "gpu0007", LOST).broken("gpu0007", HOUR_S, "1")
    case = Case("lost-gpu-no-requeue", "The job forbids a requeue")
    yield case.job("1", "gpu0007", requeue=False).line(HOUR_S, "gpu0007", LOST).broken("gpu0007", HOUR_S)
    case = Case("lost-gpu-interactive", "The job is interactive: Slurm cannot requeue it")
    yield case.job("1", "gpu0007", batch=False).line(HOUR_S, "gpu0007", LOST).broken("gpu0007", HOUR_S)
    says = (
        "NVRM: The NVIDIA GPU 0000:9b:00.0",
        "NVRM: (PCI ID: 10de:2330) installed in this system has",
        "NVRM: fallen off the bus and is not responding to commands.",
    )
    yield (
        Case("lost-gpu-three-lines", "The loss is said over three lines")
        .line(HOUR_S, "gpu0003", *says)
        .broken("gpu0003", HOUR_S)
    )
    case = Case("lost-gpu-repeated", "The same line comes fifty times")
    for number in range(50):
        case.line(HOUR_S + 2 * number, "gpu0003", LOST)
    yield case.broken("gpu0003", HOUR_S)
    case = Case("lost-gpu-twice", "Two nodes lose a GPU, six hours apart")
    for number, node in enumerate(("gpu0003", "gpu0020")):
        case.line((1 + 6 * number) * HOUR_S, node, LOST).broken(node, (1 + 6 * number) * HOUR_S)
    yield case
    case = Case("lost-gpu-large-fleet", "One of 256 nodes", nodes=256)
    yield case.job("1", *case.names[:64]).line(HOUR_S, "gpu0040", LOST).broken("gpu0040", HOUR_S, "1")
    case = Case("lost-gpu-syslog", "The line as rsyslog writes it")
    yield case.line(HOUR_S, "gpu0005", f"Nov  2 01:00:00 gpu0005 kernel: [ 8211.5] {LOST}").broken(
        "gpu0005", HOUR_S
    )


def _other_codes() -> Iterable[Case]:
    for name, line in FATAL.items():
        case = Case(f"fatal-{name}", "A fault of the catalogue that ends work on the GPU")
        yield case.job("1", "gpu0011").line(2 * HOUR_S, "gpu0011", line).broken("gpu0011", 2 * HOUR_S, "1")
    case = Case("two-codes-one-fault", "A double-bit error, and the GPU falls off the bus 20 s later")
    case.line(HOUR_S, "gpu0009", FATAL["double-bit"]).line(HOUR_S + 20, "gpu0009", LOST)
    yield case.broken("gpu0009", HOUR_S)


def _one_root() -> Iterable[Case]:
    for name, line in (
        ("45", HARMLESS["cleanup-45"]),
        ("13", HARMLESS["application-13"]),
        ("43", HARMLESS["application-43"]),
    ):
        case = Case(
            f"crash-on-16-nodes-{name}", f"A lost GPU ends a job of 16 nodes; the others say Xid {name}"
        )
        case.job("1", *case.names[:16]).line(HOUR_S, "gpu0004", LOST)
        for number, node in enumerate(case.names[:16]):
            if node != "gpu0004":
                case.line(HOUR_S + 1 + number / 10, node, line)
        yield case.broken("gpu0004", HOUR_S, "1")
    case = Case("crash-and-neighbour", "A lost GPU; a job of other nodes crashes by itself at that time")
    case.job("1", "gpu0004").job("2", "gpu0020").line(HOUR_S, "gpu0004", LOST)
    yield case.line(HOUR_S + 3, "gpu0020", HARMLESS["application-13"]).broken("gpu0004", HOUR_S, "1")


def _shared() -> Iterable[Case]:
    case = Case("shared-node", "Two jobs share a node; the GPU of one of them ends its work")
    gpus = [{"index": index, "pci": f"0000:{0x9B + index:02x}:00"} for index in range(8)]
    case.rows.append((60.0, "signals/heartbeat", {"cluster": "bench", "node": "gpu0011", "gpus": gpus}))
    case.job("1", "gpu0011", gpus={"gpu0011": [0, 1, 2, 3]}).job(
        "2", "gpu0011", gpus={"gpu0011": [4, 5, 6, 7]}
    )
    yield case.line(HOUR_S, "gpu0011", FATAL["double-bit"]).broken("gpu0011", HOUR_S, "1")


def _not_hardware() -> Iterable[Case]:
    for name, line in HARMLESS.items():
        case = Case(name, "A program's own error, or what the driver says when it ends")
        yield case.job("1", "gpu0011").line(2 * HOUR_S, "gpu0011", line)
    case = Case("bad-program-everywhere", "The same program crashes on eight nodes, again and again")
    chance = random.Random(7)
    for number in range(40):
        case.line(HOUR_S + 600 * number, chance.choice(case.names[:8]), HARMLESS["application-31"])
    yield case
    case = Case("user-writes-xid", "A user writes the driver's words into the log by logger")
    yield case.line(HOUR_S, "gpu0005", f"Nov  2 01:00:00 gpu0005 mara: {LOST}")
    yield Case("switch-non-fatal", "An NVSwitch reports an error that it calls non-fatal").line(
        HOUR_S, "gpu0005", SWITCH
    )
    yield Case("quiet-day", "Nothing happens", nodes=128)


def _not_now() -> Iterable[Case]:
    case = Case("remap-pending", "A row will be remapped at the next reset: the job goes on")
    case.job("1", "gpu0011").line(HOUR_S, "gpu0011", PENDING).maybe.append("gpu0011")
    yield case
    case = Case("contained", "A contained error ends one program; the node goes on, and is reset when idle")
    case.job("1", "gpu0011").line(HOUR_S, "gpu0011", CONTAINED).maybe.append("gpu0011")
    yield case
    case = Case("earlier-boot", "A line of an earlier boot, read after the reboot that ended its fault")
    for at_s, boot_id in ((60.0, "boot-before"), (900.0, "boot-gpu0011")):
        case.rows.append(
            (at_s, "signals/heartbeat", {"cluster": "bench", "node": "gpu0011", "boot_id": boot_id})
        )
    case.line(HOUR_S, "gpu0011", LOST, boot_id="boot-before")
    case.rows[-1][2]["entries"][0]["time"] = stamp(300.0)
    yield case
    case = Case("old-line", "A line of last week arrives now, of no known boot")
    case.line(HOUR_S, "gpu0011", LOST, boot_id=None)
    case.rows[-1][2]["entries"][0]["time"] = stamp(-7 * DAY_S)
    yield case


def _people() -> Iterable[Case]:
    out = {"state": ["IDLE", "DRAIN"], "reason": "swap of the GPU, mara", "reason_user": "mara"}
    case = Case("person-first", "A person drained the node for this; lines go on")
    yield case.nodes(HOUR_S, gpu0006=out).line(HOUR_S + 600, "gpu0006", LOST)
    case = Case("person-resumes", "A person drained it, repaired it and resumed it")
    case.nodes(HOUR_S, gpu0006=out).line(HOUR_S + 60, "gpu0006", LOST)
    yield case.nodes(5 * HOUR_S, gpu0006={"boot_at": stamp(4.9 * HOUR_S)})
    case = Case("maintenance", "The node is in a reservation for maintenance while lines come")
    planned = {"state": ["IDLE", "MAINTENANCE", "RESERVED"]}
    yield (
        case.nodes(HOUR_S, gpu0006=planned).line(HOUR_S + 600, "gpu0006", LOST).nodes(6 * HOUR_S, gpu0006={})
    )
    case = Case("slurms-own-drain", "Slurm drained it: Kill task failed")
    killed = {"state": ["IDLE", "DRAIN"], "reason": "Kill task failed", "reason_user": "root"}
    case.nodes(HOUR_S, gpu0006=killed).maybe.append("gpu0006")
    yield case


def _masses() -> Iterable[Case]:
    case = Case(
        "driver-roll-out",
        "Most nodes say that a GPU is lost within a minute: a roll-out, no 100 faults",
        nodes=128,
    )
    for number, node in enumerate(case.names[:100]):
        case.line(HOUR_S + number / 2, node, LOST)
    yield case
    case = Case("one-switch", "All 16 nodes under one switch lose a GPU at once: the switch, or its power")
    for number, node in enumerate(case.names[:16]):
        case.line(HOUR_S + number / 10, node, LOST)
    case.maybe += case.names[:16]
    case.roots = 1
    yield case
    case = Case("two-of-one-rack", "Two nodes of one rack are broken within minutes")
    for number, node in enumerate(("gpu0001", "gpu0002")):
        case.job(str(number + 1), node).line(HOUR_S + 300 * number, node, LOST).broken(
            node, HOUR_S + 300 * number, str(number + 1)
        )
    yield case
    case = Case(
        "storm-of-programs", "Half the nodes run a job that crashes: 64 lines within a second", nodes=128
    )
    case.job("1", *case.names[:64])
    for node in case.names[:64]:
        case.line(HOUR_S, node, HARMLESS["application-31"])
    yield case


def write(folder: Path) -> None:
    folder.mkdir(exist_ok=True)
    for case in cases():
        (folder / f"{case.name}.jsonl").write_text("\n".join(case.lines()) + "\n")
        (folder / f"{case.name}.truth.json").write_text(json.dumps(case.truth(), indent=1) + "\n")


if __name__ == "__main__":
    write(Path(sys.argv[1]) if len(sys.argv) > 1 else CASES)
