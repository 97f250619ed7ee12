"""What a hostile job, a stolen SSH key or a forged package can do to a node: nothing."""

import json
import os
import shutil
import subprocess
import sys
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner

from healer.adapters.nodes.request_signing import Request, Signer, make_key
from healer.commands.cli import build
from healer.ports.node_exec import NodeError
from tests.support.node_ssh import SshNode, SshSite, ssh_site
from tests.support.processes import name_of
from tests.support.stand_ins import GROUP, USER, StandIns
from tests.support.wait import wait_until

pytestmark = pytest.mark.heavy

ROOT = os.geteuid() == 0
#: The Python that every user of a machine has, as healer-node looks for it.
PYTHON = shutil.which("python3", path="/usr/bin:/usr/local/bin") or sys.executable
WAITS = "import sys, time\ndef in_a_collective():\n    print('up', flush=True)\n    time.sleep(1000)\n"
#: A job's way to keep others from its memory: its folder in /proc is root's then.
HIDES = "import ctypes\nctypes.CDLL(None).prctl(4, 0, 0, 0, 0)\n"
#: Whether this user may write into the memory of that process.
REACHES = "import sys\ntry: open(sys.argv[1], 'r+b')\nexcept OSError: print('no')\nelse: print('yes')"


@pytest.fixture
def node(tmp_path: Path) -> StandIns:
    """A node with this machine's /proc, where Slurm lists the processes of a job."""
    return StandIns(tmp_path / "node", PROC="/proc")


def as_user(user: int) -> Mapping[str, object]:
    """Only root can start a process as another user."""
    return {"user": user, "group": GROUP if user else 0, "extra_groups": []} if ROOT else {}


@contextmanager
def job(node: StandIns, source: str, user: int = USER) -> Iterator[int]:
    """A Python process of job 4711."""
    with subprocess.Popen(
        [PYTHON, "-c", f"{source}in_a_collective()"], stdout=subprocess.PIPE, cwd="/", **as_user(user)
    ) as process:  # type: ignore[call-overload]
        try:
            assert process.stdout is not None
            assert process.stdout.readline() == b"up\n"
            (node.world / "listed").write_text(f"{process.pid}\n")
            yield process.pid
        finally:
            process.kill()


def introducing(node: StandIns) -> Path:
    """py-spy's place is taken by a program that writes down who it is."""
    who = node.world / "who"
    (node.bin / "py-spy").write_text(
        f"#!/bin/sh\ncat /proc/self/status /proc/self/limits >{who}\necho '[]'\n"
    )
    return who


def test_the_real_profiler_reads_stacks_as_the_jobs_own_user(node: StandIns) -> None:
    shutil.copy(Path(sys.executable).parent / "py-spy", node.bin / "py-spy")
    with job(node, WAITS) as pid:
        answer = node.ask("job-stacks", "4711")
    (stack,) = answer["stacks"]
    assert stack["pid"] == pid, answer
    assert "in_a_collective (<string>:4)" in stack["threads"][0]["frames"]


@pytest.mark.parametrize("source", [WAITS, HIDES + WAITS], ids=["plain", "hidden"])
def test_profiler_runs_with_the_rights_of_the_job_only(node: StandIns, source: str) -> None:
    who = introducing(node)
    with job(node, source):
        assert node.ask("job-stacks", "4711")["text"] == ""
    lines = [line.partition(":") for line in who.read_text().splitlines()]
    status = {name: value.split() for name, _, value in lines}
    assert (status["Uid"], status["Gid"]) == ([str(USER)] * 4, [str(GROUP)] * 4)
    assert status["NoNewPrivs"] == ["1"]
    if ROOT:
        assert status["Groups"] == []
    rights = {int(status[name][0], 16) for name in ("CapPrm", "CapEff", "CapInh", "CapAmb")}
    assert rights == {1 << 35 if ROOT else 0}, "more than a timer that wakes a machine"
    assert f"Max address space         {1 << 30} " in who.read_text()


