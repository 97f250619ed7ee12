"""The parts as the shipped units give them, under a real systemd: user, login, secrets and walls of each."""

import json
import os
import pwd
import re
import secrets
import signal
import struct
from collections.abc import Iterator
from datetime import UTC, datetime
from functools import partial
from pathlib import Path
from uuid import uuid4

import psycopg
import pytest
import sqlalchemy as sa

from healer.adapters.nodes.request_signing import make_key, read_key
from healer.adapters.postgres.tokens import ENROLLED_AGAIN
from healer.embedded.database_logins import OWNER
from healer.embedded.descent import as_user, code_folders
from healer.embedded.user import ServerUser
from healer.ports.node_exec import NodeError
from healer.sim.sim_slurm import SimClient, reads_socket
from tests.support.munge import Realm, credential, realm
from tests.support.packaged import Packaged, plain
from tests.support.sink import Sink, serve_sink
from tests.support.stack import scratch_folder
from tests.support.systemd_machine import SITE, as_part
from tests.support.units import PARTS
from tests.support.up import is_ready
from tests.support.wait import wait_until

pytestmark = pytest.mark.crash


@pytest.fixture(scope="module")
def sink() -> Iterator[Sink]:
    with serve_sink() as taken:
        yield taken


@pytest.fixture(scope="module")
def folder() -> Iterator[Path]:
    with scratch_folder() as made:
        yield made


@pytest.fixture(scope="module")
def munges(folder: Path) -> Iterator[Realm]:
    """That of healer's machine, and that of gpu0001 at 192.0.2.1."""
    (folder / "munge").mkdir(mode=0o755)
    with realm(folder / "munge") as made:
        for address in ("127.0.0.1", "192.0.2.1"):
            made.machine(address)
        yield made


@pytest.fixture(scope="module")
def site(sink: Sink, folder: Path, munges: Realm) -> Iterator[Packaged]:
    optional = {"scheduler": ("webhooks",)}
    values = {"webhook-secret": "whsec_" + "c2VjcmV0LW9mLXRoZS1zaXRl", "notify-url": sink.url}
    socket = f"{SITE}/{munges.folder.name}/0/s"
    with Packaged(folder, optional, values, HEALER_MUNGE_SOCKET=socket) as made:
        yield made


def uids(pid: int) -> set[int]:
    [line] = [
        line for line in Path(f"/proc/{pid}/status").read_text().splitlines() if line.startswith("Uid:")
    ]
    return {int(word) for word in line.split()[1:]}


def test_every_part_is_its_own_user_without_rights_and_with_a_filter_of_system_calls(site: Packaged) -> None:
    for part in PARTS:
        pid = site.machine.main_pid(part)
        assert uids(pid) == {pwd.getpwnam(f"healer-{part}").pw_uid}
        status = Path(f"/proc/{pid}/status").read_text()
        assert "NoNewPrivs:\t1" in status and "Seccomp:\t2" in status
        assert "CapEff:\t0000000000000000" in status


_OPEN = """
import sys
for path in sys.argv[1:]:
    try:
        open(path, "rb").read(1)
        print("read", path)
    except OSError as error:
        print(type(error).__name__, path)
"""
_HIDDEN = ("PermissionError", "FileNotFoundError")


