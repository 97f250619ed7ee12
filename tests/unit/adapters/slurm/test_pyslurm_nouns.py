"""What pyslurm's attributes become. Shapes written from pyslurm 23.11 to 25.11, values as seen on 24.11.0."""

from datetime import UTC, datetime
from typing import Any

import pytest

from healer.adapters.slurm import pyslurm_nouns, pyslurm_reads
from healer.adapters.slurm.parse_json import UNREAD
from healer.adapters.slurm.pyslurm_child import JOB, NODE, read, read_job
from healer.model import SlurmJob, SlurmNode
from healer.ports.scheduling import SchedulerRefused, SchedulerUnavailable, UnknownNode

AT = datetime(2026, 11, 20, 9, 0, tzinfo=UTC)
SECONDS = int(AT.timestamp())


def a_node(**fields: Any) -> SlurmNode:
    record = dict.fromkeys(NODE) | {
        "name": "gpu0001", "state": "IDLE", "reason_user": "root", "configured_gres": {"gpu:h100": 8},
        "partitions": ["train"], "active_features": ["h100"], "boot_time": SECONDS,
        "address": "127.0.0.1", "hostname": "gpu0001",
    }  # fmt: skip
    return pyslurm_nouns.node(record | fields)


def a_job(**fields: Any) -> SlurmJob:
    record = dict.fromkeys(JOB) | {
        "id": 12, "state": "RUNNING", "state_reason": "None", "allocated_nodes": "gpu[0001-0002]",
        "requeue_count": 0, "is_requeueable": True, "is_batch_job": True, "name": "llama 70b",
        "user_name": "root", "user_id": 0, "priority": 1, "start_time": SECONDS, "end_time": "UNLIMITED",
        "exit_code": 0, "exit_code_signal": 0, "layout": {},
    }  # fmt: skip
    return pyslurm_nouns.job(record | fields)


def test_a_node_in_service() -> None:
    assert a_node() == SlurmNode(
        name="gpu0001", state=("IDLE",), gpus=8, gpu_model="h100", partitions=("train",), features=("h100",),
        boot_at=AT, address="127.0.0.1",
    )  # fmt: skip


def test_the_text_of_a_state_is_read_with_its_flags_and_suffixes() -> None:
    node = a_node(
        state="DOWN*+DRAIN+REBOOT_ISSUED+NEWFLAG", reason="x", reason_time=SECONDS, next_state="DOWN"
    )
    assert node.state == ("DOWN", "NOT_RESPONDING", "DRAIN", "REBOOT_ISSUED", "NEWFLAG")
    assert (node.reason, node.reason_user, node.reason_at) == ("x", "root", AT)
    assert node.after_reboot == ("DOWN",)


def test_a_reason_that_was_left_behind_is_none() -> None:
    node = a_node(state="MIXED+NOT_RESPONDING", reason="x", reason_time=SECONDS)
    assert (node.reason, node.reason_user, node.reason_at) == ("", "", None)


def test_shares_of_gpus_are_no_count_of_cards() -> None:
    assert a_node(configured_gres={"gpu:1g.10gb": 7}).gpus_shared
    assert a_node(configured_gres={"gpu:h100": 8, "shard": 32}).gpus_shared
    assert not a_node().gpus_shared


@pytest.mark.parametrize(
    ("layout", "gpus"),
    [
        # 24.11 shows none at all: it is not known which GPUs a job has.
        ({}, {}),
        (
            {
                "gpu0001": {
                    "cpu_ids": "0",
                    "memory": 0,
                    "gres": {"gpu:h100": {"count": 2, "indexes": "0,3"}},
                },
                "gpu0002": {"cpu_ids": "0", "memory": 0, "gres": {}},
            },
            {"gpu0001": (0, 3), "gpu0002": ()},
        ),
        ({"gpu0001": {"gres": {"gpu:h100": 2}}}, {}),
    ],
)
def test_gpus_are_identified_only_by_index(layout: dict[str, Any], gpus: dict[str, tuple[int, ...]]) -> None:
    assert a_job(layout=layout).gpus == gpus


def test_task_0_of_an_array_and_tasks_that_wait_together() -> None:
    """pitfall 20: a 0 is no absence; pyslurm shows both as None."""
    first = a_job(array_id=7, array_task_id=None, array_tasks_waiting=None)
    assert (first.array_job, first.array_task) == ("7", 0)
    rest = a_job(array_id=7, array_task_id=None, array_tasks_waiting="1-3", state="PENDING")
    assert (rest.array_job, rest.array_task) == ("7", None)
    assert (a_job().array_job, a_job().array_task) == ("", None)


def test_the_leader_of_a_het_job() -> None:
    leader, second = a_job(heterogeneous_id=4), a_job(heterogeneous_id=4, heterogeneous_offset=1)
    assert [(job.het_job, job.het_offset) for job in (leader, second)] == [("4", 0), ("4", 1)]


