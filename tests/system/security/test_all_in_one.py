"""`healer.service`, all parts in one, under a real systemd: its walls, and healer's work within them."""

import os
import signal
import subprocess
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path

import httpx
import pytest

from tests.support.processes import descendants, free_port, name_of
from tests.support.stack import scratch_folder
from tests.support.systemd_machine import SystemdMachine, systemd_machine
from tests.support.units import UNITS
from tests.support.up import is_ready
from tests.support.wait import wait_until

pytestmark = pytest.mark.crash
HEALER = "/opt/healer/.venv/bin/healer"
#: What stays root, and the users of the others.
ROOTS = {"healer up", "healer guardian"}
PARTS = {"healer api", "healer detector", "healer scheduler", "healer worker"}
#: Signals, other users and their files; nothing of the kernel, the network or devices.
RIGHTS = ("chown", "dac_override", "fowner", "fsetid", "kill", "setgid", "setuid")
#: systemd gives up after five starts within 10 s, unless the unit says otherwise.
MORE_THAN_SYSTEMD_S_LIMIT = 6


class Site:
    def __init__(self, machine: SystemdMachine, port: int) -> None:
        self.machine, self.url = machine, f"http://127.0.0.1:{port}"
        self.http = httpx.Client(timeout=20)

    def healer(self, *arguments: str) -> str:
        environ = ["HEALER_DATA_DIR=/var/lib/healer", "HEALER_CONFIG=/etc/healer/healer.toml"]
        return self.machine.run("env", *environ, f"HEALER_URL={self.url}", HEALER, *arguments)

    def headers(self, role: str) -> dict[str, str]:
        headers = {"Authorization": f"Bearer {self.healer('token', 'create', '--role', role).split()[-1]}"}
        asked = f"{self.url}/api/v1/nodes"
        wait_until(lambda: self.http.get(asked, headers=headers).status_code != 401, 20, what="it counts")
        return headers

    def is_up(self) -> bool:
        shown = self.machine.run("systemctl", "show", "--property=NRestarts", "--value", "healer")
        assert int(shown) == 0, self.machine.journal("")
        return is_ready(self.url)

    def pids(self) -> set[int]:
        return descendants(self.machine.main_pid(""))


@pytest.fixture(scope="module")
def site() -> Iterator[Site]:
    port = free_port()
    settings = (
        'HEALER_SLURM_ADAPTERS = ["sim"]',
        'HEALER_MODE = "auto"',
        f'HEALER_LISTEN = "127.0.0.1:{port}"',
    )
    with scratch_folder() as folder, ExitStack() as stack:
        machine = stack.enter_context(systemd_machine(folder))
        machine.write("/etc/systemd/system/healer.service", (UNITS / "healer.service").read_text())
        machine.write("/etc/healer/healer.toml", "\n".join(settings))
        machine.run("systemctl", "daemon-reload")
        machine.run("systemctl", "start", "healer.service")
        found = Site(machine, port)
        stack.callback(found.http.close)
        wait_until(found.is_up, 60, what="the API is ready")
        yield found


def status(pid: int) -> dict[str, str]:
    lines = Path(f"/proc/{pid}/status").read_text().splitlines()
    return {name: value.strip() for name, _, value in (line.partition(":") for line in lines)}


def test_every_process_has_the_walls_and_only_the_parent_has_rights(site: Site) -> None:
    shown = subprocess.run(
        ["setpriv", "--bounding-set", ",".join(["-all", *(f"+{name}" for name in RIGHTS)]), "grep", "CapBnd",
         "/proc/self/status"], capture_output=True, text=True, check=True,
    )  # fmt: skip
    rights = shown.stdout.split()[1]
    named = {name_of(pid): status(pid) for pid in site.pids()}
    assert named.keys() >= ROOTS | PARTS
    for name, found in named.items():
        assert (found["Seccomp"], found["NoNewPrivs"], found["CapBnd"]) == ("2", "1", rights), name
        root = found["Uid"].split()[0] == "0"
        assert root == (name in ROOTS), name
        assert int(found["CapEff"], 16) == (int(rights, 16) if root else 0), name


