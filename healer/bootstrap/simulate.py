"""`healer simulate`: a scenario by name or file, under healer and what it is compared with."""

import sys
from collections.abc import Callable, Iterable, Sequence
from datetime import datetime
from pathlib import Path
from typing import Any, BinaryIO

import structlog

from healer.model import Mode
from healer.rulebook import ruleset
from healer.sim.fleet.scenario import BadScenario, Scenario, load, shipped
from healer.sim.fleet.score import Card
from healer.sim.fleet.simulate import MENDERS, simulate
from healer.sim.fleet.table import card_text, compared

__all__ = ["MENDERS", "BadScenario", "card_text", "compared", "listed", "scenario_of", "simulated"]


def listed() -> list[tuple[str, str]]:
    """Names of the scenarios that ship, and what each is."""
    return [(name, load(name).title) for name in shipped()]


def scenario_of(name: str, days: float | None) -> Scenario:
    """BadScenario (a ValueError) for a file that is none."""
    return load(name, days=days)


def simulated(
    scenario: Scenario,
    folder: Path,
    seed: int,
    menders: Sequence[str],
    *,
    settle_s: float,
    file: BinaryIO | None = None,
    progress: Callable[[str, float], None] | None = None,
) -> Iterable[Card]:
    """A card of each, one after the other. ruleset.RulesInvalid, BadScenario."""
    structlog.configure(logger_factory=structlog.PrintLoggerFactory(sys.stderr))
    try:
        rules = ruleset.load(folder, default_mode=Mode.auto, settle_s=settle_s, overrides=_guards(scenario))
    except TypeError as error:
        raise BadScenario(f"{scenario.name}: guards: {error}") from error
    for mender in menders:
        tell = (lambda share, name=mender: progress(name, share)) if progress is not None else None
        yield simulate(
            scenario,
            rules,
            seed,
            mender,
            file=_Lines(file) if file and mender == "healer" else None,
            progress=tell,
        )


def _guards(scenario: Scenario) -> dict[str, Any]:
    return dict(scenario.guards)


class _Lines:
    """A recording's file."""

    def __init__(self, file: BinaryIO) -> None:
        self._file, self._new = file, True

    def write(self, line: bytes, at: datetime, route: str, *, samples: bool = False) -> None:
        self._file.write(line + b"\n")

    def begun(self) -> bool:
        new, self._new = self._new, False
        return new
