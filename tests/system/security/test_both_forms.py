"""Attacks on the whole product, in both forms in which it is installed: `healer up`, and units of systemd.

The attacker has what a part has (its login of the database, the broker), a relay's token, or all that one
installation has. All slots are used from the begin, so what is drained has passed the caps.
"""

import hashlib
import os
import pickle
import re
import signal
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from datetime import UTC, datetime, timedelta
from pathlib import Path

import msgspec
import psycopg
import pytest
import redis
import sqlalchemy as sa
from kombu.messaging import Producer
from sqlalchemy.exc import ProgrammingError

from healer.adapters.postgres.audit_rows import append
from healer.adapters.postgres.inbox import PostgresInbox
from healer.adapters.postgres.tables import runs
from healer.adapters.signing import CHECKPOINT_FILE, load_signer
from healer.adapters.witnesses import witnessed_lines
from healer.audit import read_checkpoints
from healer.incidents.second_look import SECOND_LOOK
from healer.model import Evidence, Incident, Sense, audit_record
from healer.playbooks.advance import UNUSABLE
from healer.text import quoted
from tests.support.attacked import ASKED, AT_WORK, CANARY, CAP, DEAD, FORMS, Attacked, attacked, stopped
from tests.support.audit import healer, sign_again, unguarded
from tests.support.ledgers import PostgresBench, incident
from tests.support.looking import GPU
from tests.support.loop import lines
from tests.support.packaged import plain
from tests.support.processes import memory_holds
from tests.support.site import XID_48, XID_79, stays
from tests.support.stack import scratch_folder
from tests.support.stand_ins import StandIns
from tests.support.wait import wait_until
from workers.app import make_app, queue_name
from workers.broker_messages import ADVANCE

pytestmark = pytest.mark.crash


@pytest.fixture(scope="module", params=FORMS)
def product(request: pytest.FixtureRequest) -> Iterator[Attacked]:
    with scratch_folder() as folder, attacked(request.param, folder) as made:
        yield made


@pytest.fixture(scope="module")
def full(product: Attacked) -> str:
    """All slots are used, by a person's own drains: the last one's run."""
    last = [start(product, node) for node in sorted(OUT)][-1]
    wait_until(lambda: product.drained() == OUT, 30, what="the caps are used up")
    return last


OUT = {"gpu0001", "gpu0002"}
assert len(OUT) == CAP


def start(product: Attacked, node: str) -> str:
    body = {"node": node, "reason": "a person's own drain"}
    answer = product.post("/playbooks/drain/runs", body, product.headers("operator"))
    return answer.headers["location"].rpartition("/")[2]


def numbered(first: int, last: int) -> list[str]:
    return [f"gpu{number:04d}" for number in range(first, last + 1)]


# --- what a part has --------------------------------------------------------------------------------------


def test_the_worker_alone_holds_what_it_acts_with(product: Attacked) -> None:
    worker = product.pids()["worker"]
    for pid in product.processes():
        try:
            environ = Path(f"/proc/{pid}/environ").read_bytes()
        except OSError:
            continue  # a short command that has ended
        assert CANARY.encode() not in environ, pid
    holders = {part for part, pid in product.pids().items() if memory_holds(pid, CANARY.encode())}
    assert holders == {"worker"}
    os.kill(worker, signal.SIGKILL)
    after = successor(product, worker)
    wait_until(lambda: memory_holds(after, CANARY.encode()), 30, what="the successor holds it too")


def successor(product: Attacked, worker: int) -> int:
    """The process that follows an ended worker, once it is there."""

    def found() -> int:
        with suppress(OSError, AssertionError):  # the unit is restarted a second later
            after = product.pids().get("worker", worker)
            return after if after != worker else 0
        return 0

    return wait_until(found, 30, what="the worker has a successor")


def connect(product: Attacked, role: str) -> psycopg.Connection:
    return psycopg.connect(plain(product.database_url(role)), autocommit=True)


