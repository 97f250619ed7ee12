"""One cluster in the shapes of five releases, and as captured from 22.05 and 24.11: all read the same."""

from datetime import UTC, datetime
from pathlib import Path

import pytest

from healer.adapters.slurm import parse_json, parse_text
from healer.model import NodeStatus, SlurmJob
from tests.support.slurm_shapes import RELEASES, Shape

CAPTURED = Path(__file__).parent / "captured"
AT = 1795165655
EVERY = pytest.mark.parametrize("release", RELEASES)


def when(seconds: int) -> datetime:
    return datetime.fromtimestamp(seconds, UTC)


def job(release: str, *state: str, **about: object) -> SlurmJob:
    shape = Shape(release)
    return parse_json.jobs(shape.answer(jobs=[shape.job(7, *state, **about)]))["7"]  # type: ignore[arg-type]


@EVERY
def test_a_drained_node(release: str) -> None:
    shape = Shape(release)
    raw = shape.answer(
        nodes=[
            shape.node(
                "n1", "IDLE", "DRAIN", reason="ann: PSU", user="ann", at=AT, comment="row 3", extra='{"a":1}',
                next_state=("DOWN", "UNDRAIN"),
            )
        ]
    )  # fmt: skip
    node = parse_json.nodes(raw)["n1"]
    assert (node.status, str(node.owner), node.reason_at) == (NodeStatus.drained, "ann", when(AT))
    assert (node.comment, node.extra, node.after_reboot) == ("row 3", '{"a":1}', ("DOWN", "UNDRAIN"))
    assert (node.gpus, node.gpu_model, node.partitions) == (8, "h100", ("train",))


@EVERY
def test_a_node_without_reason_and_without_reboot(release: str) -> None:
    shape = Shape(release)
    node = parse_json.nodes(shape.answer(nodes=[shape.node("n1", "IDLE")]))["n1"]
    assert (node.reason_user, node.reason_at, node.after_reboot) == ("", None, ())
    assert (node.owner, node.status) == (None, NodeStatus.idle)


@EVERY
def test_pitfall_19_planned_and_powered_down_nodes_are_no_trouble(release: str) -> None:
    shape = Shape(release)
    states = {"n1": ("IDLE", "PLANNED"), "n2": ("IDLE", "CLOUD", "POWERED_DOWN"), "n3": ("IDLE", "BLOCKED")}
    nodes = parse_json.nodes(shape.answer(nodes=[shape.node(name, *state) for name, state in states.items()]))
    assert nodes["n1"].in_service and nodes["n1"].status is NodeStatus.planned
    assert nodes["n2"].planned and nodes["n2"].status is NodeStatus.power_saving
    assert nodes["n3"].in_service
    assert not any(node.unknown_flags or node.held for node in nodes.values())


@EVERY
def test_pitfall_22_a_flag_of_a_later_release_is_carried_and_stops_a_resume(release: str) -> None:
    shape = Shape(release)
    node = parse_json.nodes(shape.answer(nodes=[shape.node("n1", "IDLE", "DRAIN", "QUARANTINED")]))["n1"]
    assert node.state == ("IDLE", "DRAIN", "QUARANTINED")
    assert (node.unknown_flags, node.resumable) == (("QUARANTINED",), False)


@pytest.mark.parametrize(("release", "named"), [("25.05", False), ("25.11", True), ("26.05", True)])
def test_pitfall_22_blocked_is_named_by_json_only_from_25_11_on(release: str, named: bool) -> None:
    shape = Shape(release)
    node = parse_json.nodes(shape.answer(nodes=[shape.node("n1", "IDLE", "BLOCKED")]))["n1"]
    assert ("BLOCKED" in node.state) is named
    assert node.resumable and node.in_service


