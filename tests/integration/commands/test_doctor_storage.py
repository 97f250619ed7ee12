"""What `healer doctor` finds in files and in the database, and what --fix mends."""

import json
import os
import shutil
import subprocess
from datetime import UTC, datetime, timedelta
from pathlib import Path

import msgspec
import pytest
import sqlalchemy as sa

from healer.adapters.postgres import tables
from healer.adapters.postgres.audit_rows import append
from healer.adapters.postgres.node_rows import PostgresSnapshots
from healer.adapters.postgres.tokens import PostgresTokens
from healer.bootstrap.access_checks import check_access
from healer.bootstrap.all_checks import mended
from healer.bootstrap.clock_checks import check_clocks
from healer.bootstrap.coverage_checks import check_coverage, check_unused_rules
from healer.bootstrap.doctor_checks import (
    Check,
    check_database,
    check_guards,
    check_notification_channels,
    check_rules,
)
from healer.bootstrap.executor import audit_signer
from healer.bootstrap.file_checks import check_files
from healer.bootstrap.storage_checks import check_storage
from healer.embedded import running
from healer.embedded.running import Running
from healer.model import Role, SlurmNode, SlurmSnapshot, audit_record
from healer.model.run import BACKED_UP, BACKUP
from healer.ports.callers import NewToken
from healer.settings import Settings, SettingsError, load
from healer.text import quoted
from tests.support.api import snapshot
from tests.support.forked import run
from tests.support.processes import clean_environ

pytestmark = pytest.mark.heavy


def settings(folder: Path, **environ: str) -> Settings:
    return load({"HEALER_DATA_DIR": str(folder), **environ}, which=lambda _: None)


def of(db: sa.Engine, folder: Path) -> Settings:
    return settings(folder, HEALER_DATABASE_URL=db.url.render_as_string(hide_password=False))


def named(looks: list[Check]) -> dict[str, Check]:
    return {look.name: look for look in looks}


def test_mistakes_in_rules_are_listed_in_one_line(tmp_path: Path) -> None:
    """The symbol of a control character separated them."""
    rules = Path(shutil.copytree("rules", tmp_path / "rules"))
    (rules / "watches.yaml").write_text("slow: 1\nqueued: 2\n")
    (look,) = check_rules(settings(tmp_path, HEALER_RULES_DIR=str(rules)))
    first, second = "watches.yaml:1: unknown field slow", "watches.yaml:2: unknown field queued"
    assert (look.state, "\n" in look.text) == ("fail", False)
    assert look.text.startswith(first) and f", {second}" in look.text


def test_guards_of_a_cluster_or_partition_that_is_not_there_are_found(
    fresh_database: sa.Engine, tmp_path: Path
) -> None:
    """They bind nothing, so the site's values would apply where stricter ones were meant: after a slip of the
    pen, or when a cluster was renamed, whose last picture is still in the database."""
    rules = Path(shutil.copytree("rules", tmp_path / "rules"))
    config, file, snapshots = (
        tmp_path / "healer.toml",
        rules / "guards.yaml",
        PostgresSnapshots(fresh_database),
    )
    config.write_text(
        "".join(f'[clusters.{name}]\nHEALER_SLURM_ADAPTERS = "sim"\n' for name in ("pod1", "pod2"))
    )
    url = fresh_database.url.render_as_string(hide_password=False)
    environ = {"HEALER_DATABASE_URL": url, "HEALER_RULES_DIR": str(rules), "HEALER_CONFIG": str(config)}
    shipped = file.read_text()

    def found(clusters: str, partitions: str) -> list[tuple[str, str]]:
        text = shipped.replace("\nclusters: {}", f"\nclusters: {{{clusters}}}")
        file.write_text(text.replace("\npartitions: {}", f"\npartitions: {{{partitions}}}"))
        looks = check_guards(settings(tmp_path, **environ))
        return [(look.state, look.text) for look in looks if "bind nothing" in look.text]

    for name in ("pod1", "old"):
        snapshots.put(msgspec.structs.replace(snapshot(), cluster=name))
    value = "{max_nodes: 1}"
    (wrong,) = found(f"pod1: {value}, Pod2: {value}, old: {value}", f"train: {value}, trian: {value}")
    assert (wrong[0], "the clusters Pod2, old, which" in wrong[1]) == ("fail", True)
    snapshots.put(msgspec.structs.replace(snapshot(), cluster="pod2"))  # it may have had that partition
    (wrong,) = found(f"pod1: {value}, pod2: {value}", f"train: {value}, trian: {value}")
    assert (wrong[0], "the partitions trian, which" in wrong[1]) == ("fail", True)
    assert found(f"pod2: {value}", f"train: {value}") == []


