"""Results of node tests, as the runs' logs in PostgreSQL hold them; standings of nodes, as pages read
them."""

from contextlib import ExitStack
from datetime import datetime, timedelta
from typing import Any

import pytest
import sqlalchemy as sa

from healer.adapters.postgres.node_rows import PostgresFleetFigures, read_standing
from healer.model import Figure, FleetFigure, NodeComparison, NodeFigures
from tests.support.ledgers import CLUSTER, START, PostgresBench, ago, begin, claimed, entry, node, run

GEMM, MEMORY = "gemm_tflop_per_s", "memory_gb_per_s"


@pytest.fixture
def bench(fresh_database: sa.Engine) -> PostgresBench:
    return PostgresBench(fresh_database)


def outcome(verb: str, passed: bool | None = True, **results: str) -> dict[str, Any]:
    return {"verb": verb, "results": results} | ({} if passed is None else {"passed": passed})


def test_of_each_node_the_newest_of_each_figure(bench: PostgresBench, fresh_database: sa.Engine) -> None:
    tests: dict[str, tuple[int, datetime, dict[str, Any]]] = {
        "old": (1, ago(days=100), outcome("sweep", gemm_tflop_per_s="1")),
        "first": (1, ago(days=20), outcome("diagnose", gemm_tflop_per_s="690.1", memory_gb_per_s="4000")),
        "newer": (1, ago(days=2), outcome("sweep", passed=False, gemm_tflop_per_s="612", gpu_count="8")),
        "none": (2, ago(days=1), outcome("sweep", passed=None, gemm_tflop_per_s="500")),
        "other": (3, ago(days=1), outcome("bisect", gemm_tflop_per_s="500")),
        "facts": (4, ago(days=1), outcome("diagnose", driver="580.65.06")),
    }
    for name, (number, at, _) in tests.items():
        begin(bench, run(name, number, playbook="sweep", alongside=True, created_at=at))
    with ExitStack() as stack:
        for name, (_, at, data) in tests.items():
            claimed(stack, bench, name).write(entry("test", run=name, at=at, data=data))
    found = PostgresFleetFigures(fresh_database, CLUSTER).read(START - timedelta(days=90))
    figures = {GEMM: Figure(612.0, ago(days=2)), MEMORY: Figure(4000.0, ago(days=20))}
    assert [one for one in found if one.figures] == [NodeFigures(node(1), figures)]
    assert PostgresFleetFigures(fresh_database, "another").read(ago(days=90)) == []


def test_standings_are_written_together_and_read_by_node(fresh_database: sa.Engine) -> None:
    book = PostgresFleetFigures(fresh_database, CLUSTER)
    figure = FleetFigure(name=GEMM, value=612, at=START, median=698, spread=7, nodes=40, low=True)
    both = [NodeComparison(cluster=CLUSTER, node=node(one), kind="h100", figures=(figure,)) for one in (1, 2)]
    book.keep(both, START)
    with fresh_database.connect() as conn:
        assert read_standing(conn, CLUSTER, node(2)) == both[1]
        assert read_standing(conn, "another", node(2)) is None
    book.keep(both[:1], START)
    with fresh_database.connect() as conn:
        assert read_standing(conn, CLUSTER, node(1)) == both[0]
        assert read_standing(conn, CLUSTER, node(2)) is None
