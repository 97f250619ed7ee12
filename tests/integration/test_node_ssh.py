"""healer-node behind a real sshd: each failure has its own word, and a hanging node blocks no other."""

import json
import os
import signal
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from healer.adapters.nodes.request_signing import Request, Signer
from healer.adapters.nodes.ssh import AT_ONCE, Ssh
from healer.adapters.nodes.verbs import NodeVerbs
from healer.adapters.system_clock import SystemClock
from healer.bootstrap import doctor_checks, executor
from healer.ports.node_exec import NodeError, NodeUnavailable
from healer.settings import ExecutorSettings, SettingsError, load_executor
from healer.sim.sim_slurm import SimScheduler, SimServer
from tests.support.node_ssh import SshSite, keygen, ssh_site
from tests.support.processes import clean_environ, free_port, living, name_of
from tests.support.wait import wait_until

FM = "nvidia-fabricmanager"


@pytest.fixture
def site(tmp_path: Path) -> Iterator[SshSite]:
    with ssh_site(tmp_path / "site") as one:
        yield one


def refusal(call: object, kind: type[NodeError] = NodeError) -> NodeError:
    with pytest.raises(NodeError) as caught:
        call()  # type: ignore[operator]
    assert type(caught.value) is kind, caught.value
    return caught.value


# --- the way there


def test_node_identifies_itself(site: SshSite) -> None:
    site.node("gpu0001")
    answer = site.exec().identify("gpu0001")
    assert answer["boot_id"] == Path("/proc/sys/kernel/random/boot_id").read_text().strip()
    assert len(answer["gpus"]) == 2


def test_slurm_is_asked_for_the_node_that_was_asked(site: SshSite) -> None:
    """One machine, several slurmd: the job has left this node and is on its neighbour."""
    node = site.node("gpu0002")
    node.programs.configure(NODE="gpu0001 gpu0002")
    node.programs.process(11, "python3")
    scontrol = node.programs.bin / "scontrol"
    scontrol.write_text(
        "#!/bin/sh\n[ \"$3\" = gpu0001 ] && { echo 'PID JOBID STEPID'; echo 11 4711 0; exit 0; }\n"
        'echo "JobId=4711 does not exist on node ${3:-(null)}." >&2; exit 1\n'
    )
    seen = site.exec().job_on_node("gpu0002", "4711")
    assert (seen.processes, seen.counted) == (0, True)
    site.address("gpu0001", node.port)
    with site.known_hosts.open("a") as file:
        file.write(node.known_hosts_line().replace("gpu0002", "gpu0001", 1))
    assert site.exec().job_on_node("gpu0001", "4711").processes == 1


def test_a_host_key_that_changed_stops_everything(site: SshSite) -> None:
    node = site.node("gpu0001")
    node.stop()
    for path in (node.host_key, node.host_key.with_suffix(".pub")):
        path.unlink()
    keygen(node.host_key)
    node.start()
    error = refusal(lambda: site.exec().restart_service("gpu0001", FM))
    assert "differs from the one in" in str(error) and "ssh-keygen -R gpu0001" in str(error)
    assert node.programs.asked("systemctl") == []


def test_unknown_host_key_is_never_learned(site: SshSite) -> None:
    site.node("gpu0001")
    site.known_hosts.write_text("")
    error = refusal(lambda: site.exec().fabric_state("gpu0001"))
    assert "host key of gpu0001 is unknown" in str(error)
    assert site.known_hosts.read_text() == ""


def test_another_nodes_host_key_does_not_do(site: SshSite) -> None:
    """A node that took another's address is not that other."""
    one, two = site.node("gpu0001"), site.node("gpu0002")
    site.config.write_text("")
    site.address("gpu0001", two.port)
    assert "differs from the one in" in str(refusal(lambda: site.exec().restart_service("gpu0001", FM)))
    assert one.programs.asked("systemctl") + two.programs.asked("systemctl") == []


def test_wrong_key_is_reported(site: SshSite) -> None:
    site.node("gpu0001")
    other = keygen(site.folder / "other")
    error = refusal(lambda: site.exec(key_file=other).fabric_state("gpu0001"))
    assert "rejects healer's key" in str(error)


