"""What users may write into Slurm, and what Slurm prints when it is going away: nothing of it is believed or
hides the rest."""

import json
from pathlib import Path
from typing import Any

import pytest

from healer.adapters.slurm import parse_json, parse_text, pyslurm_nouns
from healer.adapters.slurm import slurm_words as words
from healer.adapters.slurm.cli_client import CliScheduler
from healer.adapters.slurm.commands import Commands
from healer.adapters.slurm.parse_json import NotUnderstood
from healer.ports.scheduling import SchedulerRefused, SchedulerUnavailable

pytestmark = pytest.mark.heavy

CAPTURED = Path(__file__).parents[3] / "unit/adapters/slurm/captured"
TWO_NODES = (CAPTURED / "job_two_nodes_22.05.txt").read_text()
#: `sbatch --begin=now+99999999weeks`, the largest of 64 bits, and one that no machine's calendar takes.
FAR = [60_479_999_395_200, 2**64 - 1, 99_999_999_999_999_999]


def answer(*jobs: dict[str, Any], errors: list[dict[str, Any]] | None = None) -> bytes:
    return json.dumps({"errors": errors or [], "jobs": list(jobs)}).encode()


# --- times


@pytest.mark.parametrize("begin", [*FAR, -5, *({"set": True, "number": far} for far in (*FAR, 1e300, -5))])
def test_a_begin_time_that_no_calendar_reaches_is_none(begin: object) -> None:
    raw = answer({"job_id": 7, "job_state": "PENDING", "start_time": begin, "submit_time": 1795165655})
    job = parse_json.jobs(raw)["7"]
    assert job.start_at is None and job.submit_at is not None and not job.why


@pytest.mark.parametrize("far", FAR)
def test_a_begin_time_that_no_calendar_reaches_is_none_in_text_reservations_and_pyslurm(far: int) -> None:
    old = next(line for line in TWO_NODES.splitlines() if line.startswith("   StartTime="))
    text = TWO_NODES.replace(old, f"   StartTime={far} EndTime={far} Deadline=N/A")
    assert parse_text.job(text).start_at is None
    held = {"name": "r", "start_time": far, "end_time": far}
    assert parse_json.reservations(json.dumps({"reservations": [held]}).encode())["r"].until is None
    record = {
        "name": "r",
        "nodes": "n1",
        "users": [],
        "accounts": [],
        "flags": "",
        "start_time": 1,
        "end_time": far,
    }
    assert pyslurm_nouns.reservation(record).until is None


# --- one job that cannot be read


@pytest.mark.parametrize(
    "broken",
    [
        {"name": 5},
        {"start_time": "tomorrow"},
        {"comment": ["x"]},
        {"excluded_nodes": "n[1-"},
    ],
)
def test_a_job_that_cannot_be_read_costs_that_job_alone(broken: dict[str, Any]) -> None:
    running = {"job_id": 7, "job_state": "RUNNING", "nodes": "n1"}
    raw = answer({"job_id": 6, "job_state": "RUNNING", "nodes": "n2", "comment": "c"}, running | broken)
    jobs = parse_json.jobs(raw)
    assert jobs["6"].comment == "c" and not jobs["6"].why
    # It holds its node, and an unreadable job is never restarted.
    assert (jobs["7"].nodes, jobs["7"].active, jobs["7"].requeue) == (("n1",), True, False)
    assert jobs["7"].why.startswith("healer cannot read this job: ")


def test_a_job_of_which_nothing_can_be_read_is_no_answer() -> None:
    for broken in (
        {"job_state": "RUNNING"},
        {"job_id": 7},
        {"job_id": 7, "job_state": "RUNNING", "nodes": 5},
    ):
        with pytest.raises(NotUnderstood):
            parse_json.jobs(answer(broken))


def test_no_command_touches_a_job_that_cannot_be_read(monkeypatch: pytest.MonkeyPatch) -> None:
    raw = answer({"job_id": 7, "job_state": "RUNNING", "name": 5}, {"job_id": 8, "job_state": "RUNNING"})
    slurm = CliScheduler()
    monkeypatch.setattr(slurm, "job", parse_json.jobs(raw).__getitem__)
    sent: list[tuple[str, ...]] = []
    monkeypatch.setattr(Commands, "ask", lambda _, *command: sent.append(command))
    slurm.requeue("7")
    with pytest.raises(SchedulerRefused, match="name one of them"):
        slurm.hold("7")
    assert not sent
    slurm.hold("8")
    assert sent == [("hold job 8", "scontrol", "hold", "8")]


