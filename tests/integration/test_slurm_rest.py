"""slurmrestd of the real Slurm 24.11: tokens, rights, TLS, its own death, and what it says of the cluster."""

import subprocess
import sys
from collections.abc import Iterator
from datetime import UTC, datetime
from pathlib import Path

import httpx
import pytest

from healer.adapters.slurm import parse_json, rest
from healer.adapters.slurm.rest import RestScheduler
from healer.adapters.slurm.rest_token import CommandToken, FileToken, ends_at
from healer.embedded import slurm_guard
from healer.model import SlurmCall, SlurmJob
from healer.ports.scheduling import SchedulerRefused, SchedulerUnavailable
from tests.support.slurm import sbatch
from tests.support.tls import certificates, serve_tls
from tests.support.trixie import PLAIN_USER, TrixieSlurm
from tests.support.wait import wait_until

pytestmark = pytest.mark.slurm

OURS = "healer:gpu-lost inc:1a2b3c4d GPU 3 fell off the bus (Xid 79)"


@pytest.fixture(scope="module")
def small(tmp_path_factory: pytest.TempPathFactory) -> Iterator[TrixieSlurm]:
    """Four nodes that a test may hurt."""
    with TrixieSlurm(tmp_path_factory.mktemp("t") / "s", 4) as cluster:
        yield cluster


@pytest.fixture
def token_file(small: TrixieSlurm, tmp_path: Path) -> Path:
    return write_token(tmp_path / "token", small.token())


@pytest.fixture
def scheduler(small: TrixieSlurm, token_file: Path) -> Iterator[RestScheduler]:
    found = RestScheduler(small.rest_url, user=None, token=FileToken(token_file))
    yield found
    found.close()
    for job in small.run("squeue", "--noheader", "--format=%A").split():
        subprocess.run(["scancel", job], env=small.env, capture_output=True, timeout=20, check=True)
    names = ",".join(small.node_names)
    subprocess.run(
        ["scontrol", "update", f"NodeName={names}", "State=UNDRAIN", "Comment=", "Extra="],
        env=small.env, capture_output=True, timeout=20, check=True,
    )  # fmt: skip
    wait_until(lambda: all(idle(small, name) for name in small.node_names), 30, what="all nodes idle again")


def idle(cluster: TrixieSlurm, node: str) -> bool:
    return "State=IDLE " in cluster.run("scontrol", "show", "node", node)


def write_token(path: Path, text: str) -> Path:
    path.touch(mode=0o600)
    path.write_text(text)
    return path


def token_command(cluster: TrixieSlurm, lifespan_s: int) -> list[str]:
    conf = f"SLURM_CONF={cluster.slurm_conf}"
    scontrol = str(cluster.bin_dir / "scontrol")
    return ["env", conf, scontrol, "token", "username=root", f"lifespan={lifespan_s}"]


def is_over(token: str) -> bool:
    """Slurm counts whole seconds."""
    end = ends_at(token)
    assert end is not None
    return datetime.now(UTC).timestamp() > end + 1.1


# --- what it says


def test_it_finds_out_what_it_speaks_to(scheduler: RestScheduler) -> None:
    assert scheduler.describe() == "rest, Slurm 24.11.5, v0.0.42"
    assert scheduler.cluster_name() == "pod1"


