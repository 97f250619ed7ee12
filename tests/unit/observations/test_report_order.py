"""Reports with the same columns are taken as one matrix: with the same result as sample by sample."""

import math
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import asdict

import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st

from healer.model import Column, Part, Scope
from healer.model.telemetry import Report
from healer.observations import report_order as layouts
from healer.observations import telemetry_windows as telemetries
from healer.observations.telemetry_windows import Telemetry
from healer.sim.stores import MemoryColumns
from tests.support.measured import CLUSTER, after, catalogue

COLUMNS = [
    Column("heat_c", Part(gpu=0)),
    Column("heat_c", Part(gpu=1)),
    Column("replay_total", Part(gpu=1)),
    Column("crc_total", Part(port="eth0")),
    Column("speed", Part(gpu=0, link=2)),
    Column("load", Part()),
    Column("swapped_total", Part()),
    Column("nobody_knows_it", Part()),
    Column("heat_c", Part(port="eth0")),  # lives nowhere
]
VALUES = st.sampled_from([0.0, 1.0, 2.5, 7.0, 1e9, math.nan, math.inf])


NEVER = 10**9


@contextmanager
def alike_from(count: int, run_least: int = NEVER) -> Iterator[None]:
    """Matrices of so many reports and more; rows side by side as one where they are so many on average."""
    before = layouts.ALIKE, telemetries.RUN_LEAST
    layouts.ALIKE, telemetries.RUN_LEAST = count, run_least
    try:
        yield
    finally:
        layouts.ALIKE, telemetries.RUN_LEAST = before


@st.composite
def report_batches(draw: st.DrawFn) -> list[list[Report]]:
    """Batches of reports of a few nodes; with some invalid column numbers."""
    sets = draw(
        st.lists(st.lists(st.integers(-1, len(COLUMNS) + 2), max_size=8, unique=True), min_size=1, max_size=2)
    )
    batches = []
    for _ in range(draw(st.integers(1, 3))):
        batch = []
        for node in draw(st.lists(st.sampled_from("abcd"), min_size=1, max_size=6)):
            numbers = np.array(draw(st.sampled_from(sets)), np.int32)
            values = np.array(
                draw(st.lists(VALUES, min_size=len(numbers), max_size=len(numbers))), np.float64
            )
            at = after(draw(st.integers(0, 400)))
            batch.append(Report(CLUSTER, node, at, at, numbers, values))
        batches.append(batch)
    return batches


def windows(
    batches: list[list[Report]], count: int, run_least: int = NEVER
) -> tuple[Telemetry, dict[str, object]]:
    book = MemoryColumns()
    book.ids(COLUMNS)
    telemetry = Telemetry(CLUSTER, catalogue())
    with alike_from(count, run_least):
        for batch in batches:
            telemetry.forget("b", after(20))
            telemetry.update(batch, book)
    now = after(401)
    seen: dict[str, object] = {}
    for name in ("heat_c", "replay_total", "crc_total", "speed", "load", "swapped_total"):
        scope = telemetry.scope_of(name)
        if scope is None:
            continue
        names = telemetry.axis(scope).components()
        window = telemetry.window(name, 600, now)
        results = [telemetry.value(name, now)]
        if name.endswith("_total"):
            results += telemetry.increase(name, 600, now)
        for row, where in enumerate(names):
            seen[f"{name} {where}"] = (window[:, row].tolist(), [float(one[row]) for one in results])
    return telemetry, seen


@settings(max_examples=60, deadline=None)
@given(report_batches())
def test_alike_or_mixed_makes_no_difference(batches: list[list[Report]]) -> None:
    by_sample, expected = windows(batches, NEVER)
    for run_least in (NEVER, 1):
        as_matrix, found = windows(batches, 1, run_least)
        assert repr(sorted(found.items())) == repr(sorted(expected.items()))  # NaN equals itself here
        assert asdict(as_matrix.counts) == asdict(by_sample.counts)
        assert as_matrix.axis(Scope.gpu).n == by_sample.axis(Scope.gpu).n


def test_column_learnt_later_is_accepted_from_then_on() -> None:
    book, telemetry = MemoryColumns(), Telemetry(CLUSTER, catalogue())
    numbers = np.array([1], np.int32)  # the first that the book will give
    with alike_from(1):
        telemetry.update([Report(CLUSTER, "a", after(0), after(0), numbers, np.array([5.0]))], book)
        assert telemetry.counts.unknown_columns == 1
        book.ids(COLUMNS[:1])
        telemetry.update([Report(CLUSTER, "a", after(5), after(5), numbers, np.array([6.0]))], book)
    assert telemetry.value("heat_c", after(6)).tolist() == [6.0]


def test_sets_of_columns_are_bounded() -> None:
    book = MemoryColumns()
    book.ids(COLUMNS)
    made = layouts.Layouts(lambda _: layouts.UNKNOWN)
    with alike_from(1):
        for number in range(layouts.LAYOUTS_MAX + 10):
            columns = np.array([1 + number % len(COLUMNS)] * (number + 1), np.int32)
            made.alike([Report(CLUSTER, "a", after(0), after(0), columns, np.zeros(number + 1))], book)
    assert len(made._known) == layouts.LAYOUTS_MAX
