"""Series of devices: whose they are by exporters' labels, who may send them, and how many are taken."""

import pytest

from healer.model import Part
from healer.signals import hardware_names
from healer.signals.hardware_names import Devices, device_of, part_of, with_devices
from healer.signals.series import Measured
from tests.support.measuring import NOW, Bench, known

EXPORTERS = """\
infiniband_switch_port_link_downed_total{guid="0x506b4b03005c2740",port="7",switch="leaf1"} 2
infiniband_switch_temperature_celsius{guid="0x506b4b03005c2740",switch="leaf1"} 51
infiniband_switch_fan_rpm{guid="0x506b4b03005c2740",fan="3",switch="leaf1"} 8000
LinkDownedCounterExtended{source="0x0002c90300f172a0",node_guid="2c90300f172a0",port_guid="2c90300f172a2",port_num="2"} 4
PortRcvErrorsExtended{node_description="MF0;spine2:MQM9700/U1",port_num="1"} 9
ifHighSpeed{instance="tor1:161",ifIndex="49",ifName="Ethernet1/1",ifDescr="Ethernet1/1"} 400000
ifOperStatus{instance="tor1:161",ifIndex="49",ifName="Ethernet1/1"} 2
entPhySensorValue{instance="tor1:161",entPhySensorType="celsius",entPhySensorScale="units",entPhySensorPrecision="0",entPhysicalName="CPU"} 61
interfaces_interface_state_counters_in_errors{source="tor2:57400",interface_name="Ethernet2"} 5
components_component_transceiver_physical_channels_channel_state_input_power_instant{source="tor2",component_name="xcvr2",channel_index="3",subscription_name="optics"} -4.5
lustre_capacity_kilobytes{component="ost",target="scratch-OST0001",instance="oss1:9169"} 1000
rPDU2PhaseStatusCurrent{instance="pdu-r01-a",rPDU2PhaseStatusIndex="2"} 128
rPDU2DeviceStatusPower{instance="pdu-r01-a",rPDU2DeviceStatusIndex="1"} 845
storage_directory_used_bytes{device="scratch",part="/scratch/climate"} 9.1e12
coolant_leak{device="cdu1"} 0
"""  # noqa: E501

sends = with_devices(known, bound=False)


def take(bench: Bench, text: str, *, node: str | None = None, bound: bool = False) -> Measured:
    return bench.translator.exposition(text.encode(), with_devices(known, bound=bound), NOW, node=node)


def values_by_device(bench: Bench, measured: Measured) -> dict[str, dict[tuple[str, str | None], float]]:
    return {
        report.node: {(name, part.port): value for (name, part), value in bench.values(report).items()}
        for report in measured.reports
    }


def test_the_labels_of_exporters_name_device_and_part() -> None:
    bench = Bench()
    measured = take(bench, EXPORTERS)
    assert (measured.unrecognised, measured.rejected) == (0, ())
    assert values_by_device(bench, measured) == {
        "@leaf1": {
            ("switch_port_link_down_total", "7"): 2,
            ("switch_temp_c", None): 51,
            ("switch_fan_rpm", "3"): 8000,
        },
        "@0x0002c90300f172a0": {("switch_port_link_down_total", "2"): 4},
        "@spine2": {("switch_port_rx_error_total", "1"): 9},
        "@tor1": {
            ("switch_port_rate_bytes_per_s", "Ethernet1/1"): 5e10,
            ("switch_port_state", "Ethernet1/1"): 2,
            ("switch_sensor_temp_c", "CPU"): 61,
        },
        "@tor2": {("switch_port_rx_error_total", "Ethernet2"): 5, ("optic_rx_power_dbm", "xcvr2/3"): -4.5},
        "@oss1": {("storage_target_size_bytes", "scratch-OST0001"): 1024000},
        "@pdu-r01-a": {("pdu_phase_current_a", "2"): 12.8, ("pdu_power_w", None): 8450},
        "@scratch": {("storage_directory_used_bytes", "/scratch/climate"): 9.1e12},
        "@cdu1": {("coolant_leak", None): 0},
    }


def test_parts_of_one_switch_stay_apart_when_gnmic_names_its_target() -> None:
    bench = Bench()
    line = 'components_component_state_temperature_instant{source="tor2:57400",target="tor2",component_name='
    found = values_by_device(bench, take(bench, f'{line}"CPU"}} 40\n{line}"ASIC"}} 90\n'))
    assert found == {"@tor2": {("switch_sensor_temp_c", "CPU"): 40, ("switch_sensor_temp_c", "ASIC"): 90}}