@pytest.mark.parametrize(
    "statement",
    [
        "UPDATE runs SET lease_until = now() + interval '1 year'",
        "UPDATE runs SET node = 'gpu0001'",
        "UPDATE runs SET shadow = false",
        "DELETE FROM runs",
        "DELETE FROM audit_records",
        "TRUNCATE audit_records",
        "UPDATE audit_records SET actor = 'somebody'",
        "DELETE FROM audit_unsealed",
        "INSERT INTO audit_chain VALUES ('pod1', 1, 1, '', '')",
        "UPDATE decisions SET outcome = 'allowed'",
        "DELETE FROM run_log",
        "INSERT INTO slots (cluster, node, run, unusable, granted_at) VALUES ('pod1', 'a', 'r', true, now())",
        "UPDATE slots SET released_at = now()",
        "UPDATE gate SET cluster = 'elsewhere'",
        "UPDATE tokens SET digest = 'x'",
        "ALTER TABLE audit_records DISABLE TRIGGER ALL",
        "CREATE TABLE mine (id int)",
        "ALTER ROLE healer_api SUPERUSER",
        "SET ROLE healer",
        "SET ROLE healer_worker",
        "SET ROLE healer_auditor",
        "SET SESSION AUTHORIZATION postgres",
        "COPY (SELECT 1) TO PROGRAM 'id'",
        "COPY runs FROM '/etc/passwd'",
        "SELECT pg_read_file('/etc/passwd')",
    ],
)
def test_the_api_s_role_may_not(product: Attacked, statement: str) -> None:
    with connect(product, "healer_api") as conn, pytest.raises(psycopg.errors.InsufficientPrivilege):
        conn.execute(statement.encode())


def test_a_run_of_another_node_cannot_be_made_of_one_that_was_allowed(product: Attacked) -> None:
    doc = '{"id": "r-forged", "cluster": "pod1", "playbook": "drain", "node": "a"}'
    put = (
        "INSERT INTO runs (id, cluster, playbook, node, state, shadow, created_at, doc) "
        "VALUES ('r-forged', 'pod1', 'drain', %s, 'done', false, now(), %s)"
    )
    with connect(product, "healer_api") as conn:
        with pytest.raises(psycopg.errors.InsufficientPrivilege, match="never becomes another"):
            conn.execute(put, ["b", doc])
        conn.execute(put, ["a", doc])
        with pytest.raises(psycopg.errors.InsufficientPrivilege, match="never becomes another"):
            conn.execute("UPDATE runs SET doc = jsonb_set(doc, '{node}', '\"b\"') WHERE id = 'r-forged'")


def asked(product: Attacked, **headers: str) -> int:
    return product.http.get(f"{product.url}/api/v1/nodes", headers=headers).status_code


def test_a_row_in_tokens_or_sessions_is_worthless_without_the_key(product: Attacked) -> None:
    """Whose making is on record, and sealed: the API's login writes records, too."""
    secret, cookie = "heal_f0f0f0f0_" + "x" * 43, "f0f0f0f0." + "y" * 43
    made = audit_record(
        "pod1", datetime.now(UTC), "me", "token.created", "token/f0f0f0f0", role="admin", name="me"
    )
    with sa.create_engine(product.database_url("healer_api"), poolclass=sa.NullPool).begin() as writes:
        append(writes, made)
    with connect(product, "healer_api") as conn:
        conn.execute(
            "INSERT INTO tokens (id, digest, role, name, created_at) "
            "VALUES ('f0f0f0f0', %s, 'admin', 'me', now())",
            [hashlib.sha256(secret.encode()).digest()],
        )
        conn.execute(
            "INSERT INTO sessions (digest, token, created_at, expires_at, id, seen_at, proven_at) "
            "VALUES (%s, 'f0f0f0f0', now(), now() + interval '1 day', 'x', now(), now())",
            [hashlib.sha256(cookie.encode()).digest()],
        )
    wait_until(lambda: product.sql("SELECT count(*) FROM audit_unsealed") == [(0,)], 30, what="all is sealed")
    assert asked(product, Authorization=f"Bearer {secret}") == 401
    assert asked(product, Cookie=f"healer_session={cookie}") == 401
    assert asked(product, **product.headers("viewer")) == 200, "one that was made"


