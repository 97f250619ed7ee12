"""Step times of a job as a picture: rank by step, coloured by how much slower than its stage a rank was."""

import base64
import math
from collections.abc import Sequence
from typing import Any

import msgspec
import numpy as np

from healer.observations.step_grid import SLOW, Matrix, RankPace, StepGrid

#: More ranks than that are drawn as nodes.
RANK_ROWS = 256

_NO_DEVIATION = -32_768
_NO_SECONDS = 65_535
_UNPLACED = 8


class SlowRank(msgspec.Struct, frozen=True, kw_only=True):
    """One row of the table of slowest ranks, in words."""

    rank: int
    node: str
    gpu: str
    stage: str
    slower: str
    last: str
    compute: str
    slow_steps: int
    is_slow: bool


def slow_rank(pace: RankPace) -> SlowRank:
    return SlowRank(
        rank=pace.rank,
        node=pace.node or "",
        gpu="" if pace.gpu is None else str(pace.gpu),
        stage="" if pace.stage is None else str(pace.stage),
        slower=percent(pace.slower),
        last=percent(pace.last),
        compute="" if pace.compute_s is None else f"{pace.compute_s:.3f} s",
        slow_steps=pace.slow_steps,
        is_slow=pace.slower > SLOW,
    )


def percent(share: float | None) -> str:
    """`+18.2 %`, `−0.4 %`, empty when unknown."""
    return "" if share is None else f"{share * 100:+.1f} %".replace("-", "−")


def picture(made: StepGrid, away: Matrix, checkpoints: Sequence[int], cluster: str) -> dict[str, Any]:
    """What `heatmap.js` draws. `dev` is int16 in 0.1 %, `sec` uint16 in `scale_s`, both little-endian rows.

    More than `RANK_ROWS` ranks: one row per node, each cell its slowest rank.
    """
    seconds = made.compute_s if made.has_compute else made.step_s
    groups = _rows(made)
    dev = np.full((len(groups), len(made.step)), np.nan)
    sec = np.full_like(dev, np.nan)
    for index, members in enumerate(groups):
        if len(members) == 1:
            dev[index], sec[index] = away[members[0]], seconds[members[0]]
            continue
        filled = np.nan_to_num(away[members], nan=-np.inf)
        worst = filled.argmax(axis=0)
        columns = np.arange(len(made.step))
        dev[index], sec[index] = away[members][worst, columns], seconds[members][worst, columns]
    scale = max(float(sec[np.isfinite(sec)].max(initial=0.0)) / 65_000, 1e-6)
    known = {int(step): index for index, step in enumerate(made.step)}
    return {
        "cluster": cluster,
        "mode": "compute" if made.has_compute else "step",
        "steps": made.step.tolist(),
        "at": [round(float(one), 1) if math.isfinite(one) else None for one in made.at],
        "rows": [_row_words(made, members) for members in groups],
        "dev": _packed(dev * 1000, np.int16, -32_000, 32_000, _NO_DEVIATION),
        "sec": _packed(sec / scale, np.uint16, 0, 65_000, _NO_SECONDS),
        "scale_s": scale,
        "checkpoints": sorted(known[step] for step in checkpoints if step in known),
    }


def _packed(values: Matrix, kind: type, low: int, high: int, none: int) -> str:
    whole = np.where(np.isfinite(values), np.clip(np.round(values), low, high), none)
    return base64.b64encode(whole.astype(np.dtype(kind).newbyteorder("<")).tobytes()).decode()


def _rows(made: StepGrid) -> list[list[int]]:
    """Rows of the picture: ranks grouped by node in the order of their first rank, or whole nodes."""
    count = len(made.rank)
    by_node: dict[tuple[int, int], list[int]] = {}
    for row in range(count):
        node = int(made.node[row])
        by_node.setdefault((node, -1) if node >= 0 else (-1, row // _UNPLACED), []).append(row)
    if count > RANK_ROWS:
        return list(by_node.values())
    return [[row] for members in by_node.values() for row in members]


def _row_words(made: StepGrid, members: list[int]) -> dict[str, Any]:
    first = members[0]
    row: dict[str, Any] = {"r": int(made.rank[first])}
    if len(members) > 1:
        row["to"] = int(made.rank[members[-1]])
        row["c"] = len(members)
    elif made.gpu[first] >= 0:
        row["g"] = int(made.gpu[first])
    if made.node[first] >= 0:
        row["n"] = made.nodes[made.node[first]]
    if made.stage[first] >= 0:
        row["s"] = int(made.stage[first])
    return row
