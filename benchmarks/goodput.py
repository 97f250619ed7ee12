"""The goodput ledger beside the simulator's own account of the same days.

The ledger gets steps of 6 s, durable checkpoints and Slurm's states; its incidents are the true faults.
"""

import argparse
import time

from healer.bootstrap.offline import load
from healer.incidents.goodput_partition import partition
from tests.support.watched_work import Watched


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--scenario", default="llama3-54d")
    parser.add_argument("--days", type=float)
    parser.add_argument("--seeds", type=int, nargs="+", required=True)
    asked = parser.parse_args()
    for seed in asked.seeds:
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
