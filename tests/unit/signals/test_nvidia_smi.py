# ruff: noqa: E501 - XML as nvidia-smi prints it
"""`nvidia-smi -q -x`: two generations of drivers, lost GPUs, and XML that is not to be trusted."""

from pathlib import Path

import pytest

from healer.model import Observation, ObservationKind, Part
from healer.signals.series import Measured
from healer.signals.wire import BadBody
from tests.support.measuring import NOW, Bench, gpu, known

HEAD = """<?xml version="1.0" ?>
<!DOCTYPE nvidia_smi_log SYSTEM "nvsmi_device_v12.dtd">
<nvidia_smi_log>
  <timestamp>Fri Nov 20 03:00:00 2026</timestamp>
  <driver_version>550.127.08</driver_version>
  <attached_gpus>{attached}</attached_gpus>
"""
H100 = """
  <gpu id="00000000:{bus}:00.0">
    <product_name>NVIDIA H100 80GB HBM3</product_name>
    <persistence_mode>Enabled</persistence_mode>
    <mig_mode><current_mig>Disabled</current_mig></mig_mode>
    <serial>{serial}</serial>
    <uuid>GPU-{bus}</uuid>
    <minor_number>{minor}</minor_number>
    <gpu_recovery_action>{action}</gpu_recovery_action>
    <pci>
      <pci_bus_id>00000000:{bus}:00.0</pci_bus_id>
      <pci_gpu_link_info>
        <pcie_gen><max_link_gen>5</max_link_gen><current_link_gen>4</current_link_gen></pcie_gen>
        <link_widths><max_link_width>16x</max_link_width><current_link_width>8x</current_link_width></link_widths>
      </pci_gpu_link_info>
      <replay_counter>3</replay_counter>
      <tx_util>1050 KB/s</tx_util>
    </pci>
    <performance_state>P0</performance_state>
    <clocks_event_reasons>
      <clocks_event_reason_gpu_idle>Not Active</clocks_event_reason_gpu_idle>
      <clocks_event_reason_hw_slowdown>Active</clocks_event_reason_hw_slowdown>
      <clocks_event_reason_hw_thermal_slowdown>Active</clocks_event_reason_hw_thermal_slowdown>
      <clocks_event_reason_sw_thermal_slowdown>Not Active</clocks_event_reason_sw_thermal_slowdown>
    </clocks_event_reasons>
    <clocks_event_reasons_counters>
      <clocks_event_reasons_counters_hw_therm_slowdown>2500000 us</clocks_event_reasons_counters_hw_therm_slowdown>
    </clocks_event_reasons_counters>
    <fb_memory_usage><total>81559 MiB</total><reserved>N/A</reserved></fb_memory_usage>
    <utilization><gpu_util>98 %</gpu_util></utilization>
    <ecc_mode><current_ecc>Enabled</current_ecc></ecc_mode>
    <ecc_errors>
      <volatile><sram_correctable>0</sram_correctable><dram_uncorrectable>2</dram_uncorrectable></volatile>
      <aggregate><dram_uncorrectable>5</dram_uncorrectable><sram_threshold_exceeded>No</sram_threshold_exceeded></aggregate>
      <channel_repair_pending>No</channel_repair_pending>
    </ecc_errors>
    <remapped_rows>
      <remapped_row_corr>0</remapped_row_corr><remapped_row_unc>1</remapped_row_unc>
      <remapped_row_pending>Yes</remapped_row_pending><remapped_row_failure>No</remapped_row_failure>
      <row_remapper_histogram><row_remapper_histogram_max>2559 bank(s)</row_remapper_histogram_max><row_remapper_histogram_none>0 bank(s)</row_remapper_histogram_none></row_remapper_histogram>
    </remapped_rows>
    <temperature>
      <gpu_temp>61 C</gpu_temp><gpu_temp_tlimit>26 C</gpu_temp_tlimit>
      <gpu_temp_max_threshold>92 C</gpu_temp_max_threshold><gpu_temp_slow_threshold>89 C</gpu_temp_slow_threshold>
      <memory_temp>71 C</memory_temp>
    </temperature>
    <gpu_power_readings>
      <power_state>P0</power_state><power_draw>350.12 W</power_draw><current_power_limit>700.00 W</current_power_limit>
    </gpu_power_readings>
    <clocks><sm_clock>1290 MHz</sm_clock></clocks>
    <max_clocks><sm_clock>1980 MHz</sm_clock></max_clocks>
    <fabric>
      <state>Completed</state><status>Insufficient Resources</status>
      <cliqueId>0</cliqueId><clusterUuid>00000000-0000-0000-0000-000000000000</clusterUuid>
      <health><bandwidth>N/A</bandwidth><summary>Not Supported</summary></health>
    </fabric>
    <processes><process_info><pid>1</pid><used_memory>5 MiB</used_memory></process_info></processes>
  </gpu>
"""
OLD = """
  <gpu id="0000:18:00.0">
    <uuid>GPU-old</uuid>
    <pci><pci_bus_id>0000:18:00.0</pci_bus_id></pci>
    <clocks_throttle_reasons>
      <clocks_throttle_reason_sw_power_cap>Active</clocks_throttle_reason_sw_power_cap>
    </clocks_throttle_reasons>
    <retired_pages>
      <double_bit_retirement><retired_count>4</retired_count></double_bit_retirement>
      <pending_retirement>Yes</pending_retirement>
    </retired_pages>
    <power_readings><power_draw>66.50 W</power_draw></power_readings>
    <temperature><gpu_temp>41 C</gpu_temp><memory_temp>N/A</memory_temp></temperature>
    <fabric><state>N/A</state><status>N/A</status></fabric>
  </gpu>
"""
LOST = """
  <gpu id="00000000:3A:00.0">
    <product_name>ERR!</product_name>
    <uuid>GPU is lost</uuid>
    <pci><pci_bus_id>00000000:3A:00.0</pci_bus_id></pci>
    <temperature><gpu_temp>GPU is lost</gpu_temp></temperature>
    <ecc_errors><volatile><dram_uncorrectable>0</dram_uncorrectable></volatile></ecc_errors>
  </gpu>
"""