def test_a_job_cannot_step_out_of_its_cgroup_through_its_profiler(node: StandIns) -> None:
    """It is of the job's user, but not of the job: who could write into it would be outside of the job."""
    node.mode("py-spy", "hang")
    node.configure(PY_SPY_S="60")
    with job(node, WAITS):
        asked = subprocess.Popen(
            [str(node.program), "--conf", str(node.conf), "job-stacks", "4711"], stdout=subprocess.PIPE
        )
        try:
            sleeping = lambda: [pid for pid in node.pids("py-spy") if "sleep" in name_of(pid)]  # noqa: E731
            (pid,) = wait_until(sleeping, 30, what="the profiler runs") or ()
            tried = [PYTHON, "-c", REACHES, f"/proc/{pid}/mem"]
            done = subprocess.run(tried, capture_output=True, text=True, check=True, cwd="/", **as_user(USER))  # type: ignore[call-overload]
        finally:
            asked.terminate()
            asked.communicate()
            os.kill(pid, 9)
    assert done.stdout.strip() == ("no" if ROOT else "yes")


def test_nothing_of_roots_is_looked_into(node: StandIns) -> None:
    """Only as root could a program of root's be read, in a job too: so it is not."""
    who = introducing(node)
    with job(node, WAITS, user=0):
        answer = node.ask("job-stacks", "4711")
    assert who.exists() is not ROOT
    assert answer["text"] == (
        "healer reads no process that runs as root or with the rights of two users" if ROOT else ""
    )


# --- the SSH key is stolen


@pytest.fixture
def site(tmp_path: Path) -> Iterator[SshSite]:
    with ssh_site(tmp_path / "site") as made:
        yield made


def by_thief(site: SshSite, node: str, words: Sequence[str]) -> dict[str, Any]:
    """What the node answers to a holder of healer's SSH key; it must not have been done."""
    done = subprocess.run(
        site.ssh().command(node, tuple(words), 30), capture_output=True, stdin=subprocess.DEVNULL, check=False
    )
    answer = json.loads(done.stdout)
    assert (done.returncode, answer["ok"], answer["code"]) == (126, False, "not-signed"), answer
    return answer


def signed(site: SshSite, *words: str, key: Path | None = None, **more: Any) -> tuple[str, ...]:
    """As the worker signs it."""
    about = {
        "cluster": "alpha",
        "node": "gpu0001",
        "run": "run-1",
        "until": time.time() + 10,
        "call_id": "0" * 16,
    }
    return Signer(key or site.signing_key).signed(Request(**(about | more)), words)


def nothing_was_done(node: SshNode) -> None:
    assert [node.programs.asked(name) for name in ("systemctl", "nvidia-smi", "dcgmi")] == [[], [], []]
    assert {entry["event"] for entry in node.programs.log()} == {"refused"}


@pytest.mark.parametrize(
    "words", ["identify", "gpu-processes", "job-stacks 4711", "service-restart slurmd", "gpu-reset k all"]
)
def test_a_stolen_ssh_key_alone_asks_for_nothing(site: SshSite, words: str) -> None:
    node = site.node("gpu0001")
    assert "its SSH key alone permits nothing" in by_thief(site, "gpu0001", words.split())["text"]
    nothing_was_done(node)


def test_a_request_that_was_made_is_not_made_again(site: SshSite) -> None:
    node = site.node("gpu0001")
    words = signed(site, "service-restart", "slurmd")
    for expected in (0, 126):
        command = site.ssh().command("gpu0001", words, 30)
        done = subprocess.run(command, capture_output=True, stdin=subprocess.DEVNULL, check=False)
        assert done.returncode == expected, done.stdout
    assert "was used before" in json.loads(done.stdout)["text"]
    assert node.programs.restarts("gpu0001") == 1
    assert [(entry["event"], entry.get("run")) for entry in node.programs.log()] == [
        ("begins", "run-1"), ("done", "run-1"), ("refused", None)
    ]  # fmt: skip


def other_arguments(site: SshSite) -> tuple[str, ...]:
    words = signed(site, "service-restart", "nvidia-dcgm")
    return tuple("slurmd" if word == "nvidia-dcgm" else word for word in words)


def other_run(site: SshSite) -> tuple[str, ...]:
    return tuple("run-2" if word == "run-1" else word for word in signed(site, "service-restart", "slurmd"))


def later_end(site: SshSite) -> tuple[str, ...]:
    words = list(signed(site, "identify", until=time.time() - 1000))
    words[5] = str(int(words[5]) + 1010)
    return tuple(words)


