"""A backup of a database in the middle of its work, put into another: what is there, and what has to wait."""

import json
import os
import subprocess
from datetime import UTC, datetime
from pathlib import Path

import pytest
import sqlalchemy as sa
from alembic import command

from healer.adapters.postgres import migrate, roles
from healer.adapters.postgres.audit_rows import PostgresChain, append
from healer.adapters.postgres.engine import make_engine
from healer.adapters.postgres.local_processes import connection_name
from healer.adapters.signing import CHECKPOINT_FILE, trusted_keys
from healer.adapters.token_key import KEY_FILE
from healer.audit import checkpoint_line, read_checkpoints, report_against, sign_checkpoint
from healer.audit.export import report
from healer.backups import BackupFailed, HalfRestored, NotEmpty, make_backup
from healer.bootstrap.backups import hold_back_in_place
from healer.model import audit_record
from tests.support.audit import signer
from tests.support.backups import PASSPHRASE, STATES, back_up, live_in, places_in, restore, seal, source

pytestmark = pytest.mark.heavy


@pytest.fixture
def lived(fresh_database: sa.Engine, tmp_path: Path) -> Path:
    live_in(fresh_database, tmp_path / "old")
    return tmp_path / "old"


def rows(db: sa.Engine, query: str) -> list[tuple]:
    with db.connect() as conn:
        return [tuple(row) for row in conn.execute(sa.text(query))]


def test_restored_runs_ask_a_person_and_nothing_is_sent_again(
    fresh_database: sa.Engine, empty_database: sa.Engine, lived: Path, tmp_path: Path
) -> None:
    file = back_up(fresh_database, lived, tmp_path / "b.tar")
    assert file.stat().st_mode & 0o777 == 0o600
    done = restore(file, empty_database, tmp_path / "new")
    states = dict(rows(empty_database, "SELECT id, state FROM runs"))
    expected = {f"r-{state}": state for state in STATES} | {"r-running-shadow": "running"}
    for state in ("running", "waiting", "held"):
        expected[f"r-{state}"] = "stuck"
    assert states == expected
    assert done.asking == 3
    (question,) = rows(empty_database, "SELECT doc ->> 'question' FROM runs WHERE id = 'r-held'")
    assert "restored from the backup of" in str(question)
    pause = rows(empty_database, 'SELECT id, scope, "by", reason, until, ended_at FROM pauses')
    assert [row[:3] for row in pause] == [(done.pause, "all", "bob")]
    assert pause[0][3].startswith("restored from backup of 20") and pause[0][4:] == (None, None)
    sent = rows(empty_database, "SELECT id, state FROM messages WHERE id LIKE 'm-%' ORDER BY id")
    assert sent == [("m-due", "failed"), ("m-sent", "sent")]
    assert rows(empty_database, "SELECT id FROM tokens WHERE revoked_at IS NULL") == [("t-kept",)]
    assert rows(empty_database, "SELECT count(*) FROM sessions WHERE ended_at IS NULL") == [(0,)]
    assert rows(empty_database, "SELECT count(*) FROM break_glass WHERE ended_at IS NULL") == [(0,)]
    paged = rows(empty_database, "SELECT page, state FROM messages WHERE id LIKE 'restored:%'")
    assert paged == [(True, "due")]


def test_parts_get_their_rights_back(
    fresh_database: sa.Engine, empty_database: sa.Engine, lived: Path, tmp_path: Path
) -> None:
    restore(back_up(fresh_database, lived, tmp_path / "b.tar"), empty_database, tmp_path / "new")
    granted = "SELECT count(*) FROM information_schema.role_table_grants WHERE grantee = ANY(:roles)"
    with fresh_database.connect() as old, empty_database.connect() as new:
        before, after = (conn.scalar(sa.text(granted), {"roles": [*roles.ROLES]}) for conn in (old, new))
    assert before == after and before


