"""The pyslurm adapter beyond the contract: its process, what pyslurm cannot do, and each release's ways.

It runs on the stand-in of tests/support/pyslurm_fake. What the real pyslurm 24.11.0 did with Slurm 24.11.5
is in docs/slurm.md, and the stand-in does the same.
"""

import json
import os
import signal
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from pathlib import Path

import msgspec
import pytest

from healer.adapters.slurm.preferred import PreferredScheduler
from healer.adapters.slurm.pyslurm_client import PyslurmScheduler
from healer.adapters.system_clock import SystemClock
from healer.model import Reservation, SlurmCall, SlurmNode, SlurmSnapshot, Submission
from healer.ports.scheduling import NotAvailable, SchedulerRefused, SchedulerUnavailable
from healer.sim.sim_slurm import SimScheduler, SimServer, SlurmTimes
from tests.support.fake_pyslurm import environment, fake_pyslurm
from tests.support.wait import wait_until

OURS = "healer:gpu-lost inc:1a2b3c4d GPU 3 fell off the bus (Xid 79)"
OLD, NEW = "24.11.0", "25.11.2"
CPUS = 96
CHILD = "healer/adapters/slurm/pyslurm_child.py"


class Stalling(SimScheduler):
    """A Slurm that can be made to block requests for a node."""

    def __init__(self) -> None:
        super().__init__("pod1", SystemClock(), 4, times=SlurmTimes(cred_expire_s=5))
        self.going, self.asked = threading.Event(), threading.Event()
        self.going.set()

    def node(self, name: str) -> SlurmNode:
        self.asked.set()
        self.going.wait(60)
        return super().node(name)

    def snapshot(self) -> SlurmSnapshot:
        shown = super().snapshot()
        nodes = {name: msgspec.structs.replace(node, cpus=CPUS) for name, node in shown.nodes.items()}
        return msgspec.structs.replace(shown, nodes=nodes)


@pytest.fixture
def slurm() -> Stalling:
    return Stalling()


@pytest.fixture
def socket(slurm: Stalling, tmp_path: Path) -> Iterator[Path]:
    server = SimServer(slurm, tmp_path / "slurm.sock")
    server.start()
    yield tmp_path / "slurm.sock"
    slurm.going.set()
    server.stop()


@pytest.fixture
def adapter(socket: Path) -> Iterator[PyslurmScheduler]:
    adapter = fake_pyslurm(socket)
    yield adapter
    adapter.close()


@pytest.fixture
def newest(socket: Path) -> Iterator[PyslurmScheduler]:
    adapter = fake_pyslurm(socket, NEW)
    yield adapter
    adapter.close()


def processes() -> list[int]:
    """The processes of this one in which pyslurm lives."""
    found = []
    for entry in Path("/proc/self/task").glob("*/children"):
        for pid in map(int, entry.read_text().split()):
            if CHILD in Path(f"/proc/{pid}/cmdline").read_text():
                found.append(pid)
    return found


# --- its process


def test_it_reads_the_cores_of_a_node(adapter: PyslurmScheduler) -> None:
    assert adapter.node("gpu0001").cpus == CPUS


def test_it_never_loads_pyslurm_into_healer(adapter: PyslurmScheduler) -> None:
    assert adapter.describe() == "pyslurm 24.11.0, Slurm 24.11.0"
    assert "pyslurm" not in sys.modules


