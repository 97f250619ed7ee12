"""How good the detectors are: on simulated faults of held-out seeds, and on public data in `SCOREBOARD_DATA`.

    make scoreboard    or    python -m benchmarks.scoreboard [--json] [--runs 10] [--fleets 3] [--seed 9001]

Events count, not samples, and nothing is point-adjusted (`benchmarks/_scoreboard/events.py`). Each detector
runs with the one setting that ships; of a baseline the threshold is the best in hindsight. Where the public
sets are published: `docs/detection.md`. A set that is not there is skipped by name.
"""

import argparse
import json
import os
import time
from collections.abc import Callable, Iterator
from pathlib import Path

from benchmarks._scoreboard import fleet, repeats, smap, step_times
from benchmarks._scoreboard.table import Board

SEED = 9001


def slow_nodes(runs: int, seed: int) -> Board:
    cases = ", ".join(f"{slower:.0%} slower in noise of {noise:.1%}" for noise, slower in step_times.CASES)
    return Board(
        f"Slow nodes, simulated: {runs} seeds from {seed}, each with and without",
        f"{step_times.NODES} nodes, {cases}; alarms a job-day, delay in steps of {step_times.STEP_S:g} s",
        step_times.board(list(step_times.simulated(range(seed, seed + runs)))),
    )


def subtle_faults(fleets: int, seed: int) -> Board:
    return Board(
        f"Subtle faults of nodes, simulated: {fleets} fleets from seed {seed}",
        f"{fleet.NODES} nodes each, two with each of {len(fleet.FAULTS)} faults; delay in minutes",
        fleet.board(range(seed, seed + fleets)),
    )


def smap_board(data: Path) -> Board:
    return Board(
        "SMAP: 54 channels, a sample a minute",
        f"alarms up to {smap.GAP} min apart are one; delay in minutes; all get the commands, too",
        smap.board(data / smap.FOLDER),
    )


def real_steps(data: Path) -> Board:
    return Board(
        "Slow ranks in the noise of a real job (trace SE)",
        f"{', '.join(f'{one:g} times' for one in step_times.SLOWER)} as long; delay in sampled steps",
        step_times.board(list(step_times.real(data / step_times.TRACE)), per="run"),
    )


def repeats_board(data: Path) -> Board:
    return Board(
        "Nodes that fault again within 7 days (InfiniteHBD, first half)",
        f"each week from day {repeats.FROM_DAY:g} on; of {repeats.NODES} nodes",
        repeats.board(repeats.first_half(data)),
    )


PUBLIC: dict[str, Callable[[Path], Board]] = {
    "SMAP": smap_board,
    "StragglerAnalysis SE": real_steps,
    "InfiniteHBD": repeats_board,
}


def public(data: Path | None) -> Iterator[Board | str]:
    """Each board, or why it is none."""
    for name, make in PUBLIC.items():
        if data is None:
            yield f"{name}: SCOREBOARD_DATA names no folder"
            continue
        try:
            yield make(data)
        except FileNotFoundError as missing:
            yield f"{name}: {missing.filename} is not there"
        except ImportError as missing:
            yield f"{name}: {missing.name} is not installed, and this file needs it (tools/setup --dev)"


def measured(asked: argparse.Namespace, data: Path | None) -> Iterator[Board | str]:
    yield slow_nodes(asked.runs, asked.seed)
    yield subtle_faults(asked.fleets, asked.seed)
    yield from public(data)


def main() -> None:
    told = argparse.ArgumentParser()
    told.add_argument("--json", action="store_true")
    told.add_argument("--runs", type=int, default=10)
    told.add_argument("--fleets", type=int, default=3)
    told.add_argument("--seed", type=int, default=SEED)
    asked = told.parse_args()
    folder = os.environ.get("SCOREBOARD_DATA")
    begun = time.process_time()
    boards, skipped = [], []
    for one in measured(asked, Path(folder) if folder else None):
        if isinstance(one, str):
            skipped.append(one)
            continue
        boards.append(one.json())
        if not asked.json:
            print(one.text(), end="\n\n", flush=True)
    took_s = time.process_time() - begun
    if asked.json:
        print(json.dumps({"boards": boards, "skipped": skipped, "cpu_s": round(took_s, 1)}, indent=1))
        return
    for line in skipped:
        print(f"skipped: {line}")
    print(f"{took_s:.0f} s of CPU")


if __name__ == "__main__":
    main()
