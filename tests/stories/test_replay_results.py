"""Replay of what training came to, and of results of tests: the same senses as in production."""

import json
from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest

from healer.recordings.recording import read
from healer.sim.replaying import replay
from tests.support.loop import rules_in

START = datetime(2026, 11, 20, 3, 0, tzinfo=UTC)
NODES = [f"gpu{number:04}" for number in range(1, 5)]
SLURM = {
    "slurm/nodes": {
        "cluster": "pod1",
        "nodes": [{"name": name, "state": ["ALLOCATED"], "gpus": 8, "gpu_model": "h100"} for name in NODES],
    },
    "slurm/jobs": {
        "cluster": "pod1",
        "jobs": [
            {"id": "4711", "state": "RUNNING", "nodes": NODES, "gpus": {one: list(range(8)) for one in NODES}}
        ],
    },
}


def entry(after_s: float, route: str, body: Any) -> str:
    at = (START + timedelta(seconds=after_s)).isoformat().replace("+00:00", "Z")
    return json.dumps({"at": at, "route": route, "body": body})


def trained(result: Callable[[int, int], dict[str, Any]], steps: int = 60) -> list[dict[str, Any]]:
    """The incidents of a job whose rank r reports `result(step, r)` in each step of 5 s."""
    rows = [entry(0, route, body) for route, body in SLURM.items()]
    for step in range(1, steps):
        samples = [
            {"step": step, "rank": rank, "node": NODES[rank // 8], "gpu": rank % 8, "step_s": 5.0}
            | result(step, rank)
            for rank in range(32)
        ]
        sample_body = {"cluster": "pod1", "job": "4711", "samples": samples}
        rows.append(entry(5 * step, "signals/step-times", sample_body))
    return replay(rules_in(), read(rows))["incidents"]


@pytest.mark.heavy
def test_the_gpu_of_a_rank_with_another_result_is_suspect() -> None:
    def result(step: int, rank: int) -> dict[str, Any]:
        return {"loss": 3 - step / 100, "grad_norm": 1.25 if step < 30 or rank != 19 else 1.2500000000000002}

    (incident,) = trained(result)
    assert (incident["rule"], incident["root"]["node"], incident["root"]["gpu"]) == (
        "result-differs", NODES[2], 3,
    )  # fmt: skip
    assert incident["nodes"] == {NODES[2]: "suspect"}


def test_a_loss_that_is_no_number_is_the_jobs() -> None:
    (incident,) = trained(lambda step, rank: {"loss": 2.5 if step < 30 else "NaN"})
    assert (incident["rule"], incident["root"]["job"], incident["cause"]) == (
        "loss-nan", "4711", "application",
    )  # fmt: skip
    assert incident["nodes"] == {}


def checked(answers: list[int]) -> dict[str, Any]:
    """GPU 5 of the first node gives these answers, one every 5 min."""
    rows = [entry(0, "slurm/nodes", SLURM["slurm/nodes"])]
    for number, answer in enumerate(answers):
        gpu = {"compute_check_ok": [1, 1, 1, 1, 1, answer, 1, 1]}
        body = {"cluster": "pod1", "node": NODES[0], "gpu": gpu}
        rows.append(entry(10 + 300 * number, "signals/metrics", body))
    rows.append(entry(300 * len(answers), "clock", {}))
    return replay(rules_in(), read(rows))


@pytest.mark.heavy
def test_two_wrong_answers_of_two_take_the_node_out_and_one_does_not() -> None:
    once = checked([1, 0, 1])
    assert [one["rule"] for one in once["incidents"]] == ["gpu-answer-doubtful"]
    assert once["actions"] == []
    twice = checked([1, 0, 0])
    assert "gpu-wrong-answers" in {one["rule"] for one in twice["incidents"]}
    assert ("drain", NODES[0]) in {(one["action"], one["node"]) for one in twice["actions"]}
