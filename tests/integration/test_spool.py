"""The spool on a real disk: order, bounds, torn ends, and what a dead process left."""

import errno
import os
import random
import signal
import struct
import subprocess
import sys
import zlib
from collections.abc import Iterator
from pathlib import Path

import pytest

from healer.adapters import spool as spool_module
from healer.adapters.spool import FileSpool
from healer.ports.request_errors import NoRoom
from healer.ports.signal_stores import Spooled
from tests.support.wait import wait_until


def records(first: int, count: int, *, kind: bytes = b"e", padding: int = 0) -> list[Spooled]:
    return [Spooled(kind, b"%08d" % number + b"x" * padding) for number in range(first, first + count)]


def drained(spool: FileSpool, *, most: int = 7, size: int = 10_000) -> list[Spooled]:
    found: list[Spooled] = []
    while some := spool.oldest(most, size):
        assert len(some) <= most
        found += some
        spool.drop_oldest(some)
    return found


@pytest.fixture
def spool(tmp_path: Path) -> Iterator[FileSpool]:
    one = FileSpool(tmp_path / "spool", limit=100_000, segment=1_000)
    yield one
    one.close()


def segments(folder: Path) -> list[Path]:
    return sorted(one for one in folder.glob("spool/*/*") if one.name != "lock")


def test_records_come_out_of_the_spool_once_and_in_order(spool: FileSpool, tmp_path: Path) -> None:
    assert not spool.pending and spool.oldest(10, 1000) == []
    for first in range(0, 300, 30):
        spool.append(records(first, 30))
    state = spool.state()
    assert (state.entries, state.limit_bytes) == (300, 100_000)
    assert state.size_bytes == sum(one.stat().st_size for one in segments(tmp_path))
    assert state.since is not None and len(segments(tmp_path)) > 3
    assert drained(spool) == records(0, 300)
    assert not spool.pending and spool.state().since is None
    assert segments(tmp_path) == [], "what is stored takes no room"


def test_records_arriving_during_a_flush_are_queued_behind(spool: FileSpool) -> None:
    spool.append(records(0, 10))
    first = spool.oldest(4, 10_000)
    spool.append(records(10, 200))
    assert spool.oldest(4, 10_000) == first, "not dropped, so it comes again"
    spool.drop_oldest(first)
    assert spool.state().entries == 206
    assert first + drained(spool) == records(0, 210)
    spool.append(records(500, 3))
    assert drained(spool) == records(500, 3)


def test_a_batch_is_bounded_by_bytes_but_never_empty(spool: FileSpool) -> None:
    spool.append(records(0, 10, padding=200))
    assert len(spool.oldest(100, 700)) == 3
    assert len(spool.oldest(100, 1)) == 1


def test_it_is_bounded_and_what_does_not_fit_is_not_there(spool: FileSpool, tmp_path: Path) -> None:
    with pytest.raises(NoRoom, match="limit") as caught:
        for first in range(0, 10_000, 50):
            spool.append(records(first, 50, padding=100))
    assert not caught.value.disk
    kept = spool.state().entries
    assert 0 < kept < 1000 and kept % 50 == 0
    assert sum(one.stat().st_size for one in segments(tmp_path)) <= 100_000
    assert drained(spool) == records(0, kept, padding=100)
    spool.append(records(0, 50, padding=100))
    assert spool.state().entries == 50, "there is room again"


def test_a_full_disk_leaves_no_half_record(tmp_path: Path) -> None:
    """The kernel stops this process' files at a size, as a full disk does in the middle of a write."""
    program = f"""
import resource, signal, sys
from healer.adapters.spool import FileSpool
from healer.ports.signal_stores import Spooled
from healer.ports.request_errors import NoRoom
from pathlib import Path
signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
spool = FileSpool(Path({str(tmp_path / "spool")!r}))
resource.setrlimit(resource.RLIMIT_FSIZE, (1000, resource.RLIM_INFINITY))
answers = []
for number in range(5):
    try:
        spool.append([Spooled(b"e", b"%08d" % number + b"x" * 300)])
        answers.append(number)
    except NoRoom as error:
        assert error.disk
resource.setrlimit(resource.RLIMIT_FSIZE, (resource.RLIM_INFINITY, resource.RLIM_INFINITY))
spool.append([Spooled(b"e", b"%08d" % 9 + b"x" * 300)])
print(answers, spool.state().entries)
"""
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=False)
    assert done.stdout.split("\n")[-2] == "[0, 1, 2] 4", done.stdout + done.stderr
    spool = FileSpool(tmp_path / "spool")
    assert drained(spool) == [Spooled(b"e", b"%08d" % number + b"x" * 300) for number in (0, 1, 2, 9)]
    spool.close()


