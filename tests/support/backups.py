"""An installation on a database of the tests: runs, messages, sessions and an audit that is sealed."""

from datetime import UTC, datetime, timedelta
from pathlib import Path

import sqlalchemy as sa

from healer.adapters.postgres import tables
from healer.adapters.postgres.audit_rows import PostgresChain, append_many
from healer.adapters.postgres.run_rows import write_runs
from healer.adapters.postgres.tokens import adopt_key
from healer.adapters.signing import CHECKPOINT_FILE, CheckpointFile, load_signer
from healer.adapters.token_key import KEY_FILE, token_key
from healer.audit import Sealer
from healer.backups import Checked, Places, Restored, Source, check_backup, make_backup, put_back, reading
from healer.model import Run, RunState
from healer.text import quoted
from tests.support.audit import record

PASSPHRASE = b"correct horse battery"
#: Runs by state, one of each; a shadow run too.
STATES = ("running", "waiting", "held", "stuck", "proposed", "waiting_approval", "done")


def url_of(db: sa.Engine) -> str:
    return db.url.render_as_string(hide_password=False)


def source(db: sa.Engine, folder: Path, **more: Path) -> Source:
    places = places_in(folder)
    return Source(
        url_of(db), places.data_dir, places.published, places.token_key,
        rules=more.get("rules"), config=more.get("config"),
    )  # fmt: skip


def places_in(folder: Path) -> Places:
    return Places(folder, folder, folder / KEY_FILE)


def back_up(db: sa.Engine, folder: Path, target: Path, **more: Path) -> Path:
    make_backup(source(db, folder, **more), target, PASSPHRASE, by="ann")
    return target


def restore(file: Path, db: sa.Engine, folder: Path, *, replace: bool = False) -> Restored:
    with reading(file) as archive:
        checked: Checked = check_backup(archive, PASSPHRASE)
        return put_back(url_of(db), checked, places_in(folder), by="bob", replace=replace)


def live_in(db: sa.Engine, folder: Path) -> None:
    """Fills the database as a healer that is in the middle of its work."""
    folder.mkdir(exist_ok=True)
    now = datetime.now(UTC)
    with db.begin() as conn:
        adopt_key(conn, token_key(folder / KEY_FILE), now)
        append_many(conn, [record(number, stored=False) for number in range(1, 121)])
        for number, state in enumerate(STATES):
            add_run(conn, state, f"gpu{number:04d}")
        add_run(conn, "running", "gpu0100", shadow=True)
        add_messages(conn, now)
        add_ways_in(conn, now)
    seal(db, folder)


def seal(db: sa.Engine, folder: Path) -> None:
    """Seals and signs all that there is."""
    sealer = Sealer(
        PostgresChain(db), load_signer(folder), checkpoint_file=CheckpointFile(folder / CHECKPOINT_FILE)
    )
    while sealer.seal_once():
        pass
    sealer.close()


def add_run(conn: sa.Connection, state: str, node: str, *, shadow: bool = False) -> None:
    run = Run(
        id=f"r-{state}{'-shadow' if shadow else ''}", cluster="pod1", playbook="drain", state=RunState(state),
        by="healer", reason=quoted("GPU lost"), created_at=datetime.now(UTC), node=node, shadow=shadow,
    )  # fmt: skip
    write_runs(conn, [run])


def add_messages(conn: sa.Connection, now: datetime) -> None:
    row = {"cluster": "pod1", "kind": "ticket", "page": False, "at": now, "doc": {}, "routed": True}
    for name, state in (("m-due", "due"), ("m-sent", "sent")):
        conn.execute(sa.insert(tables.messages).values(id=name, state=state, next_try_at=now, **row))


def add_ways_in(conn: sa.Connection, now: datetime) -> None:
    later = now + timedelta(hours=1)
    for name, once in (("t-link", True), ("t-kept", False)):
        token = {"id": name, "digest": name.encode(), "role": "viewer", "name": name, "once": once}
        conn.execute(sa.insert(tables.tokens).values(**token, created_at=now, expires_at=later))
    session = {"digest": b"s", "token": "t-kept", "id": "s1", "seen_at": now, "proven_at": now}
    conn.execute(sa.insert(tables.sessions).values(**session, created_at=now, expires_at=later))
    seal_row = {"id": "b1", "digest": b"b", "sealed_by": "ann", "sealed_at": now}
    conn.execute(sa.insert(tables.break_glass).values(seal_row))