def test_unreadable_key_is_reported(site: SshSite) -> None:
    site.node("gpu0001")
    missing = site.exec(key_file=site.folder / "nothing")
    error = refusal(lambda: missing.fabric_state("gpu0001"))
    assert "HEALER_SSH_KEY_FILE points to" in str(error) and "cannot read" in str(error)
    site.key.chmod(0o644)
    error = refusal(lambda: site.exec().fabric_state("gpu0001"))
    assert "readable by healer's user alone" in str(error)


def test_key_with_a_passphrase_prompts_no_one(site: SshSite) -> None:
    site.node("gpu0001")
    subprocess.run(["ssh-keygen", "-q", "-p", "-N", "secret words", "-f", str(site.key)], check=True)
    refusal(lambda: site.exec().fabric_state("gpu0001"))


@pytest.mark.parametrize("why", ["nobody listens", "no such name"])
def test_unreachable_node_got_no_request(site: SshSite, why: str) -> None:
    site.address("gpu0001" if why == "nobody listens" else "gpu0002", free_port())
    error = refusal(lambda: site.exec().restart_service("gpu0001", FM), NodeUnavailable)
    assert isinstance(error, NodeUnavailable) and error.sent is False
    assert "gpu0001 is unreachable by SSH" in str(error)


def test_node_without_healer_node_is_reported(site: SshSite) -> None:
    node = site.node("gpu0001")
    node.forced = "/nowhere/healer-node"
    node.authorize(site.key)
    assert "healer-node is missing on gpu0001" in str(refusal(lambda: site.exec().fabric_state("gpu0001")))


def test_node_without_a_forced_command_is_reported(site: SshSite) -> None:
    node = site.node("gpu0001")
    node.forced = "/bin/echo hello"
    node.authorize(site.key)
    error = refusal(lambda: site.exec().fabric_state("gpu0001"))
    assert "did not run healer-node" in str(error) and "authorized_keys must force" in str(error)


@pytest.mark.parametrize("name", ["-oProxyCommand=id", "a b", "", "../x", "gpu1;id", "gpu1\n"])
def test_a_name_that_is_none_never_reaches_ssh(site: SshSite, name: str) -> None:
    assert "is not a node name" in str(refusal(lambda: site.exec().fabric_state(name)))


# --- what the node answers


def test_a_service_that_is_not_on_the_list_is_refused_by_the_node(site: SshSite) -> None:
    node = site.node("gpu0001")
    error = refusal(lambda: site.exec().restart_service("gpu0001", "sshd"))
    assert "healer may not control the service" in str(error) and "/etc/healer-node.conf" in str(error)
    assert node.programs.log()[-1]["event"] == "refused"


def test_a_program_that_fails_gives_its_words(site: SshSite) -> None:
    node = site.node("gpu0001")
    node.programs.mode("nvidia-smi", "fail")
    error = refusal(lambda: site.exec().fabric_state("gpu0001"))
    assert "nvidia-smi: it went wrong" in str(error)


def test_a_program_that_hangs_leaves_it_unknown(site: SshSite) -> None:
    node = site.node("gpu0001")
    node.programs.mode("systemctl", "hang")
    node.programs.configure(SYSTEMCTL_S="0.3")
    error = refusal(lambda: site.exec().restart_service("gpu0001", FM), NodeUnavailable)
    assert isinstance(error, NodeUnavailable) and error.sent is True
    wait_until(lambda: not living(node.programs.pids("systemctl")), 10, what="nothing is left of it")


def test_a_restart_that_succeeds_late_is_read_back(site: SshSite) -> None:
    node, nodes = site.node("gpu0001"), site.exec()
    node.programs.mode("systemctl", "late")
    nodes.restart_service("gpu0001", FM)
    assert nodes.service_active("gpu0001", FM) is False
    node.programs.finish()
    wait_until(lambda: nodes.service_active("gpu0001", FM), 20, what="it is active")


