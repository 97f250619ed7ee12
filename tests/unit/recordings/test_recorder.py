"""The recorder: what the detector sees, in the form of the API, in files that stay small enough."""

import json
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import msgspec
import numpy as np
import pytest

from healer.incidents.book import incident_id
from healer.model import (
    Column,
    Component,
    Observation,
    ObservationKind,
    Part,
    Reference,
    SlurmNode,
    SlurmSnapshot,
)
from healer.model.telemetry import Report, StepBatch
from healer.recordings.recorder import Recorder, without_secrets
from healer.recordings.recording import read
from healer.rulebook.ruleset import load
from healer.signals.alert_bodies import Site, alertmanager_observations
from healer.signals.wire import kernel_log_observations
from healer.sim.replaying import replay
from healer.sim.stores import MemoryColumns

RULES = Path(__file__).parents[3] / "rules"
XID_79 = "NVRM: Xid (PCI:0000:9b:00): 79, pid=4711, name=python, GPU has fallen off the bus."
NOW = datetime(2026, 11, 20, 3, tzinfo=UTC)
COLUMNS = (
    Column("gpu_temp_c", Part(gpu=0)),
    Column("gpu_temp_c", Part(gpu=2)),
    Column("load1"),
    Column("ib_symbol_errors_total", Part(port="mlx5_0/1")),
    Column("nvlink_crc_total", Part(gpu=1, link=1)),
    Column("power_w", Part(gpu=0)),
)


class Lines:
    """A file in memory; `turn` begins a new one."""

    def __init__(self) -> None:
        self.lines: list[bytes] = []
        self.measured: list[str] = []
        self._begun = True

    def write(self, line: bytes, at: datetime, route: str, *, samples: bool = False) -> None:
        self.lines.append(line)
        if samples:
            self.measured.append(route)

    def begun(self) -> bool:
        begun, self._begun = self._begun, False
        return begun

    def turn(self) -> None:
        self.lines.clear()
        self._begun = True

    def entries(self) -> list[tuple[str, Any]]:
        return [(entry.route, entry.body) for entry in read(line.decode() for line in self.lines)]


def recorder(lines: Lines) -> tuple[Recorder, MemoryColumns]:
    book = MemoryColumns()
    return Recorder(lines, book), book


def report(book: MemoryColumns, at: datetime = NOW, node: str = "gpu0001") -> Report:
    ids = np.array(book.ids(COLUMNS), dtype=np.int32)
    return Report("pod1", node, at, at, ids, np.array([61.0, 62.5, 3.1, 7.0, 9.0, np.nan]))


def snapshot(*names: str) -> SlurmSnapshot:
    nodes = {name: SlurmNode(name=name, state=("IDLE",), gpus=8) for name in names}
    return SlurmSnapshot(cluster="pod1", taken_at=NOW, nodes=nodes)


def test_report_is_recorded_as_a_sender_would_send_it() -> None:
    lines = Lines()
    tap, book = recorder(lines)
    tap.note_samples([report(book)], [], NOW)
    ((route, body),) = lines.entries()
    assert route == "signals/metrics"
    assert body == [
        {
            "cluster": "pod1",
            "node": "gpu0001",
            "time": "2026-11-20T03:00:00Z",
            "gpu": {"gpu_temp_c": [61.0, None, 62.5]},
            "host": {"load1": 3.1},
            "ports": {"mlx5_0/1": {"ib_symbol_errors_total": 7.0}},
            "links": {"nvlink_crc_total": [[], [None, 9.0]]},
        }
    ]


def test_step_times_are_recorded_exactly_as_sent() -> None:
    lines = Lines()
    tap, _ = recorder(lines)
    none = np.full(2, np.nan)
    batch = StepBatch(
        cluster="pod1", job="7", restart=1, arrived_at=NOW, nodes=("gpu0004",),
        rank=np.array([0, 1], dtype=np.int32), step=np.array([5, 5], dtype=np.int64),
        at=np.full(2, NOW.timestamp()), node=np.array([0, -1], dtype=np.int32),
        gpu=np.array([3, -1], dtype=np.int32), stage=np.array([-1, -1], dtype=np.int32),
        step_s=np.array([2.0, 2.0]), compute_s=np.array([1.5, np.nan]), comm_s=none, data_s=none, work=none,
        loss=none, grad_norm=none,
    )  # fmt: skip
    tap.note_samples([], [batch], NOW)
    ((route, (body,)),) = lines.entries()
    at = "2026-11-20T03:00:00Z"
    assert route == "signals/step-times"
    assert (body["cluster"], body["job"], body["restart"]) == ("pod1", "7", 1)
    assert body["samples"] == [
        {"time": at, "step": 5, "rank": 0, "node": "gpu0004", "gpu": 3, "step_s": 2.0, "compute_s": 1.5},
        {"time": at, "step": 5, "rank": 1, "step_s": 2.0},
    ]


