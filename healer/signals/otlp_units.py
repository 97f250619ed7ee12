"""Units of OTLP (UCUM, and words that exporters use instead) -> those of the catalogue."""

import re
from typing import NamedTuple

from healer.signals.values import is_blank

#: What a value is of, and how it gets there: value * factor + offset.
_Base = tuple[str, float, float]

_PREFIXES = {
    "": 1.0, "n": 1e-9, "u": 1e-6, "m": 1e-3, "k": 1e3, "K": 1e3, "M": 1e6, "G": 1e9, "T": 1e12,
    "Ki": 2.0**10, "Mi": 2.0**20, "Gi": 2.0**30, "Ti": 2.0**40,
}  # fmt: skip
#: Unit -> (what it measures in, how many of that).
_PREFIXED = {
    "W": ("W", 1.0), "J": ("J", 1.0), "W.h": ("J", 3600.0), "V": ("V", 1.0), "A": ("A", 1.0),
    "Hz": ("Hz", 1.0), "s": ("s", 1.0), "By": ("B", 1.0), "B": ("B", 1.0), "bit": ("B", 0.125),
    "Pa": ("Pa", 1.0), "bar": ("Pa", 1e5),
}  # fmt: skip
_PLAIN: dict[str, _Base] = {
    "Cel": ("Cel", 1.0, 0.0), "K": ("Cel", 1.0, -273.15), "[degF]": ("Cel", 5 / 9, -160 / 9),
    "%": ("ratio", 0.01, 0.0), "ratio": ("ratio", 1.0, 0.0), "rpm": ("rpm", 1.0, 0.0),
    "dBm": ("dBm", 1.0, 0.0), "l/min": ("l/min", 1.0, 0.0), "L/min": ("l/min", 1.0, 0.0),
    "/s": ("Hz", 1.0, 0.0), "min": ("s", 60.0, 0.0), "h": ("s", 3600.0, 0.0), "d": ("s", 86_400.0, 0.0),
}  # fmt: skip
_WORDS = {
    "celsius": "Cel", "c": "Cel", "°c": "Cel", "degc": "Cel", "kelvin": "K", "watt": "W", "watts": "W",
    "milliwatts": "mW", "joules": "J", "millijoules": "mJ", "volts": "V", "millivolts": "mV", "amperes": "A",
    "hertz": "Hz", "megahertz": "MHz", "seconds": "s", "milliseconds": "ms", "microseconds": "us",
    "nanoseconds": "ns", "minutes": "min", "hours": "h", "days": "d", "bytes": "By", "kibibytes": "KiBy",
    "mebibytes": "MiBy", "gibibytes": "GiBy", "bits": "bit", "percent": "%", "db[mw]": "dBm", "1/s": "/s",
    "mhz": "MHz", "mib": "MiBy", "kib": "KiBy", "gib": "GiBy", "{revolutions}/min": "rpm",
}  # fmt: skip
_NOTE = re.compile(r"\{[^}]*\}")
_PARTS = re.compile(rf"({'|'.join(_PREFIXES)})({'|'.join(map(re.escape, _PREFIXED))})")
_PER = {"s": 1.0, "min": 60.0, "h": 3600.0}


def without_notes(unit: str) -> str:
    """Without what UCUM lets a sender note in braces, such as `{packet}`."""
    return _NOTE.sub("", unit)


class Conversion(NamedTuple):
    """value * factor + offset."""

    factor: float = 1.0
    offset: float = 0.0

    def of(self, value: float) -> float:
        """A blank is one in every unit."""
        return value if is_blank(value) else value * self.factor + self.offset


def conversion(given: str, ours: str, scale: float = 1.0) -> Conversion | None:
    """From a unit as sent to that of a name, which `scale` turns into `ours`, one of the catalogue; None if
    there is none. What has no unit, or says only that it is a number, is in the unit of the name; so are
    counts, whatever is counted."""
    target = _base(ours)
    if target is None or without_notes(given) in ("", "1"):
        return Conversion()
    source = _base(given)
    if source is None or source[0] != target[0]:
        return None
    wanted = target[1] * scale
    return Conversion(source[1] / wanted, (source[2] - target[2]) / wanted)


def _base(unit: str) -> _Base | None:
    unit = without_notes(_WORDS.get(unit.lower(), unit))
    if unit in _PLAIN:
        return _PLAIN[unit]
    above, slash, below = unit.partition("/")
    match = _PARTS.fullmatch(above)
    if match is None or (slash and below not in _PER):
        return None
    name, factor = _PREFIXED[match[2]]
    factor *= _PREFIXES[match[1]]
    return (f"{name}/s", factor / _PER[below], 0.0) if slash else (name, factor, 0.0)