def test_both_ends_write_down_the_same_call(site: SshSite, capsys: pytest.CaptureFixture[str]) -> None:
    node = site.node("gpu0001")
    site.exec().restart_service("gpu0001", FM)
    here = capsys.readouterr().out
    begun, done = node.programs.log()
    assert (begun["event"], done["event"]) == ("begins", "done")
    assert (done["verb"], done["as"], done["from"]) == ("service-restart", "healer", "127.0.0.1")
    assert len(done["id"]) == 16 and done["id"] in here


# --- what a stolen key could do


@pytest.mark.parametrize(
    "words",
    [
        ["service-restart slurmd; rm -rf /"], ["id\nidentify"], ["sh"], [], ["-oLogLevel=DEBUG", "identify"],
        ["--conf", "/tmp/x", "identify"], ["scp", "-t", "/etc"], ["$(identify)"],
    ],
)  # fmt: skip
def test_the_key_opens_nothing_else(site: SshSite, words: list[str]) -> None:
    node = site.node("gpu0001")
    done = by_hand(site, "gpu0001", words)
    assert done.returncode == 126
    assert json.loads(done.stdout)["code"] == ("refused" if words in ([], ["id\nidentify"]) else "not-signed")
    assert [entry["event"] for entry in node.programs.log()] == ["refused"]
    assert node.programs.asked("systemctl") == []


def test_the_key_opens_no_tunnel_terminal_or_file_transfer(site: SshSite) -> None:
    node = site.node("gpu0001")
    for options in (["-tt"], ["-s"], ["-A"], ["-oSendEnv=LC_ALL"]):
        done = by_hand(site, "gpu0001", ["sftp" if options == ["-s"] else "identify"], *options)
        assert done.returncode in {0, 126, 255}
        assert done.stdout.strip()[:1] in {b"", b"{"}
    done = by_hand(site, "gpu0001", ["identify"], "-W", f"127.0.0.1:{node.port}", clear="no")
    assert done.returncode != 0 and b"SSH-2.0" not in done.stdout
    assert node.programs.asked("systemctl") == []


def by_hand(
    site: SshSite, node: str, words: list[str], *options: str, clear: str = "yes"
) -> "subprocess.CompletedProcess[bytes]":
    """As a holder of healer's key may try it."""
    own = site.ssh().command(node, (), 10)
    own = [word.replace("ClearAllForwardings=yes", f"ClearAllForwardings={clear}") for word in own]
    command = [*own[:-2], *options, "--", node, *words]
    return subprocess.run(command, capture_output=True, stdin=subprocess.DEVNULL, timeout=60, check=False)


# --- tests that outlive their starter


def test_tests_go_on_when_the_client_is_killed_and_the_second_start_is_the_same(site: SshSite) -> None:
    node, ssh = site.node("gpu0001"), site.ssh()
    about = Request("", "gpu0001", "run-1", until=time.time() + 60, call_id="0123456789abcdef")
    words = Signer(site.signing_key).signed(about, ("diagnose-start", "r1:test:0", "2"))
    command = ssh.command("gpu0001", words, 60)
    with subprocess.Popen(command, stdout=subprocess.PIPE) as client:
        wait_until(lambda: node.programs.asked("dcgmi"), 20, what="the tests run")
        client.kill()
    # All of the connection dies too.
    subprocess.run(["pkill", "-KILL", "-P", str(node.process.pid)], check=False)  # type: ignore[union-attr]
    nodes = site.exec()
    nodes.start_diagnosis("gpu0001", "r1:test:0")
    assert nodes.diagnosis("gpu0001", "r1:test:0") is None
    node.programs.finish()
    node.programs.ended("diagnose-show", "r1:test:0")
    diagnosis = nodes.diagnosis("gpu0001", "r1:test:0")
    assert diagnosis is not None and diagnosis.passed
    assert node.programs.asked("dcgmi") == ["diag -r 2 -j"]


