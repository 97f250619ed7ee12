"""Slurm's accounting database for a real Slurm in `folder`/s: slurmdbd and MariaDB, on ports of this machine.

Needs Debian's mariadb-server, and slurmdbd with its plugins, which may lie anywhere.
"""

import os
import shutil
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from healer.embedded.user import system_users
from tests.support.wait import wait_until

_NOWHERE = subprocess.DEVNULL
_DBD = """\
DbdHost=localhost
DbdAddr=127.0.0.1
DbdPort={port}
AuthType=auth/munge
AuthInfo=socket={munge}
SlurmUser={user}
PidFile={folder}/slurmdbd.pid
LogFile={folder}/slurmdbd.log
PluginDir={plugins}
StorageType=accounting_storage/mysql
StorageHost=127.0.0.1
StoragePort={sql_port}
StorageUser=slurm
StoragePass=slurm
StorageLoc=slurm_acct
"""


@contextmanager
def accounting(folder: Path, slurmdbd: str, plugins: str, port: int) -> Iterator[dict[str, str]]:
    """Settings of slurm.conf, for a Slurm that starts and ends within. It takes `port` and the next."""
    munge = folder.resolve() / "s/run/munge.sock"
    running: list[subprocess.Popen[bytes]] = []
    try:
        running.append(_mariadb(folder, port + 1))
        running.append(_slurmdbd(folder, slurmdbd, plugins, port, munge))
        yield {
            "AccountingStorageType": "accounting_storage/slurmdbd",
            "AccountingStorageHost": "127.0.0.1",
            "AccountingStoragePort": str(port),
            "AccountingStoragePass": str(munge),
        }
    finally:
        for process in reversed(running):
            process.terminate()
            process.wait()


def _mariadb(folder: Path, port: int) -> "subprocess.Popen[bytes]":
    data, socket = folder / "sql", folder / "sql.sock"
    users = ["--user=root", f"--datadir={data}"]
    install = ["mariadb-install-db", "--no-defaults", *users, "--skip-test-db"]
    subprocess.run(install, check=True, stdout=_NOWHERE, stderr=_NOWHERE)
    place = [
        f"--socket={socket}",
        f"--port={port}",
        "--bind-address=127.0.0.1",
        f"--pid-file={folder}/sql.pid",
    ]
    command = ["mariadbd", "--no-defaults", *users, *place]
    process = subprocess.Popen(command, stdout=_NOWHERE, stderr=_NOWHERE)
    wait_until(socket.exists)
    sql = "".join(
        f"CREATE USER slurm@'{host}' IDENTIFIED BY 'slurm'; GRANT ALL ON slurm_acct.* TO slurm@'{host}';"
        for host in ("127.0.0.1", "localhost")
    )
    subprocess.run(["mariadb", "--no-defaults", f"--socket={socket}", "-e", sql], check=True)
    return process


def _slurmdbd(folder: Path, program: str, plugins: str, port: int, munge: Path) -> "subprocess.Popen[bytes]":
    conf = folder / "slurmdbd.conf"
    worker = system_users().worker
    user = worker.name if worker.drop and worker.can_enter(folder) else "root"  # as slurmctld has it
    text = _DBD.format(port=port, munge=munge, user=user, folder=folder, plugins=plugins, sql_port=port + 1)
    conf.write_text(text)
    conf.chmod(0o600)
    shutil.chown(conf, user)
    env = dict(os.environ, SLURM_CONF=str(conf))
    process = subprocess.Popen([program, "-D"], env=env, stderr=subprocess.DEVNULL)
    log = folder / "slurmdbd.log"
    wait_until(lambda: log.exists() and "started" in log.read_text())
    return process