def test_one_s_own_digest_beside_the_name_of_another_token_is_worthless(product: Attacked) -> None:
    """Who may write rows and has any token needs no key: the digest is copied."""

    def made(role: str) -> str:
        return product.run("token", "create", "--role", role).stdout.split()[-1]

    own = made("viewer")
    mine, of_session, of_row = own.split("_")[1], *(made("admin").split("_")[1] for _ in range(2))
    with connect(product, "healer_api") as conn:
        conn.execute(
            "INSERT INTO sessions (digest, token, created_at, expires_at, id, seen_at, proven_at) "
            "SELECT digest, %s, now(), now() + interval '1 day', 'y', now(), now() FROM tokens WHERE id = %s",
            [of_session, mine],
        )
        assert asked(product, Cookie=f"healer_session={own}") == 401
        columns = "role, name, cluster, node, job, created_at"
        row = conn.execute(f"SELECT {columns} FROM tokens WHERE id = %s".encode(), [of_row]).fetchone()
        taken = "DELETE FROM tokens WHERE id = ANY(%s) RETURNING id, digest"
        digests = dict(conn.execute(taken, [[mine, of_row]]).fetchall())
        put = f"INSERT INTO tokens (id, digest, {columns}) VALUES (%s, %s, %s, %s, %s, %s, %s, %s)".encode()
        conn.execute(put, [of_row, digests[mine], *(row or ())])
    assert asked(product, Authorization=f"Bearer {own}") == 401


# --- forged orders ----------------------------------------------------------------------------------------

#: What an attacker with access to Redis puts into the queue: no message, or one that lacks what each has.
NO_MESSAGES = (
    *(b"garbage", b"\xff\xfe", b"{}", b"[]", b"3", b"null", b'{"body": 3}', b'{"body": "", "headers": {}}'),
    b'{"body": "W10=", "headers": {}, "properties": {}}',
    b'{"body": "W10=", "headers": 3, "properties": {"delivery_tag": "a", "delivery_info": 3}}',
)
#: Instead of a list of names.
NO_NAMES: tuple[list[object], ...] = (
    [[ADVANCE, "gpu0003"]], [], [3], [None], ["none"], ["a\0b"], ["r" * 100_000], ["x"] * 99,
)  # fmt: skip


def queue_of(product: Attacked) -> redis.Redis:
    return redis.Redis.from_url(product.broker_url.replace("redis+socket", "unix"))


def forge_messages(product: Attacked) -> None:
    """What an attacker with access to the broker can send."""
    app = make_app(product.broker_url, "pod1")
    order = {"playbook": "drain", "node": "gpu0003", "cluster": "pod1", "state": "running"}
    for args in ([order], *NO_NAMES):
        app.send_task(ADVANCE, args=args)
    app.send_task(ADVANCE, kwargs={"run": "none", "node": "gpu0003"})
    for task in ("workers.tasks.drain", "healer.adapters.slurm.cli_client.CliScheduler.drain", "os.system"):
        app.send_task(task, args=["gpu0003", "healer:x inc:00000000 x"])
    app.send_task("celery.map", args=[{"task": "os.system", "args": ()}, ["true"]])
    app.send_task("celery.chain", args=[], link=app.signature("os.system", args=["true"]))
    with app.connection_for_write() as connection:
        Producer(connection).publish(
            pickle.dumps(order),
            routing_key=queue_name("pod1"),
            content_type="application/x-python-serialize",
            content_encoding="binary",
        )
    queue_of(product).lpush(queue_name("pod1"), *NO_MESSAGES)


@pytest.mark.usefixtures("full")
def test_forged_messages_have_no_effect(product: Attacked) -> None:
    forge_messages(product)
    queue = queue_of(product)
    wait_until(lambda: queue.llen(queue_name("pod1")) == 0, 30, what="the worker took them all")
    run = start(product, "gpu0003")
    wait_until(lambda: whys(product, run), 30, what="the worker goes on with what is asked properly")
    assert product.drained() == OUT
    assert "a message that names no runs is dropped" in product.log("worker")


def forge_row(product: Attacked, like: str, role: str = "healer_api", **fields: object) -> None:
    """A run in state `running`, written as that other one was, by a part's login."""
    with sa.create_engine(product.database_url(role), poolclass=sa.NullPool).begin() as conn:
        row = conn.execute(sa.select(runs).where(runs.c.id == like)).one()._asdict()
        new: dict[str, object] = {**fields, "state": "running", "epoch": 0}
        doc = {
            name: row["doc"][name] for name in row["doc"] if name not in ("ended_at", "lease_until", "why")
        }
        row |= {"ended_at": None, "lease_until": None, "wake_at": None, "doc": doc | new}
        row |= {name: value for name, value in new.items() if name in row}
        conn.execute(sa.insert(runs).values(row))