def test_a_node_that_other_tests_have_is_asked_later(site: SshSite) -> None:
    node, nodes = site.node("gpu0001"), site.exec()
    nodes.start_diagnosis("gpu0001", "k1")
    error = refusal(lambda: nodes.start_diagnosis("gpu0001", "k2"), NodeUnavailable)
    assert isinstance(error, NodeUnavailable) and error.sent is False and "busy" in str(error)
    node.programs.finish()
    node.programs.ended("diagnose-show", "k1")
    nodes.start_diagnosis("gpu0001", "k2")
    assert node.programs.diagnoses("gpu0001") == ["k1", "k2"]


def test_tests_that_were_cut_short_begin_again_under_their_key(site: SshSite) -> None:
    node, nodes = site.node("gpu0001"), site.exec()
    nodes.start_diagnosis("gpu0001", "k")
    wait_until(lambda: node.programs.asked("dcgmi"), 20, what="the tests run")
    keepers = [
        int(entry.name)
        for entry in Path("/proc").glob("[0-9]*")
        if str(node.programs.conf) in name_of(int(entry.name))
    ]
    for pid in [*keepers, *node.programs.pids("dcgmi")]:
        os.kill(pid, signal.SIGKILL)
    node.programs.ended("diagnose-show", "k")
    assert "interrupted" in str(refusal(lambda: nodes.diagnosis("gpu0001", "k")))
    nodes.start_diagnosis("gpu0001", "k")
    assert nodes.diagnosis("gpu0001", "k") is None


# --- a node that hangs


class Silent:
    """Takes connections and never says a word."""

    def __init__(self, site: SshSite, name: str) -> None:
        self.socket = socket.create_server(("127.0.0.1", 0), backlog=64)
        site.address(name, self.socket.getsockname()[1])


def test_hanging_nodes_block_no_others(site: SshSite) -> None:
    site.node("gpu0001")
    names = [f"gpu01{number:02}" for number in range(3 * AT_ONCE)]
    hanging = [Silent(site, name) for name in names]
    ssh = Ssh(site.settings(), pause_s=600)
    nodes = NodeVerbs(ssh).of_run("run-1")
    errors: dict[str, str] = {}

    def one(name: str) -> None:
        errors[name] = str(refusal(lambda: nodes.fabric_state(name), NodeUnavailable))

    threads = [threading.Thread(target=one, args=(name,)) for name in names]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(120)
    assert errors.keys() == set(names)
    turned_away = {name for name, text in errors.items() if "was not queried" in text}
    assert turned_away, "they did not wait until the others were given up"
    for name in set(names) - turned_away:  # those are left alone for a while
        assert "a moment ago" in str(refusal(lambda name=name: nodes.fabric_state(name), NodeUnavailable))
    assert NodeVerbs(ssh, read_s=40).fabric_state("gpu0001").healthy
    for other in hanging:
        other.socket.close()


def test_a_node_is_asked_one_thing_at_a_time(site: SshSite) -> None:
    node, nodes = site.node("gpu0001"), site.exec()
    node.programs.mode("nvidia-smi", "hang")
    first = threading.Thread(target=lambda: refusal(lambda: nodes.fabric_state("gpu0001")))
    first.start()
    wait_until(lambda: node.programs.asked("nvidia-smi"), 20, what="the first call hangs")
    error = refusal(lambda: nodes.service_active("gpu0001", FM), NodeUnavailable)
    assert isinstance(error, NodeUnavailable) and error.sent is False and "another call" in str(error)
    (hanging,) = node.programs.pids("nvidia-smi")
    os.kill(hanging, signal.SIGKILL)
    first.join(60)
    assert nodes.service_active("gpu0001", FM)


def test_a_node_that_hung_is_asked_again_and_is_well(site: SshSite) -> None:
    node, nodes = site.node("gpu0001"), NodeVerbs(site.ssh()).of_run("run-1")
    assert node.process is not None
    node.process.send_signal(signal.SIGSTOP)
    try:
        refusal(lambda: nodes.restart_service("gpu0001", FM), NodeUnavailable)
    finally:
        node.process.send_signal(signal.SIGCONT)

    def well() -> bool:
        try:
            return nodes.service_active("gpu0001", FM)
        except NodeUnavailable:
            return False

    wait_until(well, 20, what="it answers again")


