"""Records as log shippers print them. Written from the documented formats (systemd.journal-fields(7),
Vector's journald source, Fluent Bit's systemd input); the programs themselves did not run."""

import json
from typing import Any

BOOT = "0b11d014168504bd26ed5fc0bc1c44ae"
LOST = "NVRM: Xid (PCI:0000:9b:00): 79, pid=4711, name=python, GPU has fallen off the bus."
#: 20 November 2026, 03:00 UTC; and 6,781,753.400584 s after the boot.
AT_US, SINCE_BOOT_US = 1795143600123456, 6781753400584


def journalctl(message: Any = LOST, transport: str = "kernel", **more: Any) -> dict[str, Any]:
    """`journalctl -o json`: all values are text but a message that is no UTF-8."""
    return {
        "__CURSOR": "s=4a7d;i=1f3;b=0b11d014168504bd26ed5fc0bc1c44ae;m=62a;t=6611;x=9c",
        "__REALTIME_TIMESTAMP": str(AT_US),
        "__MONOTONIC_TIMESTAMP": str(SINCE_BOOT_US + 42),
        "__SEQNUM": "499",
        "_BOOT_ID": BOOT,
        "_MACHINE_ID": "d2c1b0a9f8e7d6c5b4a3928170605040",
        "_HOSTNAME": "gpu0001",
        "_TRANSPORT": transport,
        "_SOURCE_MONOTONIC_TIMESTAMP": str(SINCE_BOOT_US),
        "PRIORITY": "3",
        "SYSLOG_FACILITY": "0",
        "SYSLOG_IDENTIFIER": "kernel",
        "MESSAGE": message,
    } | more


def by_logger(message: str = LOST, transport: str = "syslog") -> dict[str, Any]:
    """What `logger -p kern.err -t kernel` leaves in the journal: what begins with `_` it cannot choose."""
    record = journalctl(message, transport, _PID="4711", _UID="1001", _COMM="logger", SYSLOG_PID="4711")
    del record["_SOURCE_MONOTONIC_TIMESTAMP"]
    return record


def vector(record: dict[str, Any] | None = None) -> dict[str, Any]:
    """Vector's journald source: MESSAGE, _HOSTNAME and the time under its own names, the rest as it is."""
    fields = dict(record or journalctl())
    fields["message"] = fields.pop("MESSAGE")
    fields["host"] = fields.pop("_HOSTNAME")
    fields["timestamp"] = "2026-11-20T03:00:00.123456Z"
    fields["source_type"] = "journald"
    return fields


def fluent_bit(record: dict[str, Any] | None = None, *, lower: bool = False) -> dict[str, Any]:
    """Fluent Bit's systemd input through its http output: `date` in seconds, names small with `Lowercase`."""
    fields = dict(record or journalctl())
    del fields["__CURSOR"], fields["__REALTIME_TIMESTAMP"], fields["__MONOTONIC_TIMESTAMP"]
    if lower:
        fields = {name.lower(): value for name, value in fields.items()}
    return {"date": AT_US / 1e6, **fields}


def rsyslog(
    message: str = " [6781753.400584] " + LOST, inputname: str = "imkmsg", **more: Any
) -> dict[str, Any]:
    """The template of docs/signals.md. `msg` begins with the blank behind the tag."""
    return {
        "inputname": inputname,
        "facility": "0",
        "hostname": "gpu0001",
        "boot_id": "0b11d014-1685-04bd-26ed-5fc0bc1c44ae",
        "time": "2026-11-20T03:00:00.123456+00:00",
        "msg": message,
    } | more


def ndjson(*records: Any) -> bytes:
    return b"".join(json.dumps(one).encode() + b"\n" for one in records)


def export(*records: dict[str, Any]) -> bytes:
    """The journal's export format."""
    out = b""
    for record in records:
        for name, value in record.items():
            raw = bytes(value) if isinstance(value, list | bytes) else str(value).encode()
            if b"\n" in raw or isinstance(value, list | bytes):
                out += name.encode() + b"\n" + len(raw).to_bytes(8, "little") + raw + b"\n"
            else:
                out += name.encode() + b"=" + raw + b"\n"
        out += b"\n"
    return out