@EVERY
def test_a_running_job(release: str) -> None:
    found = job(
        release, "RUNNING", nodes="n[1-2]", gres=("gpu:h100:2(IDX:0,3)", "gpu:h100:1(IDX:7)"), start=AT,
        end=AT + 600, submit=AT - 60, priority=4294901759, resv_name="healer_1", admin_comment="moved",
    )  # fmt: skip
    assert (found.state, found.flags, found.nodes) == ("RUNNING", (), ("n1", "n2"))
    assert found.gpus == {"n1": (0, 3), "n2": (7,)}
    assert (found.submit_at, found.eligible_at, found.start_at) == (when(AT - 60), when(AT - 60), when(AT))
    assert (found.end_at, found.exit_code) == (None, None)  # only the end that its time limit allows
    assert (found.priority, found.reservation, found.admin_comment) == (4294901759, "healer_1", "moved")
    assert (found.account, found.user, found.array_job, found.het_job) == ("research", "ann", "", "")


@EVERY
@pytest.mark.parametrize(("code", "signal", "exit_code"), [(0, 0, "0"), (3, 0, "3"), (0, 9, "0:9")])
def test_how_a_job_ended(release: str, code: int, signal: int, exit_code: str) -> None:
    found = job(release, "FAILED", exit_code=code, signal=signal, end=AT, failed_node="n1")
    assert (found.exit_code, found.end_at, found.failed_node) == (exit_code, when(AT), "n1")


@EVERY
def test_pitfall_20_array_task_0_differs_from_pending_array_tasks(release: str) -> None:
    task = job(release, "RUNNING", array=(5, 0), nodes="n1")
    assert (task.array_job, task.array_task) == ("5", 0)
    waiting = job(release, "PENDING", array=(5, None))
    assert (waiting.array_job, waiting.array_task) == ("5", None)
    alone = job(release, "RUNNING", nodes="n1")
    assert (alone.array_job, alone.array_task, alone.het_offset) == ("", None, None)
    endless = Shape(release).number(None, infinite=True)
    assert job(release, "PENDING", het_job_id=endless).het_job == ""


@EVERY
def test_parts_of_a_heterogeneous_job(release: str) -> None:
    leader, other = job(release, "RUNNING", het=(11, 0)), job(release, "RUNNING", het=(11, 1))
    assert (leader.het_job, leader.het_offset) == ("11", 0)
    assert (other.het_job, other.het_offset) == ("11", 1)


@EVERY
@pytest.mark.parametrize(
    ("reason", "why", "priority", "held"),
    [
        ("JobHeldUser", "", 0, "user"),
        ("JobHeldAdmin", "", 0, "admin"),
        ("JobHoldMaxRequeue", "", 0, "admin"),
        ("JobHeldUser", "launch failed requeued held", 0, "admin"),
        ("JobHeldUser", "job requeued in held state", 0, "user"),
        ("Dependency", "", 4, ""),
        ("Priority", "", 4, ""),
    ],
)
def test_holder_of_a_job_is_read_from_reason_and_priority(
    release: str, reason: str, why: str, priority: int, held: str
) -> None:
    found = job(release, "PENDING", state_reason=reason, state_description=why, priority=priority)
    assert (found.held_by, found.reason, found.why) == (held, reason, why)


@EVERY
def test_a_job_of_a_federation(release: str) -> None:
    found = job(
        release, "PENDING", federation_origin="pod1", federation_siblings_active="pod1,pod2",
        federation_siblings_viable="pod1,pod2,pod3",
    )  # fmt: skip
    assert (found.origin, found.siblings) == ("pod1", ("pod1", "pod2"))
    early = job(release, "PENDING", federation_origin="pod1", federation_siblings_viable="pod1,pod3")
    assert early.siblings == ("pod1", "pod3")


@pytest.mark.parametrize(
    ("line", "no_kill"),
    [
        ("sbatch --no-kill -N2 job.sh", True),
        ("sbatch -k -N2 job.sh", True),
        ("sbatch --no-kill=off job.sh", None),
        ("sbatch --no-kill --no-kill=off job.sh", None),
        ("sbatch job.sh 'an open quote", None),
        ("sbatch job.sh", None),
    ],
)
def test_no_kill_is_known_where_the_submission_says_it(line: str, no_kill: bool | None) -> None:
    found = job("25.11", "RUNNING", submit_line=line)
    assert (found.submit_line, found.no_kill) == (line, no_kill)


