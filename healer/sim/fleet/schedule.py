"""Which node fails when and how, and how its repair goes: drawn from the seed, the same for every mender.

A fault holds all of its random draws, so that all menders meet the same faults. Only the time of a relapse
depends on when the node returned.
"""

from dataclasses import dataclass
from datetime import datetime, timedelta

import numpy as np

from healer.sim.fleet.scenario import Scenario
from healer.sim.planted_faults import WAYS, Way

HOUR_S, DAY_S = 3600.0, 86_400.0
#: The 90th percentile of the standard normal.
_P90 = 1.2816


@dataclass(frozen=True, slots=True)
class Fault:
    """One fault. Times are seconds; `again_s` counts from the node's return, None: it stays well.

    `took`: the repair mended it; `found`: tests find one that did not. `because`: `base`, `relapse`,
    `not-taken` or `planted`.
    """

    id: str
    at: datetime
    node: str
    gpu: int
    cause: str
    way_name: str
    repair_s: float
    answer_s: float
    find_s: float
    notice_s: float
    took: bool
    found: bool
    again_s: float | None
    because: str = "base"

    @property
    def way(self) -> Way:
        return WAYS[self.way_name]


class Chance:
    """Draws faults. `number` seeds each fault, so that draws of one change no other."""

    def __init__(self, scenario: Scenario, seed: int) -> None:
        self._scenario, self._seed = scenario, seed
        counts = np.array([cause.count for cause in scenario.mix], dtype=float)
        self._share = counts / counts.sum() if len(counts) else counts

    def draw(
        self,
        number: int,
        at: datetime,
        node: str,
        *,
        way: str = "",
        because: str = "base",
        generation: int = 0,
    ) -> Fault:
        chance = np.random.default_rng([self._seed, 5, number, generation])
        cause, way = self._cause(chance, way)
        people, faults = self._scenario.people, self._scenario.faults
        taken = chance.random()
        took = not (WAYS[way].hardware and taken < faults.not_taken and generation < 2)
        again_s = None
        relapses = chance.random() < faults.relapse
        spread = chance.random()
        if not took:
            again_s = (0.1 + spread) * faults.not_taken_h * HOUR_S
        elif relapses and WAYS[way].hardware and generation < 2:
            again_s = spread * faults.relapse_days * DAY_S
        # Log-normal, by its median and its 90th percentile.
        repair = self._scenario.repair
        sigma = np.log(repair.p90_h / repair.median_h) / _P90
        return Fault(
            id=f"f{number}" + (f".{generation}" if generation else ""),
            at=at, node=node, gpu=int(chance.integers(self._scenario.gpus)), cause=cause, way_name=way,
            repair_s=float(repair.median_h * np.exp(chance.standard_normal() * sigma)) * HOUR_S,
            answer_s=people.answer_min * 60 * float(chance.lognormal(0, people.sigma)),
            find_s=people.find_min * 60 * float(chance.lognormal(0, people.sigma)),
            notice_s=people.notice_h * HOUR_S * float(chance.lognormal(0, people.sigma)),
            took=took, found=bool(chance.random() < self._scenario.tests.find), again_s=again_s,
            because=because,
        )  # fmt: skip

    def again(self, fault: Fault, returned: datetime) -> Fault | None:
        """The fault that follows the return of its node; None if none does."""
        if fault.again_s is None:
            return None
        base, _, generation = fault.id.removeprefix("f").partition(".")
        because = "relapse" if fault.took else "not-taken"
        way = "" if fault.took else fault.way_name
        if fault.took and not self._scenario.mix:
            return None
        at = returned + timedelta(seconds=fault.again_s)
        return self.draw(
            int(base), at, fault.node, way=way, because=because, generation=int(generation or 0) + 1
        )

    def _cause(self, chance: np.random.Generator, way: str) -> tuple[str, str]:
        row, weight = chance.random(), chance.random()
        if way:
            named = next((cause.cause for cause in self._scenario.mix if way in cause.ways), way)
            return named, way
        cause = self._scenario.mix[int(np.searchsorted(np.cumsum(self._share), row, side="right"))]
        names, weights = list(cause.ways), np.array(list(cause.ways.values()), dtype=float)
        return cause.cause, names[
            int(np.searchsorted(np.cumsum(weights / weights.sum()), weight, side="right"))
        ]


def base_faults(scenario: Scenario, chance: Chance, nodes: list[str], seed: int) -> list[Fault]:
    """All independent faults in order of time. Each node has a failure rate of its own, drawn from a
    gamma."""
    rng = np.random.default_rng([seed, 6])
    spec = scenario.faults
    if not spec.per_node_day:
        return []
    rates = rng.gamma(spec.shape, spec.per_node_day / spec.shape, len(nodes))
    counts = rng.poisson(rates * scenario.days)
    moments = [
        (scenario.start + timedelta(days=float(at)), node)
        for node, count in zip(nodes, counts.tolist(), strict=True)
        for at in rng.uniform(0, scenario.days, count).tolist()
    ]
    return [chance.draw(number, at, node) for number, (at, node) in enumerate(sorted(moments))]