def foreign_key(site: SshSite) -> tuple[str, ...]:
    make_key(site.folder / "thief")
    return signed(site, "identify", key=site.folder / "thief")


FORGED = {
    "other arguments": (other_arguments, "not signed by a key"),
    "other run": (other_run, "not signed by a key"),
    "later end": (later_end, "not signed by a key"),
    "foreign key": (foreign_key, "not signed by a key"),
    "no signature": (lambda site: ("signed", "A" * 96, *signed(site, "identify")[2:]), "not signed by a key"),
    "other node": (lambda site: signed(site, "identify", node="gpu0002"), "is for node gpu0002"),
    "other cluster": (lambda site: signed(site, "identify", cluster="beta"), "is for cluster beta"),
    "ended": (lambda site: signed(site, "identify", until=time.time() - 70), "by this node's clock"),
    "of the future": (lambda site: signed(site, "identify", until=time.time() + 400), "by this node's clock"),
    "a change without a run": (lambda site: signed(site, "service-restart", "slurmd", run=""), "requires"),
}


@pytest.mark.parametrize("name", FORGED)
def test_a_forged_or_kept_request_is_refused(site: SshSite, name: str) -> None:
    node = site.node("gpu0001")
    node.programs.configure(CLUSTER="alpha")
    forge, says = FORGED[name]
    assert says in by_thief(site, "gpu0001", forge(site))["text"]
    nothing_was_done(node)


def test_without_the_workers_public_key_a_node_says_what_is_missing(site: SshSite) -> None:
    node = site.node("gpu0001")
    site.signing_key.with_suffix(".pub").unlink()
    with pytest.raises(NodeError, match=r"so this node accepts no request: .* --keys"):
        site.exec().identify("gpu0001")
    nothing_was_done(node)
    unsigned = site.exec(signing_key_file=None)
    with pytest.raises(NodeError, match="HEALER_SSH_SIGNING_KEY_FILE is not set"):
        unsigned.identify("gpu0001")


def test_a_public_key_that_others_may_change_is_not_used(site: SshSite) -> None:
    node = site.node("gpu0001")
    site.signing_key.with_suffix(".pub").chmod(0o666)
    with pytest.raises(NodeError, match="can be changed by users other than root"):
        site.exec().identify("gpu0001")
    assert node.programs.asked("nvidia-smi") == []


def test_a_second_key_takes_the_firsts_place_without_a_gap(site: SshSite) -> None:
    site.node("gpu0001")
    public = make_key(site.folder / "second.key")
    keys = site.signing_key.with_suffix(".pub")
    keys.write_text(keys.read_text() + public.read_text())
    for key in (site.signing_key, site.folder / "second.key"):
        assert site.exec(signing_key_file=key).identify("gpu0001")["ok"]


@pytest.mark.parametrize("source", ["NODE", "HEALER_NODE", "enrolment"])
def test_a_node_that_slurm_calls_otherwise_knows_its_name(site: SshSite, source: str) -> None:
    node = site.node("gpu0001")
    programs = node.programs
    programs.configure(NODE="login gpu0001" if source == "NODE" else "")
    kept = programs.world / "spool" / "follow"  # where healer-follow keeps its state
    kept.mkdir(parents=True)
    spool = f"HEALER_HOOK_SPOOL={kept.parent}\n"
    named = "HEALER_NODE=gpu0001\n" if source == "HEALER_NODE" else ""
    (programs.world / "hook.conf").write_text(spool + named)
    if source == "enrolment":
        (kept / "state").write_text('{"node": "gpu0001"}')
    assert site.exec().identify("gpu0001")["ok"]
    programs.configure(NODE="")
    (programs.world / "hook.conf").write_text(spool)
    (kept / "state").unlink(missing_ok=True)
    with pytest.raises(NodeError, match="the request is for node gpu0001, and this is "):
        site.exec().identify("gpu0001")


def test_a_full_disk_stops_no_look(site: SshSite) -> None:
    """What is used up is written down in memory."""
    node = site.node("gpu0001")
    assert site.exec().identify("gpu0001")["ok"]
    assert len(list((node.folder / "run").glob("[0-9]*"))) == 1
    (node.folder / "run" / f"{int(time.time()) - 100}.{'a' * 16}").touch()
    assert site.exec().identify("gpu0001")["ok"]
    assert len(list((node.folder / "run").glob("[0-9]*"))) == 2, "unused keys are forgotten"


