"""Two versions of healer on one database: a rolling upgrade, and a way back, and nothing is lost.

The next version is made here: this one's commit with a migration that older healers work with, and with
incidents that have one more field. Versions before this one do not run beside it: its last migration changes
columns that they write.
"""

import os
import re
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from healer.adapters.postgres import migrate
from healer.adapters.postgres.roles import login_url
from healer.embedded import running
from tests.support.processes import descendants
from tests.support.stack import scratch_folder
from tests.support.up import ROOT, UP, Stack
from tests.support.wait import wait_until

NEXT = "9000"
MIGRATION = f'''"""What the next version adds."""

from alembic import op

revision = "{NEXT}"
down_revision = "{migrate.head()}"
branch_labels = None
depends_on = None
keeps_older = True


def upgrade() -> None:
    op.execute("ALTER TABLE incidents ADD COLUMN of_next text NOT NULL DEFAULT 'by the next version'")
    op.execute("CREATE INDEX incidents_of_next ON incidents (of_next)")
    op.execute("CREATE TABLE of_next (id bigint PRIMARY KEY)")


def downgrade() -> None:
    op.execute("DROP TABLE of_next")
    op.execute("ALTER TABLE incidents DROP COLUMN of_next")
'''


def lay_next(folder: Path) -> Path:
    made = folder / "next"
    made.mkdir()
    commit = subprocess.run(["git", "archive", "HEAD"], cwd=ROOT, capture_output=True, check=True).stdout
    subprocess.run(["tar", "-x", "-C", made], input=commit, check=True)
    (made / "migrations/versions" / f"{NEXT}_next.py").write_text(MIGRATION)
    model = made / "healer/model/incident.py"
    text, fields = re.subn(
        r"(class Incident\(.*?\n    id: str\n)",
        r'\1    of_next: str = "next"\n',
        model.read_text(),
        count=1,
        flags=re.S,
    )
    assert fields == 1
    model.write_text(text)
    return made


class Site:
    """One data directory, and both versions."""

    def __init__(self, folder: Path) -> None:
        self.old = Stack(folder, forked=False, HEALER_SLURM_ADAPTERS="sim", HEALER_MODE="auto")
        # Without -P the current folder's healer would be found first.
        command = ("-P", *UP)
        self.new = Stack(folder, command=command, data_dir=self.old.data_dir)
        self.new.environ = self.old.environ | {"PYTHONPATH": str(lay_next(folder))}

    def of_next(self, *words: str, **environ: str) -> subprocess.Popen[str]:
        return subprocess.Popen(
            [sys.executable, "-P", "-m", "healer", *words],
            env=self.new.environ | environ, cwd=self.old.data_dir, stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT, text=True,
        )  # fmt: skip

    def worker_of_next(self) -> subprocess.Popen[str]:
        """With the login and the broker that `healer up` gives its own."""
        here = running.find(self.old.data_dir)
        urls = {
            "HEALER_DATABASE_URL": login_url(here.database_url, "healer_worker"),
            "HEALER_REDIS_URL": here.broker_url,
        }
        return self.of_next("worker", **urls)

    def said_by_next(self, *words: str) -> str:
        done = self.of_next(*words)
        said, _ = done.communicate(timeout=120)
        assert done.returncode == 0, said
        return said


def lose(stack: Stack, node: str) -> None:
    """A GPU of the node falls off the bus, as a relay that vouches for the kernel says."""
    line = "NVRM: Xid (PCI:0000:9b:00): 79, pid='<unknown>', GPU has fallen off the bus."
    body = {"cluster": "pod1", "node": node, "boot_id": "b", "entries": [{"line": line, "seq": 1}]}
    headers = stack.headers("signals", "--vouches", "kernel")
    sent = stack.http.post(f"{stack.url}/api/v1/signals/kernel-log", headers=headers, json=body)
    assert sent.status_code == 202, sent.text


def lost(stack: Stack) -> set[str]:
    """The nodes with an incident of a lost GPU."""
    answer = stack.http.get(f"{stack.url}/api/v1/incidents?limit=100", headers=stack.headers("viewer"))
    items = answer.json()["items"]
    return {each["root"]["node"] for each in items if each["rule"] == "gpu-lost"}


def drained(stack: Stack, node: str) -> bool:
    answer = stack.http.get(f"{stack.url}/api/v1/nodes/pod1/{node}", headers=stack.headers("viewer"))
    return "DRAIN" in str(answer.json())


@contextmanager
def frozen(stack: Stack, part: str) -> Iterator[None]:
    """The part does nothing meanwhile, and is not replaced."""
    pid = stack.pids()[part]
    pids = {pid, *descendants(pid)}
    for each in pids:
        os.kill(each, signal.SIGSTOP)
    try:
        yield
        assert stack.pids()[part] == pid
    finally:
        for each in pids:
            os.kill(each, signal.SIGCONT)


def test_parts_of_two_versions_work_beside_each_other_and_the_older_takes_over_again() -> None:
    with scratch_folder("/var/tmp") as folder:
        site = Site(folder)
        with site.old as old:
            lose(old, "gpu0001")
            wait_until(lambda: drained(old, "gpu0001"), 60, what="this version drains")
            said = site.said_by_next("db", "upgrade", "--plan")
            assert NEXT in said and "Parts of the earlier version can continue" in said
            assert NEXT in site.said_by_next("db", "upgrade")
            worker = site.worker_of_next()
            try:
                with frozen(old, "worker"):
                    lose(old, "gpu0002")
                    wait_until(
                        lambda: drained(old, "gpu0002") or worker.poll() is not None,
                        40, what="the next version's worker drains",
                    )  # fmt: skip
            finally:
                worker.terminate()
                said, _ = worker.communicate(timeout=30)
            assert worker.returncode in (0, -signal.SIGTERM) and drained(old, "gpu0002"), said
            assert lost(old) == {"gpu0001", "gpu0002"}
        with site.new as new:
            lose(new, "gpu0003")
            wait_until(lambda: "gpu0003" in lost(new), 60, what="the next version hears")
        back = Stack(
            folder, data_dir=site.old.data_dir, forked=False, HEALER_SLURM_ADAPTERS="sim", HEALER_MODE="auto"
        )
        with back:
            lose(back, "gpu0004")
            wait_until(lambda: "gpu0004" in lost(back), 60, what="this version hears again")
            assert lost(back) == {"gpu0001", "gpu0002", "gpu0003", "gpu0004"}
            assert back.run("audit", "verify").returncode == 0
