"""22.05.8 and 24.11.5 as captured; other shapes are written by hand from SchedMD's tables."""

import json
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest

from healer.adapters.slurm import parse_json, parse_text
from healer.adapters.slurm import slurm_words as words

CAPTURED = Path(__file__).parent / "captured"
AT = 1795165655


def number(value: int | None = None, infinite: bool = False) -> dict[str, Any]:
    return {"set": value is not None, "infinite": infinite, "number": value or 0}


def node_answer(**fields: Any) -> bytes:
    return json.dumps({"errors": [], "nodes": [{"name": "n1", **fields}]}).encode()


def job_answer(**fields: Any) -> bytes:
    return json.dumps({"errors": [], "jobs": [{"job_id": 7, "job_state": ["RUNNING"], **fields}]}).encode()


def test_both_ways_to_read_nodes_of_22_05_agree() -> None:
    by_json = parse_json.nodes((CAPTURED / "sinfo_22.05.json").read_bytes())
    assert by_json == parse_text.nodes((CAPTURED / "nodes_22.05.txt").read_text())


def test_both_ways_to_read_jobs_of_22_05_agree() -> None:
    raw = (CAPTURED / "squeue_22.05.json").read_bytes()
    jobs = parse_json.jobs(raw)
    for text in ("job_two_nodes_22.05.txt", "job_array_task_22.05.txt"):
        job = parse_text.job((CAPTURED / text).read_text())
        assert jobs[job.id] == job


def test_a_node_of_24_11_that_was_resumed_keeps_no_reason_of_its_drain() -> None:
    raw = (CAPTURED / "node_24.11.json").read_bytes()
    assert b"healer:x inc:1" in raw
    node = parse_json.nodes(raw)["gpu0002"]
    assert (node.state, node.reason, node.reason_user, node.reason_at) == (("MIXED",), "", "", None)
    assert (node.gpus, node.gpu_model, node.partitions) == (8, "h100", ("train",))


def test_a_requeued_job_of_24_11_with_a_hostile_name() -> None:
    job = parse_json.jobs((CAPTURED / "job_24.11.json").read_bytes())["1"]
    assert (job.state, job.flags, job.restarts, job.nodes) == ("RUNNING", (), 1, ("gpu0001",))
    assert job.gpus == {"gpu0001": (0, 1)}
    assert (job.name, job.comment, job.batch) == ("x\n   JobState=FAILED", "a=b", True)
    assert job.start_at == datetime(2026, 11, 20, 9, 35, 36, tzinfo=UTC)


def test_array_tasks_that_wait_together_have_no_id_for_commands() -> None:
    jobs = parse_json.jobs((CAPTURED / "squeue_22.05.json").read_bytes())
    assert words.is_pending_array(jobs["8"]) and not words.is_pending_array(jobs["6"])
    assert words.command_id(jobs["6"]) == "6"


@pytest.mark.parametrize(
    "fields",
    [
        # v0.0.39 (23.02): a list of states, plain numbers.
        {"state": ["IDLE", "DRAIN"], "reason_changed_at": AT, "boot_time": AT},
        # v0.0.40 to v0.0.44: every time is an object.
        {"state": ["IDLE", "DRAIN"], "reason_changed_at": number(AT), "boot_time": number(AT)},
        # v0.0.38 (22.05): base and flags apart, in lower case.
        {"state": "idle", "state_flags": ["DRAIN"], "reason_changed_at": AT, "boot_time": AT},
    ],
)
def test_every_form_of_a_drained_node_reads_the_same(fields: dict[str, Any]) -> None:
    raw = node_answer(
        reason="alice: PSU", reason_set_by_user="root", gres="gpu:h100:8(S:0-1)", partitions=["train", "big"],
        active_features=["h100", "ib"], **fields,
    )  # fmt: skip
    node = parse_json.nodes(raw)["n1"]
    assert (node.state, node.reason, node.reason_user) == (("IDLE", "DRAIN"), "alice: PSU", "root")
    assert node.reason_at == node.boot_at == datetime.fromtimestamp(AT, UTC)
    assert (node.gpus, node.gpu_model, node.partitions) == (8, "h100", ("train", "big"))
    assert node.features == ("h100", "ib")


def test_node_without_a_reason_has_no_reason_user() -> None:
    # Before 26.05 Slurm names root even then.
    raw = node_answer(state=["IDLE"], reason="", reason_set_by_user="root", reason_changed_at=number())
    node = parse_json.nodes(raw)["n1"]
    assert (node.reason_user, node.reason_at) == ("", None)


def test_pitfall_22_unknown_flags_are_carried_through() -> None:
    raw = node_answer(state=["IDLE", "BLOCKED", "SOMETHING_NEW"])
    assert parse_json.nodes(raw)["n1"].state == ("IDLE", "BLOCKED", "SOMETHING_NEW")