def test_checkpoints_are_written_as_they_came() -> None:
    lines = Lines()
    tap, _ = recorder(lines)
    data = {"restart": 0, "step": 60, "path": "/scratch/60", "durable": True}
    observation = Observation(
        digest="aa", kind=ObservationKind.checkpoint, component=Component(cluster="pod1", job="7"),
        event_at=NOW, arrived_at=NOW, data=data,
    )  # fmt: skip
    tap.note([observation], None, NOW)
    ((route, body),) = lines.entries()
    assert route == "signals/checkpoints"
    assert body == {"cluster": "pod1", "job": "7", "time": "2026-11-20T03:00:00Z"} | data


def test_the_heartbeats_of_a_walk_share_an_entry() -> None:
    lines = Lines()
    tap, _ = recorder(lines)
    observations = [
        Observation(
            digest=node, kind=ObservationKind.heartbeat, component=Component(cluster="pod1", node=node),
            event_at=NOW, arrived_at=NOW, boot_id=boot_id,
        )
        for node, boot_id in (("gpu0001", "b1"), ("gpu0002", None))
    ]  # fmt: skip
    tap.note(observations, None, NOW)
    assert lines.entries() == [
        (
            "signals/heartbeat",
            [{"cluster": "pod1", "node": "gpu0001", "boot_id": "b1"}, {"cluster": "pod1", "node": "gpu0002"}],
        )
    ]


def test_a_recording_never_goes_back_in_time_when_two_threads_write() -> None:
    lines = Lines()
    tap, book = recorder(lines)
    tap.note_samples([report(book)], [], NOW + timedelta(seconds=2))
    tap.note([], snapshot("gpu0001"), NOW + timedelta(seconds=1))
    assert [route for route, _ in lines.entries()] == ["signals/metrics", "slurm/nodes", "slurm/jobs"]


def test_each_file_begins_with_slurms_picture() -> None:
    lines = Lines()
    tap, book = recorder(lines)
    tap.note([], snapshot("gpu0001"), NOW)
    tap.note([], snapshot("gpu0001"), NOW)
    assert [route for route, _ in lines.entries()] == ["slurm/nodes", "slurm/jobs"]
    lines.turn()
    tap.note_samples([report(book)], [], NOW)
    assert [route for route, _ in lines.entries()] == ["slurm/nodes", "slurm/jobs", "signals/metrics"]


def test_an_event_keeps_the_name_that_its_incident_is_called_by() -> None:
    """It came with a number of its sender, which recordings do not keep."""
    body = {"cluster": "pod1", "node": "gpu0001", "entries": [{"seq": 7, "line": XID_79}, {"line": XID_79}]}
    seen = kernel_log_observations(body, lambda _c, _n: True, NOW, cluster="pod1").observations
    lines = Lines()
    tap, _ = recorder(lines)
    tap.note(seen, snapshot("gpu0001"), NOW)
    made = replay(load(RULES, prove=False), read(line.decode() for line in lines.lines))
    (incident,) = made["incidents"]
    root = msgspec.convert(incident["root"], Component)
    assert incident["id"] == incident_id("pod1", incident["rule"], root, seen[0].digest)


def test_changes_after_the_snapshot_are_recorded() -> None:
    lines = Lines()
    tap, _ = recorder(lines)
    tap.note([], snapshot("gpu0001", "gpu0002"), NOW)
    later = snapshot("gpu0002", "gpu0003")
    busy = SlurmNode(name="gpu0002", state=("ALLOCATED",), gpus=8)
    tap.note([], msgspec.structs.replace(later, nodes=later.nodes | {"gpu0002": busy}), NOW)
    (_, whole), _, (route, changed) = lines.entries()
    assert whole["again"] is True
    assert [one["name"] for one in whole["nodes"]] == ["gpu0001", "gpu0002"]
    assert route == "slurm/nodes"
    assert [one["name"] for one in changed["changed"]] == ["gpu0002", "gpu0003"]
    assert changed["gone"] == ["gpu0001"]


