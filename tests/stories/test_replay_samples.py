"""Replay of samples: every wire form reaches the senses, and what they find acts as in production."""

import base64
import json
from collections.abc import Iterator
from typing import Any

import msgspec
import pytest

from healer.recordings.recording import BadRecording, read
from healer.sim.fleet_steps import Pace
from healer.sim.replaying import replay
from healer.sim.sim_clock import SimClock
from healer.sim.sim_slurm import SimScheduler
from healer.sim.sim_telemetry import Sent, SimTelemetry
from tests.support.loop import CLUSTER, START, name, rules_in
from tests.support.wires import exposition, remote_write

pytestmark = pytest.mark.heavy

Row = dict[str, Any]
NODES = 8


def columnar(sent: Sent) -> Iterator[tuple[str, Any]]:
    yield "signals/metrics", sent.metrics


def text(sent: Sent) -> Iterator[tuple[str, Any]]:
    for body in sent.metrics:
        yield f"signals/openmetrics?cluster={CLUSTER}&node={body['node']}", exposition(body)


def written(sent: Sent) -> Iterator[tuple[str, Any]]:
    yield "signals/prometheus/write", base64.b64encode(remote_write(sent.metrics)).decode()


def recorded(fault: str, node: int, gpu: int, form: Any = columnar, seconds: float = 300) -> list[str]:
    """Eight nodes of which six train together; the fault is there from the second minute on."""
    clock = SimClock(START)
    slurm = SimScheduler(CLUSTER, clock, NODES)
    slurm.add_job(name="pretrain", nodes=6, comment="healer:requeue")
    shown = slurm.snapshot()
    sensors = SimTelemetry(CLUSTER, list(shown.nodes), start=START, seed=5, pace=Pace(checkpoint_every=20))
    sensors.show(shown)
    rows = [
        _row(clock, "slurm/nodes", {"cluster": CLUSTER, "nodes": list(shown.nodes.values())}),
        _row(clock, "slurm/jobs", {"cluster": CLUSTER, "jobs": list(shown.jobs.values())}),
    ]
    while (clock.now() - START).total_seconds() < seconds:
        clock.advance(5)
        if (clock.now() - START).total_seconds() == 60:
            sensors.plant(fault, name(node), gpu)
        sent = sensors.advance(clock.now())
        rows += [_row(clock, route, body) for route, body in form(sent)]
        if sent.step_times:
            rows.append(_row(clock, "signals/step-times", sent.step_times))
        rows += [_row(clock, "signals/checkpoints", body) for body in sent.checkpoints]
    return rows


def _row(clock: SimClock, route: str, body: Any) -> str:
    return msgspec.json.encode({"at": clock.now(), "route": route, "body": body}).decode()


def played(rows: list[str]) -> dict[str, Any]:
    return replay(rules_in(), read(rows))


@pytest.mark.parametrize("form", [columnar, text, written])
def test_metrics_of_each_form_find_the_same_fault(form: Any) -> None:
    document = played(recorded("ecc-uncorrectable", 8, 2, form, seconds=420))
    # The recorded errors go on after the reset that was only simulated: a relapse, which waits for people.
    assert {(one["root"]["node"], one["root"]["gpu"]) for one in document["incidents"]} == {(name(8), 2)}
    assert len(document["incidents"]) <= 2
    assert [one["node"] for one in document["actions"] if one["action"] == "drain"] == [name(8)]
    assert [one["action"] for one in document["actions"]].count("reset_gpu") == 1


def test_a_slow_node_is_found_by_two_senses_and_taken_out_after_a_checkpoint() -> None:
    document = played(recorded("thermal-throttle", 3, 5, seconds=900))
    drains = [one for one in document["actions"] if one["action"] == "drain"]
    assert [one["node"] for one in drains] == [name(3)]
    acted = next(one for one in document["incidents"] if one["id"] == drains[0]["incident"])
    assert acted["root"]["node"] == name(3)
    assert [one["action"] for one in document["actions"]].count("requeue") == 1


def test_the_same_samples_give_the_same_bytes() -> None:
    rows = recorded("thermal-throttle", 3, 5)
    assert json.dumps(played(rows)) == json.dumps(played(rows))


@pytest.mark.parametrize(
    ("route", "body"),
    [
        ("signals/metrics", 7),
        ("signals/metrics", "text"),
        ("signals/prometheus/write", "no base64!"),
        ("signals/prometheus/write", {}),
        ("signals/prometheus/write", base64.b64encode(b"no snappy").decode()),
        ("signals/openmetrics", {}),
        ("signals/nvidia-smi", "<nvidia_smi_log/>"),
        (f"signals/nvidia-smi?node={name(1)}", "no xml"),
        ("signals/step-times", 7),
    ],
)
def test_a_broken_body_is_an_error_that_names_its_line(route: str, body: Any) -> None:
    clock = SimClock(START)
    nodes = {"cluster": CLUSTER, "nodes": [{"name": name(1)}]}
    rows = [_row(clock, "slurm/nodes", nodes), _row(clock, route, body), _row(clock, "clock", {})]
    with pytest.raises(BadRecording, match="line 2"):
        played(rows)