def test_the_audit_verifies_and_names_the_gap_against_a_witness_too(
    fresh_database: sa.Engine, empty_database: sa.Engine, lived: Path, tmp_path: Path
) -> None:
    file = back_up(fresh_database, lived, tmp_path / "b.tar")
    with fresh_database.begin() as conn:  # what the old one does after its backup
        for number in range(5):
            append(conn, audit_record("pod1", datetime.now(UTC), "healer", "node.drained", f"node/{number}"))
    seal(fresh_database, lived)
    witness = read_checkpoints((lived / CHECKPOINT_FILE).read_bytes().splitlines(keepends=True))
    assert max(item.seq for item in witness) == 125

    restore(file, empty_database, tmp_path / "new")
    chain = PostgresChain(empty_database)
    alone = report(chain, keys=trusted_keys(tmp_path / "new"))
    assert alone.broken == [] and [(gap.head, gap.lost) for gap in alone.gaps] == [(120, 0)]
    against = report_against(chain, "the witness", witness)
    assert against.broken == []
    # The chain `installation` began with the record of the backup itself: nothing of it is in the backup.
    gaps = [(gap.cluster, gap.head, gap.lost, gap.by) for gap in against.gaps]
    assert gaps == [("installation", 0, 1, "bob"), ("pod1", 120, 125, "bob")]
    assert against.unsealed == 0


def test_on_the_same_machine_its_own_key_seals_the_gap(
    fresh_database: sa.Engine, lived: Path, tmp_path: Path
) -> None:
    """The checkpoint file keeps what was signed after the backup."""
    make_backup(source(fresh_database, lived), tmp_path / "b.tar", None, by="ann")
    seal(fresh_database, lived)
    restore(tmp_path / "b.tar", fresh_database, lived, replace=True)
    outside = read_checkpoints((lived / CHECKPOINT_FILE).read_bytes().splitlines(keepends=True))
    found = report(PostgresChain(fresh_database), keys=trusted_keys(lived), outside=outside)
    assert (found.broken, found.unsealed) == ([], 0)
    assert {gap.cluster for gap in found.gaps} == {"pod1", "installation"}


def test_the_gap_hides_nothing_else(
    fresh_database: sa.Engine, empty_database: sa.Engine, lived: Path, tmp_path: Path
) -> None:
    """Checkpoints of before the backup, of after the restore, and of another key are as broken as ever."""
    before = read_checkpoints((lived / CHECKPOINT_FILE).read_bytes().splitlines(keepends=True))
    restore(back_up(fresh_database, lived, tmp_path / "b.tar"), empty_database, tmp_path / "new")
    chain, key = PostgresChain(empty_database), signer()
    now = datetime.now(UTC)
    late = now.replace(year=now.year + 1)
    for forged in (
        sign_checkpoint(key, "pod1", 110, bytes(32), now),  # before its head
        sign_checkpoint(key, "pod1", 130, bytes(32), before[0].at.replace(year=2020)),  # before the backup
        sign_checkpoint(key, "pod1", 130, bytes(32), late),  # after the restore
    ):
        found = report(chain, keys={key.key, before[0].key}, outside=[*before, forged])
        assert found.broken, checkpoint_line(forged)
    covered = sign_checkpoint(key, "pod1", 130, bytes(32), now)
    assert report(chain, keys={key.key, before[0].key}, outside=[covered]).broken == []
    assert report(chain, keys={before[0].key}, outside=[covered]).broken, "an unknown key signed it"


