"""One incident with one root: recordings as a judge would write them, through replay."""

from datetime import datetime
from typing import Any

import msgspec
import pytest

from healer.model import GuardSettings, Mode, Place, Topology
from tests.stories.test_replay import actions, clock, job, jobs, kernel, nodes, played, row
from tests.support.loop import CLUSTER, LOST, TEARDOWN, name, rules_in

Row = dict[str, Any]

ERROR = "NVRM: Xid (PCI:0000:1b:00): 13, pid=4242, name=python, Graphics Exception: ESR 0x505648=0x1000e"
PAGE_FAULT = "NVRM: Xid (PCI:0000:1b:00): 31, pid=4242, name=python, Ch 0000000c, MMU Fault: ENGINE GRAPHICS"
RESET_CHANNEL = "NVRM: Xid (PCI:0000:1b:00): 43, pid=4242, name=python, Ch 00000010"
UNCONTAINED = "NVRM: Xid (PCI:0000:1b:00): 95, pid=4242, name=python, Uncontained ECC error"
GSP = "NVRM: Xid (PCI:0000:1b:00): 119, pid=4242, name=python, Timeout after 6s of waiting for RPC response"
IMEX = (
    "NVRM: Xid (PCI:0000:1b:00): 154, GPU recovery action changed from 0x0 (None) to 0x5 "
    "(Recover IMEX Domain)"
)
LINK = (
    "NVRM: Xid (PCI:0000:1b:00): 74, pid=4242, name=python, NVLink: fatal error detected on link 4"
    "(0x10000, 0x0, 0x0, 0x0, 0x0, 0x0, 0x0)"
)
SWITCH = "nvidia-nvswitch2: SXid (PCI:0000:07:00.0): 20034, Fatal, Link {} LTSSM Fault Up"


def placed(count: int, seconds: float = 0, **fields: Any) -> Row:
    """Slurm's nodes, each with these fields; a list gives one to each node in turn."""
    states = {
        name(number): {
            key: value[(number - 1) % len(value)] if isinstance(value, list) else value
            for key, value in fields.items()
        }
        for number in range(1, count + 1)
    }
    return nodes(seconds, count, **states)


def each(numbers: range, *texts: str, at: float = 10, apart: float = 0.0) -> list[Row]:
    return [kernel(at + apart * place, number, *texts) for place, number in enumerate(numbers)]


def moment(one: Row) -> datetime:
    return datetime.fromisoformat(one["at"])


def opened(document: Row) -> list[Row]:
    return [one for one in document["incidents"] if one["closed"] is None]


def drained(document: Row) -> list[str | None]:
    return [node for action, node, _ in actions(document) if action == "drain"]


WIDE = job("4711", *(name(number) for number in range(1, 65)))


# --- a job's crash ------------------------------------------------------------------------------------------


@pytest.mark.parametrize("late_s", [0, 0.4, 1.5, 8], ids=lambda late_s: f"root {late_s} s late")
def test_a_crash_over_64_nodes_is_one_incident_whenever_its_root_comes(late_s: float) -> None:
    lines = [*each(range(1, 65), ERROR, TEARDOWN, apart=0.001), kernel(10.1 + late_s, 17, LOST)]
    document = played(placed(80), jobs(0, WIDE), *sorted(lines, key=moment), clock(120))
    (one,) = document["incidents"]
    assert (one["rule"], one["root"]["node"]) == ("gpu-lost", name(17))
    assert {part["node"] for part in one["affected"]} >= {name(number) for number in range(1, 65)} - {
        name(17)
    }
    assert {node for node, verdict in one["nodes"].items() if verdict in ("isolate", "suspect")} == {name(17)}
    assert drained(document) == [name(17)]
    assert one["jobs_hit"] == ["4711"]


@pytest.mark.parametrize("text", [ERROR, PAGE_FAULT, RESET_CHANNEL], ids=["13", "31", "43"])
def test_a_crash_without_a_root_is_the_jobs_own(text: str) -> None:
    document = played(placed(80), jobs(0, WIDE), *each(range(1, 65), TEARDOWN, text, apart=0.001), clock(120))
    incidents = [one for one in document["incidents"] if one["rule"] != "wave"]
    assert len(document["incidents"]) == len(incidents) <= 1
    assert drained(document) == []
    if text is not RESET_CHANNEL:  # a channel that was reset is teardown: alone it means nothing
        assert (incidents[0]["cause"], incidents[0]["root"]) == (
            "application",
            {"cluster": CLUSTER, "job": "4711"},
        )
        assert incidents[0]["nodes"] == {}