def left_by_a_dead_process(folder: Path, count: int) -> None:
    """A process that spools `count` records and is killed by SIGKILL with its files open."""
    program = f"""
from healer.adapters.spool import FileSpool
from healer.ports.signal_stores import Spooled
from pathlib import Path
import time
spool = FileSpool(Path({str(folder / "spool")!r}), segment=1000)
for number in range({count}):
    spool.append([Spooled(b"e", b"%08d" % number)])
print("done", flush=True)
time.sleep(600)
"""
    child = subprocess.Popen([sys.executable, "-c", program], stdout=subprocess.PIPE)
    assert child.stdout is not None
    assert child.stdout.readline() == b"done\n"
    os.kill(child.pid, signal.SIGKILL)
    child.wait()


def test_the_next_process_takes_over_what_a_dead_one_left(tmp_path: Path) -> None:
    left_by_a_dead_process(tmp_path, 100)
    spool = FileSpool(tmp_path / "spool")
    assert spool.state().entries == 100
    spool.append(records(100, 5))
    assert drained(spool) == records(0, 105), "what was left is older"
    spool.close()
    assert [one.name for one in (tmp_path / "spool").iterdir()] == ["door"]


def test_running_process_takes_over_leftovers_but_never_from_a_live_one(tmp_path: Path) -> None:
    one, two = (FileSpool(tmp_path / "spool", segment=1000) for _ in range(2))
    one.append(records(0, 10))
    two.append(records(100, 10))
    assert (one.adopt(), two.adopt()) == (0, 0)
    one.close()
    part = two.oldest(4, 10_000)
    two.drop_oldest(part)
    assert two.adopt() == 10
    assert two.adopt() == 0
    assert sorted(part + drained(two)) == records(0, 10) + records(100, 10)
    two.close()


@pytest.mark.parametrize("cut", [1, 8, 9, 12, 17])
def test_torn_tail_loses_only_unacknowledged_records(tmp_path: Path, cut: int) -> None:
    left_by_a_dead_process(tmp_path, 10)
    (last,) = segments(tmp_path)
    os.truncate(last, last.stat().st_size - cut)
    lost = 1 if cut <= 17 else 2
    spool = FileSpool(tmp_path / "spool")
    assert drained(spool) == records(0, 10 - lost)
    spool.close()


def test_zeros_behind_the_last_record_are_no_records(tmp_path: Path) -> None:
    left_by_a_dead_process(tmp_path, 10)
    (last,) = segments(tmp_path)
    os.truncate(last, last.stat().st_size + 4096)
    spool = FileSpool(tmp_path / "spool")
    assert (spool.state().entries, drained(spool)) == (10, records(0, 10))
    spool.close()


def test_a_changed_byte_is_seen(tmp_path: Path) -> None:
    left_by_a_dead_process(tmp_path, 10)
    (last,) = segments(tmp_path)
    raw = bytearray(last.read_bytes())
    raw[-1] ^= 1
    last.write_bytes(raw)
    spool = FileSpool(tmp_path / "spool")
    assert drained(spool) == records(0, 9)
    assert [entries for entries, _ in spool.take_lost()] == [1], "it was whole once"
    spool.close()


