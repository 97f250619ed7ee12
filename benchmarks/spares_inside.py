"""Spares inside the allocation beside requeues alone: `llama3-54d` and `llama3-54d-spares`, seed by seed.

`--full`: the rest of the fleet is full of jobs of one node each (45 min to 10 h, more of them where the large
job holds no spare), and jobs start in order, so that a requeue waits for its nodes.
"""

import argparse

from msgspec.structs import replace

from healer.bootstrap.offline import load, rules_for, simulated
from healer.settings import load as settings
from healer.settings import rules_folder
from healer.sim.fleet.scenario import Filler, Scenario
from healer.sim.fleet.score import Card

SCENARIOS = ("llama3-54d", "llama3-54d-spares")
#: Runtimes of the small jobs: so many seconds at least, and each longer than the last by so many.
SHORTEST_S, LONGER_S = 2700.0, 447.0


def filled(scenario: Scenario) -> Scenario:
    """Without a reservation, with a small job on each node that the large one does not ask for."""
    fillers = tuple(
        Filler(count=1, nodes=1, runtime_s=SHORTEST_S + LONGER_S * number)
        for number in range(scenario.nodes - scenario.job.asks)
    )
    guards = {name: value for name, value in scenario.guards.items() if name != "spares"}
    slurm = replace(scenario.slurm, in_order=True)
    return replace(scenario, spares=0, fillers=fillers, guards=guards, slurm=slurm)


def line(card: Card) -> str:
    inside = card.inside
    held = (
        f", {inside.swaps} swaps, {inside.requeues} requeues, {inside.spare_gpu_hours:,.0f} GPU-hours idle"
        if inside
        else ""
    )
    return (
        f"seed {card.seed} {card.scenario}: effective {card.effective:.4f}, "
        f"queued {card.spent['queued']:.4f}, restart {card.restart.median_s} (p95 {card.restart.p95_s}) s "
        f"of {card.restart.count}, wrong {card.wrong_drains}, undiagnosed {card.undiagnosed}, "
        f"stuck {card.stuck}{held}"
    )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--seeds", type=int, nargs="+", required=True)
    parser.add_argument("--days", type=float)
    parser.add_argument("--full", action="store_true")
    asked = parser.parse_args()
    given = settings()
    for seed in asked.seeds:
        for name in SCENARIOS:
            scenario = load(name, days=asked.days)
            scenario = filled(scenario) if asked.full else scenario
            rules = rules_for(scenario, rules_folder(given), given.settle_s)
            for card in simulated(scenario, rules, seed, ("healer",)):
                print(line(card), flush=True)


if __name__ == "__main__":
    main()
