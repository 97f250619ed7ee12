"""`python -m healer_steps.torchrun`: real agents of torch, gloo, and a verdict file for each."""

import json
import os
import pickle
import re
import signal
import socket
import subprocess
import sys
import time
from datetime import UTC, datetime, timedelta
from pathlib import Path
from types import SimpleNamespace
from typing import Any, NamedTuple

import pytest
from healer_steps import _rendezvous, _slurm, _verdict, torchrun

from tests.support import frameworks
from tests.support.elastic import DESCRIBED, LEAVING_LATE, agents
from tests.support.processes import descendants, free_port, living
from tests.support.wait import wait_until

pytestmark = [pytest.mark.heavy, pytest.mark.timeout(300)]

# --- the verdict ---

NOW = 1_795_000_000.0
LEAVE = {
    "node": "gpu0003",
    "state": "leave",
    "heard_at": time.strftime("%Y-%m-%dT%H:%M:%S.123456Z", time.gmtime(NOW - 5)),
    "incident": "0a1b2c3d",
    "reason": "Xid 79",
}


def written(folder: Path, verdict: Any, mode: int = 0o644) -> str:
    path = folder / "verdict.json"
    path.write_text(verdict if isinstance(verdict, str) else json.dumps(verdict))
    path.chmod(mode)
    return str(path)


def test_a_certain_decision_is_read(tmp_path: Path) -> None:
    found = _verdict.leave_of(written(tmp_path, LEAVE), {"gpu0003"}, NOW)
    assert found == _verdict.Verdict("leave", "gpu0003", "0a1b2c3d", "Xid 79")


@pytest.mark.parametrize(
    "verdict",
    [
        pytest.param(LEAVE | {"state": "healthy"}, id="healthy"),
        pytest.param(LEAVE | {"state": "unknown"}, id="unknown"),
        pytest.param(LEAVE | {"node": "gpu0004"}, id="another node"),
        pytest.param(LEAVE | {"heard_at": "2026-11-18T00:00:00Z"}, id="old"),
        pytest.param(LEAVE | {"heard_at": "2036-11-18T00:00:00Z"}, id="of the future"),
        pytest.param(LEAVE | {"heard_at": 7}, id="no time"),
        pytest.param({"node": "gpu0003", "state": "leave"}, id="without a time"),
        pytest.param(LEAVE | {"node": ["gpu0003"]}, id="no name"),
        pytest.param("[" * 50_000, id="nested"),
        pytest.param("leave", id="no JSON"),
        pytest.param("", id="empty"),
        pytest.param([LEAVE], id="a list"),
    ],
)
def test_what_is_not_certain_is_no_decision(tmp_path: Path, verdict: Any) -> None:
    assert _verdict.leave_of(written(tmp_path, verdict), {"gpu0003"}, NOW) is None


def test_a_file_that_others_may_have_written_is_no_decision(tmp_path: Path) -> None:
    assert _verdict.leave_of(written(tmp_path, LEAVE, 0o666), {"gpu0003"}, NOW) is None
    path = written(tmp_path, LEAVE)
    link = tmp_path / "link"
    link.symlink_to(path)
    assert _verdict.leave_of(str(link), {"gpu0003"}, NOW) is None
    os.mkfifo(tmp_path / "pipe")
    assert _verdict.leave_of(str(tmp_path / "pipe"), {"gpu0003"}, NOW) is None
    assert _verdict.leave_of(str(tmp_path / "none"), {"gpu0003"}, NOW) is None
    assert _verdict.leave_of(path, {"gpu0003"}, NOW) is not None
    if os.geteuid() == 0:
        os.chown(path, 65534, 65534)
        assert _verdict.leave_of(path, {"gpu0003"}, NOW) is None


# --- consent ---


