"""`healer backup` while signals come in and runs go on, and `healer restore` after the machine is gone."""

import json
import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
import sqlalchemy as sa

from healer.backups.archive import PART
from healer.embedded.server_alone import server_alone
from tests.support.forked import run
from tests.support.processes import clean_environ, name_of
from tests.support.up import ROOT, Stack
from tests.support.wait import wait_until

pytestmark = [pytest.mark.crash, pytest.mark.heavy]

XID = "NVRM: Xid (PCI:0000:9b:00): 79, pid='<unknown>', name=<unknown>, GPU has fallen off the bus."
SETTINGS = {
    "HEALER_SLURM_ADAPTERS": "sim", "HEALER_MODE": "auto", "HEALER_BREAKER_SHARE": "1",
    "HEALER_GUARD_MAX_SHARE": "1", "HEALER_GUARD_MAX_NODES": "30", "HEALER_GUARD_MIN_SERVICE_SHARE": "0",
    "HEALER_GUARD_SHARE_PER_HOUR": "1", "HEALER_GUARD_RACK_SHARE": "1", "HEALER_GUARD_PARTITION_SHARE": "1",
}  # fmt: skip


def post(stack: Stack, path: str, role: str, body: dict[str, Any], *options: str) -> dict[str, Any]:
    headers = stack.headers(role, *options) | {"Idempotency-Key": f"k{time.monotonic_ns()}"}
    answer = stack.http.post(f"{stack.url}/api/v1/{path}", headers=headers, json=body)
    assert answer.status_code < 300, answer.text
    return answer.json()


def get(stack: Stack, path: str) -> Any:
    return stack.http.get(f"{stack.url}/api/v1/{path}", headers=stack.headers("auditor")).json()


def xid(stack: Stack, number: int) -> None:
    entry = {"line": f"[{number}.0] {XID}", "seq": number}
    body = {"cluster": "pod1", "node": f"gpu{number:04d}", "boot_id": f"b{number}", "entries": [entry]}
    post(stack, "signals/kernel-log", "signals", body, "--vouches", "kernel")


@contextmanager
def signals(stack: Stack) -> Iterator[list[float]]:
    """Step times come in all the while; yields when each was accepted."""
    stopped, accepted = threading.Event(), list[float]()

    def send() -> None:
        step = 0
        while not stopped.wait(0.02):
            step += 1
            sample = {"time": time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime()), "step": step, "step_s": 2.0}
            body = {"cluster": "pod1", "job": "1", "restart": 0, "samples": [sample | {"rank": 0}]}
            post(stack, "signals/step-times", "signals", body, "--vouches", "kernel")
            accepted.append(time.monotonic())

    thread = threading.Thread(target=send)
    thread.start()
    try:
        yield accepted
    finally:
        stopped.set()
        thread.join()


def passphrase(scratch: Path) -> Path:
    file = scratch / "passphrase"
    file.write_text("a passphrase of the tests\n")
    file.chmod(0o600)
    return file


def healer(*words: str | Path, **environ: str) -> subprocess.CompletedProcess[str]:
    return run([*map(str, words)], clean_environ(**environ), timeout=240)


