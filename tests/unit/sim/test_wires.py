"""One scrape in three wire forms: what arrives is the same, whatever the exporter speaks."""

from datetime import UTC, datetime, timedelta
from functools import lru_cache
from typing import Any

import msgspec
import pytest

from healer.model import Catalogue, Column
from healer.signals.series import Measured
from healer.signals.translate import Translator
from healer.sim.sim_telemetry import GPU_SIGNALS, PORT_SIGNALS, SimTelemetry
from healer.sim.stores import MemoryColumns
from tests.support.loop import shipped
from tests.support.wires import exposition, remote_write

START = datetime(2026, 11, 20, 3, tzinfo=UTC)
NOW = START + timedelta(seconds=5)


def known(_cluster: str, node: str) -> bool:
    return node.startswith("gpu")


@lru_cache
def scrape() -> list[dict[str, Any]]:
    sensors = SimTelemetry("pod1", ["gpu0001", "gpu0002"], start=START)
    sensors.quiet = True
    return sensors.advance(NOW).metrics


def translator() -> tuple[Translator, MemoryColumns]:
    book = MemoryColumns()
    return Translator(shipped().catalogue, book, "pod1"), book


def values_of(measured: Measured, book: MemoryColumns) -> dict[tuple[str, datetime], dict[Column, float]]:
    assert measured.unknown == {}
    assert measured.rejected == ()
    found: dict[tuple[str, datetime], dict[Column, float]] = {}
    for report in measured.reports:
        columns = book.columns(report.columns.tolist())
        values = zip(report.columns.tolist(), report.values.tolist(), strict=True)
        found.setdefault((report.node, report.at), {}).update({columns[one]: v for one, v in values})
    return found


def by_columnar() -> dict[tuple[str, datetime], dict[Column, float]]:
    one, book = translator()
    return values_of(one.columnar(msgspec.json.encode(scrape()), known, NOW), book)


def test_each_name_that_the_simulated_fleet_sends_is_in_the_catalogue() -> None:
    catalogue: Catalogue = shipped().catalogue
    assert {*GPU_SIGNALS, *PORT_SIGNALS} - set(catalogue.arriving) == set()
    samples = by_columnar()
    assert {node for node, _ in samples} == {"gpu0001", "gpu0002"}
    assert all(
        len(columns) == 8 * len(GPU_SIGNALS) + 6 + 2 * len(PORT_SIGNALS) for columns in samples.values()
    )


def test_remote_write_carries_the_same_samples() -> None:
    one, book = translator()
    assert values_of(one.remote_write(remote_write(scrape()), known, NOW), book) == by_columnar()


@pytest.mark.parametrize("index", [0, 1])
def test_text_exposition_carries_the_same_samples(index: int) -> None:
    one, book = translator()
    body = scrape()[index]
    samples = values_of(one.exposition(exposition(body).encode(), known, NOW, node=None), book)
    assert samples == {key: value for key, value in by_columnar().items() if key[0] == body["node"]}
