"""A recording on disk: files by the hour, bounded, readable to the last whole frame."""

import errno
import json
import os
import threading
from datetime import UTC, datetime, timedelta
from pathlib import Path

import cramjam
import msgspec
import pytest

from healer.bootstrap import offline
from healer.model import Component, Loss, Observation, ObservationKind, SlurmNode, SlurmSnapshot
from healer.processes.recording_queue import Recording
from healer.recordings import recording_folder
from healer.recordings.recorder import Recorder
from healer.recordings.recording import BadRecording, Source, merged
from healer.recordings.recording_folder import BadFrame, RecordingFolder, about, chosen, lines_of, recordings
from healer.sim.sim_clock import SimClock
from healer.sim.stores import MemoryColumns

START = datetime(2026, 11, 20, 3, tzinfo=UTC)
DAY = timedelta(days=1)


class Site:
    """A folder, its clock and its stopwatch."""

    def __init__(self, path: Path, *, max_bytes: int = 10**9, max_age: timedelta = 30 * DAY) -> None:
        self.clock, self.stopwatch = SimClock(START), 0.0
        self.path = path
        self.folder = RecordingFolder(
            path, max_bytes=max_bytes, max_age=max_age, now=self.clock.now, stopwatch=lambda: self.stopwatch
        )

    def record_row(self, number: int, *, samples: bool = False, fill: str = "") -> bool:
        begun = self.folder.begun()
        at = self.clock.now()
        line = {"at": at.isoformat(), "route": "clock", "body": {"number": number, "fill": fill}}
        self.folder.write(json.dumps(line).encode(), at, "clock", samples=samples)
        return begun

    def numbers(self) -> list[int]:
        sources = [Source(one.name, one.name[-14:], lines_of(one)) for one in sorted(self.path.glob("*.zst"))]
        return [entry.body["number"] for entry in merged(sources)]


def test_a_file_ends_with_its_hour_and_both_kinds_with_it(tmp_path: Path) -> None:
    site = Site(tmp_path)
    assert [site.record_row(0), site.record_row(1, samples=True), site.record_row(2)] == [True, False, False]
    site.clock.advance(3600)
    assert site.record_row(3) is True
    site.folder.close()
    listed = recordings(tmp_path)
    assert [(one.kind, one.lines, one.routes) for one in listed.files] == [
        ("events", 2, {"clock": 2}), ("samples", 1, {"clock": 1}), ("events", 1, {"clock": 1}),
    ]  # fmt: skip
    assert (listed.oldest, listed.newest) == (START, START + timedelta(hours=1))
    assert listed.bytes == sum(one.stat().st_size for one in tmp_path.glob("*.zst"))
    assert site.numbers() == [0, 2, 1, 3] or site.numbers() == [0, 1, 2, 3]


def test_only_healers_user_reads_it(tmp_path: Path) -> None:
    site = Site(tmp_path / "made")
    site.record_row(0)
    site.folder.close()
    (file,) = site.path.glob("*.zst")
    assert file.stat().st_mode & 0o777 == 0o600
    assert site.path.stat().st_mode & 0o777 == 0o700


def test_lines_are_on_disk_ten_seconds_later_and_what_is_cut_off_is_left_out(tmp_path: Path) -> None:
    site = Site(tmp_path)
    site.record_row(0)
    assert site.folder.rest() == 0
    assert site.numbers() == []
    site.stopwatch = 10.0
    site.folder.rest()
    assert site.numbers() == [0]
    site.record_row(1, fill="x" * 1000)
    site.folder.close()
    (file,) = tmp_path.glob("*.zst")
    whole = file.read_bytes()
    for cut in range(len(whole) - 1, about_first_frame(tmp_path), -7):
        file.write_bytes(whole[:cut])
        assert site.numbers() == [0]


def about_first_frame(folder: Path) -> int:
    """A byte within the second frame."""
    (file,) = folder.glob("*.zst")
    return file.read_bytes().index(b"\x28\xb5\x2f\xfd", 4) + 4


