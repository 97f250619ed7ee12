"""Actions of an entrant, and what is true of the case -> figures. Standard library alone."""

import json
import statistics
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from datetime import datetime
from typing import Any

#: A broken node has to be out within this; a job has to be started again within that.
OUT_WITHIN_S, AGAIN_WITHIN_S = 3600.0, 600.0
DRAINS, STARTS, ENDS = {"drain", "down"}, {"requeue", "revive"}, {"requeue", "revive", "cancel"}
#: Names an incident and does nothing.
CAUSE = "cause"


@dataclass
class Score:
    """Of one case or of all. `delays_s` of the broken nodes that were taken out; `rooted`: cases with the
    right number of roots, of those with any."""

    broken: int = 0
    found: int = 0
    wrong_drains: int = 0
    node_days: float = 0.0
    delays_s: list[float] = field(default_factory=list)
    rooted: int = 0
    with_roots: int = 0
    saved: int = 0
    to_save: int = 0
    lost: int = 0

    @property
    def recall(self) -> float:
        return self.found / self.broken if self.broken else 1.0

    @property
    def wrong_per_1000_node_days(self) -> float:
        return 1000 * self.wrong_drains / self.node_days

    @property
    def delay_s(self) -> float | None:
        return statistics.median(self.delays_s) if self.delays_s else None

    def add(self, other: "Score") -> None:
        for name in self.__dataclass_fields__:
            setattr(self, name, getattr(self, name) + getattr(other, name))


def actions_of(lines: Iterable[str]) -> list[dict[str, Any]]:
    """Raises ValueError that names the line."""
    found = []
    for number, line in enumerate(lines, start=1):
        if not line.strip():
            continue
        try:
            row = json.loads(line)
            row["at"] = datetime.fromisoformat(row["at"].replace("Z", "+00:00"))
            row["action"] = str(row["action"])
            if row["at"].tzinfo is None:
                raise ValueError("at has no time zone")
            if row["action"] in DRAINS and not isinstance(row["node"], str):
                raise ValueError("node is not a name")
        except (ValueError, KeyError, TypeError, AttributeError) as error:
            raise ValueError(f"line {number} is no action: {error!r}") from error
        found.append(row)
    return found


def _causes(actions: Sequence[dict[str, Any]], drains: Sequence[dict[str, Any]]) -> int:
    """What the entrant counts as causes: those that it drained for; without a drain, those that it stated."""
    if drains:
        return len({row.get("incident") or row["node"] for row in drains})
    return len({row.get("incident") for row in actions if row["action"] == CAUSE} - {None})


def score(actions: Sequence[dict[str, Any]], truth: dict[str, Any]) -> Score:
    broken = {node: datetime.fromisoformat(at.replace("Z", "+00:00")) for node, at in truth["faults"].items()}
    drains = [row for row in actions if row["action"] in DRAINS]
    found = Score(broken=len(broken), node_days=truth["nodes"] * truth["days"], to_save=len(truth["save"]))
    for node, at in broken.items():
        delays_s = [(row["at"] - at).total_seconds() for row in drains if row.get("node") == node]
        in_time = [each for each in delays_s if 0 <= each <= OUT_WITHIN_S]
        if in_time:
            found.found += 1
            found.delays_s.append(min(in_time))
    wrong = {row["node"] for row in drains} - broken.keys() - set(truth["maybe"])
    found.wrong_drains = len(wrong)
    if truth["roots"]:
        found.with_roots = 1
        found.rooted = int(_causes(actions, drains) == truth["roots"])
    first = min(broken.values(), default=None)
    for job in truth["save"]:
        starts = [row["at"] for row in actions if row["action"] in STARTS and str(row.get("job")) == job]
        found.saved += any(
            first is not None and 0 <= (at - first).total_seconds() <= AGAIN_WITHIN_S for at in starts
        )
    ended = {str(row.get("job")) for row in actions if row["action"] in ENDS} - {"None"}
    found.lost = len(ended - set(truth["save"]))
    return found