@pytest.mark.parametrize(
    ("shown", "least"),
    [
        ("   Comment=healer:swap=4\n", 4),
        ("   Comment=mine,healer:requeue healer:swap=12\n", 12),
        ("   Extra=healer:swap=3\n   Comment=(null)\n", 3),
        ("   Comment=healer:requeue;healer:swap=5; mine\n", 5),  # as healer reads it
        ("   Comment=healer:swap=0\n", None),
        ("   Comment=healer:swap=four\n", None),
        ("   Comment=xhealer:swap=4\n", None),
        ("   JobName=healer:swap=4\n   Comment=healer:requeue\n", None),
        ("   AdminComment=healer:swap=4\n", None),
    ],
)
def test_consent_is_the_word_in_the_jobs_comment(tmp_path: Path, shown: str, least: int | None) -> None:
    scontrol = tmp_path / "scontrol"
    scontrol.write_text(f"#!/bin/sh\n[ \"$*\" = 'show job 4711' ] && cat <<'E'\nJobId=4711\n{shown}E\n")
    scontrol.chmod(0o755)
    environ = {"SLURM_JOB_ID": "4711", "PATH": f"{tmp_path}:{os.environ['PATH']}"}
    assert _slurm.consent(environ) == least
    assert _slurm.consent(environ | {"HEALER_SWAP": "7"}) == 7
    assert _slurm.consent(environ | {"HEALER_SWAP": "-7"}) is None
    assert _slurm.consent(environ | {"PATH": "/nonexistent"}) is None
    assert _slurm.consent({"PATH": environ["PATH"]}) is None


# --- Slurm's own word ---


@pytest.mark.parametrize(
    ("shown", "why"),
    [
        (
            "   State=MIXED+DRAIN ThreadsPerCore=1\n   Reason=healer:gpu-lost inc:0a1b2c3d Xid 79\n",
            "",
        ),
        ("   State=ALLOCATED+DRAIN ThreadsPerCore=1\n   Reason=swap the fan [root@now]\n", "not show"),
        ("   State=ALLOCATED ThreadsPerCore=1\n   Reason=healer:gpu-lost inc:0a1b2c3d\n", "not show"),
        ("   State=ALLOCATED ThreadsPerCore=1\n   Extra=DRAIN\n", "not show"),
        (None, "does not say"),
    ],
)
def test_a_verdict_that_slurm_contradicts_is_not_followed(
    tmp_path: Path, shown: str | None, why: str
) -> None:
    program = tmp_path / "scontrol"
    answer = f"cat <<'E'\nNodeName=gpu0003\n{shown}E\n" if shown else "exit 1\n"
    program.write_text(f"#!/bin/sh\n[ \"$*\" = 'show node gpu0003' ] || exit 1\n{answer}")
    program.chmod(0o755)
    environ = {"SLURM_JOB_ID": "4711", "PATH": f"{tmp_path}:{os.environ['PATH']}"}
    found = _slurm.contradicted(environ, "gpu0003")
    assert why in found and bool(why) == bool(found)
    assert _slurm.contradicted({"PATH": environ["PATH"]}, "gpu0003") == ""  # no job of Slurm


# --- the state of the rendezvous ---


class Agent(NamedTuple):
    addr: str
    pid: int


A, B, C, D = (Agent(name, os.getpid()) for name in "abcd")


def state_of_three(ages_s: dict[Agent, float], **more: Any) -> Any:
    """A complete round of `A`, `B` and `C`."""
    now = datetime.now(UTC)
    beats = {name: now - timedelta(seconds=age_s) for name, age_s in ages_s.items()}
    state = SimpleNamespace(
        participants={A: 0, B: 1, C: 2}, wait_list=set(), redundancy_list=set(), complete=True,
        closed=False, round=4, last_heartbeats=beats,
    )  # fmt: skip
    vars(state).update(more)
    return state


def leaving_c(need: int) -> _rendezvous.Leaving:
    return _rendezvous.Leaving("c", need, timedelta(seconds=5))


