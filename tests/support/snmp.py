"""Debian's snmpd as a switch and as a PDU, and Debian's exporter that asks them: all on loopback, as the
user who runs the tests.

What snmpd does not have (a PDU's phases, a switch's sensors) it is configured to answer, by OID. snmp.yml
is not in Debian's package, since the MIBs are not free: the modules here bear the names of the exporter's
own and ask for the columns that healer keeps, in the format of 0.21. A name server is not at hand, so a
stand-in before the exporter knows which device is where.
"""

import socket
import threading
from collections.abc import Iterator, Mapping
from contextlib import AbstractContextManager, ExitStack, contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any
from urllib.parse import parse_qsl, urlencode, urlsplit

import httpx
import yaml

from tests.support.processes import free_port, running
from tests.support.wait import wait_until

SNMPD = "/usr/sbin/snmpd"
_INTERFACES, _MORE_OF_THEM = "1.3.6.1.2.1.2.2.1", "1.3.6.1.2.1.31.1.1.1"
_SENSORS, _ENTITIES, _ETHER = "1.3.6.1.2.1.99.1.1.1", "1.3.6.1.2.1.47.1.1.1.1", "1.3.6.1.2.1.10.7.2.1"
_DEVICE, _PHASE = "1.3.6.1.4.1.318.1.1.26.4.3.1", "1.3.6.1.4.1.318.1.1.26.6.3.1"
#: What each device answers beyond what snmpd knows: 45.5 °C of a CPU, three frames with a wrong checksum at
#: its first interface; 8.45 kW, and 12.8 A and 230 V in phase 2, near its limit.
DEVICES = {
    "switch": {
        f"{_SENSORS}.1.7": ("integer", 8),
        f"{_SENSORS}.2.7": ("integer", 9),
        f"{_SENSORS}.3.7": ("integer", 1),
        f"{_SENSORS}.4.7": ("integer", 455),
        f"{_ENTITIES}.7.7": ("octet_str", "CPU"),
        f"{_ETHER}.3.1": ("counter", 3),
    },
    "pdu": {
        f"{_DEVICE}.5.1": ("integer", 845),
        f"{_PHASE}.4.2": ("integer", 3),
        f"{_PHASE}.5.2": ("integer", 128),
        f"{_PHASE}.6.2": ("integer", 230),
    },
}


def _metric(name: str, oid: str, index: str, kind: str = "gauge", **lookups: str) -> dict[str, Any]:
    return {
        "name": name,
        "oid": oid,
        "type": kind,
        "help": name,
        "indexes": [{"labelname": index, "type": "gauge"}],
        "lookups": [
            {"labels": [index], "labelname": label, "oid": at,
             "type": "DisplayString" if label.endswith("Name") else "gauge"}
            for label, at in lookups.items()
        ],
    }  # fmt: skip


def modules() -> dict[str, Any]:
    """snmp.yml: `if_mib` and `apcups` as the exporter's own, `switch` as of the page's generator.yml."""
    name = {"ifName": f"{_MORE_OF_THEM}.1"}
    interfaces = [
        _metric("ifOperStatus", f"{_INTERFACES}.8", "ifIndex", **name),
        _metric("ifInErrors", f"{_INTERFACES}.14", "ifIndex", "counter", **name),
        _metric("ifAdminStatus", f"{_INTERFACES}.7", "ifIndex", **name),
    ]
    sensor = {
        "entPhysicalName": f"{_ENTITIES}.7",
        "entPhySensorType": f"{_SENSORS}.1",
        "entPhySensorScale": f"{_SENSORS}.2",
        "entPhySensorPrecision": f"{_SENSORS}.3",
    }
    return {
        "if_mib": {"walk": [_INTERFACES, _MORE_OF_THEM], "metrics": interfaces},
        "switch": {
            "walk": [_INTERFACES, _MORE_OF_THEM, _ETHER, _SENSORS, _ENTITIES],
            "metrics": [
                *interfaces,
                _metric("dot3StatsFCSErrors", f"{_ETHER}.3", "dot3StatsIndex", "counter", **name),
                _metric("entPhySensorValue", f"{_SENSORS}.4", "entPhysicalIndex", **sensor),
            ],
        },
        "apcups": {
            "walk": [_DEVICE, _PHASE],
            "metrics": [
                _metric("rPDU2DeviceStatusPower", f"{_DEVICE}.5", "rPDU2DeviceStatusIndex"),
                *(
                    _metric(f"rPDU2PhaseStatus{what}", f"{_PHASE}.{column}", "rPDU2PhaseStatusIndex")
                    for what, column in (("LoadState", 4), ("Current", 5), ("Voltage", 6))
                ),
            ],
        },
    }