def test_records_before_25_11_never_say_no_kill() -> None:
    assert job("25.05", "RUNNING").no_kill is None


def test_text_and_json_of_22_05_agree_on_every_kind_of_job() -> None:
    by_json = parse_json.jobs((CAPTURED / "squeue_kinds_22.05.json").read_bytes())
    records = [one for one in (CAPTURED / "jobs_22.05.txt").read_text().split("\n\n") if one.strip()]
    # Not those with lines that a comment could forge: they are read from JSON.
    plain = [one for one in records if "\n   AdminComment=" not in one]
    by_text = {found.id: found for found in map(parse_text.job, plain)}
    assert by_text == {job: by_json[job] for job in by_text} and len(plain) == len(records) - 2
    by_text = by_json
    siblings = {
        name: (one.held_by, one.exit_code, one.het_offset, one.array_task) for name, one in by_text.items()
    }
    assert siblings["2"] == ("user", None, None, None)
    assert siblings["4"] == ("admin", None, None, None)
    assert (siblings["6"][0], by_text["6"].why) == ("admin", "launch failed requeued held")
    assert (siblings["8"][1], siblings["9"][1]) == ("3", "0:9")
    assert (siblings["11"][2], siblings["12"][2]) == (0, 1)
    assert (siblings["13"][3], by_text["13"].array_job) == (0, "1")
    assert (by_text["1"].array_job, by_text["1"].array_task) == ("1", None)
    assert by_text["7"].excluded == ("gpu0001",)
    assert by_text["4"].dependency == "afterok:3(unfulfilled)"


def test_whose_a_job_is_is_known_by_number() -> None:
    """Tokens depend on it: an unknown user owns nothing, and root's 0 is a number like others."""
    text = (CAPTURED / "job_two_nodes_22.05.txt").read_text()
    for shown, uid in (("root(0)", 0), ("alice(1001)", 1001), ("nobody", None)):
        assert parse_text.job(text.replace("UserId=root(0)", f"UserId={shown}")).uid == uid
    raw = (CAPTURED / "jobs_24.11.json").read_bytes()
    assert {one.uid for one in parse_json.jobs(raw).values()} == {0}
    other = raw.replace(b'"user_id":0', b'"user_id":1001')
    assert {one.uid for one in parse_json.jobs(other).values()} == {1001}
    untold = raw.replace(b'"user_id":0,', b"")
    assert {one.uid for one in parse_json.jobs(untold).values()} == {None}


def test_job_json_of_slurm_24_11_is_read() -> None:
    jobs = parse_json.jobs((CAPTURED / "jobs_24.11.json").read_bytes())
    assert (jobs["3"].held_by, jobs["3"].admin_comment) == ("user", "healer: said this")
    assert (jobs["8"].exit_code, jobs["9"].exit_code, jobs["9"].why) == ("3", "0:9", "RaisedSignal:9(Killed)")
    assert (jobs["12"].het_job, jobs["12"].het_offset) == ("11", 1)
    assert (jobs["13"].array_job, jobs["13"].array_task, jobs["1"].array_task) == ("1", 0, None)


def test_a_reboot_that_was_asked_for_in_text_and_json() -> None:
    text = parse_text.nodes((CAPTURED / "nodes_reboot_22.05.txt").read_text())
    by_json = parse_json.nodes((CAPTURED / "sinfo_reboot_22.05.json").read_bytes())
    assert text == by_json
    assert (text["gpu0001"].after_reboot, text["gpu0001"].status) == (("DOWN",), NodeStatus.draining)
    assert (text["gpu0003"].comment, text["gpu0003"].extra) == (
        "a site text",
        '{"healer":{"incident":"1"}}',
    )
    later = parse_json.nodes((CAPTURED / "nodes_reboot_24.11.json").read_bytes())
    assert later["gpu0001"].after_reboot == ("DOWN", "UNDRAIN")
    assert later["gpu0003"].after_reboot == ()
