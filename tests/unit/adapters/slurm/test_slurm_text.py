"""The texts in captured/ were printed by Slurm 22.05.8 with SLURM_TIME_FORMAT=%s."""

import re
from datetime import UTC, datetime
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from healer.adapters.slurm import parse_text
from healer.adapters.slurm import slurm_words as words

CAPTURED = Path(__file__).parent / "captured"
TWO_NODES = (CAPTURED / "job_two_nodes_22.05.txt").read_text()


def test_nodes_of_scontrol() -> None:
    nodes = parse_text.nodes((CAPTURED / "nodes_22.05.txt").read_text())
    assert {name: node.state for name, node in nodes.items()} == {
        "gpu0001": ("MIXED",),
        "gpu0002": ("MIXED", "DRAIN"),
        "gpu0003": ("MIXED",),
    }
    drained = nodes["gpu0002"]
    assert drained.reason == 'alice: PSU [x] = "broken" State=IDLE [root@2020-01-01T00:00:00]'
    assert (drained.reason_user, drained.reason_at) == ("root", datetime(2026, 11, 20, 9, 29, 59, tzinfo=UTC))
    assert (drained.gpus, drained.gpu_model) == (8, "h100")
    assert (drained.partitions, drained.features) == (("train",), ("h100",))
    assert drained.boot_at == datetime(2026, 11, 20, 8, 47, 44, tzinfo=UTC)
    assert (drained.address, drained.hostname) == ("127.0.0.1", "localhost")
    assert nodes["gpu0001"].reason == "" and nodes["gpu0001"].reason_at is None


@pytest.mark.parametrize(
    ("printed", "reason", "user"),
    [
        ("PSU [ann@corp.example@1795166999]", "PSU", "ann@corp.example"),
        ("Not responding [slurm@1795165655]", "Not responding", "slurm"),
        ("a [b@c] d [root@1795165655]", "a [b@c] d", "root"),
        ("one [root@1795165655]\n          two", "one\ntwo", "root"),
        ("nobody signed", "nobody signed", ""),
    ],
)
def test_the_forms_of_a_reason(printed: str, reason: str, user: str) -> None:
    text = f"NodeName=n1 Arch=x86_64 \n   State=IDLE+DRAIN ThreadsPerCore=1 \n   Reason={printed}\n\n"
    node = parse_text.nodes(text)["n1"]
    assert (node.reason, node.reason_user) == (reason, user)


def test_a_job_on_two_nodes() -> None:
    job = parse_text.job(TWO_NODES)
    assert (job.id, words.command_id(job), job.state, job.flags) == ("7", "7", "RUNNING", ())
    assert job.nodes == ("gpu0002", "gpu0003")
    assert job.gpus == {"gpu0002": tuple(range(8)), "gpu0003": tuple(range(8))}
    assert (job.name, job.comment, job.user, job.partition) == (
        "my job",
        "healer:requeue a=b",
        "root",
        "train",
    )
    assert (job.qos, job.reason, job.requeue, job.batch, job.restarts) == ("", "", True, True, 0)
    assert job.start_at is not None and job.start_at.year == 2026


def test_a_task_of_an_array_has_its_own_id_and_another_one_for_commands() -> None:
    job = parse_text.job((CAPTURED / "job_array_task_22.05.txt").read_text())
    assert (job.id, words.command_id(job), job.requeue) == ("10", "8_1", False)
    assert job.gpus == {"gpu0001": (2,)}


def test_a_completing_job_shows_only_that_and_the_nodes_it_still_holds() -> None:
    job = parse_text.job((CAPTURED / "job_completing_22.05.txt").read_text())
    assert (job.state, job.flags, job.restarts) == ("COMPLETING", ("COMPLETING",), 1)
    assert job.nodes == ("gpu0002",)
    assert job.active
    assert job.gpus == {}  # it still holds some, but Slurm no longer reports them


def test_job_without_gpus_differs_from_one_with_unknown_gpus() -> None:
    none = re.sub(r"   (JOB_GRES|TresPerNode)=.*\n", "", TWO_NODES).replace(
        "GRES=gpu:h100:8(IDX:0-7)", "GRES="
    )
    assert parse_text.job(none).gpus == {"gpu0002": (), "gpu0003": ()}
    hidden = TWO_NODES.replace("GRES=gpu:h100:8(IDX:0-7)", "GRES=")
    assert parse_text.job(hidden).gpus == {}
    unnumbered = TWO_NODES.replace("GRES=gpu:h100:8(IDX:0-7)", "GRES=gpu:h100:8")
    assert parse_text.job(unnumbered).gpus == {}


@pytest.mark.parametrize(
    ("old", "new"),
    [
        ("JobName=my job", "JobName=x\n   JobState=FAILED Reason=None Dependency=(null)"),
        ("JobName=my job", "JobName=x\nNodeList=gpu0009"),
        ("JobName=my job", "JobName=x\n     Nodes=gpu0009 CPU_IDs=0 Mem=0 GRES=gpu:h100:8(IDX:0-7)"),
        ("JobName=my job", "JobName=x\n\nJobId=9 JobName=y"),
        ("JobId=7 ", "JobId=7\n"),
        (
            "Comment=healer:requeue a=b",
            "Comment=a\n     Nodes=gpu0009 CPU_IDs=0 Mem=0 GRES=gpu:h100:8(IDX:0-7)",
        ),
        ("Comment=healer:requeue a=b", "Comment=a\n   Requeue=0 Restarts=9 BatchFlag=0"),
        ("   JobState=RUNNING", "   JobGone=RUNNING"),
    ],
)
def test_a_text_that_can_be_read_in_two_ways_is_ambiguous(old: str, new: str) -> None:
    assert old in TWO_NODES
    with pytest.raises(parse_text.Ambiguous):
        parse_text.job(TWO_NODES.replace(old, new))


def test_two_records_are_ambiguous() -> None:
    with pytest.raises(parse_text.Ambiguous):
        parse_text.job(TWO_NODES + TWO_NODES)


@given(st.text(max_size=300))
def test_no_job_name_changes_what_slurm_says(name: str) -> None:
    """Either the name is read as the name, or the text is ambiguous."""
    honest = parse_text.job(TWO_NODES)
    try:
        job = parse_text.job(TWO_NODES.replace("my job", name))
    except parse_text.Ambiguous:
        return
    assert (job.nodes, job.gpus, job.state, job.requeue) == (
        honest.nodes, honest.gpus, honest.state, honest.requeue,
    )  # fmt: skip
