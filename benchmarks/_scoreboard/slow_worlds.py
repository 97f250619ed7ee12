"""Slow nodes in jobs drawn without knowledge of the detector (`benchmarks/_worlds/step_times.py`).

For each noise: how many slow nodes are found, how soon, and how many sound ones are blamed; how often a sound
one is blamed in job-days without any slow node, where storage is slow for all at times; and slow nodes that
were slow from the first step on. `stragglers.score` sees the mean of a node's ranks, as the contract has it.
"""

import math
import sys
import warnings
from collections.abc import Callable, Iterator
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass
from multiprocessing import get_context
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from benchmarks._scoreboard import bounds
from benchmarks._scoreboard.events import alarms
from benchmarks._scoreboard.table import Row
from benchmarks._worlds.step_times import NOISES, Floats, StepWorld, draw, node_mean
from healer.detection.stragglers import score_all

STEP_S = 5.0
#: Steps of a world with a slow node, and between which it begins; of one without, two hours.
STEPS, ONSETS, SOUND_STEPS = 1000, (200, 600), 1440
#: Alarms of a node up to so many steps apart are one.
GAP = 10
AT_ONCE, PROCESSES = 24, 2


@dataclass(frozen=True, slots=True)
class Case:
    """`slow`: extra share of the slow node, None: no node is slow. `from_start`: from the first step on."""

    noise: str
    slow: float | None
    from_start: bool = False

    @property
    def name(self) -> str:
        if self.slow is None:
            return f"{self.noise}, nobody slow"
        return f"{self.noise}, {self.slow:.0%} slower{' from the first step' * self.from_start}"


#: What is asked of each noise: a slow node, also from the start, and job-days without any.
CASES = (
    Case("equal", 0.05),
    Case("unequal", 0.10),
    Case("trace", 0.10),
    Case("trace", 0.20),
    *(Case(noise, 0.10, from_start=True) for noise in NOISES),
    *(Case(noise, None) for noise in NOISES),
)


class Seen(NamedTuple):
    """What a method said of one world. `delay_s` is infinite where the slow node was not found; `wrong_at`:
    node and step of each alarm on a sound node; `days` of the job."""

    delay_s: float
    wrong_at: tuple[tuple[int, int], ...]
    days: float

    @property
    def wrong(self) -> int:
        return len(self.wrong_at)


def world(case: Case, seed: int, number: int, step_s: float = STEP_S) -> StepWorld:
    """The same for the same arguments."""
    random = np.random.default_rng([seed, CASES.index(case), number])
    onset = 0 if case.from_start else int(random.integers(*ONSETS))
    steps = SOUND_STEPS if case.slow is None else STEPS
    return draw(random, case.noise, slow=case.slow, onset=onset, steps=steps, step_s=step_s)


def seen(world: StepWorld, on: NDArray[np.bool_], step_s: float = STEP_S) -> Seen:
    """`on` (steps, nodes): alarms of a method. An alarm that began before the slowness is not about it."""
    days, delay_s, wrong = len(on) * step_s / 86_400, np.inf, list[tuple[int, int]]()
    for node in np.flatnonzero(on.any(axis=0)).tolist():
        spans = alarms(on[:, node], GAP)
        about = [begin for begin, _ in spans if node == world.slow_node and begin >= world.onset]
        wrong += [(node, begin) for begin, _ in spans if begin not in about]
        if about:
            delay_s = (about[0] - world.onset + 1) * step_s
    return Seen(float(delay_s), tuple(wrong), days)


#: What happened up to so many steps before a false alarm may be its cause.
MAY_CAUSE = 100


def why_wrong(case: Case, seed: int, number: int, said: Seen, step_s: float = STEP_S) -> Iterator[str]:
    """Each false alarm of healer with what happened in its job before: to be traced to its cause."""
    drawn = world(case, seed, number, step_s) if said.wrong_at else None
    for node, step in said.wrong_at:
        about = [
            f"{what} {begin - step:+} to {end - step:+}"
            for what, begin, end in (drawn.happened if drawn is not None else ())
            if begin <= step <= end + MAY_CAUSE and (" of node " not in what or what.endswith(f" {node}"))
        ]
        yield f"job {number}, node {node}, step {step}: {', '.join(about) or 'nothing happened'}"


# --- baselines, of which the best threshold in hindsight counts


def _away(times: Floats) -> tuple[Floats, Floats]:
    """(steps, nodes) log ratio to the middle node of the step, and (steps, 1) their robust deviation."""
    x = np.log(times)
    with np.errstate(all="ignore"):
        x = x - np.nanmedian(x, axis=1, keepdims=True)
        return x, np.maximum(1.4826 * np.nanmedian(np.abs(x), axis=1, keepdims=True), 1e-4)


def _last(values: Floats, steps: int, middle: Callable[..., Any]) -> Floats:
    """Mean or median of the last `steps`, unknown ones left out."""
    padded = np.concatenate([np.full((steps - 1, values.shape[1]), np.nan), values])
    return np.nan_to_num(middle(np.lib.stride_tricks.sliding_window_view(padded, steps, axis=0), axis=2))


