"""The audit on a real PostgreSQL: who may change it (no one), what is sealed, what tampering shows."""

import io
import json
import threading
from collections.abc import Iterator
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest
import sqlalchemy as sa
from sqlalchemy import event
from sqlalchemy.exc import DBAPIError

from healer.adapters.postgres.audit_rows import PostgresChain, append, append_many
from healer.adapters.postgres.engine import make_engine
from healer.adapters.postgres.roles import AUDITOR
from healer.adapters.postgres.tables import (
    audit_chain,
    audit_checkpoints,
    audit_records,
    audit_unsealed,
)
from healer.adapters.postgres.tokens import ENROLLED_AGAIN, enrolled_again
from healer.adapters.signing import CheckpointFile, load_signer, trusted_keys
from healer.audit import ExportError, Sealer, Trail, export, read_checkpoints, report, verify_export
from healer.model import Broken, Checkpoint
from tests.support.audit import START, healer, record, signer, unguarded
from tests.support.seals import seal_all


class Hand:
    """A clock that a test turns by hand."""

    def __init__(self) -> None:
        self.at = START

    def now(self):
        return self.at


@pytest.fixture
def sealer(fresh_database: sa.Engine) -> Iterator[Sealer]:
    sealer = Sealer(PostgresChain(fresh_database), signer())
    yield sealer
    sealer.close()


def file_in(folder: Path) -> CheckpointFile:
    return CheckpointFile(folder / "audit-checkpoints.jsonl")


def kept(file: Path) -> list[Checkpoint]:
    return read_checkpoints(CheckpointFile(file).lines())


def verify(engine: sa.Engine, **options) -> list[Broken]:
    return report(PostgresChain(engine), **options).broken


def fill(engine: sa.Engine, count: int, **fields: str) -> None:
    with engine.begin() as conn:
        append_many(conn, [record(number, stored=False, **fields) for number in range(1, count + 1)])


def what(engine: sa.Engine, **options) -> list[str]:
    return [item.what for item in verify(engine, **options)]


def chained(engine: sa.Engine) -> list[int]:
    with engine.connect() as conn:
        return list(conn.scalars(sa.select(audit_chain.c.record).order_by(audit_chain.c.seq)))


@pytest.mark.parametrize("table", ["audit_records", "audit_chain", "audit_checkpoints"])
@pytest.mark.parametrize(
    "statement",
    ["UPDATE {} SET cluster = 'x'", "DELETE FROM {}", "DELETE FROM {} WHERE false", "TRUNCATE {}"],
)
def test_audit_rows_cannot_be_changed(fresh_database, sealer, table, statement):
    fill(fresh_database, 3)
    sealer.seal_once()
    with pytest.raises(DBAPIError, match="never changed or removed"), fresh_database.begin() as conn:
        conn.execute(sa.text(statement.format(table)))
    assert verify(fresh_database) == []


def test_an_insert_that_turns_into_an_update_is_refused_too(fresh_database, sealer):
    fill(fresh_database, 1)
    sealer.seal_once()
    with pytest.raises(DBAPIError, match="never changed or removed"), fresh_database.begin() as conn:
        conn.execute(
            sa.text(
                "INSERT INTO audit_chain SELECT * FROM audit_chain "
                "ON CONFLICT (cluster, seq) DO UPDATE SET hash = excluded.hash"
            )
        )


def test_a_record_comes_back_as_it_went_in_and_verifies(fresh_database, sealer):
    hostile = {
        "line": "NVRM: \x00 \ud800 é\u2028",
        "big": 10**25,
        "tiny": 1e-300,
        "nan": float("nan"),
        "n": [1.0],
    }
    with fresh_database.begin() as conn:
        append(conn, record(1, stored=False))
        append(conn, type(record(1))(**{**_fields(record(2, stored=False)), "data": hostile}))
    assert sealer.seal_once() == 2
    assert report(PostgresChain(fresh_database)).heads == {"pod1": 2}
    lines = [json.loads(line) for line in export(PostgresChain(fresh_database))]
    assert lines[1]["record"]["data"] == record(1).data
    assert lines[1]["record"]["at"] == "2026-11-20T03:00:01.250000Z"
    assert lines[2]["record"]["data"]["line"] == "NVRM: \ufffd \ufffd é\u2028"
    assert lines[2]["record"]["data"]["nan"] == "nan"
    assert verify_export(export(PostgresChain(fresh_database))).broken == []
    assert what(fresh_database) == []