def whys(product: Attacked, *names: str) -> list[str]:
    """Why each of these runs waits, once all of them do."""
    shown = [product.get(f"/runs/{name}") for name in names]
    found = [str(run.get("why") or run.get("question") or "") for run in shown]
    return found if all(found) else []


@pytest.mark.parametrize(
    ("role", "nodes", "fields"),
    [
        ("healer_api", numbered(4, 10), {"approved_by": "root"}),
        ("healer_detector", numbered(22, 26), {"by": "healer", "approved_by": None}),
    ],
)
def test_forged_rows_are_asked_of_the_gate(
    product: Attacked, full: str, role: str, nodes: list[str], fields: dict[str, str | None]
) -> None:
    """An attacker with a part's login writes runs as if they had been allowed to start."""
    forged = {node: f"r-{role}-{node}" for node in nodes}
    for node, run in forged.items():
        forge_row(product, full, role, id=run, node=node, **fields)
    make_app(product.broker_url, "pod1").send_task(ADVANCE, args=[*forged.values()])
    found = wait_until(lambda: whys(product, *forged.values()), 30, what="the worker asked the gate for each")
    assert all("slots used" in why for why in found), found
    assert product.drained() == OUT


def try_as_api(product: Attacked, statement: str, **values: str) -> None:
    """What the API's login may write, it writes."""
    with suppress(ProgrammingError):
        product.sql(statement, "healer_api", **values)


def test_forged_slots_drain_no_third_node(product: Attacked, full: str) -> None:
    """An attacker with the API's role writes slots, ends runs, and forges results of steps: the caps are as
    full."""
    forged = [f"r-slot-{node}" for node in numbered(11, 14)]
    grant = (
        "INSERT INTO slots (cluster, node, run, unusable, granted_at) "
        "VALUES ('pod1', :node, :run, true, now())"
    )
    step = (
        "INSERT INTO run_log (run, at, step, event, doc) SELECT :run, at, step, event, "
        "doc || jsonb_build_object('run', CAST(:run AS text)) FROM run_log WHERE run = :like"
    )
    for run in forged:
        node = run.removeprefix("r-slot-")
        forge_row(product, full, id=run, node=node, approved_by="root")
        try_as_api(product, grant, node=node, run=run)
        try_as_api(product, step, run=run, like=full)
    try_as_api(product, "UPDATE slots SET released_at = now()")
    try_as_api(product, "DELETE FROM slots")
    ends = "UPDATE runs SET state = 'cancelled', ended_at = now() - interval '1 hour' WHERE id = :run"
    try_as_api(product, ends, run=full)
    make_app(product.broker_url, "pod1").send_task(ADVANCE, args=forged)
    found = wait_until(lambda: whys(product, *forged), 30, what="the worker asked the gate for each")
    assert all("slots used" in why for why in found), found
    assert product.drained() == OUT


def test_a_message_about_a_run_of_another_cluster_has_no_effect(product: Attacked, full: str) -> None:
    forge_row(product, full, id="r-of-pod2", node="gpu0031", cluster="pod2")
    app, queue = make_app(product.broker_url, "pod1"), queue_of(product)
    for run in ("r-of-pod2", "none"):
        app.send_task(ADVANCE, args=[run])
        wait_until(lambda: queue.llen(queue_name("pod1")) == 0, 20, what="the worker took the message")
    assert product.sql("SELECT epoch FROM runs WHERE id = 'r-of-pod2'") == [(0,)]
    assert product.drained() == OUT


# --- what a relay says ------------------------------------------------------------------------------------


def pages_of(product: Attacked, relay: str) -> list[str]:
    """The pages that name this sender."""
    rows = product.sql("SELECT id FROM messages WHERE id LIKE 'sender:%'")
    return [str(row[0]) for row in rows if relay in str(row[0])]


def of(product: Attacked, node: str, fault: str) -> list[dict[str, object]]:
    return [found for found in product.incidents(node) if found["fault"] == fault]


