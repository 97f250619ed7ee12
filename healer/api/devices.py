"""Devices and what they told last: views of `GET /devices`. Pure."""

import math
from collections.abc import Iterable, Mapping
from datetime import datetime

import msgspec

from healer.model import Catalogue, Column, DeviceKind
from healer.model.samples import Report
from healer.ports.measurements import Devices


class DevicePartView(msgspec.Struct, frozen=True, kw_only=True):
    """One port, target, sensor, outlet or directory of a device."""

    part: str
    signals: dict[str, float] = {}


class DeviceView(msgspec.Struct, frozen=True, kw_only=True):
    """One device. `kinds`: of what its signals speak, mostly one. `signals`: name in the catalogue -> newest
    value of the device as a whole; what is older than its signal's `stale_s` is left out. `parts`: how many
    of its parts have a value. `measured_at`: when it told something last, None for over 15 minutes ago."""

    cluster: str
    device: str
    kinds: tuple[DeviceKind, ...] = ()
    measured_at: datetime | None = None
    signals: dict[str, float] = {}
    parts: int = 0


class DeviceDetail(msgspec.Struct, frozen=True, kw_only=True):
    """The same, with the newest values of each part, by its name."""

    cluster: str
    device: str
    kinds: tuple[DeviceKind, ...] = ()
    measured_at: datetime | None = None
    signals: dict[str, float] = {}
    parts: list[DevicePartView] = []


def list_of(cluster: str, found: Devices, catalogue: Catalogue, now: datetime) -> list[DeviceView]:
    """In the order in which they were found."""
    details = (
        detail_of(cluster, name, reports, found.columns, catalogue, now)
        for name, reports in found.reports.items()
    )
    return [
        DeviceView(
            cluster=one.cluster,
            device=one.device,
            kinds=one.kinds,
            measured_at=one.measured_at,
            signals=one.signals,
            parts=len(one.parts),
        )
        for one in details
    ]


def detail_of(
    cluster: str,
    device: str,
    reports: Iterable[Report],
    columns: Mapping[int, Column],
    catalogue: Catalogue,
    now: datetime,
) -> DeviceDetail:
    """Of reports in any order, of which the newest word on each signal counts."""
    parts: dict[str, dict[str, float]] = {}
    kinds: set[DeviceKind] = set()
    measured_at: datetime | None = None
    for report in sorted(reports, key=lambda one: one.at):
        age_s = (now - report.at).total_seconds()
        for number, value in zip(report.columns.tolist(), report.values.tolist(), strict=True):
            column = columns.get(number)
            signal = catalogue.signals.get(column.signal) if column else None
            if column is None or signal is None or signal.device is None or not math.isfinite(value):
                continue
            measured_at = report.at
            kinds.add(signal.device)
            if age_s <= signal.stale_s:
                parts.setdefault(column.part.port or "", {})[column.signal] = value
    return DeviceDetail(
        cluster=cluster,
        device=device,
        kinds=tuple(sorted(kinds)),
        measured_at=measured_at,
        signals=parts.pop("", {}),
        parts=[DevicePartView(part=name, signals=parts[name]) for name in sorted(parts)],
    )
