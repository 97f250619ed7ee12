"""Recordings judged for the context of a fault: place, context, shared nodes, repeats, what was measured.

Beside test_judged.py, which holds what single lines mean. `brief` is what an engineer would say in one line:
rule, severity, cause, where, jobs hit, and whether it is over.
"""

from typing import Any, NamedTuple

import pytest

from tests.stories.test_replay import clock, job, jobs, kernel, nodes, played, row
from tests.support.loop import CLUSTER, later, name

pytestmark = pytest.mark.heavy

Row = dict[str, Any]
PCI = "0000:9b:00"
FLEET = range(1, 21)
#: The driver of the fleet.
OLD = "570.86.15"
BOTH = jobs(0, job("4711", name(1), name(2), gpus={name(1): list(range(8)), name(2): list(range(8))}))
ASKS = "154, GPU recovery action changed from {} to {}"
NONE, RESET, REBOOT = "0x0 (None)", "0x1 (GPU Reset Required)", "0x2 (Node Reboot Required)"
IMEX = "0x5 (Recover IMEX Domain)"
REMAP = "63, Row Remapper: New row marked for remapping, reset gpu to activate."
DOWN = {"state": ["DOWN", "NOT_RESPONDING"], "reason": "Not responding"}


def xid(rest: str, pci: str = PCI) -> str:
    return f"NVRM: Xid (PCI:{pci}): {rest}"


LOST = xid("79, pid=1, name=a, GPU has fallen off the bus.")
UNCONTAINED = xid("95, pid=7062, Uncontained: LTC TAG (0x2, 0x1). RST: No, D-RST: No")
CONTAINED = "94, pid=7194, Contained: LTC TAG (0x2, 0x1). RST: No, D-RST: No"
AWAY = (
    "Lustre: scratch-OST0003-osc-ffff: Connection to scratch-OST0003 (at 10.0.0.1@o2ib) was lost; "
    "in progress operations using this service will wait for recovery to complete"
)
ASKS_IMEX = xid(ASKS.format(NONE, IMEX))
ASKS_P2P = xid(ASKS.format(NONE, "0x3 (Drain P2P)"))
LINK = xid("149, NETIR_LINK_EVT  Fatal   XC0 i0 Link 14 (0x0215c5c6 0x0 0x0 0x0 0x0 0x0)")


def beats(first_s: int, last_s: int, numbers: Any, boot: str = "b1") -> list[Row]:
    return [
        row(at, "signals/heartbeat", {"cluster": CLUSTER, "node": name(node), "boot_id": boot})
        for at in range(first_s, last_s, 10)
        for node in numbers
    ]


def without(node: int) -> list[int]:
    return [number for number in FLEET if number != node]


def text(at: float, node: int, *lines: str) -> Row:
    route = f"signals/openmetrics?cluster={CLUSTER}&node={name(node)}"
    return row(at, route, "\n".join(lines) + "\n# EOF\n")


def measured(at: float, node: int, gpu: Row | None = None, host: Row | None = None) -> Row:
    when = later(at).isoformat().replace("+00:00", "Z")
    body = {"cluster": CLUSTER, "node": name(node), "time": when, "gpu": gpu or {}, "host": host or {}}
    return row(at, "signals/metrics", body)


def gpus(*buses: str) -> Row:
    gpus_xml = "".join(
        f'<gpu id="00000000:{bus}:00.0"><minor_number>{at}</minor_number><uuid>GPU-{at}</uuid></gpu>'
        for at, bus in enumerate(buses)
    )
    route = f"signals/nvidia-smi?cluster={CLUSTER}&node={name(1)}"
    return row(
        5, route, f"<nvidia_smi_log><attached_gpus>{len(buses)}</attached_gpus>{gpus_xml}</nvidia_smi_log>"
    )