@pytest.mark.parametrize(
    "place",
    [pytest.param(0, id="length"), pytest.param(3, id="length, far"), pytest.param(5, id="checksum"),
     pytest.param(8, id="kind"), pytest.param(12, id="content")],
)  # fmt: skip
@pytest.mark.parametrize("own", [pytest.param(True, id="own"), pytest.param(False, id="left")])
def test_a_bad_place_costs_what_it_hits_and_is_counted_and_kept(
    tmp_path: Path, place: int, own: bool
) -> None:
    spool = FileSpool(tmp_path / "spool")
    spool.append(records(0, 1000, padding=200))
    (file,) = segments(tmp_path)
    raw = bytearray(file.read_bytes())
    raw[400 * 217 + place] ^= 0x40
    if not own:
        spool.close()
    file.write_bytes(raw)
    if not own:
        spool = FileSpool(tmp_path / "spool")
    assert drained(spool, most=4000, size=1 << 20) == records(0, 400, padding=200) + records(
        401, 599, padding=200
    )
    assert [entries for entries, _ in spool.take_lost()] == [1]
    assert spool.take_lost() == []
    spool.close()
    (kept,) = (tmp_path / "spool").glob("*.bad")
    assert kept.read_bytes() == raw
    assert segments(tmp_path) == []


def test_record_forged_inside_a_body_is_not_read_from_the_spool(tmp_path: Path) -> None:
    """The outer record has a destroyed head: its content is searched, but no record in it is accepted."""
    (tmp_path / "forge").mkdir()
    forge = FileSpool(tmp_path / "forge")
    forge.append([Spooled(b"e", b"a forged event")])
    (made,) = [one for one in tmp_path.glob("forge/*/*") if one.name != "lock"]
    forged = made.read_bytes()
    forge.close()
    spool = FileSpool(tmp_path / "spool")
    spool.append([Spooled(b"s", b"x" * 50 + forged + b"x" * 50), *records(0, 3)])
    (file,) = segments(tmp_path)
    raw = bytearray(file.read_bytes())
    raw[0:4] = b"\xff\xff\xff\xff"
    file.write_bytes(raw)
    assert drained(spool) == records(0, 3)
    spool.close()