def test_a_time_without_a_zone_is_refused(fresh_database):
    bad = type(record(1))(**{**_fields(record(1, stored=False)), "at": START.replace(tzinfo=None)})
    with pytest.raises(ValueError, match="needs a zone"), fresh_database.begin() as conn:
        append(conn, bad)


def test_each_cluster_has_its_own_chain(fresh_database, sealer):
    fill(fresh_database, 3)
    fill(fresh_database, 2, cluster="pod2")
    assert sealer.seal_once() == 5
    assert report(PostgresChain(fresh_database)).heads == {"pod1": 3, "pod2": 2}


def test_a_transaction_that_commits_late_is_sealed_late(fresh_database, sealer):
    early = fresh_database.connect()
    append(early, record(1, stored=False))
    fill(fresh_database, 2)
    assert sealer.seal_once() == 2
    early.commit()
    early.close()
    assert sealer.seal_once() == 1
    assert chained(fresh_database) == [2, 3, 1]
    assert verify(fresh_database) == []


def test_a_rolled_back_record_leaves_no_gap(fresh_database, sealer):
    with fresh_database.connect() as conn:
        append(conn, record(1, stored=False))
        conn.rollback()
    fill(fresh_database, 1)
    sealer.seal_once()
    assert report(PostgresChain(fresh_database)).heads == {"pod1": 1}
    assert verify(fresh_database) == []


def test_many_writers_and_a_sealer_at_once_lose_nothing(fresh_database, sealer):
    def write() -> None:
        with fresh_database.connect() as conn:
            for number in range(25):
                append(conn, record(number, stored=False))
                conn.rollback() if number % 5 == 4 else conn.commit()

    writers = [threading.Thread(target=write) for _ in range(4)]
    for writer in writers:
        writer.start()
    sealed = 0
    while any(writer.is_alive() for writer in writers):
        sealed += sealer.seal_once()
    for writer in writers:
        writer.join()
    sealed += sealer.seal_once()
    assert sealed == 80
    seen = report(PostgresChain(fresh_database))
    assert (seen.broken, seen.heads, seen.unsealed) == ([], {"pod1": 80}, 0)


def test_one_seals_and_the_next_takes_over(fresh_database, sealer):
    fill(fresh_database, 1)
    assert sealer.seal_once() == 1
    other = Sealer(PostgresChain(fresh_database), signer())
    fill(fresh_database, 1)
    assert other.seal_once() == 0
    sealer.close()
    assert other.seal_once() == 1
    other.close()
    assert verify(fresh_database) == []


def test_sealer_restarts_after_its_connection_was_cut(fresh_database, sealer):
    fill(fresh_database, 1)
    assert sealer.seal_once() == 1
    with fresh_database.begin() as conn:
        conn.execute(
            sa.text(
                "SELECT pg_terminate_backend(pid, 5000) FROM pg_locks WHERE locktype = 'advisory' "
                "AND database = (SELECT oid FROM pg_database WHERE datname = current_database())"
            )
        )
    fill(fresh_database, 1)
    with pytest.raises(DBAPIError):
        sealer.seal_once()
    assert sealer.seal_once() == 1
    assert report(PostgresChain(fresh_database)).heads == {"pod1": 2}


def test_requeued_sealed_record_blocks_nothing(fresh_database, sealer):
    fill(fresh_database, 2)
    sealer.seal_once()
    with fresh_database.begin() as conn:
        conn.execute(sa.insert(audit_unsealed), [{"record": 1}, {"record": 999}])
    fill(fresh_database, 1)
    assert sealer.seal_once() == 1
    assert chained(fresh_database) == [1, 2, 3]


def test_the_sealer_rests_outside_any_transaction(fresh_database, tmp_path: Path):
    hand = Hand()
    sealer = Sealer(PostgresChain(fresh_database), load_signer(tmp_path), now=hand.now)
    idle = sa.text(
        "SELECT count(*) FROM pg_stat_activity WHERE state LIKE 'idle in transaction%' "
        "AND datname = current_database()"
    )
    for count in (1, 0, 100, 0):
        fill(fresh_database, count)
        sealer.seal_once()
        hand.at += timedelta(seconds=61)
        with fresh_database.connect() as conn:
            assert conn.scalar(idle) == 0
    sealer.close()


