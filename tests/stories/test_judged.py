"""Small recordings and what the best hardware engineer of the site would say of them.

Each case gives Slurm's picture and lines; it holds the incidents (rule, severity, cause, node, first remedy,
jobs hit), and what was done. Lines follow the driver's formats (facts, part c).
"""

from typing import Any, NamedTuple

import pytest

from tests.stories.test_replay import clock, job, jobs, kernel, nodes, played, row
from tests.support.loop import CLUSTER, name

Row = dict[str, Any]
PCI = "0000:9b:00"
BOTH = jobs(
    0, job("4711", name(1), name(2), gpus={name(1): list(range(8)), name(2): list(range(8))}, user="anna")
)
SHARED = jobs(0, job("1", name(1), gpus={name(1): [0]}), job("2", name(1), gpus={name(1): [1]}))
CRASHED = jobs(0, job("4711", *(name(number) for number in range(1, 17))))


def xid(rest: str, pci: str = PCI) -> str:
    return f"NVRM: Xid (PCI:{pci}): {rest}"


class Said(NamedTuple):
    rule: str
    severity: str
    cause: str
    where: str | None
    verdict: str | None
    remedy: str
    jobs: tuple[str, ...] = ()
    closed: bool = False


class Case(NamedTuple):
    title: str
    rows: tuple[Row, ...]
    said: tuple[Said, ...]
    #: Each action with its node or job.
    done: tuple[str, ...] = ()


def lost(*done: str, where: str = name(1), hit: tuple[str, ...] = ("4711",)) -> Said:
    return Said("gpu-lost", "P1", "unclear", where, "isolate", "reboot_node", hit)


def fatal(remedy: str = "drain_then_reset", cause: str = "unclear", where: str = name(1)) -> Said:
    return Said("gpu-fatal", "P1", cause, where, "isolate", remedy, ("4711",))


def degraded(
    remedy: str = "reset_gpu_when_idle", cause: str = "unclear", *, hit: tuple[str, ...] = ("4711",)
) -> Said:
    return Said("gpu-degraded", "P2", cause, name(1), "suspect", remedy, hit)


def kernel_story(*lines: str, where: int = 1) -> tuple[Row, ...]:
    return nodes(), BOTH, *(kernel(10 + at, where, line) for at, line in enumerate(lines)), clock(120)


HEALED = ("drain gpu0001", "requeue 4711", "ticket gpu0001", "notify gpu0001")
MEMORY = "63, pid=1896, Row Remapper: New row marked for remapping, reset gpu to activate."
UNCONTAINED = "95, pid=7062, Uncontained: LTC TAG (0x2, 0x1). RST: No, D-RST: No"
ASKS = "154, GPU recovery action changed from {} to {}"
NONE, RESET, REBOOT = "0x0 (None)", "0x1 (GPU Reset Required)", "0x2 (Node Reboot Required)"
P2P, AFTER = "0x3 (Drain P2P)", "0x4 (Drain and Reset)"

