"""What the fleet's map is coloured by, on a real PostgreSQL."""

import dataclasses
import threading
from collections.abc import Mapping
from datetime import UTC, datetime, timedelta

import numpy as np
import sqlalchemy as sa

from healer.adapters.postgres.sample_reads import PostgresSignalReads
from healer.adapters.postgres.samples import PostgresColumns, PostgresSamples
from healer.console.fleet_map import GAUGES_LAST, PACES_LAST, CachedRead, gauges, paces
from healer.model import Column, Part
from healer.model.telemetry import Report
from healer.ports.answers import NodeGauges
from tests.support.api import CLUSTER, snapshot
from tests.support.console_telemetry import steps_of
from tests.support.wait import wait_until

NOW = datetime.now(UTC)
TEMPERATURE, REASONS = "gpu_temp_c", "clock_event_reasons"

GpuValues = dict[tuple[str, int], float]


def report(book: PostgresColumns, node: str, ago_s: float, values: GpuValues) -> Report:
    at = NOW - timedelta(seconds=ago_s)
    ids = book.ids([Column(name, Part(gpu=gpu)) for name, gpu in values])
    return Report(CLUSTER, node, at, at, np.array(ids, np.int32), np.array(list(values.values())))


def test_each_gpu_shows_its_newest_value_and_silence_is_unknown(fresh_database: sa.Engine) -> None:
    book, samples = PostgresColumns(fresh_database), PostgresSamples(fresh_database, CLUSTER)
    samples.put(
        [
            report(book, "gpu0001", 60, {(TEMPERATURE, 0): 50, (TEMPERATURE, 2): 61}),
            report(book, "gpu0001", 5, {(TEMPERATURE, 0): 55, (TEMPERATURE, 2): np.nan, ("power_w", 0): 400}),
            report(book, "gpu0001", 4, {(REASONS, 1): 64}),  # another sender of the same node
            report(book, "gpu0002", 600, {(TEMPERATURE, 0): 90}),
            report(book, "gpu0003", 5, {("power_w", 0): 400}),
        ]
    )
    samples.close()
    reads = PostgresSignalReads(fresh_database, book)
    names = [node.name for node in snapshot().gpu_nodes]
    found = gauges(*reads.fleet_reports(CLUSTER, names, NOW - GAUGES_LAST))
    assert found == {"gpu0001": NodeGauges((55.0, None, 61.0), (None, 64.0))}


def test_a_node_keeps_pace_as_its_slowest_rank_does(fresh_database: sa.Engine) -> None:
    samples = PostgresSamples(fresh_database, CLUSTER)
    slow = []
    for one in steps_of("4711", ("gpu0001", "gpu0002"), ranks_per_node=4, steps=8):
        compute = one.compute_s.copy()
        compute[5] *= 1.5  # of gpu0002
        slow.append(dataclasses.replace(one, arrived_at=NOW, compute_s=compute))
    whole = steps_of("4712", ("gpu0003",), steps=8, whole_only=True)
    samples.put_steps([*slow, *(dataclasses.replace(one, arrived_at=NOW) for one in whole)])
    samples.close()
    reads = PostgresSignalReads(fresh_database, PostgresColumns(fresh_database))
    found = paces(snapshot(), reads.fleet_steps(CLUSTER, ["4711"], NOW - PACES_LAST))
    assert {name: round(pace, 1) for name, pace in found.items()} == {"gpu0001": 1.0, "gpu0002": 1.5}


def test_unchanged_measures_stay_one_object_and_are_read_at_intervals() -> None:
    looked: list[int] = []

    def look(value: float) -> Mapping[str, float]:
        looked.append(1)
        return {"gpu0001": value}

    seldom, always = CachedRead[float](3600, wait_s=60), CachedRead[float](0, wait_s=60)
    first = seldom.get("pod1", lambda: look(1))
    assert seldom.get("pod1", lambda: look(2)) is first and len(looked) == 1
    same = always.get("pod1", lambda: look(1))
    assert always.get("pod1", lambda: look(1)) is same and len(looked) == 3
    assert always.get("pod1", lambda: look(2)) == {"gpu0001": 2}
    # What cannot be looked up is unknown.
    assert always.get("pod1", lambda: look(1 / 0)) == {}


def test_slow_measures_block_no_reader() -> None:
    hold, kept = threading.Event(), CachedRead[float](0, wait_s=0)

    def slow() -> Mapping[str, float]:
        assert hold.wait(60)
        return {"gpu0001": 1}

    assert kept.get("pod1", slow) == kept.get("pod1", slow) == {}
    hold.set()
    wait_until(lambda: kept.get("pod1", slow), what="what was looked up is there")