def test_rights_to_select_and_insert_are_enough(fresh_database, sealed_by_role):
    fill(fresh_database, 3)
    sealer = Sealer(PostgresChain(sealed_by_role), signer())
    assert sealer.seal_once() == 3
    sealer.close()
    assert report(PostgresChain(sealed_by_role)).signed == {"pod1": 3}
    with pytest.raises(DBAPIError, match="must be owner"), sealed_by_role.begin() as conn:
        conn.execute(sa.text("ALTER TABLE audit_records DISABLE TRIGGER ALL"))


@pytest.fixture
def sealed_by_role(fresh_database: sa.Engine) -> Iterator[sa.Engine]:
    """An engine of the auditor's role."""
    login = fresh_database.url.set(username="healer_worker").render_as_string(hide_password=False)
    engine = make_engine(login, acts_as=AUDITOR)
    yield engine
    engine.dispose()


def test_the_chain_of_no_cluster_has_a_name_too(fresh_database: sa.Engine, tmp_path: Path) -> None:
    """It holds what is of the whole site, such as a token for all clusters."""
    fill(fresh_database, 2, cluster="")
    seal_all(fresh_database)
    url = fresh_database.url.render_as_string(hide_password=False)
    whole = healer("audit", "verify", HEALER_DATABASE_URL=url, HEALER_DATA_DIR=str(tmp_path))
    assert whole.stdout.startswith("all clusters: 2 records chained")


def test_the_command_verifies_and_exports_the_database(sealed, tmp_path: Path):
    url = sealed.url.render_as_string(hide_password=False)
    known = {"HEALER_DATABASE_URL": url, "HEALER_DATA_DIR": str(tmp_path)}
    whole = healer("audit", "verify", **known)
    assert (whole.returncode, whole.stderr) == (0, "")
    assert "pod1: 8 records chained, signed up to 8." in whole.stdout
    made = healer("audit", "export", "--out", tmp_path / "export", **known)
    assert (made.returncode, made.stderr) == (0, "")
    assert (
        healer("audit", "export", **known).stdout.splitlines()[1:]
        == ((tmp_path / "export").read_text().splitlines()[1:])
    )
    assert healer("audit", "verify", "--file", tmp_path / "export").returncode == 0
    with unguarded(sealed) as conn:
        conn.execute(sa.text("UPDATE audit_records SET actor = 'somebody' WHERE id = 5"))
    broken = healer("audit", "verify", **known)
    assert broken.returncode == 1
    assert "broken: pod1, seq 5: record 5, or its hash, was changed after it was sealed." in broken.stdout


def test_the_command_without_a_database_ends_with_a_sentence(tmp_path: Path):
    away = healer("audit", "verify", HEALER_DATABASE_URL=f"postgresql:///x?host={tmp_path}")
    assert away.returncode == 1
    assert away.stderr.startswith("healer: the database does not answer: ")


def test_the_trail_of_an_installation_knows_its_keys_and_its_file(sealed, tmp_path: Path):
    trail = Trail(PostgresChain(sealed), lambda: trusted_keys(tmp_path), file_in(tmp_path))
    assert (trail.report().broken, trail.report().signed) == ([], {"pod1": 8})
    assert verify_export(trail.export(), keys=trusted_keys(tmp_path)).broken == []
    with unguarded(sealed) as conn:
        conn.execute(sa.delete(audit_checkpoints))
    assert "no longer in the database" in trail.report().broken[0].what


def test_checkpoints_by_number_by_age_and_at_the_end(fresh_database, tmp_path: Path):
    hand, file = Hand(), tmp_path / "audit-checkpoints.jsonl"
    sealer = Sealer(
        PostgresChain(fresh_database),
        load_signer(tmp_path),
        checkpoint_file=CheckpointFile(file),
        now=hand.now,
    )
    fill(fresh_database, 99)
    sealer.seal_once()
    assert kept(file) == []
    fill(fresh_database, 1)
    sealer.seal_once()
    fill(fresh_database, 1)
    sealer.seal_once()
    assert [item.seq for item in kept(file)] == [100]
    hand.at += timedelta(seconds=61)
    sealer.seal_once()
    assert [item.seq for item in kept(file)] == [100, 101]
    fill(fresh_database, 1)
    sealer.seal_once()
    sealer.close()
    assert [item.seq for item in kept(file)] == [100, 101, 102]
    seen = report(PostgresChain(fresh_database), keys=trusted_keys(tmp_path), outside=kept(file))
    assert (seen.broken, seen.signed) == ([], {"pod1": 102})