def test_errors_of_two_jobs_are_two_incidents() -> None:
    two = [job("1", name(1), name(2)), job("2", name(3), name(4))]
    document = played(placed(20), jobs(0, *two), *each(range(1, 5), ERROR), clock(60))
    assert [one["root"] for one in document["incidents"]] == [
        {"cluster": CLUSTER, "job": "1"},
        {"cluster": CLUSTER, "job": "2"},
    ]


# --- one node -----------------------------------------------------------------------------------------------


def test_missing_gpu_explains_links_of_its_node_reported_earlier() -> None:
    document = played(
        placed(20), kernel(10, 3, LINK, LINK.replace("1b", "2c")), kernel(10.5, 3, LOST), clock(60)
    )
    (one,) = document["incidents"]
    assert (one["rule"], one["root"]["pci"]) == ("gpu-lost", "0000:9b:00")


def test_several_links_of_one_nvswitch_are_the_switchs() -> None:
    document = played(
        placed(20),
        kernel(10, 3, LINK),
        kernel(10.2, 3, SWITCH.format(11)),
        kernel(10.4, 3, SWITCH.format(12), SWITCH.format(13)),
        clock(60),
    )
    (one,) = document["incidents"]
    assert (one["root"]["node"], one["root"].get("switch")) == (name(3), "nvswitch2")
    assert one["root"].get("link") is None
    assert "0000:1b:00" in {part.get("pci") for part in one["affected"]}


# --- places -------------------------------------------------------------------------------------------------


def test_an_nvlink_domain_is_one_incident_and_none_of_its_nodes_is_drained() -> None:
    domains = ["rack1"] * 18 + ["rack2"] * 18
    document = played(placed(36, domain=domains), *each(range(1, 10), LINK, apart=0.05), clock(120))
    (one,) = opened(document)
    assert (one["rule"], one["root"]) == ("nvlink-domain", {"cluster": CLUSTER, "device": "rack1"})
    assert set(one["nodes"]) == {name(number) for number in range(1, 10)}
    assert set(one["nodes"].values()) == {"watch"}
    assert drained(document) == []


def test_the_driver_that_asks_to_recover_the_imex_domain_speaks_of_the_domain() -> None:
    document = played(placed(36, domain=["d1"] * 18 + ["d2"] * 18), kernel(10, 3, IMEX), clock(60))
    (one,) = document["incidents"]
    assert (one["rule"], one["root"]) == ("imex-domain", {"cluster": CLUSTER, "device": "d1"})
    assert drained(document) == []


def smi(number: int, cluster: str, clique: int) -> Row:
    """What a node of an NVL72 reports on itself."""
    fabric = f"<state>Completed</state><cliqueId>{clique}</cliqueId><clusterUuid>{cluster}</clusterUuid>"
    gpu = (
        "<gpu id='00000000:1B:00.0'><uuid>GPU-1</uuid><minor_number>0</minor_number>"
        f"<pci><pci_bus_id>00000000:1B:00.0</pci_bus_id></pci><fabric>{fabric}</fabric></gpu>"
    )
    text = f"<nvidia_smi_log><attached_gpus>1</attached_gpus>{gpu}</nvidia_smi_log>"
    return row(1 + number / 100, f"signals/nvidia-smi?cluster={CLUSTER}&node={name(number)}", text)


def test_driver_reports_its_nvlink_domain() -> None:
    rack = "3f1c2d4e-0000-4000-8000-000000000001"
    inventories = [smi(number, rack, 32766) for number in range(1, 19)]
    document = played(placed(36), *inventories, *each(range(1, 6), LINK), clock(60))
    assert [one["root"] for one in opened(document)] == [{"cluster": CLUSTER, "device": f"{rack}.32766"}]
    nowhere = [smi(number, "00000000-0000-0000-0000-000000000000", 0) for number in range(1, 19)]
    alone = played(placed(36), *nowhere, *each(range(1, 6), LINK), clock(60))
    assert {one["root"].get("node") for one in opened(alone) if one["rule"] != "wave"} == {
        name(number) for number in range(1, 6)
    }


def test_two_nodes_of_a_domain_are_two_nodes() -> None:
    document = played(placed(36, domain="d1"), *each(range(1, 3), LINK), clock(60))
    assert {one["root"]["node"] for one in opened(document)} == {name(1), name(2)}


ASKS_NOTHING = (
    "NVRM: Xid (PCI:0000:1b:00): 154, GPU recovery action changed from 0x1 (GPU Reset Required) to 0x0 (None)"
)