@pytest.mark.parametrize(
    ("reason", "holder", "expected"),
    [
        ("JobHeldUser", "user", ("JobHeldUser", "")),
        ("JobHeldAdmin", "admin", ("JobHeldAdmin", "")),
        ("launch failed requeued held", "admin", ("JobHeldUser", "launch failed requeued held")),
    ],
)
def test_pitfall_15_who_holds_a_job(reason: str, holder: str, expected: tuple[str, str]) -> None:
    job = a_job(state="PENDING", priority=0, state_reason=reason, allocated_nodes=None)
    assert job.held_by == holder
    assert (job.reason, job.why) == expected


def test_how_a_job_ended() -> None:
    failed = a_job(state="FAILED", exit_code=3, end_time=SECONDS)
    assert (failed.exit_code, failed.end_at) == ("3", AT)
    killed = a_job(state="FAILED", exit_code=None, exit_code_signal=9, end_time=SECONDS)
    assert killed.exit_code == "0:9"
    assert (a_job().exit_code, a_job().end_at) == (None, None)


def test_a_completing_job_is_one_word() -> None:
    job = a_job(state="COMPLETING")
    assert (job.state, job.flags, job.active) == ("COMPLETING", ("COMPLETING",), True)


def test_fields_of_newer_releases_only() -> None:
    assert (a_job().failed_node, a_job().submit_line, a_job().no_kill, a_job().siblings) == ("", "", None, ())
    job = a_job(
        failed_node="gpu0009", submit_line="sbatch --no-kill x.sh", federation_siblings_active=["pod2"]
    )
    assert (job.failed_node, job.no_kill, job.siblings) == ("gpu0009", True, ("pod2",))
    # Before 25.11 siblings are bits.
    assert a_job(federation_siblings_active=3).siblings == ()


def test_dependencies_as_slurm_writes_them() -> None:
    none = {"after": [], "afterok": [], "singleton": False, "satisfy": "all"}
    assert (
        a_job(dependencies=none | {"afterok": [5, 6], "singleton": True}).dependency
        == "afterok:5:6,singleton"
    )
    assert a_job(dependencies=none | {"afterok": ["5(failed)"]}).dependency == "afterok:5(failed)"
    # What pyslurm 24.11 makes of `singleton(unfulfilled)`.
    assert a_job(dependencies=none).dependency == "singleton"
    assert a_job().dependency == ""


def test_a_user_without_a_name_here_and_a_text_that_is_no_utf_8_hide_nothing_else() -> None:
    class Job:
        id = 12
        user_id = 4242

        @property
        def user_name(self) -> str:
            raise KeyError("getpwuid(): uid not found: 4242")

        @property
        def name(self) -> str:
            return b"\xff".decode()

    record = read(Job(), ("id", "user_id", "user_name", "name", "submit_line"))
    assert record == {"id": 12, "user_id": 4242, "user_name": None, "name": None, "submit_line": None}
    assert a_job(**record).user == "4242"


def test_a_job_that_cannot_be_read_hides_no_other_and_is_left_alone() -> None:
    """Its owner writes parts of it; every action is held while there is no picture."""

    class Job:
        id, state, allocated_nodes = 12, "RUNNING", "gpu0001"

        @property
        def dependencies(self) -> None:
            raise ValueError("not a dependency")

        def get_resource_layout_per_node(self) -> dict[str, Any]:
            return {}

    for seen in (pyslurm_nouns.job(read_job(Job())), a_job(id=12, state="RUNNING", excluded_nodes="gpu[1")):
        assert (seen.id, seen.state, seen.requeue) == ("12", "RUNNING", False)
        assert seen.why.startswith(UNREAD)
    assert pyslurm_nouns.job(read_job(Job())).nodes == ("gpu0001",)


@pytest.mark.parametrize(
    ("code", "text", "kind", "sent"),
    [
        (1800, "Unable to contact slurm controller (connect failure)", SchedulerUnavailable, False),
        (1007, "Protocol authentication error", SchedulerUnavailable, False),
        (1802, "Unable to contact slurm controller (receive failure)", SchedulerUnavailable, True),
        (5004, "Socket timed out on send/recv operation", SchedulerUnavailable, True),
        (4, "Interrupted system call", SchedulerUnavailable, True),
        (None, "?", SchedulerUnavailable, True),
        (2018, "Invalid node name specified", UnknownNode, None),
        (2010, "Invalid user id", SchedulerRefused, None),
    ],
)
def test_each_pyslurm_error_code_gives_its_error_class(
    code: int | None, text: str, kind: type[Exception], sent: bool | None
) -> None:
    error = pyslurm_reads.error("Slurm did not drain", {"kind": "slurm", "code": code, "text": text})
    assert type(error) is kind
    assert getattr(error, "sent", None) == sent
    if kind is not SchedulerUnavailable:
        assert getattr(error, "code", None) == (2018 if kind is UnknownNode else code)


def test_pitfall_4_resume_of_a_healthy_node_has_one_number_everywhere() -> None:
    error = pyslurm_reads.error("x", {"kind": "slurm", "code": 2028, "text": "Invalid node state specified"})
    assert isinstance(error, SchedulerRefused) and error.code == 2180
