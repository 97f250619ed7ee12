"""Nodes with the newest values of their parts, jobs with their step times."""

import dataclasses
from datetime import UTC, datetime, timedelta

import httpx
import numpy as np
import pytest

from healer.model import Column, Part
from healer.model.telemetry import Report
from tests.support.api import CATALOGUE, CLUSTER, Api
from tests.support.console_telemetry import steps_of

Served = tuple[Api, httpx.Client]
GPU_SIGNAL = next(one.name for one in CATALOGUE.signals.values() if one.scope == "gpu")


def put(api: Api, age: timedelta, values: dict[Column, float]) -> None:
    at = datetime.now(UTC) - age
    numbers = api.services.columns.ids(list(values))
    api.samples.put(
        [Report(CLUSTER, "gpu0001", at, at, np.array(numbers, np.int32), np.array(list(values.values())))]
    )


def test_node_shows_newest_value_of_each_part(served: Served) -> None:
    api, client = served
    load, first, last = Column("load1"), Column(GPU_SIGNAL, Part(gpu=0)), Column(GPU_SIGNAL, Part(gpu=7))
    link = Column(GPU_SIGNAL, Part(gpu=7, link=2))
    put(api, timedelta(seconds=20), {load: 3.5, first: 60, last: 61, link: 5})
    put(api, timedelta(seconds=5), {load: 4.5, first: 62})
    put(api, timedelta(minutes=10), {Column(GPU_SIGNAL, Part(gpu=1)): 99})
    node = client.get("/api/v1/nodes/pod1/gpu0001", headers=api.headers("viewer")).json()
    assert node["signals"] == {"load1": 4.5}
    assert [gpu["signals"].get(GPU_SIGNAL) for gpu in node["gpus"]] == [62, *[None] * 6, 61]
    assert node["links"] == [{"gpu": 7, "link": 2, "port": None, "signals": {GPU_SIGNAL: 5}}]
    # GPU 1 has a value, but too old to be used; GPU 2 has none.
    assert node["gpus"][1]["measured_at"] is not None
    assert node["gpus"][2]["measured_at"] is None


def test_node_without_values_is_not_reported_as_bad(served: Served) -> None:
    api, client = served
    node = client.get("/api/v1/nodes/pod1/gpu0002", headers=api.headers("viewer")).json()
    assert (node["verdict"], node["measured_at"], node["signals"]) == ("healthy", None, {})


def test_job_shows_its_steps_and_slowest_rank(served: Served) -> None:
    api, client = served
    now = datetime.now(UTC)
    steps = steps_of("4711", ("gpu0001", "gpu0007"), ranks_per_node=8, steps=150)
    api.samples.put_steps([dataclasses.replace(one, arrived_at=now) for one in steps])
    job = client.get("/api/v1/jobs/pod1/4711", headers=api.headers("viewer")).json()
    times = job["step_times"]
    assert (times["ranks"], len(times["steps"]), times["whole_only"]) == (16, 150, False)
    worst = times["slowest"][0]
    assert (worst["node"], worst["gpu"]) == ("gpu0007", 5)
    assert 0.12 < worst["slower"] < 0.2
    last = times["steps"][-1]
    assert last["slowest_rank"] == worst["rank"]
    assert last["step_s"] > last["slowest_compute_s"] > last["compute_s"]
    assert job["gpu_hours_lost"] == 0.0


@pytest.mark.parametrize("job", ["77", "a job"])
def test_a_job_that_only_its_steps_know_is_shown(served: Served, job: str) -> None:
    api, client = served
    headers = api.headers("viewer")
    assert client.get(f"/api/v1/jobs/pod1/{job}", headers=headers).status_code == 404
    steps = [dataclasses.replace(one, job=job, arrived_at=datetime.now(UTC))
            for one in steps_of("1", ("gpu0001",), steps=5, whole_only=True)]  # fmt: skip
    api.samples.put_steps(steps)
    found = client.get(f"/api/v1/jobs/pod1/{job}", headers=headers).json()
    assert (found["job"], found["nodes"]) == (None, [])
    assert (found["step_times"]["whole_only"], found["step_times"]["slowest"]) == (True, [])