@pytest.mark.parametrize("part", PARTS)
def test_a_part_reads_neither_the_secrets_nor_the_files_nor_the_memory_of_another(
    site: Packaged, part: str
) -> None:
    others = [each for each in PARTS if each != part]
    paths = [f"/run/credentials/healer-{each}.service/database-url" for each in others]
    paths += [f"/etc/healer/credentials/{each}/database-url" for each in PARTS]
    # The last of these: the folder is closed, whatever the files in it are.
    paths += ["/etc/healer/credentials/worker/broker-url", "/etc/healer/credentials/worker"]
    paths += ["/root/.bashrc", "/dev/kmsg"]
    for each in others:
        inside = site.machine.run(
            "systemctl", "show", "--property=MainPID", "--value", f"healer-{each}"
        ).strip()
        paths += [f"/proc/{inside}/{what}" for what in ("environ", "maps", "mem")]
    if part != "worker":
        paths.append("/var/lib/healer/worker/audit-key")
    own = f"/run/credentials/healer-{part}.service/database-url"
    done = as_part(site.machine, part, _OPEN, [own, "/etc/healer/healer.toml", *paths])
    answers = {line.split(" ", 1)[1]: line.split(" ", 1)[0] for line in done.stdout.splitlines()}
    assert [answers.pop(path) for path in (own, "/etc/healer/healer.toml")] == ["read", "read"], done.stderr
    assert set(answers) == set(paths)
    assert {path: said for path, said in answers.items() if said not in _HIDDEN} == {}


_WRITE = """
import sys
for folder in sys.argv[1:]:
    try:
        open(folder + "/written-by-an-attacker", "w").close()
        print("wrote", folder)
    except OSError as error:
        print(type(error).__name__, folder)
"""
_NOT_OWN = (
    "/opt/healer/healer",
    "/opt/packages",
    "/etc/healer",
    "/etc",
    "/usr/bin",
    "/var/lib",
    "/srv/site",
    "/home",
)
#: Where every user may write: the unit's walls alone refuse it.
_FREE = "/srv/free"


@pytest.mark.parametrize("part", PARTS)
def test_a_part_writes_its_own_folder_and_no_code_rules_or_system(site: Packaged, part: str) -> None:
    others = [f"/var/lib/healer/{each}" for each in PARTS if each != part]
    site.machine.run("install", "-d", "-m", "1777", _FREE)
    places = [
        f"/var/lib/healer/{part}",
        _FREE,
        *_NOT_OWN,
        *others,
        *(["/var/lib/healer/audit"] if part != "worker" else []),
    ]
    done = as_part(site.machine, part, _WRITE, places)
    wrote = {line.split(" ", 1)[1] for line in done.stdout.splitlines() if line.startswith("wrote")}
    assert wrote == {f"/var/lib/healer/{part}"}, done.stderr
    assert len(done.stdout.splitlines()) == len(places)


def enters(url: sa.URL) -> str:
    try:
        psycopg.connect(url.set(drivername="postgresql").render_as_string()).execute("SELECT 1")
    except psycopg.OperationalError as error:
        return str(error)
    return "entered"


_REFUSED = "Peer authentication failed|no password supplied"


@pytest.mark.parametrize("part", PARTS)
def test_a_part_connects_as_its_own_role_and_no_other(site: Packaged, part: str) -> None:
    entry = pwd.getpwnam(f"healer-{part}")
    user = ServerUser(entry.pw_uid, entry.pw_gid, entry.pw_name, drop=True)
    roles = (*(f"healer_{each}" for each in PARTS), OWNER, "healer_auditor", "postgres")
    urls = {role: sa.make_url(site.postgres.url_of("healer", role)) for role in roles}
    answers = {role: as_user(user, partial(enters, url), code_folders()) for role, url in urls.items()}
    assert answers.pop(f"healer_{part}") == "entered"
    assert {role for role, answer in answers.items() if not re.search(_REFUSED, answer)} == set()


def test_a_person_s_drain_is_carried_out_sealed_and_verified(site: Packaged) -> None:
    body = {"node": "gpu0001", "reason": "a person's own drain"}
    headers = site.headers("operator")
    asked = site.http.post(f"{site.url}/api/v1/playbooks/drain/runs", json=body, headers=headers)
    assert asked.status_code == 202, asked.text

    def drained() -> bool:
        return SimClient(site.sim).snapshot().nodes["gpu0001"].drain

    wait_until(lambda: drained() or site.failed(), 40, what="the worker drained it")
    assert site.failed() == ""
    auditor = site.headers("auditor")

    def verified() -> dict[str, object]:
        return site.http.get(f"{site.url}/api/v1/audit/verify", headers=auditor).json()

    wait_until(lambda: verified()["records"], 20, what="the worker seals")
    found = verified()
    assert (found["ok"], found["broken"]) == (True, []), found
    assert "audit-keys.pub" in site.machine.run("ls", "/var/lib/healer/audit").split()