def test_a_new_sealer_writes_the_checkpoints_that_missed_the_file(fresh_database, tmp_path: Path):
    file = tmp_path / "audit-checkpoints.jsonl"
    fill(fresh_database, 1)
    without = Sealer(PostgresChain(fresh_database), load_signer(tmp_path))
    without.seal_once()
    without.close()
    file.write_bytes(b'{"checkpoint":{"at":"2026')  # what a crash in the middle of a write leaves
    sealer = Sealer(
        PostgresChain(fresh_database), load_signer(tmp_path), checkpoint_file=CheckpointFile(file)
    )
    sealer.seal_once()
    sealer.close()
    assert [item.seq for item in kept(file)] == [1]
    assert verify(fresh_database, outside=kept(file)) == []


def test_a_damaged_line_of_the_file_stops_no_sealer(fresh_database, sealed, tmp_path: Path):
    file = tmp_path / "audit-checkpoints.jsonl"
    file.write_bytes(file.read_bytes().replace(b'"seq":8', b'"seq":"\xe48"'))
    fill(fresh_database, 1)
    sealer = Sealer(PostgresChain(fresh_database), load_signer(tmp_path), checkpoint_file=file_in(tmp_path))
    assert sealer.seal_once() == 1
    sealer.close()
    damaged, *others = file.read_bytes().splitlines(keepends=True)
    assert [item.seq for item in read_checkpoints(others)] == [8, 9], "what cannot be read is written again"
    with pytest.raises(ExportError, match="line 1 of the checkpoint file"):
        read_checkpoints([damaged])


# --- tampering, by a user who can drop the triggers --------------------------------------------------


@pytest.fixture
def sealed(fresh_database, tmp_path: Path) -> sa.Engine:
    fill(fresh_database, 8)
    sealer = Sealer(PostgresChain(fresh_database), load_signer(tmp_path), checkpoint_file=file_in(tmp_path))
    sealer.seal_once()
    sealer.close()
    assert verify(fresh_database) == []
    return fresh_database


@pytest.mark.parametrize(
    "change",
    [
        "actor = 'somebody'",
        "at = at + interval '1 microsecond'",
        "data = data || '{\"share\": 0.06}'",
        "cluster = 'pod2'",
        "subject = subject || ' '",
    ],
)
def test_a_changed_record_is_named(sealed, change):
    with unguarded(sealed) as conn:
        conn.execute(sa.text(f"UPDATE audit_records SET {change} WHERE id = 5"))
    assert what(sealed) == ["seq 5: record 5, or its hash, was changed after it was sealed"]
    assert [item.what for item in verify_export(export(PostgresChain(sealed))).broken] == what(sealed)


def test_a_deleted_record_is_named(sealed):
    with unguarded(sealed) as conn:
        conn.execute(sa.delete(audit_records).where(audit_records.c.id == 5))
    assert what(sealed) == ["seq 5: record 5 is gone: it was deleted after it was sealed"]
    assert [item.what for item in verify_export(export(PostgresChain(sealed))).broken] == what(sealed)


def test_a_deleted_link_is_named_with_its_record(sealed):
    with unguarded(sealed) as conn:
        conn.execute(sa.delete(audit_chain).where(audit_chain.c.seq.in_([4, 5])))
        conn.execute(sa.delete(audit_records).where(audit_records.c.id == 4))
    assert what(sealed) == [
        "seq 4 up to seq 5 are missing",
        "record 5 of 2026-11-20T03:00:05.250000Z (node.drained node/gpu0005) "
        "was never sealed and will not be",
    ]


def test_exchanged_records_are_named_together(sealed):
    with unguarded(sealed) as conn:
        conn.execute(
            sa.text(
                "UPDATE audit_records a SET at = b.at, subject = b.subject, data = b.data "
                "FROM audit_records b WHERE (a.id, b.id) IN ((3, 6), (6, 3))"
            )
        )
    assert what(sealed) == [
        "seq 3 was swapped with seq 6 after both were sealed",
        "seq 6 was swapped with seq 3 after both were sealed",
    ]


@pytest.mark.parametrize(("one", "other"), [(3, 6), (4, 5)])
def test_exchanged_links_are_named_together(sealed, one, other):
    with unguarded(sealed) as conn:
        for seq, to in ((one, 1000), (other, one), (1000, other)):
            conn.execute(sa.update(audit_chain).where(audit_chain.c.seq == seq).values(seq=to))
    assert what(sealed) == [
        f"seq {one} was swapped with seq {other} after both were sealed",
        f"seq {other} was swapped with seq {one} after both were sealed",
    ]


