"""Step times of a job as a picture: rank by step, coloured by how much slower than its stage a rank was."""

import base64
import math
from collections.abc import Sequence
from datetime import UTC, datetime, timedelta
from typing import Any

import numpy as np

from healer.console import words
from healer.console.views import Shown
from healer.console.views.charts_view import ChartView, chart_view
from healer.console.views.fleet_view import NodeRow
from healer.engine.records import JobHistory
from healer.model import SlurmJob
from healer.model.detection import Chart, ChartLine, ChartMark
from healer.model.goodput import Spent
from healer.observations import step_grid
from healer.observations.step_grid import SLOW, Matrix, RankPace, StepGrid
from healer.ports.answers import GoodputSum
from healer.text import joined, name_some, quoted, say

#: More ranks than that are drawn as nodes.
RANK_ROWS = 256

_NO_DEVIATION = -32_768
_NO_SECONDS = 65_535
_UNPLACED = 8


def spent_rows(sums: Sequence[GoodputSum]) -> list[Shown]:
    """What the job's GPU-hours were spent on, the most first; parts of a class by cause."""
    found: dict[tuple[Spent, str], float] = {}
    for each in sums:
        found[each.spent, each.name] = found.get((each.spent, each.name), 0.0) + each.gpu_hours
    whole = sum(found.values())
    return [
        Shown(
            word=say(f"console.spent_{spent}"),
            cause=cause,
            hours=f"{hours:,.2f}",
            share=f"{hours / whole:.1%}",
        )
        for (spent, cause), hours in sorted(found.items(), key=lambda item: -item[1])
        if hours
    ]