# --- a package is forged


class Packages:
    """Where packages are made, and an image of a node. The keys are in `keys`."""

    def __init__(self, folder: Path) -> None:
        self.folder, self.keys, self.root = folder, folder / "keys", folder / "root"
        (self.root / "usr/bin").mkdir(parents=True)
        self.command("node-keys", str(self.keys))

    def command(self, *words: str) -> None:
        done = CliRunner().invoke(build(), words)
        assert done.exit_code == 0, done.output

    def make(self, name: str, keys: Path | None = None, url: str = "https://healer.example") -> Path:
        script = self.folder / name
        self.command("node-package", "--url", url, "--keys", str(keys or self.keys), "--output", str(script))
        return script

    def install(self, script: Path | str, status: int) -> str:
        """By the real sh: a file, or a text by its standard input."""
        words = ["-s"] if isinstance(script, str) else [str(script)]
        done = subprocess.run(
            ["sh", *words, "install", "--root", str(self.root)],
            input=script if isinstance(script, str) else "", capture_output=True, text=True, check=False,
        )  # fmt: skip
        assert done.returncode == status, done.stdout + done.stderr
        return done.stdout + done.stderr

    def files(self) -> dict[str, bytes]:
        return {str(path): path.read_bytes() for path in self.root.rglob("*") if path.is_file()}


@pytest.fixture
def packages(tmp_path: Path) -> Packages:
    return Packages(tmp_path)


def test_a_node_takes_the_packages_of_its_first_key_alone(packages: Packages) -> None:
    first = packages.make("first.sh")
    packages.install(first.read_text(), 0)  # nothing is pinned yet
    assert (packages.root / "etc/healer/package.pub").read_bytes() == (
        packages.keys / "package.pub"
    ).read_bytes()
    assert (packages.root / "etc/healer/requests.pub").exists()
    assert "0 changed" in packages.install(first, 0)
    packages.command("node-keys", str(packages.folder / "other"))
    other = packages.make("other.sh", packages.folder / "other", url="https://thief.example")
    unsigned = packages.folder / "unsigned.sh"
    unsigned.write_text("".join(other.read_text().splitlines(keepends=True)[:-1]))
    before = packages.files()
    for forged in (other, unsigned):
        assert "has not signed this package: nothing was done" in packages.install(forged, 1)
    assert "run this as a file" in packages.install(first.read_text(), 1)
    assert packages.files() == before


@pytest.mark.parametrize("changed", ["first line", "a file within", "signature", "line behind it"])
def test_a_byte_that_changed_is_refused(packages: Packages, changed: str) -> None:
    script = packages.make("healer-node.sh")
    packages.install(script, 0)
    before, text = packages.files(), script.read_text()
    lines = text.splitlines(keepends=True)
    where = {"first line": 1, "a file within": len(lines) // 2, "signature": -1}.get(changed)
    if where is None:
        lines.append("touch /tmp/owned\n")
    else:
        # Not the last letter before the padding: it may have bits that say nothing.
        line = lines[where]
        lines[where] = line[:-12] + ("A" if line[-12] != "A" else "B") + line[-11:]
    script.write_text("".join(lines))
    assert "has not signed this package: nothing was done" in packages.install(script, 1)
    assert packages.files() == before
    checked = [
        "openssl", "dgst", "-sha256", "-verify", str(packages.keys / "package.pub"),
        "-signature", f"{script}.sig", str(script),
    ]  # fmt: skip
    assert subprocess.run(checked, capture_output=True, check=False).returncode == 1
    script.write_text(text)
    assert subprocess.run(checked, capture_output=True, check=False).returncode == 0


def test_the_keys_are_their_makers_alone_and_are_kept(packages: Packages) -> None:
    private = {name: packages.keys / name for name in ("requests.key", "package.key")}
    before = {name: path.read_bytes() for name, path in private.items()}
    assert {path.stat().st_mode & 0o777 for path in private.values()} == {0o600}
    packages.command("node-keys", str(packages.keys))
    assert {name: path.read_bytes() for name, path in private.items()} == before