def h100(bus: str, action: str = "None", minor: object = "N/A", serial: str = "N/A") -> str:
    return H100.format(bus=bus, action=action, minor=minor, serial=serial)


@pytest.fixture
def bench() -> Bench:
    return Bench()


def take(bench: Bench, *gpus: str, node: str = "gpu0001", attached: object = None) -> Measured:
    """`attached`: GPUs of the node, where the output does not list all."""
    head = HEAD.format(attached=len(gpus) if attached is None else attached)
    raw = (head + "".join(gpus) + "</nvidia_smi_log>").encode()
    return bench.translator.nvidia_smi(raw, known, NOW, node=node)


def _of_gpus(taken: Measured) -> list[Observation]:
    return [one for one in taken.inventory if one.kind is ObservationKind.gpu_inventory]


def test_a_driver_of_today(bench: Bench) -> None:
    taken = take(bench, h100("18", "Drain and Reset"))
    (report,) = taken.reports
    values = bench.values(report)
    assert values.pop(("gpu_count", Part())) == 1
    assert {part for _, part in values} == {gpu(0)}
    assert {signal: value for (signal, _), value in values.items()} == {
        "gpu_temp_c": 61,
        "gpu_temp_margin_c": 26,
        "gpu_slowdown_temp_c": 89,
        "gpu_shutdown_temp_c": 92,
        "memory_temp_c": 71,
        "power_w": 350.12,
        "power_limit_enforced_w": 700,
        "sm_clock_mhz": 1290,
        "max_sm_clock_mhz": 1980,
        "performance_state": 0,
        "clock_event_reasons": 0x48,
        "hw_thermal_slowdown_s_total": 2.5,
        "gpu_util_percent": 98,
        "pcie_tx_bytes_per_s": 1.05e6,
        "gpu_memory_total_bytes": 81559 * 2**20,
        "ecc_mode": 1,
        "ecc_sram_correctable_total": 0,
        "ecc_dram_uncorrectable_total": 2,
        "ecc_dram_uncorrectable_life_total": 5,
        "sram_threshold_exceeded": 0,
        "channel_repair_pending": 0,
        "row_remap_correctable_rows": 0,
        "row_remap_uncorrectable_rows": 1,
        "row_remap_pending": 1,
        "row_remap_failed": 0,
        "bank_remap_max_count": 2559,
        "bank_remap_none_count": 0,
        "gpu_recovery_action": 4,
        "mig_mode": 0,
        "persistence_mode": 1,
        "pcie_replay_total": 3,
        "pcie_link_gen": 4,
        "pcie_link_width": 8,
        "pcie_max_link_gen": 5,
        "pcie_max_link_width": 16,
        "fabric_state": 3,
        "fabric_status": 1,
        "fabric_clique_id": 0,
        "fabric_cluster_known": 0,
        "fabric_health_summary": 0,
    }
    assert taken.samples == len(values) + 1


