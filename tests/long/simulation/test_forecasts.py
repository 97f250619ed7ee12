"""A part that is likely to fail, through replay as in production: reported, held for a person, and a hit."""

import json
from datetime import UTC, datetime, timedelta
from typing import Any, NamedTuple

import msgspec
import pytest

from healer.model import Forecast, ForecastOutcome, Mode, Ruleset
from healer.recordings.recording import read
from healer.sim.replaying import Replay, replay
from tests.support.loop import rules_in

START = datetime(2026, 11, 10, tzinfo=UTC)
NODES = [f"gpu{number:04}" for number in range(1, 5)]
RULE = "forecast-rows-remapped"
#: What ends a recording, and the least days after which the rule foretells anything.
FAULT_ROWS, LEAST_DAYS = 2, 5.2
XID_95 = "NVRM: Xid (PCI:0000:12:00): 95, pid=4711, Uncontained: LTC TAG (0x2,0x0). RST: Yes, D-RST: No"


def entry(hours: float, route: str, body: Any) -> str:
    at = (START + timedelta(hours=hours)).isoformat().replace("+00:00", "Z")
    return json.dumps({"at": at, "route": route, "body": body})


def recording(days: float = 6.5) -> list[str]:
    """GPU 2 of the first node loses a row each day; the others none. Samples each 3 hours. At the end, in the
    last FAULT_ROWS entries, it fails."""
    nodes = [{"name": name, "state": ["ALLOCATED"], "gpus": 4, "gpu_model": "h100"} for name in NODES]
    gpus = [{"index": gpu, "pci": f"0000:{0x10 + gpu:02x}:00", "uuid": f"GPU-{gpu}"} for gpu in range(4)]
    job = {"id": "4711", "state": "RUNNING", "nodes": NODES, "gpus": {one: [0, 1, 2, 3] for one in NODES}}
    rows = [
        entry(0, "slurm/nodes", {"cluster": "pod1", "nodes": nodes}),
        entry(0, "slurm/jobs", {"cluster": "pod1", "jobs": [job]}),
        entry(0, "signals/heartbeat", {"cluster": "pod1", "node": NODES[0], "boot_id": "b", "gpus": gpus}),
    ]
    for step in range(int(days * 8)):
        hours = 0.1 + 3 * step
        rows.append(entry(hours, "slurm/nodes", {"cluster": "pod1", "nodes": nodes}))
        for name in NODES:
            bad = float(int(hours / 24)) if name == NODES[0] else 0.0
            gpu = {"DCGM_FI_DEV_UNCORRECTABLE_REMAPPED_ROWS": [0.0, 1.0, bad, 0.0]}
            body = {"cluster": "pod1", "node": name, "gpu": gpu}
            rows.append(entry(hours, "signals/metrics", body))
    lines = {"cluster": "pod1", "node": NODES[0], "boot_id": "b", "entries": [{"line": XID_95}]}
    rows.append(entry(24 * days, "signals/kernel-log", lines))
    rows.append(entry(24 * days + 0.1, "clock", {}))
    return rows


def cheap(mode: Mode = Mode.auto) -> Ruleset:
    """The rules that ship, without those over the last minutes: six days of ticks are not their matter."""
    return rules_in(mode, detection=())


class Replayed(NamedTuple):
    """The same story, before the fault comes and after it."""

    before: dict[str, Any]
    after: dict[str, Any]
    forecasts: list[Forecast]


@pytest.fixture(scope="module")
def replayed() -> Replayed:
    """Played once for all: six days of ticks."""
    rows = list(read(recording()))
    played = Replay(cheap(), "pod1", START)
    played.feed(rows[:-FAULT_ROWS])
    before = played.finish()
    played.feed(rows[-FAULT_ROWS:])
    return Replayed(before, played.finish(), list(played.ledger.tables.forecasts.values()))


def test_growing_fault_is_forecast_and_waits_for_a_person(replayed: Replayed) -> None:
    (incident,) = replayed.before["incidents"]
    assert (incident["rule"], incident["severity"]) == (RULE, "P3")
    assert (incident["root"]["node"], incident["root"]["gpu"]) == (NODES[0], 2)
    assert incident["nodes"] == {} or "isolate" not in incident["nodes"].values()
    assert {one["action"] for one in replayed.before["actions"]} <= {"notify"}
    held = {(one["action"], one["node"], one["guard"]) for one in replayed.before["held"]}
    assert held == {("drain", NODES[0], "approval")}
    assert "likely to fail within" in incident["evidence"][0]["text"]


def test_watch_only_site_asks_for_no_approval() -> None:
    document = replay(cheap(Mode.shadow), read(recording(days=LEAST_DAYS)[:-FAULT_ROWS]))
    assert {one["guard"] for one in document["held"]} == {"mode"}


def test_twice_the_same_bytes(replayed: Replayed) -> None:
    again = replay(cheap(), read(recording()[:-FAULT_ROWS]))
    assert msgspec.json.encode(again) == msgspec.json.encode(replayed.before)


def test_when_the_fault_comes_it_is_one_incident_and_a_hit(replayed: Replayed) -> None:
    (real,) = replayed.after["incidents"]
    assert real["rule"] != RULE and real["root"]["gpu"] == 2
    (forecast_row,) = replayed.after["merged"]
    assert forecast_row["rule"] == RULE and forecast_row["into"] == real["id"]
    (forecast,) = [one for one in replayed.forecasts if one.rule == RULE]
    assert forecast.outcome is ForecastOutcome.hit
    assert forecast.told_at < forecast.until
