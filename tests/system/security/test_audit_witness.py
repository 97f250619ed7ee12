"""An attacker with the database, the data directory and the stolen key still cannot rewrite the audit
unseen: each kind of witness shows it. `verify` alone, which asks only what the attacker holds, stays
green."""

import json
import socket
import ssl
import subprocess
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import UTC, datetime, timedelta
from pathlib import Path

import msgspec
import pytest
import sqlalchemy as sa

from healer.adapters.postgres.audit_rows import PostgresChain, append_many
from healer.adapters.postgres.tables import audit_chain, audit_checkpoints, audit_records, audit_unsealed
from healer.adapters.signing import CHECKPOINT_FILE, CheckpointFile, PositionFile, load_signer
from healer.adapters.witnesses import witness_at, witnessed_lines
from healer.audit import Deliveries, Sealer
from healer.ports.audit_store import Witness, WitnessAway
from tests.support.audit import healer, record, sign_again, unguarded
from tests.support.processes import clean_environ, unlogged
from tests.support.rsyslog import RSYSLOGD
from tests.support.snippets import snippet
from tests.support.tls import certificates
from tests.support.tsa import time_stamps
from tests.support.up import Stack
from tests.support.wait import wait_until

COUNT = 120
KINDS = ("file", "syslog", "database", "stamps")


class Place:
    """A witness: where healer sends to, and what the auditor reads."""

    def __init__(self, address: str, read_from: str) -> None:
        self.witness: Witness = witness_at(address)
        self.address, self.read_from = address, read_from


@pytest.fixture(params=KINDS)
def place(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Place]:
    if request.param == "file":
        path = tmp_path / "witness.jsonl"
        path.touch()
        yield Place(f"file://{path}", str(path))
    elif request.param == "syslog":
        with rsyslog(tmp_path) as (port, log):
            yield Place(f"syslog://127.0.0.1:{port}", str(log))
    elif request.param == "stamps":
        kept = tmp_path / "stamps.jsonl"
        kept.touch()
        with time_stamps(tmp_path / "tsa") as (url, root):
            address = f"rfc3161+{url}?keep={kept}&ca={root}"
            yield Place(address, address)
    else:
        admin = request.getfixturevalue("admin")
        engine = request.getfixturevalue("empty_database")
        yield second_database(engine, admin)
        with engine.begin() as conn:
            conn.execute(sa.text("DROP TABLE healer_witness"))
        admin.execute(sa.text("DROP ROLE healer_witness"))  # the server is shared with other tests


def second_database(engine: sa.Engine, admin: sa.Connection) -> Place:
    """With the table and the role of docs/audit.md: who writes may neither read nor change."""
    admin.execute(sa.text("DROP ROLE IF EXISTS healer_witness"))
    with engine.begin() as conn:
        for statement in filter(str.strip, snippet("audit.md", "Witnesses").split(";")):
            if "CREATE ROLE" in statement:
                admin.execute(sa.text(statement))
            else:
                conn.execute(sa.text(statement))
        owner = conn.scalar(sa.text("SELECT current_user"))
    admin.execute(sa.text(f'GRANT healer_witness TO "{owner}"'))
    plain = engine.url.set(drivername="postgresql")
    # The tests' server knows logins by the kernel's word: the owner takes the role as it connects.
    mine = plain.update_query_dict({"options": "-crole=healer_witness"})
    return Place(mine.render_as_string(hide_password=False), plain.render_as_string(hide_password=False))


