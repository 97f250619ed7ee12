"""The goodput ledger beside the simulator's own account of the same days.

The ledger gets steps of 6 s, durable checkpoints and Slurm's states; its incidents are the true faults. With
`--own-incidents` healer heals the site, and they are those that it opened: prints how much of the time that
faults cost is counted to the right cause.
"""

import argparse
import time
from pathlib import Path

from healer.bootstrap.offline import load, rules_for
from healer.incidents.goodput_partition import partition
from tests.support.watched_work import HealedWatched, Watched

RULES, SETTLE_S = Path(__file__).parents[1] / "rules", 2.0


def attribute(name: str, days: float | None, seed: int) -> None:
    scenario = load(name, days=days)
    watched = HealedWatched(scenario, rules_for(scenario, RULES, SETTLE_S), seed)
    found, truth = watched.by_cause()
    costs = (f"{cause} {found.get(cause, 0.0):.0f} of {cost:.0f} s" for cause, cost in sorted(truth.items()))
    print(f"seed {seed}: {watched.attributed():.1%} to the right cause; {', '.join(costs)}", flush=True)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--scenario", default="llama3-54d")
    parser.add_argument("--days", type=float)
    parser.add_argument("--seeds", type=int, nargs="+", required=True)
    parser.add_argument("--own-incidents", action="store_true")
    asked = parser.parse_args()
    for seed in asked.seeds:
        if asked.own_incidents:
            attribute(asked.scenario, asked.days, seed)
            continue
        watched = Watched(load(asked.scenario, days=asked.days), seed)
        found, truth = watched.shares()
        worst = max(found, key=lambda kind: abs(found[kind] - truth[kind]))
        lives, end = watched.lives(), watched.site.end
        began = time.process_time()
        slices = partition(lives, end)
        spent_s = time.process_time() - began
        parts = ", ".join(f"{kind} {share:.4f}" for kind, share in found.items() if share)
        print(
            f"seed {seed}: {len(lives)} lives, {len(slices)} slices in {spent_s:.2f} s CPU; {parts}; "
            f"largest error {found[worst] - truth[worst]:+.5f} ({worst})"
        )


if __name__ == "__main__":
    main()