def test_unavailable_calls_match_the_openapi_description_of_slurmrestd(
    small: TrixieSlurm, scheduler: RestScheduler
) -> None:
    """Compares the table of addresses by release with the description that slurmrestd serves."""
    headers = {"X-SLURM-USER-TOKEN": small.token()}
    described = httpx.get(f"{small.rest_url}/openapi/v3", headers=headers, timeout=20).json()["paths"]
    paths = {
        (method, path.removeprefix("/slurm/v0.0.42").rstrip("/"))
        for path, methods in described.items()
        if path.startswith("/slurm/v0.0.42")
        for method in methods
    }
    needed = {
        SlurmCall.drain: ("post", "/node/{node_name}"),
        SlurmCall.hold: ("post", "/job/{job_id}"),
        SlurmCall.submit: ("post", "/job/submit"),
        SlurmCall.cancel: ("delete", "/jobs"),
        SlurmCall.requeue: ("post", "/jobs/requeue"),
        SlurmCall.reserve: ("post", "/reservation"),
        SlurmCall.unreserve: ("delete", "/reservation/{reservation_name}"),
    }
    lacking = scheduler.unavailable()
    assert {call: need not in paths for call, need in needed.items()} == {
        call: call in lacking for call in needed
    }
    assert ("post", "/nodes") in paths and rest.MANY_NODES == 42
    assert not [path for _, path in paths if "reboot" in path or "topology" in path or "notify" in path]


def test_a_poll_of_everything_is_what_scontrol_prints(small: TrixieSlurm, scheduler: RestScheduler) -> None:
    job = sbatch(small, "--nodelist=gpu0001,gpu0002", "--nodes=2", gpus=8)
    held = sbatch(small, "--hold", "--array=0-3")
    wait_until(lambda: job_of(scheduler, job).state == "RUNNING", 15, what="the job runs")
    scheduler.drain("gpu0003", OURS)
    picture = scheduler.snapshot()
    nodes = parse_json.nodes(small.run("scontrol", "show", "node", "--json").encode())
    jobs = parse_json.jobs(small.run("scontrol", "-d", "show", "job", "--json").encode())
    assert picture.nodes == nodes
    assert {key: picture.jobs[key] for key in (job, held)} == {key: jobs[key] for key in (job, held)}
    assert picture.jobs[job].gpus == {"gpu0001": tuple(range(8)), "gpu0002": tuple(range(8))}
    assert [each.id for each in scheduler.jobs_on("gpu0002")] == [job]
    assert scheduler.node("gpu0003") == nodes["gpu0003"]


def job_of(scheduler: RestScheduler, job: str) -> SlurmJob:
    found = scheduler.job(job)
    assert found is not None
    return found


def test_a_node_whose_job_has_ended_is_not_busy_any_more(
    small: TrixieSlurm, scheduler: RestScheduler
) -> None:
    """slurmctld brings a node's allocation up to date for requests for all nodes, and not for one."""
    job = sbatch(small, "--nodelist=gpu0003")
    wait_until(lambda: scheduler.node("gpu0003").busy, 15, what="the job runs")
    scheduler.drain("gpu0003", OURS)
    scheduler.cancel(job)
    wait_until(lambda: scheduler.node("gpu0003").state == ("IDLE", "DRAIN"), 15, what="drained")


def test_pitfall_21_nothing_new_is_the_very_same_picture_and_any_change_another(
    small: TrixieSlurm, scheduler: RestScheduler
) -> None:
    first = scheduler.snapshot()
    second = scheduler.snapshot()
    assert (second.nodes is first.nodes, second.jobs is first.jobs) == (True, True)
    assert second.reservations is first.reservations
    small.run("scontrol", "update", "NodeName=gpu0002", "State=DRAIN", "Reason=ann: PSU")
    assert scheduler.snapshot().nodes["gpu0002"].reason == "ann: PSU"
    small.run("scontrol", "update", "NodeName=gpu0002", "Comment=row 3")
    assert scheduler.snapshot().nodes["gpu0002"].comment == "row 3"
    job = sbatch(small, "--hold")
    assert scheduler.snapshot().jobs[job].held_by
    small.run("scontrol", "release", job)
    wait_until(lambda: scheduler.snapshot().jobs[job].state == "RUNNING", 15, what="the job runs")
    booked = ("reservationname=t1", "starttime=now", "duration=10", "flags=maint,ignore_jobs", "users=root")
    small.run("scontrol", "create", "reservation", "nodes=gpu0004", *booked)
    assert scheduler.snapshot().reservations["t1"].nodes == ("gpu0004",)
    small.run("scontrol", "delete", "reservationname=t1")
    assert scheduler.snapshot().reservations == {}