@pytest.mark.parametrize(
    ("kind", "scale", "precision", "value"),
    [
        ("celsius", "units", "0", 455),
        ("celsius", "units", "1", 45.5),
        ("8", "9", "2", 4.55),
        ("8", "9", "3", 0.455),
        ("celsius", "milli", "0", None),
        ("celsius", "8", "0", None),
        ("celsius", "units", "", None),
        ("celsius", "", "1", None),
        ("watts", "units", "0", None),
    ],
)
def test_a_sensors_value_counts_by_its_own_scale_and_precision(
    kind: str, scale: str, precision: str, value: float | None
) -> None:
    bench = Bench()
    line = (
        f'entPhySensorValue{{instance="tor1:161",entPhysicalName="CPU",entPhySensorType="{kind}",'
        f'entPhySensorScale="{scale}",entPhySensorPrecision="{precision}"}} 455\n'
    )
    found = values_by_device(bench, take(bench, line)).get("@tor1", {})
    assert found == ({} if value is None else {("switch_sensor_temp_c", "CPU"): pytest.approx(value)})


@pytest.mark.parametrize(("kind", "precision", "value"), [("rpm", "0", 8000), ("10", "1", 800)])
def test_a_fan_of_snmp_counts_by_its_precision(kind: str, precision: str, value: float) -> None:
    bench = Bench()
    line = (
        f'entPhySensorValue{{instance="tor1:161",entPhysicalName="FAN1",entPhySensorType="{kind}",'
        f'entPhySensorScale="units",entPhySensorPrecision="{precision}"}} 8000\n'
        'entPhySensorValue{instance="tor1:161",entPhysicalName="FAN2",entPhySensorType="rpm"} 8000\n'
    )
    assert values_by_device(bench, take(bench, line)) == {
        "@tor1": {("switch_fan_rpm", "FAN1"): pytest.approx(value)}
    }


def test_lustre_client_figures_belong_to_no_storage_device() -> None:
    bench = Bench()
    names = ("capacity_kilobytes", "available_kilobytes", "inodes_maximum", "inodes_free")
    lines = [
        f'lustre_{name}{{component="{component}",target="{component}-1",instance="{host}:9169"}} 1000'
        for component, host in (("client", "10.0.0.17"), ("ost", "oss1"), ("mds", "mds1"), ("mgs", "mds1"))
        for name in names
    ]
    found = values_by_device(bench, take(bench, "\n".join(lines) + "\n"))
    assert {device: {part for _, part in values} for device, values in found.items()} == {
        "@oss1": {"ost-1"},
        "@mds1": {"mds-1", "mgs-1"},
    }
    assert {len(values) for values in found.values()} == {4, 8}


@pytest.mark.parametrize("node", ["gpu0001:9169", "gpu0001.pod1.example:9169"])
def test_no_device_bears_the_name_of_a_node(node: str) -> None:
    bench = Bench()
    text = (
        f'lustre_health_check{{component="health",target="lustre",instance="{node}"}} 0\n'
        'lustre_health_check{component="health",target="lustre",instance="oss1:9169"} 0\n'
    )
    measured = take(bench, text)
    assert values_by_device(bench, measured) == {"@oss1": {("storage_healthy", "lustre"): 0}}
    assert measured.unrecognised == 1
    assert measured.unknown["lustre_health_check"].why == hardware_names.IS_A_NODE


def test_the_inlet_is_no_other_sensor_of_the_node() -> None:
    bench = Bench()
    text = 'ipmi_temperature_celsius{name="Inlet Temp"} 24\nipmi_temperature_celsius{name="CPU1 Temp"} 70\n'
    (report,) = take(bench, text, node="gpu0001").reports
    assert bench.values(report) == {("node_inlet_temp_c", Part()): 24, ("host_temp_c", Part()): 70}


def test_a_token_of_a_node_speaks_of_no_device() -> None:
    bench = Bench()
    line = 'coolant_leak{device="cdu1"} 1\n'
    refused = take(bench, line, bound=True)
    assert (refused.reports, refused.unrecognised) == ([], 1)
    assert refused.unknown["coolant_leak"].why == hardware_names.NOT_YOURS
    # What one may not say is not remembered against another, nor for him who heard it from another.
    assert take(bench, line).samples == 1
    assert take(bench, line, bound=True).samples == 0


@pytest.mark.parametrize(
    ("line", "why"),
    [
        ('coolant_leak{rack="r01"} 1', hardware_names.NO_DEVICE),
        ('switch_port_up{device="leaf1"} 1', hardware_names.NO_PART),
        ('coolant_leak{device="cdu1",cluster="pod2"} 1', "belongs to another cluster"),
        ('coolant_leak{device="a b"} 1', hardware_names.NO_DEVICE),
    ],
)
def test_sample_without_a_device_is_reported(line: str, why: str) -> None:
    measured = take(Bench(), line + "\n")
    assert (measured.samples, measured.unrecognised) == (0, 1)
    assert next(iter(measured.unknown.values())).why == why


