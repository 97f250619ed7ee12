"""How senders report kernel events in drawn recordings: in their own form, late, twice, in part or never."""

import random
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from typing import Any

Row = dict[str, Any]

START = datetime(2026, 11, 20, 3, 0, tzinfo=UTC)
#: Kernel's clock at START: the nodes had been up for so long.
UPTIME_S = 400_000
#: PCI addresses of GPU 0 to 7.
PCI = [
    "0000:1b:00",
    "0000:43:00",
    "0000:52:00",
    "0000:61:00",
    "0000:9d:00",
    "0000:c3:00",
    "0000:d1:00",
    "0000:df:00",
]
#: A row without any time or boot says nothing of its age, so it is never later than this.
AGELESS_S = 30.0


@dataclass(frozen=True, order=True)
class Event:
    """A kernel line. `sure`: it alone says that a GPU is dead."""

    node: str
    at: float
    line: str
    boot: str
    xid: int = 0
    gpu: int = 0
    sure: bool = False
    seq: int = 0


@dataclass
class Sent:
    """Rows with their arrival, and when which node's own kernel line of a dead GPU arrived."""

    rows: list[tuple[float, Row]] = field(default_factory=list[tuple[float, Row]])
    sure: list[tuple[float, str]] = field(default_factory=list[tuple[float, str]])


def stamp(at: float) -> str:
    return (START + timedelta(seconds=at)).isoformat().replace("+00:00", "Z")


def body_row(route: str, body: Any) -> Row:
    return {"route": route, "body": body}


def _kernel_clock(at: float) -> str:
    return f"[{UPTIME_S + at:12.6f}]"


def follower(rng: random.Random, events: list[Event], nodes: dict[str, Row]) -> Iterator[Row]:
    """JSON with boot id, number and time; now and then one of the last two is missing."""
    left_out = rng.choice(("", "", "", "seq", "time"))
    entries = [{"time": stamp(one.at), "seq": one.seq, "line": one.line} for one in events]
    entries = [{key: value for key, value in one.items() if key != left_out} for one in entries]
    if left_out == "time":
        entries = [
            one | {"line": f"{_kernel_clock(event.at)} {event.line}"}
            for one, event in zip(entries, events, strict=True)
        ]
    head = {"cluster": "pod1", "node": events[0].node, "boot_id": events[0].boot}
    yield body_row("signals/kernel-log", head | {"entries": entries})


def relay(rng: random.Random, events: list[Event], nodes: dict[str, Row]) -> Iterator[Row]:
    """JSON of a relay: whole seconds, no boot id, no number."""
    entries = [
        {"time": stamp(int(one.at)), "line": f"kernel: {_kernel_clock(one.at)} {one.line}"} for one in events
    ]
    yield body_row("signals/kernel-log", {"cluster": "pod1", "node": events[0].node, "entries": entries})


def text(rng: random.Random, events: list[Event], nodes: dict[str, Row]) -> Iterator[Row]:
    """Plain lines as dmesg prints them, with the boot id in the query."""
    route = f"signals/kernel-log?cluster=pod1&node={events[0].node}&boot_id={events[0].boot}"
    yield body_row(route, "".join(f"{_kernel_clock(one.at)} {one.line}\n" for one in events))


def dated_text(rng: random.Random, events: list[Event], nodes: dict[str, Row]) -> Iterator[Row]:
    """Plain lines as rsyslog writes them, RFC 3339 and no boot id."""
    node = events[0].node
    lines = (f"{stamp(one.at)} {node} kernel: {_kernel_clock(one.at)} {one.line}\n" for one in events)
    yield body_row(f"signals/kernel-log?cluster=pod1&node={node}", "".join(lines))


def bare_text(rng: random.Random, events: list[Event], nodes: dict[str, Row]) -> Iterator[Row]:
    """Plain lines without any prefix, time or boot id."""
    route = f"signals/kernel-log?cluster=pod1&node={events[0].node}"
    yield body_row(route, "".join(f"{one.line}\n" for one in events))


def journal(rng: random.Random, events: list[Event], nodes: dict[str, Row]) -> Iterator[Row]:
    """Records of journald."""
    yield body_row("signals/logs", [_record(one) for one in events])


def _record(event: Event) -> dict[str, str]:
    since_start_us = round(event.at * 1e6)
    return {
        "_TRANSPORT": "kernel",
        "_HOSTNAME": event.node,
        "_BOOT_ID": event.boot,
        "_SOURCE_MONOTONIC_TIMESTAMP": str(UPTIME_S * 1_000_000 + since_start_us),
        "__REALTIME_TIMESTAMP": str(int(START.timestamp()) * 1_000_000 + since_start_us),
        "MESSAGE": event.line,
    }


def otlp(rng: random.Random, events: list[Event], nodes: dict[str, Row]) -> Iterator[Row]:
    """OTLP logs that began at the journald receiver."""
    logs: list[Row] = []
    for event in events:
        values = [{"key": key, "value": {"stringValue": value}} for key, value in _record(event).items()]
        nanos = int(START.timestamp()) * 10**9 + round(event.at * 1e6) * 1000
        logs.append({"timeUnixNano": str(nanos), "body": {"kvlistValue": {"values": values}}})
    resource = {"attributes": [{"key": "host.name", "value": {"stringValue": events[0].node}}]}
    body = {"resourceLogs": [{"resource": resource, "scopeLogs": [{"logRecords": logs}]}]}
    yield body_row("signals/otlp/v1/logs", body)