def losses(step: int, of_rank: list[float]) -> Row:
    at = 10 + 2 * step
    when = later(at).isoformat().replace("+00:00", "Z")
    samples = [
        {
            "time": when, "step": step, "rank": rank, "node": name(1 + rank // 8), "gpu": rank % 8,
            "step_s": 2.0, "compute_s": 1.4, "loss": loss,
        }
        for rank, loss in enumerate(of_rank)
    ]  # fmt: skip
    body = {"cluster": CLUSTER, "job": "4711", "restart": 0, "samples": samples}
    return row(at, "signals/step-times", body)


def port(at: int, node: int) -> Row:
    """A port that carried traffic and goes down after 5 min."""
    labels = '{device="mlx5_0",port="1"}'
    return text(
        at,
        node,
        f"node_infiniband_port_data_received_bytes_total{labels} {10**12 + min(at, 300) * 10**9}",
        f"node_infiniband_state_id{labels} {4 if at < 300 else 1}",
    )


SHARED = (
    nodes(gpu0001={"gpus": 2}),
    jobs(0, job("1", name(1), gpus={name(1): [0]}), job("2", name(1), gpus={name(1): [1]})),
    gpus("18", "9B"),
)
RACKS: dict[str, Any] = {
    name(at): {"gpu_model": "gb200", "gpus": 4, "rack": "r1" if at <= 10 else "r2"} for at in FLEET
}
H100: dict[str, Any] = {name(at): {"gpu_model": "h100", "rack": "r1" if at <= 5 else "r2"} for at in FLEET}
LEAVES: dict[str, Any] = {name(at): {"switch": "leaf1" if at <= 5 else "leaf2"} for at in FLEET}


def drivers(at: float, version: str) -> Row:
    """Slurm's picture: gpu0001 has this driver, the others the old one."""
    return nodes(at, **{name(node): {"driver": version if node == 1 else OLD} for node in FLEET})


def listed(at: float, count: int) -> Row:
    """nvidia-smi on gpu0001 lists so many of its eight GPUs."""
    gpus_xml = "".join(
        f'<gpu id="00000000:{0x10 + gpu:02x}:00.0"><minor_number>{gpu}</minor_number>'
        f"<uuid>GPU-{gpu}</uuid></gpu>"
        for gpu in range(count)
    )
    route = f"signals/nvidia-smi?cluster={CLUSTER}&node={name(1)}"
    return row(
        at, route, f"<nvidia_smi_log><attached_gpus>{count}</attached_gpus>{gpus_xml}</nvidia_smi_log>"
    )


def updated(until: int, version: str = "580.65.06", last: int = 960) -> list[Row]:
    """gpu0001 gets a driver after 100 s; from 110 s on, and until then, it lists six GPUs."""
    counts = [listed(at, 8 if at < 110 or at >= until else 6) for at in range(5, last, 35)]
    return [drivers(0, OLD), drivers(100, version), *counts, clock(last + 10)]


def replays(generation: int, lanes: int, per_min: float) -> list[Row]:
    """GPU 3 sends so many packets again each minute."""
    return [
        nodes(**H100),
        *(
            measured(at, 1, {
                "DCGM_FI_DEV_PCIE_MAX_LINK_GEN": [generation] * 8,
                "DCGM_FI_DEV_PCIE_LINK_GEN": [generation] * 8,
                "DCGM_FI_DEV_PCIE_MAX_LINK_WIDTH": [lanes] * 8,
                "DCGM_FI_DEV_PCIE_LINK_WIDTH": [lanes] * 8,
                "DCGM_FI_DEV_PCIE_REPLAY_COUNTER": [per_min * at / 60 if gpu == 3 else 0 for gpu in range(8)],
            })
            for at in range(0, 600, 30)
        ),
        clock(620),
    ]  # fmt: skip


def registers(*bits: tuple[int, int]) -> str:
    """Xid 74 of link 3 with these bits: (register, bit)."""
    values = [sum(1 << bit for at, bit in bits if at == register) for register in range(7)]
    words = ", ".join(f"0x{value:x}" for value in values)
    return xid(f"74, pid=1, name=a, NVLink: fatal error detected on link 3({words})")


def bits(*given: tuple[int, int]) -> list[Row]:
    return [nodes(**H100), BOTH, kernel(10, 1, registers(*given)), clock(100)]


def heat(hot: Any) -> list[Row]:
    return [
        measured(at, node, {"DCGM_FI_DEV_GPU_TEMP": [85 if node in hot else 55] * 8})
        for at in range(0, 600, 30)
        for node in range(1, 11)
    ]


def exception(at: float, unit: int) -> Row:
    line = f"13, pid=1, name=p, Graphics SM Warp Exception on (GPC {unit}, TPC {unit}, SM 0): Out Of Range"
    return kernel(at, 1, xid(line))


class Case(NamedTuple):
    title: str
    rows: list[Row]
    #: Rule, severity, cause, where, jobs hit, `over` where it is closed.
    said: tuple[str, ...] = ()
    #: Each action but pages and tickets, and what is held with its guard.
    done: tuple[str, ...] = ()


CASES = (
    # --- context ------------------------------------------------------------------------------------------
    Case(
        "a node that Slurm reboots is silent",
        [nodes(), *beats(0, 90, FLEET), nodes(90, gpu0003={"state": ["IDLE", "REBOOT_ISSUED"]}),
         *beats(100, 300, without(3))],
    ),
    Case(
        "a node that Slurm has powered down is silent",
        [nodes(), *beats(0, 90, FLEET), nodes(90, gpu0003={"state": ["IDLE", "POWERED_DOWN"]}),
         *beats(100, 300, without(3))],
    ),
    Case(
        "a silent node that Slurm reaches is no dead node",
        [nodes(), *beats(0, 100, FLEET), *beats(100, 300, without(3)), nodes(290)],
        ("sender-silent P3 unclear gpu0003",),
    ),
    Case(
        "a silent node that Slurm does not reach either",
        [nodes(), *beats(0, 100, FLEET), nodes(200, gpu0003=DOWN), *beats(100, 300, without(3))],
        ("node-silent P1 unclear gpu0003",),
        ("drain gpu0003",),
    ),
    Case(
        "a fault during planned work",
        [nodes(gpu0001={"state": ["MIXED", "MAINTENANCE"]}), BOTH, kernel(10, 1, UNCONTAINED), clock(100)],
        ("gpu-fatal P3 maintenance gpu0001 4711",),
        ("held drain gpu0001 maintenance",),
    ),
    Case(
        "a lost GPU in the first minutes after a boot is told all the same",
        [nodes(), nodes(10, gpu0001={"boot_id": "b2"}), kernel(15, 1, LOST, boot_id="b2"), clock(100)],
        ("gpu-lost P1 unclear gpu0001",),
        ("drain gpu0001",),
    ),
    Case(
        "a line of an earlier boot",
        [nodes(gpu0001={"boot_id": "b0"}), nodes(5), kernel(10, 1, LOST, boot_id="b0"), clock(100)],
    ),
    Case("fewer GPUs while the driver is replaced", updated(400)),
    Case(
        "GPUs that are still away when the driver has had its ten minutes",
        updated(960),
        ("gpu-count-low P1 unclear gpu0001",),
        ("drain gpu0001",),
    ),
    Case(
        "the same without another driver",
        updated(400, OLD, 400),
        ("gpu-count-low P1 unclear gpu0001",),
        ("drain gpu0001",),
    ),
    Case(
        "a GPU that is lost while the driver is replaced is lost",
        [drivers(0, OLD), drivers(100, "580.65.06"), kernel(150, 1, LOST), clock(250)],
        ("gpu-lost P1 unclear gpu0001",),
        ("drain gpu0001",),
    ),
    # --- shared nodes -------------------------------------------------------------------------------------
    Case(
        "a contained error hits the job of its GPU alone",
        [*SHARED, kernel(10, 1, xid(CONTAINED)), clock(100)],
        ("gpu-contained P2 unclear gpu0001 2",),
    ),
    Case(
        "a line that names the slice too",
        [*SHARED, kernel(10, 1, xid(CONTAINED, f"{PCI} GPU-I:05 GPU-CI:00")), clock(100)],
        ("gpu-contained P2 unclear gpu0001 2",),
    ),
    Case(
        "a lost GPU beside another job's: that one is not requeued",
        [*SHARED, kernel(10, 1, LOST), clock(100)],
        ("gpu-lost P1 unclear gpu0001 2",),
        ("drain gpu0001", "requeue 2"),
    ),
    # --- registers of Xid 74: the worst bit counts ---------------------------------------------------------
    Case("a bit that can be ignored", bits((0, 0))),
    Case(
        "one that can be ignored and one that follows another fault",
        bits((0, 0), (0, 1)),
        ("gpu-degraded P2 fabric gpu0001 4711",),
    ),
    Case(
        "bits of two registers that follow another fault",
        bits((0, 20), (3, 16)),
        ("gpu-degraded P2 fabric gpu0001 4711",),
    ),
    Case(
        "a parity fault among bits that mean little",
        bits((0, 0), (0, 4), (0, 20), (4, 20)),
        ("gpu-fatal P1 fabric gpu0001 4711",),
        ("drain gpu0001", "requeue 4711"),
    ),
    Case(
        "corrected errors in one register, and what no product has in another",
        bits((2, 13), (4, 20)),
        ("gpu-fatal P1 fabric gpu0001 4711",),
        ("drain gpu0001", "requeue 4711"),
    ),
    # --- over time ----------------------------------------------------------------------------------------
    Case(
        "63 and then 48: one incident that got worse",
        [
            nodes(), BOTH, kernel(10, 1, xid(REMAP)),
            kernel(30, 1, xid("48, pid=7194, DBE (double bit error)")), clock(100),
        ],
        ("gpu-fatal P1 unclear gpu0001 4711",),
        ("drain gpu0001", "requeue 4711"),
    ),
    Case(
        "a remapping that comes again after a boot within the day",
        [
            nodes(), kernel(10, 1, xid(REMAP)), nodes(100, gpu0001={"boot_id": "b2"}), clock(200),
            kernel(1000, 1, xid(REMAP), boot_id="b2"), clock(1200),
        ],
        ("gpu-degraded P2 transient gpu0001 over", "gpu-remaps-again P2 permanent gpu0001"),
        ("drain gpu0001",),
    ),
    Case(
        "late evidence of the boot before does not open it again",
        [
            nodes(), kernel(10, 1, xid(REMAP)), nodes(100, gpu0001={"boot_id": "b2"}),
            kernel(600, 1, xid(CONTAINED), boot_id="b1"), clock(900),
        ],
        ("gpu-degraded P2 transient gpu0001 over",),
    ),
    Case(
        "the driver asks for a reset and then for more",
        [nodes(), BOTH, kernel(10, 1, xid(ASKS.format(NONE, RESET))),
         kernel(20, 1, xid(ASKS.format(RESET, REBOOT))), clock(100)],
        ("driver-asks P1 unclear gpu0001 4711",),
        ("drain gpu0001", "requeue 4711"),
    ),
    Case(
        "an exception in the same unit under two jobs",
        [nodes(), jobs(0, job("1", name(1), user="a")), exception(10, 1),
         jobs(1000, job("2", name(1), user="b")), exception(1010, 1), clock(1200)],
        ("gpu-application P3 application gpu0001 1", "xid-13-on-one-tpc P2 unclear gpu0001 2"),
        ("held drain gpu0001 mode",),
    ),
    Case(
        "one job has exceptions all over",
        [nodes(), BOTH, *(exception(10 + 200 * at, at) for at in range(5)), clock(1200)],
        ("gpu-application P3 application gpu0001 4711",),
    ),
    Case(
        "two GPUs of one node are lost at once",
        [nodes(), BOTH, kernel(10, 1, LOST, xid("79, GPU has fallen off the bus.", "0000:3b:00")), clock(90)],
        ("gpu-lost P1 unclear gpu0001 4711",),
        ("drain gpu0001", "requeue 4711"),
    ),
    # --- places -------------------------------------------------------------------------------------------
    Case(
        "links of a rack that is one NVLink domain",
        [nodes(**RACKS), *(kernel(10, at, LINK) for at in range(1, 5)), clock(100)],
        ("nvlink-domain P1 fabric r1",),
    ),
    Case(
        "the driver asks to recover the domain of such a rack",
        [nodes(**RACKS), kernel(10, 1, xid(ASKS.format(NONE, IMEX))), clock(100)],
        ("imex-domain P1 fabric r1",),
    ),
    Case(
        "a rack of nodes with a domain each is none",
        [nodes(**H100), kernel(10, 1, xid(ASKS.format(NONE, IMEX))), clock(100)],
        ("gpu-degraded P2 fabric gpu0001",),
    ),
    Case(
        "two nodes of one rack ask for it a minute apart",
        [nodes(**RACKS), *(kernel(at, node, ASKS_IMEX) for at, node in ((10, 1), (70, 2))), clock(150)],
        ("imex-domain P1 fabric r1",),
    ),
    Case(
        "two nodes of one job ask for it at once, and nobody tells their domain",
        [nodes(), BOTH, kernel(10, 1, ASKS_IMEX), kernel(11, 2, ASKS_IMEX), clock(100)],
        ("gpu-degraded P2 fabric gpu0001 4711",),
    ),
    Case(
        "two nodes of one job ask for it one after the other",
        [nodes(), BOTH, kernel(10, 1, ASKS_IMEX), kernel(60, 2, ASKS_IMEX), clock(150)],
        ("gpu-degraded P2 fabric gpu0001 4711", "gpu-degraded P2 fabric gpu0002 4711"),
    ),
    Case(
        "two nodes of two jobs ask for it at once",
        [nodes(), jobs(0, job("1", name(1)), job("2", name(2))), kernel(10, 1, ASKS_IMEX),
         kernel(11, 2, ASKS_IMEX), clock(100)],
        ("gpu-degraded P2 fabric gpu0001 1", "gpu-degraded P2 fabric gpu0002 2"),
    ),
    Case(
        "two nodes of one job in two domains ask for it at once",
        [nodes(gpu0001={"domain": "d1"}, gpu0002={"domain": "d2"}), BOTH,
         *(kernel(10, node, ASKS_IMEX) for node in (1, 2)), clock(100)],
        ("imex-domain P1 fabric d1 4711", "imex-domain P1 fabric d2 4711"),
    ),
    Case(
        "two nodes of one job ask for an end of peer work at once",
        [nodes(), BOTH, *(kernel(9 + node, node, ASKS_P2P) for node in (1, 2)), clock(100)],
        ("gpu-degraded P2 unclear gpu0001 4711", "gpu-degraded P2 unclear gpu0002 4711"),
    ),
    Case(
        "ports of four nodes of a leaf switch",
        [nodes(**LEAVES), *(port(at, node) for at in range(0, 900, 30) for node in range(1, 5)), clock(930)],
        ("leaf-switch P1 fabric leaf1",),
    ),
    Case(
        "an object store of Lustre is away for twelve nodes",
        [
            nodes(),
            *(
                kernel(10, at, AWAY)
                for at in range(1, 13)
            ),
            clock(200),
        ],
        ("storage-away P2 storage scratch-OST0003",),
    ),
    Case(
        "an unknown code on 50 nodes is asked once",
        [nodes(count=60), *(kernel(10 + at // 2, at, xid("999, new")) for at in range(1, 51)), clock(300)],
        ("xid-unknown P3 unclear gpu0001",),
    ),
    Case(
        "a job of 77 nodes crashes, and no line is a root",
        [
            nodes(count=80),
            jobs(0, job("9", *(name(at) for at in range(1, 78)))),
            *(kernel(10, at, *(xid(f"45, pid={n}, Ch {n}") for n in range(8))) for at in range(1, 78)),
            clock(200),
        ],
    ),
    # --- what ends with its program -------------------------------------------------------------------------
    Case(
        "channels that are torn down, and no root",
        [nodes(), BOTH, kernel(10, 1, *(xid(f"45, pid=7, Ch {n:08x}") for n in range(20))), clock(100)],
    ),
    Case(
        "a program's own error, and its channels torn down",
        [nodes(), BOTH, kernel(10, 1, xid("43, pid=7, Ch 10"), xid("45, pid=7, Ch 10")), clock(100)],
    ),
    # --- measured -----------------------------------------------------------------------------------------
    Case("a hot rack", [nodes(**H100), *heat(range(1, 6)), clock(620)], ("rack-gpus-hot P2 unclear r1",)),
    *(
        Case(f"{per_min} PCIe replays a minute on {lanes} lanes of generation {generation}",
             replays(generation, lanes, per_min), said)
        for generation, lanes, per_min, said in (
            (3, 16, 10, ("gpu-pcie-replays P3 unclear gpu0001",)),
            (4, 16, 10, ()),
            (5, 16, 20, ()),
            (5, 8, 20, ("gpu-pcie-replays P3 unclear gpu0001",)),
        )
    ),
    Case(
        "one port goes down and stays down",
        [nodes(), BOTH, *(port(at, 1) for at in range(0, 900, 30)), clock(930)],
        ("ib-port-stays-down P2 fabric gpu0001 4711",),
        ("drain gpu0001",),
    ),
    Case(
        "NCCL at 70 % of its peers",
        [
            nodes(**H100),
            *(
                measured(at, node, host={"nccl_busbw_gb_per_s": 330 if node == 1 else 470})
                for at in (10, 40)
                for node in range(1, 6)
            ),
            clock(300),
        ],
        ("nccl-slow P2 unclear gpu0001",),
    ),
    Case(
        "full memory is no fault",
        [
            nodes(**H100),
            *(
                measured(at, 1, {"DCGM_FI_DEV_FB_USED": [80000] * 8, "DCGM_FI_DEV_MEM_COPY_UTIL": [100] * 8})
                for at in range(0, 600, 30)
            ),
            clock(620),
        ],
    ),
    Case(
        "a rank whose loss is another",
        [nodes(), BOTH]
        + [losses(at, [2 + at / 100 + (0.7 if rank == 5 and at > 40 else 0) for rank in range(16)])
           for at in range(60)]
        + [clock(200)],
        ("result-differs P2 unclear gpu0001 4711",),
        ("held drain gpu0001 mode",),
    ),
    Case(
        "a loss that jumps on all ranks is the job's",
        [nodes(), BOTH]
        + [losses(at, [10.0 if at > 60 else 2 + at % 5 / 100] * 16) for at in range(100)]
        + [clock(300)],
        ("loss-spike P3 application 4711 4711",),
    ),
)  # fmt: skip


def brief(incident: Row) -> str:
    root = incident["root"]
    where = next(root[key] for key in ("node", "switch", "device", "job") if root.get(key))
    over = ["over"] if incident["closed"] else []
    words = [incident["rule"], incident["severity"], incident["cause"], where, *incident["jobs_hit"], *over]
    return " ".join(words)


@pytest.mark.parametrize("case", CASES, ids=lambda case: case.title)
def test_context_around_a_fault_is_considered(case: Case) -> None:
    document = played(*sorted(case.rows, key=lambda one: one["at"]))
    assert [brief(one) for one in document["incidents"]] == list(case.said)
    notices = {"notify", "ticket"}
    done = [
        f"{one['action']} {one['job'] or one['node']}"
        for one in document["actions"]
        if one["action"] not in notices
    ]
    held = [f"held {one['action']} {one['node']} {one['guard']}" for one in document["held"]]
    assert [*done, *held] == list(case.done)


def test_an_ask_of_two_nodes_for_their_unknown_domain_is_over_when_both_take_it_back() -> None:
    back = xid(ASKS.format(IMEX, NONE))
    asked = [nodes(), BOTH, kernel(10, 1, ASKS_IMEX), kernel(11, 2, ASKS_IMEX), kernel(40, 1, back)]
    (one,) = played(*asked, clock(100))["incidents"]
    assert one["closed"] is None
    assert one["nodes"] == {name(1): "suspect", name(2): "suspect"}
    assert [where["node"] for where in one["affected"]] == [name(2)]
    (one,) = played(*asked, kernel(50, 2, back), clock(100))["incidents"]
    assert one["closed"] is not None
