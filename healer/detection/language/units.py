"""Units of signals and how they multiply. Nothing is converted: °C and W are never compared, nor % and
ratio."""

from collections.abc import Mapping
from dataclasses import dataclass

from healer.text import say


@dataclass(frozen=True, slots=True)
class Unit:
    """`dims`: (base, exponent), sorted. `plain`: built from numbers and durations only, so it fits every unit
    with the same power of time (`31/1m` fits count/s)."""

    dims: tuple[tuple[str, int], ...] = ()
    plain: bool = False

    def __str__(self) -> str:
        up = [_power(base, exponent) for base, exponent in self.dims if exponent > 0]
        down = [_power(base, -exponent) for base, exponent in self.dims if exponent < 0]
        if not up and not down:
            return "number" if self.plain else "ratio"
        return "·".join(up or ["1"] * bool(down)) + "".join(f"/{part}" for part in down)

    def __mul__(self, other: "Unit") -> "Unit":
        return _joined(self, other, 1)

    def __truediv__(self, other: "Unit") -> "Unit":
        return _joined(self, other, -1)


RATIO = Unit()
PLAIN = Unit(plain=True)
SECONDS = Unit((("s", 1),))
DURATION = Unit((("s", 1),), plain=True)
COUNT = Unit((("count", 1),))

#: Every unit of the catalogue. J is W·s and Hz 1/s, so that energy over time is power.
UNIT_WORDS: Mapping[str, Unit] = {
    "ratio": RATIO,
    "J": Unit((("W", 1), ("s", 1))),
    "Hz": Unit((("s", -1),)),
    "/s": Unit((("s", -1),)),
    "B/s": Unit((("B", 1), ("s", -1))),
    "Mb/s": Unit((("Mb", 1), ("s", -1))),
    **{
        word: Unit(((word, 1),))
        for word in (
            *("°C", "W", "V", "A", "MHz", "%", "count", "bool", "s", "ns", "B"),
            *("rpm", "packets", "rows", "state", "bits", "dBm", "l/min", "kPa"),
        )
    },
}

#: The unit by the last part of a name, for values of `gpu_models.yaml`.
_ENDINGS = {"c": "°C", "w": "W", "mhz": "MHz", "s": "s", "ns": "ns", "pct": "%", "ratio": "ratio", "v": "V"}


def fits(first: Unit, second: Unit) -> bool:
    """Whether the two may be added and compared."""
    for plain, compared in ((first, second), (second, first)):
        if plain.plain and (not plain.dims or _time(plain) == _time(compared)):
            return True
    return first.dims == second.dims


def common_unit(first: Unit, second: Unit) -> Unit:
    """The unit of the sum of two that fit."""
    return second if first.plain else first


def unit_of_name(name: str) -> Unit:
    """`slowdown_temp_c` -> °C, `p2p_bytes_per_s` -> B/s; a name without a known ending is a count."""
    if name.endswith("_bytes_per_s"):
        return UNIT_WORDS["B/s"]
    return UNIT_WORDS[_ENDINGS.get(name.rpartition("_")[2], "count")]


def unit_hint(first: Unit, second: Unit) -> str:
    """How to make two units fit; empty if there is no hint."""
    pair = {str(first), str(second)}
    if pair == {"%", "ratio"}:
        return say("expressions.ratio_times_100")
    if pair == {"s", "ns"}:
        return say("expressions.ns_by_1e9")
    return say("expressions.plain_number")


def _time(unit: Unit) -> int:
    return dict(unit.dims).get("s", 0)


def _joined(first: Unit, second: Unit, sign: int) -> Unit:
    dims = dict(first.dims)
    for base, exponent in second.dims:
        dims[base] = dims.get(base, 0) + sign * exponent
    kept = tuple(sorted((base, exponent) for base, exponent in dims.items() if exponent))
    return Unit(kept, first.plain and second.plain)


def _power(base: str, exponent: int) -> str:
    return base if exponent == 1 else f"{base}^{exponent}"