def test_a_real_h200_at_work(bench: Bench) -> None:
    """What driver 580.159 printed while a kernel ran; the supported clocks are left out."""
    raw = Path(__file__).with_name("h200-580.xml").read_bytes()
    taken = bench.translator.nvidia_smi(raw, known, NOW, node="gpu0001")
    (report,) = taken.reports
    found = {signal: value for (signal, part), value in bench.values(report).items() if part == gpu(0)}
    expected = {
        "gpu_temp_c": 38,
        "gpu_temp_margin_c": 49,
        "memory_temp_c": 40,
        "power_w": 120.18,
        "power_limit_enforced_w": 700,
        "sm_clock_mhz": 1980,
        "gpu_util_percent": 100,
        "gpu_memory_total_bytes": 143771 * 2**20,
        "ecc_mode": 1,
        "ecc_dram_correctable_life_total": 1,
        "ecc_sram_parity_total": 0,
        "ecc_sram_secded_total": 0,
        "row_remap_failed": 0,
        "row_remap_pending": 0,
        "bank_remap_max_count": 3072,
        "memory_unrepairable": 0,
        "channel_repair_pending": 0,
        "tpc_repair_pending": 0,
        "gpu_recovery_action": 0,
        "pcie_link_gen": 5,
        "pcie_link_width": 16,
        "mig_mode": 0,
    }
    assert {name: found.get(name) for name in expected} == expected
    # Behind a hypervisor it has no NVSwitch: nothing is known of the fabric.
    assert not [name for name in found if name.startswith("fabric_")]


def test_an_old_driver(bench: Bench) -> None:
    values = bench.values(take(bench, OLD).reports[0])
    assert values == {
        ("gpu_count", Part()): 1,
        ("clock_event_reasons", gpu(0)): 4,
        ("page_retired_dbe_total", gpu(0)): 4,
        ("page_retired_pending", gpu(0)): 1,
        ("power_w", gpu(0)): 66.5,
        ("gpu_temp_c", gpu(0)): 41,
    }


@pytest.mark.parametrize("said", ["[Unknown Error]", "Unknown Error", "ERR!"])
def test_a_gpu_with_one_reading_that_failed_is_counted(bench: Bench, said: str) -> None:
    """It answers all else: to count it as gone would drain the node for one sensor."""
    failed = h100("3A").replace("<gpu_temp>61 C<", f"<gpu_temp>{said}<")
    values = bench.values(take(bench, h100("18"), failed).reports[0])
    assert values["gpu_count", Part()] == 2
    assert ("gpu_temp_c", gpu(1)) not in values and values["memory_temp_c", gpu(1)] == 71


def test_warnings_around_the_document_cost_no_sample(bench: Bench) -> None:
    """nvidia-smi prints some of them on its standard output."""
    raw = (HEAD.format(attached=1) + h100("3B") + "</nvidia_smi_log>\n").encode()
    said = b"WARNING: infoROM is corrupted at gpu 0000:3B:00.0\n"
    plain = bench.translator.nvidia_smi(raw, known, NOW, node="gpu0001")
    for around in (raw + said, said + raw):
        taken = bench.translator.nvidia_smi(around, known, NOW, node="gpu0001")
        assert taken.samples == plain.samples > 0
    with pytest.raises(BadBody):
        bench.translator.nvidia_smi(raw.replace(b"</nvidia_smi_log>", b"") + said, known, NOW, node="gpu0001")