def test_the_repair_of_one_node_ends_no_incident_of_a_place_whose_other_nodes_wait_for_theirs() -> None:
    lines = [*each(range(1, 4), LINK, apart=50), kernel(400, 3, ASKS_NOTHING)]
    place = placed(36, domain="d1")
    (one,) = opened(played(place, *lines, clock(600)))
    assert one["rule"] == "nvlink-domain"
    document = played(place, *lines, *each(range(1, 3), ASKS_NOTHING, at=700), clock(900))
    assert opened(document) == []


@pytest.mark.parametrize("apart", [0.0, 50.0], ids=["at once", "one by one"])
def test_a_place_whose_nodes_wait_for_a_reset_is_not_over_because_it_is_quiet(apart: float) -> None:
    """The lines come once: without the incident the GPUs that wait are forgotten."""
    document = played(placed(36, domain="d1"), *each(range(1, 4), LINK, apart=apart), clock(60 * 3600))
    assert [one["rule"] for one in opened(document)] == ["nvlink-domain"]


def test_a_part_is_no_lemon_by_what_its_place_explains() -> None:
    """Twice the domain's switch failed; then one GPU of it reports a link."""
    day = 86400.0
    rows = [placed(36, domain="d1")]
    for begin in (10, day):
        rows += [*each(range(1, 4), LINK, at=begin), *each(range(1, 4), ASKS_NOTHING, at=begin + 400)]
    document = played(*rows, kernel(2 * day, 1, LINK), clock(2 * day + 60))
    *places, own = document["incidents"]
    assert [one["rule"] for one in places] == ["nvlink-domain", "nvlink-domain"]
    assert own["root"]["node"] == name(1) and "replace" not in own["remedy"]
    assert not any("lemon" in one["text"] for one in own["evidence"])


@pytest.mark.parametrize(
    ("fields", "rule", "root"),
    [
        ({"rack": ["r1"] * 4 + ["r2"] * 16}, "place-silent", {"device": "r1"}),
        ({"pdu": ["p1"] * 4 + ["p2"] * 16, "rack": "r1"}, "place-silent", {"device": "p1"}),
        ({"switch": ["l1"] * 4 + ["l2"] * 16, "rack": "r1"}, "switch-silent", {"switch": "l1"}),
    ],
    ids=["rack", "pdu", "switch"],
)
def test_nodes_that_fall_silent_together_are_what_feeds_or_joins_them(
    fields: Row, rule: str, root: Row
) -> None:
    beats = [
        row(at, "signals/heartbeat", {"cluster": CLUSTER, "node": name(number), "boot_id": "b1"})
        for at in range(0, 200, 10)
        for number in range(1, 21)
        if number > 4 or at < 100
    ]
    gone = {name(number): {"state": ["DOWN", "NOT_RESPONDING"]} for number in range(1, 5)}
    shown = placed(20, **fields)["body"]["nodes"]
    rows = [
        row(0, "slurm/nodes", {"cluster": CLUSTER, "nodes": shown}),
        row(105, "slurm/nodes", {"cluster": CLUSTER, "nodes": [n | gone.get(n["name"], {}) for n in shown]}),
        *beats,
        clock(205),
    ]
    document = played(*sorted(rows, key=moment))
    incidents = [one for one in opened(document) if one["rule"] not in ("nodes-offline", "slurm-drain")]
    assert [(one["rule"], one["root"]) for one in incidents] == [(rule, {"cluster": CLUSTER} | root)]
    assert drained(document) == []


def test_site_file_gives_the_location_missing_from_the_recording() -> None:
    places = {name(number): Place(domain="nvl1") for number in range(1, 10)}
    rules = rules_in(topology=Topology(places=places))
    document = played(placed(36), *each(range(1, 6), LINK), clock(60), rules=rules)
    assert [one["root"] for one in opened(document)] == [{"cluster": CLUSTER, "device": "nvl1"}]


# --- waves --------------------------------------------------------------------------------------------------


def test_wave_is_one_incident_that_names_the_shared_cause_and_drains_no_node() -> None:
    drivers = ["580.65"] * 8 + ["575.57"] * 32
    document = played(placed(40, driver=drivers), *each(range(1, 9), GSP, apart=0.1), clock(120))
    (wave,) = [one for one in document["incidents"] if one["rule"] == "wave"]
    assert "Xid 119" in wave["title"]
    assert "all with driver 580.65" in wave["title"]
    assert "probably a rollout or the fabric" in wave["title"]
    assert wave["severity"] in ("P0", "P1")
    assert {part["node"] for part in wave["affected"]} == {name(number) for number in range(1, 9)}
    assert drained(document) == []
    assert {one["guard"] for one in document["held"]} == {"breaker"}
    assert [one for one in actions(document) if one[0] == "notify"] == [("notify", None, None)]


