"""Samples of each release, kept in `tests/kept/VERSION`, are read by this version: a backup with its rules,
an export of the audit, a recording.

A release adds its own: of a `healer demo` after its first repair, `healer backup` with the passphrase of
`tests/support/backups.py` (packed by xz) and `healer audit export`.
"""

import json
import lzma
from pathlib import Path

import pytest
import sqlalchemy as sa

from healer.adapters.postgres import migrate
from healer.adapters.postgres.audit_rows import PostgresChain
from healer.adapters.signing import trusted_keys
from healer.audit import report, verify_export
from healer.rulebook import ruleset
from tests.support.audit import healer
from tests.support.backups import restore
from tests.support.up import ROOT

pytestmark = pytest.mark.heavy
KEPT = ROOT / "tests/kept"
RELEASES = sorted(folder.name for folder in KEPT.iterdir())


@pytest.mark.parametrize("release", RELEASES)
def test_a_backup_is_restored_and_its_rules_are_valid(
    empty_database: sa.Engine, tmp_path: Path, release: str
) -> None:
    file = tmp_path / "backup.tar"
    file.write_bytes(lzma.decompress((KEPT / release / "backup.tar.xz").read_bytes()))
    done = restore(file, empty_database, tmp_path / "new")
    assert done.revision[1] == migrate.head()
    with empty_database.connect() as conn:
        incidents = conn.execute(sa.text("SELECT rule, state FROM incidents ORDER BY opened")).all()
        audited = conn.scalar(sa.text("SELECT count(*) FROM audit_records WHERE verb = 'node.drained'"))
    assert ("gpu-lost", "resolved") in [tuple(row) for row in incidents] and audited == 1
    assert report(PostgresChain(empty_database), keys=trusted_keys(tmp_path / "new")).broken == []
    rules = ruleset.load(tmp_path / "new" / "restored" / "rules")
    assert rules.rules and rules.playbooks


@pytest.mark.parametrize("release", RELEASES)
def test_an_export_of_the_audit_verifies(release: str) -> None:
    with (KEPT / release / "audit.jsonl").open("rb") as lines:
        found = verify_export(lines)
    assert found.broken == [] and found.heads["pod1"] > 10


@pytest.mark.parametrize("release", RELEASES)
def test_a_recording_is_replayed(release: str) -> None:
    done = healer("replay", KEPT / release / "recording.jsonl", "--json")
    assert done.returncode == 0, done.stderr
    found = json.loads(done.stdout)
    assert [incident["rule"] for incident in found["incidents"]] == ["gpu-lost"]
    assert "drain" in {held["action"] for held in found["held"]}, "in shadow mode"
