"""The score board's rows: for a terminal, and as JSON."""

from dataclasses import asdict, dataclass
from typing import Any

import numpy as np

from benchmarks._scoreboard.events import Tally


@dataclass(frozen=True, slots=True)
class Row:
    """One method on one set. `figures` in the order of the columns; NaN where nothing was measured."""

    name: str
    figures: dict[str, float]

    @staticmethod
    def of(name: str, threshold: float, tally: Tally, per: str = "day") -> "Row":
        """`per`: what `tally.days` counts."""
        return Row(
            name,
            {
                "threshold": threshold,
                "precision": tally.precision,
                "recall": tally.recall,
                "F1": tally.f1,
                f"false a {per}": tally.false_per_day,
                "delay": tally.delay,
            },
        )


@dataclass(frozen=True, slots=True)
class Board:
    """The rows of one set. `note`: what a delay is counted in, and what else a reader has to know."""

    title: str
    note: str
    rows: list[Row]

    def text(self) -> str:
        names = list(self.rows[0].figures) if self.rows else []
        wide = max((len(row.name) for row in self.rows), default=0)
        lines = [self.title, f"  {self.note}", f"  {'':{wide}} " + " ".join(f"{name:>12}" for name in names)]
        for row in self.rows:
            cells = " ".join(f"{_shown(row.figures.get(name, np.nan)):>12}" for name in names)
            lines.append(f"  {row.name:{wide}} {cells}")
        return "\n".join(lines)

    def json(self) -> dict[str, Any]:
        """NaN and infinity are null: JSON has neither."""
        found = asdict(self)
        for row in found["rows"]:
            row["figures"] = {
                name: value if np.isfinite(value) else None for name, value in row["figures"].items()
            }
        return found


def _shown(value: float) -> str:
    if not np.isfinite(value):
        return "-"
    return f"{value:.0f}" if abs(value) >= 100 else f"{value:.3g}"