def test_file_that_is_no_recording_is_named(tmp_path: Path) -> None:
    file = tmp_path / "x-events.jsonl.zst"
    file.write_bytes(b"not zstd at all")
    with pytest.raises(BadFrame, match=r"x-events\.jsonl\.zst is not a zstd file"):
        list(lines_of(file))
    lines = ['{"at": "2026-11-20T03:00:00Z", "route": "clock"}', "{"]
    with pytest.raises(BadRecording, match="second line 2"):
        list(merged([Source("first", "events", lines[:1]), Source("second", "events", lines)]))


def test_a_damaged_file_is_named_and_hides_no_other(tmp_path: Path) -> None:
    site = Site(tmp_path)
    for number in range(3):
        site.record_row(number, fill="x" * 1000)
        site.clock.advance(3600)
    site.folder.close()
    first, damaged, last = sorted(tmp_path.glob("*.zst"))
    about(damaged).unlink()
    raw = bytearray(damaged.read_bytes())
    raw[10] ^= 0xFF
    damaged.write_bytes(raw)
    with pytest.raises(BadFrame, match=rf"{damaged.name} is not a zstd file, or is damaged at byte 0"):
        list(lines_of(damaged))
    listed = recordings(tmp_path)
    assert [one.file for one in listed.files] == [first.name, last.name]
    assert damaged.name in listed.problem
    with pytest.raises(OSError, match=damaged.name):
        chosen([tmp_path], None, None)
    damaged.write_bytes(
        bytes(cramjam.zstd.compress(b'{"at": "2026-11-20T03:00:00Z", "route": "a"}\n{"at"\n'))
    )
    assert f"{damaged.name} line 2: " in recordings(tmp_path).problem