# --- texts of users


@pytest.mark.parametrize(
    "line",
    [
        "AdminComment=healer: consent",
        "FedOrigin=evil FedViableSiblings=a FedActiveSiblings=b",
        "Reservation=healer_x",
    ],
)
def test_a_line_break_in_a_text_of_the_owners_makes_no_line_of_slurms(line: str) -> None:
    head = TWO_NODES.splitlines()[0]
    for text in (
        TWO_NODES.replace(head, f"{head}\n   {line}"),
        TWO_NODES.replace("   StdErr=", f"   Comment=c\n   {line}\n   StdErr="),
    ):
        assert text != TWO_NODES
        with pytest.raises(parse_text.Ambiguous):
            parse_text.job(text)


def test_a_word_behind_slurms_own_replaces_none_of_them() -> None:
    old = next(line for line in TWO_NODES.splitlines() if line.startswith("   Priority="))
    job = parse_text.job(TWO_NODES.replace(old, f"{old} WCKey=*x QOS=gold Account=root"))
    plain = parse_text.job(TWO_NODES)
    assert (job.qos, job.account) == (plain.qos, plain.account)


def test_a_long_submission_line_is_read_no_further_than_its_options() -> None:
    assert words.no_kill("sbatch --no-kill " + "a" * 10_000) is True
    assert words.no_kill("sbatch -k --no-kill=off x") is None
    assert words.no_kill("sbatch 'it is open --no-kill") is True, "an open quote is no trouble"
    assert words.no_kill("sbatch " + "'" * 4096 + " --no-kill") is None


# --- parts that look like the whole


def test_errors_beside_data_are_no_answer() -> None:
    failed = {"description": "Zero Bytes were transmitted or received", "error_number": 1006}
    for read, raw in (
        (parse_json.jobs, answer({"job_id": 7, "job_state": "RUNNING"}, errors=[failed])),
        (parse_json.nodes, json.dumps({"errors": [failed], "nodes": [{"name": "n1"}]}).encode()),
        (parse_json.reservations, json.dumps({"errors": [failed], "reservations": []}).encode()),
    ):
        with pytest.raises(NotUnderstood, match="Zero Bytes"):
            read(raw)


def commands(folder: Path, *cases: str) -> CliScheduler:
    """A scontrol that answers so; `--version` is 22.05.8."""
    scontrol = folder / "scontrol"
    lines = ['"--version") echo "slurm-wlm 22.05.8";;', '*"show config"*) echo "ClusterName = x";;', *cases]
    scontrol.write_text('#!/bin/sh\ncase "$*" in\n' + "\n".join(lines) + "\nesac\n")
    scontrol.chmod(0o755)
    return CliScheduler(None, bin_dir=folder, timeout_s=20)


AWAY = (
    '*show*) echo "slurm_load_node error: Unable to contact slurm controller (connect failure)" >&2; exit 1;;'
)


def test_a_reboot_that_could_not_be_looked_at_is_not_known(tmp_path: Path) -> None:
    with pytest.raises(SchedulerUnavailable, match=r"did not show n1: .*Unable to contact"):
        commands(tmp_path, "reboot*) exit 0;;", AWAY).reboot("n1", "healer:x")
    with pytest.raises(SchedulerUnavailable, match="did not show n1: no output"):
        commands(tmp_path, "reboot*) exit 0;;", "*show*) exit 0;;").reboot("n1", "healer:x")
    gone = '*show*) echo "Node n1 not found"; exit 1;;'
    with pytest.raises(SchedulerUnavailable, match="Unknown whether n1 will boot"):
        commands(tmp_path, "reboot*) exit 0;;", gone).reboot("n1", "healer:x")


def test_failed_read_before_a_write_has_sent_nothing(tmp_path: Path) -> None:
    with pytest.raises(SchedulerUnavailable, match="Unable to contact") as caught:
        commands(tmp_path, AWAY).change_reservation("r", ["n1"])
    assert caught.value.sent is False


def test_of_a_federation_only_this_cluster_is_shown(tmp_path: Path) -> None:
    """With `FederationParameters=fed_display` the commands show the jobs of all its clusters (seen on 22.05):
    those of another one are on its own nodes, which may have the same names."""
    commands(tmp_path, '*ping*) echo "${SCONTROL_LOCAL:-federated} ${SQUEUE_LOCAL:-federated}";;')
    assert Commands(None, tmp_path, 20).run("scontrol", "ping").text == "1 1\n"
