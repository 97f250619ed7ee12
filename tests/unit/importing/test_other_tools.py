# ruff: noqa: E501 - lines as the programs print them
"""Records of other tools become entries that production understands: NHC, nvidia-smi, bug reports, NVSentinel, gpud."""

import gzip
import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest

from healer.importing.kinds import Kind, recognised
from healer.importing.smi_text import as_xml
from healer.signals.nvidia_smi import parse_log
from tests.unit.importing.test_import_logs import XID, imported, kernel_lines, played, written


def bodies(entries: Sequence[dict[str, Any]], route: str) -> list[tuple[str, Any]]:
    """(time, body) of each entry of that route."""
    return [(entry["at"], entry["body"]) for entry in entries if entry["route"].startswith(route)]


# --- NHC

NHC = """\
Node Health Check starting.
Health check failed:  check_hw_gpu:  7 GPUs, expected 8
20261125 20:56:33 /usr/libexec/nhc/node-mark-offline gpu0001.site Health check failed:  check_hw_gpu:  7 GPUs, expected 8
/usr/libexec/nhc/node-mark-offline:  Marking idle gpu0001 offline:  NHC: check_hw_gpu:  7 GPUs, expected 8
ERROR:  nhc:  Health check failed:  check_hw_gpu:  7 GPUs, expected 8
20261125 21:10:00 /usr/libexec/nhc/node-mark-online gpu0001.site
20261199 21:10:00 /usr/libexec/nhc/node-mark-offline gpu0001 Health check failed:  x
ERROR:  nhc:  Health check failed:  check_fs_mount:  /scratch not mounted
"""


def test_nodes_drained_by_nhc_are_imported(tmp_path: Path) -> None:
    done, entries = imported(tmp_path, written(tmp_path / "nhc.log", NHC))
    (source,) = done.sources
    assert source.kind == "nhc" and source.lines == 8
    ((at, body),) = bodies(entries, "signals/hooks/health-check")
    assert at == "2026-11-25T20:56:33Z" and body["node"] == "gpu0001"
    assert body["checks"] == [{"name": "probe", "text": "NHC: check_hw_gpu:  7 GPUs, expected 8"}]
    assert sorted(skipped.examples[0][:23] for skipped in source.skipped.values()) == [
        "nhc.log:7: 20261199 21:", "nhc.log:8: check_fs_mou",
    ]  # fmt: skip
    assert "node-check" in {incident["rule"] for incident in played(entries)["incidents"]}


def test_nhc_lines_in_syslog_are_imported(tmp_path: Path) -> None:
    text = "2026-11-25T20:56:33Z gpu0001 nhc[812]: Health check failed:  check_ps_loadavg:  load is 900\n"
    _, entries = imported(tmp_path, written(tmp_path / "messages", text))
    ((_, body),) = bodies(entries, "signals/hooks/health-check")
    assert body["checks"][0]["text"] == "NHC: check_ps_loadavg:  load is 900"


# --- nvidia-smi

SMI = """
==============NVSMI LOG==============

Timestamp                                 : Wed Nov 25 20:56:33 2026
Driver Version                            : 580.95.05
CUDA Version                              : 13.0

Attached GPUs                             : 2
GPU 00000000:1B:00.0
    Product Name                          : NVIDIA H100 80GB HBM3
    MIG Mode
        Current                           : Disabled
        Pending                           : Disabled
    GPU UUID                              : GPU-11111111-2222-3333-4444-555555555555
    Minor Number                          : 0
    GPU Recovery Action                   : None
    PCI
        Bus                               : 0x1B
        Bus Id                            : 00000000:1B:00.0
        GPU Link Info
            PCIe Generation
                Max                       : 5
                Current                   : 4
            Link Width
                Max                       : 16x
                Current                   : 8x
        Replays Since Reset               : 3
    Performance State                     : P0
    Clocks Event Reasons
        Idle                              : Not Active
        SW Power Cap                      : Active
        HW Slowdown                       : Active
            HW Thermal Slowdown           : Active
            HW Power Brake Slowdown       : Not Active
        Display Clock Setting             : Not Active
    Clocks Event Reasons Counters
        SW Power Capping                  : 12234991553 us
        Sync Boost                        : 0 us
        SW Thermal Slowdown               : 11591399010 us
        HW Thermal Slowdown               : 5 us
        HW Power Braking                  : 6 us
    FB Memory Usage
        Total                             : 81559 MiB
        Used                              : 12 MiB
    Utilization
        GPU                               : 98 %
    ECC Mode
        Current                           : Enabled
    ECC Errors
        Volatile
            SRAM Uncorrectable SEC-DED    : 0
            DRAM Uncorrectable            : 2
        Aggregate
            DRAM Uncorrectable            : 5
    Remapped Rows
        Correctable Error                 : 0
        Uncorrectable Error               : 1
        Pending                           : Yes
        Remapping Failure Occurred        : Yes
        Bank Remap Availability Histogram
            Max                           : 2559 bank(s)
            None                          : 0 bank(s)
    Temperature
        GPU Current Temp                  : 61 C
        Memory Current Temp               : 71 C
    GPU Power Readings
        Average Power Draw                : 350.12 W
        Current Power Limit               : 700.00 W
    Clocks
        SM                                : 1290 MHz
        Memory                            : 2619 MHz
    Max Clocks
        SM                                : 1980 MHz
    Processes
        GPU instance ID                   : N/A
        Process ID                        : 4711
            Name                          : </gpu> & co

GPU 00000000:43:00.0
    Minor Number                          : 1
    GPU UUID                              : GPU-11111111-2222-3333-4444-666666666666
    PCI
        Bus Id                            : 00000000:43:00.0
    Temperature
        GPU Current Temp                  : 44 C

"""