_CONNECT = """
import socket, sys
for path in sys.argv[1:]:
    with socket.socket(socket.AF_UNIX) as link:
        try:
            link.connect(path)
            print("connected", path)
        except OSError as error:
            print(type(error).__name__, path)
"""


@pytest.mark.parametrize("part", PARTS)
def test_the_worker_alone_reaches_what_changes_slurm(site: Packaged, part: str) -> None:
    reads, writes = reads_socket(Path(SITE, "sim", "sim.sock")), f"{SITE}/sim/sim.sock"
    done = as_part(site.machine, part, _CONNECT, [str(reads), writes])
    changes = "connected" if part == "worker" else "PermissionError"
    assert done.stdout.splitlines() == [f"connected {reads}", f"{changes} {writes}"], done.stderr


@pytest.mark.parametrize("name", ["nobody", "daemon", "healer-upgrade"])
def test_another_user_of_the_machine_is_no_user_of_the_database(site: Packaged, name: str) -> None:
    uid = pwd.getpwnam(name).pw_uid if name != "healer-upgrade" else 61184  # of those that systemd makes up
    user = ServerUser(uid, uid, name, drop=True)
    roles = (*(f"healer_{each}" for each in PARTS), OWNER, "healer_auditor", "postgres")
    for role in roles:
        url = sa.make_url(site.postgres.url_of("healer", role))
        assert re.search(_REFUSED, as_user(user, partial(enters, url), code_folders())), role


def test_a_second_enrolment_of_a_node_ends_its_first_token_and_is_noted(
    site: Packaged, munges: Realm
) -> None:
    """The API's walls let it ask munge and the names of hosts."""
    site.machine.run("sh", "-c", "echo 192.0.2.1 gpu0001 >>/etc/hosts")

    def enrol() -> dict[str, str]:
        payload = json.dumps({"for": "healer enroll", "node": "gpu0001", "nonce": secrets.token_hex(16)})
        made = credential(munges.folder / "1" / "s", payload)
        answer = site.http.post(f"{site.url}/api/v1/enroll", json={"credential": made})
        assert answer.status_code == 201, answer.text
        return {"Authorization": f"Bearer {answer.json()['token']}"}

    def beats(headers: dict[str, str]) -> int:
        where = f"{site.url}/api/v1/signals/heartbeat"
        return site.http.post(where, json={"node": "gpu0001"}, headers=headers).status_code

    first = enrol()
    wait_until(lambda: beats(first) == 202, 20, what="the first token counts")
    with psycopg.connect(plain(site.database_url(OWNER))) as conn:  # within minutes an answer was lost
        conn.execute("UPDATE tokens SET created_at = created_at - interval '1 hour' WHERE node = 'gpu0001'")
    second = enrol()
    wait_until(lambda: (beats(first), beats(second)) == (401, 202), 20, what="the second took its place")
    where, auditor = f"{site.url}/api/v1/audit", site.headers("auditor")

    def noted() -> list[str]:
        answer = site.http.get(where, params={"verb": ENROLLED_AGAIN}, headers=auditor)
        return [record["subject"] for record in answer.json()["items"]]

    assert wait_until(noted, 20, what="the record is there, which is paged") == ["node/gpu0001"]


