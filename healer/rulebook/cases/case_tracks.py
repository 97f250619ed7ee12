"""How a series of a case goes over time, in one short line."""

import re
from collections.abc import Sequence
from functools import partial
from typing import Any

from healer.detection.language.parse import duration_s
from healer.model import Signal
from healer.rulebook.source import did_you_mean

_PIECE = re.compile(
    r"(?P<value>.*?)\s*(?:(?P<slope>[+-]\s*[\d.]+(?:e[+-]?\d+)?)/(?P<per>[smh]))?(?:(?:^|\s+)x\s+(?P<lasts>\S+))?"
)
_PER_S = {"s": 1.0, "m": 60.0, "h": 3600.0}


class CaseWrong(Exception):
    """A case that cannot be run. `path` leads to what is wrong in it."""

    def __init__(self, path: Sequence[str | int], text: str, hint: str = "") -> None:
        super().__init__(text)
        self.path, self.text, self.hint = tuple(path), text, hint


class Track:
    """How one series goes: `1755 x 2m, 1290`, `0 +31/m`, `- x 1m, 5`, `Completed`. None: nothing is sent."""

    def __init__(self, signal: Signal, text: Any, path: Sequence[str | int]) -> None:
        # Since when, from what, by how much per second.
        self._pieces: list[tuple[float, float | None, float]] = []
        wrong = partial(CaseWrong, path)
        begin_s: float | None = 0.0
        value: float | None = None
        for piece in str(text).split(","):
            match = _PIECE.fullmatch(piece.strip())
            if match is None or not piece.strip():
                raise wrong(f"{piece.strip()!r} is not a value", "as in 1755 x 2m, 1290 or 0 +31/m")
            if begin_s is None:
                raise wrong(f"{piece.strip()!r} comes after a value that lasts for ever", "give it `x 2m`")
            if match["value"]:
                value = _value(signal, match["value"], wrong)
            slope = 0.0
            if match["slope"]:
                slope = float(match["slope"].replace(" ", "")) / _PER_S[match["per"]]
            self._pieces.append((begin_s, value, slope))
            if match["lasts"] is None:
                begin_s = None
                continue
            try:
                lasts_s = duration_s(match["lasts"])
            except ValueError as error:
                raise wrong(str(error)) from None
            value = None if value is None else value + slope * lasts_s
            begin_s += lasts_s

    def __call__(self, passed_s: float) -> float | None:
        begin_s, value, slope = next(one for one in reversed(self._pieces) if one[0] <= passed_s)
        return None if value is None else value + slope * (passed_s - begin_s)


def _value(signal: Signal, text: str, wrong: Any) -> float | None:
    if text == "-":
        return None
    if text in signal.words:
        return float(signal.words[text])
    if signal.bits and all(bit in signal.bits for bit in text.split("|")):
        return float(sum(signal.bits[bit] for bit in text.split("|")))
    try:
        return float(text)
    except ValueError:
        raise wrong(f"{text!r} is no value of {signal.name}", did_you_mean(text, signal.words)) from None
