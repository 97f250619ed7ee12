"""Who has taken over the API has healer's service user: what that user finds of the worker on a real machine.

`healer up` is started by root, with the users of the packages and a marker in each of the worker's secrets.
"""

import grp
import os
import pwd
import secrets
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest

import healer
from tests.support.processes import living, memory_holds
from tests.support.stack import scratch_folder
from tests.support.up import Stack

pytestmark = pytest.mark.crash
#: Of each secret; only this process has them before the worker does.
MARKS = {name: f"{name}-{secrets.token_hex(12)}" for name in ("key", "bmc", "write", "command")}


@pytest.fixture(scope="module")
def secret_files() -> Iterator[dict[str, Path]]:
    with scratch_folder() as folder:
        folder.chmod(0o755)
        made = {name: folder / name for name in MARKS}
        for name, path in made.items():
            path.write_text(f"#!/bin/sh\necho {MARKS[name]}\n" if name == "command" else f"{MARKS[name]}\n")
            path.chmod(0o700 if name == "command" else 0o600)
            os.chown(path, pwd.getpwnam("healer-worker").pw_uid, grp.getgrnam("healer-worker").gr_gid)
        read = folder / "read"
        read.write_text("a token that reads\n")
        read.chmod(0o644)
        yield made | {"read": read}


@pytest.fixture(scope="module")
def stack(secret_files: dict[str, Path]) -> Iterator[Stack]:
    with (
        scratch_folder() as folder,
        Stack(
            folder,
            first=True,
            HEALER_SLURM_ADAPTERS="sim",
            HEALER_BMC_URL="https://{node}-bmc",
            HEALER_BMC_USER="healer",
            HEALER_BMC_PASSWORD_FILE=str(secret_files["bmc"]),
            HEALER_SSH_KEY_FILE=str(secret_files["key"]),
            HEALER_SLURM_TOKEN_FILE=str(secret_files["write"]),
            HEALER_SLURM_READ_TOKEN_FILE=str(secret_files["read"]),
        ) as found,
    ):
        yield found


def test_no_process_but_the_worker_holds_a_secret(stack: Stack, secret_files: dict[str, Path]) -> None:
    pids = stack.pids()
    assert memory_holds(pids["worker"], MARKS["bmc"].encode()), "which is how one would be seen"
    for pid in living(stack.see()) - {pids["worker"]}:
        environ = Path(f"/proc/{pid}/environ").read_bytes()
        for name, mark in MARKS.items():
            assert mark.encode() not in environ and str(secret_files[name]).encode() not in environ, (
                pid,
                name,
            )
            assert not memory_holds(pid, mark.encode()), (pid, name)


#: Tried as the service user. `{data}`: the data directory, `{code}`: healer's package, `{pid}`: the worker.
TRIES = {
    "read the key": "open('{key}')",
    "read the BMC's password": "open('{bmc}')",
    "read the token that writes": "open('{write}')",
    "run the site's command": "os.execv('{command}', ['x'])",
    "read the audit's key": "open('{data}/audit-key')",
    "add a command": "open('{data}/commands/x', 'w')",
    "add a rule of the worker's": "open('{data}/worker-rules/x.yaml', 'w')",
    "take the worker's rules away": "os.rename('{data}/worker-rules', '{data}/rules/old')",
    "take the commands away": "os.rename('{data}/commands', '{data}/spool/old')",
    "put another audit key": "os.unlink('{data}/audit-key')",
    "put other checkpoints": "open('{data}/audit-checkpoints.jsonl', 'a')",
    "put something beside": "open('{data}/x', 'w')",
    "change healer's code": "open('{code}/__init__.py', 'a')",
    "add to healer's code": "open('{code}/sitecustomize.py', 'w')",
    "read its environment": "open('/proc/{pid}/environ').read()",
    "read its memory": "open('/proc/{pid}/mem', 'rb')",
    "see its descriptors": "os.listdir('/proc/{pid}/fd')",
    "trace it": "trace({pid})",
    "end it": "os.kill({pid}, 15)",
    "drain by the simulated Slurm": "connect('{data}/sim/sim-slurm.sock')",
}
_PROGRAM = """
import ctypes, os, socket, sys
def trace(pid):
    libc = ctypes.CDLL(None, use_errno=True)
    if libc.ptrace(16, pid, None, None):
        raise PermissionError(ctypes.get_errno())
def connect(path):
    socket.socket(socket.AF_UNIX).connect(path)
try:
    {attempt}
except PermissionError:
    print("refused")
"""


def as_service(program: str) -> str:
    """What it prints as the service user, with all groups that this has."""
    user = pwd.getpwnam("healer")
    done = subprocess.run(
        ["/usr/bin/python3", "-c", program],
        user=user.pw_uid, group=user.pw_gid, extra_groups=os.getgrouplist("healer", user.pw_gid),
        capture_output=True, text=True, cwd="/", check=False, timeout=60,
    )  # fmt: skip
    return done.stdout.strip() or done.stderr


@pytest.mark.parametrize("what", TRIES)
def test_the_service_user_may_not(stack: Stack, secret_files: dict[str, Path], what: str) -> None:
    names = {name: str(path) for name, path in secret_files.items()}
    code = Path(healer.__file__).parent
    attempt = TRIES[what].format(data=stack.data_dir, code=code, pid=stack.pids()["worker"], **names)
    assert as_service(_PROGRAM.replace("{attempt}", attempt)) == "refused"


def test_service_user_can_make_the_attempts_it_is_allowed(stack: Stack) -> None:
    data, api = stack.data_dir, stack.pids()["api"]
    for attempt in (f"open('{data}/rules/x.yaml', 'w')", f"open('{data}/token-key')", f"os.kill({api}, 0)",
                    f"connect('{data}/redis/run/redis.sock')"):  # fmt: skip
        assert as_service(_PROGRAM.replace("{attempt}", f"{attempt}; print('done')")) == "done", attempt
    (data / "rules/x.yaml").unlink()