@pytest.mark.parametrize("name", [b"\xff\xff\xfe", b"\x1b[31mtrain", b"train & eval", b"train --loss<0.1"])
def test_the_name_of_a_process_costs_no_sample(bench: Bench, name: bytes) -> None:
    """Programs choose it, and nvidia-smi has printed bytes there that no XML may contain."""
    app = b"<process_info><pid>1</pid><process_name>%s</process_name></process_info>"
    raw = (HEAD.format(attached=1) + h100("3B") + "</nvidia_smi_log>").encode()
    odd = raw.replace(b"<processes>", b"<processes>" + app % name + app % b"python3")
    assert odd != raw
    named, plain = (bench.translator.nvidia_smi(one, known, NOW, node="gpu0001") for one in (odd, raw))
    assert named.samples == plain.samples > 0


def test_the_name_of_a_process_is_no_output(bench: Bench) -> None:
    """A program whose name goes on like nvidia-smi's output must not say anything about a GPU."""
    ends = "</process_name></process_info></processes>"
    fake = '</gpu><gpu id="00000000:5D:00.0"><remapped_rows><remapped_row_failure>Yes</remapped_row_failure></remapped_rows>'
    begins = "<processes><process_info><process_name>"
    for name in (f"{ends}{fake}", f"{ends}{fake}{begins}"):
        app = f"<process_info><pid>1</pid><process_name>{name}</process_name></process_info>"
        raw = (
            HEAD.format(attached=1)
            + h100("3B").replace("<processes>", "<processes>" + app)
            + "</nvidia_smi_log>"
        )
        with pytest.raises(BadBody, match="name of a process"):
            bench.translator.nvidia_smi(raw.encode(), known, NOW, node="gpu0001")


def test_a_gpu_without_any_reading_is_not_counted(bench: Bench) -> None:
    failed = h100("3A").replace("<gpu_temp>61 C<", "<gpu_temp>Unknown Error<")
    failed = failed.replace("<performance_state>P0<", "<performance_state>Unknown Error<")
    assert bench.values(take(bench, h100("18"), failed).reports[0])["gpu_count", Part()] == 1


@pytest.mark.parametrize("action", ["N/A", "GPU requires reset", None])
def test_a_gpu_that_answers_only_that_it_needs_a_reset_asks_for_it(bench: Bench, action: str | None) -> None:
    """NVML's error 16, printed in place of readings. Older drivers have no element for the action."""
    broken = h100("3A", action=action or "None").replace("<gpu_temp>61 C<", "<gpu_temp>GPU requires reset<")
    broken = broken.replace("<performance_state>P0<", "<performance_state>GPU requires reset<")
    broken = broken.replace("<status>Insufficient Resources<", "<status>GPU requires reset<")
    if action is None:
        broken = broken.replace("<gpu_recovery_action>None</gpu_recovery_action>", "")
    values = bench.values(take(bench, h100("18"), broken).reports[0])
    assert values["gpu_recovery_action", gpu(0)] == 0
    assert values["gpu_recovery_action", gpu(1)] == 1
    assert ("fabric_status", gpu(1)) not in values


def test_a_lost_gpu_is_unknown_and_not_counted(bench: Bench) -> None:
    taken = take(bench, h100("18"), LOST, h100("5D"))
    values = bench.values(taken.reports[0])
    assert values["gpu_count", Part()] == 2
    assert {part.gpu for _, part in values if part.gpu is not None} == {0, 2}
    assert [one["index"] for one in taken.inventory[0].data["gpus"]] == [0, 2]


def test_minor_numbers_are_the_indexes(bench: Bench) -> None:
    """A lost GPU that the driver no longer lists, as Slurm and jobs still count."""
    taken = take(bench, h100("18", minor=0), h100("5D", minor=2), h100("9A", minor=7))
    values = bench.values(taken.reports[0])
    assert {part.gpu for _, part in values if part.gpu is not None} == {0, 2, 7}
    assert values["gpu_count", Part()] == 3
    assert [one["index"] for one in taken.inventory[0].data["gpus"]] == [0, 2, 7]


@pytest.mark.parametrize("minors", [(0, 0), ("N/A", 1), (64, 0), ("-1", 0)])
def test_minor_numbers_that_cannot_be_are_not_believed(bench: Bench, minors: tuple[object, object]) -> None:
    taken = take(bench, *(h100(bus, minor=minor) for bus, minor in zip(("18", "5D"), minors, strict=True)))
    assert {part.gpu for _, part in bench.values(taken.reports[0])} == {0, 1, None}