@pytest.mark.parametrize(
    ("need", "more", "leaves"),
    [
        (2, {}, True),
        (3, {}, False),
        (2, {"complete": False}, False),
        (2, {"closed": True}, False),
        (2, {"wait_list": {D}}, False),
        (2, {"ages_s": {A: 1.0, B: 11.0, C: 1.0}}, False),  # may be gone already
        (2, {"ages_s": {A: 1.0, C: 1.0}}, False),
        (3, {"redundancy_list": {D}, "ages_s": {A: 1.0, B: 1.0, C: 1.0, D: 1.0}}, True),
        (3, {"redundancy_list": {D}, "ages_s": {A: 1.0, B: 1.0, C: 1.0, D: 11.0}}, False),
        (2, {"participants": {A: 0, B: 1}}, False),  # it has not joined yet
        (2, {"participants": {A: 0, B: 1, Agent("c", 1): 2}}, False),  # another process there
    ],
)
def test_an_agent_leaves_where_enough_others_are_alive_and_at_rest(
    need: int, more: dict[str, Any], leaves: bool
) -> None:
    state = state_of_three(**{"ages_s": {A: 1.0, B: 6.0, C: 1.0}} | more)
    before, leaving = pickle.dumps(state), leaving_c(need)
    assert leaving(state) == leaves and (leaving.node == C) == leaves
    assert leaves or pickle.dumps(state) == before
    if leaves:  # what torch does in two steps: the round stays complete, with the ranks as they were
        assert state.participants == {A: 0, B: 1} and state.wait_list == {C}
        assert (state.complete, state.round) == (True, 4)
        assert datetime.now(UTC) - state.last_heartbeats[C] < timedelta(seconds=1)


def test_the_last_participant_ends_the_round() -> None:
    state = state_of_three({C: 1.0, D: 1.0}, participants={C: 0}, redundancy_list={D})
    assert leaving_c(1)(state)
    assert not state.participants and not state.wait_list and set(state.last_heartbeats) == {D}
    assert (state.complete, state.round) == (False, 5)


def test_a_state_that_is_not_known_is_not_changed() -> None:
    state = state_of_three({A: 1.0, B: 1.0, C: 1.0})
    del state.wait_list
    with pytest.raises(AttributeError, match="wait_list"):
        leaving_c(2)(state)
    assert C in state.participants


@pytest.mark.parametrize(
    ("more", "late", "withdraws"),
    [({}, False, False), ({"round": 5}, False, True), ({"closed": True}, False, True), ({}, True, True)],
)
def test_it_waits_until_the_others_have_left_the_round(
    more: dict[str, Any], late: bool, withdraws: bool
) -> None:
    state = state_of_three({A: 1.0, C: 1.0}, wait_list={C}, **more)
    assert _rendezvous.withdraw(state, C, 4, late=late) == withdraws
    assert (C in state.wait_list, C in state.last_heartbeats) == (not withdraws, not withdraws)
    assert not _rendezvous.withdraw(state, D, 4, late=True)


class Contended:
    """A backend in which another agent writes just before the first write of this one."""

    def __init__(self, state: Any, theirs: Any) -> None:
        self.bits, self._theirs = pickle.dumps(state), theirs

    def get_state(self) -> tuple[bytes, bytes]:
        return self.bits, self.bits

    def set_state(self, bits: bytes, token: bytes) -> tuple[bytes, bytes, bool]:
        if self._theirs is not None:
            self.bits, self._theirs = pickle.dumps(self._theirs), None
        done = token == self.bits
        self.bits = bits if done else self.bits
        return self.bits, self.bits, done


def test_of_two_that_leave_at_once_the_second_sees_the_first() -> None:
    ages_s = {A: 1.0, B: 1.0, C: 1.0}
    for need, theirs, leaves in (
        (2, state_of_three(ages_s, participants={A: 0, C: 2}, wait_list={B}), False),
        (2, state_of_three(ages_s | {A: 0.0}), True),  # a keep-alive
    ):
        backend, leaving = Contended(state_of_three(ages_s), theirs), leaving_c(need)
        shared = _rendezvous.Shared(backend, "ours")
        state = shared.edit(leaving)
        assert state == pickle.loads(backend.bits) and (leaving.node == C) == leaves
        assert (C in state.participants) != leaves and set(state.last_heartbeats) == {A, B, C}
        shared.is_left = True
        assert shared.get_state() is None and shared.set_state(b"") is None and shared.read() == state