def test_routes_of_a_cluster_that_is_not_there_are_found(fresh_database: sa.Engine, tmp_path: Path) -> None:
    """They notify no one."""
    rules = Path(shutil.copytree("rules", tmp_path / "rules"))
    url = fresh_database.url.render_as_string(hide_password=False)
    environ = {"HEALER_DATABASE_URL": url, "HEALER_RULES_DIR": str(rules), "HEALER_CLUSTER": "pod1"}
    channel = "channels:\n  - {name: bot, kind: feishu}\n"

    def found(clusters: str) -> list[Check]:
        text = f"{channel}routes:\n  - {{how: page, to: [bot], clusters: [{clusters}]}}\n"
        (rules / "notifications.yaml").write_text(text)
        looks = check_notification_channels(settings(tmp_path, **environ))
        return [look for look in looks if look.name == "routes"]

    (wrong,) = found('"po*", old, pod1, "Pod*"')
    assert (wrong.state, "the clusters Pod*, old, which" in wrong.text) == ("fail", True)
    assert found('"po*"') == []


def test_modes_are_found_and_mended(tmp_path: Path) -> None:
    folder = tmp_path / "data"
    (missing,) = check_files(settings(folder))
    assert missing.state == "note" and missing.text == f"{folder} is missing"
    assert mended(missing).text == f"fixed: {folder} is missing"
    assert folder.stat().st_mode & 0o777 == 0o711
    (folder / "token-key").write_text("0" * 64)
    (folder / "token-key").chmod(0o644)
    folder.chmod(0o777)
    found = check_files(settings(folder))
    assert [(look.ok, look.state, look.repair) for look in found] == [
        (False, "fail", f"chmod 0755 {folder}"), (False, "fail", f"chmod 0600 {folder / 'token-key'}"),
    ]  # fmt: skip
    assert all(mended(look).ok for look in found)
    assert (folder / "token-key").stat().st_mode & 0o777 == 0o600
    assert [look.ok for look in check_files(settings(folder))] == [True]


