"""People's commands to runs and to drift, each to the cluster that it is about, with adapters of its own.

What one cluster's Slurm does not answer stays with that cluster's requests.
"""

from collections.abc import Mapping, Sequence
from typing import TypeVar

import sqlalchemy as sa

from healer.adapters.postgres.engine import translated
from healer.adapters.postgres.run_rows import cluster_of
from healer.model import Breaker, Run
from healer.model.drift import Drift, Reconciled
from healer.ports.api_answers import Preview
from healer.ports.people_commands import Reconcile, RunCommands, RunRequest
from healer.ports.request_errors import NotFound

T = TypeVar("T")


class RunsByCluster:
    """`healer.ports.people_commands.RunCommands` of each cluster. NotFound for a cluster that is none."""

    def __init__(self, engine: sa.Engine, runs: Mapping[str, RunCommands]) -> None:
        self._engine, self._runs = engine, runs

    def preview(self, request: RunRequest) -> Preview:
        return self._at(request.cluster).preview(request)

    def start(self, request: RunRequest) -> Run:
        return self._at(request.cluster).start(request)

    def approve(self, run: str, *, by: str, reason: str, request: str, restart: Sequence[str] = ()) -> Run:
        return self._of(run).approve(run, by=by, reason=reason, request=request, restart=restart)

    def reject(self, run: str, *, by: str, reason: str, request: str) -> Run:
        return self._of(run).reject(run, by=by, reason=reason, request=request)

    def cancel(self, run: str, *, by: str, reason: str, request: str) -> Run:
        return self._of(run).cancel(run, by=by, reason=reason, request=request)

    def retry(self, run: str, *, by: str, reason: str, request: str, step: str | None = None) -> Run:
        return self._of(run).retry(run, by=by, reason=reason, request=request, step=step)

    def undo(self, run: str, *, by: str, reason: str, request: str) -> Run:
        return self._of(run).undo(run, by=by, reason=reason, request=request)

    def reset_breaker(self, cluster: str, *, by: str, reason: str, request: str) -> Breaker:
        return self._at(cluster).reset_breaker(cluster, by=by, reason=reason, request=request)

    def _of(self, run: str) -> RunCommands:
        with translated(), self._engine.connect() as conn:
            cluster = cluster_of(conn, run)
        return self._at(cluster)

    def _at(self, cluster: str) -> RunCommands:
        return _named(self._runs, cluster)


class ReconcileByCluster:
    """`healer.ports.people_commands.Reconcile` over those of each cluster."""

    def __init__(self, parts: Mapping[str, Reconcile]) -> None:
        self._parts = parts

    def drifts(self, cluster: str) -> list[Drift]:
        return _named(self._parts, cluster).drifts(cluster)

    def repair(self, cluster: str, *, by: str, reason: str, request: str) -> list[Reconciled]:
        return _named(self._parts, cluster).repair(cluster, by=by, reason=reason, request=request)


def _named(parts: Mapping[str, T], cluster: str) -> T:
    if cluster not in parts:
        raise NotFound(f"there is no cluster {cluster}; there are {', '.join(sorted(parts))}")
    return parts[cluster]
