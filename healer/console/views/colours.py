"""What the cells of the fleet map are coloured by. What nobody told has no colour, neither good nor bad."""

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

#: The code of a cell, or of one GPU in it, of which nothing is known; else the number of its bin.
UNKNOWN = "-"


class Colour(StrEnum):
    service = "service"
    verdict = "verdict"
    slurm = "slurm"
    temperature = "temperature"
    throttle = "throttle"
    steps = "steps"
    lemon = "lemon"


COLOUR_WORDS = {
    Colour.service: "Service",
    Colour.verdict: "Verdict",
    Colour.slurm: "Slurm state",
    Colour.temperature: "Temperature",
    Colour.throttle: "Throttling",
    Colour.steps: "Step time",
    Colour.lemon: "Lemon score",
}

#: Those that change without an event: a page looks again by itself.
MEASURED = frozenset({Colour.temperature, Colour.throttle, Colour.steps, Colour.lemon})


class Bin(msgspec.Struct, frozen=True):
    """`paint` is a colour of console.css; the letter stands in the cell where there is room."""

    paint: str
    text: str
    letter: str = ""


class Told(msgspec.Struct, frozen=True, kw_only=True):
    """What was measured, by node; a node that is missing told nothing."""

    gauges: Mapping[str, NodeGauges] = {}
    paces: Mapping[str, float] = {}
    lemons: Mapping[str, float] = {}
    #: Name of each reason of a lower clock, and its bit.
    reasons: Mapping[str, int] = {}


#: Lower edges of all bins but the first.
_TEMPERATURE_C = (50.0, 65.0, 75.0, 83.0, 90.0)
_STEPS = (0.97, 1.03, 1.08, 1.20)
_LEMON = (0.1, LIMIT / 2, LIMIT)

BINS: dict[Colour, tuple[Bin, ...]] = {
    Colour.service: (),
    Colour.verdict: (
        Bin("c-busy", "nothing known against it"),
        Bin("d-5", "watch", "w"),
        Bin("d-7", "suspect", "s"),
        Bin("c-bad", "isolate", "i"),
    ),
    Colour.slurm: (
        Bin("c-idle", "idle"),
        Bin("c-busy", "busy"),
        Bin("c-planned", "planned: maintenance, powered down", "M"),
        Bin("d-5", "starts anew", "R"),
        Bin("c-person", "draining, drained", "D"),
        Bin("c-bad", "down, silent, invalid", "X"),
    ),
    Colour.temperature: (
        Bin("d-2", "below 50 °C"),
        Bin("d-3", "50 to 65 °C"),
        Bin("d-5", "65 to 75 °C"),
        Bin("d-6", "75 to 83 °C"),
        Bin("d-7", "83 to 90 °C"),
        Bin("d-8", "90 °C and more"),
    ),
    Colour.throttle: (
        Bin("c-busy", "not held down"),
        Bin("d-5", "by a limit or a setting"),
        Bin("d-7", "by the hardware"),
        Bin("d-8", "by heat"),
    ),
    Colour.steps: (
        Bin("d-2", "3 % faster and more"),
        Bin("c-busy", "as its peers"),
        Bin("d-5", "3 to 8 % slower"),
        Bin("d-7", "8 to 20 % slower"),
        Bin("d-8", "20 % slower and more"),
    ),
    Colour.lemon: (
        Bin("c-idle", "no points kept"),
        Bin("d-5", f"below {LIMIT / 2:g} points"),
        Bin("d-7", f"{LIMIT / 2:g} to {LIMIT:g} points"),
        Bin("d-8", f"{LIMIT:g} points and more: a lemon"),
    ),
}

_SLURM = {
    NodeStatus.idle: 0, NodeStatus.planned: 0, NodeStatus.busy: 1, NodeStatus.maintenance: 2,
    NodeStatus.power_saving: 2, NodeStatus.powering_up: 3, NodeStatus.rebooting: 3,
    NodeStatus.reboot_pending: 3, NodeStatus.draining: 4, NodeStatus.drained: 4, NodeStatus.down: 5,
    NodeStatus.invalid: 5, NodeStatus.silent: 5, NodeStatus.failing: 5,
}  # fmt: skip
_HEAT, _HARDWARE, _LIMIT = ("thermal",), ("hw_",), ("power_cap", "setting", "sync_boost")