def exporter(rng: random.Random, events: list[Event], nodes: dict[str, Row]) -> Iterator[Row]:
    """The exporter's gauge of the last Xid."""
    node = events[0].node
    lines = (
        f'DCGM_FI_DEV_XID_ERRORS{{gpu="{gpu}",UUID="GPU-{node}-{gpu}",pci_bus_id="0000{PCI[gpu].upper()}.0",'
        f'Hostname="{node}"}} {xid}\n'
        for gpu, xid in enumerate(_last_xids(events, nodes))
    )
    yield body_row(f"signals/openmetrics?cluster=pod1&node={node}", "".join(lines))


def columns(rng: random.Random, events: list[Event], nodes: dict[str, Row]) -> Iterator[Row]:
    """The same gauge in columns."""
    gauge = {"DCGM_FI_DEV_XID_ERRORS": _last_xids(events, nodes)}
    yield body_row("signals/metrics", {"cluster": "pod1", "node": events[0].node, "gpu": gauge})


def _last_xids(events: list[Event], nodes: dict[str, Row]) -> list[int]:
    last = {event.gpu: event.xid for event in events if event.xid}
    return [last.get(gpu, 0) for gpu in range(nodes[events[0].node]["gpus"])]


def nvidia_smi(rng: random.Random, events: list[Event], nodes: dict[str, Row]) -> Iterator[Row]:
    """The XML of `nvidia-smi -q -x` after a row remap or the loss of a GPU; nothing for other events."""
    xids = {event.gpu: event.xid for event in events if event.xid in {63, 64, 79}}
    if xids:
        count = nodes[events[0].node]["gpus"]
        gpus = "".join(_smi_gpu(gpu, xids.get(gpu)) for gpu in range(count))
        log = f"<nvidia_smi_log><attached_gpus>{count}</attached_gpus>{gpus}</nvidia_smi_log>"
        route = f"signals/nvidia-smi?cluster=pod1&node={events[0].node}"
        yield body_row(route, f'<?xml version="1.0" ?>\n{log}')


def _smi_gpu(gpu: int, xid: int | None) -> str:
    name = f'<gpu id="0000{PCI[gpu].upper()}.0"><minor_number>{gpu}</minor_number>'
    if xid == 79:
        return f"{name}<remapped_rows>GPU is lost</remapped_rows></gpu>"
    pending, failure = ("Yes" if xid == 63 else "No"), ("Yes" if xid == 64 else "No")
    rows = f"<remapped_row_corr>0</remapped_row_corr><remapped_row_unc>{int(bool(xid))}</remapped_row_unc>"
    rows += f"<remapped_row_pending>{pending}</remapped_row_pending>"
    rows += f"<remapped_row_failure>{failure}</remapped_row_failure>"
    return f"{name}<remapped_rows>{rows}</remapped_rows></gpu>"


Sender = Callable[[random.Random, list[Event], dict[str, Row]], Iterator[Row]]
SENDERS: list[Sender] = [
    follower,
    relay,
    text,
    dated_text,
    bare_text,
    journal,
    otlp,
    exporter,
    columns,
    nvidia_smi,
]
#: They show a current state, or lines of unknown age.
AGELESS: set[Sender] = {bare_text, exporter, columns, nvidia_smi}
#: Routes by which a kernel record comes whole: whichever it took, healer knows of the dead GPU.
KERNEL_ROUTES = ("signals/kernel-log", "signals/logs", "signals/otlp")
REREADERS: list[Sender] = [follower, text, journal]


def send_all(rng: random.Random, events: list[Event], nodes: dict[str, Row], longest_s: float) -> Sent:
    """What a drawn set of senders makes of the events."""
    sent = Sent()
    chosen = rng.sample(SENDERS, rng.choice((1, 1, 2, 2, 3, 4)))
    for sender in chosen:
        lost, twice = rng.choice((0.0, 0.0, 0.0, 0.1, 0.4)), rng.choice((0.0, 0.0, 0.2))
        delay_s, jitter_s = _delay(rng, longest_s), rng.choice((0.0, 0.5, 5.0))
        some = set(nodes) if rng.random() < 0.8 else set(rng.sample(list(nodes), len(nodes) // 2))
        for batch in _batches(rng, [event for event in events if event.node in some]):
            for _ in range(2 if rng.random() < twice else 1):
                later_s = delay_s + rng.uniform(0, jitter_s)
                later_s = min(later_s, AGELESS_S) if sender in AGELESS else later_s
                if rng.random() >= lost:
                    _add(sent, batch[-1].at + later_s, sender(rng, batch, nodes), batch)
    if rng.random() < 0.5:  # by a reader that knows something else of the lines, where there is one
        again = rng.choice([one for one in REREADERS if one not in chosen] or REREADERS)
        for node in {event.node: None for event in events if event.xid}:
            batch = [event for event in events if event.node == node]
            _add(sent, batch[-1].at + rng.uniform(1, longest_s), again(rng, batch, nodes), batch)
    return sent


def _delay(rng: random.Random, longest_s: float) -> float:
    if rng.random() < 0.1:
        return rng.uniform(300, longest_s) if longest_s > 300 else longest_s
    return rng.choice((0.0, rng.uniform(0.05, 2), rng.uniform(1, 15), rng.uniform(10, 120)))


def _batches(rng: random.Random, events: list[Event]) -> Iterator[list[Event]]:
    """Events of one node that lie close together, in one row; sometimes in disorder."""
    batch: list[Event] = []
    for event in sorted(events):
        if batch and (event.node != batch[0].node or event.at - batch[-1].at > 1):
            yield batch
            batch = []
        batch.append(event)
    if batch:
        yield batch


def _add(sent: Sent, at: float, rows: Iterator[Row], batch: list[Event]) -> None:
    for row in rows:
        sent.rows.append((at, row))
        if row["route"].startswith(KERNEL_ROUTES) and any(event.sure for event in batch):
            sent.sure.append((at, batch[0].node))