def test_the_address_names_a_node_and_no_device() -> None:
    measured = take(Bench(), 'coolant_leak{device="cdu1"} 1\n', node="gpu0001")
    assert measured.samples == 0
    assert measured.unknown["coolant_leak"].why == "belongs to a device; send it without ?node="


def test_a_request_may_be_of_one_device() -> None:
    bench = Bench()
    text = 'ifInErrors{ifName="Ethernet1/1",instance="exporter:9116"} 3\nnode_load1 2\n'
    measured = take(bench, text, node="@leaf7")
    assert values_by_device(bench, measured) == {"@leaf7": {("switch_port_rx_error_total", "Ethernet1/1"): 3}}
    assert measured.unknown["node_load1"].why == "belongs to a node, but the request is for a device"
    # The same lines are another device's, and no node's.
    assert [one.node for one in take(bench, text, node="@leaf8").reports] == ["@leaf8"]
    assert [one.node for one in take(bench, text, node="gpu0001").reports] == ["gpu0001"]
    assert values_by_device(bench, take(bench, text)) == {
        "@exporter": {("switch_port_rx_error_total", "Ethernet1/1"): 3}
    }


@pytest.mark.parametrize(
    ("device", "bound", "why"),
    [
        ("a b", False, "must be up to 64 letters"),
        ("a", True, "bound to a node"),
        ("gpu0001", False, "has the name of a node"),
    ],
)
def test_a_request_of_what_may_be_no_device(device: str, bound: bool, why: str) -> None:
    measured = take(Bench(), "coolant_leak 1\n", node=f"@{device}", bound=bound)
    assert measured.samples == 0
    assert why in measured.rejected[0].reason


def test_no_more_devices_and_parts_than_the_bounds(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(hardware_names, "DEVICES_MAX", 2)
    monkeypatch.setattr(hardware_names, "PARTS_MAX", 2)
    monkeypatch.setattr(hardware_names, "PART_NAMES_MAX", 3)
    monkeypatch.setattr(hardware_names, "PAIRS_MAX", 4)
    book = Devices()
    assert [book.wrong("a", part) for part in (None, "1", "2", "2")] == [None] * 4
    assert book.wrong("a", "3") == hardware_names.TOO_MANY_PARTS
    assert [book.wrong("b", part) for part in ("1", "3")] == [None] * 2
    assert book.wrong("b", "4") == hardware_names.TOO_MANY_PARTS
    assert book.wrong("c", None) == hardware_names.TOO_MANY_DEVICES
    assert book.wrong("b", "1") is None, "what is known stays known"


def test_flood_of_names_is_bounded_and_reported() -> None:
    bench = Bench()
    lines = [f'switch_port_up{{device="d{number}",part="p{number}"}} 1' for number in range(3000)]
    measured = take(bench, "\n".join(lines) + "\n")
    assert measured.samples == hardware_names.PART_NAMES_MAX
    assert measured.unrecognised == 3000 - hardware_names.PART_NAMES_MAX
    assert measured.unknown["switch_port_up"].why == hardware_names.TOO_MANY_PARTS


@pytest.mark.parametrize(
    ("labels", "name"),
    [
        ({"instance": "leaf1:9116"}, "leaf1"),
        ({"instance": "leaf1.pod1.example:9116"}, "leaf1.pod1.example"),
        ({"instance": "fe80::1"}, "fe80::1"),
        ({"node_desc": "Quantum Mellanox Technologies", "guid": "0xB8CEF60300112233"}, "0xb8cef60300112233"),
        ({"source": "10.0.0.1:57400"}, "10.0.0.1"),
        ({"device": "x" * 65}, None),
        ({"device": "../etc"}, None),
        ({}, None),
    ],
)
def test_names_of_devices(labels: dict[str, str], name: str | None) -> None:
    assert device_of(labels) == name


def test_names_of_parts() -> None:
    assert part_of({"part": " 7 "}) == "7"
    assert part_of({"part": "a\nb", "port": "1"}) == "1"
    assert part_of({"part": "x" * 101}) is None
    assert part_of({"target": "tor1", "sensor": "7"}) == "7"
    assert part_of({"target": "scratch-OST0001", "name": "x"}) == "scratch-OST0001"
    assert part_of({"a": "1", "b": "2"}, "a/b") == "1/2"
    assert part_of({"a": "1"}, "a/b") is None
