"""Replay takes each route of events that the API takes, and lists what came by none."""

import base64
import json
from typing import Any

import pytest

from healer.model import Mode
from healer.recordings.recording import BadRecording, read
from healer.sim.replaying import replay
from tests.support.loop import CLUSTER, LOST, later, name, rules_in

NODE = name(1)


def found(route: str, body: Any) -> list[tuple[str, str]]:
    """(rule, node) of the incidents that one entry leads to."""
    shown = [{"name": name(number), "state": ["IDLE"], "gpus": 8} for number in range(1, 21)]
    rows = (
        (0, "slurm/nodes", {"cluster": CLUSTER, "nodes": shown}),
        (10, route, body),
        (20, "clock", {}),
    )
    lines = [
        json.dumps({"at": later(second).isoformat(), "route": way, "body": body})
        for second, way, body in rows
    ]
    document = replay(rules_in(Mode.auto), read(lines))
    return [(one["rule"], one["root"]["node"]) for one in document["incidents"]]


RECORD = {"_TRANSPORT": "kernel", "_HOSTNAME": NODE, "MESSAGE": LOST}
EXPORT = f"_TRANSPORT=kernel\n_HOSTNAME={NODE}\nMESSAGE={LOST}\n\n"
KERNEL = {"cluster": CLUSTER, "node": NODE, "entries": [{"line": LOST}]}
EVENT = {
    "specversion": "1.0",
    "id": "1",
    "source": "site",
    "type": "io.healer.signal.kernel-log.v1",
    "data": KERNEL,
}
OTLP = {
    "resourceLogs": [
        {
            "resource": {"attributes": [{"key": "host.name", "value": {"stringValue": NODE}}]},
            "scopeLogs": [
                {
                    "logRecords": [
                        {
                            "body": {"stringValue": LOST},
                            "attributes": [{"key": "_TRANSPORT", "value": {"stringValue": "kernel"}}],
                        }
                    ]
                }
            ],
        }
    ]
}


@pytest.mark.parametrize(
    ("route", "body"),
    [
        ("signals/kernel-log", KERNEL),
        ("signals/kernel-log", [KERNEL]),
        (f"signals/kernel-log?cluster={CLUSTER}&node={NODE}", LOST),
        ("signals/logs", RECORD),
        ("signals/logs", [RECORD]),
        ("signals/logs", json.dumps(RECORD)),
        ("signals/logs", EXPORT),
        ("signals/cloudevents", EVENT),
        ("signals/cloudevents", [EVENT]),
        ("signals/otlp/v1/logs", OTLP),
    ],
)
def test_a_lost_gpu_by_each_route(route: str, body: Any) -> None:
    assert found(route, body) == [("gpu-lost", NODE)]


def test_a_line_without_a_code() -> None:
    line = "mlx5_core 0000:5c:00.0: poll_health:819:(pid 0): device's health compromised - reached miss count"
    assert found("signals/kernel-log", KERNEL | {"entries": [{"line": line}]}) == [("nic-lost", NODE)]


def test_log_record_that_is_not_marked_as_kernel_finds_nothing() -> None:
    assert found("signals/logs", RECORD | {"_TRANSPORT": "syslog"}) == []


@pytest.mark.parametrize(
    ("route", "body"),
    [
        ("signals/kernel-log", {"node": NODE}),
        ("signals/otlp/v1/logs", "no base64 !"),
        ("signals/otlp/v1/metrics", "no base64 !"),
        ("signals/otlp/v1/logs", base64.b64encode(b"\x0a\xff").decode()),
        ("signals/hooks/prolog", 7),
    ],
)
def test_a_body_that_is_none_of_its_route_is_named_by_its_line(route: str, body: Any) -> None:
    with pytest.raises(BadRecording, match="line 2"):
        found(route, body)


def test_recording_without_slurm_is_still_judged() -> None:
    line = json.dumps({"at": later(0).isoformat(), "route": "signals/kernel-log", "body": KERNEL})
    document = replay(rules_in(Mode.auto), read([line]))
    assert [one["rule"] for one in document["incidents"]] == ["gpu-lost"]
    assert [one for one in document["actions"] if one["action"] == "drain"] == []
