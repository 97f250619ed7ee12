"""A fleet's baseline of test results: finds a node whose figures are far below those of its model.

The figures that a burn-in, a validation or a sweep measured on a node (matrix products, bandwidth of memory,
NVLink and the fabric) are kept in the runs' logs. The newest of each is compared with the newest of all other
nodes of the GPU model. This needs no reference node, and no data sheet. It is evidence: such a node is the
first suspect when a job on it is slow, and it is also reported by itself.
"""

from collections.abc import Callable, Iterable, Mapping
from datetime import datetime, timedelta
from operator import attrgetter

import numpy as np

from healer.detection.protocol import Detector, TickInput, new_evidence, percent
from healer.detection.streams import robust
from healer.model import (
    Component,
    Detections,
    FaultClass,
    Figure,
    Finding,
    FleetFigure,
    NodeComparison,
    NodeFigures,
    Sense,
    SlurmSnapshot,
    node_kind,
)
from healer.model.detection import is_due
from healer.observations.telemetry_windows import Telemetry
from healer.ports.transactions import LedgerAway
from healer.text import Said, joined, say

SLOWER_THAN_FLEET = "slower-than-fleet"
#: Nodes of one model that must have a figure before it is judged, including this one.
NODES_LEAST = 8
#: This far below the median, as a share of it and in robust standard deviations, is too far.
BELOW, SPREADS = 0.05, 4.0
#: Figures are never more repeatable than this share, whatever the fleet's spread looks like.
SPREAD_LEAST = 0.005
#: Half-way back is not enough.
OVER = 0.5
#: How often they are compared, and from how long a time.
EVERY = timedelta(hours=1)
LOOK_BACK = timedelta(days=90)
#: Retry interval while the database is away.
AWAY = timedelta(minutes=1)


def standings(cluster: str, given: Iterable[NodeFigures], kinds: Mapping[str, str]) -> list[NodeComparison]:
    """Each node with figures compared with its model, by name. `kinds`: node -> its GPU model; other nodes
    are not compared."""
    nodes = sorted((node for node in given if node.figures and kinds.get(node.node)), key=attrgetter("node"))
    values: dict[tuple[str, str], list[float]] = {}
    for node in nodes:
        for name, figure in node.figures.items():
            values.setdefault((kinds[node.node], name), []).append(figure.value)
    middle = {key: _middle(found) for key, found in values.items()}
    return [
        NodeComparison(
            cluster=cluster,
            node=node.node,
            kind=kinds[node.node],
            figures=tuple(
                _standing(name, figure, *middle[kinds[node.node], name])
                for name, figure in sorted(node.figures.items())
            ),
        )
        for node in nodes
    ]


def _middle(values: list[float]) -> tuple[float, float, int]:
    """Median, robust standard deviation, and number of values."""
    center, spread = robust(np.array(values))
    return center, max(spread, SPREAD_LEAST * center), len(values)


def _standing(name: str, figure: Figure, center: float, spread: float, nodes: int) -> FleetFigure:
    below = center - figure.value
    low = nodes >= NODES_LEAST and below > max(BELOW * center, SPREADS * spread)
    return FleetFigure(
        name=name,
        value=figure.value,
        at=figure.at,
        median=center,
        spread=round(spread, 6),
        nodes=nodes,
        low=low,
    )


def sentence(figure: FleetFigure) -> Said:
    """`gemm_tflop_per_s 612, 12% below the median 698 of 40 nodes of its model (6.1 spreads)`"""
    away = (figure.median - figure.value) / figure.spread
    return say(
        "detection.fleet_figure",
        name=figure.name,
        value=figure.value,
        share=percent(1 - figure.value / figure.median),
        median=figure.median,
        n=figure.nodes,
        away=away,
        when=f"{figure.at:%Y-%m-%d %H:%M}",
    )