def test_wave_of_several_faults_is_named_by_its_rule() -> None:
    exception = "NVRM: Xid (PCI:0000:1b:00): 13, pid=4242, name=python, Graphics Exception: ESR 0x405840"
    page = "NVRM: Xid (PCI:0000:1b:00): 31, pid=4242, name=python, MMU Fault: FAULT_PDE ACCESS_TYPE_READ"
    faults = [*each(range(1, 5), exception, apart=0.1), *each(range(5, 9), page, at=11, apart=0.1)]
    document = played(placed(40), *faults, clock(120))
    (wave,) = [one for one in document["incidents"] if one["rule"] == "wave"]
    assert "8 nodes with GPU error caused by an application " in wave["title"]


def test_later_members_join_the_same_wave_incident() -> None:
    faults = each(range(1, 41), GSP, apart=5)
    document = played(placed(200, driver=["580.65"] * 40 + ["575.57"] * 160), *faults, clock(600))
    (wave,) = [one for one in document["incidents"] if one["rule"] == "wave"]
    acted = drained(document)  # before eight nodes were a storm
    assert 0 < len(acted) < 8
    assert wave["title"].startswith("40 nodes with Xid 119 since 03:00 UTC, all with driver 580.65")
    assert {one["root"]["node"] for one in opened(document) if one is not wave} == set(acted)
    assert {one["root"]["node"] for one in document["merged"]} == {name(n) for n in range(1, 41)} - set(acted)
    assert {one["into"] for one in document["merged"]} == {wave["id"]}


def test_a_wave_is_dated_by_its_first_node_not_by_the_one_that_made_it_a_wave() -> None:
    faults = each(range(1, 10), GSP, apart=40)
    document = played(placed(40), *faults, clock(600))
    (wave,) = [one for one in document["incidents"] if one["rule"] == "wave"]
    assert wave["opened"] > "2026-11-20T03:03", "the sixth node made it a wave"
    assert "9 nodes with Xid 119 since 03:00 UTC" in wave["title"]


def test_a_wave_under_one_switch_has_the_switch_for_its_root() -> None:
    document = played(placed(40, switch=["l1"] * 8 + ["l2"] * 32), *each(range(1, 9), UNCONTAINED), clock(60))
    (wave,) = [one for one in document["incidents"] if one["rule"] == "wave"]
    assert wave["root"] == {"cluster": CLUSTER, "switch": "l1"}


def test_program_errors_without_known_jobs_are_one_wave_that_blames_no_node() -> None:
    document = played(placed(80), *each(range(1, 65), ERROR, apart=0.01), clock(120))
    (one,) = opened(document)
    assert (one["rule"], one["cause"]) == ("wave", "application")
    assert drained(document) == []


def test_a_share_of_one_switches_the_wave_off() -> None:
    off = rules_in(guards=GuardSettings(breaker_share=1.0, max_nodes=1))
    document = played(placed(40), *each(range(1, 9), GSP), clock(60), rules=off)
    assert "wave" not in {one["rule"] for one in document["incidents"]}


def test_too_few_nodes_too_far_apart_are_no_wave() -> None:
    document = played(placed(40), *each(range(1, 7), GSP, apart=200), clock(1600), mode=Mode.shadow)
    assert "wave" not in {one["rule"] for one in document["incidents"]}


def test_faults_of_a_day_on_nodes_with_a_new_driver_are_the_roll_outs() -> None:
    before = placed(20, driver="575.57")
    after = placed(20, 600, driver=["580.65"] * 5 + ["575.57"] * 15)
    faults = each(range(1, 6), GSP, at=3600, apart=3000)
    document = played(before, after, *faults, clock(16000), mode=Mode.shadow)
    (wave,) = [one for one in document["incidents"] if one["rule"] == "wave"]
    assert "all since NVIDIA driver changed to 580.65" in wave["title"]
    assert wave["opened"] == "2026-11-20T05:40:00Z"
    assert {part["node"] for part in wave["affected"]} == {name(number) for number in range(1, 6)}


def test_the_same_storm_gives_the_same_bytes() -> None:
    rows = [placed(40, domain="d1", switch="l1"), *each(range(1, 20), LINK, GSP, ERROR, apart=0.2), clock(90)]
    assert msgspec.json.encode(played(*rows)) == msgspec.json.encode(played(*rows))