class _Names(BaseHTTPRequestHandler):
    """Passes a scrape on, the device's name replaced by its address. `/metrics` is another exporter's."""

    server: "_Server"  # type: ignore[assignment]

    def do_GET(self) -> None:
        asked = urlsplit(self.path)
        if asked.path == "/metrics":
            status, body = 200, self.server.page.encode()
        else:
            query = dict(parse_qsl(asked.query))
            query["target"] = self.server.at.get(query["target"], query["target"])
            answer = httpx.get(
                f"{self.server.exporter}{asked.path}?{urlencode(query)}", timeout=20, verify=False
            )
            status, body = answer.status_code, answer.content
        self.send_response(status)
        self.send_header("Content-Type", "text/plain; version=0.0.4")
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, *_: object) -> None: ...


class _Server(ThreadingHTTPServer):
    daemon_threads = True
    exporter = ""
    page = ""
    at: Mapping[str, str] = {}


@contextmanager
def snmp_exporter(folder: Path, names: Mapping[str, str], page: str = "") -> Iterator[str]:
    """`host:port` of the exporter. `names`: what each device is, `switch` or `pdu`; `page`: what `/metrics`
    answers there."""
    ports = {kind: free_udp_port() for kind in DEVICES}
    (folder / "snmp.yml").write_text(yaml.safe_dump(modules()))
    asked = f"127.0.0.1:{free_port()}"
    server = _Server(("127.0.0.1", 0), _Names)
    server.exporter, server.page = f"http://{asked}", page
    server.at = {name: f"127.0.0.1:{ports[kind]}" for name, kind in names.items()}
    options = (f"--config.file={folder / 'snmp.yml'}", f"--web.listen-address={asked}")
    with ExitStack() as stack:
        stack.enter_context(_served(server))
        for kind, port in ports.items():
            stack.enter_context(_snmpd(folder / kind, port, DEVICES[kind]))
        stack.enter_context(running(folder / "exporter.log", "prometheus-snmp-exporter", *options))
        for kind, port in ports.items():
            wait_until(lambda port=port: _answers(asked, port), 30, what=f"the {kind}'s snmpd answers")
        yield f"127.0.0.1:{server.server_port}"


@contextmanager
def _served(server: _Server) -> Iterator[None]:
    thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.01}, daemon=True)
    with server:
        thread.start()
        try:
            yield
        finally:
            server.shutdown()
            thread.join(10)


def _snmpd(
    folder: Path, port: int, overrides: Mapping[str, tuple[str, object]]
) -> AbstractContextManager[None]:
    folder.mkdir()
    lines = ["rocommunity public 127.0.0.1"]
    lines += [f"override .{oid} {kind} {value}" for oid, (kind, value) in overrides.items()]
    (folder / "snmpd.conf").write_text("\n".join(lines) + "\n")
    # No MIBs, as numbers are enough; no SMUX, which has a port of its own; nothing of /etc/snmp.
    options = ("-f", "-Lo", "-m", "", "-I", "-smux", "-C", "-c", str(folder / "snmpd.conf"))
    kept = f"--persistentDir={folder / 'kept'}"
    return running(folder / "log", SNMPD, *options, f"udp:127.0.0.1:{port}", kept)


def _answers(exporter: str, port: int) -> bool:
    try:
        url = f"http://{exporter}/snmp?target=127.0.0.1:{port}&module=if_mib"
        return "ifOperStatus" in httpx.get(url, timeout=10, verify=False).text
    except httpx.HTTPError:
        return False


def free_udp_port() -> int:
    """On loopback."""
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as free:
        free.bind(("127.0.0.1", 0))
        return int(free.getsockname()[1])