def _slow_rank(pace: RankPace) -> Shown:
    return Shown(
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
    """`+18.2%`, `−0.4%`, empty when unknown."""
    return "" if share is None else f"{share * 100:+.1f}%".replace("-", "−")


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
    index_of = {int(step): index for index, step in enumerate(made.step)}
    return {
        "cluster": cluster,
        "mode": "compute" if made.has_compute else "step",
        "steps": made.step.tolist(),
        "at": [round(float(at), 1) if math.isfinite(at) else None for at in made.at],
        "rows": [_row_words(made, members) for members in groups],
        "dev": _packed(dev * 1000, np.int16, -32_000, 32_000, _NO_DEVIATION),
        "sec": _packed(sec / scale, np.uint16, 0, 65_000, _NO_SECONDS),
        "scale_s": scale,
        "checkpoints": sorted(index_of[step] for step in checkpoints if step in index_of),
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


#: How far back step times are read; at most `step_grid.STEPS_KEPT` steps of them are drawn.
WINDOW = timedelta(minutes=30)
#: Nodes listed by name; those in trouble come first.
NODES_SHOWN = 64
_MARKS_SHOWN = 10


def job_nodes(shown: SlurmJob | None, rows: dict[str, NodeRow]) -> list[Shown]:
    """Those with an open incident first, the rest in Slurm's order. `row` is None where Slurm no longer shows
    the node."""
    found = [
        Shown(
            name=name,
            gpus=words.numbers(shown.gpus.get(name, ())) if shown else "",
            row=rows.get(name),
            incidents=rows[name].incidents if name in rows else (),
        )
        for name in (shown.nodes if shown else ())
    ]
    return sorted(found, key=lambda node: not node.incidents)


def gpu_count(shown: SlurmJob | None, rows: dict[str, NodeRow]) -> int:
    if shown is None:
        return 0
    return sum(
        len(shown.gpus[name]) if name in shown.gpus else rows[name].slurm.gpus if name in rows else 0
        for name in shown.nodes
    )


def facts(shown: SlurmJob) -> list[tuple[str, str]]:
    """Facts that only some jobs have: title and text, for those that are set."""
    array = (
        say("console.job_task", array_task=shown.array_task)
        if shown.array_task is not None
        else say("console.job_tasks_wait_together")
    )
    rows = (
        (say("console.job_array"), f"{shown.array_job}, {array}" if shown.array_job else ""),
        (
            say("console.job_heterogeneous_job"),
            say("console.job_part", het_job=shown.het_job, het_offset=shown.het_offset)
            if shown.het_job
            else "",
        ),
        (say("console.job_held_by"), _HOLDERS.get(shown.held_by, "")),
        (say("console.job_slurm_says"), shown.why),
        (say("console.job_federation"), _federation(shown)),
        (say("console.job_must_not_use"), name_some(shown.excluded, 8) if shown.excluded else ""),
        (say("console.job_reservation"), shown.reservation),
        (say("console.job_depends"), shown.dependency),
        (say("console.job_goes_without_failed_node"), "yes" if shown.no_kill else ""),
        (say("console.job_failed_node"), shown.failed_node),
        (say("console.job_exit_code"), shown.exit_code or ""),
        (say("console.job_admin_comment"), shown.admin_comment),
    )
    return [(title, text) for title, text in rows if text]


_HOLDERS = {"user": say("console.job_owner"), "admin": say("console.job_administrator_or_slurm")}


def _federation(shown: SlurmJob) -> str:
    """`from pod1, copies in pod1, pod2`."""
    parts = [say("console.job_from", origin=shown.origin) if shown.origin else ""]
    parts.append(say("console.job_copies", siblings=", ".join(shown.siblings)) if shown.siblings else "")
    return joined(filter(None, parts), "comma")


def view_job(
    shown: SlurmJob | None, rows: dict[str, NodeRow], made: StepGrid | None, history: JobHistory
) -> Shown:
    nodes = job_nodes(shown, rows)
    return Shown(
        nodes=tuple(nodes[:NODES_SHOWN]),
        node_count=len(nodes),
        gpu_count=gpu_count(shown, rows),
        steps=steps_view(made, history) if made is not None else None,
    )


def steps_view(made: StepGrid, history: JobHistory) -> Shown:
    """The job's step times. `rows_are_nodes`: too many ranks to draw each."""
    away = step_grid.deviation(made)
    step_s = np.asarray(step_grid.median_over_ranks(made.step_s))
    finite = step_s[np.isfinite(step_s)]
    last = made.at[np.isfinite(made.at)]
    return Shown(
        chart=_chart(made, step_s, history),
        ranks=len(made.rank),
        steps=len(made.step),
        rows_are_nodes=len(made.rank) > RANK_ROWS,
        whole_only=not made.has_compute,
        placed_by_order=made.placed_by_order,
        slowest=tuple(map(_slow_rank, step_grid.slowest(made, away))) if made.has_compute else (),
        last_at=datetime.fromtimestamp(float(last[-1]), UTC) if len(last) else None,
        speed=words.figure(float(np.median(finite[-step_grid.RECENT_STEPS :])), "s") if len(finite) else "",
    )


def _chart(made: StepGrid, step_s: step_grid.Matrix, history: JobHistory) -> ChartView:
    keep = np.isfinite(made.at)
    lines = [ChartLine(label=say("console.job_step"), role="own", values=_values(step_s[keep]))]
    if made.has_compute:
        compute = made.compute_s[:, keep]
        middle = step_grid.median_over_ranks(compute)
        slow = np.where(np.isfinite(compute).any(axis=0), np.nan_to_num(compute).max(axis=0), np.nan)
        lines += [
            ChartLine(label=say("console.job_compute_slowest_rank"), role="own", values=_values(slow)),
            ChartLine(label=say("console.job_compute_median_rank"), role="peers", values=_values(middle)),
        ]
    marks = [
        ChartMark(
            at=checkpoint.at,
            label=say("console.job_checkpoint")
            if checkpoint.durable
            else say("console.job_checkpoint_not_durable"),
        )
        for checkpoint in history.checkpoints[-_MARKS_SHOWN:]
    ]
    marks += [
        ChartMark(at=incident.opened, label=quoted(incident.rule))
        for incident in history.incidents
        if incident.is_open
    ]
    marks += [ChartMark(at=requeue.at, label=say("console.job_requeued")) for requeue in history.requeues]
    times = tuple(float(at) for at in made.at[keep])
    return chart_view(
        "chart-steps",
        Chart(title=say("console.job_time_per_step"), unit="s", times=times, lines=tuple(lines)),
        marks,
    )


def _values(found: step_grid.Matrix) -> tuple[float | None, ...]:
    return tuple(None if math.isnan(value) else float(value) for value in found)


def checkpoint_steps(history: JobHistory, restart: int) -> Sequence[int]:
    """Steps of the durable checkpoints of this life."""
    return [
        checkpoint.step
        for checkpoint in history.checkpoints
        if checkpoint.durable and checkpoint.restart == restart
    ]