def is_calm(product: Attacked) -> bool:
    return product.drained() == OUT and product.get("/breaker")["state"] == "closed"


@pytest.mark.usefixtures("full")
def test_one_line_each_about_seven_nodes_passes_no_cap_and_opens_no_breaker(product: Attacked) -> None:
    relay, nodes = product.relay("rack 3 relay"), numbered(15, 21)
    for node in nodes:
        product.say(relay, node, XID_79.format(pci=GPU))
    wait_until(lambda: all(product.incidents(node) for node in nodes), 30, what="an incident each")
    wait_until(lambda: pages_of(product, "rack 3 relay"), 30, what="a page names the relay")
    stays(lambda: is_calm(product), 5.0, what="no cap is passed and no breaker opens")


def items(product: Attacked, path: str, name: str = "items", **query: str) -> list[dict[str, object]]:
    found = product.get(path, **query)[name]
    assert isinstance(found, list)
    return found


def programs_of(product: Attacked, node: str) -> StandIns:
    return next(each.programs for each in product.ssh.nodes if each.name == node)


@pytest.mark.usefixtures("full")
def test_a_node_that_is_asked_denies_what_a_relay_says_of_it(product: Attacked) -> None:
    """The worker's way to its nodes: a signed request by SSH."""
    relay = product.relay("rack 5 relay")
    programs = programs_of(product, ASKED)
    programs.has_gpu(f"{GPU}.0")
    programs.kmsg("usb 1-1: new device")
    product.say(relay, ASKED, XID_79.format(pci=GPU))

    def looked() -> list[str]:
        found = items(product, "/runs", node=ASKED)
        ended = [run["id"] for run in found if run["playbook"] == SECOND_LOOK and run["state"] == "done"]
        return [str(product.get(f"/runs/{run}")) for run in ended]

    [shown] = wait_until(looked, 90, what="the look has ended")
    assert "denies" in shown
    wait_until(lambda: pages_of(product, "rack 5 relay"), 30, what="a page names the relay")
    assert is_calm(product)
    [incident] = of(product, ASKED, "xid-79")
    assert "what the node itself denies" in str(incident["doubt"])


@pytest.mark.usefixtures("full")
def test_forged_words_of_dead_nodes_pass_no_cap(product: Attacked) -> None:
    """The API's login writes what is the nodes' own word to the detector; the worker cannot see it."""
    nodes, line = numbered(27, 28), XID_79.format(pci=GPU)
    engine = sa.create_engine(product.database_url("healer_api"), poolclass=sa.NullPool)
    forged = [seen for node in nodes for seen in lines(node, line, at=datetime.now(UTC))]
    assert PostgresInbox(engine, "pod1").add(forged) == len(nodes)

    def looks() -> list[str]:
        runs = [run for node in nodes for run in items(product, "/runs", node=node)]
        steps = [step for run in runs for step in items(product, f"/runs/{run['id']}", "steps")]
        return [str(step["text"]) for step in steps if step["id"] == UNUSABLE]

    wait_until(lambda: len(looks()) == len(nodes), 60, what="the worker looked at each")
    stays(lambda: is_calm(product), 3.0, what="no cap is passed and no breaker opens")


def forge_incident(product: Attacked, number: int) -> Incident:
    """A dead GPU by the kernel's word, with the detector's login."""
    found = incident(number)
    seen = Evidence(
        digest=f"{number:02x}", at=datetime.now(UTC), component=found.root, text=quoted("Xid 79"),
        line=XID_79.format(pci=GPU), sense=Sense.kernel, fatal=True, unusable=True,
    )  # fmt: skip
    engine = sa.create_engine(product.database_url("healer_detector"), poolclass=sa.NullPool)
    with PostgresBench(engine).ledger.transaction() as tx:
        tx.save_incident(msgspec.structs.replace(found, unusable=True, evidence=(seen,)))
    return found