def test_controller_reports_its_queues(scheduler: RestScheduler) -> None:
    found = scheduler.controller()
    assert (found.cluster, found.adapter, found.role, found.version) == ("pod1", "rest", "primary", "24.11.5")
    assert found.host and found.threads and found.agent_queue is not None and found.dbd_queue == 0
    assert found.answer_s is not None and found.answer_s > 0


# --- what it does


def test_a_drain_is_read_back_and_one_call_drains_many(small: TrixieSlurm, scheduler: RestScheduler) -> None:
    scheduler.drain(["gpu0001", "gpu0002"], OURS)
    for name in ("gpu0001", "gpu0002"):
        node = scheduler.node(name)
        assert (node.drain, node.reason, node.reason_user) == (True, OURS, "root")
        assert OURS in small.run("scontrol", "show", "node", name)
    scheduler.undrain(["gpu0001", "gpu0002"])
    assert not scheduler.node("gpu0002").drain


def test_pitfall_1_slurm_itself_would_take_a_drain_without_a_reason(small: TrixieSlurm) -> None:
    """Why ours is never sent without one."""
    address = f"{small.rest_url}/slurm/v0.0.42/node/gpu0001"
    headers = {"X-SLURM-USER-TOKEN": small.token()}
    taken = httpx.post(address, headers=headers, json={"state": ["DRAIN"]}, timeout=20)
    assert taken.status_code == 200 and taken.json()["errors"] == []
    assert "IDLE+DRAIN" in small.run("scontrol", "show", "node", "gpu0001")
    small.run("scontrol", "update", "NodeName=gpu0001", "State=UNDRAIN")


def test_pitfall_12_one_task_of_an_array_is_meant_alone(small: TrixieSlurm, scheduler: RestScheduler) -> None:
    base = sbatch(small, "--array=0-2", "--nodelist=gpu0001")

    def tasks() -> dict[str, SlurmJob]:
        return {f"{each.array_task}": each for each in scheduler.jobs_on("gpu0001")}

    wait_until(lambda: len(tasks()) == 3, 15, what="three tasks run")
    scheduler.remark(f"{base}_1", "healer: one of three")
    assert [task.admin_comment for _, task in sorted(tasks().items())] == ["", "healer: one of three", ""]
    # The last task carries the id of the whole array.
    scheduler.cancel(base)
    wait_until(lambda: len(tasks()) == 2, 15, what="one has ended")
    assert set(tasks()) == {"0", "1"}


def test_exclusions_are_set_and_taken_back(small: TrixieSlurm, scheduler: RestScheduler) -> None:
    job = sbatch(small, "--hold", "--exclude=gpu0001")
    scheduler.exclude(job, ["gpu0002", "gpu0003"])
    assert job_of(scheduler, job).excluded == ("gpu0002", "gpu0003")
    scheduler.exclude(job, [])
    assert job_of(scheduler, job).excluded == ()


def test_each_component_of_a_het_job_keeps_its_own_exclusions(
    small: TrixieSlurm, scheduler: RestScheduler
) -> None:
    """By its id, slurmrestd changed the leader alone: another component could start on the excluded node."""
    options = ("--parsable", "--chdir=/", "--output=/dev/null", "--begin=now+300", "--nodes=1")
    job = small.run("sbatch", *options, ":", "--nodelist=gpu0002", "--wrap", "true").strip()
    scheduler.exclude(job, ["gpu0002", "gpu0001"])
    parts = [part for part in scheduler.snapshot().jobs.values() if part.leader == job]
    lists = {part.het_offset: set(part.excluded) for part in parts}
    assert lists == {
        0: {"gpu0001", "gpu0002"},
        1: {"gpu0001"},
    }
    scheduler.cancel(job)


# --- tokens and rights


