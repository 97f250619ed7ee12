"""Debian's Prometheus, or healer itself, asks Debian's SNMP exporter for devices as the documents show. The
exporters of the fabric are stand-ins."""

import re
import shutil
from collections.abc import Iterator
from datetime import UTC, datetime
from pathlib import Path

import pytest
import sqlalchemy as sa
import yaml

from healer.model import OF_DEVICES, Part
from healer.rulebook.ruleset import load
from healer.signals.hardware_names import with_devices
from tests.support.loop import SHIPPED
from tests.support.measuring import Bench, known, shipped
from tests.support.prometheus import running_prometheus
from tests.support.pulling import Pulled
from tests.support.sink import Sink, serve_sink
from tests.support.snippets import placed, snippet
from tests.support.snmp import modules, snmp_exporter
from tests.support.wait import wait_until

SECTION = "Switches, storage and PDUs through Prometheus"
PULLED = "Switches and PDUs asked by healer itself"
NAMES = {"tor1": "switch", "tor2": "switch", "pdu-r01-a": "pdu"}
PDU = {
    "pdu_power_w": 8450,
    "pdu_phase_load 2": 3,
    "pdu_phase_current_a 2": 12.8,
    "pdu_phase_voltage_v 2": 230,
}
FABRIC = """\
infiniband_switch_port_link_downed_total{guid="0x506b4b03005c2740",port="7",switch="leaf1"} 2
infiniband_exporter_collect_errors{collector="switch"} 0
interfaces_interface_state_counters_in_errors{source="tor9:57400",interface_name="Ethernet2"} 5
"""


@pytest.fixture(scope="module")
def exporter(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """The SNMP exporter and those of the fabric at one address."""
    with snmp_exporter(tmp_path_factory.mktemp("snmp"), NAMES, FABRIC) as at:
        yield at


@pytest.fixture(scope="module")
def written(exporter: str, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Sink]:
    """What Prometheus sends by the configuration of the documents."""
    folder = tmp_path_factory.mktemp("prometheus")
    (folder / "token").write_text("t")
    with serve_sink() as sink:
        config = placed(
            snippet("signals.md", SECTION),
            {
                "https://healer.example/api/v1/signals/prometheus/write": sink.url,
                "/etc/prometheus/healer.token": str(folder / "token"),
                "snmp-exporter:9116": exporter,
                '"ib-exporter:9315", "gnmic:9804"': f'"{exporter}"',
                "scrape_interval: 30s": "scrape_interval: 1s",
            },
        )
        with running_prometheus(folder, config):
            yield sink


def test_series_of_real_prometheus_are_assigned_to_their_devices(written: Sink) -> None:
    bench = Bench()
    found: dict[str, dict[str, float]] = {}
    taken = 0
    may = with_devices(known, bound=False)
    unknown: set[str] = set()

    def take() -> bool:
        nonlocal taken
        for _, body in written.asked[taken:]:
            taken += 1
            measured = bench.translator.remote_write(body, may, datetime.now(UTC))
            unknown.update(measured.unknown)
            for report in measured.reports:
                found.setdefault(report.node, {}).update(named(bench.values(report)))
        return len(found) >= 5

    wait_until(take, 60, what="all devices were reported")
    for switch in ("@tor1", "@tor2"):
        ports = found.pop(switch)
        assert ports["switch_port_state lo"] == 1
        assert {one.partition(" ")[0] for one in ports} == {"switch_port_state", "switch_port_rx_error_total"}
    assert found == {
        "@pdu-r01-a": PDU,
        "@leaf1": {"switch_port_link_down_total 7": 2},
        "@tor9": {"switch_port_rx_error_total Ethernet2": 5},
    }
    assert unknown == set(), "what healer has no use for is not sent"


@pytest.mark.parametrize("module", ["if_mib", "switch"])
def test_healer_asks_the_same_exporter_itself(
    exporter: str, fresh_database: sa.Engine, tmp_path: Path, module: str
) -> None:
    """`switch` is what the generator makes of the page's generator.yml: sensors and wrong checksums too."""
    folder = Path(shutil.copytree(SHIPPED, tmp_path / "rules"))
    places = {
        "snmp-exporter:9116": exporter,
        "if_mib": module,
        "interval_s: 30": "interval_s: 1",
        "timeout_s: 20": "",
    }
    (folder / "scrape.yaml").write_text(placed(snippet("signals.md", PULLED), places))
    with Pulled(fresh_database, load(folder, prove=False).scrape) as pulled:
        wait_until(lambda: pulled.values("@pdu-r01-a") and pulled.values("@tor1"), 60)
        assert named(pulled.values("@pdu-r01-a")) == PDU
        ports = named(pulled.values("@tor1"))
    assert ports["switch_port_state lo"] == 1
    more = {"switch_sensor_temp_c CPU": 45.5, "switch_port_fcs_error_total lo": 3}
    assert {name: ports.get(name) for name in more} == (more if module == "switch" else dict.fromkeys(more))


def test_the_module_that_was_run_looks_up_what_the_shown_one_does() -> None:
    shown = yaml.safe_load(snippet("signals.md", SECTION, 1))["modules"]["switch"]
    run = {
        (metric["indexes"][0]["labelname"], lookup["labelname"])
        for metric in modules()["switch"]["metrics"]
        for lookup in metric["lookups"]
    }
    assert {(one["source_indexes"][0], one["lookup"]) for one in shown["lookups"]} == run


def named(values: dict[tuple[str, Part], float]) -> dict[str, float]:
    return {f"{name} {part.port or ''}".strip(): value for (name, part), value in values.items()}


def test_the_filter_lets_every_name_of_these_exporters_through() -> None:
    config = yaml.safe_load(snippet("signals.md", SECTION))
    keep = re.compile(config["remote_write"][0]["write_relabel_configs"][0]["regex"])
    names = {
        alias.name
        for signal in shipped().signals.values()
        if signal.scope in OF_DEVICES
        for alias in signal.aliases
    }
    lost = sorted(name for name in names if not keep.fullmatch(name))
    # UFM's are those of its own endpoint, which a site adds by hand.
    assert [name for name in lost if not re.match(r"Port|Link|Symbol|Effective|Module|rx_power", name)] == []
    own = {name for name, signal in shipped().signals.items() if signal.scope in OF_DEVICES}
    assert sorted(name for name in own if not keep.fullmatch(name)) == []