# --- which node keeps the rendezvous ---


@pytest.mark.parametrize(
    ("host", "here"),
    [
        ("localhost", True),
        ("127.0.0.1", True),
        ("127.9.9.9", True),
        ("::1", True),
        (socket.gethostname(), True),
        ("name-of-none.invalid", True),  # in doubt
        ("192.0.2.7", False),
    ],
)
def test_whether_an_address_is_of_this_machine(host: str, here: bool) -> None:
    assert torchrun.is_here(host) == here


# --- an end in time ---


def test_what_does_not_end_by_itself_is_killed() -> None:
    """A worker that ignores SIGTERM, in a session of its own, as torch starts them."""
    stubborn = "trap '' TERM; sleep 600 & wait"
    program = (
        "import subprocess, time; from healer_steps import torchrun;"
        f"subprocess.Popen(['sh', '-c', {stubborn!r}], start_new_session=True); print('on', flush=True);"
        "torchrun.end_in(0.3); time.sleep(600)"
    )
    environ = {"PATH": os.environ["PATH"], "PYTHONPATH": str(frameworks.CLIENT)}
    process = subprocess.Popen([sys.executable, "-c", program], env=environ, stdout=subprocess.PIPE)
    assert process.stdout is not None and process.stdout.readline() == b"on\n"
    wait_until(lambda: len(descendants(process.pid)) >= 3, 5, what="the worker has a child", every_s=0.01)
    started = descendants(process.pid)
    assert process.wait(20) == 0
    wait_until(lambda: not living(started), 5, what="nothing is left")


# --- agents of torch ---


#: Workers are forked from a process that has imported torch.
FORKS = "--start-method=forkserver"


@pytest.mark.parametrize(
    ("trainer", "options"),
    [("ddp", []), ("ddp", [FORKS]), ("accelerate", []), ("lightning", [])],
    ids=["ddp", "ddp that forks", "accelerate", "lightning"],
)
def test_agent_of_a_bad_node_leaves_and_the_others_go_on_from_the_checkpoint(
    tmp_path: Path, trainer: str, options: list[str]
) -> None:
    with agents(tmp_path, ["a", "b", "c"], 2, trainer=trainer) as job:
        for name in job.names:
            job.start(name, "--max-restarts=1", *options)
        job.work(3, more=12)
        decided = job.decide("c")
        assert job.ended("c") == 0
        job.work(2, ["a", "b"])
        saved = max(one["step"] for one in job.log.steps("c", 3)) // 5 * 5
        for name in ("a", "b"):
            again = [one for one in job.log.of(name) if "from_step" in one and one["world"] == 2]
            assert len(again) == 1 and again[0]["from_step"] in (saved - 5, saved, saved + 5)
            assert again[0]["from_step"] > 0
            first = job.log.steps(name, 2)[0]
            assert first["step"] == again[0]["from_step"] + 1
            assert again[0]["restart"] == 0  # none of those that the launcher was allowed
            print(f"{trainer}: {name} makes its next step {first['at'] - decided:.1f} s after the decision")
        assert "this agent leaves" in job.said("c")
        assert job.runs("a") and job.runs("b")


def test_two_faults_in_a_row_on_five_nodes(tmp_path: Path) -> None:
    with agents(tmp_path, ["a", "b", "c", "d", "e"], 3) as job:
        for name in job.names:
            job.start(name, "--max-restarts=2")
        job.work(5)
        job.decide("e")
        assert job.ended("e") == 0
        job.work(4, ["a", "b", "c", "d"])
        job.decide("b")
        assert job.ended("b") == 0
        job.work(3, ["a", "c", "d"])
        for name in ("a", "c", "d"):
            starts = [one for one in job.log.of(name) if "from_step" in one]
            assert [one["world"] for one in starts] == [5, 4, 3]
            assert [one["restart"] for one in starts] == [0, 0, 0]
            assert 0 < starts[1]["from_step"] < starts[2]["from_step"]