@pytest.mark.parametrize(
    ("fields", "state", "flags"),
    [
        ({"job_state": ["RUNNING"]}, "RUNNING", ()),
        ({"job_state": ["PENDING", "COMPLETING"]}, "PENDING", ("COMPLETING",)),
        ({"job_state": ["PENDING", "REQUEUE_HOLD"]}, "PENDING", ("REQUEUE_HOLD",)),
        ({"job_state": "RUNNING"}, "RUNNING", ()),
        ({"job_state": "CONFIGURING"}, "RUNNING", ("CONFIGURING",)),
        ({"job_state": "REQUEUE_HOLD"}, "PENDING", ("REQUEUE_HOLD",)),
        ({"job_state": "COMPLETING"}, "COMPLETING", ("COMPLETING",)),
    ],
)
def test_a_jobs_state_before_and_after_23_11(
    fields: dict[str, Any], state: str, flags: tuple[str, ...]
) -> None:
    job = parse_json.jobs(job_answer(**fields))["7"]
    assert (job.state, job.flags) == (state, flags)


def test_pitfall_20_a_number_that_is_not_set_or_infinite_is_no_number() -> None:
    raw = job_answer(
        start_time=number(None), array_job_id=number(0), array_task_id=number(None), restart_cnt=2,
        state_reason="BeginTime", nodes="", gres_detail=[],
    )  # fmt: skip
    job = parse_json.jobs(raw)["7"]
    assert (job.start_at, job.restarts, job.reason) == (None, 2, "BeginTime")
    assert words.command_id(job) == "7" and not words.is_pending_array(job)
    endless = job_answer(start_time={"set": True, "infinite": True, "number": AT})
    assert parse_json.jobs(endless)["7"].start_at is None


def test_an_array_task_of_a_later_release() -> None:
    raw = job_answer(array_job_id=number(5), array_task_id=number(0))
    assert words.command_id(parse_json.jobs(raw)["7"]) == "5_0"


def test_gpus_are_known_only_when_every_node_has_its_entry() -> None:
    raw = job_answer(nodes="n[1-2]", gres_detail=["gpu:h100:2(IDX:0,3)", "gpu:h100:1(IDX:7)"])
    assert parse_json.jobs(raw)["7"].gpus == {"n1": (0, 3), "n2": (7,)}
    short = job_answer(nodes="n[1-2]", gres_detail=["gpu:h100:2(IDX:0,3)"])
    assert parse_json.jobs(short)["7"].gpus == {}


@pytest.mark.parametrize(
    ("fields", "gpus"),
    [
        # Slurm lists nothing for a running job without GRES, and nothing for any job that is ending.
        ({}, {"n1": (), "n2": ()}),
        ({"job_state": "SUSPENDED"}, {"n1": (), "n2": ()}),
        ({"job_state": "COMPLETING"}, {}),
        ({"job_state": ["RUNNING", "COMPLETING"]}, {}),
        ({"tres_per_node": "gres:gpu:1"}, {}),
        ({"tres_alloc_str": "cpu=1,node=1,gres/gpu=2"}, {}),
        ({"tres_per_job": "gres:shard:4"}, {}),
        ({"gres_detail": ["gpu:h100:2(IDX:0,3)", ""]}, {"n1": (0, 3), "n2": ()}),
        ({"gres_detail": ["gpu:h100:2(IDX:0,3)", None]}, {"n1": (0, 3), "n2": ()}),
        ({"gres_detail": ["gpu:h100:2", "gpu:h100:1(IDX:1)"]}, {"n2": (1,)}),
    ],
)
def test_zero_gpus_differ_from_unknown_gpus(fields: dict[str, Any], gpus: dict[str, Any]) -> None:
    defaults: dict[str, Any] = {"job_state": "RUNNING", "nodes": "n[1-2]", "gres_detail": []}
    assert parse_json.jobs(job_answer(**(defaults | fields)))["7"].gpus == gpus


def test_bytes_that_are_no_utf_8_are_replaced() -> None:
    raw = job_answer(name="NAME").replace(b"NAME", b"bad\xff")
    assert parse_json.jobs(raw)["7"].name == "bad\ufffd"


@pytest.mark.parametrize(
    ("raw", "words"),
    [
        (b"", "could not be read"),
        (b"slurm_load_jobs error", "could not be read"),
        (b'{"jobs": [{"job_id": "x", "job_state": "RUNNING"}]}', "job_id"),
        (b'{"jobs": [{"job_id": 1, "job_state": "RUNNING", "nodes": "n[1-"}]}', "hostlist"),
        (b'{"errors": [{"error": "Invalid user id", "error_number": 2010}]}', "Invalid user id"),
    ],
)
def test_unreadable_slurm_json_is_refused_with_the_reason(raw: bytes, words: str) -> None:
    with pytest.raises(parse_json.NotUnderstood, match=words):
        parse_json.jobs(raw)


def test_extra_field_of_the_owner_is_read_beside_the_comment() -> None:
    job = parse_json.jobs(job_answer(comment="a", extra="healer:requeue"))["7"]
    assert (job.comment, job.extra) == ("a", "healer:requeue")
