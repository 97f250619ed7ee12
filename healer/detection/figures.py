"""Figures as people read them: a signal's value with its unit, and the sentence of a finding."""

import math
import re
from datetime import datetime

import numpy as np

from healer.detection.language.meaning import LEAST_PEERS
from healer.model import Catalogue, DetectionRule, Scope, Signal, SignalKind
from healer.observations.groups import peer_median
from healer.observations.telemetry import Telemetry

#: Counters are told by their increase over this time.
INCREASE_S = 300.0
#: A whole has parts; so many are looked through for a sentence.
_BINARY = ("B", "KiB", "MiB", "GiB", "TiB")
_TAIL = re.compile(r"(?:,? since |; |, in the GPU| of the GPU's life|, all ).*$")


def label(signal: Signal) -> str:
    """What a signal is called in a sentence, from its text: `port: symbols received wrongly; PAM4 …`."""
    return _TAIL.sub("", signal.text.rpartition(": ")[2]) or signal.name


def told(signal: Signal, value: float | None) -> str:
    """`1,290 MHz`, `98 %`, `Completed`, `hw_slowdown`; `unknown` for None."""
    if value is None or not math.isfinite(value):
        return "unknown"
    if signal.kind is SignalKind.bits:
        names = [name for name, bit in signal.bits.items() if int(value) & bit]
        return ", ".join(names) or "none"
    if signal.kind is SignalKind.enum and signal.words:
        return next((word for word, code in signal.words.items() if code == value), f"{value:g}")
    if signal.unit == "bool":
        return "yes" if value else "no"
    return with_unit(value, signal.unit)


def with_unit(value: float, unit: str) -> str:
    if unit in ("B", "B/s"):
        power = min(int(math.log(abs(value), 1024)), 4) if abs(value) >= 1 else 0
        return f"{number(value / 1024**power)} {_BINARY[power]}{unit[1:]}"
    if unit == "ratio":
        return f"{number(100 * value)} %" if abs(value) >= 0.001 or value == 0 else f"{value:.1e}"
    if unit.startswith("count"):
        return f"{number(value)}{unit[5:]}"
    return number(value) if unit in ("state", "bits", "bool", "a plain number") else f"{number(value)} {unit}"


def number(value: float) -> str:
    """Three figures are enough, but no digit of a larger whole number is lost."""
    if value == round(value) or abs(value) >= 100:
        return f"{value:,.0f}"
    return f"{value:.3g}" if abs(value) >= 0.001 else f"{value:.1e}"


def duration(seconds: float) -> str:
    if seconds < 90:
        return f"{seconds:.0f} s"
    return f"{seconds / 60:.0f} min" if seconds < 5400 else f"{seconds / 3600:.1f} h"


class Teller:
    """Sentences of one tick."""

    def __init__(self, telemetry: Telemetry, catalogue: Catalogue, now: datetime) -> None:
        self.telemetry, self.signals, self.now = telemetry, catalogue.signals, now
        self._medians: dict[str, np.ndarray] = {}

    def sentence(
        self,
        rule: DetectionRule,
        signal: Signal,
        row: int,
        limit: float | None,
        held_s: float,
        *,
        peers: bool,
    ) -> str:
        """`GPU clock below its peers: clock of the SMs 1,290 MHz (peers 1,755 MHz, limit 1,492 MHz), …`"""
        beside = []
        if peers and (middle := self._peers(rule, signal, row)) is not None:
            beside.append(f"peers {told(signal, middle)}")
        if limit is not None and signal.kind is SignalKind.gauge and signal.unit != "bool":
            beside.append(f"limit {told(signal, limit)}")
        figures = [self.figure(rule.scope, signal, row) + (f" ({', '.join(beside)})" if beside else "")]
        figures += [self.figure(rule.scope, self.signals[name], row) for name in rule.evidence]
        lasted = f"; for {duration(held_s)}" if held_s >= 5 else ""
        return f"{rule.title}: {', '.join(figures)}{lasted}"

    def figure(self, scope: Scope, signal: Signal, row: int) -> str:
        """One signal of a row: its own, its whole's, or the range over its parts."""
        counter = signal.kind is SignalKind.counter
        if counter:
            values, _ = self.telemetry.increase(signal.name, INCREASE_S, self.now)
        else:
            values = self.telemetry.value(signal.name, self.now)
        found = values[self._rows(scope, signal, row)]
        known = found[~np.isnan(found)]
        if not len(known):
            return f"{label(signal)} unknown"
        low, high = float(known.min()), float(known.max())
        text = f"{label(signal)} {'+' if counter else ''}{told(signal, high)}"
        if low != high:
            text = f"{label(signal)} {told(signal, low)} to {told(signal, high)}"
        return f"{text} in {duration(INCREASE_S)}" if counter else text

    def _rows(self, scope: Scope, signal: Signal, row: int) -> np.ndarray:
        """Rows of the signal's axis that belong to a row of `scope`."""
        return rows_of(self.telemetry, scope, signal.scope, row)

    def _peers(self, rule: DetectionRule, signal: Signal, row: int) -> float | None:
        if signal.scope is not rule.scope or signal.kind is not SignalKind.gauge:
            return None
        if signal.name not in self._medians:
            values = self.telemetry.value(signal.name, self.now)
            groups = self.telemetry.groups(signal.scope)
            self._medians[signal.name] = peer_median(values, groups, LEAST_PEERS)
        value = float(self._medians[signal.name][row])
        return None if math.isnan(value) else value


def rows_of(telemetry: Telemetry, scope: Scope, other: Scope, row: int) -> np.ndarray:
    """Rows of the axis `other` that a row of `scope` is part of, or that are parts of it."""
    if scope is other:
        return np.array([row])
    up = int(telemetry.axis(scope).parent(other)[row])
    if up >= 0:
        return np.array([up])
    return np.flatnonzero(telemetry.axis(other).parent(scope) == row)