_TRY = """
import sys
for path in sys.argv[1:]:
    try:
        open(path, "rb" if path.startswith(("/root", "/home", "/dev")) else "ab").read(1)
        print("opened", path)
    except OSError as error:
        print(type(error).__name__, path)
"""
_WALLED = (
    "/etc/written", "/usr/bin/written", "/opt/healer/healer/written", "/var/lib/written", "/boot/written",
    "/root/.bashrc", "/dev/kmsg", "/proc/sys/kernel/panic", "/sys/kernel/mm/ksm/run",
)  # fmt: skip


def test_even_its_root_writes_no_code_settings_or_system_and_sees_no_home_or_device(site: Site) -> None:
    within = [
        "nsenter",
        "-t",
        str(site.machine.main_pid("")),
        "-m",
        "/opt/healer/.venv/bin/python",
        "-c",
        _TRY,
    ]
    own = "/var/lib/healer/written"
    done = subprocess.run([*within, own, *_WALLED], capture_output=True, text=True, check=True)
    answers = {line.split(" ", 1)[1]: line.split(" ", 1)[0] for line in done.stdout.splitlines()}
    assert answers.pop(own) == "UnsupportedOperation", "it was opened, to write"
    assert set(answers) == set(_WALLED)
    assert set(answers.values()) <= {"OSError", "PermissionError", "FileNotFoundError"}, answers


def test_a_person_s_drain_is_carried_out_sealed_and_verified(site: Site) -> None:
    body = {"node": "gpu0001", "reason": "a person's own drain"}
    headers = site.headers("operator")
    asked = site.http.post(f"{site.url}/api/v1/playbooks/drain/runs", json=body, headers=headers)
    assert asked.status_code == 202, asked.text
    run = f"{site.url}{asked.headers['location']}"

    def drained() -> bool:
        """The run waits for the node's jobs to end, and for what people do then."""
        drain, *_ = site.http.get(run, headers=headers).json()["steps"]
        return drain["state"] == "done"

    wait_until(drained, 40, what="it is drained")
    auditor = site.headers("auditor")

    def verified() -> bool:
        found = site.http.get(f"{site.url}/api/v1/audit/verify", headers=auditor).json()
        assert (found["ok"], found["broken"]) == (True, []), found
        return bool(found["records"])

    wait_until(verified, 20, what="the worker seals")


def test_every_user_reads_the_public_keys_and_the_checkpoints_are_the_parts(site: Site) -> None:
    def read_as_plain_user(name: str) -> str:
        plain_user = [
            "setpriv",
            "--reuid=65534",
            "--regid=65534",
            "--clear-groups",
            "cat",
            f"/var/lib/healer/{name}",
        ]
        return site.machine.run(*plain_user, check=False)

    assert len(bytes.fromhex(read_as_plain_user("audit-keys.pub"))) == 32
    assert "Permission denied" in read_as_plain_user("audit-checkpoints.jsonl")
    # The folder of the units for each part, which systemd-tmpfiles made with the worker's umask in mind.
    audit = "/var/lib/healer/audit"
    site.machine.run("sh", "-c", f"echo key >{audit}/audit-keys.pub; umask 027; echo head >{audit}/heads")
    assert read_as_plain_user("audit/audit-keys.pub") == "key\n"
    assert "Permission denied" in read_as_plain_user("audit/heads")


def test_it_comes_back_however_often_it_is_killed(site: Site) -> None:
    before = 0
    for _ in range(MORE_THAN_SYSTEMD_S_LIMIT):
        wait_until(lambda last=before: main_of(site) not in (0, last), 30, what="systemd starts it again")
        before = main_of(site)
        os.kill(before, signal.SIGKILL)
    wait_until(lambda: main_of(site) not in (0, before), 30, what="systemd starts it again")
    wait_until(lambda: is_ready(site.url), 60, what="the API is ready")


def main_of(site: Site) -> int:
    """0 while there is none."""
    try:
        return site.machine.main_pid("")
    except AssertionError:
        return 0


def test_the_two_forms_never_run_at_once(site: Site) -> None:
    """Each would have a worker that acts."""
    run = site.machine.run
    forms = ("healer.service", "healer.target")
    for wanted, other in (forms[::-1], forms):
        run("systemctl", "start", wanted)
        states = {unit: run("systemctl", "is-active", unit, check=False).strip() for unit in forms}
        assert states == {wanted: "active", other: "inactive"}
    after = run("systemctl", "show", "--property=After", "--value", "healer.service").split()
    wants = run("systemctl", "show", "--property=Wants", "--value", "healer.target").split()
    assert set(wants) <= set(after), "it starts when every part has stopped"
