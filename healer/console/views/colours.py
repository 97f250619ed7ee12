"""Colours of the fleet map's cells. Unknown values have no colour, neither good nor bad."""

import bisect
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from enum import StrEnum
from typing import Any

import msgspec

from healer.console import words
from healer.console.views.fleet_view import KINDS, VERDICT_RANK, NodeRow
from healer.detection.lemons import LIMIT
from healer.model import NodeStatus
from healer.ports.answers import NodeGauges
from healer.text import joined, say

#: The code of a cell, or of one GPU in it, whose value is unknown; else it is the number of its bin.
UNKNOWN = "-"


class Colour(StrEnum):
    service = "service"
    verdict = "verdict"
    slurm = "slurm"
    temperature = "temperature"
    throttle = "throttle"
    steps = "steps"
    lemon = "lemon"


COLOUR_WORDS = {colour: say(f"console.colour_{colour}") for colour in Colour}

#: Those that change without an event: a page reloads them by itself.
MEASURED = frozenset({Colour.temperature, Colour.throttle, Colour.steps, Colour.lemon})


class Bin(msgspec.Struct, frozen=True):
    """`paint` is a colour of console.css; the letter is shown in the cell where there is room."""

    paint: str
    text: str
    letter: str = ""


class Measurements(msgspec.Struct, frozen=True, kw_only=True):
    """What was measured, by node; a missing node reported nothing."""

    gauges: Mapping[str, NodeGauges] = {}
    paces: Mapping[str, float] = {}
    lemons: Mapping[str, float] = {}
    #: Clock event reasons: name -> bit.
    reasons: Mapping[str, int] = {}


#: Lower edges of all bins but the first.
_TEMPERATURE_C = (50.0, 65.0, 75.0, 83.0, 90.0)
_STEPS = (0.97, 1.03, 1.08, 1.20)
_LEMON = (0.1, LIMIT / 2, LIMIT)

BINS: dict[Colour, tuple[Bin, ...]] = {
    Colour.service: (),
    Colour.verdict: (
        Bin("c-busy", say("console.colours_nothing_known_against")),
        Bin("d-5", "watch", "w"),
        Bin("d-7", "suspect", "s"),
        Bin("c-bad", "isolate", "i"),
    ),
    Colour.slurm: (
        Bin("c-idle", "idle"),
        Bin("c-busy", "busy"),
        Bin("c-planned", say("console.colours_planned_maintenance_powered_down"), "M"),
        Bin("d-5", say("console.colours_restarting"), "R"),
        Bin("c-person", say("console.colours_draining_drained"), "D"),
        Bin("c-bad", say("console.colours_down_silent_invalid"), "X"),
    ),
    Colour.temperature: (
        Bin("d-2", say("console.colours_below_50_c")),
        Bin("d-3", say("console.colours_50_65_c")),
        Bin("d-5", say("console.colours_65_75_c")),
        Bin("d-6", say("console.colours_75_83_c")),
        Bin("d-7", say("console.colours_83_90_c")),
        Bin("d-8", say("console.colours_90_c_more")),
    ),
    Colour.throttle: (
        Bin("c-busy", say("console.colours_not_held_down")),
        Bin("d-5", say("console.colours_by_limit_or_setting")),
        Bin("d-7", say("console.colours_by_hardware")),
        Bin("d-8", say("console.colours_by_heat")),
    ),
    Colour.steps: (
        Bin("d-2", say("console.colours_3_faster_more")),
        Bin("c-busy", say("console.colours_as_peers")),
        Bin("d-5", say("console.colours_3_8_slower")),
        Bin("d-7", say("console.colours_8_20_slower")),
        Bin("d-8", say("console.colours_20_slower_more")),
    ),
    Colour.lemon: (
        Bin("c-idle", say("console.colours_no_points_kept")),
        Bin("d-5", say("console.colours_below_points", limit=LIMIT / 2)),
        Bin("d-7", say("console.colours_points", limit=LIMIT / 2, limit2=LIMIT)),
        Bin("d-8", say("console.colours_points_more_lemon", limit=LIMIT)),
    ),
}

_SLURM = {
    NodeStatus.idle: 0, NodeStatus.planned: 0, NodeStatus.busy: 1, NodeStatus.maintenance: 2,
    NodeStatus.power_saving: 2, NodeStatus.powering_up: 3, NodeStatus.rebooting: 3,
    NodeStatus.reboot_pending: 3, NodeStatus.draining: 4, NodeStatus.drained: 4, NodeStatus.down: 5,
    NodeStatus.invalid: 5, NodeStatus.silent: 5, NodeStatus.failing: 5,
}  # fmt: skip
_HEAT, _HARDWARE, _LIMIT = ("thermal",), ("hw_",), ("power_cap", "setting", "sync_boost")


