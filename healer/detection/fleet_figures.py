"""A fleet's baseline of what tests measure: a node whose own figures lie far below those of its model.

What a burn-in, a validation or a sweep measured on a node (products of matrices, bandwidth of memory, NVLink
and the fabric) is kept in the runs' logs; the newest of each figure is compared with the newest of all other
nodes of the GPU model. It needs no good node by name, and no figure from a data sheet. It is evidence: a
node with it is the first suspect when a job on it is slow, and it is told by itself.
"""

from collections.abc import Callable, Iterable, Mapping
from datetime import datetime, timedelta
from hashlib import sha256
from statistics import median

from healer.detection.protocol import Detector, Look
from healer.model import (
    Component,
    Detections,
    Evidence,
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
from healer.observations.telemetry_windows import Telemetry
from healer.ports.transactions import LedgerAway

SLOWER_THAN_FLEET = "slower-than-fleet"
#: Nodes of one model that a figure has to be known of, this one among them.
NODES_LEAST = 8
#: So far below the median, as a share of it and in robust standard deviations, is too far.
BELOW, SPREADS = 0.05, 4.0
#: Figures repeat themselves no better than this share, whatever the fleet's spread looks like.
SPREAD_LEAST = 0.005
#: Half-way back is not back.
OVER = 0.5
#: They are compared so often, with what was measured in this time.
EVERY = timedelta(hours=1)
LOOK_BACK = timedelta(days=90)
#: While the database is away it is asked so often.
AWAY = timedelta(minutes=1)
_NORMAL = 1.4826


def standings(cluster: str, told: Iterable[NodeFigures], kinds: Mapping[str, str]) -> list[NodeComparison]:
    """Of each node of which something is known, by name. `kinds`: node -> the model of its GPUs; what is not
    in it is not compared."""
    known = sorted((one for one in told if one.figures and kinds.get(one.node)), key=lambda one: one.node)
    values: dict[tuple[str, str], list[float]] = {}
    for one in known:
        for name, figure in one.figures.items():
            values.setdefault((kinds[one.node], name), []).append(figure.value)
    middle = {key: (median(found), _spread(found), len(found)) for key, found in values.items()}
    return [
        NodeComparison(
            cluster=cluster,
            node=one.node,
            kind=kinds[one.node],
            figures=tuple(
                _standing(name, figure, *middle[kinds[one.node], name])
                for name, figure in sorted(one.figures.items())
            ),
        )
        for one in known
    ]


def _spread(values: list[float]) -> float:
    center = median(values)
    return max(_NORMAL * median(abs(one - center) for one in values), SPREAD_LEAST * center)


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


def sentence(one: FleetFigure) -> str:
    """`gemm_tflop_per_s 612, 12 % below the median 698 of 40 nodes of its model (6.1 spreads)`"""
    share = f"{1 - one.value / one.median:.0%}".replace("%", " %")
    away = (one.median - one.value) / one.spread
    return (
        f"{one.name} {one.value:g}, {share} below the median {one.median:.4g} of {one.nodes} nodes of its "
        f"model ({away:.1f} spreads), measured {one.at:%Y-%m-%d %H:%M} UTC"
    )


class FleetFigures(Detector):
    """Compares each hour. `read(since)` gives what tests told since then, `keep(standings, now)` takes what
    comes of it, for pages; either may raise LedgerAway."""

    def __init__(
        self,
        cluster: str,
        read: Callable[[datetime], list[NodeFigures]],
        keep: Callable[[list[NodeComparison], datetime], None],
    ) -> None:
        self.cluster, self._read, self._keep = cluster, read, keep
        self._compared: datetime | None = None
        #: When it was first known how nodes stand: an incident of before a restart waits for that.
        self._known_since: datetime | None = None
        self._standings: dict[str, NodeComparison] = {}
        #: Node -> since when it is told; -> since when what is measured of it counts.
        self._told: dict[str, datetime] = {}
        self._renewed: dict[str, datetime] = {}

    @property
    def suspects(self) -> dict[str, tuple[str, ...]]:
        """Why nodes are suspects of slow jobs, in words."""
        return {
            node: tuple(f"its tests, {sentence(one)}" for one in self._standings[node].figures if one.low)
            for node in self._told
            if node in self._standings
        }

    def forget(self, telemetry: Telemetry, node: str, since: datetime) -> None:
        self._renewed[node] = since
        self._told.pop(node, None)
        self._standings.pop(node, None)

    @property
    def needs_samples(self) -> bool:
        return False

    def tick(self, look: Look) -> Detections:
        slurm, now = look.slurm, look.now
        findings: list[Finding] = []
        due = self._compared is None or abs(now - self._compared) >= EVERY
        if due and slurm is not None:
            findings = self._compare(slurm, now)
        clear = {
            (fault, where): self._known_since
            for fault, where in look.watched
            if fault == SLOWER_THAN_FLEET and self._known_since is not None and self._is_well(where.node)
        }
        return Detections(at=now, findings=tuple(findings), clear_since=clear)

    def _is_well(self, node: str | None) -> bool:
        """Known, and known to be half-way back: a node of which nothing is known may be as it was."""
        known = self._standings.get(node or "")
        return known is not None and node not in self._told

    def _compare(self, slurm: SlurmSnapshot, now: datetime) -> list[Finding]:
        kinds = {one.name: node_kind(one.gpu_model) for one in slurm.nodes.values() if one.gpus}
        try:
            told = [self._counting(one) for one in self._read(now - LOOK_BACK)]
            found = standings(self.cluster, told, kinds)
            self._keep(found, now)
        except LedgerAway:
            self._compared = now - EVERY + AWAY  # nothing waits for it
            return []
        self._compared = now
        self._known_since = self._known_since or now
        self._standings = {one.node: one for one in found}
        for one in found:
            if any(figure.low for figure in one.figures):
                self._told.setdefault(one.node, now)
            elif one.node in self._told and all(_is_back(figure) for figure in one.figures):
                del self._told[one.node]
        return [self._finding(node, now) for node in sorted(self._told.keys() & self._standings.keys())]

    def _counting(self, one: NodeFigures) -> NodeFigures:
        since = self._renewed.get(one.node)
        if since is None:
            return one
        return NodeFigures(one.node, {name: told for name, told in one.figures.items() if told.at >= since})

    def _finding(self, node: str, now: datetime) -> Finding:
        since, where = self._told[node], Component(cluster=self.cluster, node=node)
        low = [one for one in self._standings[node].figures if one.low or not _is_back(one)]
        text = f"{where}: {'; '.join(sentence(one) for one in low)}"
        evidence = Evidence(
            digest=sha256(f"{SLOWER_THAN_FLEET}|{where}|{since.isoformat()}".encode()).hexdigest(),
            at=max((one.at for one in low), default=since),  # a test of last month is no second sense today
            arrived_at=now,
            component=where,
            text=text,
            sense=Sense.hook,
        )
        return Finding.from_evidence(
            evidence,
            fault=SLOWER_THAN_FLEET,
            fault_class=FaultClass.informational,
            at=since,
            title="Its own tests are slower than those of its model's other nodes",
            confidence=0.7,
        )


def _is_back(one: FleetFigure) -> bool:
    return one.median - one.value <= OVER * max(BELOW * one.median, SPREADS * one.spread)