def test_its_process_gets_none_of_healers_settings(
    adapter: PyslurmScheduler, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("HEALER_DATABASE_URL", "postgresql://healer:secret@db/healer")
    adapter.describe()
    (pid,) = processes()
    assert b"HEALER_" not in Path(f"/proc/{pid}/environ").read_bytes()


def test_a_process_that_ended_is_started_again(adapter: PyslurmScheduler) -> None:
    adapter.drain("gpu0001", OURS)
    (first,) = processes()
    os.kill(first, signal.SIGKILL)

    def reads() -> bool:
        try:
            return adapter.node("gpu0001").reason == OURS
        except SchedulerUnavailable:  # it may have been dying when it was asked
            return False

    wait_until(reads, 20, what="another process")
    assert processes() != [first]


def test_a_call_that_does_not_return_ends_its_process_and_leaves_open_what_happened(
    slurm: Stalling, socket: Path
) -> None:
    adapter = fake_pyslurm(socket, timeout_s=2)

    def answers() -> bool:
        try:
            return adapter.node("gpu0001").name == "gpu0001"
        except SchedulerUnavailable as error:  # loading may take longer than a call
            assert "still loading" in str(error) and not error.sent
            return False

    wait_until(answers, 30, what="pyslurm to be loaded")
    (first,) = processes()
    slurm.going.clear()
    with pytest.raises(SchedulerUnavailable, match=r"did not answer within 2 s") as caught:
        adapter.drain("gpu0001", OURS)
    assert caught.value.sent
    assert first not in processes()
    slurm.going.set()
    wait_until(answers, 30, what="another process")
    adapter.close()


def test_a_process_that_dies_in_a_call_leaves_open_what_happened(
    slurm: Stalling, adapter: PyslurmScheduler
) -> None:
    adapter.cluster_name()
    (pid,) = processes()
    slurm.going.clear()
    slurm.asked.clear()

    def kill() -> None:
        slurm.asked.wait(20)
        os.kill(pid, signal.SIGKILL)

    killer = threading.Thread(target=kill)
    killer.start()
    with pytest.raises(SchedulerUnavailable, match="process exited") as caught:
        adapter.drain("gpu0001", OURS)
    assert caught.value.sent
    killer.join(20)


def test_threads_share_its_process(adapter: PyslurmScheduler) -> None:
    names = [f"gpu000{number}" for number in (1, 2, 3, 4)]
    threads = [threading.Thread(target=adapter.drain, args=(name, OURS)) for name in names * 3]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(30)
    assert [adapter.node(name).reason for name in names] == [OURS] * 4
    assert len(processes()) == 1


def test_libslurm_may_end_the_process_that_loads_it(tmp_path: Path) -> None:
    # As libslurm does without a configuration: it says why, and ends the process.
    (tmp_path / "pyslurm.py").write_text(
        "import os; os.write(2, b'fatal: Could not establish a configuration source\\n'); os._exit(1)"
    )
    adapter = PyslurmScheduler(20, env={"PYTHONPATH": str(tmp_path)})
    with pytest.raises(
        SchedulerUnavailable, match=r"killed the process .*: fatal: Could not establish a config"
    ) as caught:
        adapter.drain("gpu0001", OURS)
    assert not caught.value.sent


@pytest.mark.parametrize(
    ("module", "sentence"),
    [
        (
            None,
            r"^pyslurm is not installed: install `healer\[pyslurm\]` in the release of this site's Slurm",
        ),
        (
            "raise ImportError('libslurmfull.so: cannot open shared object file')",
            r"^pyslurm cannot load the libslurm it was built for: libslurmfull\.so: cannot open",
        ),
        (
            "import gone_with_the_release",
            r"^pyslurm cannot load the libslurm it was built for: No module named",
        ),
    ],
)
def test_missing_pyslurm_is_reported_in_one_sentence(
    tmp_path: Path, module: str | None, sentence: str
) -> None:
    if module is not None:
        (tmp_path / "pyslurm.py").write_text(module)
    # -S: whatever this Python has installed is not there.
    adapter = PyslurmScheduler(
        20, command=(sys.executable, "-P", "-S", CHILD), env={"PYTHONPATH": str(tmp_path)}
    )
    for call in (adapter.describe, adapter.unavailable, adapter.cluster_name, adapter.snapshot):
        with pytest.raises(SchedulerUnavailable, match=sentence) as caught:
            call()
        assert not caught.value.sent
    adapter.close()


@pytest.mark.parametrize(
    ("release", "libslurm", "sentence"),
    [
        (
            "24.11.0",
            "25.05.2",
            r"^pyslurm 24\.11\.0 is for a different Slurm release than .* libslurm 25\.05\.2",
        ),
        ("23.2.2", "23.02.8", r"^pyslurm 23\.2\.2 is not a release that healer supports"),
        ("26.5.0", "26.05.1", r"^pyslurm 26\.5\.0 is not a release that healer supports"),
    ],
)
def test_another_release_is_one_sentence(socket: Path, release: str, libslurm: str, sentence: str) -> None:
    adapter = fake_pyslurm(socket, release, libslurm=libslurm)
    with pytest.raises(SchedulerUnavailable, match=sentence) as caught:
        adapter.drain("gpu0001", OURS)
    assert not caught.value.sent
    adapter.close()


def test_a_dead_controller_was_never_reached(tmp_path: Path) -> None:
    adapter = fake_pyslurm(tmp_path / "nobody-listens")
    for call in (lambda: adapter.drain("gpu0002", OURS), adapter.snapshot, lambda: adapter.job("1")):
        with pytest.raises(SchedulerUnavailable, match="Unable to contact slurm controller") as caught:
            call()
        assert not caught.value.sent
    adapter.close()


# --- what it can and cannot do


def test_pitfall_11_only_releases_that_can_say_incomplete_requeue(
    slurm: Stalling, adapter: PyslurmScheduler, newest: PyslurmScheduler
) -> None:
    done, runs = slurm.add_job(nodes=1), slurm.add_job(nodes=1)
    slurm.complete(done)
    adapter.requeue(done)
    job = adapter.job(done)
    assert job is not None and job.restarts == 0
    with pytest.raises(NotAvailable, match=r"pyslurm 25\.11\.2 cannot set Incomplete"):
        newest.requeue(runs)
    assert SlurmCall.requeue in newest.unavailable() and SlurmCall.requeue not in adapter.unavailable()
    job = newest.job(runs)
    assert job is not None and (job.state, job.restarts) == ("RUNNING", 0)


@pytest.mark.parametrize("release", [OLD, NEW])
def test_both_halves_of_its_interface_read_the_same(release: str, slurm: Stalling, socket: Path) -> None:
    slurm.reserve(Reservation(name="healer-test", nodes=("gpu0003",), users=("root",), maintenance=True))
    slurm.reserve(Reservation(name="spare", nodes=("gpu0004",), users=("root",)))
    adapter = fake_pyslurm(socket, release)
    kept = adapter.snapshot().reservations
    assert {name: (one.nodes, one.users, one.maintenance) for name, one in kept.items()} == {
        "healer-test": (("gpu0003",), ("root",), True),
        "spare": (("gpu0004",), ("root",), False),
    }
    found = adapter.controller()
    assert (found.cluster, found.adapter, found.role, found.threads, found.agent_queue) == (
        "pod1", "pyslurm", "primary", 1, 0,
    )  # fmt: skip
    assert found.dbd_queue == (None if release == OLD else 0)
    adapter.close()


def test_nothing_is_cleared_by_it_and_the_next_adapter_does_it(
    slurm: Stalling, adapter: PyslurmScheduler
) -> None:
    job = slurm.add_job(held=True, excluded=("gpu0001",))
    adapter.annotate("gpu0001", comment="rack 3", extra='{"healer": 1}')
    adapter.remark(job, "healer: hit by a fault")
    calls: list[Callable[[PyslurmScheduler | PreferredScheduler], None]] = [
        lambda way: way.annotate("gpu0001", extra=""),
        lambda way: way.remark(job, ""),
        lambda way: way.exclude(job, ()),
    ]
    for call in calls:
        with pytest.raises(NotAvailable, match="sends no empty text"):
            call(adapter)
    assert (slurm.node("gpu0001").extra, slurm.node("gpu0001").comment) == ('{"healer": 1}', "rack 3")
    chain = PreferredScheduler([adapter, slurm])
    for call in calls:
        call(chain)
    shown = slurm.job(job)
    assert shown is not None and (shown.admin_comment, shown.excluded) == ("", ())
    assert (slurm.node("gpu0001").extra, slurm.node("gpu0001").comment) == ("", "rack 3")


def test_pitfall_12_an_arrays_own_id_is_one_task_but_never_for_signals(
    slurm: Stalling, adapter: PyslurmScheduler
) -> None:
    array = slurm.add_job(array=3, gpus=1)
    tasks = {job.array_task: job.id for job in adapter.snapshot().jobs.values()}
    assert tasks == {0: "2", 1: "3", 2: array}
    for job in (f"{array}_0", f"{array}_2", "3"):
        adapter.requeue(job)
    assert [slurm.snapshot().jobs[job].restarts for job in ("1", "2", "3")] == [1, 1, 1]
    for call in (lambda: adapter.cancel(array), lambda: adapter.signal(array, "USR1")):
        with pytest.raises(NotAvailable, match="also the ID of its whole array"):
            call()
    adapter.cancel(f"{array}_1")
    left = {job.array_task for job in slurm.snapshot().jobs.values() if job.state != "CANCELLED"}
    assert left - {1} == {0, 2}


def test_parts_of_a_het_job_have_their_names(slurm: Stalling, adapter: PyslurmScheduler) -> None:
    leader = slurm.add_job(het=[("gpu0001",), ("gpu0002",)])
    first, second = adapter.job(f"{leader}+0"), adapter.job(f"{leader}+1")
    assert first is not None and second is not None
    assert (first.het_job, first.het_offset, first.nodes) == (leader, 0, ("gpu0001",))
    assert (second.het_job, second.het_offset, second.nodes) == (leader, 1, ("gpu0002",))


def test_a_signal_reaches_only_what_runs(slurm: Stalling, adapter: PyslurmScheduler) -> None:
    job, waits = slurm.add_job(), slurm.add_job(held=True)
    adapter.signal(job, "USR1")
    assert slurm.heard(job) == ["signal USR1"]
    with pytest.raises(SchedulerRefused) as caught:
        adapter.signal(waits, "USR1")
    assert caught.value.code == 2021
    with pytest.raises(SchedulerRefused, match="Invalid Signal"):
        adapter.signal(job, "NONSENSE")
    with pytest.raises(ValueError):
        adapter.signal(job, "USR1 9")
    with pytest.raises(SchedulerRefused) as caught:
        adapter.cancel("999")
    assert caught.value.code == 2017


def test_a_crashed_job_is_revived_and_a_good_one_is_not(slurm: Stalling, adapter: PyslurmScheduler) -> None:
    crashed, good = slurm.add_job(), slurm.add_job()
    slurm.fail_job(crashed)
    slurm.complete(good)
    wait_until(
        lambda: getattr(adapter.job(crashed), "state", "") == "FAILED", 20, what="the job to have ended"
    )
    adapter.revive(crashed)
    job = adapter.job(crashed)
    assert job is not None and (job.restarts, job.state) == (1, "PENDING")
    for target in (good, crashed):
        with pytest.raises(SchedulerRefused):
            adapter.revive(target)


def test_it_submits_a_job_with_a_long_script(slurm: Stalling, adapter: PyslurmScheduler) -> None:
    script = "#!/bin/sh\n# " + "x" * 5000 + "\ntrue\n"
    job = adapter.submit(
        Submission(
            name="healer test",
            script=script,
            nodes=("gpu0001", "gpu0002"),
            time_limit_s=90,
            gpus_per_node=8,
            comment="healer:test",
        )
    )
    shown = slurm.job(job)
    assert shown is not None
    assert (shown.name, shown.nodes, shown.comment) == ("healer test", ("gpu0001", "gpu0002"), "healer:test")


# --- the stand-in refuses what the real one refuses: each was seen on pyslurm 24.11.0 with Slurm 24.11.5

REFUSALS = [
    ('pyslurm.Node(nonsense=1)', "KeyError", None),
    ('pyslurm.Node(state="REBOOT")', "ValueError", None),
    ('pyslurm.Node(state="CANCEL_REBOOT")', "NameError", None),
    ('pyslurm.Node(reason=5)', "TypeError", None),
    ('pyslurm.Node.load(12)', "TypeError", None),
    ('pyslurm.Node.load("nix")', "RPCError", -1),
    ('pyslurm.Node("gpu0001").modify({"state": "DRAIN"})', "TypeError", None),
    ('pyslurm.Node("gpu0001").modify(pyslurm.Node(state="RESUME"))', "RPCError", 2028),
    ('pyslurm.Node("gpu0001,gpu9999").modify(pyslurm.Node(state="DRAIN", reason="x"))', "RPCError", 2018),
    ('pyslurm.Job("12")', "TypeError", None),
    ('pyslurm.Job.load("x")', "TypeError", None),
    ('pyslurm.Job.load(9999)', "RPCError", 2017),
    ('pyslurm.Job(9999).requeue()', "RPCError", 2017),
    ('pyslurm.slurm_requeue(9999, 1)', "ValueError", None),
    ('pyslurm.Job(9999).notify("x")', "RPCError", 2017),
    ('pyslurm.Job(9999).send_signal("SIGUSR1", "all")', "RPCError", 2017),
    ('pyslurm.Job(9999).send_signal("USR1")', "ValueError", None),
    ('pyslurm.Job(9999).modify(pyslurm.JobSubmitDescription(admin_comment="x"))', "RPCError", 2017),
    ('pyslurm.JobSubmitDescription(nonsense=1)', "AttributeError", None),
]  # fmt: skip


def test_fake_pyslurm_refuses_what_the_real_one_refuses(slurm: Stalling, socket: Path) -> None:
    program = (
        "import json, sys, pyslurm\n"
        "found = []\n"
        "for line in json.load(sys.stdin):\n"
        "    try:\n"
        "        exec(line)\n"
        "        found.append([line, None, None])\n"
        "    except Exception as error:\n"
        "        found.append([line, type(error).__name__, getattr(error, 'errno', None)])\n"
        "print(json.dumps(found))\n"
    )
    done = subprocess.run(
        [sys.executable, "-P", "-c", program],
        input=json.dumps([line for line, _, _ in REFUSALS]),
        env=dict(os.environ) | environment(socket, OLD),
        capture_output=True, text=True, check=True, timeout=60,
    )  # fmt: skip
    assert [tuple(one) for one in json.loads(done.stdout)] == REFUSALS
    # Slurm had drained the node before the one that it does not know.
    assert [node.name for node in slurm.snapshot().nodes.values() if node.drain] == ["gpu0001"]