def test_folder_of_the_audit_that_is_none_is_found_and_named_by_the_worker(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    where = settings(tmp_path, HEALER_AUDIT_DIR=str(tmp_path / "file" / "audit"))
    (missing,) = check_files(where)
    assert (missing.state, missing.text.partition(":")[0]) == ("fail", "HEALER_AUDIT_DIR")
    with pytest.raises(SettingsError, match=r"HEALER_AUDIT_DIR: the worker cannot write .*Not a directory"):
        audit_signer(where)
    (tmp_path / "audit").mkdir(mode=0o755)
    well = settings(tmp_path, HEALER_AUDIT_DIR=str(tmp_path / "audit"))
    assert check_files(well)[0].ok and audit_signer(well).key


def test_world_readable_secret_is_found_and_fixed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    data, token, login = tmp_path / "data", tmp_path / "slurm-token", tmp_path / "database-url"
    data.mkdir(mode=0o755)
    for path in (token, login):
        path.write_text("x")
        path.chmod(0o644)
    monkeypatch.setenv("HEALER_DATABASE_URL_FILE", str(login))
    where = settings(data, HEALER_SLURM_TOKEN_FILE=str(token))
    found = check_files(where)
    assert [look.repair for look in found] == [f"chmod 0640 {token}", f"chmod 0640 {login}"]
    assert not any(look.ok for look in found) and all(mended(look).ok for look in found)
    assert (login.stat().st_mode & 0o777, check_files(where)[0].state) == (0o640, "ok")


def test_the_note_of_a_killed_healer_is_removed_and_of_a_living_one_not(tmp_path: Path) -> None:
    ended = subprocess.Popen(["true"])
    ended.wait()
    tmp_path.chmod(0o711)
    note = Running(pid=ended.pid, url="http://127.0.0.1:1", database_url="x", broker_url="")
    running.note(tmp_path, note)
    (stale,) = check_files(settings(tmp_path))
    assert "was killed" in stale.text and mended(stale).ok
    assert not (tmp_path / "running.json").exists()
    running.note(tmp_path, Running(pid=os.getpid(), url="http://x", database_url="x", broker_url=""))
    assert [look.ok for look in check_files(settings(tmp_path))] == [True]


def test_failed_repair_reports_its_reason() -> None:
    def fails() -> None:
        raise PermissionError(1, "Operation not permitted")

    found = mended(
        Check(quoted("files"), False, quoted("other users can read x"), quoted("chmod 0600 x"), fails)
    )
    assert (found.ok, found.text) == (False, "other users can read x; not fixed: Operation not permitted")


def test_the_command_mends_and_says_so_in_json(tmp_path: Path) -> None:
    tmp_path.chmod(0o777)

    def doctor(*words: str) -> dict[str, object]:
        environ = clean_environ(HEALER_DATA_DIR=str(tmp_path), HEALER_SLURM_ADAPTERS="sim")
        done = run(["doctor", "--json", *words], environ, timeout=120)
        return next(check for check in json.loads(done.stdout)["checks"] if check["name"] == "files")

    assert (doctor()["state"], doctor()["fixable"]) == ("fail", True)
    assert str(doctor("--fix")["text"]).startswith("fixed: other users can write to")
    assert doctor()["state"] == "ok"


def test_the_database_is_looked_at(fresh_database: sa.Engine, tmp_path: Path) -> None:
    now = datetime.now(UTC)
    with fresh_database.begin() as conn:
        conn.execute(sa.insert(tables.snapshots).values(cluster="pod1", taken_at=now, version=1, body=b""))
        append(conn, audit_record("pod1", now - timedelta(days=20), "ann", BACKED_UP, BACKUP))
        soon = {
            "created_at": now - timedelta(days=60),
            "expires_at": now + timedelta(days=3),
            "role": "signals",
        }
        for name in ("gpu0001", "ann/ci"):
            owner = "ann" if "/" in name else ""
            conn.execute(
                sa.insert(tables.tokens).values(id=name, digest=name.encode(), name=name, owner=owner, **soon)
            )
    found = named(check_storage(of(fresh_database, tmp_path)))
    assert not found["backup"].ok and "healer backup" in found["backup"].repair
    assert "MB a day" in found["disk"].text
    # The tests' server does not wait for the disk: that is what is to be found.
    assert not found["PostgreSQL settings"].ok and "fsync = off" in found["PostgreSQL settings"].text
    assert not found["seal"].ok and "pod1" in found["seal"].text, "a record of 20 days is not sealed"
    ends = found["tokens that end soon"]
    assert not ends.ok and "gpu0001 on 20" in ends.text and "ann/ci" not in ends.text


def test_a_disk_is_looked_at_before_anything_was_recorded(fresh_database: sa.Engine, tmp_path: Path) -> None:
    found = named(check_storage(of(fresh_database, tmp_path)))
    assert "MB" in found["disk"].text and "a day" not in found["disk"].text


def test_nodes_and_rules_are_looked_at(fresh_database: sa.Engine, tmp_path: Path) -> None:
    now = datetime.now(UTC)
    nodes = {name: SlurmNode(name=name, state=("IDLE",), gpus=8) for name in ("gpu0001", "gpu0002")}
    snapshot = SlurmSnapshot(cluster="pod1", taken_at=now, nodes=nodes, jobs={})
    PostgresSnapshots(fresh_database).put(snapshot)
    with fresh_database.begin() as conn:
        row = {"cluster": "pod1", "kind": "heartbeat", "node": "gpu0001", "arrived_at": now}
        for digest, late_s in (b"1", 9), (b"2", 7), (b"3", 40):
            doc = {"event_at": (now - timedelta(seconds=late_s)).isoformat()}
            conn.execute(sa.insert(tables.inbox).values(**row, digest=digest, doc=doc))
        append(conn, audit_record("pod1", now, "healer", "x.y", "z"))
    where = of(fresh_database, tmp_path)
    (coverage,) = check_coverage(where)
    assert (
        coverage.text == "1 of 2 nodes of pod1 reported in the last minute; silent: gpu0002 (never enrolled)"
    )
    clock = named(check_clocks(where))["clocks of nodes"]
    assert (clock.ok, clock.text) == (False, "0 of 1 nodes of pod1 within 5 s of healer; not: gpu0001 -7 s")
    (rules,) = check_unused_rules(where)
    assert rules.ok and rules.text.startswith("0 of ") and "never: " in rules.text


def test_a_node_of_another_cluster_with_that_name_does_not_lend_it_a_token(
    fresh_database: sa.Engine, tmp_path: Path
) -> None:
    """Nor does a cluster that was removed from the settings count its nodes any more."""
    snapshots, now = PostgresSnapshots(fresh_database), datetime.now(UTC)
    nodes = {"gpu0001": SlurmNode(name="gpu0001", state=("IDLE",), gpus=8)}
    for name in ("pod1", "pod2", "removed"):
        snapshots.put(SlurmSnapshot(cluster=name, taken_at=now, nodes=nodes, jobs={}))
    tokens = PostgresTokens(fresh_database, "pod1", b"k" * 32)
    tokens.create(NewToken(role=Role.signals, name="n", node="gpu0001", cluster="pod1"), now=now, by="root")
    config = tmp_path / "healer.toml"
    config.write_text(
        "".join(f'[clusters.{name}]\nHEALER_SLURM_ADAPTERS = "sim"\n' for name in ("pod1", "pod2"))
    )
    url = fresh_database.url.render_as_string(hide_password=False)
    looks = check_coverage(settings(tmp_path, HEALER_DATABASE_URL=url, HEALER_CONFIG=str(config)))
    assert [look.text.rpartition("; ")[2] for look in looks] == [
        "silent: gpu0001 (have a token, and never sent anything in the last week)",
        "silent: gpu0001 (never enrolled)",
    ]


def test_doctor_with_the_login_of_a_part_names_what_it_cannot_check(
    fresh_database: sa.Engine, tmp_path: Path
) -> None:
    with fresh_database.begin() as conn:
        row = {"cluster": "pod1", "taken_at": datetime.now(UTC), "version": 1, "body": b""}
        conn.execute(sa.insert(tables.snapshots).values(**row))
    url = fresh_database.url.set(username="healer_worker").render_as_string(hide_password=False)
    where = settings(tmp_path, HEALER_DATABASE_URL=url)
    rights = named(check_database(where))["rights of the login"]
    assert rights.state == "note"
    assert rights.text.startswith("healer_worker may not read tokens, break_glass: break-glass, tokens and ")
    assert named(check_storage(where)).keys() >= {"disk", "PostgreSQL settings", "backup", "seal"}
    assert check_access(where) == []
    assert "rights of the login" not in named(check_database(of(fresh_database, tmp_path)))


def test_database_that_was_not_upgraded_is_a_failed_check(empty_database: sa.Engine, tmp_path: Path) -> None:
    where = of(empty_database, tmp_path)
    found = named(check_database(where))["tables"]
    assert (found.ok, found.repair) == (False, "Run `healer db upgrade`.")
    assert check_storage(where) == check_access(where) == []


def test_database_that_accepts_no_writes_is_a_failed_check(fresh_database: sa.Engine, tmp_path: Path) -> None:
    where, setting = of(fresh_database, tmp_path), "default_transaction_read_only"
    assert all(look.ok for look in check_database(where))
    with fresh_database.begin() as conn:
        conn.exec_driver_sql(f"ALTER DATABASE {fresh_database.url.database} SET {setting} = on")
    (refuses,) = [look for look in check_database(where) if not look.ok]
    with fresh_database.begin() as conn:
        conn.exec_driver_sql(f"ALTER DATABASE {fresh_database.url.database} RESET {setting}")
    assert (refuses.name, refuses.text.partition(":")[0]) == ("database", "accepts no writes")
