"""How good the detectors are: on simulated faults of held-out seeds, and on public data in `SCOREBOARD_DATA`.

    make scoreboard (with --fleet-days 54)    or
    python -m benchmarks.scoreboard [--json] [--runs 10] [--fleets 3] [--seed 9001] [--jobs 100]
        [--job-days 30] [--step-s 5] [--quick] [--series 10] [--fresh-seed N] [--fleet-days 54]
        [--fleet-seed N] [--keep | --draw]

`--keep` keeps the figures of the fresh seed that `docs/detection.md` shows, in `docs/scoreboard.json`, and
draws its pictures; `--draw` draws them from what is kept.

Events count, not samples, and nothing is point-adjusted (`benchmarks/_scoreboard/events.py`). Each detector
runs with the one setting that ships; of a baseline the threshold is the best in hindsight. Where the public
sets are published: `docs/detection.md`. A set that is not there is skipped by name.
"""

import argparse
import json
import os
import secrets
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

from benchmarks._scoreboard import fleet, metric_worlds, repeats, sites, slow_worlds, smap, step_times
from benchmarks._scoreboard.charts import charts_of, shown, svg_of
from benchmarks._scoreboard.table import Board

SEED = 9001
KEPT = Path(__file__).parents[1] / "docs/scoreboard.json"
#: `scoreboard-recall.svg` and so on.
PICTURES = KEPT.parent / "images"


def slow_nodes(runs: int, seed: int) -> Board:
    cases = ", ".join(f"{slower:.0%} slower in noise of {noise:.1%}" for noise, slower in step_times.CASES)
    return Board(
        f"Slow nodes, simulated: {runs} seeds from {seed}, each with and without",
        f"{step_times.NODES} nodes, {cases}; alarms a job-day, delay in steps of {step_times.STEP_S:g} s",
        step_times.board(list(step_times.simulated(range(seed, seed + runs)))),
    )


def worlds_of_steps(runs: int, days: float, seed: int, step_s: float) -> Board:
    return Board(
        f"Slow nodes, simulated by another author: {runs} jobs each, {days:g} job-days without, seed {seed}",
        f"a node's mean compute each {step_s:g} s; wrong: alarms on sound nodes; 90 % bounds; below each "
        "healer's row a baseline with its best threshold in hindsight",
        slow_worlds.board(seed, runs, days, step_s),
    )


def subtle_faults(fleets: int, seed: int) -> Board:
    return Board(
        f"Subtle faults of nodes, simulated: {fleets} fleets from seed {seed}",
        f"{fleet.NODES} nodes each, two with each of {len(fleet.FAULTS)} faults; delay in minutes",
        fleet.board(range(seed, seed + fleets)),
    )


def worlds_of_metrics(each: int, seed: int) -> Board:
    return Board(
        f"Metrics around jobs, simulated by another author: {each} series of each kind, seed {seed}",
        "delay in samples; F1 with 90 % bounds; alarms up to 10 samples apart are one",
        metric_worlds.board(seed, each),
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
        f"Lemons: of the first {repeats.FIRST}, who fault again within 7 and 30 days (InfiniteHBD, half)",
        f"each second day from day {repeats.FROM_DAY:g} on, of {repeats.NODES} nodes; 90 % bounds",
        repeats.board(repeats.first_half(data)),
    )


def whole_fleets(seed: int, days: float) -> Board:
    return Board(
        f"Whole fleets, simulated: {days:g} days, seed {seed}",
        "effective training time; at once: if nothing had to be found or waited for; floor of those again",
        sites.board(seed, days),
    )


PUBLIC: dict[str, Callable[[Path], Board]] = {
    "SMAP": smap_board,
    "StragglerAnalysis SE": real_steps,
    "InfiniteHBD": repeats_board,
}


def public(data: Path | None) -> Iterator[Board | str]:
    """Each board, or why it is missing."""
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
    # A fixed seed and a fresh one that no tuning can have seen; a seed given twice is measured once.
    for seed in dict.fromkeys((asked.seed, asked.fresh_seed)):
        yield worlds_of_steps(asked.jobs, asked.job_days, seed, asked.step_s)
        yield worlds_of_metrics(asked.series, seed)
    if asked.fleets and asked.seed != asked.fresh_seed:
        yield subtle_faults(asked.fleets, asked.fresh_seed)
    if asked.fleet_days:
        yield whole_fleets(asked.fleet_seed, asked.fleet_days)
    yield from public(data)


def pictures(text: str) -> dict[Path, str]:
    """The pictures of kept figures, by where they lie."""
    charts = charts_of(json.loads(text)["boards"])
    return {PICTURES / f"scoreboard-{chart.file}.svg": svg_of(chart) for chart in charts}


def keep(boards: list[dict[str, Any]]) -> None:
    KEPT.write_text(json.dumps({"boards": shown(boards)}, indent=1) + "\n", encoding="utf-8")
    draw()


def draw() -> None:
    for path, picture in pictures(KEPT.read_text(encoding="utf-8")).items():
        path.write_text(picture, encoding="utf-8")


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--json", action="store_true")
    parser.add_argument("--runs", type=int, default=10)
    parser.add_argument("--fleets", type=int, default=3)
    parser.add_argument("--seed", type=int, default=SEED)
    parser.add_argument("--series", type=int, default=10, help="series of each kind of metrics")
    parser.add_argument("--fresh-seed", type=int, default=secrets.randbelow(1_000_000))
    parser.add_argument(
        "--fleet-days", type=float, default=0.0, help="whole fleets too, for so many days each"
    )
    parser.add_argument("--fleet-seed", type=int, default=secrets.randbelow(1_000_000))
    parser.add_argument("--jobs", type=int, default=100, help="jobs with a slow node, of each kind")
    parser.add_argument("--job-days", type=float, default=30.0, help="without any, of each noise")
    parser.add_argument("--step-s", type=float, default=5.0, help="length of those jobs' steps")
    parser.add_argument("--quick", action="store_true", help="a tenth of these jobs and days")
    keeps = parser.add_mutually_exclusive_group()
    keeps.add_argument(
        "--keep", action="store_true", help="keep the figures, and draw the pictures of the page"
    )
    keeps.add_argument(
        "--draw", action="store_true", help="draw them again from what is kept; measure nothing"
    )
    asked = parser.parse_args()
    if asked.draw:
        draw()
        return
    if asked.quick:
        asked.jobs, asked.job_days = max(1, asked.jobs // 10), asked.job_days / 10
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
    text = json.dumps({"boards": boards, "skipped": skipped, "cpu_s": round(took_s, 1)}, indent=1)
    if asked.keep:
        keep(boards)
    if asked.json:
        print(text)
        return
    for line in skipped:
        print(f"skipped: {line}")
    print(f"{took_s:.0f} s of CPU")


if __name__ == "__main__":
    main()
