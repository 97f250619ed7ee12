"""The signing key on disk: made once, private, never replaced silently."""

import os
import stat
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PublicKey

from healer.adapters.signing import (
    KEY_FILE,
    PUBLIC_FILE,
    CheckpointFile,
    KeyUnreadable,
    load_signer,
    trusted_keys,
)
from healer.audit import checkpoint_line, read_checkpoints, sign_checkpoint
from tests.support.audit import START


def test_the_key_is_made_once_and_private(tmp_path: Path):
    first = load_signer(tmp_path / "data")
    again = load_signer(tmp_path / "data")
    assert first.key == again.key
    assert trusted_keys(tmp_path / "data") == {first.key}
    assert stat.S_IMODE((tmp_path / "data" / KEY_FILE).stat().st_mode) == 0o600
    assert {path.name for path in (tmp_path / "data").iterdir()} == {KEY_FILE, PUBLIC_FILE}
    Ed25519PublicKey.from_public_bytes(bytes.fromhex(first.key)).verify(again.sign(b"x"), b"x")


@pytest.fixture
def strict_umask() -> Iterator[None]:
    """Of the units that ship."""
    before = os.umask(0o027)
    yield
    os.umask(before)


@pytest.mark.usefixtures("strict_umask")
def test_public_keys_are_world_readable_and_the_rest_is_private(tmp_path: Path):
    load_signer(tmp_path)
    CheckpointFile(tmp_path / "audit-checkpoints.jsonl").append([b"{}\n"])
    modes = {path.name: f"{stat.S_IMODE(path.stat().st_mode):o}" for path in tmp_path.iterdir()}
    assert modes == {KEY_FILE: "600", PUBLIC_FILE: "644", "audit-checkpoints.jsonl": "640"}
    (tmp_path / PUBLIC_FILE).chmod(0o640)  # as an earlier version left it
    load_signer(tmp_path)
    assert stat.S_IMODE((tmp_path / PUBLIC_FILE).stat().st_mode) == 0o644


def test_processes_that_start_together_agree_on_one_key(tmp_path: Path):
    made: list[str] = []
    threads = [threading.Thread(target=lambda: made.append(load_signer(tmp_path).key)) for _ in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(made) == 8
    assert set(made) == {load_signer(tmp_path).key}


def test_a_new_key_joins_the_old_one_among_the_trusted(tmp_path: Path):
    old = load_signer(tmp_path)
    (tmp_path / KEY_FILE).unlink()
    new = load_signer(tmp_path)
    assert trusted_keys(tmp_path) == {old.key, new.key}


def test_a_damaged_key_stops_with_a_sentence_and_stays(tmp_path: Path):
    (tmp_path / KEY_FILE).write_text("nonsense")
    with pytest.raises(KeyUnreadable, match=r"audit-key cannot be read .*restore the key from a backup"):
        load_signer(tmp_path)
    assert (tmp_path / KEY_FILE).read_text() == "nonsense"


def test_checkpoints_are_added_and_read_back(tmp_path: Path):
    signer, file = load_signer(tmp_path), tmp_path / "audit-checkpoints.jsonl"
    first = sign_checkpoint(signer, "pod1", 1, b"\1" * 32, START)
    second = sign_checkpoint(signer, "pod1", 2, b"\2" * 32, START)
    kept = CheckpointFile(file)
    assert kept.lines() == []
    kept.append([])
    assert not file.exists()
    kept.append([checkpoint_line(first)])
    with file.open("ab") as cut:
        cut.write(b'{"checkpoint":{"at"')
    kept.append([checkpoint_line(second)])
    assert read_checkpoints(kept.lines()) == [first, second]


def test_the_public_side_may_be_elsewhere(tmp_path):
    signer = load_signer(tmp_path / "private", tmp_path / "published")
    assert trusted_keys(tmp_path / "published") == {signer.key}
    assert [path.name for path in (tmp_path / "private").iterdir()] == [KEY_FILE]
    assert load_signer(tmp_path / "private", tmp_path / "published").key == signer.key