def test_bad_segments_are_kept_up_to_a_bound(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(spool_module, "BAD_MAX", 3)
    spool = FileSpool(tmp_path / "spool", segment=1)
    for number in range(6):
        spool.append(records(number, 2))
    for file in segments(tmp_path):
        raw = bytearray(file.read_bytes())
        raw[12] ^= 1
        file.write_bytes(raw)
    assert drained(spool) == records(1, 6)
    assert sum(entries for entries, _ in spool.take_lost()) == 6
    assert len(list((tmp_path / "spool").glob("*.bad"))) == 3
    spool.close()


def test_entries_that_are_no_segments_do_not_block_the_spool(tmp_path: Path) -> None:
    left_by_a_dead_process_here(tmp_path, 3)
    (segments(tmp_path)[0].parent / "00000000-1").mkdir()
    (tmp_path / "spool" / "00000000000000000001-1").write_text("a file named like a folder")
    loop = tmp_path / "spool" / "00000000000000000002-1"
    loop.symlink_to(loop)
    before = len(os.listdir("/proc/self/fd"))
    spool = FileSpool(tmp_path / "spool")
    assert drained(spool) == records(0, 3)
    for _ in range(3):
        assert spool.adopt() == 0
    assert [entries for entries, _ in spool.take_lost()] == [1, 1, 1], "each is reported once"
    spool.append(records(3, 2))
    assert drained(spool) == records(3, 2)
    spool.close()
    assert len(os.listdir("/proc/self/fd")) == before, "no lock is left open"


def test_records_of_another_version_are_kept_for_it(tmp_path: Path) -> None:
    spool = FileSpool(tmp_path / "spool", limit=1000)
    spool.set_aside(records(0, 5, kind=b"q"))
    assert not spool.pending and spool.adopt() == 0
    other = FileSpool(tmp_path / "spool", limit=1000)
    assert not other.pending, "it is not taken while its owner lives"
    with pytest.raises(NoRoom, match="unreadable"):
        spool.set_aside(records(0, 15, kind=b"q"))
    spool.close()
    assert other.adopt() == 5
    assert drained(other) == records(0, 5, kind=b"q")
    other.close()


def test_a_segment_without_a_salt_is_of_an_older_version(tmp_path: Path) -> None:
    left_by_a_dead_process_here(tmp_path, 1)
    (file,) = segments(tmp_path)
    content = b"e" + b"as it was written before"
    head = struct.pack("<II", len(content), zlib.crc32(content))
    file.unlink()
    (file.parent / "00000001-1795204773").write_bytes(head + content)
    spool = FileSpool(tmp_path / "spool")
    assert drained(spool) == [Spooled(b"e", b"as it was written before")]
    spool.close()


def test_a_segment_that_could_not_be_made_leaves_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    spool = FileSpool(tmp_path / "spool")
    before = len(os.listdir("/proc/self/fd"))

    def fails(path: Path) -> None:
        raise OSError(errno.EIO, "the disk")

    with monkeypatch.context() as broken:
        broken.setattr(spool_module, "_sync_folder", fails)
        for _ in range(5):
            with pytest.raises(NoRoom, match="cannot be written"):
                spool.append(records(0, 1))
    assert segments(tmp_path) == [] and len(os.listdir("/proc/self/fd")) == before
    spool.append(records(0, 2))
    with monkeypatch.context() as broken:
        broken.setattr(spool_module, "_sync_folder", fails)
        broken.setattr(spool, "_segment", 1)
        with pytest.raises(NoRoom, match="cannot be written"):
            spool.append(records(7, 1))
    assert len(segments(tmp_path)) == 1
    assert drained(spool) == records(0, 2)
    spool.close()


def test_an_end_that_cannot_be_read_any_more_stops_nothing(spool: FileSpool, tmp_path: Path) -> None:
    spool.append(records(0, 100))
    spool.append(records(100, 10))
    os.truncate(segments(tmp_path)[0], 34)
    found = drained(spool)
    assert found == records(0, 2) + records(100, 10)
    assert not spool.pending


@pytest.mark.parametrize("seed", range(20))
def test_segment_survives_arbitrary_bytes(tmp_path: Path, seed: int) -> None:
    """Whole records, some bytes of them changed: nothing raises, and only whole records come out."""
    left_by_a_dead_process_here(tmp_path, 30)
    (file,) = segments(tmp_path)
    raw, chance = bytearray(file.read_bytes()), random.Random(seed)
    changes = chance.randint(1, 4)
    for _ in range(changes):
        raw[chance.randrange(len(raw))] = chance.randrange(256)
    raw += chance.randbytes(chance.randrange(40))
    file.write_bytes(raw)
    spool = FileSpool(tmp_path / "spool")
    found = drained(spool)
    whole = records(0, 30)
    assert [one for one in whole if one in found] == found, "whole ones alone, in their order"
    assert len(found) >= 30 - changes, "a change costs the record that it hits, and no other"
    spool.append(records(90, 2))
    assert drained(spool) == records(90, 2)
    spool.close()


def left_by_a_dead_process_here(folder: Path, count: int) -> None:
    spool = FileSpool(folder / "spool")
    spool.append(records(0, count))
    spool.close()


def test_files_of_others_in_the_spool_folder_are_left_alone(tmp_path: Path) -> None:
    (tmp_path / "spool" / "lost+found").mkdir(parents=True)
    (tmp_path / "spool" / "note").write_text("of a person")
    left_by_a_dead_process_here(tmp_path, 3)
    (segments(tmp_path)[0].parent / "note").write_text("of a person")
    spool = FileSpool(tmp_path / "spool")
    assert drained(spool) == records(0, 3)
    spool.close()
    assert (tmp_path / "spool" / "lost+found").is_dir() and len(list(tmp_path.glob("spool/**/note"))) == 2


def test_a_closed_spool_is_there_for_the_next(tmp_path: Path) -> None:
    first = FileSpool(tmp_path / "spool")
    first.append(records(0, 3))
    first.close()
    second = FileSpool(tmp_path / "spool")
    wait_until(lambda: second.pending)
    assert drained(second) == records(0, 3)
    second.close()