def test_forged_words_restart_no_job_at_work(product: Attacked, full: str) -> None:
    """The detector's login writes healer's own run that restarts the job of a healthy node."""
    programs = programs_of(product, AT_WORK)
    programs.has_gpu(f"{GPU}.0")
    programs.kmsg("usb 1-1: new device")
    job, viewer = product.slurm.add_job(required=[AT_WORK]), product.headers("viewer")
    shown = f"{product.url}/api/v1/jobs/pod1/{job}"
    wait_until(lambda: product.http.get(shown, headers=viewer).is_success, 30, what="healer knows of it")
    about = forge_incident(product, 29)
    fields = {"id": "r-restarts", "node": None, "playbook": "requeue", "by": "healer", "approved_by": None}
    more = {"job": job, "incident": about.id, "rule": about.rule, "mode": "auto", "input": {"restarts": 0}}
    forge_row(product, full, "healer_detector", **fields, **more)
    make_app(product.broker_url, "pod1").send_task(ADVANCE, args=["r-restarts"])

    def left() -> str:
        return next((str(step["text"]) for step in items(product, "/runs/r-restarts", "steps")), "")

    text = wait_until(left, 60, what="the worker looked at the node")
    wait_until(lambda: "keeps running" in left(), 60, what=f"it left the job; {text}")
    found = product.slurm.job(job)
    assert found is not None and (found.state, found.restarts) == ("RUNNING", 0)
    product.slurm.cancel(job)


#: Written to a terminal, the first renames the window and rings; the second turns around what follows.
ESCAPES, TURNS = "\x1b]0;owned\x07\x9b2J", "\u202egpu\u2066"


def test_escape_characters_are_refused_or_shown_as_symbols(product: Attacked) -> None:
    """Text from the node itself, which also reaches Slurm, and text from a person."""
    node = DEAD
    programs_of(product, node).kmsg(XID_79.format(pci=GPU))
    itself = product.headers("signals", "--node", node)
    product.say(itself, node, XID_48.format(pci=GPU) + ESCAPES)
    product.say(itself, node, XID_79.format(pci=GPU) + TURNS)
    found = wait_until(lambda: of(product, node, "xid-79"), 30, what="an incident of the second line")
    wait_until(lambda: node in product.drained(), 30, what="past the caps, as the worker sees that it is so")
    viewer, name = product.headers("viewer"), str(found[0]["id"])
    reason = {"reason": f"seen {ESCAPES}{TURNS}"}
    product.http.post(
        f"{product.url}/api/v1/incidents/{name}/notes", json=reason, headers=product.headers("operator")
    )
    reads = {"HEALER_URL": product.url, "HEALER_TOKEN": viewer["Authorization"].split()[1]}
    out = [healer(*words, **reads).stdout for words in (["incidents"], ["incidents", name])]
    assert "Xid 79" in out[1] and not of(product, node, "xid-48")
    out.append(healer("incidents", name, "--json", **reads).stdout)
    out.append(product.slurm.node(node).reason)
    assert all(out)
    out += [product.log(part) for part in ("api", "detector", "worker")]
    for text in out:
        assert not re.search("[\x00-\x08\x0b-\x1f\x7f-\x9f\u202e\u2066]", text), text
    product.slurm.undrain(node)


# --- the record -------------------------------------------------------------------------------------------


def test_token_waits_for_a_stuck_worker_and_readyz_says_so(product: Attacked) -> None:
    def seal() -> bool:
        return product.http.get(f"{product.url}/readyz").json()["checks"]["seal"]["ok"]

    with stopped(product.pids()["worker"]):
        made = product.run("token", "create", "--role", "viewer")
        assert "healer worker" in made.stderr
        headers = {"Authorization": f"Bearer {made.stdout.split()[-1]}"}
        assert asked(product, **headers) == 503
        with sa.create_engine(product.database_url(), poolclass=sa.NullPool).begin() as conn:
            before = datetime.now(UTC) - timedelta(seconds=70)
            append(conn, audit_record("pod1", before, "test", "test.waits", "test/1"))
        wait_until(lambda: not seal(), 30, what="/readyz says that nothing seals")
        assert asked(product, **headers) == 503
        status, shown = against(product)
        assert (status, "the sealer stopped" in shown) == (1, True), shown
    wait_until(lambda: asked(product, **headers) == 200, 30, what="the token counts when the worker goes on")
    wait_until(seal, 30, what="/readyz is well")


def verify(product: Attacked, *words: str) -> tuple[int, str]:
    done = product.run("audit", "verify", *words, check=False)
    return done.returncode, done.stdout + done.stderr