class FleetFigures(Detector):
    """Compares every hour. `read(since)` returns the figures of tests since then, `keep(standings, now)`
    takes the comparison for pages; either may raise LedgerAway."""

    needs_samples = False

    def __init__(
        self,
        cluster: str,
        read: Callable[[datetime], list[NodeFigures]],
        keep: Callable[[list[NodeComparison], datetime], None],
    ) -> None:
        self.cluster, self._read, self._keep = cluster, read, keep
        self._compared: datetime | None = None
        #: When nodes were first compared: an incident from before a restart waits for that.
        self._known_since: datetime | None = None
        self._standings: dict[str, NodeComparison] = {}
        #: Node -> since when it is slower than its model; node -> since when its figures count.
        self._slow: dict[str, datetime] = {}
        self._renewed: dict[str, datetime] = {}

    @property
    def suspects(self) -> dict[str, tuple[Said, ...]]:
        """Why nodes are suspects for slow jobs, in words."""
        return {
            node: tuple(
                say("detection.its_tests", figure=sentence(figure))
                for figure in standing.figures
                if figure.low
            )
            for node, standing in self._standings.items()
            if node in self._slow
        }

    def forget(self, telemetry: Telemetry, node: str, since: datetime) -> None:
        self._renewed[node] = since
        self._slow.pop(node, None)
        self._standings.pop(node, None)

    def tick(self, given: TickInput) -> Detections:
        slurm, now = given.slurm, given.now
        findings: list[Finding] = []
        if slurm is not None and is_due(self._compared, EVERY, now):
            findings = self._compare(slurm, now)
        since = self._known_since
        clear = {
            (fault, where): since
            for fault, where in given.watched
            # A node without known figures may be as slow as it was.
            if fault == SLOWER_THAN_FLEET
            and since is not None
            and where.node in self._standings
            and where.node not in self._slow
        }
        return Detections(at=now, findings=tuple(findings), clear_since=clear)

    def _compare(self, slurm: SlurmSnapshot, now: datetime) -> list[Finding]:
        kinds = {node.name: node_kind(node.gpu_model) for node in slurm.nodes.values() if node.gpus}
        try:
            given = [self._since_renewal(node) for node in self._read(now - LOOK_BACK)]
            found = standings(self.cluster, given, kinds)
            self._keep(found, now)
        except LedgerAway:
            self._compared = now - EVERY + AWAY
            return []
        self._compared = now
        self._known_since = self._known_since or now
        self._standings = {standing.node: standing for standing in found}
        for standing in found:
            if any(figure.low for figure in standing.figures):
                self._slow.setdefault(standing.node, now)
            elif standing.node in self._slow and all(_is_back(figure) for figure in standing.figures):
                del self._slow[standing.node]
        return [self._finding(node, now) for node in sorted(self._slow.keys() & self._standings.keys())]

    def _since_renewal(self, node: NodeFigures) -> NodeFigures:
        """Only the figures measured since the node was repaired or returned."""
        since = self._renewed.get(node.node)
        if since is None:
            return node
        figures = {name: figure for name, figure in node.figures.items() if figure.at >= since}
        return NodeFigures(node.node, figures)

    def _finding(self, node: str, now: datetime) -> Finding:
        since, where = self._slow[node], Component(cluster=self.cluster, node=node)
        low = [figure for figure in self._standings[node].figures if figure.low or not _is_back(figure)]
        figures = joined((sentence(figure) for figure in low), "semicolon")
        text = say("detection.told", head=str(where), text=figures)
        # Last month's test is no second sense today.
        measured_at = max((figure.at for figure in low), default=since)
        identity = f"{SLOWER_THAN_FLEET}|{where}|{since.isoformat()}"
        evidence = new_evidence(identity, where, measured_at, text, now, Sense.hook)
        return Finding.from_evidence(
            evidence,
            fault=SLOWER_THAN_FLEET,
            fault_class=FaultClass.informational,
            at=since,
            title=say("detection.slower_than_fleet"),
            confidence=0.7,
        )


def _is_back(figure: FleetFigure) -> bool:
    return figure.median - figure.value <= OVER * max(BELOW * figure.median, SPREADS * figure.spread)