def test_a_folder_without_rights_is_no_empty_one(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Root may read all, so the system's answer is played."""
    assert not recordings(tmp_path / "not made yet").problem

    def without_rights(path: object) -> object:
        raise PermissionError(errno.EACCES, "Permission denied", str(path))

    monkeypatch.setattr(os, "scandir", without_rights)
    monkeypatch.setattr(os, "listdir", without_rights)
    assert "Permission denied" in recordings(tmp_path).problem


def test_a_line_ends_at_its_newline_alone(tmp_path: Path) -> None:
    """JSON leaves Unicode's other ends of lines as they are, as a kernel line or a comment may have them."""
    site = Site(tmp_path)
    for number, end in enumerate("\u2028\u2029\x85\x0b\x1c\r"):
        site.folder.begun()
        entry = {"at": site.clock.now(), "route": "clock", "body": {"number": number, "fill": f"a{end}b"}}
        site.folder.write(msgspec.json.encode(entry), site.clock.now(), "clock")
    site.folder.close()
    assert site.numbers() == [0, 1, 2, 3, 4, 5]


def test_the_oldest_samples_go_first_and_then_what_is_too_old(tmp_path: Path) -> None:
    site = Site(tmp_path, max_bytes=5_000, max_age=timedelta(hours=5))
    fill = "".join(chr(33 + (number * 7919) % 90) for number in range(6_000))
    for hour in range(8):
        site.record_row(hour)
        site.record_row(100 + hour, samples=True, fill=fill[hour * 500 :])
        site.clock.advance(3600)
    site.record_row(8)
    site.folder.close()
    kept = recordings(tmp_path).files
    events = [one.first for one in kept if one.kind == "events"]
    assert events == [START + timedelta(hours=hour) for hour in range(3, 9)]
    assert len(kept) - len(events) < 6
    assert sum(one.bytes for one in kept) <= 5_000 + 3_000


def test_a_full_disk_loses_lines_and_stops_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    site = Site(tmp_path)
    site.record_row(0)
    site.stopwatch = 10.0
    site.folder.rest()
    monkeypatch.setattr(recording_folder, "free_share", lambda _: 0.01)
    site.record_row(1)
    site.stopwatch = 20.0
    assert site.folder.rest() == 1
    assert site.folder.rest() == 0
    monkeypatch.undo()
    site.record_row(2)
    site.folder.close()
    assert site.numbers() == [0, 2]
    assert [one.lost for one in recordings(tmp_path).files] == [1]


def test_a_summary_that_cannot_be_written_ends_no_recording(tmp_path: Path) -> None:
    site = Site(tmp_path)
    site.record_row(0)
    (file,) = tmp_path.glob("*.zst")
    in_its_way = file.with_name(f"{file.name}.tmp")
    in_its_way.mkdir()
    for number in (1, 2):
        site.stopwatch += 10.0
        assert site.folder.rest() == 0
        site.record_row(number)
    assert site.numbers() == [0, 1]
    in_its_way.rmdir()
    site.folder.close()
    assert [one.lines for one in recordings(tmp_path).files] == [3]


def test_a_file_that_a_dead_process_left_is_known_by_its_lines(tmp_path: Path) -> None:
    site = Site(tmp_path)
    site.record_row(0)
    site.clock.advance(5)
    site.record_row(1)
    site.folder.close()
    (file,) = tmp_path.glob("*.zst")
    about(file).unlink()
    (one,) = recordings(tmp_path).files
    assert (one.lines, one.first, one.last) == (2, START, START + timedelta(seconds=5))


def test_a_recording_begins_with_its_first_entry_not_with_its_file(tmp_path: Path) -> None:
    # A rehearsal looks from here on: an incident of the first entry must not be before it.
    site = Site(tmp_path)
    site.folder.begun()
    for seconds in (2, 0):
        site.folder.write(b"{}", START - timedelta(seconds=seconds), "clock")
    site.folder.close()
    (file,) = recordings(tmp_path).files
    assert (file.first, file.last) == (START - timedelta(seconds=2), START)


def test_a_span_begins_with_the_file_that_holds_it(tmp_path: Path) -> None:
    site = Site(tmp_path)
    for hour in range(4):
        site.record_row(hour)
        site.clock.advance(1800)
        site.record_row(10 + hour, samples=True)
        site.clock.advance(1800)
    site.folder.close()
    found = chosen([tmp_path], START + timedelta(minutes=70), START + timedelta(minutes=130))
    assert [path.name[9:11] for path in found] == ["04", "04", "05"]
    assert len(chosen([tmp_path], None, None)) == 8
    with pytest.raises(FileNotFoundError):
        chosen([tmp_path / "none"], None, None)


def test_files_that_overlap_are_merged_as_their_times_say(tmp_path: Path) -> None:
    """The clock was set back while the detector was away."""
    for later_minutes, number in ((0, 1), (60, 2), (20, 3)):
        site = Site(tmp_path)
        site.clock.advance(60 * later_minutes)
        for row in range(3):
            site.record_row(10 * number + row)
            site.clock.advance(900)
        site.folder.close()
    entries = offline.entries_of([tmp_path], None, None)
    assert [entry.body["number"] for entry in entries] == [10, 11, 30, 12, 31, 32, 20, 21, 22]


class Book:
    def __init__(self) -> None:
        self.counted: list[Loss] = []

    def add(self, losses: list[Loss]) -> None:
        self.counted += losses


def beat(number: int) -> Observation:
    about = Component(cluster="pod1", node="gpu0001")
    kind = ObservationKind.heartbeat
    return Observation(digest=str(number), kind=kind, component=about, event_at=START, arrived_at=START)


def test_full_queue_drops_and_counts_entries_and_repeats_the_snapshot(tmp_path: Path) -> None:
    site, book = Site(tmp_path), Book()
    tap = Recording(
        Recorder(site.folder, MemoryColumns()), site.folder,
        book=book, cluster="pod1", clock=site.clock, room=5,
    )  # type: ignore[arg-type]  # fmt: skip
    nodes = {"gpu0001": SlurmNode(name="gpu0001", state=("IDLE",))}
    shown = SlurmSnapshot(cluster="pod1", taken_at=START, nodes=nodes)
    for number in range(4):
        tap.note([beat(number), beat(100 + number)], shown, START, facts={}, references={})
    tap.once(0)
    site.clock.advance(61)
    tap.note([beat(9)], shown, site.clock.now(), facts={}, references={})
    stopped = threading.Event()
    stopped.set()
    tap.run(stopped)
    (file,) = tmp_path.glob("*.zst")
    routes = [json.loads(line)["route"] for line in lines_of(file)]
    beats = "signals/heartbeat"
    picture = ["slurm/nodes", "slurm/jobs"]
    assert routes == [*picture, beats, beats, "lost", *picture, beats], "the beats of a walk are one entry"
    assert [(one.source, one.count) for one in book.counted] == [("recorder", 4)]
