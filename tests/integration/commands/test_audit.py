"""`healer audit` as a user runs it, on files."""

import json
from pathlib import Path

import pytest

from healer.audit import Head, Header, checkpoint_line, export_lines, sign_checkpoint
from tests.support.audit import START, chain_of, healer, signer

pytestmark = pytest.mark.heavy


def test_an_export_is_verified_without_a_database(tmp_path: Path):
    key, links = signer(), chain_of(5)
    signed = sign_checkpoint(key, "pod1", 5, links[4].hash, START)
    header = Header(
        healer_audit=1,
        at=START,
        clusters={"pod1": Head(seq=5, hash=links[4].hash.hex())},
        keys=[key.key],
        checkpoints=1,
    )
    good, bad, kept = tmp_path / "good", tmp_path / "bad", tmp_path / "kept"
    lines = list(export_lines(header, [signed], links))
    good.write_bytes(b"".join(lines))
    bad.write_bytes(b"".join(lines).replace(b"gpu0003", b"gpu0004"))
    kept.write_bytes(checkpoint_line(signed))

    whole = healer("audit", "verify", "--file", good)
    assert (whole.returncode, whole.stderr) == (0, "")
    assert "The chain is intact: 5 records." in whole.stdout
    assert key.key in whole.stdout

    broken = healer("audit", "verify", "--file", bad)
    assert broken.returncode == 1
    assert "broken: pod1, seq 3: record 3, or its hash, was changed after it was sealed." in broken.stdout

    answer = healer("audit", "verify", "--file", bad, "--json")
    assert answer.returncode == 1
    document = json.loads(answer.stdout)
    assert document["ok"] is False
    assert [item["seq"] for item in document["broken"]] == [3]

    known = healer(
        "audit", "verify", "--file", good, "--key", key.key.upper(), "--checkpoints", kept, "--json"
    )
    assert json.loads(known.stdout)["ok"] is True
    strange = healer("audit", "verify", "--file", good, "--key", "0" * 64)
    assert (strange.returncode, "unknown key" in strange.stdout) == (1, True)


def test_unreadable_audit_file_is_reported_in_one_sentence(tmp_path: Path):
    (tmp_path / "text").write_text("hello\n")
    wrong = healer("audit", "verify", "--file", tmp_path / "text")
    assert wrong.returncode == 1
    assert wrong.stderr.startswith("healer: line 1 is not the header of a healer audit export")
    missing = healer("audit", "verify", "--file", tmp_path / "missing")
    assert missing.returncode == 1
    assert missing.stderr == f"healer: {tmp_path}/missing cannot be read: No such file or directory\n"
    misuse = healer("audit", "verify", "--key", "0" * 64)
    assert misuse.returncode == 2