def test_expired_token_is_replaced_when_the_file_is_renewed(small: TrixieSlurm, tmp_path: Path) -> None:
    path = write_token(tmp_path / "token", small.token(lifespan_s=1))
    scheduler = RestScheduler(small.rest_url, user=None, token=FileToken(path))
    assert scheduler.node("gpu0001").name == "gpu0001"
    wait_until(lambda: is_over(path.read_text()), 10, what="the token has ended")
    with pytest.raises(
        SchedulerUnavailable, match=r"rejected the token for slurmrestd \(it expired 20"
    ) as caught:
        scheduler.drain("gpu0001", OURS)
    assert caught.value.sent is False
    assert path.read_text() not in str(caught.value)
    write_token(path, small.token())
    assert not scheduler.node("gpu0001").drain


def test_a_token_command_is_asked_again_before_the_end(small: TrixieSlurm) -> None:
    token = CommandToken(token_command(small, 2), timeout_s=20)
    scheduler = RestScheduler(small.rest_url, user=None, token=token)
    first = token.current(datetime.now(UTC))
    scheduler.node("gpu0001")
    wait_until(lambda: is_over(first), 10, what="the first token has ended")
    scheduler.node("gpu0001")
    assert token.current(datetime.now(UTC)) != first


def test_another_key_is_picked_up_without_a_restart(small: TrixieSlurm, tmp_path: Path) -> None:
    path = write_token(tmp_path / "token", small.token())
    by_file = RestScheduler(small.rest_url, user=None, token=FileToken(path))
    by_command = RestScheduler(
        small.rest_url, user=None, token=CommandToken(token_command(small, 3600), timeout_s=20)
    )
    for scheduler in (by_file, by_command):
        scheduler.node("gpu0001")
    small.new_key()
    with pytest.raises(SchedulerUnavailable, match="rejected the token"):
        by_file.node("gpu0001")
    assert by_command.node("gpu0001").name == "gpu0001"
    write_token(path, small.token())
    assert by_file.node("gpu0001").name == "gpu0001"


def test_a_token_of_garbage_is_turned_away_at_the_door(small: TrixieSlurm, tmp_path: Path) -> None:
    signed = small.token()
    path = write_token(tmp_path / "token", signed[:-6] + "AAAAAA")
    with pytest.raises(SchedulerUnavailable, match="rejected the token") as caught:
        RestScheduler(small.rest_url, user=None, token=FileToken(path)).drain("gpu0001", OURS)
    assert caught.value.sent is False


def test_rights_that_are_too_low_are_said_in_words(small: TrixieSlurm, tmp_path: Path) -> None:
    path = write_token(tmp_path / "token", small.token(PLAIN_USER))
    plain = RestScheduler(small.rest_url, user=None, token=FileToken(path))
    with pytest.raises(
        SchedulerRefused, match=r"AdminLevel=Administrator.* Operator is not enough"
    ) as caught:
        plain.drain("gpu0001", OURS)
    assert caught.value.code == 2010
    assert not plain.node("gpu0001").drain, "reading is open to all"
    job = sbatch(small, "--hold")
    with pytest.raises(SchedulerRefused, match="the job's owner") as caught:
        plain.release(job)
    assert caught.value.code in (2002, 2010)
    small.run("scancel", job)


def test_only_root_may_act_as_another_user(small: TrixieSlurm, tmp_path: Path) -> None:
    roots = FileToken(write_token(tmp_path / "root", small.token()))
    with pytest.raises(SchedulerRefused):
        RestScheduler(small.rest_url, user=PLAIN_USER, token=roots).drain("gpu0001", OURS)
    users = FileToken(write_token(tmp_path / "user", small.token(PLAIN_USER)))
    with pytest.raises(SchedulerUnavailable, match="rejected the token"):
        RestScheduler(small.rest_url, user="root", token=users).drain("gpu0001", OURS)


# --- ways to it