def test_the_machine_is_gone_and_its_backup_goes_on_elsewhere(scratch: Path) -> None:
    witness, secret = scratch / "witness.jsonl", passphrase(scratch)
    witness.touch()
    witness.chmod(0o666)
    settings = SETTINGS | {"HEALER_AUDIT_WITNESSES": f"file://{witness}"}
    for name in ("one", "two"):
        (scratch / name).mkdir(mode=0o711)
    with Stack(scratch / "one", data_dir=scratch / "one-data", **settings) as old:
        viewer = old.headers("viewer")
        node_pause = {"reason": "under the scope", "scope": "node", "name": "gpu0020"}
        post(old, "pauses", "operator", node_pause, "--name", "ann")
        asked = {"cluster": "pod1", "node": "gpu0020", "reason": "a loose cable"}
        held = post(old, "playbooks/drain/runs", "operator", asked, "--name", "ann")
        assert held["state"] == "held"
        with signals(old) as accepted:
            for number in range(1, 6):
                xid(old, number)
            begun = time.monotonic()
            made = old.run("backup", str(scratch / "b.tar"), "--passphrase-file", str(secret), "--json")
            ended = time.monotonic()
        during = [moment for moment in accepted if begun < moment < ended]
        assert len(during) > 20, "signals were accepted while the backup was made"
        manifest = json.loads(made.stdout)
        assert manifest["clusters"] == ["pod1"] and manifest["missing"] == []
        xid(old, 9)  # what is lost
        wait_until(lambda: get(old, "incidents?node=gpu0009")["items"], 20, what="an incident after it")
    assert witness.read_text().count("checkpoint") >= 1
    subprocess.run(["rm", "-rf", scratch / "one-data"], check=True)

    restored = healer(
        *("restore", scratch / "b.tar", "--data-dir", scratch / "two-data"),
        *("--passphrase-file", secret, "--json"),
    )
    assert restored.returncode == 0, restored.stderr
    document = json.loads(restored.stdout)
    assert document["asking"] >= 1

    with Stack(scratch / "two", data_dir=scratch / "two-data", **settings) as new:
        # The key came along: tokens of before still count. Sessions do not, and healer waits.
        assert new.http.get(f"{new.url}/api/v1/nodes", headers=viewer).status_code == 200
        (pause,) = [pause for pause in get(new, "pauses")["items"] if pause["scope"] == "all"]
        assert pause["reason"].startswith("restored from backup of 20") and pause["id"] == document["pause"]
        runs = get(new, "runs?limit=200")["items"]
        by_state = {run["id"]: run["state"] for run in runs if not run["shadow"]}
        # What the inbox still held is decided now, and held by the pause; nothing goes on.
        assert not {"running", "waiting"} & {*by_state.values()}, by_state
        assert by_state[held["id"]] == "stuck"
        assert get(new, "incidents?node=gpu0009")["items"] == []
        # What is heard again is decided again, and held: by the pause.
        xid(new, 9)
        again = wait_until(lambda: get(new, "runs?node=gpu0009")["items"], 20, what="a run for gpu0009")
        wait_until(
            lambda: get(new, "runs?node=gpu0009")["items"][0]["state"] == "held", 20, what="it is held"
        )
        assert again
        verified = new.run("audit", "verify", "--json")
        assert json.loads(verified.stdout)["gaps"], verified.stdout
        against = new.run("audit", "verify", "--against", str(witness), "--json")
        (gap,) = [gap for gap in json.loads(against.stdout)["gaps"] if gap["cluster"] == "pod1"]
        assert gap["lost"] > gap["head"], "the witness proves that something was lost"
        # A person looks, ends the pauses and lets the run go on: only now the node is drained.
        nodes = {node["name"]: node for node in get(new, "nodes?limit=500")["items"]}
        assert not [name for name, node in nodes.items() if "DRAIN" in str(node.get("slurm", ""))]
        for each in get(new, "pauses")["items"]:
            new.http.request(
                "DELETE", f"{new.url}/api/v1/pauses/{each['id']}?reason=looked",
                headers=new.headers("admin", "--name", "ann"),
            )  # fmt: skip
        post(new, f"runs/{held['id']}/retry", "operator", {"reason": "nobody did it"}, "--name", "ann")
        wait_until(
            lambda: "DRAIN" in json.dumps(get(new, "nodes/pod1/gpu0020")), 40, what="the node is drained"
        )  # fmt: skip


# --- killed in the middle of it ----------------------------------------------------------------------------