def shade(colour: Colour, row: NodeRow, told: Told) -> str:
    """The code of the cell, or one for each of its GPUs; empty where its kind colours it."""
    gauges = told.gauges.get(row.name)
    match colour:
        case Colour.service:
            return ""
        case Colour.verdict:
            return str(VERDICT_RANK[row.verdict])
        case Colour.slurm:
            place = _SLURM.get(row.slurm.status)
            return UNKNOWN if place is None else str(place)
        case Colour.temperature:
            known = gauges.temperature_c if gauges else ()
            return _per_gpu(known, row.slurm.gpus, lambda value: bisect.bisect(_TEMPERATURE_C, value))
        case Colour.throttle:
            known = gauges.reasons if gauges else ()
            return _per_gpu(known, row.slurm.gpus, lambda value: _held(int(value), told.reasons))
        case Colour.steps:
            pace = told.paces.get(row.name)
            return UNKNOWN if pace is None else str(bisect.bisect(_STEPS, pace))
        case Colour.lemon:
            score = told.lemons.get(row.name)
            return UNKNOWN if score is None else str(bisect.bisect(_LEMON, score))


def _per_gpu(values: Sequence[float | None], count: int, place: Callable[[float], int]) -> str:
    known = [*values, *[None] * (count - len(values))]
    return "".join(UNKNOWN if value is None else str(place(value)) for value in known) or UNKNOWN


def _held(bits: int, names: Mapping[str, int]) -> int:
    """The bin of what holds a clock down, by the worst of its reasons."""
    found = [name for name, bit in names.items() if bits & bit]
    for place, parts in ((3, _HEAT), (2, _HARDWARE), (1, _LIMIT)):
        if any(part in name for name in found for part in parts):
            return place
    return 0


def worst(code: str) -> int:
    """The highest bin in a code; -1: nothing is known."""
    return max((int(one) for one in code if one != UNKNOWN), default=-1)


def says(colour: Colour, row: NodeRow, told: Told) -> str:
    """The same for the table, in words; `unknown` where nobody told."""
    code = shade(colour, row, told)
    if not code:
        return ""
    place = worst(code)
    if place < 0:
        return "unknown"
    gauges = told.gauges.get(row.name)
    if colour is Colour.temperature and gauges:
        value, gpu = max((value, gpu) for gpu, value in enumerate(gauges.temperature_c) if value is not None)
        return f"{words.figure(value, '°C')}, GPU {gpu}{_silent(code)}"
    if colour is Colour.steps:
        return f"{told.paces[row.name]:.2f} of its peers"
    if colour is Colour.lemon:
        score = told.lemons.get(row.name)
        return words.number(score) + " points" if score else "none kept"
    text = BINS[colour][place].text
    if colour is Colour.throttle:
        held = [str(gpu) for gpu, one in enumerate(code) if one == str(place)]
        return text + (f", GPU {', '.join(held)}" if place else "") + _silent(code)
    return text


def _silent(code: str) -> str:
    silent = code.count(UNKNOWN)
    return f", {silent} unknown" if silent else ""


def counts(colour: Colour, worst_of: Iterable[int]) -> list[tuple[Bin, int]]:
    """The legend: each bin, and how many nodes have it as their worst; at the end those that are unknown."""
    found = Counter(worst_of)
    known = [(one, found[place]) for place, one in enumerate(BINS[colour])]
    return [*known, (Bin("unknown", "unknown"), found[-1])] if known else []


def bins(colour: Colour, said: Callable[[str], str]) -> list[list[str]]:
    """For the canvas: colour, words and letter of each bin. `said`: a sentence in the page's language."""
    return [[one.paint, said(one.text), one.letter] for one in BINS[colour]]


def kinds(said: Callable[[str], str]) -> dict[str, list[str]]:
    """The same of each kind of node, for where no code colours it. The last is what a search knows too."""
    return {
        kind: [signs.paint, said(signs.words), signs.letter, signs.words] for kind, signs in KINDS.items()
    }


def cells(rows: Sequence[NodeRow], colour: Colour, told: Told) -> tuple[list[list[str]], list[list[Any]]]:
    """The places, each once as `[pod, row, rack, leaf]`, and for each node its cell.

    A cell: `[name, place, kind, verdict, state, GPUs, bad GPUs, worst severity or "", code of its colour]`.
    """
    places: dict[tuple[str, ...], int] = {}
    found: list[list[Any]] = []
    for row in rows:
        node = row.slurm
        place = places.setdefault(
            (row.slurm.pod, row.slurm.row, row.slurm.rack, row.slurm.switch), len(places)
        )
        worst_one = row.worst
        found.append(
            [
                row.name, place, row.kind.value, row.verdict.value, row.state, node.gpus, list(row.bad_gpus),
                worst_one.value if worst_one else "", shade(colour, row, told),
            ]
        )  # fmt: skip
    return [list(place) for place in places], found
