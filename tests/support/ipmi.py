"""Debian's ipmi_sim as a node's BMC, and Debian's Prometheus exporter that asks it through FreeIPMI. All on
loopback, as the user who runs the tests. The simulated BMC signs in by IPMI 1.5 alone."""

from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path

import httpx

from tests.support.processes import free_port, running
from tests.support.snmp import free_udp_port
from tests.support.wait import wait_until

#: Number, name, kind (1 temperature, 4 fan), unit (1 °C, 18 rpm), entity, factor, and what is read.
SENSORS = (
    (1, "Inlet Temp", 1, 1, 55, 1, 24),
    (2, "CPU1 Temp", 1, 1, 3, 1, 61),
    (3, "Fan 1", 4, 18, 29, 100, 72),
    (4, "Fan 2", 4, 18, 29, 100, 70),
)
_LAN = """\
name "bmc"
set_working_mc 0x20
startlan 1
  addr 127.0.0.1 {port}
  priv_limit admin
  allowed_auths_callback none md2 md5 straight
  allowed_auths_user none md2 md5 straight
  allowed_auths_operator none md2 md5 straight
  allowed_auths_admin none md2 md5 straight
endlan
user 1 true "" "" user 10 none md2 md5 straight
user 2 true "healer" "secret" admin 10 none md2 md5 straight
"""
#: FreeIPMI remembers each BMC's sensors, at the user's home if it is not given another folder.
_EXPORTER = """\
modules:
  default: {{user: healer, pass: secret, driver: LAN, privilege: admin, timeout: 10000, collectors: [ipmi],
            custom_args: {{ipmi: ["--sdr-cache-directory={folder}"]}}}}
"""


@contextmanager
def ipmi_exporter(folder: Path) -> Iterator[tuple[str, str]]:
    """`host:port` of the exporter, and of the BMC that it asks."""
    port, asked = free_udp_port(), f"127.0.0.1:{free_port()}"
    exporter = _EXPORTER.format(folder=folder)
    for name, text in (("lan", _LAN.format(port=port)), ("emu", _commands()), ("exporter.yml", exporter)):
        (folder / name).write_text(text)
    commands = (
        ("ipmi_sim", "-n", "-c", str(folder / "lan"), "-f", str(folder / "emu"), "-s", str(folder / "state")),
        (
            "prometheus-ipmi-exporter",
            f"--config.file={folder / 'exporter.yml'}",
            f"--web.listen-address={asked}",
        ),
    )
    bmc = f"127.0.0.1:{port}"
    with ExitStack() as stack:
        for command in commands:
            stack.enter_context(running(folder / f"{command[0]}.log", *command))
        wait_until(lambda: _answers(asked, bmc), 60, what="the BMC answers the exporter", every_s=0.3)
        yield asked, bmc


def _commands() -> str:
    lines = [
        "mc_setbmc 0x20",
        "mc_add 0x20 0 has-device-sdrs 0x23 9 8 0x9f 0x1291 0xf02 persist_sdr",
    ]
    for number, name, kind, unit, entity, factor, value in SENSORS:
        lines += [
            f"sensor_add 0x20 0 {number} {kind} 1",
            f"sensor_set_value 0x20 0 {number} {value} 0",
            f"sensor_set_event_support 0x20 0 {number} enable scanning per-state" + f" {'0' * 15}" * 4,
            "main_sdr_add 0x20 "
            + " ".join(f"0x{one:02x}" for one in _record(number, name, kind, unit, entity, factor)),
        ]
    return "\n".join([*lines, "mc_enable 0x20"]) + "\n"


def _record(number: int, name: str, kind: int, unit: int, entity: int, factor: int) -> list[int]:
    """A full sensor record (IPMI 2.0, table 43-1): a linear sensor of unsigned bytes without thresholds."""
    body = [0x20, 0, number, entity, number, 0x7F, 0x68, kind, 1]
    body += [0] * 7 + [unit, 0, 0, factor] + [0] * 9 + [0xFF] + [0] * 12 + [0xC0 | len(name), *name.encode()]
    return [number, 0, 0x51, 1, len(body), *body]


def _answers(exporter: str, bmc: str) -> bool:
    try:
        page = httpx.get(f"http://{exporter}/ipmi?target={bmc}&module=default", timeout=20, verify=False).text
    except httpx.HTTPError:
        return False
    return 'ipmi_up{collector="ipmi"} 1' in page