@contextmanager
def rsyslog(folder: Path) -> Iterator[tuple[int, Path]]:
    """A real rsyslogd that takes RFC 5424 by TCP."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    log, conf = folder / "remote.log", folder / "remote.conf"
    log.touch()
    conf.write_text(
        f'module(load="imtcp")\ninput(type="imtcp" port="{port}" address="127.0.0.1")\n'
        f'action(type="omfile" file="{log}")\n'
    )
    command = unlogged(RSYSLOGD, "-n", "-f", str(conf), "-i", str(folder / "remote.pid"))
    process = subprocess.Popen(command, env=clean_environ(), stderr=subprocess.DEVNULL)
    try:
        wait_until(lambda: listens(port), 30, what="rsyslogd listens")
        yield port, log
    finally:
        process.terminate()
        process.wait(30)


def listens(port: int) -> bool:
    with socket.socket() as probe:
        return probe.connect_ex(("127.0.0.1", port)) == 0


class Site:
    """One installation: its chain in PostgreSQL, its data directory, its witness."""

    def __init__(self, engine: sa.Engine, data: Path, place: Place) -> None:
        self.engine, self.data, self.place = engine, data, place
        self.file = CheckpointFile(data / CHECKPOINT_FILE)
        self.deliver = Deliveries(place.witness, self.file, PositionFile(data / "position"), lambda: None)
        self.known = {
            "HEALER_DATABASE_URL": engine.url.render_as_string(hide_password=False),
            "HEALER_DATA_DIR": str(data),
        }

    def work(self, count: int, at: datetime | None = None) -> None:
        """Records, sealed and signed."""
        self.fill(count, at)
        sealer = Sealer(PostgresChain(self.engine), load_signer(self.data), checkpoint_file=self.file)
        sealer.seal_once()
        sealer.close()

    def fill(self, count: int, at: datetime | None = None) -> None:
        made = [record(number, stored=False) for number in range(1, count + 1)]
        with self.engine.begin() as conn:
            append_many(conn, [one if at is None else msgspec.structs.replace(one, at=at) for one in made])

    def resign(self) -> None:
        """With the stolen key."""
        sign_again(self.engine, load_signer(self.data), self.data / CHECKPOINT_FILE)

    def verify(self, *words: str) -> tuple[int, str]:
        done = healer("audit", "verify", *words, **self.known)
        return done.returncode, done.stdout + done.stderr

    def against(self) -> tuple[int, str]:
        return self.verify("--against", self.place.read_from)


@pytest.fixture
def site(fresh_database: sa.Engine, tmp_path: Path, place: Place) -> Site:
    made = Site(fresh_database, tmp_path / "data", place)
    made.work(COUNT)
    made.deliver()
    wait_until(lambda: list(witnessed_lines(place.read_from)), 30, what="the witness has it")
    return made


def test_an_honest_chain_is_green(site: Site) -> None:
    status, said = site.verify("--against", site.place.read_from, "--json")
    assert status == 0, said
    assert json.loads(said)["signed"] == {"pod1": COUNT}


def test_a_cut_tail(site: Site) -> None:
    with unguarded(site.engine) as conn:
        conn.execute(sa.delete(audit_checkpoints))
        conn.execute(sa.delete(audit_chain).where(audit_chain.c.seq > COUNT - 20))
        conn.execute(sa.delete(audit_records).where(audit_records.c.id > COUNT - 20))
    site.resign()
    assert site.verify()[0] == 0, "who holds all that the installation holds fools the installation"
    status, said = site.against()
    assert status == 1
    assert f"the chain ends at seq {COUNT - 20}: its end is cut off" in said


def test_a_chain_that_is_rewritten_and_signed_with_the_stolen_key(site: Site) -> None:
    with unguarded(site.engine) as conn:
        conn.execute(sa.text("UPDATE audit_records SET actor = 'somebody' WHERE id = 5"))
    site.resign()
    assert site.verify()[0] == 0
    status, said = site.against()
    assert status == 1
    assert "is not what was signed on" in said
    # Also after the new history was sent to the witness: it keeps the old one.
    site.deliver()
    assert site.against()[0] == 1


def test_a_key_that_the_witness_never_saw(site: Site) -> None:
    (site.data / "audit-key").unlink()
    site.work(1)
    assert site.verify()[0] == 0
    status, said = site.against()
    assert (status, "was signed by an unknown key" in said) == (1, True)


@pytest.mark.parametrize("place", ["file"], indirect=True)
@pytest.mark.parametrize("is_queue_emptied", [False, True])
def test_a_sealer_that_was_stopped(site: Site, is_queue_emptied: bool) -> None:
    site.fill(3, datetime.now(UTC) - timedelta(minutes=2))
    if is_queue_emptied:
        with site.engine.begin() as conn:
            conn.execute(sa.delete(audit_unsealed))
    status, said = site.against()
    assert status == 1
    assert ("was never sealed and will not be" if is_queue_emptied else "the sealer stopped") in said


@pytest.mark.parametrize("place", ["file"], indirect=True)
def test_a_sealer_that_stopped_signing(site: Site) -> None:
    site.fill(3, datetime.now(UTC) - timedelta(minutes=5))
    sealer = Sealer(PostgresChain(site.engine), load_signer(site.data))
    sealer.seal_once()
    assert site.verify()[0] == 0
    status, said = site.against()
    assert (status, "no checkpoint follows the records since" in said) == (1, True)


def seal_by_a_clock_behind(site: Site, by: timedelta) -> None:
    """One more record, sealed as if it were so long ago; the witness does not get it yet."""
    sealer = Sealer(
        PostgresChain(site.engine), load_signer(site.data), checkpoint_file=site.file,
        now=lambda: datetime.now(UTC) - by,
    )  # fmt: skip
    site.fill(1)
    sealer.seal_once()
    sealer.close()


@pytest.mark.parametrize("place", ["file"], indirect=True)
def test_checkpoints_withheld_from_the_witness_are_reported(site: Site) -> None:
    seal_by_a_clock_behind(site, timedelta(minutes=10))
    status, said = site.against()
    assert (status, f"of seq {COUNT + 1}" in said, "never reached the witness" in said) == (1, True, True)
    site.deliver()
    assert site.against()[0] == 0


@pytest.mark.parametrize("place", ["stamps"], indirect=True)
def test_writer_of_the_stamp_file_cannot_backdate_a_line(site: Site, tmp_path: Path) -> None:
    """An authority stamps new checkpoints only. A changed line has no stamp."""
    seal_by_a_clock_behind(site, timedelta(days=2))
    site.deliver()
    assert f"of seq {COUNT + 1}" in site.against()[1]
    kept = tmp_path / "stamps.jsonl"
    assert len(list(witnessed_lines(str(kept)))) == 2, "as a file it has both"
    kept.write_bytes(kept.read_bytes().replace(b'"seq":120', b'"seq":119'))
    assert "holds no checkpoint" in site.against()[1]


def test_a_witness_that_was_away_gets_all(site: Site) -> None:
    """Nothing is lost, and the position outlives the process."""
    away = Deliveries(_Away(), site.file, PositionFile(site.data / "position"), lambda: None)
    for _ in range(3):
        site.work(1)
        with pytest.raises(WitnessAway):
            away()
    Deliveries(site.place.witness, site.file, PositionFile(site.data / "position"), lambda: None)()
    wanted = [f'"seq":{COUNT + more}' for more in (0, 1, 2, 3)]

    def has_all() -> bool:
        text = b"".join(witnessed_lines(site.place.read_from)).decode()
        return [text.count(one) for one in wanted] == [1, 1, 1, 1]

    wait_until(has_all, 30, what="each checkpoint came once")


class _Away:
    name = "away"

    def send(self, lines: object) -> None:
        raise WitnessAway("not there")


@pytest.mark.parametrize("place", ["database"], indirect=True)
def test_the_role_of_a_second_database_may_only_insert(site: Site) -> None:
    engine = sa.create_engine(
        site.place.address.replace("postgresql:", "postgresql+psycopg:"), poolclass=sa.NullPool
    )
    for statement in ("SELECT * FROM healer_witness", "DELETE FROM healer_witness", "TRUNCATE healer_witness",
                      "UPDATE healer_witness SET line = 'x'"):  # fmt: skip
        with pytest.raises(sa.exc.ProgrammingError, match="permission denied"), engine.begin() as conn:
            conn.execute(sa.text(statement))


def test_a_mount_that_is_missing_is_no_witness(tmp_path: Path) -> None:
    with pytest.raises(WitnessAway, match="No such file"):
        witness_at(f"file://{tmp_path}/other-host/healer.jsonl").send([b"{}\n"])
    assert list(tmp_path.iterdir()) == []


def test_syslog_by_tls(tmp_path: Path) -> None:
    made, taken = certificates(tmp_path), []
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(made.server)
    with socket.create_server(("127.0.0.1", 0)) as server:
        port = server.getsockname()[1]

        def serve() -> None:
            for _ in range(2):
                with server.accept()[0] as plain:
                    try:
                        with context.wrap_socket(plain, server_side=True) as secured:
                            while part := secured.recv(65536):
                                taken.append(part)
                            secured.unwrap()
                    except OSError:
                        continue

        thread = threading.Thread(target=serve, daemon=True)
        thread.start()
        trusted = witness_at(f"syslog+tls://127.0.0.1:{port}?ca={made.authority}")
        trusted.send([b'{"checkpoint":{}}\n'])
        with pytest.raises(WitnessAway, match="certificate"):
            witness_at(f"syslog+tls://127.0.0.1:{port}").send([b"{}\n"])
        thread.join(10)
    frame = b"".join(taken)
    length, _, message = frame.partition(b" ")
    assert int(length) == len(message)
    assert message.startswith(b"<110>1 20")
    assert message.endswith(b' healer - checkpoint - {"checkpoint":{}}')


@pytest.mark.parametrize(
    "address", ["file://host/x", "ftp://x/y", "syslog://host", "rfc3161+https://host", "/path", ""]
)
def test_addresses_of_no_kind_are_refused(address: str) -> None:
    with pytest.raises(ValueError, match="file:///PATH"):
        witness_at(address)


def test_the_worker_seals_and_serves_its_witness(scratch: Path) -> None:
    """The whole product as it runs; the scheduler has no key."""
    kept = scratch / "witness.jsonl"
    kept.touch()
    kept.chmod(0o666)
    stack = Stack(scratch, HEALER_SLURM_ADAPTERS="sim", HEALER_AUDIT_WITNESSES=f"file://{kept}").start()
    try:
        headers = stack.headers("auditor")

        def sealed() -> bool:
            page = stack.http.get(f"{stack.url}/api/v1/audit", headers=headers).json()["items"]
            return bool(page) and all(item["seq"] for item in page)

        wait_until(sealed, 30, what="the worker seals")
        ready = stack.http.get(f"{stack.url}/readyz").json()["checks"]
        assert ready["seal"] == {"ok": True, "text": "the audit is sealed and witnessed"}
    finally:
        stack.stop()
    # The heads were signed at the end, and the witness had them.
    assert b'"seq":' in b"".join(witnessed_lines(str(kept)))
