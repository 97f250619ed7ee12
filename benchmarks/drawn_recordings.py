"""Draws recordings with combinations of faults, replays them, and prints which laws were broken.

    python -m benchmarks.drawn_recordings [--draws 10000] [--from 0] [--processes 2] [--rows SEED]

The draws and their laws are in `tests/support/drawn_recordings.py`. Every 20th is replayed twice: the same
rows have to give the same document. `--rows SEED` prints that recording as `healer replay` takes it.
"""

import argparse
import gc
import json
import multiprocessing
import time
from collections import Counter
from functools import cache
from typing import Any

from healer.model import Mode
from healer.recordings.recording import read
from healer.sim.replaying import replay
from tests.support.drawn_recordings import Drawn, broken, draw
from tests.support.loop import rules_in

AGAIN_EVERY = 20
#: Cycles are collected after so many draws: looking for them at all times costs a sixth.
COLLECT_EVERY = 50


@cache
def _rules() -> Any:
    return rules_in(Mode.auto)


def played(drawn: Drawn) -> dict[str, Any]:
    """The document of `healer replay --json`, every rule automatic."""
    return replay(_rules(), read(json.dumps(row) for row in drawn.rows))


def complaints(seed: int) -> list[str]:
    """The laws that this seed's replay broke."""
    drawn = draw(seed)
    try:
        document = played(drawn)
    except Exception as error:
        return [f"0: {type(error).__name__}: {error}"]
    found = broken(drawn, document)
    if seed % AGAIN_EVERY == 0 and json.dumps(document) != json.dumps(played(draw(seed))):
        found.append("5: the same rows gave another document")
    return found


def _measured(seed: int) -> tuple[int, list[str], float]:
    if not seed % COLLECT_EVERY:
        gc.collect()
    started = time.process_time()
    found = complaints(seed)
    return seed, found, time.process_time() - started


def _prepare() -> None:
    """Once in each process: the rules are read, and no collection looks at them again."""
    _rules()
    gc.collect()
    gc.freeze()
    gc.disable()


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--draws", type=int, default=10_000)
    parser.add_argument("--from", dest="first", type=int, default=0)
    parser.add_argument("--processes", type=int, default=2)
    parser.add_argument("--rows", type=int)
    given = parser.parse_args()
    if given.rows is not None:
        print("\n".join(json.dumps(row) for row in draw(given.rows).rows))
        return
    cpu_s, failed, kinds = 0.0, 0, Counter[str]()
    with multiprocessing.Pool(given.processes, _prepare) as pool:
        seeds = range(given.first, given.first + given.draws)
        for done, (seed, found, took_s) in enumerate(pool.imap(_measured, seeds, chunksize=4), 1):
            cpu_s += took_s
            failed += bool(found)
            kinds.update({sentence[0] for sentence in found})
            for sentence in found:
                print(f"seed {seed}: {sentence}", flush=True)
            if done % 100 == 0:
                print(f"... {done} draws, {failed} failed", flush=True)
    by_law = dict(sorted(kinds.items()))
    print(f"{given.draws} draws, {failed} failed ({failed / given.draws:.2%}), by law {by_law}")
    print(f"{given.draws / cpu_s:.1f} draws per CPU-second")


if __name__ == "__main__":
    main()