def test_a_standby_takes_the_place_of_the_one_that_leaves(tmp_path: Path) -> None:
    """With `--nnodes=3:3` a fourth agent waits; the job needs three nodes and has them."""
    with agents(tmp_path, ["a", "b", "c", "d"], 3) as job:
        for name in ("a", "b", "c"):
            job.start(name, "--nnodes=3:3", "--max-restarts=1", HEALER_SWAP="3")
        job.work(3, ["a", "b", "c"])
        job.start("d", "--nnodes=3:3", "--max-restarts=1", HEALER_SWAP="3")
        job.work(3, ["a", "b", "c"], more=60)  # the standby has come, and waits
        assert not job.log.of("d")
        job.decide("c")
        assert job.ended("c") == 0
        job.work(3, ["a", "b", "d"])
        assert [one["from_step"] > 0 for one in job.log.of("d") if "from_step" in one] == [True]


def test_a_worker_that_died_of_the_fault_comes_back_once_at_most_before_its_agent_leaves(
    tmp_path: Path,
) -> None:
    """The decision comes after the fault: meanwhile torch meets again with the bad node."""
    with agents(tmp_path, ["a", "b", "c"], 2) as job:
        for name in job.names:
            job.start(name, "--max-restarts=3")
        job.work(3)
        for pid in descendants(job.pid("c")) - {job.pid("c")}:
            # Without the tracker of multiprocessing, semaphores of the agent would stay on the machine.
            if b"resource_tracker" not in Path(f"/proc/{pid}/cmdline").read_bytes():
                os.kill(pid, signal.SIGKILL)
        time.sleep(1.0)  # healer decides so soon; torch is meeting again
        job.decide("c")
        assert job.ended("c") == 0
        job.work(2, ["a", "b"])
        for name in ("a", "b"):
            starts = [one for one in job.log.of(name) if "from_step" in one]
            assert starts[-1]["world"] == 2 and starts[-1]["restart"] <= 1 and len(starts) <= 3


@pytest.mark.parametrize("least", [1, 2])
def test_after_one_has_left_no_later_round_waits_for_it(tmp_path: Path, least: int) -> None:
    """torch waits 30 s for further nodes in each round that does not have the most."""
    with agents(tmp_path, ["a", "b", "c"], least) as job:
        for name in job.names:
            job.start(name, "--max-restarts=3")
        job.work(3)
        job.decide("c")
        assert job.ended("c") == 0
        job.work(2, ["a", "b"])
        ended_at = time.time()
        os.kill(job.log.pid("b"), signal.SIGKILL)
        job.work(2, ["a", "b"], more=20)
        starts = [one["at"] for one in job.log.of("a") if one["at"] > ended_at and "from_step" in one]
        print(f"workers {starts[-1] - ended_at:.1f} s after the end of one")
        assert starts[-1] - ended_at < 30


@pytest.mark.parametrize("options", [[], [FORKS]], ids=["starts", "forks"])
def test_a_frozen_worker_of_a_bad_node_holds_the_others_up_for_seconds_only(
    tmp_path: Path, options: list[str]
) -> None:
    """All meet again because another worker has died, and the frozen one does not end by SIGTERM."""
    with agents(tmp_path, ["a", "b", "c"], 2) as job:
        for name in job.names:
            job.start(name, "--max-restarts=3", *options)
        job.work(3)
        os.kill(job.log.pid("c"), signal.SIGSTOP)
        os.kill(job.log.pid("b"), signal.SIGKILL)
        time.sleep(1.0)
        decided = job.decide("c")
        assert job.ended("c") == 0
        job.work(2, ["a", "b"], more=1)
        next_at = min(job.log.steps(name, 2)[0]["at"] for name in ("a", "b"))
        print(f"next step {next_at - decided:.1f} s after the decision")
        # torch gives workers 30 s, and waits 30 s for an agent that may still come.
        assert next_at - decided < 30


