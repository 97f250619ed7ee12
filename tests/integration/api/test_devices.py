"""The list of devices, and one of them with its parts, on a real PostgreSQL."""

import re
from collections.abc import Iterator, Mapping
from datetime import UTC, datetime, timedelta
from typing import Any

import httpx
import msgspec
import numpy as np
import pytest
import sqlalchemy as sa

from healer.adapters.postgres.sample_reads import DEVICES_FOUND
from healer.model import Column, Part
from healer.model.telemetry import Report, StepBatch
from tests.support import api as support
from tests.support.api import CLUSTER, RULES, Api, serving
from tests.support.console_telemetry import steps_of
from tests.support.measuring import shipped

Served = tuple[Api, httpx.Client]
DEVICES = "/api/v1/devices"
TEXT = "/api/v1/signals/openmetrics"


@pytest.fixture
def served(fresh_database: sa.Engine, monkeypatch: pytest.MonkeyPatch) -> Iterator[Served]:
    """With the catalogue that ships: that of the other tests has no signal of a device."""
    monkeypatch.setattr(support, "RULES", msgspec.structs.replace(RULES, catalogue=shipped()))
    with serving(fresh_database) as both:
        yield both


def put(
    api: Api, device: str, values: Mapping[Column, float], *, age_s: float = 1, cluster: str = CLUSTER
) -> None:
    at = datetime.now(UTC) - timedelta(seconds=age_s)
    numbers = api.services.columns.ids(list(values))
    readings = np.array(list(values.values()), np.float64)
    api.samples.put([Report(cluster, device, at, at, np.array(numbers, np.int32), readings)])


def port(signal: str, name: str) -> Column:
    return Column(signal, Part(port=name))


def asked(served: Served, path: str = DEVICES, **query: Any) -> Any:
    api, client = served
    answer = client.get(path, params=query, headers=api.headers("viewer"))
    assert answer.status_code == 200, answer.text
    return answer.json()


def test_devices_from_an_exporter_are_listed(served: Served) -> None:
    api, client = served
    body = (
        'infiniband_switch_temperature_celsius{switch="leaf1"} 51\n'
        'infiniband_switch_port_link_downed_total{switch="leaf1",port="7"} 2\n'
        'infiniband_switch_port_link_downed_total{switch="leaf1",port="8"} 0\n'
        'coolant_leak{device="cdu1"} 0\n'
    )
    headers = {**api.headers("signals"), "Content-Type": "text/plain"}
    assert client.post(TEXT, content=body, headers=headers).json()["accepted"] == 4
    put(api, "gpu0001", {Column("load1"): 3})
    page = asked(served)
    assert page["next_cursor"] is None
    shown = [(one["device"], one["kinds"], one["signals"], one["parts"]) for one in page["items"]]
    assert shown == [
        ("cdu1", ["cooling"], {"coolant_leak": 0}, 0),
        ("leaf1", ["switch"], {"switch_temp_c": 51}, 2),
    ]
    one = asked(served, f"{DEVICES}/{CLUSTER}/leaf1")
    assert one["parts"] == [
        {"part": "7", "signals": {"switch_port_link_down_total": 2}},
        {"part": "8", "signals": {"switch_port_link_down_total": 0}},
    ]


def test_the_newest_value_counts_and_what_is_old_is_left_out(served: Served) -> None:
    api, _ = served
    put(api, "@leaf1", {Column("switch_temp_c"): 50}, age_s=30)
    put(api, "@leaf1", {Column("switch_temp_c"): 51, port("switch_port_up", "1"): 1}, age_s=5)
    put(api, "@leaf1", {port("switch_port_up", "2"): 1}, age_s=400)
    put(api, "@leaf2", {Column("switch_temp_c"): 52}, age_s=400)
    put(api, "@leaf3", {Column("switch_temp_c"): 53}, age_s=1200)
    first, second, third = asked(served)["items"]
    assert (first["signals"], first["parts"]) == ({"switch_temp_c": 51}, 1)
    assert (second["signals"], second["kinds"]) == ({}, ["switch"])
    assert second["measured_at"] is not None
    assert (third["device"], third["signals"], third["measured_at"]) == ("leaf3", {}, None)


def test_a_list_is_bounded_and_goes_on_from_its_cursor(served: Served) -> None:
    api, client = served
    names = [f"leaf{number}" for number in range(1, 8)]
    for name in names:
        put(api, f"@{name}", {Column("switch_temp_c"): 50})
        put(api, f"@{name}", {Column("switch_temp_c"): 51})
    found: list[str] = []
    cursor: dict[str, str] = {}
    for size in (3, 3, 1):
        page = asked(served, limit=3, **cursor)
        assert len(page["items"]) == size
        found += [one["device"] for one in page["items"]]
        cursor = {"cursor": page["next_cursor"]}
    assert (found, cursor) == (names, {"cursor": None})
    wrong = client.get(DEVICES, params={"cursor": "elsewhere/x"}, headers=api.headers("viewer"))
    assert (wrong.status_code, wrong.json()["errors"][0]["field"]) == (422, "cursor")
    assert client.get(DEVICES, params={"limit": 501}, headers=api.headers("viewer")).status_code == 422


def test_nodes_jobs_and_other_clusters_are_no_devices(served: Served) -> None:
    api, _ = served
    put(api, "gpu0001", {Column("load1"): 1})
    put(api, "0gpu", {Column("load1"): 1})
    put(api, "Zeus", {Column("load1"): 1})
    put(api, "@leaf9", {Column("switch_temp_c"): 50}, cluster="pod2")
    api.snapshots.put(msgspec.structs.replace(support.snapshot(), cluster="pod2"))
    batches: list[StepBatch] = steps_of("4711", ("gpu0001",), ranks_per_node=1, steps=3)
    api.samples.put_steps(batches)
    assert asked(served)["items"] == []
    assert [one["device"] for one in asked(served, cluster="pod2")["items"]] == ["leaf9"]


def test_unknown_device_is_not_found(served: Served) -> None:
    api, client = served
    put(api, "gpu0001", {Column("load1"): 1})
    for name in ("leaf1", "gpu0001"):
        assert client.get(f"{DEVICES}/{CLUSTER}/{name}", headers=api.headers("viewer")).status_code == 404


def test_from_device_to_device_the_index_leads(served: Served) -> None:
    """An hour of all nodes' samples lies in the same table, and is not read for a few devices."""
    api, _ = served
    for number in range(20):
        put(api, f"gpu{number:04d}", {Column("load1"): 1})
        put(api, "@leaf1", {Column("switch_temp_c"): number})
    values = {"cluster": CLUSTER, "after": "@", "mark": "@", "limit": 50, "kind": "metrics", "most": 8}
    with api.engine.connect() as conn:
        conn.execute(sa.text("SET LOCAL enable_seqscan = off"))
        explained = sa.text(f"EXPLAIN (ANALYZE, TIMING OFF) {DEVICES_FOUND.text}")
        since = datetime.now(UTC) - timedelta(minutes=15)
        plan = [row[0] for row in conn.execute(explained, {**values, "since": since})]
    assert [line for line in plan if "Seq Scan" in line] == []
    # The names are read by the index alone, one row at a time.
    named = [line.partition("actual")[2] for line in plan if "Index Only Scan" in line]
    rows = [float(found[1]) for line in named if (found := re.search(r"rows=([\d.]+)", line))]
    assert rows and max(rows) <= 1
