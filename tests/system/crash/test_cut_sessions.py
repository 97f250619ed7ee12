"""A host that dies with its network: its database sessions end soon, and so do the locks that they hold."""

import os
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager

import pytest
import sqlalchemy as sa

from healer.adapters.postgres.audit_rows import PostgresChain
from healer.adapters.postgres.engine import make_engine
from healer.embedded.database_logins import OWNER, SUPERUSER
from healer.embedded.postgres import LOGINS, Postgres
from healer.embedded.user import name_of
from tests.support.ha import ip
from tests.support.stack import lay_database, scratch_folder
from tests.support.up import ROOT
from tests.support.wait import wait_until

#: A network for documentation, which no site has; the server's end and the other host's.
SERVER, OTHER, HOST, LINK = "203.0.113.1", "203.0.113.2", "healer-cut", "healer-cut-a"
#: It takes the sealer's lock and says so; then it waits for an answer, or for nothing.
_HOLDS = """
import sys, time
import sqlalchemy as sa
from healer.adapters.postgres.audit_rows import SEALER_LOCK
from healer.adapters.postgres.engine import make_engine
conn = make_engine(sys.argv[1], name="sealer").connect()
conn.execute(sa.select(sa.func.pg_advisory_lock(SEALER_LOCK)))
conn.commit()
time.sleep(1)  # what came is acknowledged
print("held", flush=True)
conn.execute(sa.text(sys.argv[2]))
conn.commit()
time.sleep(600)
"""
_LAST = sa.text("SELECT query FROM pg_stat_activity WHERE application_name = 'sealer'")


class NetworkedPostgres(Postgres):
    """The embedded server, at an address of a network too."""

    def _settings(self) -> list[str]:
        return [*super()._settings(), "-c", f"listen_addresses={SERVER}"]

    def let_in(self) -> None:
        with (self.pgdata / "pg_hba.conf").open("a") as access:
            access.write(f"host all all {SERVER}/24 trust\n")
        admin = sa.create_engine(self.url_of("postgres", SUPERUSER))
        with admin.begin() as conn:
            conn.execute(sa.text("SELECT pg_reload_conf()"))
        admin.dispose()


@contextmanager
def host() -> Iterator[None]:
    """Another host with a cable to this one."""
    ip("netns", "delete", HOST, check=False)
    ip("link", "delete", LINK, check=False)
    ip("netns", "add", HOST)
    try:
        ip("link", "add", LINK, "type", "veth", "peer", "name", "eth0", "netns", HOST)
        ip("address", "add", f"{SERVER}/24", "dev", LINK)
        ip("link", "set", LINK, "up")
        ip("-n", HOST, "address", "add", f"{OTHER}/24", "dev", "eth0")
        ip("-n", HOST, "link", "set", "eth0", "up")
        yield
    finally:
        ip("link", "delete", LINK)
        ip("netns", "delete", HOST)


@pytest.fixture
def server() -> Iterator[NetworkedPostgres]:
    with host(), scratch_folder() as folder:
        lay_database(folder / "data")
        logins = {name_of(os.geteuid()): (*LOGINS, SUPERUSER)}
        made = NetworkedPostgres(folder / "data", logins=logins)
        made.start()
        try:
            made.let_in()
            yield made
        finally:
            made.stop()


def _last_statement(engine: sa.Engine) -> str:
    with engine.connect() as conn:  # one transaction sees the sessions as they were at its first look
        return conn.scalar(_LAST) or ""


@pytest.mark.parametrize(
    "doing", ["SELECT 1", "SELECT pg_sleep(5)"], ids=["at rest", "an answer is on its way"]
)
def test_the_sealers_lock_of_a_worker_that_died_with_its_network_is_free_within_seconds(
    server: NetworkedPostgres, doing: str
) -> None:
    """The server hears nothing of the session's end. By the kernel's keepalive that takes two hours, and by
    its repetitions of an unacknowledged answer a quarter of an hour."""
    url = f"postgresql://{OWNER}@{SERVER}/healer"
    command = ["ip", "netns", "exec", HOST, sys.executable, "-c", _HOLDS, url, doing]
    worker = subprocess.Popen(command, stdout=subprocess.PIPE, cwd=ROOT)
    engine = make_engine(server.url)
    chain = PostgresChain(engine)
    try:
        assert worker.stdout is not None
        assert worker.stdout.readline() == b"held\n"
        asks = doing if "sleep" in doing else "COMMIT"
        wait_until(lambda: _last_statement(engine) == asks, what=f"the worker's {asks}")
        if asks == "COMMIT":
            time.sleep(1)  # for its acknowledgement
        ip("link", "set", LINK, "down")
        worker.kill()
        worker.wait()
        assert not chain.lock(), "the server knows nothing yet"
        wait_until(chain.lock, 10, what="another worker seals", every_s=0.5)
        chain.unlock()
    finally:
        worker.kill()
        worker.wait()
        engine.dispose()