def test_a_page_of_a_part_without_the_channel_s_secret_still_leaves(site: Packaged, sink: Sink) -> None:
    """The scheduler alone knows where pages go."""
    line = "NVRM: Xid (PCI:0000:9b:00): 79, pid=1, name=python, GPU has fallen off the bus."
    entries = [{"time": datetime.now(UTC).isoformat(), "seq": 1, "line": line}]
    body = {"cluster": "pod1", "node": "gpu0007", "boot_id": str(uuid4()), "entries": entries}
    headers = site.headers("signals", "--vouches", "kernel")
    asked = site.http.post(f"{site.url}/api/v1/signals/kernel-log", json=body, headers=headers)
    assert asked.status_code == 202, asked.text
    wait_until(lambda: sink.ids() or site.failed(), 40, what="a page came to the site's own address")
    assert site.failed() == ""


@pytest.mark.parametrize("user", ["healer-worker", "root"])
def test_an_api_that_its_unit_gives_the_worker_s_user_or_root_s_opens_no_socket(
    site: Packaged, user: str
) -> None:
    drop_in = "/etc/systemd/system/healer-api.service.d/user.conf"
    site.machine.write(drop_in, f"[Service]\nUser={user}\nGroup={user}\n")
    try:
        site.machine.run("systemctl", "daemon-reload")
        site.machine.run("systemctl", "restart", "healer-api")
        said = f"healer api does not run as {'root' if user == 'root' else 'the worker'}"
        wait_until(lambda: said in site.machine.journal("api"), 30, what="it says why it ends")
        assert not is_ready(site.url)
    finally:
        site.machine.run("rm", drop_in)
        site.machine.run("systemctl", "daemon-reload")
        site.machine.run("systemctl", "restart", "healer-api")
    wait_until(lambda: is_ready(site.url), 60, what="the API is ready as its own user")


# --- the form in which systemd shows a credential -----------------------------------------------------------


def give_by_list(path: Path, uid: int) -> None:
    """Root's file that an access list lets this user read, as `LoadCredential` makes it."""
    none = 0xFFFFFFFF
    entries = ((0x01, 4, none), (0x02, 4, uid), (0x04, 0, none), (0x10, 4, none), (0x20, 0, none))
    packed = struct.pack("<I", 2) + b"".join(struct.pack("<HHI", *entry) for entry in entries)
    os.setxattr(path, "system.posix_acl_access", packed)


def test_the_signing_key_may_be_a_credential_and_no_file_that_others_read(scratch: Path) -> None:
    entry = pwd.getpwnam("healer-worker")
    worker = ServerUser(entry.pw_uid, entry.pw_gid, entry.pw_name, drop=True)

    def read(path: Path) -> str:
        def work() -> str:
            try:
                return f"read {type(read_key(path)).__name__}"
            except NodeError as error:
                return str(error)

        return as_user(worker, work, code_folders())

    names = ("credential", "own", "shared", "open")
    paths = {name: scratch / f"{name}.key" for name in names}
    for path in paths.values():
        make_key(path)
    give_by_list(paths["credential"], entry.pw_uid)
    for name, mode in (("own", 0o600), ("shared", 0o640)):
        os.chown(paths[name], entry.pw_uid, entry.pw_gid)
        paths[name].chmod(mode)
    paths["open"].chmod(0o644)
    assert paths["credential"].stat().st_mode & 0o777 == 0o440, "the mode shows the list's mask"
    said = {name: read(path) for name, path in paths.items()}
    assert said["credential"].startswith("read ") and said["own"].startswith("read ")
    assert "readable by other users" in said["shared"] and "readable by other users" in said["open"]


# --- and when a part dies --------------------------------------------------------------------------


@pytest.mark.parametrize("part", PARTS)
def test_a_part_that_is_killed_is_started_again(site: Packaged, part: str) -> None:
    before = site.machine.main_pid(part)
    os.kill(before, signal.SIGKILL)
    inside = ["systemctl", "show", "--property=NRestarts,ActiveState", "--value", f"healer-{part}"]
    wait_until(lambda: set(site.machine.run(*inside).split()) >= {"1", "active"}, 20, what="it is back")
    wait_until(lambda: is_ready(site.url), 30, what="the API is ready")
    assert site.machine.main_pid(part) != before