CASES = (
    Case(
        "a lost GPU", kernel_story(xid("79, pid=1, name=a, GPU has fallen off the bus.")), (lost(),), HEALED
    ),
    Case("uncontained memory error", kernel_story(xid(UNCONTAINED)), (fatal(),), HEALED),
    Case("a row to be remapped", kernel_story(xid(MEMORY)), (degraded(),)),
    Case(
        "a row to be remapped, its job hit and contained",
        kernel_story(xid(MEMORY), xid("94, pid=7, name=python, Contained: DRAM. RST: No, D-RST: No")),
        (degraded(),),
    ),
    Case(
        "remapping failed",
        kernel_story(xid("64, pid=7, name=python, Row Remapper: Failure")),
        (Said("gpu-remap-failed", "P1", "permanent", name(1), "isolate", "drain_then_reset", ("4711",)),),
        HEALED,
    ),
    Case(
        "a contained error in a slice of a shared node hits nobody for certain",
        (
            nodes(),
            SHARED,
            kernel(10, 1, xid("94, pid=7, Contained: CE (0x9). RST: No, D-RST: No", "0000:01:00 GPU-I:05")),
            clock(120),
        ),
        (degraded(hit=())._replace(rule="gpu-contained"),),
    ),
    Case(
        "the driver's reset in the line wins",
        kernel_story(xid("94, pid=7, Contained: LTC TAG (0x2, 0x1). RST: Yes, D-RST: No")),
        (fatal(),),
        HEALED,
    ),
    Case(
        "many ends of channels without a root",
        kernel_story(*(xid(f"45, pid={n}, name=p, Ch 1") for n in range(20))),
        (),
    ),
    Case(
        "a program's own error",
        kernel_story(
            xid("13, pid=1, name=p, Graphics SM Warp Exception on (GPC 1, TPC 3, SM 0): Out Of Range")
        ),
        (Said("gpu-application", "P3", "application", name(1), None, "none", ("4711",)),),
    ),
    Case(
        "a program's error on all its nodes is one of the job",
        (nodes(), BOTH, *(kernel(10, at, xid("31, pid=1, name=p, MMU Fault")) for at in (1, 2)), clock(120)),
        (Said("gpu-application", "P3", "application", None, None, "none", ("4711",)),),
    ),
    Case(
        "the driver asks for a reset",
        kernel_story(xid(ASKS.format(NONE, RESET))),
        (Said("driver-asks", "P1", "unclear", name(1), "isolate", "drain_then_reset", ("4711",)),),
        HEALED,
    ),
    Case(
        "the driver asks for a reboot",
        kernel_story(xid(ASKS.format(NONE, REBOOT))),
        (Said("driver-asks", "P1", "unclear", name(1), "isolate", "reboot_node", ("4711",)),),
        HEALED,
    ),
    Case("the driver asks to end peer work", kernel_story(xid(ASKS.format(NONE, P2P))), (degraded(),)),
    Case(
        "the driver asks to let work end first: no job is touched",
        kernel_story(xid(ASKS.format(NONE, AFTER))),
        (Said("driver-asks-drain", "P2", "unclear", name(1), "suspect", "drain_then_reset", ("4711",)),),
        ("drain gpu0001",),
    ),
    Case(
        "the driver takes its word back before anything was done",
        kernel_story(xid(ASKS.format(NONE, P2P)), xid(ASKS.format(P2P, NONE))),
        (degraded(cause="transient")._replace(closed=True),),
    ),
    Case(
        "a lost GPU is not undone by a weaker word",
        kernel_story(xid("79, pid=1, name=a, GPU has fallen off the bus."), xid(ASKS.format(RESET, NONE))),
        (lost(),),
        HEALED,
    ),
    Case(
        "162 takes 163 back",
        kernel_story(xid("163, link to be reset"), xid("162, link is back")),
        (degraded("none", "transient")._replace(verdict="watch", closed=True),),
    ),
    Case(
        "the GPU's processor does not answer",
        kernel_story(
            xid(
                "119, pid=1240590, name=gpud, Timeout after 6s of waiting for RPC response from GPU4 GSP! "
                "Expected function 76 (GSP_RM_CONTROL) (0x20803032 0x58c)."
            )
        ),
        (fatal(cause="transient"),),
        HEALED,
    ),
    Case(
        "a fatal event of a link",
        kernel_story(
            xid(
                "149, NETIR_LINK_EVT  Fatal   XC0 i0 Link 14 (0x0215c5c6 0x00000000 0x00000000 0x00000000 "
                "0x00000000 0x00000000)"
            )
        ),
        (fatal(cause="fabric"),),
        HEALED,
    ),
    Case(
        "one that is not fatal by its own word",
        kernel_story(
            xid(
                "145, RLW_SRC_TRACK Nonfatal XC1 i0 Link 10 (0x04082907 0x00000008 0x00000000 0x00000000 "
                "0x00000000 0x00000000)"
            )
        ),
        (Said("gpu-degraded", "P2", "fabric", name(1), "watch", "none", ("4711",)),),
    ),
    Case(
        "one in no table that says Fatal",
        kernel_story(xid("150, MSE Fatal XC1 i0 Link -1 (0xffffffff 0x00000fff 0x0 0x0 0x0 0x0)")),
        (fatal(cause="fabric"),),
        HEALED,
    ),
    Case(
        "a switch that halted, without a link",
        kernel_story("nvidia-nvswitch0: SXid (PCI:0004:00:00.0): 26006, SOE HALTED"),
        (Said("nvswitch-fatal", "P1", "fabric", name(1), "isolate", "reboot_node", ("4711",)),),
        HEALED,
    ),
    Case(
        "a code that nobody knows is asked once",
        (nodes(), BOTH, *(kernel(10 + at, at, xid("999, something new")) for at in range(1, 6)), clock(120)),
        (Said("xid-unknown", "P3", "unclear", name(1), "watch", "none", ("4711",)),),
    ),
    Case(
        "a crash over 16 nodes with one root",
        (
            nodes(),
            CRASHED,
            *(kernel(10, at, xid("45, pid=1, name=p, Ch 1"), xid("43, pid=1, Ch 1")) for at in range(1, 17)),
            kernel(11, 7, xid("79, pid=1, name=a, GPU has fallen off the bus.")),
            clock(120),
        ),
        (lost(where=name(7)),),
        ("drain gpu0007", "requeue 4711", "ticket gpu0007", "notify gpu0007"),
    ),
    Case(
        "a crash whose root is told 15 s late",
        (
            nodes(),
            CRASHED,
            *(kernel(10, at, xid("13, pid=1, name=p, Graphics SM Warp Exception")) for at in range(1, 17)),
            kernel(25, 7, xid(UNCONTAINED)),
            clock(120),
        ),
        (fatal(where=name(7)),),
        ("drain gpu0007", "requeue 4711", "ticket gpu0007", "notify gpu0007"),
    ),
    Case(
        "an NFS server is away: no node's fault",
        kernel_story("nfs: server filer1 not responding, still trying"),
        (Said("storage-away", "P2", "storage", None, None, "notify"),),
    ),
    Case(
        "no memory left for a program",
        kernel_story("Out of memory: Killed process 1234 (python) total-vm:1kB"),
        (Said("host-application", "P3", "application", name(1), None, "none", ("4711",)),),
    ),
    Case(
        "a network card's health is gone",
        kernel_story(
            "mlx5_core 0000:5e:00.0: poll_health:800: device's health compromised - reached miss count"
        ),
        (Said("nic-lost", "P1", "fabric", name(1), "isolate", "reboot_node", ("4711",)),),
        HEALED,
    ),
)