def test_one_gpu_of_many_is_not_taken_for_the_whole_node(bench: Bench) -> None:
    """`nvidia-smi -q -x -i 3`: its place in the output says nothing, and seven are not lost."""
    alone = take(bench, h100("5D"), attached=8)
    assert (alone.reports, _of_gpus(alone)) == ([], [])
    assert alone.unknown["gpu_temp_c"].why == "its labels match no known GPU"
    take(bench, *(h100(bus) for bus in ("18", "2A", "3A", "5D")))
    for gpu_xml in (h100("5D"), h100("5D", minor=3)):
        values = bench.values(take(bench, gpu_xml, attached=8).reports[0])
        assert {part for _, part in values} == {gpu(3)}


@pytest.mark.parametrize("attached", ["", "eight", "-1", "99"])
def test_an_output_that_does_not_say_how_many_gpus_there_are_is_no_count(bench: Bench, attached: str) -> None:
    values = bench.values(take(bench, h100("18", minor=0), attached=attached).reports[0])
    assert ("gpu_count", Part()) not in values
    assert ("gpu_temp_c", gpu(0)) in values


def test_no_gpu_answers(bench: Bench) -> None:
    assert bench.values(take(bench, LOST).reports[0]) == {("gpu_count", Part()): 0}
    assert bench.values(take(bench).reports[0]) == {("gpu_count", Part()): 0}


def test_series_by_address_are_mapped_through_nvidia_smi(bench: Bench) -> None:
    (inventory,) = _of_gpus(take(bench, h100("18"), h100("3A")))
    assert inventory.data["gpus"][1] == {"index": 1, "pci": "0000:3a:00", "uuid": "GPU-3A"}
    text = b'DCGM_FI_DEV_SM_CLOCK{pci_bus_id="00000000:3A:00.0"} 1500\n'
    taken = bench.translator.exposition(text, known, NOW, node="gpu0001")
    assert bench.values(taken.reports[0]) == {("sm_clock_mhz", gpu(1)): 1500}


def test_serial_numbers_go_into_the_inventory(bench: Bench) -> None:
    measured = take(bench, h100("18", serial="1650522005114"), h100("3A", serial="N/A"))
    (inventory,) = _of_gpus(measured)
    assert [gpu.get("serial") for gpu in inventory.data["gpus"]] == ["1650522005114", None]


def test_a_node_that_is_not_ours(bench: Bench) -> None:
    taken = take(bench, h100("18"), node="cpu1")
    assert (taken.reports, taken.rejected[0].reason) == ([], "node: cpu1 is not a node of cluster pod1")


@pytest.mark.parametrize(
    ("raw", "reason"),
    [
        (b"", "no element found"),
        (b"NVIDIA-SMI has failed because it couldn't communicate with the NVIDIA driver.", "syntax error"),
        (b"<log></log>", "no <nvidia_smi_log>"),
        (b"<nvidia_smi_log><gpu></nvidia_smi_log>", "mismatched tag"),
        (b'<!DOCTYPE a [<!ENTITY b "c">]><nvidia_smi_log>&b;</nvidia_smi_log>', "it defines an entity"),
        (
            '<!DOCTYPE a [<!ENTITY b SYSTEM "file:///etc/passwd">]><nvidia_smi_log>&b;</nvidia_smi_log>'.encode(
                "utf-16"
            ),
            "it defines an entity",
        ),
        (b"<nvidia_smi_log>" + b"<a>" * 50, "too deep"),
        (b"<nvidia_smi_log>" + b"<gpu></gpu>" * 65 + b"</nvidia_smi_log>", "more than 64 GPUs"),
        (b'<?xml version="1.0" encoding="klingon"?><nvidia_smi_log/>', "encoding"),
        (b" " * (8 * 2**20 + 1), "at most"),
    ],
)
def test_body_that_is_no_nvidia_smi_xml_is_refused(bench: Bench, raw: bytes, reason: str) -> None:
    with pytest.raises(BadBody, match=reason):
        bench.translator.nvidia_smi(raw, known, NOW, node="gpu0001")