def test_names_of_the_text_become_those_of_the_xml() -> None:
    log = parse_log(as_xml(SMI.lstrip().splitlines()).encode())
    assert log.attached == 2 and log.versions["driver"] == "580.95.05"
    first, second = (gpu.values for gpu in log.gpus)
    assert second["temperature/gpu_temp"] == "44 C" and "processes/process_id" not in first
    assert {
        "pci/pci_gpu_link_info/pcie_gen/current_link_gen": "4",
        "pci/pci_gpu_link_info/link_widths/current_link_width": "8x",
        "pci/replay_counter": "3",
        "clocks_event_reasons/clocks_event_reason_gpu_idle": "Not Active",
        "clocks_event_reasons/clocks_event_reason_hw_thermal_slowdown": "Active",
        **{
            f"clocks_event_reasons_counters/clocks_event_reasons_counters_{name}": f"{us} us"
            for name, us in (
                ("sw_power_cap", 12234991553),
                ("sync_boost", 0),
                ("sw_therm_slowdown", 11591399010),
                ("hw_therm_slowdown", 5),
                ("hw_power_brake", 6),
            )
        },
        "fb_memory_usage/total": "81559 MiB",
        "utilization/gpu_util": "98 %",
        "ecc_mode/current_ecc": "Enabled",
        "ecc_errors/volatile/sram_uncorrectable_secded": "0",
        "ecc_errors/aggregate/dram_uncorrectable": "5",
        "remapped_rows/remapped_row_failure": "Yes",
        "remapped_rows/row_remapper_histogram/row_remapper_histogram_none": "0 bank(s)",
        "temperature/memory_temp": "71 C",
        "gpu_power_readings/average_power_draw": "350.12 W",
        "clocks/sm_clock": "1290 MHz",
        "clocks/mem_clock": "2619 MHz",
        "max_clocks/sm_clock": "1980 MHz",
    }.items() <= first.items()


@pytest.mark.parametrize("form", ["text", "xml"])
def test_output_of_nvidia_smi_is_judged_like_a_nodes_own(tmp_path: Path, form: str) -> None:
    """A remapping that failed opens an incident, from the text as from the XML."""
    xml = as_xml(SMI.lstrip().splitlines())
    stamped = xml.replace(
        "<nvidia_smi_log>", "<nvidia_smi_log>\n<timestamp>Wed Nov 25 20:56:33 2026</timestamp>"
    )
    text = SMI if form == "text" else f'<?xml version="1.0" ?>\n{stamped}\n'
    text += text.replace("20:56:33", "20:58:33")
    nodes = written(tmp_path / "nodes.txt", "NodeName=gpu0001 Arch=x86_64\n   Gres=gpu:2 State=IDLE\n")
    done, entries = imported(tmp_path, written(tmp_path / "nvidia-smi-gpu0001.txt", text), nodes)
    assert done.sources[0].kind == "nvidia-smi" and done.sources[0].skipped == {}
    found = bodies(entries, "signals/nvidia-smi?cluster=cluster&node=gpu0001")
    assert [at for at, _ in found] == ["2026-11-25T20:56:33Z", "2026-11-25T20:58:33Z"]
    assert "gpu-row-remap-failed" in {incident["rule"] for incident in played(entries)["incidents"]}


