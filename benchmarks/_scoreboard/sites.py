"""Whole fleets under healer in simulated time (`healer simulate`), at seeds that nothing was tuned to."""

from pathlib import Path

from benchmarks._scoreboard.table import Row
from healer.bootstrap import offline
from healer.sim.fleet.scenario import Scenario
from healer.sim.fleet.score import Card

RULES = Path(__file__).parents[2] / "rules"
SCENARIOS = ("llama3-54d", "worn-512")
SETTLE_S = 2.0


def board(seed: int, days: float) -> list[Row]:
    """A row for each scenario, with healer alone."""
    return [_row(name, seed, days) for name in SCENARIOS]


def _row(name: str, seed: int, days: float) -> Row:
    scenario = offline.load(name, days=days)
    rules = offline.rules_for(scenario, RULES, SETTLE_S)
    (card,) = offline.simulated(scenario, rules, seed, offline.MENDERS[:1])
    return Row(
        name,
        {
            "effective": card.effective,
            "at once": at_once(card, scenario),
            "wrong": card.wrong_drains,
            "undiagnosed": card.undiagnosed,
            "stuck": card.stuck,
            "again in 7 d": card.relapsed_week / card.returned if card.returned else float("nan"),
            "floor": card.relapsed_floor,
        },
    )


def at_once(card: Card, scenario: Scenario) -> float:
    """Effective time if nothing had to be found, decided or waited for: what is lost since checkpoints, in
    startups, in checkpoints and in planned stops is left."""
    planned = scenario.planned_stops_per_day * scenario.planned_stop_min * 60 / 86_400
    spent = card.spent
    return card.effective + spent["hung"] + spent["queued"] + spent["slowed"] - planned
