"""Loads `rules/signals.yaml`: which signals exist, and how they arrive. Its format: docs/signals.md."""

import re
from typing import Any

import msgspec

from healer.model import Alias, Catalogue, Combine, Scope, Signal, SignalKind
from healer.rulefiles import Source, did_you_mean

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
)
#: NVLinks of one GPU that a `{link}` in an alias stands for: 18 on Hopper and Blackwell.
LINKS = 18
#: Where signals live; the other scopes are for rules.
_SCOPES = (Scope.gpu, Scope.node, Scope.link)
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


def read_catalogue(source: Source | None) -> Catalogue:
    """The catalogue of a file; what is wrong goes to the source's problems. An empty one without a file."""
    signals: dict[str, Signal] = {}
    arriving: dict[str, tuple[str, float]] = {}
    told: dict[tuple[Any, ...], str] = {}
    for index, item in enumerate(source.items("signals") if source else []):
        entry = source.convert((index,), item, _Entry) if source else None
        if entry is None or source is None:
            continue
        _check(source, index, entry)
        if entry.name in signals:
            source.problem((index, "name"), f"the signal {entry.name} stands here twice")
        aliases = tuple(Alias(name=one) if isinstance(one, str) else one for one in entry.aliases)
        own = () if entry.derived else (Alias(name=entry.name),)
        for number, alias in enumerate((*own, *aliases)):
            # An NVLink's number tells a link from its GPU, so one name may serve both.
            key = (alias.name, tuple(sorted(alias.labels.items())), entry.scope is Scope.link)
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
        wrong("scope", f"a signal lives on a gpu, node or link, not on a {entry.scope}")
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
        if not isinstance(one, str) and one.scale == 0:
            wrong("aliases", "a scale of 0 makes every value 0", number=number)