# --- as a site sets it up


def configured(site: SshSite, tmp_path: Path, **more: str) -> ExecutorSettings:
    return load_executor({name: value for name, value in (environ(site, tmp_path) | more).items() if value})


def environ(site: SshSite, tmp_path: Path) -> dict[str, str]:
    return {
        "HEALER_DATA_DIR": str(tmp_path),
        "HEALER_SLURM_ADAPTERS": "sim",
        "HEALER_SIM_SOCKET": str(tmp_path / "slurm.sock"),
        "HEALER_SSH_KEY_FILE": str(site.key),
        "HEALER_SSH_SIGNING_KEY_FILE": str(site.signing_key),
        "HEALER_SSH_KNOWN_HOSTS": str(site.known_hosts),
        "HEALER_SSH_CONFIG": str(site.config),
        "HEALER_SSH_USER": site.settings().user,
    }


@pytest.fixture
def slurm(tmp_path: Path) -> Iterator[list[str]]:
    """A simulated Slurm; the names of its nodes."""
    scheduler = SimScheduler("pod1", SystemClock(), 2)
    server = SimServer(scheduler, tmp_path / "slurm.sock")
    server.start()
    yield sorted(scheduler.snapshot().nodes)
    server.stop()


def test_doctor_asks_one_node(site: SshSite, slurm: list[str], tmp_path: Path) -> None:
    node = site.node(slurm[0])
    (check,) = doctor_checks.check_node_actions(configured(site, tmp_path))
    assert (check.ok, check.repair) == (True, "")
    assert check.text == f"{slurm[0]} answers by SSH: driver 570.124.06, 2 GPUs"
    node.stop()
    (check,) = doctor_checks.check_node_actions(configured(site, tmp_path))
    assert not check.ok and "is unreachable by SSH" in check.text and "docs/nodes.md" in check.repair


def test_doctor_answers_one_document(site: SshSite, slurm: list[str], tmp_path: Path) -> None:
    """What it logs of the call is no part of it."""
    site.node(slurm[0])
    done = subprocess.run(
        [sys.executable, "-m", "healer", "doctor", "--json"],
        env=clean_environ(**environ(site, tmp_path)), capture_output=True, timeout=120, check=False,
    )  # fmt: skip
    checks = {check["name"]: check for check in json.loads(done.stdout)["checks"]}
    assert checks["node actions"]["ok"]
    assert b"node call" in done.stderr


def test_doctor_says_where_nothing_is_set_up(site: SshSite, tmp_path: Path) -> None:
    (check,) = doctor_checks.check_node_actions(configured(site, tmp_path, HEALER_SSH_KEY_FILE=""))
    assert check.ok and "wait for a person" in check.text and "HEALER_SSH_KEY_FILE" in check.repair
    assert "reports of faults are not checked" in check.text
    (check,) = doctor_checks.check_node_actions(configured(site, tmp_path, HEALER_SIM_NODES_SOCKET="/x"))
    assert not check.ok and "both set" in check.text


def test_the_level_of_the_tests_is_the_sites(site: SshSite, tmp_path: Path) -> None:
    node = site.node("gpu0001")
    nodes = executor.node_exec(configured(site, tmp_path, HEALER_SSH_DIAGNOSE_LEVEL="3"))
    assert nodes is not None and nodes.name == "ssh"
    nodes.of_run("run-1").start_diagnosis("gpu0001", "k")
    wait_until(lambda: node.programs.asked("dcgmi") == ["diag -r 3 -j"], 20, what="the tests run")


@pytest.mark.parametrize(
    ("setting", "value"),
    [
        ("USER", "-oProxyCommand=id"),
        ("USER", "a b"),
        ("PORT", "0"),
        ("PORT", "65536"),
        ("DIAGNOSE_LEVEL", "5"),
    ],
)
def test_wrong_setting_is_reported(setting: str, value: str) -> None:
    with pytest.raises(SettingsError, match=f"HEALER_SSH_{setting} must be"):
        load_executor({f"HEALER_SSH_{setting}": value})
