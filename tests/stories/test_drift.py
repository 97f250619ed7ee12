"""Drift from a good node: what nodes report on themselves by each route, and the result, in replay."""

import json
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest

from healer.recordings.recording import read
from healer.sim.replaying import replay
from tests.support.loop import rules_in

pytestmark = pytest.mark.heavy

START = datetime(2026, 11, 20, 3, 0, tzinfo=UTC)
NODES = [f"gpu{number:04}" for number in range(1, 45)]
OLD = NODES[2:42]


def entry(after_s: float, route: str, body: Any) -> str:
    at = (START + timedelta(seconds=after_s)).isoformat().replace("+00:00", "Z")
    return json.dumps({"at": at, "route": route, "body": body})


def slurm(driver: dict[str, str]) -> dict[str, Any]:
    rows = [
        {"name": name, "state": ["IDLE"], "gpus": 8, "gpu_model": "h100", "driver": driver.get(name, "")}
        for name in NODES
    ]
    return {"cluster": "pod1", "nodes": rows}


def inventory_entry(after_s: float, node: str, **facts: str) -> str:
    return entry(after_s, "signals/metrics", {"cluster": "pod1", "node": node, "inventory": facts})


def good(**facts: str) -> str:
    return entry(1, "reference", {"kind": "h100", "node": NODES[0], "facts": facts})


def incidents(*rows: str, until_s: float = 400) -> list[dict[str, Any]]:
    return replay(rules_in(), read([*rows, entry(until_s, "clock", {})]))["incidents"]


def test_forty_nodes_with_the_old_driver_are_one_incident() -> None:
    drivers = dict.fromkeys(NODES, "580.65.06") | dict.fromkeys(OLD, "570.86.15")
    (one,) = incidents(entry(0, "slurm/nodes", slurm(drivers)), good(driver="580.65.06"))
    assert (one["rule"], one["severity"], one["nodes"]) == ("drift", "P3", {})
    assert {where["node"] for where in one["affected"]} == set(OLD)
    assert "gpu[0003-0042]" in one["evidence"][0]["text"]
    assert "580.65.06 (h100, from gpu0001)" in one["evidence"][0]["text"]


def test_without_a_reference_the_majority_proves_nothing() -> None:
    drivers = dict.fromkeys(NODES, "580.65.06") | {NODES[5]: "570.86.15"}
    assert incidents(entry(0, "slurm/nodes", slurm(drivers))) == []


def test_each_fact_and_value_is_one_incident_and_ends_when_it_is_put_right() -> None:
    found = incidents(
        entry(0, "slurm/nodes", slurm({})),
        good(bios="1.4.2", kernel="6.8.0-60"),
        *(inventory_entry(5, name, bios="1.4.2", kernel="6.8.0-60") for name in NODES[:4]),
        inventory_entry(10, NODES[4], bios="1.3.9", kernel="6.8.0-60"),
        inventory_entry(11, NODES[5], bios="1.4.2", kernel="6.5.0-18"),
        inventory_entry(300, NODES[4], bios="1.4.2", kernel="6.8.0-60"),
        until_s=500,
    )
    by_node = {one["affected"][0]["node"]: one for one in found}
    assert set(by_node) == {NODES[4], NODES[5]}
    assert by_node[NODES[4]]["closed"] is not None
    assert by_node[NODES[5]]["closed"] is None


def test_missing_facts_are_not_bad() -> None:
    rows = [inventory_entry(5, name, kernel="6.8.0-60") for name in NODES[:3]]
    assert incidents(entry(0, "slurm/nodes", slurm({})), good(kernel="6.8.0-60", vbios="96.00"), *rows) == []


def test_a_roll_out_that_ends_within_two_minutes_is_no_incident() -> None:
    found = incidents(
        entry(0, "slurm/nodes", slurm({})),
        good(driver="580.65.06"),
        inventory_entry(5, NODES[1], driver="580.65.06"),
        inventory_entry(100, NODES[1], driver="575.57.08"),
        inventory_entry(190, NODES[1], driver="580.65.06"),
    )
    assert found == []


def test_labels_and_nvidia_smi_also_provide_facts() -> None:
    text = "\n".join([
        'node_uname_info{release="6.5.0-18",nodename="gpu0002"} 1',
        'node_dmi_info{bios_version="1.3.9"} 1',
        'DCGM_FI_DEV_GPU_TEMP{gpu="0",UUID="GPU-1",DCGM_FI_DRIVER_VERSION="570.86.15"} 40',
        "",
    ])  # fmt: skip
    gpu = (
        "<gpu id='00000000:{}:00.0'><uuid>GPU-{}</uuid><minor_number>{}</minor_number>"
        "<vbios_version>{}</vbios_version></gpu>"
    )
    gpus = "".join(gpu.format(f"{n:02x}", n, n, "96.00.89" if n == 3 else "96.00.99") for n in range(8))
    xml = (
        "<nvidia_smi_log><driver_version>580.65.06</driver_version><attached_gpus>8</attached_gpus>"
        f"{gpus}</nvidia_smi_log>"
    )
    found = incidents(
        entry(0, "slurm/nodes", slurm({})),
        good(kernel="6.8.0-60", bios="1.4.2", driver="580.65.06", vbios="96.00.99"),
        entry(5, "signals/openmetrics?cluster=pod1&node=gpu0002", text),
        entry(6, "signals/nvidia-smi?cluster=pod1&node=gpu0003", xml),
    )
    drifted = {(one["affected"][0]["node"], one["title"].split(", expected")[0]) for one in found}
    assert drifted == {
        ("gpu0002", "Linux kernel 6.5.0-18"),
        ("gpu0002", "BIOS 1.3.9"),
        ("gpu0002", "NVIDIA driver 570.86.15"),
        ("gpu0003", "GPU VBIOS 96.00.89, 96.00.99"),
    }


def test_a_fabric_manager_of_another_version_than_the_driver() -> None:
    (one,) = incidents(
        entry(0, "slurm/nodes", slurm({})),
        inventory_entry(5, NODES[1], driver="580.65.06", fabric_manager="575.57.08"),
        inventory_entry(5, NODES[2], driver="580.65.06", fabric_manager="580.65.06"),
    )
    assert (one["rule"], one["root"]["node"]) == ("fabric-manager-version", NODES[1])