def test_a_unix_socket(small: TrixieSlurm, token_file: Path) -> None:
    scheduler = RestScheduler(f"unix://{small.rest_socket}", user=None, token=FileToken(token_file))
    assert len(scheduler.snapshot().nodes) == 4
    scheduler.annotate("gpu0001", extra='{"inc":"1a2b3c4d"}')
    assert scheduler.node("gpu0001").extra == '{"inc":"1a2b3c4d"}'


def test_tls_through_a_proxy_with_the_sites_own_authority(
    small: TrixieSlurm, token_file: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    files = certificates(tmp_path)
    with serve_tls(files.server, small.rest_port) as url:
        unknown = RestScheduler(url, user=None, token=FileToken(token_file))
        with pytest.raises(SchedulerUnavailable, match="certificate verify failed") as caught:
            unknown.drain("gpu0001", OURS)
        assert caught.value.sent is False
        monkeypatch.setenv("SSL_CERT_FILE", str(files.authority))
        # A proxy of the environment gets no token.
        monkeypatch.setenv("HTTPS_PROXY", "http://127.0.0.1:9")
        known = RestScheduler(url, user=None, token=FileToken(token_file))
        assert len(known.snapshot().nodes) == 4
        known.close()


# --- who is away


@pytest.mark.crash
def test_slurmrestd_killed_is_unavailable_and_comes_back(small: TrixieSlurm, token_file: Path) -> None:
    by_tcp, by_socket = (
        RestScheduler(url, user=None, token=FileToken(token_file))
        for url in (small.rest_url, f"unix://{small.rest_socket}")
    )
    for scheduler in (by_tcp, by_socket):
        scheduler.node("gpu0001")
    small.kill_rest()
    for scheduler in (by_tcp, by_socket):
        with pytest.raises(SchedulerUnavailable, match="is unreachable: Connection refused") as caught:
            scheduler.drain("gpu0001", OURS)
        assert caught.value.sent is False
    small.start_rest()
    for scheduler in (by_tcp, by_socket):
        assert not scheduler.node("gpu0001").drain


@pytest.mark.crash
def test_a_controller_that_is_away_leaves_it_open_whether_a_write_arrived(
    small: TrixieSlurm, token_file: Path
) -> None:
    """slurmrestd itself goes on trying for 9 s, longer than we wait."""
    scheduler = RestScheduler(small.rest_url, user=None, token=FileToken(token_file), timeout_s=0.5)
    scheduler.node("gpu0001")
    small.kill_controller()
    try:
        with pytest.raises(SchedulerUnavailable, match="did not answer within") as caught:
            scheduler.drain("gpu0001", OURS)
        assert caught.value.sent is True
    finally:
        small.start_controller()
    # It may still come: that is why the caller reads back before anything else.
    wait_until(lambda: idle(small, "gpu0001") or scheduler.node("gpu0001").drain, 20, what="read back")


@pytest.mark.crash
def test_nothing_is_left_when_the_process_that_started_slurm_is_killed(scratch: Path) -> None:
    program = (
        "import sys; from tests.support.trixie import TrixieSlurm; from tests.support.slurm import sbatch\n"
        "s = TrixieSlurm(sys.argv[1], 2); s.start(); sbatch(s); print('up', flush=True); sys.stdin.read()"
    )
    starter = subprocess.Popen(
        [sys.executable, "-c", program, str(scratch / "s")],
        stdin=subprocess.PIPE, stdout=subprocess.PIPE, cwd=Path(__file__).parents[2],
    )  # fmt: skip
    try:
        assert starter.stdout is not None and starter.stdout.readline() == b"up\n"
        left = slurm_guard.descendants(starter.pid)
        assert len(left) >= 7, "unshare, the guardian, munged, slurmctld, two slurmd, slurmrestd"
    finally:
        starter.kill()
        starter.wait()
        for pipe in (starter.stdin, starter.stdout):
            if pipe:
                pipe.close()
    wait_until(lambda: not [pid for pid in left if alive(pid)], 10, what="all gone")


def alive(pid: int) -> bool:
    """A zombie that its new parent has not collected yet is none."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] not in "ZX"
    except OSError:
        return False