def test_files_come_back_and_what_they_replace_is_kept(
    fresh_database: sa.Engine, empty_database: sa.Engine, lived: Path, tmp_path: Path
) -> None:
    rules, config, new = tmp_path / "rules", tmp_path / "healer.toml", tmp_path / "new"
    long = Path(*("a-folder-with-a-long-name" for _ in range(6)))
    (rules / long).mkdir(parents=True)
    (rules / long / "x.yaml").write_text("x: 1\n")
    (rules / os.fsdecode(b"Ger\xe4t.yaml~")).write_text("of an editor\n")  # no UTF-8
    config.write_text('HEALER_WEBHOOK_SECRET = "s3cret-of-the-config"\n')
    file = back_up(fresh_database, lived, tmp_path / "b.tar", rules=rules, config=config)
    assert b"s3cret-of-the-config" not in file.read_bytes()
    assert (lived / "audit-key").read_bytes() not in file.read_bytes()
    new.mkdir()
    (new / KEY_FILE).write_text("0" * 64 + "\n")
    restore(file, empty_database, new)
    assert (new / "restored" / "rules" / long / "x.yaml").read_text() == "x: 1\n"
    assert (new / "restored" / "rules" / r"Ger\xe4t.yaml~").read_text() == "of an editor\n"
    assert (new / "restored" / "healer.toml").read_text() == config.read_text()
    assert (new / KEY_FILE).read_text() == (lived / KEY_FILE).read_text()
    assert (new / f"{KEY_FILE}.before-restore").read_text() == "0" * 64 + "\n"
    private = [new / KEY_FILE, new / "audit-key", new / "restored" / "healer.toml"]
    assert [path.stat().st_mode & 0o077 for path in private] == [0, 0, 0]


def test_a_database_with_something_in_it_is_left_alone(
    fresh_database: sa.Engine, empty_database: sa.Engine, lived: Path, tmp_path: Path
) -> None:
    file = back_up(fresh_database, lived, tmp_path / "b.tar")
    with pytest.raises(NotEmpty, match="not empty: --replace drops"):
        restore(file, fresh_database, tmp_path / "new")
    assert rows(fresh_database, "SELECT count(*) FROM pauses") == [(0,)]
    with fresh_database.begin() as conn:
        conn.execute(sa.text("DELETE FROM runs WHERE id = 'r-done'"))
    restore(file, fresh_database, lived, replace=True)
    assert rows(fresh_database, "SELECT state FROM runs WHERE id = 'r-done'") == [("done",)]


def test_restore_is_refused_and_names_connected_parts(
    fresh_database: sa.Engine, empty_database: sa.Engine, lived: Path, tmp_path: Path
) -> None:
    file = back_up(fresh_database, lived, tmp_path / "b.tar")
    part = sa.create_engine(empty_database.url.set(username="healer_detector"))
    with part.connect() as conn:
        conn.execute(sa.text("SELECT 1"))
        with pytest.raises(NotEmpty, match=r"connected \(healer_detector\): stop them first"):
            restore(file, empty_database, tmp_path / "new")
    part.dispose()
    assert rows(empty_database, "SELECT count(*) FROM pg_tables WHERE schemaname = 'public'") == [(0,)]


def test_parts_with_the_login_of_the_owner_are_found_too(
    fresh_database: sa.Engine, lived: Path, tmp_path: Path
) -> None:
    file = back_up(fresh_database, lived, tmp_path / "b.tar")
    url = fresh_database.url.render_as_string(hide_password=False)
    part = make_engine(url, name=connection_name("healer worker"), pool_size=1)
    with part.connect() as conn:
        conn.execute(sa.text("SELECT 1"))
        with pytest.raises(NotEmpty, match=r"connected \(healer worker\): stop them first"):
            restore(file, fresh_database, lived, replace=True)
        with pytest.raises(NotEmpty, match=r"connected \(healer worker\): stop them first"):
            hold_back_in_place(url, places_in(lived), by="bob")
    part.dispose()
    assert rows(fresh_database, "SELECT count(*) FROM pauses") == [(0,)]
    assert hold_back_in_place(url, places_in(lived), by="bob").asking == 3


def test_a_backup_of_an_older_healer_is_upgraded(empty_database: sa.Engine, tmp_path: Path) -> None:
    with empty_database.begin() as connection:
        command.upgrade(migrate.alembic_config(connection=connection), "0033")
    (tmp_path / "old").mkdir()
    file = tmp_path / "b.tar"
    make_backup(source(empty_database, tmp_path / "old"), file, None, by="ann")
    # Without keys nothing signs; the worker does, once it runs.
    done = restore(file, empty_database, tmp_path / "new", replace=True)
    assert done.revision == ("0033", migrate.head())
    assert not (tmp_path / "new" / "audit-key").exists(), "a restore never makes a key"
    assert rows(empty_database, "SELECT count(*) FROM pauses") == [(1,)]