def shade(colour: Colour, row: NodeRow, measured: Measurements) -> str:
    """The code of the cell, or one for each of its GPUs; empty if its kind colours it."""
    gauges = measured.gauges.get(row.name)
    match colour:
        case Colour.service:
            return ""
        case Colour.verdict:
            return str(VERDICT_RANK[row.verdict])
        case Colour.slurm:
            place = _SLURM.get(row.slurm.status)
            return UNKNOWN if place is None else str(place)
        case Colour.temperature:
            values = gauges.temperature_c if gauges else ()
            return _per_gpu(values, row.slurm.gpus, lambda value: bisect.bisect(_TEMPERATURE_C, value))
        case Colour.throttle:
            values = gauges.reasons if gauges else ()
            return _per_gpu(values, row.slurm.gpus, lambda value: _throttled(int(value), measured.reasons))
        case Colour.steps:
            pace = measured.paces.get(row.name)
            return UNKNOWN if pace is None else str(bisect.bisect(_STEPS, pace))
        case Colour.lemon:
            score = measured.lemons.get(row.name)
            return UNKNOWN if score is None else str(bisect.bisect(_LEMON, score))


def _per_gpu(values: Sequence[float | None], count: int, place: Callable[[float], int]) -> str:
    padded = [*values, *[None] * (count - len(values))]
    return "".join(UNKNOWN if value is None else str(place(value)) for value in padded) or UNKNOWN


def _throttled(bits: int, names: Mapping[str, int]) -> int:
    """The bin of a throttled clock, by the worst of its reasons."""
    found = [name for name, bit in names.items() if bits & bit]
    for place, parts in ((3, _HEAT), (2, _HARDWARE), (1, _LIMIT)):
        if any(part in name for name in found for part in parts):
            return place
    return 0


def worst(code: str) -> int:
    """The highest bin in a code; -1: all unknown."""
    return max((int(place) for place in code if place != UNKNOWN), default=-1)


def describe(colour: Colour, row: NodeRow, measured: Measurements) -> str:
    """The same in words, for the table."""
    code = shade(colour, row, measured)
    if not code:
        return ""
    place = worst(code)
    if place < 0:
        return "unknown"
    gauges = measured.gauges.get(row.name)
    if colour is Colour.temperature and gauges:
        value, gpu = max((value, gpu) for gpu, value in enumerate(gauges.temperature_c) if value is not None)
        return say("console.colours_gpu", figure=words.figure(value, "°C"), gpu=gpu, silent=_silent(code))
    if colour is Colour.steps:
        return say("console.colours_peers", paces=measured.paces[row.name])
    if colour is Colour.lemon:
        score = measured.lemons.get(row.name)
        return say("console.colours_lemon", n=words.number(score)) if score else say("console.none")
    text = BINS[colour][place].text
    if colour is Colour.throttle:
        held = [str(gpu) for gpu, digit in enumerate(code) if digit == str(place)]
        gpus = say("console.colours_gpus", held=", ".join(held)) if place else ""
        return joined([text, gpus, _silent(code)], "nothing")
    return text


def _silent(code: str) -> str:
    silent = code.count(UNKNOWN)
    return say("console.colours_unknown", silent=silent) if silent else ""


def counts(colour: Colour, worst_of: Iterable[int]) -> list[tuple[Bin, int]]:
    """The legend: each bin, and how many nodes have it as their worst; the unknown ones last."""
    found = Counter(worst_of)
    legend = [(bin_, found[place]) for place, bin_ in enumerate(BINS[colour])]
    return [*legend, (Bin("unknown", "unknown"), found[-1])] if legend else []


def bins(colour: Colour, translate: Callable[[str], str]) -> list[list[str]]:
    """For the canvas: colour, words and letter of each bin. `translate`: to the page's language."""
    return [[bin_.paint, translate(bin_.text), bin_.letter] for bin_ in BINS[colour]]


def kinds(translate: Callable[[str], str]) -> dict[str, list[str]]:
    """The same of each kind of node, for cells without a code; then its English words, for the search."""
    return {
        kind: [signs.paint, translate(signs.words), signs.letter, str(signs.words)]
        for kind, signs in KINDS.items()
    }


def cells(
    rows: Sequence[NodeRow], colour: Colour, measured: Measurements
) -> tuple[list[list[str]], list[list[Any]]]:
    """The places, each once as `[pod, row, rack, leaf]`, and for each node its cell.

    A cell: `[name, place, kind, verdict, state, GPUs, bad GPUs, worst severity or "", code of its colour]`.
    """
    places: dict[tuple[str, ...], int] = {}
    found: list[list[Any]] = []
    for row in rows:
        node, severity = row.slurm, row.worst
        place = places.setdefault((node.pod, node.row, node.rack, node.switch), len(places))
        found.append(
            [
                row.name, place, row.kind.value, row.verdict.value, row.state, node.gpus, list(row.bad_gpus),
                severity.value if severity else "", shade(colour, row, measured),
            ]
        )  # fmt: skip
    return [list(place) for place in places], found