def test_nodes_have_the_gpus_that_nvidia_smi_lists_on_their_model(tmp_path: Path) -> None:
    """A node of a GB200 has 4 GPUs; one that lost a GPU before the first output has fewer than its like."""

    def smi(model: str, attached: int) -> str:
        shown = "".join(
            f"GPU 00000000:{bus:02X}:00.0\n    Product Name : {model}\n    Minor Number : {bus}\n"
            f"    GPU UUID : GPU-11111111-2222-3333-4444-{bus:012}\n"
            f"    PCI\n        Bus Id : 00000000:{bus:02X}:00.0\n"
            "    Performance State : P0\n    Temperature\n        GPU Current Temp : 38 C\n"
            for bus in range(attached)
        )
        return "".join(
            f"==============NVSMI LOG==============\n\nTimestamp : Wed Nov 25 20:{minute}:33 2026\n"
            f"Driver Version : 580.173.02\nAttached GPUs : {attached}\n{shown}\n"
            for minute in (51, 54, 57)
        )

    shown = {"gpu0001": ("GB200", 4), "gpu0002": ("GB200", 3), "gpu0003": ("H100 80GB HBM3", 8)}
    files = [
        written(tmp_path / f"nvidia-smi-{node}.txt", smi(f"NVIDIA {model}", count))
        for node, (model, count) in shown.items()
    ]
    done, entries = imported(tmp_path, *files)
    rows = entries[0]["body"]["nodes"]
    assert {row["name"]: row["gpus"] for row in rows} == {"gpu0001": 4, "gpu0002": 4, "gpu0003": 8}
    assert done.assumed[1:] == [
        "3 nodes are assumed to have as many GPUs each as nvidia-smi listed on a node of their model."
    ]
    found = played(entries)["incidents"]
    assert [(row["rule"], row["root"]["node"]) for row in found] == [("gpu-count-low", "gpu0002")]


LINE = "_" * 44
BUG_REPORT = f"""
{LINE}

Start of NVIDIA bug report log file.  Please include this file, along
with a detailed description of your problem, when reporting a graphics

nvidia-bug-report.sh Version: 38203521

Date: Wed Nov 25 09:00:00 PM CET 2026
uname: Linux gpu0001.site 5.15.0-91-generic #101-Ubuntu SMP x86_64 GNU/Linux

{LINE}

*** /bin/dmesg
[ 1234.567890] {XID}

{LINE}

journalctl -b -0:

Nov 25 20:56:33 gpu0001 kernel: {XID}
Nov 25 20:56:34 gpu0001 sshd[1]: {XID}

{LINE}

  /var/log/kern.log:
Nov 25 20:56:33 gpu0001 kernel: {XID}

{LINE}

/usr/bin/nvidia-smi --query
{SMI.replace("Timestamp                                 : Wed Nov 25 20:56:33 2026", "")}
{LINE}
"""


def test_a_bug_report_names_its_node_its_time_and_what_the_kernel_wrote(tmp_path: Path) -> None:
    path = tmp_path / "nvidia-bug-report.log.gz"
    path.write_bytes(gzip.compress(BUG_REPORT.encode()))
    done, entries = imported(tmp_path, path)
    assert done.sources[0].kind == "nvidia-bug-report"
    assert kernel_lines(entries) == [("gpu0001", "2026-11-25T20:56:33Z")]
    ((at, _),) = bodies(entries, "signals/nvidia-smi?cluster=cluster&node=gpu0001")
    assert at == "2026-11-25T21:00:00Z"
    assert "gpu-lost" in {incident["rule"] for incident in played(entries)["incidents"]}


# --- NVSentinel and gpud


def health(**fields: Any) -> dict[str, Any]:
    return {
        "version": 1, "agent": "syslog-health-monitor", "componentClass": "GPU", "checkName": "SysLogsXIDError",
        "isFatal": True, "isHealthy": False, "message": "ROBUST_CHANNEL_GPU_HAS_FALLEN_OFF_THE_BUS",
        "recommendedAction": 24, "errorCode": ["79"], "nodeName": "gpu0001",
        "entitiesImpacted": [{"entityType": "PCI", "entityValue": "0000:9B:00"}, {"entityType": "GPU", "entityValue": "3"}],
        "generatedTimestamp": "2026-11-25T20:56:33.5Z",
    } | fields  # fmt: skip


def lowered(value: Any) -> Any:
    if isinstance(value, dict):
        return {key.lower(): lowered(each) for key, each in value.items()}
    return [lowered(each) for each in value] if isinstance(value, list) else value