def _peers_five(history: Floats, stream: Floats) -> Floats:
    away, spread = _away(stream)
    return _last(away / spread, 5, np.nanmedian)


def _peers_mean(history: Floats, stream: Floats) -> Floats:
    away, spread = _away(stream)
    return _last(np.clip(away / spread, -3, 3), 60, np.nanmean)


def _own_past_five(history: Floats, stream: Floats) -> Floats:
    """Against the node's mean and deviation of its history, or of the first minutes where there is none."""
    before = history if len(history) >= 20 else stream[:60]
    past, _ = _away(before)
    away, _ = _away(stream)
    mean, spread = np.nanmean(past, axis=0), np.nanstd(past, axis=0)
    return _last((away - mean) / np.maximum(spread, 1e-4), 5, np.nanmedian)


BASELINES: dict[str, Callable[[Floats, Floats], Floats]] = {
    "peers, median of 5 steps": _peers_five,
    "peers, mean of 60 steps": _peers_mean,
    "own past, median of 5 steps": _own_past_five,
}
#: Thresholds tried, in the baselines' deviations.
LEVELS = np.geomspace(0.3, 12, 25)


Worlds = list[tuple[Seen, list[list[Seen]]]]


def play(asked: tuple[Case, int, range, float]) -> Worlds:
    """Of each world what healer said, and each baseline at each threshold."""
    case, seed, numbers, step_s = asked
    worlds = [world(case, seed, number, step_s) for number in numbers]
    jobs = [(node_mean(each.history_s), node_mean(each.compute_s)) for each in worlds]
    found = []
    for each, job, score in zip(worlds, jobs, score_all(jobs, 86_400 / step_s), strict=True):
        others = [[seen(each, scores >= level, step_s) for level in LEVELS] for scores in _baselines(job)]
        found.append((seen(each, score >= 1, step_s), others))
    return found


def _baselines(job: tuple[Floats, Floats]) -> Iterator[Floats]:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", RuntimeWarning)  # nodes without any report
        yield from [scorer(*job) for scorer in BASELINES.values()]


def board(seed: int, runs: int, days: float, step_s: float) -> list[Row]:
    """`runs` worlds of each case with a slow node, `days` job-days of each noise without. A baseline has one
    threshold for each noise, with the best F1 in hindsight."""
    played: dict[Case, Worlds] = {}
    with ProcessPoolExecutor(PROCESSES, mp_context=get_context("fork")) as pool:
        for case in CASES:
            count = runs if case.slow is not None else round(days * 86_400 / SOUND_STEPS / step_s)
            parts = [
                (case, seed, range(at, min(at + AT_ONCE, count)), step_s) for at in range(0, count, AT_ONCE)
            ]
            played[case] = [each for part in pool.map(play, parts) for each in part]
            print(f"  step times: {case.name}", file=sys.stderr, flush=True)
            for number, (said, _) in enumerate(played[case]):
                for line in why_wrong(case, seed, number, said, step_s):
                    print(f"    {line}", file=sys.stderr, flush=True)
    best = {noise: _best([played[case] for case in CASES if case.noise == noise]) for noise in NOISES}
    rows = []
    for case, worlds in played.items():
        rows.append(_row(case.name, case, [own for own, _ in worlds]))
        baseline, level = best[case.noise]
        name = f"  {list(BASELINES)[baseline]} over {LEVELS[level]:.2g}"
        rows.append(_row(name, case, [others[baseline][level] for _, others in worlds]))
    return rows


def _best(cases: list[Worlds]) -> tuple[int, int]:
    """Baseline and threshold with the best F1 of alarms over all these worlds."""

    def f1(at: tuple[int, int]) -> float:
        said = [others[at[0]][at[1]] for worlds in cases for _, others in worlds]
        found = sum(math.isfinite(each.delay_s) for each in said)
        slow = sum(len(worlds) for worlds in cases[:-1])
        return 2 * found / (slow + found + sum(each.wrong for each in said))

    return max(np.ndindex(len(BASELINES), len(LEVELS)), key=f1)


def _row(name: str, case: Case, said: list[Seen]) -> Row:
    wrong, days = sum(each.wrong for each in said), sum(each.days for each in said)
    low, high = bounds.rate(wrong, days)
    figures = {"wrong": float(wrong), "a job-day": wrong / days, "from": low, "to": high}
    if case.slow is None:
        return Row(
            name, {"recall": np.nan, "recall from": np.nan, "delay s": np.nan, "to s": np.nan, **figures}
        )
    delays = [each.delay_s for each in said]
    found = sum(map(math.isfinite, delays))
    return Row(
        name,
        {
            "recall": found / len(said),
            "recall from": bounds.share(found, len(said))[0],
            "delay s": float(np.median(delays)),
            "to s": bounds.median(delays)[1],
            **figures,
        },
    )
