"""What may be measured: the catalogue of signals, and what a series is about."""

from datetime import datetime
from enum import StrEnum
from typing import Any

import msgspec


class SignalKind(StrEnum):
    """How values of a signal are read. A counter only grows; when it falls it was reset."""

    gauge = "gauge"
    counter = "counter"
    enum = "enum"
    bits = "bits"


class Scope(StrEnum):
    """What a rule speaks of. Signals themselves live on the first three and the last two.

    A device is what is no node: a switch, a storage server, a PDU. Its parts are ports, outlets, targets.
    """

    gpu = "gpu"
    node = "node"
    link = "link"
    job = "job"
    switch = "switch"
    rack = "rack"
    fabric = "fabric"
    device = "device"
    device_part = "device_part"


#: Of these no series names a node.
OF_DEVICES = frozenset({Scope.device, Scope.device_part})


class DeviceKind(StrEnum):
    """What kind of device a signal is about."""

    switch = "switch"
    storage = "storage"
    power = "power"
    cooling = "cooling"
    rack = "rack"


class Combine(StrEnum):
    """What several series of one node and one moment make where the signal is one number."""

    last = "last"
    sum = "sum"
    max = "max"
    min = "min"


class Alias(msgspec.Struct, frozen=True, kw_only=True):
    """A name under which a signal arrives; `scale` makes its unit ours (value × scale).

    `{link}` in the name stands for each NVLink number. `labels`: only series with these labels (globs) are
    meant, as in `node_systemd_unit_state`, whose name alone says little. `part`: the label that names the
    part of a device, where it is none of those that are looked at anyway; `a/b`: both together.
    """

    name: str
    scale: float = 1.0
    labels: dict[str, str] = {}
    part: str = ""


class Signal(msgspec.Struct, frozen=True, kw_only=True):
    """One signal that rules may use.

    `name` is ours (unit last), `unit` one of `healer.detection.language.units`. `aliases` are the names of
    exporters; those of nvidia-smi's XML begin with `nvidia-smi:`. `words` are an enum's values by their
    word, `bits` a bit mask's by name. A value older than `stale_s` is unknown. `derived`: computed by healer
    itself (from Slurm's picture), never taken from the wire. `combine`: see `Combine`. `device`: the kind of
    device that it is about, for signals of devices and their parts alone.
    """

    name: str
    unit: str
    kind: SignalKind
    scope: Scope
    text: str
    source: str
    aliases: tuple[Alias, ...] = ()
    words: dict[str, int] = {}
    bits: dict[str, int] = {}
    stale_s: float = 90.0
    derived: bool = False
    combine: Combine = Combine.last
    device: DeviceKind | None = None


class Catalogue(msgspec.Struct, frozen=True, kw_only=True):
    """All signals by name, and the names that may arrive (the signal's own among them).

    Aliases that need labels, or hold `{link}`, are left out of `arriving`: the name alone does not tell.
    """

    signals: dict[str, Signal] = {}
    #: Arriving name -> (signal's name, scale).
    arriving: dict[str, tuple[str, float]] = {}


class Part(msgspec.Struct, frozen=True, omit_defaults=True):
    """Which part of its node or device a series is about. All None: that itself. `port` as in `mlx5_0/1`;
    of a device it is the name of any part."""

    gpu: int | None = None
    link: int | None = None
    port: str | None = None


class Column(msgspec.Struct, frozen=True):
    """One series of a node, whatever the node: a signal of the catalogue on one part."""

    signal: str
    part: Part = Part()


class UnknownSeries(msgspec.Struct, frozen=True, kw_only=True):
    """A name that arrives and that the catalogue does not have, or a series that names no node we know."""

    cluster: str
    name: str
    why: str
    count: int
    first_seen: datetime
    last_seen: datetime
    example: dict[str, Any] = {}
