"""What tests of samples share: the shipped catalogue, a translator, and samples by name."""

import functools
import math
import re
from datetime import UTC, datetime
from pathlib import Path

from healer.model import Catalogue, Column, Part
from healer.model.telemetry import Report
from healer.rulebook.signal_rules import read_catalogue
from healer.rulebook.source import Problem, Source
from healer.signals.hardware_names import Shown, unknown_shape
from healer.signals.translate import Translator
from healer.sim.stores import MemoryColumns

NOW = datetime(2026, 11, 20, 3, 0, tzinfo=UTC)
RULES = Path(__file__).parents[2] / "rules"
SHIPPED = ("signals.yaml", "signals-fabric.yaml")


@functools.cache
def shipped() -> Catalogue:
    problems: list[Problem] = []
    catalogue = read_catalogue(*(Source(RULES / name, name, problems) for name in SHIPPED))
    assert problems == []
    return catalogue


def known(cluster: str, node: str) -> bool:
    return cluster == "pod1" and re.fullmatch(r"gpu\d{4}", node) is not None


class Bench:
    """A translator of the shipped catalogue, with its book."""

    def __init__(self, limit: int = 100_000, *, shown: Shown = unknown_shape) -> None:
        self.book = MemoryColumns(limit)
        self.translator = Translator(shipped(), self.book, "pod1", shown)

    def values(self, report: Report) -> dict[tuple[str, Part], float]:
        """Known values of a report by signal and part."""
        columns = self.book.columns(report.columns.tolist())
        pairs = zip(report.columns.tolist(), report.values.tolist(), strict=True)
        finite = [(columns[number], value) for number, value in pairs if not math.isnan(value)]
        assert len({column for column, _ in finite}) == len(finite), "a series is twice in one report"
        return {(column.signal, column.part): value for column, value in finite}


def gpu(index: int, link: int | None = None) -> Part:
    return Part(gpu=index, link=link)


def column(signal: str, part: Part | None = None) -> Column:
    return Column(signal, part or Part())