@pytest.fixture(scope="module")
def backup_file(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    """Of a database that takes a few seconds to load."""
    from tests.support.stack import lay_database, scratch_folder

    with scratch_folder() as folder:
        lay_database(folder / "data")
        with server_alone(folder / "data") as url:
            fill(url)
            words = ("backup", folder / "b.tar", "--without-keys")
            done = healer(*words, HEALER_DATABASE_URL=url, HEALER_DATA_DIR=str(folder / "data"))
            assert done.returncode == 0, done.stderr
            kill_a_backup(url, folder)
        yield folder / "b.tar"


def fill(url: str) -> None:
    db = sa.create_engine(url)
    with db.begin() as conn:
        conn.execute(
            sa.text(
                "INSERT INTO inbox (cluster, kind, node, digest, arrived_at, doc) SELECT 'pod1', 'kernel',"
                " 'gpu0001', sha256(n::text::bytea), now(), jsonb_build_object('x', repeat(md5(n::text), 8))"
                " FROM generate_series(1, 150000) AS n"
            )
        )
    db.dispose()


def kill_a_backup(url: str, folder: Path) -> None:
    """SIGKILL while it writes: no file, or a whole one of before; and the next backup is well."""
    environ = clean_environ(HEALER_DATABASE_URL=url, HEALER_DATA_DIR=str(folder / "data"))
    before = (folder / "b.tar").read_bytes()
    for target in (folder / "new.tar", folder / "b.tar"):
        process = subprocess.Popen(
            [sys.executable, "-m", "healer", "backup", str(target), "--without-keys"], env=environ, cwd=ROOT
        )
        part = target.with_name(PART)
        wait_until(lambda part=part: part.exists() and part.stat().st_size > 2_000_000, 60, what="it writes")
        process.kill()
        process.wait()
    assert not (folder / "new.tar").exists()
    assert (folder / "b.tar").read_bytes() == before
    words = ("backup", folder / "new.tar", "--without-keys")
    done = healer(*words, HEALER_DATABASE_URL=url, HEALER_DATA_DIR=str(folder / "data"))
    assert done.returncode == 0, done.stderr
    assert not [path for path in folder.iterdir() if path.name.endswith(".part")]


def revision(data_dir: Path) -> str | None:
    with server_alone(data_dir) as url:
        db = sa.create_engine(url)
        with db.connect() as conn:
            found = (
                conn.scalar(sa.text("SELECT version_num FROM alembic_version"))
                if sa.inspect(conn).has_table("alembic_version")
                else None
            )
        db.dispose()
        return found


def test_killed_while_it_loads_the_database_is_empty(backup_file: Path, scratch: Path) -> None:
    data = scratch / "data"
    process = subprocess.Popen(
        [sys.executable, "-m", "healer", "restore", str(backup_file), "--data-dir", str(data)],
        env=clean_environ(), cwd=ROOT, stderr=subprocess.DEVNULL,
    )  # fmt: skip
    wait_until(lambda: loading(process.pid), 60, what="psql loads")
    time.sleep(0.5)
    process.kill()
    process.wait()
    wait_until(lambda: revision(data) is None, 30, what="nothing of it is there")
    done = healer("restore", backup_file, "--data-dir", data)
    assert done.returncode == 0, done.stderr


def loading(pid: int) -> bool:
    """Whether its psql runs."""
    children = Path(f"/proc/{pid}/task/{pid}/children").read_text().split()
    return any("psql" in name_of(int(child)) for child in children)


_KILLED = """
import importlib, os, signal, sys
from healer.commands.cli import main
module = importlib.import_module("healer.backups.put_back")
setattr(module, sys.argv[1], lambda *_, **__: os.kill(os.getpid(), signal.SIGKILL))
main(sys.argv[2:])
"""


@pytest.mark.parametrize("where", ["_write_files", "hold_back_database"])
def test_killed_before_it_is_held_back_no_healer_starts_on_it(
    where: str, backup_file: Path, scratch: Path
) -> None:
    data = scratch / "data"
    killed = subprocess.run(
        [sys.executable, "-c", _KILLED, where, "restore", str(backup_file), "--data-dir", str(data)],
        env=clean_environ(), cwd=ROOT, timeout=240, check=False,
    )  # fmt: skip
    assert killed.returncode == -signal.SIGKILL
    assert str(revision(data)).startswith("restoring-")
    up = healer("up", "--data-dir", data, "--listen", f"127.0.0.1:{20_000 + os.getpid() % 10_000}")
    assert (up.returncode, up.stderr.splitlines()[-1]) == (
        1, "healer: a restore into this database was interrupted: run `healer restore` again.",
    )  # fmt: skip
    again = healer("restore", backup_file, "--data-dir", data)
    assert again.returncode == 0, again.stderr
    assert not str(revision(data)).startswith("restoring-")
    second = healer("restore", backup_file, "--data-dir", data)
    assert "not empty: --replace drops" in second.stderr


def test_a_healer_that_runs_is_not_restored_over(backup_file: Path, scratch: Path) -> None:
    with Stack(scratch, **SETTINGS) as stack:
        done = healer("restore", backup_file, "--data-dir", stack.data_dir, "--replace")
        assert done.returncode == 1
        assert "another healer (process" in done.stderr


def test_a_folder_keeps_the_newest_backups_and_nothing_else_is_deleted(scratch: Path) -> None:
    with Stack(scratch, **SETTINGS) as stack:
        folder = scratch / "backups"
        folder.mkdir()
        (folder / "healer-notes.tar").write_text("of a person")
        for name in ("healer-20250101T000000Z.tar", "healer-20250102T000000Z.tar"):
            (folder / name).write_text("old")
        made = stack.run("backup", str(folder), "--without-keys", "--keep", "2")
        names = sorted(path.name for path in folder.iterdir())
        assert names[0] == "healer-20250102T000000Z.tar" and names[2] == "healer-notes.tar", names
        assert len(names) == 3 and "deleted: " in made.stdout
        assert "not in it: token-key" in made.stdout
        both = stack.run("backup", str(folder), check=False)
        assert both.returncode == 2 and "--without-keys" in both.stderr