@pytest.mark.parametrize("case", CASES, ids=lambda case: case.title)
def test_each_case_gives_its_expected_incidents_and_actions(case: Case) -> None:
    document = played(*case.rows)
    said = [
        Said(
            one["rule"],
            one["severity"],
            one["cause"],
            one["root"].get("node"),
            one["nodes"].get(one["root"].get("node")),
            one["remedy"][0],
            tuple(one["jobs_hit"]),
            closed=one["closed"] is not None,
        )
        for one in document["incidents"]
    ]
    assert said == list(case.said)
    done = [f"{one['action']} {one['job'] or one['node']}" for one in document["actions"]]
    assert done == list(case.done)


def test_errors_of_one_job_on_three_gpus_of_a_node_are_the_jobs() -> None:
    lines = [
        xid("31, pid=7194, name=python, Ch 00000008, intr 00000000. MMU Fault", f"0000:{bus}:00")
        for bus in ("9b", "9c", "9d")
    ]
    rows = [nodes(), BOTH, *(kernel(10 + at, 1, line) for at, line in enumerate(lines)), clock(60)]
    document = played(*rows)
    (incident,) = document["incidents"]
    assert (incident["rule"], incident["cause"]) == ("gpu-application", "application")
    assert (incident["root"].get("job"), incident["root"].get("node")) == ("4711", None)
    assert len(incident["affected"]) == 3 and incident["nodes"] == {} and document["actions"] == []


def test_nodes_of_one_switch_that_fall_silent_are_one_incident_of_the_switch() -> None:
    """They share a rack too, and Slurm does not reach them either."""
    where = {name(at): {"switch": "leaf1", "rack": "r1"} for at in range(1, 6)}
    away = {node: place | {"state": ["DOWN", "NOT_RESPONDING"]} for node, place in where.items()}

    def beat(at: int, node: int) -> Row:
        return row(at, "signals/heartbeat", {"cluster": CLUSTER, "node": name(node), "boot_id": "b1"})

    beats = [beat(at, node) for at in range(0, 300, 10) for node in range(1, 21) if at < 100 or node > 5]
    rows = sorted([nodes(0, **where), nodes(130, **away), *beats], key=lambda one: one["at"])
    document = played(*rows)
    (one,) = document["incidents"]
    assert (one["rule"], one["cause"], one["root"]["switch"]) == ("switch-silent", "fabric", "leaf1")
    assert len(one["affected"]) == 5
    assert {action["action"] for action in document["actions"]} == {"notify"}
