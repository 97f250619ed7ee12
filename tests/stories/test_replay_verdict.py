"""What a replay says of an incident beside the contract's fields: verdict, what it cost, and similar ones."""

import json

import pytest

from tests.stories.test_replay import (
    APPLICATION,
    FATAL,
    TEARDOWN,
    clock,
    job,
    jobs,
    kernel,
    nodes,
    played,
    row,
)

START = "2026-11-20T02:00:00Z"
WHERE = [f"gpu{number:04d}" for number in range(1, 9)]
BIG = job("4711", *WHERE, user="alice", start_at=START)


def saved(seconds: float, step: int) -> dict:
    body = {"cluster": "pod1", "job": "4711", "restart": 0, "step": step, "path": "/c", "durable": True}
    return row(seconds, "signals/checkpoints", body | {"time": "2026-11-20T02:45:00Z"})


CRASH = (
    nodes(),
    jobs(0, BIG),
    saved(1, 100),
    kernel(900, 1, FATAL),
    *(kernel(901, number, TEARDOWN, TEARDOWN + " ") for number in range(2, 9)),
    clock(960),
)


def test_a_crash_over_eight_nodes_is_said_of_its_root() -> None:
    (one,) = played(*CRASH)["incidents"]
    verdict = one["verdict"]
    assert verdict["sentence"].startswith("The GPU at 0000:9b:00 of gpu0001: uncontained memory error")
    assert "64 ranks of job 4711 crashed because of it and must restart." in verdict["sentence"]
    assert verdict["nodes"] == one["nodes"] == {"gpu0001": "isolate"}
    assert verdict["certainty"] == 1.0
    (aside,) = verdict["set_aside"]
    assert (aside["what"], aside["why"]) == ("Xid 45", "teardown of job 4711 after Xid 95")
    assert aside["count"] == one["counted"]["xid-45"] >= 7
    assert any("row 95" in why for why in verdict["why"])
    (hit,) = one["hit"]
    assert (hit["user"], hit["gpus"], hit["basis"], hit["lost_gpu_hours"]) == (
        "alice",
        64,
        "checkpoint",
        32.0,
    )


@pytest.mark.heavy
def test_it_is_the_same_bytes_twice() -> None:
    assert json.dumps(played(*CRASH)) == json.dumps(played(*CRASH))


def test_same_part_again_is_similar_and_shows_its_status() -> None:
    document = played(nodes(), kernel(10, 3, APPLICATION), clock(3700), kernel(4000, 3, FATAL), clock(4010))
    before, now = document["incidents"]
    assert [(one["id"], one["same"]) for one in now["similar"]] == [(before["id"], "part")]
    assert now["similar"][0]["ended"] == before_words(before)


def before_words(incident: dict) -> str:
    assert incident["closed"] is not None
    return "nothing new for 60 min"