def test_snapshot_is_recorded_again_after_a_loss() -> None:
    lines = Lines()
    tap, _ = recorder(lines)
    tap.note([], snapshot("gpu0001"), NOW)
    tap.note_lost(7, NOW)
    tap.note([], None, NOW)
    assert [route for route, _ in lines.entries()] == [
        "slurm/nodes",
        "slurm/jobs",
        "lost",
        "slurm/nodes",
        "slurm/jobs",
    ]
    assert lines.entries()[2][1] == {"entries": 7}


def test_samples_are_distinguished_and_self_reports_are_left_out() -> None:
    lines = Lines()
    tap, book = recorder(lines)
    tap.note([], snapshot("gpu0001"), NOW, facts={"gpu0001": {"driver": "580"}})
    tap.note_samples([report(book)], [], NOW)
    assert [route for route, _ in lines.entries()].count("signals/metrics") == 2
    assert lines.measured == ["signals/metrics"]


@pytest.mark.parametrize(
    ("text", "kept"),
    [
        ("token heal_abcDEF123456789_x in a comment", "token *** in a comment"),
        ("http://ann:hunter2@grafana.example/d/1", "http://***@grafana.example/d/1"),
        ("Authorization: Bearer abcdef.ghij-klm", "Authorization: Bearer ***"),
        ("https://x.example/?token=abc123&b=1", "https://x.example/?token=***&b=1"),
        ('run --password="my own" --node 7', 'run --password=***" --node 7'),
        ("run password='my own' --node 7", "run password=*** --node 7"),
        ("mount -o password=a\\b,ro", "mount -o password=***"),
        (f"git clone https://ann:{'x' * 300}@git.example/a", "git clone https://***@git.example/a"),
        (f"https://x.example/?token={'x' * 300}&b=1", "https://x.example/?token=***&b=1"),
        (
            "NVRM: Xid (PCI:0000:9b:00): 79, pid='<unknown>'",
            "NVRM: Xid (PCI:0000:9b:00): 79, pid='<unknown>'",
        ),
    ],
)
def test_credentials_are_not_written(text: str, kept: str) -> None:
    line = json.dumps({"body": {"comment": text}}).encode()
    assert json.loads(without_secrets(line))["body"]["comment"] == kept


def test_alerts_come_back_as_a_group_that_says_the_same() -> None:
    site = Site("pod1", ("pod1",), lambda _c, _n: True, lambda _c, _n: False)
    alert = {
        "status": "firing",
        "labels": {"alertname": "A", "instance": "gpu0001:9100"},
        "annotations": {"summary": "it fires"},
        "startsAt": "2026-11-20T02:00:00+00:00",
        "fingerprint": "5e9ed1c0b2d4a001",
    }
    body = {"version": "4", "externalURL": "http://am.example", "alerts": [alert]}
    seen = alertmanager_observations(body, site, NOW).observations
    lines = Lines()
    made, _ = recorder(lines)
    made.note(seen, None, NOW)
    ((route, body_read),) = lines.entries()
    assert route == "signals/alertmanager"
    assert alertmanager_observations(body_read, site, NOW).observations == seen


def test_drift_is_recorded_at_the_start_of_a_file_and_on_change() -> None:
    lines = Lines()
    tap, _ = recorder(lines)
    good = Reference(
        cluster="pod1", kind="h100", node="gpu0002", at=NOW, by="ann", facts={"driver": "580.65"}
    )
    facts = {"gpu0001": {"driver": "570.86"}, "gpu0002": {}}
    for references in ({"h100": good}, {"h100": good}, {}):
        tap.note([], snapshot("gpu0001", "gpu0002"), NOW, facts=facts, references=references)
    assert lines.entries()[2:] == [
        ("signals/metrics", [{"cluster": "pod1", "node": "gpu0001", "inventory": {"driver": "570.86"}}]),
        ("reference", {"kind": "h100", "node": "gpu0002", "facts": {"driver": "580.65"}}),
        ("reference", {"kind": "h100", "facts": {}}),
    ]
