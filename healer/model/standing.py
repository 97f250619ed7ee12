"""What tests of a node measured, and how that stands among the nodes of its model."""

from datetime import datetime

import msgspec


class Figure(msgspec.Struct, frozen=True):
    """A rate that a test told (`gemm_tflop_per_s`): the higher the better."""

    value: float
    at: datetime


class NodeFigures(msgspec.Struct, frozen=True):
    """By name the newest of each."""

    node: str
    figures: dict[str, Figure]


class FleetFigure(msgspec.Struct, frozen=True, kw_only=True):
    """A figure beside those of `nodes` nodes of its model: their `median`, and their `spread` (a robust
    standard deviation). `low`: too far below it."""

    name: str
    value: float
    at: datetime
    median: float
    spread: float
    nodes: int
    low: bool = False


class NodeStanding(msgspec.Struct, frozen=True, kw_only=True):
    """`kind` is the model of its GPUs. The figures by name."""

    cluster: str
    node: str
    kind: str
    figures: tuple[FleetFigure, ...]
