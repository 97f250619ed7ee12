"""Loads `rules/signals*.yaml`: which signals exist, and how they arrive. Their format: docs/signals.md."""

import re
from typing import Any

import msgspec

from healer.model import OF_DEVICES, Alias, Catalogue, Combine, DeviceKind, Scope, Signal, SignalKind
from healer.rulebook.source import Source, did_you_mean

#: Units a signal may have. Those of time, data and counts can be multiplied and divided in rules.
UNITS = (
    "°C",
    "W",
    "J",
    "V",
    "A",
    "Hz",
    "MHz",
    "%",
    "ratio",
    "count",
    "bool",
    "s",
    "ns",
    "B",
    "B/s",
    "Mb/s",
    "rpm",
    "packets",
    "rows",
    "state",
    "bits",
    "/s",
    "dBm",
    "l/min",
    "kPa",
)
#: NVLinks of one GPU that a `{link}` in an alias stands for: 18 on Hopper and Blackwell.
LINKS = 18
#: Where signals live; the other scopes are for rules.
_SCOPES = (Scope.gpu, Scope.node, Scope.link, Scope.device, Scope.device_part)
_NAME = re.compile(r"[a-z][a-z0-9_]{0,63}")
_ALIAS = re.compile(r"(?:[a-zA-Z_:][a-zA-Z0-9_:{}]{0,199}|nvidia-smi:[a-zA-Z0-9_/]{1,150})")


class _Entry(msgspec.Struct, frozen=True, kw_only=True):
    """One entry of the file: as `Signal`, with plain words allowed as aliases."""

    name: str
    unit: str
    kind: SignalKind
    scope: Scope
    text: str
    source: str
    aliases: tuple[str | Alias, ...] = ()
    words: dict[str, int] = {}
    bits: dict[str, int] = {}
    stale_s: float = 90.0
    derived: bool = False
    combine: Combine = Combine.last
    device: DeviceKind | None = None


def read_catalogue(*sources: Source | None) -> Catalogue:
    """The catalogue of one or more files, empty without any; what is wrong goes to their problems."""
    signals: dict[str, Signal] = {}
    arriving: dict[str, tuple[str, float]] = {}
    told: dict[tuple[Any, ...], str] = {}
    entries = [(source, *one) for source in sources if source for one in enumerate(source.items("signals"))]
    for source, index, item in entries:
        entry = source.convert((index,), item, _Entry)
        if entry is None:
            continue
        _check(source, index, entry)
        if entry.name in signals:
            source.problem((index, "name"), f"the signal {entry.name} stands here twice")
        aliases = tuple(Alias(name=one) if isinstance(one, str) else one for one in entry.aliases)
        own = () if entry.derived else (Alias(name=entry.name),)
        for number, alias in enumerate((*own, *aliases)):
            # An NVLink's number or a device's name tells whose it is: so one name may serve several.
            whose = entry.scope if entry.scope in (Scope.link, *OF_DEVICES) else None
            key = (alias.name, tuple(sorted(alias.labels.items())), whose)
            place = (index, "aliases", number - len(own)) if number >= len(own) else (index, "name")
            if key in told:
                source.problem(place, f"{alias.name} is a name of {told[key]} already")
                continue
            told[key] = entry.name
            if not alias.labels and "{" not in alias.name:
                arriving.setdefault(alias.name, (entry.name, alias.scale))
        signals[entry.name] = msgspec.convert(msgspec.structs.asdict(entry) | {"aliases": aliases}, Signal)
    return Catalogue(signals=signals, arriving=arriving)


def _check(source: Source, index: int, entry: _Entry) -> None:
    def wrong(field: str, text: str, hint: str = "", number: int | None = None) -> None:
        source.problem((index, field) if number is None else (index, field, number), f"{field}: {text}", hint)

    if not _NAME.fullmatch(entry.name):
        wrong("name", f"{entry.name!r} has to be small letters, digits and _, at most 64")
    if entry.unit not in UNITS:
        hint = did_you_mean(entry.unit, UNITS) or f"one of {' '.join(UNITS)}"
        wrong("unit", f"{entry.unit!r} is no unit that healer knows", hint)
    if entry.scope not in _SCOPES:
        text = f"a signal lives on a gpu, node, link, device or device_part, not on a {entry.scope}"
        wrong("scope", text)
    if (entry.scope in OF_DEVICES) is not (entry.device is not None):
        kinds = ", ".join(DeviceKind)
        wrong("device", "a signal of a device, and only that, says which kind it is of", f"one of {kinds}")
    if (entry.kind is SignalKind.bits) != bool(entry.bits):
        wrong("kind", "a bit mask, and only a bit mask, has bits", "give bits: {name: value}")
    if entry.words and entry.kind is not SignalKind.enum:
        wrong("words", "only an enum has words")
    for word, bit in entry.bits.items():
        if bit <= 0 or bit & (bit - 1):
            wrong("bits", f"{word} is {bit}, not one bit")
    if entry.stale_s <= 0:
        wrong("stale_s", "has to be more than 0")
    if entry.derived and entry.aliases:
        wrong("aliases", "a derived signal never arrives")
    for number, one in enumerate(entry.aliases):
        name = one if isinstance(one, str) else one.name
        if not _ALIAS.fullmatch(name) or ("{" in name and name.count("{link}") != name.count("{")):
            wrong("aliases", f"{name!r} is no name of a series", number=number)
        if "{link}" in name and entry.scope is not Scope.link:
            wrong("aliases", f"{name} speaks of links, and the signal does not", number=number)
        if not isinstance(one, str) and one.part and entry.scope is not Scope.device_part:
            wrong("aliases", f"{name} names a part, and the signal is of a {entry.scope}", number=number)
        if not isinstance(one, str) and one.scale == 0:
            wrong("aliases", "a scale of 0 makes every value 0", number=number)