def test_where_the_others_could_not_go_on_the_training_goes_on_as_it_is(tmp_path: Path) -> None:
    """One keeps the rendezvous, one has no consent, of the third the job needs all nodes, and the fourth may
    not restart."""
    with agents(tmp_path, ["a", "b", "c", "d"], 2) as job:
        job.start("a", "--max-restarts=1")
        job.start("b", "--max-restarts=1", HEALER_SWAP="")
        job.start("c", "--max-restarts=1", HEALER_SWAP="4")
        job.start("d")
        job.work(4)
        for name in job.names:
            job.decide(name)
        job.work(4, more=30)
        assert "this node keeps the rendezvous" in job.said("a")
        assert "no healer:swap=N in the job's comment" in job.said("b")
        assert "3 nodes would be left, and 4 are needed" in job.said("c")
        assert "no restart is left" in job.said("d")
        assert [len([one for one in job.log.of(name) if "from_step" in one]) for name in job.names] == [1] * 4


def test_of_two_bad_nodes_one_leaves_where_the_job_can_lose_one_only(tmp_path: Path) -> None:
    with agents(tmp_path, ["a", "b", "c", "d"], 3) as job:
        for name in job.names:
            job.start(name, "--max-restarts=1")
        job.work(4)
        for name in ("c", "d"):
            job.decide(name)
        wait_until(lambda: not (job.runs("c") and job.runs("d")), 90, what="one has left", every_s=0.1)
        gone, stays = ("c", "d") if not job.runs("c") else ("d", "c")
        assert job.ended(gone) == 0
        job.decide(stays)  # what was heard 60 s ago is of the past
        job.work(3, ["a", "b", stays], more=20)
        wait_until(
            lambda: "2 nodes would be left, and 3 are needed" in job.said(stays), 20, what="it says why"
        )


def test_without_a_verdict_it_is_torchrun(tmp_path: Path) -> None:
    with agents(tmp_path, ["a", "b"], 2, steps=5) as job:
        for name in job.names:
            job.start(name)
        assert [job.ended(name) for name in job.names] == [0, 0]
        assert [one["step"] for one in job.log.steps("b", 2)] == [1, 2, 3, 4, 5]


def test_a_failure_of_the_script_is_the_status_as_with_torchrun(tmp_path: Path) -> None:
    with agents(tmp_path, ["a"], 1, trainer="none") as job:
        job.start("a", "--max-restarts=0")
        assert job.ended("a") == 1
        assert "KeyError: 'none'" in job.said("a")


def test_a_rendezvous_of_another_backend_is_left_to_torch(tmp_path: Path) -> None:
    with agents(tmp_path, ["a"], 1, trainer="none") as job:
        job.decide("a")
        job.start("a", "--standalone")
        assert job.ended("a") == 1
        assert "the job stays here: it needs --rdzv-backend=c10d" in job.said("a")


def test_an_agent_that_leaves_while_another_joins_the_next_round_delays_none(tmp_path: Path) -> None:
    """The other had no further look: the first waited 5 s for it, and then it waited torch's 30 s."""
    (tmp_path / "v.fresh").write_text(
        json.dumps(
            LEAVE | {"node": "127.0.0.2", "heard_at": time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime())}
        )
    )
    environ = {"TORCH_DISABLE_SHARE_RDZV_TCP_STORE": "1", "PATH": os.environ["PATH"]}
    done = subprocess.run(
        [frameworks.python(), LEAVING_LATE, str(free_port()), str(tmp_path / "v.verdict")],
        env=environ | frameworks.QUIET, capture_output=True, text=True, timeout=120, check=True,
    )  # fmt: skip
    assert "it has left" in done.stdout
    found = re.search(r"1 goes on after ([0-9.]+) s", done.stdout)
    assert found is not None and float(found[1]) < torchrun.NOTICE_S