def exported(event: dict[str, Any]) -> str:
    """As `mongoexport` prints it."""
    at = {"seconds": {"$numberLong": "1795640193"}, "nanos": 500000000}
    return json.dumps(
        {
            "_id": {"$oid": "1"},
            "healthevent": lowered(event) | {"generatedtimestamp": at},
            "createdat": {"$date": "2026-11-25T20:56:40Z"},
        }
    )


def cloud_event(event: dict[str, Any]) -> str:
    return json.dumps(
        {
            "specversion": "1.0",
            "type": "com.nvidia.nvsentinel.health.v1",
            "source": "nvsentinel://pod1",
            "id": "1",
            "time": event["generatedTimestamp"],
            "data": {"metadata": {"cluster": "pod1"}, "healthEvent": event},
        }
    )


FAN = health(checkName="GpuThermalWatch", errorCode=["DCGM_FR_TEMP"], message="GPU 3 runs hot")
WELL = health(isHealthy=True)


@pytest.mark.parametrize("form", ["exported", "list", "cloud-events", "plain"])
def test_events_of_nvsentinel(tmp_path: Path, form: str) -> None:
    forms = {"exported": exported, "list": exported, "cloud-events": cloud_event, "plain": json.dumps}
    lines = [forms[form](event) for event in (health(), FAN, WELL)]
    text = f"[{','.join(lines)}]\n" if form == "list" else "\n".join(lines) + "\n"
    done, entries = imported(tmp_path, written(tmp_path / "events.json", text))
    (source,) = done.sources
    assert (source.kind, source.skipped, source.plain) == ("nvsentinel", {}, 1)
    assert kernel_lines(entries) == [("gpu0001", "2026-11-25T20:56:33.500000Z")]
    ((_, event),) = bodies(entries, "signals/cloudevents")
    assert event["data"]["healthEvent"]["message"] == "GPU 3 runs hot"
    played_back = played(entries)
    assert [incident["rule"] for incident in played_back["incidents"]] == ["gpu-lost"]
    assert list(played_back["incidents"][0]["nodes"]) == ["gpu0001"]


def test_events_of_gpud(tmp_path: Path) -> None:
    newest_first = [
        {"time": "2026-11-25T22:00:00Z", "name": "error_sxid", "type": "Fatal", "message": "SXID 12028",
         "extra_info": {"data": json.dumps({"sxid": 12028, "raw_kmsg": "nvidia-nvswitch0: SXid (PCI:0000:07:00.0): 12028, Non-fatal, Link 30 egress"})}},
        {"time": "2026-11-25T20:56:33Z", "name": "error_xid", "type": "Fatal",
         "message": "XID 79(GPU has fallen off the bus) detected on PCI:0000:9b:00"},
        {"time": "2026-11-25T20:00:00Z", "name": "reboot", "type": "Info", "message": "system reboot detected"},
    ]  # fmt: skip
    answer = [
        {"component": "accelerator-nvidia-error-xid", "startTime": "2026-11-25T00:00:00Z", "events": newest_first},
        {"component": "disk", "events": [{"time": "2026-11-25T21:00:00Z", "name": "no_space_left", "type": "Critical", "message": "no space left"}]},
        {"component": "memory", "events": None},
    ]  # fmt: skip
    done, entries = imported(tmp_path, written(tmp_path / "gpud-gpu0001.json", json.dumps(answer, indent=1)))
    (source,) = done.sources
    assert (source.kind, source.skipped, source.plain) == ("gpud", {}, 1)
    assert kernel_lines(entries) == [("gpu0001", "2026-11-25T20:56:33Z"), ("gpu0001", "2026-11-25T22:00:00Z")]
    ((_, event),) = bodies(entries, "signals/cloudevents")
    assert event["data"]["labels"] == {"alertname": "no_space_left", "node": "gpu0001", "component": "disk"}
    assert "gpu-lost" in {incident["rule"] for incident in played(entries)["incidents"]}


@pytest.mark.parametrize(
    ("head", "kind"),
    [
        (NHC.encode(), Kind.nhc),
        (SMI.encode(), Kind.nvidia_smi),
        (
            b'<?xml version="1.0" ?>\n<!DOCTYPE nvidia_smi_log SYSTEM "nvsmi_device_v12.dtd">\n<nvidia_smi_log>\n',
            Kind.nvidia_smi,
        ),
        (BUG_REPORT.encode(), Kind.bug_report),
        (exported(health()).encode() + b"\n", Kind.nvsentinel),
        (f"[{exported(health())}]".encode(), Kind.nvsentinel),
        (b'[{"component":"disk","startTime":"x","endTime":"x","events":[]}]', Kind.gpud),
    ],
)
def test_recognised_by_content(head: bytes, kind: Kind) -> None:
    assert recognised(head) == kind