def against(product: Attacked) -> tuple[int, str]:
    return verify(product, "--against", product.witness_name)


@contextmanager
def history_rewritten(product: Attacked, *statements: str) -> Iterator[None]:
    """By an attacker with the database, all files and the stolen key, who signs what is left; put back later.
    Until then the worker is stopped."""
    engine = sa.create_engine(product.database_url(), poolclass=sa.NullPool)
    written = product.checkpoints / CHECKPOINT_FILE
    with worker_stopped(product, engine):
        before = written.read_bytes()
        with engine.begin() as conn:
            for table in AUDITED:
                conn.execute(sa.text(f"CREATE TABLE kept_{table} AS TABLE {table}"))
        try:
            with unguarded(engine) as conn:
                for statement in statements:
                    conn.execute(sa.text(statement))
            sign_again(engine, load_signer(product.key_folder, product.checkpoints), written)
            yield
        finally:
            written.write_bytes(before)
            with unguarded(engine) as conn:
                for table in reversed(AUDITED):
                    conn.execute(sa.text(f"DELETE FROM {table}"))
                for table in AUDITED:
                    put = f"INSERT INTO {table} OVERRIDING SYSTEM VALUE TABLE kept_{table}"
                    conn.execute(sa.text(put))
                    conn.execute(sa.text(f"DROP TABLE kept_{table}"))


AUDITED = ("audit_records", "audit_chain", "audit_checkpoints")


@contextmanager
def worker_stopped(product: Attacked, engine: sa.Engine) -> Iterator[None]:
    """Between two of its transactions: stopped within one, as it seals, it would keep its locks."""
    # By the locks, which everybody sees; since when others are in a transaction, only a superuser does.
    at_work = (
        "SELECT count(*) FROM pg_locks JOIN pg_stat_activity USING (pid) WHERE locktype = 'relation' "
        "AND usename = 'healer_worker'"
    )
    while True:
        with stopped(product.pids()["worker"]):
            with engine.connect() as conn:
                is_between = conn.scalar(sa.text(at_work)) == 0
            if is_between:
                yield
                return


@pytest.fixture(scope="module")
def witnessed(product: Attacked) -> int:
    """The last number of the chain that the witness has."""
    product.headers("auditor")
    product.headers("viewer")
    product.headers("operator")
    wait_until(lambda: product.sql("SELECT count(*) FROM audit_unsealed") == [(0,)], 30, what="all is sealed")
    [(head,)] = product.sql("SELECT max(seq) FROM audit_chain")
    worker = product.pids()["worker"]
    os.kill(worker, signal.SIGTERM)  # it signs as it ends, and not only each minute

    def last() -> int:
        return max((each.seq for each in read_checkpoints(witnessed_lines(str(product.witness)))), default=0)

    wait_until(lambda: last() >= int(str(head)), 60, what="the witness has the head")
    successor(product, worker)
    return last()


def test_an_honest_history_is_green(product: Attacked, witnessed: int) -> None:
    status, shown = against(product)
    assert (status, witnessed > 3) == (0, True), shown


def test_a_cut_tail_is_found_by_the_witness(product: Attacked, witnessed: int) -> None:
    cut = (
        "DELETE FROM audit_checkpoints",
        f"CREATE TEMP TABLE gone AS SELECT record FROM audit_chain WHERE seq >= {witnessed - 1}",
        f"DELETE FROM audit_chain WHERE seq >= {witnessed - 1}",
        "DELETE FROM audit_records WHERE id IN (SELECT record FROM gone)",
    )
    with history_rewritten(product, *cut):
        assert verify(product)[0] == 0, "who holds all that the installation holds fools the installation"
        status, shown = against(product)
        assert (status, f"the chain ends at seq {witnessed - 2}: its end is cut off" in shown) == (1, True), (
            shown
        )


@pytest.mark.usefixtures("witnessed")
def test_a_rewritten_and_signed_record_is_found_by_the_witness(product: Attacked) -> None:
    change = "UPDATE audit_records SET actor = 'somebody' WHERE id = (SELECT min(id) FROM audit_records)"
    with history_rewritten(product, change):
        assert verify(product)[0] == 0
        status, shown = against(product)
        assert (status, "is not what was signed on" in shown) == (1, True), shown
