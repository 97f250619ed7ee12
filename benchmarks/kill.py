"""kill -9 at random moments of the story: `python benchmarks/kill.py [ROUNDS] [SEED]`.

Each round a GPU is lost under a job of two nodes on a real Slurm, and one process of the product is killed
between 0.1 s before the fault and 3 s after it. Prints one line per round; ends with 1 when one was not good.
"""

import random
import sys
import time
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[1]))

from tests.support.killing import Round, end, moments, play
from tests.support.site import Site, site_on
from tests.support.slurm import started

HEAD = "  moment  victim    drains requeues stuck accepted lost    took"


def main() -> int:
    rounds = int(sys.argv[1]) if len(sys.argv) > 1 else 20
    seed = int(sys.argv[2]) if len(sys.argv) > 2 else int(time.time())
    print(f"{rounds} rounds, seed {seed}\n{HEAD}", flush=True)
    results: list[Round] = []
    with site_on(started(), HEALER_BREAKER_SHARE="1.0") as site:
        for number, (victim, moment_s) in enumerate(moments(random.Random(seed), rounds)):
            results.append(one_round(site, victim, moment_s, f"gpu{number % 28 + 1:04d}"))
        site.audit_holds()
    bad = sum(not one.good for one in results)
    print(f"audit verify ok; {len(results) - bad} of {len(results)} rounds good")
    return 1 if bad else 0


def one_round(site: Site, victim: str, moment_s: float, node: str) -> Round:
    told = play(site, victim, moment_s, node)
    print(
        f"{told.moment_s:>+7.2f}s  {told.victim:9} {told.drains:>6} {told.requeues:>8} {told.stuck:>5} "
        f"{told.accepted:>8} {told.lost:>4} {told.took_s:>6.1f}s{'' if told.good else '  NOT GOOD'}",
        flush=True,
    )
    end(site, node)
    return told


if __name__ == "__main__":
    sys.exit(main())