# --- workers that fork ---


def test_forked_workers_run_the_script_as_python_does(tmp_path: Path) -> None:
    file = tmp_path / "described.jsonl"
    with agents(tmp_path, ["a"], 1) as job:
        job.run(
            "a", FORKS, "--nproc-per-node=2", str(DESCRIBED), str(file), "0", HEALER_PRELOAD="colorsys, none"
        )
        assert job.ended("a") == 0
        said = [json.loads(line) for line in file.read_text().splitlines()]
        assert "none is not imported ahead of the workers: ModuleNotFoundError" in job.said("a")
        assert job.said("a").count("said at once") == 2
    ranks = [[one for one in said if one["rank"] == rank] for rank in (0, 1)]
    for rank in ranks:
        assert [one.get("at_exit") for one in rank] == [None, "first", "last"]
        like = {"name": "described.py", "beside": "wait.py", "threads": 1, "nvml": False, "preloaded": True}
        assert like.items() <= rank[0].items()
    drawn = [rank[0]["drawn"] for rank in ranks]
    assert drawn[0][0] != drawn[1][0] and drawn[0][1] != drawn[1][1]


def test_forked_workers_run_a_module(tmp_path: Path) -> None:
    with agents(tmp_path, ["a"], 1) as job:
        job.run("a", FORKS, "-m", "this")
        assert job.ended("a") == 0
        assert "Explicit is better than implicit." in job.said("a")


def test_the_status_of_a_forked_script_is_a_failure(tmp_path: Path) -> None:
    with agents(tmp_path, ["a"], 1) as job:
        job.run("a", FORKS, "--max-restarts=1", str(DESCRIBED), str(tmp_path / "said"), "3")
        assert job.ended("a") == 1
        assert "exitcode  : 3" in job.said("a")
        assert (tmp_path / "said").read_text().count('"name"') == 2


SAVES = """
import multiprocessing, os, signal, sys, threading, time
from pathlib import Path
begun, saved, ended = (Path(sys.argv[1], name) for name in ("begun", "saved", "ended"))
signal.signal(signal.SIGUSR1, lambda *_: saved.touch())
multiprocessing.set_start_method("spawn")
begun.touch()
sys.stdout.write("unbuffered ")
while not ended.exists():
    time.sleep(0.05)
threading.Thread(target=time.sleep, args=(300,)).start()
os.killpg(0, signal.SIGUSR1)
os._exit(0)
"""


def test_forked_workers_outlive_a_signal_to_the_whole_step_and_may_end_at_once(tmp_path: Path) -> None:
    """As `healer:signal=USR1@60` sends it; torchrun's own signals are a matter of its options."""
    script = tmp_path / "saves.py"
    script.write_text(SAVES)
    with agents(tmp_path, ["a"], 1) as job:
        job.run("a", FORKS, "--max-restarts=0", str(script), str(tmp_path), PYTHONUNBUFFERED="")
        wait_until((tmp_path / "begun").exists, 60, what="it has begun")
        for pid in living(descendants(job.pid("a")) - {job.pid("a")}):
            os.kill(pid, signal.SIGUSR1)
        wait_until((tmp_path / "saved").exists, 10, what="it saves")
        wait_until(lambda: "unbuffered" in job.said("a"), 10, what="its output comes at once")
        (tmp_path / "ended").touch()
        assert job.ended("a", 30) == 0


@pytest.mark.parametrize(
    ("ends", "status"), [("sys.exit(256)", 0), ("raise KeyboardInterrupt", 1), ("sys.exit('no')", 1)]
)
def test_forked_workers_end_as_their_script_does(tmp_path: Path, ends: str, status: int) -> None:
    script = tmp_path / "ends.py"
    script.write_text(f"import sys\n{ends}\n")
    with agents(tmp_path, ["a"], 1) as job:
        job.run("a", FORKS, "--max-restarts=0", str(script))
        assert job.ended("a", 60) == status
