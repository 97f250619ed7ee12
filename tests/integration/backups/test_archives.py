"""Files that are no whole backup are refused, each with one sentence, before anything is touched."""

import io
import random
import tarfile
from pathlib import Path

import pytest
import sqlalchemy as sa

from healer.adapters.postgres import migrate
from healer.backups import BackupUnusable, check_backup, reading
from healer.backups.archive import Writer, writing
from healer.backups.clients import clients_for
from healer.backups.sealed_keys import read_passphrase
from tests.support.backups import PASSPHRASE, back_up, live_in

pytestmark = pytest.mark.heavy


@pytest.fixture(scope="module")
def whole(postgres_engine: sa.Engine, tmp_path_factory: pytest.TempPathFactory) -> bytes:
    folder = tmp_path_factory.mktemp("installation")
    live_in(postgres_engine, folder / "data")
    return back_up(postgres_engine, folder / "data", folder / "b.tar").read_bytes()


def refusal(data: bytes, folder: Path, passphrase: bytes | None = PASSPHRASE) -> str:
    file = folder / "b.tar"
    file.write_bytes(data)
    with pytest.raises(BackupUnusable) as refused, reading(file) as archive:
        check_backup(archive, passphrase)
    return str(refused.value)


def test_a_whole_one_is_taken(whole: bytes, tmp_path: Path) -> None:
    (tmp_path / "b.tar").write_bytes(whole)
    with reading(tmp_path / "b.tar") as archive:
        checked = check_backup(archive, PASSPHRASE)
    assert checked.keys is not None and set(checked.keys.files) == {"audit-key", "token-key"}


def test_truncated_file_is_refused_at_any_length(whole: bytes, tmp_path: Path) -> None:
    ends = {0, 1, 511, 512, 1024, len(whole) // 2, len(whole) // 2 // 512 * 512, len(whole) - 2048}
    for end in sorted(ends):
        text = refusal(whole[:end], tmp_path)
        assert "incomplete" in text and "\n" not in text, (end, text)


def test_changed_byte_is_found_at_any_position(whole: bytes, tmp_path: Path) -> None:
    """Of headers and padding the names, sizes and places count; what else a header says is not used."""
    with tarfile.open(fileobj=io.BytesIO(whole)) as tar:
        spans = [(info.name, info.offset_data, info.size) for info in tar.getmembers()]
    chance = random.Random(20261125)
    for name, begin, size in spans:
        for place in {begin, begin + size - 2, *(begin + chance.randrange(size) for _ in range(4))}:
            changed = bytearray(whole)
            changed[place] ^= 0x5A
            text = refusal(bytes(changed), tmp_path)
            assert "\n" not in text and str(tmp_path / "b.tar") in text, (name, text)


def test_members_that_were_added_or_exchanged_are_found(whole: bytes, tmp_path: Path) -> None:
    with tarfile.open(fileobj=io.BytesIO(whole)) as tar:
        members = [(info.name, tar.extractfile(info).read()) for info in tar.getmembers()]  # type: ignore[union-attr]

    def built(items: list[tuple[str, bytes]]) -> bytes:
        out = io.BytesIO()
        writer = Writer(out)
        for name, data in items:
            writer.add(name, data)
        out.write(bytes(1024))
        return out.getvalue()

    assert "added or removed" in refusal(built([("rules/evil.yaml", b"x"), *members]), tmp_path)
    assert "added or removed" in refusal(built(members[1:]), tmp_path)
    assert "file names differ" in refusal(built([("../evil", b"x"), *members]), tmp_path)
    assert "no manifest" in refusal(built([*members, ("later", b"x")]), tmp_path)


def test_dump_cannot_be_exchanged_without_the_passphrase(whole: bytes, tmp_path: Path) -> None:
    """Matching sums in the manifest do not help: the sealed sums differ."""
    import json
    from hashlib import sha256

    with tarfile.open(fileobj=io.BytesIO(whole)) as tar:
        members = {info.name: tar.extractfile(info).read() for info in tar.getmembers()}  # type: ignore[union-attr]
    members["database.dump"] = b"PGDMP of somebody else"
    manifest = json.loads(members["manifest.json"])
    data = members["database.dump"]
    manifest["members"]["database.dump"] = {"size": len(data), "sha256": sha256(data).hexdigest()}
    members["manifest.json"] = json.dumps(manifest).encode()
    out = io.BytesIO()
    writer = Writer(out)
    for name, content in members.items():
        writer.add(name, content)
    out.write(bytes(1024))
    assert refusal(out.getvalue(), tmp_path).endswith("its checksums differ from the sealed ones.")


def test_the_passphrase_has_to_be_the_same_one(whole: bytes, tmp_path: Path) -> None:
    assert refusal(whole, tmp_path, b"another passphrase") == (
        "the passphrase does not match the backup, or the backup's keys were changed."
    )
    assert "--passphrase-file" in refusal(whole, tmp_path, None)


def test_a_passphrase_is_long_and_in_a_file(tmp_path: Path) -> None:
    file = tmp_path / "pass"
    with pytest.raises(BackupUnusable, match="cannot be read"):
        read_passphrase(file)
    file.write_text("short\n")
    with pytest.raises(BackupUnusable, match="shorter than 12 characters"):
        read_passphrase(file)
    file.write_text("  long enough as one sees \nsecond line\n")
    assert read_passphrase(file) == b"long enough as one sees"


def test_one_of_a_newer_healer_names_it(
    whole: bytes, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(migrate, "revisions", lambda: ["0001"])
    assert "was made by a newer healer" in refusal(whole, tmp_path)


def test_other_files_are_no_backup(tmp_path: Path) -> None:
    assert "is not a healer backup" in refusal(b"hello\n" * 1000, tmp_path)
    with pytest.raises(BackupUnusable, match="No such file"), reading(tmp_path / "none"):
        pass


def test_two_at_once_do_not_mix(tmp_path: Path) -> None:
    target = tmp_path / "b.tar"
    with writing(target) as first:
        first.add("x", b"1")
        with pytest.raises(BackupUnusable, match="another process is writing"), writing(target):
            pass
    assert [path.name for path in tmp_path.iterdir()] == ["b.tar"]


def test_a_failure_leaves_the_file_that_was_there(tmp_path: Path) -> None:
    target = tmp_path / "b.tar"
    target.write_bytes(b"of yesterday")
    with pytest.raises(RuntimeError), writing(target) as writer:
        writer.add("x", b"1")
        raise RuntimeError
    assert [path.name for path in tmp_path.iterdir()] == ["b.tar"]
    assert target.read_bytes() == b"of yesterday"


@pytest.mark.parametrize(("server", "taken"), [(15, 15), (16, 17), (18, 18)])
def test_the_oldest_client_that_is_new_enough_is_taken(
    server: int, taken: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for release in (14, 15, 17):
        install(tmp_path / "lib" / str(release) / "bin", release)
    monkeypatch.setattr("healer.backups.clients._RELEASES", ((str(tmp_path / "lib"), "*/bin"),))
    monkeypatch.setenv("PATH", "/nonexistent")
    assert clients_for(server).release == taken


def test_a_server_newer_than_every_client_says_what_to_install(monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(BackupUnusable, match=r"PostgreSQL 99, but the newest one here is release \d+: in"):
        clients_for(99)


def install(folder: Path, release: int) -> None:
    folder.mkdir(parents=True)
    for name in ("pg_dump", "pg_restore", "psql"):
        program = folder / name
        program.write_text(f'#!/bin/sh\necho "{name} (PostgreSQL) {release}.3 (Debian)"\n')
        program.chmod(0o755)