def test_a_load_that_fails_leaves_the_database_as_it_was(
    fresh_database: sa.Engine, empty_database: sa.Engine, lived: Path, tmp_path: Path
) -> None:
    """A table of another owner blocks it, which --replace may not drop."""
    file = back_up(fresh_database, lived, tmp_path / "b.tar")
    with empty_database.begin() as conn:
        conn.execute(sa.text("CREATE SCHEMA theirs"))
        conn.execute(sa.text("CREATE TABLE public.kept (id int)"))
        conn.execute(sa.text("CREATE VIEW theirs.seen AS SELECT 1 AS one"))
        conn.execute(
            sa.text(
                "CREATE FUNCTION public.fails() RETURNS event_trigger LANGUAGE plpgsql AS"
                " $$ BEGIN RAISE EXCEPTION 'no room for it'; END $$"
            )
        )
    conflict = sa.text("CREATE TYPE public.runs AS ENUM ('taken')")
    with empty_database.begin() as conn:
        conn.execute(conflict)
    with pytest.raises(HalfRestored, match=r"the dump cannot be loaded: ERROR: .*runs"):
        restore(file, empty_database, tmp_path / "new", replace=True)
    assert rows(empty_database, "SELECT tablename FROM pg_tables WHERE schemaname = 'public'") == [("kept",)]


def test_backup_fails_when_its_login_cannot_read_every_table(
    fresh_database: sa.Engine, lived: Path, tmp_path: Path
) -> None:
    part = fresh_database.url.set(username="healer_detector").render_as_string(hide_password=False)
    wrong = source(fresh_database, lived)._replace(url=part)
    with pytest.raises(BackupFailed, match=r"permission denied for table \w+\. HEALER_DATABASE_URL must"):
        make_backup(wrong, tmp_path / "b.tar", PASSPHRASE, by="ann")
    assert list(tmp_path.glob("*b.tar*")) == []


def test_a_full_disk_is_said_before_anything_is_written(
    fresh_database: sa.Engine, lived: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    usage = type("Usage", (), {"free": 1000})
    monkeypatch.setattr("healer.backups.make.shutil.disk_usage", lambda _: usage)
    with pytest.raises(BackupFailed, match=r"has 0 MB free, and the backup may need \d+ MB"):
        back_up(fresh_database, lived, tmp_path / "b.tar")


def test_making_one_is_audited_and_no_sample_is_in_it(
    fresh_database: sa.Engine, empty_database: sa.Engine, lived: Path, tmp_path: Path
) -> None:
    with fresh_database.begin() as conn:
        conn.execute(
            sa.text(
                "INSERT INTO samples (cluster, kind, subject, at, arrived_at, slot, body)"
                " VALUES ('pod1', 'm', 'gpu0001', now(), now(), 3, 'x')"
            )
        )
    restore(back_up(fresh_database, lived, tmp_path / "b.tar"), empty_database, tmp_path / "new")
    assert rows(fresh_database, "SELECT actor, subject FROM audit_records WHERE verb = 'backup.made'") == [
        ("ann", "backup")
    ]
    assert rows(empty_database, "SELECT count(*) FROM samples") == [(0,)]


def test_anybody_can_look_into_it_with_tar(fresh_database: sa.Engine, lived: Path, tmp_path: Path) -> None:
    file = back_up(fresh_database, lived, tmp_path / "b.tar")
    done = subprocess.run(["tar", "xf", file, "-C", tmp_path], capture_output=True, text=True, check=False)
    assert (done.returncode, done.stderr) == (0, "")
    manifest = json.loads((tmp_path / "manifest.json").read_text())
    assert manifest["revision"] == migrate.head() and manifest["healer_backup"] == 1
    dump = (tmp_path / "database.dump").read_bytes()
    assert dump[:5] == b"PGDMP" and len(dump) == manifest["members"]["database.dump"]["size"]
    assert os.path.getsize(file) % 512 == 0
