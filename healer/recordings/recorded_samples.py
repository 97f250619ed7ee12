"""Samples back in the form in which senders tell them: columnar metrics, and step times."""

from collections.abc import Sequence
from datetime import UTC, datetime
from math import isinf, isnan
from typing import Any

from healer.model import Column
from healer.model.samples import DOING, Report, StepBatch
from healer.ports.measurements import ColumnBook

#: Layouts of reports that are kept: as many as kinds of nodes, and a few more while a fleet changes.
LAYOUTS = 10_000

#: Where one value goes: ("gpu", signal, gpu, 0), ("links", signal, gpu, link), ("ports", port, signal, 0) or
#: ("host", signal, 0, 0).
_Spot = tuple[str, str, Any, Any]


class Layouts:
    """Turns reports back into columnar bodies. Layouts of each kind of report are kept."""

    def __init__(self, book: ColumnBook) -> None:
        self._book = book
        self._known: dict[bytes, list[_Spot | None]] = {}

    def bodies(self, reports: Sequence[Report]) -> list[dict[str, Any]]:
        return [self._body(one) for one in reports]

    def _body(self, report: Report) -> dict[str, Any]:
        gpu: dict[str, list[float | None]] = {}
        host: dict[str, float] = {}
        ports: dict[str, dict[str, float]] = {}
        links: dict[str, list[list[float | None]]] = {}
        for spot, value in zip(self._layout(report), report.values.tolist(), strict=True):
            if spot is None or isnan(value):
                continue
            if value.is_integer():
                value = int(value)  # noqa: PLW2901 - `61` for `61.0`: a third of the file
            kind, name, at, link = spot
            if kind == "gpu":
                _set(gpu.setdefault(name, []), at, value)
            elif kind == "host":
                host[name] = value
            elif kind == "ports":
                ports.setdefault(name, {})[at] = value
            else:
                per_gpu = links.setdefault(name, [])
                per_gpu.extend([] for _ in range(at + 1 - len(per_gpu)))
                _set(per_gpu[at], link, value)
        parts = {"gpu": gpu, "host": host, "ports": ports, "links": links}
        head = {"cluster": report.cluster, "node": report.node, "time": report.at}
        return head | {name: part for name, part in parts.items() if part}

    def _layout(self, report: Report) -> list[_Spot | None]:
        key = report.columns.tobytes()
        known = self._known.get(key)
        if known is None:
            if len(self._known) >= LAYOUTS:
                self._known.clear()
            ids = report.columns.tolist()
            columns = self._book.columns(ids)
            known = self._known[key] = [_spot(columns.get(number)) for number in ids]
        return known


def _spot(column: Column | None) -> _Spot | None:
    if column is None:
        return None
    part = column.part
    if part.port is not None:
        return ("ports", part.port, column.signal, 0)
    if part.link is not None and part.gpu is not None:
        return ("links", column.signal, part.gpu, part.link)
    if part.gpu is not None:
        return ("gpu", column.signal, part.gpu, 0)
    return ("host", column.signal, 0, 0)


def _set(values: list[float | None], index: int, value: float) -> None:
    values.extend([None] * (index + 1 - len(values)))
    values[index] = value


_FIGURES = ("step_s", "compute_s", "comm_s", "data_s", "work", "loss", "grad_norm")


def steps_body(batch: StepBatch) -> dict[str, Any]:
    """What was not told is left out."""
    rows: list[dict[str, Any]] = [
        {"time": datetime.fromtimestamp(at, UTC), "step": step, "rank": rank}
        for at, step, rank in zip(batch.at.tolist(), batch.step.tolist(), batch.rank.tolist(), strict=True)
    ]
    for row, node in zip(rows, batch.node.tolist(), strict=True):
        if node >= 0:
            row["node"] = batch.nodes[node]
    for name in ("gpu", "stage"):
        for row, value in zip(rows, getattr(batch, name).tolist(), strict=True):
            if value >= 0:
                row[name] = value
    for name in _FIGURES:
        for row, value in zip(rows, getattr(batch, name).tolist(), strict=True):
            if not isnan(value):
                row[name] = "NaN" if isinf(value) else value
    if batch.doing is not None:
        for row, doing in zip(rows, batch.doing.tolist(), strict=True):
            row["open_s"], row["doing"] = row.pop("step_s"), DOING[doing]
    return {"cluster": batch.cluster, "job": batch.job, "restart": batch.restart, "samples": rows}