def test_a_cut_end_is_seen_by_its_checkpoint(sealed, tmp_path: Path):
    with unguarded(sealed) as conn:
        conn.execute(sa.delete(audit_chain).where(audit_chain.c.seq > 6))
        conn.execute(sa.delete(audit_records).where(audit_records.c.id > 6))
    assert [item.seq for item in verify(sealed)] == [8]
    assert "the chain ends at seq 6: its end is cut off" in what(sealed)[0]
    with unguarded(sealed) as conn:
        conn.execute(sa.delete(audit_checkpoints))
    # The database alone looks whole now; the file outside knows better.
    assert what(sealed) == []
    found = what(sealed, outside=kept(tmp_path / "audit-checkpoints.jsonl"))
    assert "its end is cut off" in found[0]
    assert "no longer in the database" in found[1]


def test_recomputed_chain_does_not_match_the_signed_head(sealed, tmp_path: Path):
    with unguarded(sealed) as conn:
        conn.execute(sa.text("UPDATE audit_records SET actor = 'somebody' WHERE id = 2"))
        conn.execute(sa.delete(audit_chain))
        conn.execute(sa.delete(audit_checkpoints))
        conn.execute(sa.insert(audit_unsealed).from_select(["record"], sa.select(audit_records.c.id)))
    forger = Sealer(PostgresChain(sealed), signer())
    forger.seal_once()
    forger.close()
    assert what(sealed) == []  # consistent in itself
    assert "unknown key" in what(sealed, keys=trusted_keys(tmp_path))[0]
    assert (
        "the chain up to here was rebuilt"
        in what(sealed, outside=kept(tmp_path / "audit-checkpoints.jsonl"))[0]
    )


def test_a_forged_checkpoint_is_named(sealed):
    with unguarded(sealed) as conn:
        conn.execute(sa.text("UPDATE audit_checkpoints SET at = at - interval '1 day'"))
    assert "has an invalid signature" in what(sealed)[0]


def test_export_verifies_offline_and_reveals_tampering(sealed):
    lines = list(export(PostgresChain(sealed)))
    assert verify_export(io.BytesIO(b"".join(lines))).heads == {"pod1": 8}
    assert verify_export(lines).broken == []
    cut = verify_export(lines[:-1]).broken
    assert [item.seq for item in cut] == [8, 8]
    swapped = [*lines[:4], lines[5], lines[4], *lines[6:]]
    assert [item.what for item in verify_export(swapped).broken] == [
        "seq 3 is out of order, after seq 4: records were swapped"
    ]
    forged = [line.replace(b"gpu0004", b"gpu0009") for line in lines]
    assert [item.seq for item in verify_export(forged).broken] == [4]


def _fields(of) -> dict:
    return {name: getattr(of, name) for name in of.__struct_fields__}


def test_enrolments_of_a_day_are_looked_for_among_the_records_of_that_day(fresh_database: sa.Engine) -> None:
    """The scheduler asks every 30 s, and the records of years would take longer than a statement may."""
    fill(fresh_database, 3)
    plans: list[str] = []

    def explain(conn: sa.Connection, _: object, statement: str, values: Any, *rest: object) -> None:
        if statement.startswith("SELECT") and not plans:
            conn.exec_driver_sql("SET LOCAL enable_seqscan = off")
            plans.append("\n".join(conn.exec_driver_sql(f"EXPLAIN {statement}", values).scalars()))

    event.listen(fresh_database, "before_cursor_execute", explain)
    assert enrolled_again(fresh_database, "pod1", START) == []
    assert "Index Scan Backward using audit_records_pkey" in plans[0], plans[0]
    assert "Index Cond: (id > " in plans[0], plans[0]


def test_a_record_of_a_clock_that_is_behind_hides_no_enrolment(fresh_database: sa.Engine) -> None:
    fields = {"cluster": "pod1", "actor": "api", "subject": "node/gpu0001", "data": {"node": "gpu0001"}}
    with fresh_database.begin() as conn:
        for verb, hours in ((ENROLLED_AGAIN, 1), ("x.y", -2)):
            at = START + timedelta(hours=hours)
            conn.execute(sa.insert(audit_records).values(**fields, verb=verb, at=at))
    assert [node for _, node, _ in enrolled_again(fresh_database, "pod1", START)] == ["gpu0001"]
