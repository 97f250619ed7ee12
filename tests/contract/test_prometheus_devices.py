"""A real Prometheus asks an SNMP exporter for devices and writes what the documents say it should."""

import re
import shutil
import socket
import subprocess
import threading
from collections.abc import Iterator
from datetime import UTC, datetime
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any
from urllib.parse import parse_qs, urlsplit

import pytest
import yaml

from healer.model import OF_DEVICES
from healer.signals.devices import with_devices
from tests.support.sink import Sink, serve_sink
from tests.support.snippets import placed, snippet
from tests.support.wait import wait_until
from tests.unit.signals.measuring import Bench, known, shipped

SECTION = "Switches, storage and PDUs through Prometheus"
IF_MIB = """\
# TYPE ifInErrors counter
ifInErrors{{ifAlias="",ifDescr="Ethernet1/1",ifIndex="49",ifName="Ethernet1/1"}} {errors}
ifOperStatus{{ifAlias="",ifDescr="Ethernet1/1",ifIndex="49",ifName="Ethernet1/1"}} 1
snmp_scrape_duration_seconds 0.1
"""
FABRIC = """\
infiniband_switch_port_link_downed_total{guid="0x506b4b03005c2740",port="7",switch="leaf1"} 2
infiniband_exporter_collect_errors{collector="switch"} 0
interfaces_interface_state_counters_in_errors{source="tor9:57400",interface_name="Ethernet2"} 5
"""


@pytest.fixture(scope="module")
def exporter() -> Iterator[str]:
    """Both exporters at one address."""

    class Handler(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            asked = urlsplit(self.path)
            errors = {"tor1": 3, "tor2": 4}.get(parse_qs(asked.query).get("target", [""])[0], 0)
            body = (IF_MIB.format(errors=errors) if asked.path == "/snmp" else FABRIC).encode()
            self.send_response(200)
            self.send_header("content-type", "text/plain; version=0.0.4")
            self.send_header("content-length", str(len(body)))
            self.end_headers()
            self.wfile.write(body)

        def log_message(self, format: str, *args: Any) -> None:
            """Says nothing."""

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    server.daemon_threads = True
    thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.01})
    thread.start()
    yield f"127.0.0.1:{server.server_port}"
    server.shutdown()
    thread.join()


@pytest.fixture(scope="module")
def written(exporter: str, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Sink]:
    """What Prometheus sends by the configuration of the documents."""
    folder = tmp_path_factory.mktemp("prometheus")
    (folder / "token").write_text("t")
    with serve_sink() as sink, socket.socket() as free:
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
        (folder / "prometheus.yml").write_text(config)
        free.bind(("127.0.0.1", 0))
        address = f"127.0.0.1:{free.getsockname()[1]}"
        free.close()
        program = shutil.which("prometheus")
        assert program is not None, "tools/setup --system installs it"
        process = subprocess.Popen(
            [program, f"--config.file={folder / 'prometheus.yml'}", f"--storage.tsdb.path={folder / 'data'}",
             f"--web.listen-address={address}"],
            stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL,
        )  # fmt: skip
        try:
            yield sink
        finally:
            process.terminate()
            process.wait(30)


def test_what_prometheus_writes_is_of_the_devices(written: Sink) -> None:
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
                told = {f"{name} {part.port}": value for (name, part), value in bench.values(report).items()}
                found.setdefault(report.node, {}).update(told)
        return len(found) >= 5

    wait_until(take, 60, what="all devices were told of")
    assert found == {
        "@tor1": {"switch_port_rx_error_total Ethernet1/1": 3, "switch_port_state Ethernet1/1": 1},
        "@tor2": {"switch_port_rx_error_total Ethernet1/1": 4, "switch_port_state Ethernet1/1": 1},
        "@pdu-r01-a": {"switch_port_rx_error_total Ethernet1/1": 0, "switch_port_state Ethernet1/1": 1},
        "@leaf1": {"switch_port_link_down_total 7": 2},
        "@tor9": {"switch_port_rx_error_total Ethernet2": 5},
    }
    assert unknown == set(), "what healer has no use for is not sent"


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
