# ruff: noqa: E501 - lines as the programs print them
"""Logs, accounting and metrics of a site become a recording that the replay understands."""

import bz2
import codecs
import gzip
import io
import json
import lzma
import os
import random
import re
import tarfile
import time
import tracemalloc
import zipfile
from collections.abc import Sequence
from contextlib import suppress
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import msgspec
import pytest
import zstandard

from healer.importing.importer import Imported, Reader, Wanted, run
from healer.importing.kinds import Kind, recognised
from healer.importing.source_text import Unpacked
from healer.importing.sources import given, host_of
from healer.importing.workplace import workplace
from healer.model import Mode
from healer.recordings.recording import read
from healer.recordings.recording_folder import lines_of
from healer.signals.series import Names
from healer.sim.replaying import replay
from tests.support.loop import rules_in

CAPTURED = Path(__file__).parent / "captured"
XID = "NVRM: Xid (PCI:0000:9b:00): 79, pid=1, name=a, GPU has fallen off the bus."


LATER = datetime(2026, 11, 30, tzinfo=UTC)
DATED: set[Path] = set()


def imported(
    folder: Path, *files: Path, zone: str = "UTC", kinds: Sequence[Kind | None] = (), **how: Any
) -> tuple[Imported, list[dict[str, Any]]]:
    """The report, and the entries of the recording, where there are any."""
    rules = rules_in(Mode.auto)
    sources = [
        given(str(file), number, file.name, kind=kinds[number] if kinds else None, zone=zone)
        for number, file in enumerate(files)
    ]
    # The same on every day: what was not dated by `written` is of the days of the captured files.
    sources = [
        source if Path(source.path) in DATED else msgspec.structs.replace(source, written=LATER)
        for source in sources
    ]
    output = folder / "r.jsonl.zst"
    done = run(
        sources,
        Wanted(output=output, **how),
        Reader(rules.kernel_lines, Names(rules.catalogue), rules.version),
        lambda *_: None,
    )
    return done, [json.loads(line) for line in lines_of(output)] if output.exists() else []


def played(entries: Sequence[dict[str, Any]]) -> dict[str, Any]:
    return replay(rules_in(Mode.auto), read(json.dumps(entry) for entry in entries))


def kernel_lines(entries: Sequence[dict[str, Any]]) -> list[tuple[str, str]]:
    """(node, time) of each line."""
    return [
        (entry["body"]["node"], line["time"])
        for entry in entries
        if entry["route"] == "signals/kernel-log"
        for line in entry["body"]["entries"]
    ]


def changes(entries: Sequence[dict[str, Any]], kind: str) -> list[dict[str, Any]]:
    """Rows of nodes or jobs as they changed, each with the time of its entry."""
    return [
        row | {"at": entry["at"]}
        for entry in entries
        if entry["route"] == f"slurm/{kind}"
        for row in entry["body"].get("changed", [])
    ]


def quotes(done: Imported) -> list[str]:
    """Where the lines are that were skipped, as `grep -n` would say it."""
    examples = [text for its in done.sources[0].skipped.values() for text in its.examples]
    return sorted(":".join(text.split(":")[:2]) for text in examples)


def written(path: Path, text: str, at: str = "2026-11-25T21:00:00") -> Path:
    path.write_text(text)
    DATED.add(path)
    moment = datetime.fromisoformat(at).replace(tzinfo=UTC).timestamp()
    os.utime(path, (moment, moment))
    return path


# --- kernel lines


@pytest.mark.parametrize(
    ("line", "at"),
    [
        (f"Nov 25 20:56:33 gpu0001 kernel: [  123.456789] {XID}", "2026-11-25T20:56:33Z"),
        (f"<4>Nov  5 20:56:33 gpu0001.site.example kernel: {XID}", "2026-11-05T20:56:33Z"),
        (
            f"2026-11-25T21:56:33.123456+01:00 gpu0001 kernel: [  123.456789] {XID}",
            "2026-11-25T20:56:33.123456Z",
        ),
        (f"Nov  5 2026 20:56:33 gpu0001 kernel: [  123.456789] {XID}", "2026-11-05T20:56:33Z"),
        (f"Nov 5 2026 20:56:33 gpu0001 kernel: {XID}", "2026-11-05T20:56:33Z"),
        (f"Nov 5 2026 20:56:33 gpu0001 kernel:[  123.456789] {XID}", "2026-11-05T20:56:33Z"),
        (f"Nov 25 2024 20:56:33.25 gpu0001 kernel: {XID}", "2024-11-25T20:56:33.250000Z"),
        (
            f"<4>1 2026-11-25T20:56:33.5Z gpu0001 kernel - - - [  123.456789] {XID}",
            "2026-11-25T20:56:33.500000Z",
        ),
    ],
)
def test_forms_of_syslog(tmp_path: Path, line: str, at: str) -> None:
    log = written(tmp_path / "messages", f"{line}\n")
    done, entries = imported(tmp_path, log)
    assert kernel_lines(entries) == [("gpu0001", at)]
    assert done.sources[0].kind == "syslog"
    document = played(entries)
    (incident,) = document["incidents"]
    assert (incident["rule"], incident["root"]["node"]) == ("gpu-lost", "gpu0001")
    assert incident["evidence"][0]["at"] == at
    assert done.heard == {"gpu0001": [(at[:10], at[:10])]}
    assert {"drain"} <= {row["action"] for row in document["actions"] if row["node"] == "gpu0001"}


@pytest.mark.parametrize(
    ("before", "zone", "at"),
    [
        ("Wed 2026-11-25 20:56:33 UTC", "UTC", "2026-11-25T20:56:33Z"),
        ("Wed 2026-11-25 20:56:33 UTC", "Europe/Berlin", "2026-11-25T20:56:33Z"),
        ("Wed 2026-11-25 20:56:33 GMT", "Europe/Berlin", "2026-11-25T20:56:33Z"),
        ("Wed 2026-11-25 21:56:33 CET", "Europe/Berlin", "2026-11-25T20:56:33Z"),
        ("Thu 2026-11-26 00:56:33 +04", "Europe/Berlin", "2026-11-25T20:56:33Z"),
        ("Thu 2026-11-26 02:26:33 +0530", "Europe/Berlin", "2026-11-25T20:56:33Z"),
        # The hour that comes twice, by its name.
        ("Sun 2026-10-25 02:56:33 CEST", "Europe/Berlin", "2026-10-25T00:56:33Z"),
        ("Sun 2026-10-25 02:56:33 CET", "Europe/Berlin", "2026-10-25T01:56:33Z"),
        ("1795640193.123456", "Europe/Berlin", "2026-11-25T20:56:33.123456Z"),
    ],
)
def test_forms_of_journalctl(tmp_path: Path, before: str, zone: str, at: str) -> None:
    """`-o short-full` and `-o short-unix`, behind the journal's own note."""
    log = tmp_path / "journal"
    log.write_text(
        f"-- Journal begins at Mon 2026-10-05 10:00:00 CEST. --\n{before} gpu0001 systemd[1]: x\n"
        f"{before} gpu0001 kernel: {XID}\n{before} gpu0001 mara[7]: {XID}\n"
    )
    done, entries = imported(tmp_path, log, zone=zone)
    assert done.sources[0].kind == "syslog"
    assert kernel_lines(entries) == [("gpu0001", at)]
    assert quotes(done) == ["journal:4"]
    assert (done.sources[0].notes, list(done.heard)) == ([], ["gpu0001"])


@pytest.mark.parametrize("stray", ["1795640193.123456 step 3", "Wed 2026-11-25 20:56:33 UTC worker 3: x"])
def test_one_line_in_another_form_hides_no_other(tmp_path: Path, stray: str) -> None:
    log = tmp_path / "messages"
    log.write_text(
        f"Nov 25 20:56:31 gpu0001 systemd[1]: x\n{stray} of a program\n"
        f"Nov 25 20:56:33 gpu0001 kernel: {XID}\n"
    )
    done, entries = imported(tmp_path, log)
    assert done.sources[0].kind == "syslog"
    assert [node for node, _ in kernel_lines(entries)] == ["gpu0001"]


def test_a_zone_that_is_another_is_named(tmp_path: Path) -> None:
    log = tmp_path / "journal"
    log.write_text(f"Wed 2026-11-25 20:56:33 PST gpu0001 kernel: {XID}\n")
    done, _ = imported(tmp_path, log, zone="Europe/Berlin")
    assert "PST" in str(done.sources[0].notes)


def test_dmesg_of_a_node_is_named_by_its_file(tmp_path: Path) -> None:
    log = written(tmp_path / "dmesg-gpu0007.txt", f"[Wed Nov 25 20:56:33 2026] {XID}\n")
    _, entries = imported(tmp_path, log, zone="Europe/Berlin")
    assert kernel_lines(entries) == [("gpu0007", "2026-11-25T19:56:33Z")]


@pytest.mark.parametrize("before", ["", "kern  :err   : ", "<4>"])
@pytest.mark.parametrize("zone", ["+01:00", "+0100"])
def test_dmesg_with_iso_times_has_no_host_in_its_lines(tmp_path: Path, before: str, zone: str) -> None:
    """The first word of its message is none."""
    log = tmp_path / "dmesg-gpu0007.txt"
    log.write_text(
        f"{before}2026-11-25T20:56:32,000001{zone} usb 1-1: new device\n"
        f"{before}2026-11-25T20:56:33,123456{zone} {XID}\n"
        f"2026-11-25T20:56:34+01:00 gpu0008 kernel: {XID}\n"
    )
    done, entries = imported(tmp_path, log)
    assert done.sources[0].kind == "dmesg"
    assert kernel_lines(entries) == [("gpu0007", "2026-11-25T19:56:33.123456Z")]
    assert quotes(done) == ["dmesg-gpu0007.txt:3"]
    assert done.heard == {"gpu0007": [("2026-11-25", "2026-11-25")]}
    assert played(entries)["incidents"][0]["root"]["node"] == "gpu0007"


def test_the_first_word_of_a_message_is_no_host(tmp_path: Path) -> None:
    log = tmp_path / "gpu0007.log"
    log.write_text(
        f"2026-11-25T20:56:32Z gpu0001 cron: a\n2026-11-25T20:56:33Z {XID}\n2026-11-25T20:56:34Z kernel: {XID}\n"
    )
    done, entries = imported(tmp_path, log)
    assert (kernel_lines(entries), list(done.heard)) == ([], ["gpu0001"])
    assert {why: its.count for why, its in done.sources[0].skipped.items()} == {
        "does not begin with a time and a host name": 2
    }


def test_a_comma_before_a_host_is_no_dmesg(tmp_path: Path) -> None:
    log = tmp_path / "messages"
    log.write_text(f"2026-11-25T20:56:33,123456+01:00 gpu0001 kernel: {XID}\n")
    done, entries = imported(tmp_path, log)
    assert (done.sources[0].kind, kernel_lines(entries)) == (
        "syslog", [("gpu0001", "2026-11-25T19:56:33.123456Z")],
    )  # fmt: skip


def test_a_loss_over_three_lines_stays_together(tmp_path: Path) -> None:
    says = (
        "NVRM: The NVIDIA GPU 0000:9b:00.0",
        "NVRM: (PCI ID: 10de:2330) installed in this system has",
        "NVRM: fallen off the bus and is not responding to commands.",
    )
    log = written(tmp_path / "m", "".join(f"Nov 25 20:56:33 gpu0001 kernel: {line}\n" for line in says))
    _, entries = imported(tmp_path, log)
    (incident,) = played(entries)["incidents"]
    assert incident["root"]["pci"] == "0000:9b:00"


def test_the_word_of_another_program_is_none_of_the_kernel(tmp_path: Path) -> None:
    log = written(
        tmp_path / "m",
        f"Nov 25 20:56:33 gpu0001 mara: {XID}\nNov 25 20:56:34 gpu0001 app[7]: kernel: {XID}\n",
    )
    done, entries = imported(tmp_path, log)
    assert kernel_lines(entries) == []
    assert {why: its.count for why, its in done.sources[0].skipped.items()} == {
        "not written by the kernel itself": 2
    }


def test_stamps_without_a_year_go_over_new_year_and_a_leap_day(tmp_path: Path) -> None:
    days = ("Dec 31 23:59:59", "Jan  1 00:00:01", "Feb 29 12:00:00", "Mar  1 00:00:00")
    log = written(
        tmp_path / "m", "".join(f"{day} gpu0001 kernel: {XID}\n" for day in days), "2024-03-02T00:00:00"
    )
    done, entries = imported(tmp_path, log)
    assert [at for _, at in kernel_lines(entries)] == [
        "2023-12-31T23:59:59Z", "2024-01-01T00:00:01Z", "2024-02-29T12:00:00Z", "2024-03-01T00:00:00Z",
    ]  # fmt: skip
    assert done.sources[0].notes == ["the timestamps have no year: 2023 is assumed for the first one"]


def test_a_quiet_log_of_many_months_keeps_its_years(tmp_path: Path) -> None:
    """A node that says little has a year in one block, and a fault far from the block's first line."""
    months = ("Dec", "Jan", "Feb", "Mar", "Apr", "May", "Jun", "Jul", "Aug", "Sep", "Oct")
    lines = "".join(f"{month} 20 20:56:33 gpu0001 kernel: up\n" for month in months)
    log = written(tmp_path / "kern.log", f"{lines}Nov 20 20:56:33 gpu0001 kernel: {XID}\n")
    done, entries = imported(tmp_path, log)
    assert kernel_lines(entries) == [("gpu0001", "2026-11-20T20:56:33Z")]
    first, last = done.sources[0].first, done.sources[0].last
    assert (str(first)[:10], str(last)[:10]) == ("2025-12-20", "2026-11-20")
    days = [first for first, _ in done.heard["gpu0001"]]
    assert days == ["2025-12-20", *(f"2026-{month:02d}-20" for month in range(1, 12))]


def test_a_day_that_no_year_has_costs_its_own_line(tmp_path: Path) -> None:
    text = f"Nov 25 20:56:33 gpu0001 kernel: {XID}\nNov 31 20:56:33 gpu0002 kernel: {XID}\n"
    done, entries = imported(tmp_path, written(tmp_path / "m", text))
    assert kernel_lines(entries) == [("gpu0001", "2026-11-25T20:56:33Z")]
    assert done.sources[0].skipped["does not begin with a time and a host name"].count == 1


def test_the_hour_that_comes_twice_in_autumn(tmp_path: Path) -> None:
    clocks = ("02:10:00", "02:50:00", "02:10:00", "02:50:00", "03:10:00")
    log = written(
        tmp_path / "m", "".join(f"Oct 25 {clock} gpu0001 kernel: {XID}\n" for clock in ("01:50:00", *clocks))
    )
    _, entries = imported(tmp_path, log, zone="Europe/Berlin")
    assert [at[11:16] for _, at in kernel_lines(entries)] == [
        "23:50",
        "00:10",
        "00:50",
        "01:10",
        "01:50",
        "02:10",
    ]


def test_the_hour_that_comes_twice_is_seen_from_lines_of_no_interest(tmp_path: Path) -> None:
    text = (
        "Oct 25 01:50:00 gpu0001 cron: a\nOct 25 02:50:00 gpu0001 cron: a\nOct 25 02:05:00 gpu0001 cron: a\n"
        f"Oct 25 02:10:00 gpu0001 kernel: {XID}\nOct 25 03:10:00 gpu0001 cron: a\n"
    )
    _, entries = imported(tmp_path, written(tmp_path / "m", text), zone="Europe/Berlin")
    assert kernel_lines(entries) == [("gpu0001", "2026-10-25T01:10:00Z")]


def test_slurmctld_lines_in_syslog_are_imported(tmp_path: Path) -> None:
    text = (
        "Nov 25 20:56:33 ctl slurmctld[77]: update_node: node gpu0001 reason set to: fan\n"
        "Nov 25 20:56:33 ctl slurmctld[77]: update_node: node gpu0001 state set to DRAINED\n"
    )
    _, entries = imported(tmp_path, written(tmp_path / "m", text))
    (row,) = changes(entries, "nodes")
    assert (row["name"], row["state"], row["reason"], row["at"]) == (
        "gpu0001", ["IDLE", "DRAIN"], "fan", "2026-11-25T20:56:33Z",
    )  # fmt: skip


# --- archives and bad input


@pytest.mark.parametrize(
    "pack",
    [
        gzip.compress, bz2.compress, lzma.compress, zstandard.compress,
        lambda raw: zstandard.compress(raw) * 2, lambda raw: bz2.compress(raw) * 2,
    ],
)  # fmt: skip
def test_packed_sources(tmp_path: Path, pack: Any) -> None:
    path = tmp_path / "messages.1"
    path.write_bytes(pack(f"2026-11-25T20:56:33Z gpu0001 kernel: {XID}\n".encode()))
    done, entries = imported(tmp_path, path)
    assert set(kernel_lines(entries)) == {("gpu0001", "2026-11-25T20:56:33Z")}
    assert done.sources[0].skipped == {}


@pytest.mark.parametrize(
    ("mark", "encoding"),
    [(codecs.BOM_UTF8, "utf-8"), (codecs.BOM_UTF16_LE, "utf-16-le"), (codecs.BOM_UTF16_BE, "utf-16-be")],
)
@pytest.mark.parametrize("pack", [bytes, gzip.compress])
def test_text_as_windows_writes_it(tmp_path: Path, mark: bytes, encoding: str, pack: Any) -> None:
    """Over more than one block, with letters of two and four bytes."""
    line = f"2026-11-25T20:56:33Z gpu0001 kernel: {XID}\r\n"
    others = "2026-11-25T20:56:34Z gpu0001 app: Gerät 𝄞 läuft\r\n" * 30_000
    path = tmp_path / "messages"
    path.write_bytes(pack(mark + (line + others + line.replace("33Z", "35Z")).encode(encoding)))
    done, entries = imported(tmp_path, path)
    assert kernel_lines(entries) == [
        ("gpu0001", "2026-11-25T20:56:33Z"), ("gpu0001", "2026-11-25T20:56:35Z"),
    ]  # fmt: skip
    (source,) = done.sources
    assert (source.kind, source.lines, source.skipped) == ("syslog", 30_002, {})


def test_utf_16_that_ends_within_a_letter_is_read_to_there(tmp_path: Path) -> None:
    path = tmp_path / "messages"
    line = f"2026-11-25T20:56:33Z gpu0001 kernel: {XID}\n"
    path.write_bytes((codecs.BOM_UTF16_LE + (line + "x").encode("utf-16-le"))[:-1])
    _, entries = imported(tmp_path, path)
    assert kernel_lines(entries) == [("gpu0001", "2026-11-25T20:56:33Z")]


@pytest.mark.parametrize("pack", [gzip.compress, bz2.compress])
def test_a_broken_archive_costs_its_end(tmp_path: Path, pack: Any) -> None:
    noise = random.Random(1).randbytes(3 << 20).hex()
    lines = f"2026-11-25T20:56:33Z gpu0001 kernel: {XID}\n" + "".join(
        f"2026-11-25T20:56:34Z gpu0001 x: {noise[at : at + 100]}\n" for at in range(0, len(noise), 100)
    )
    path = tmp_path / "m.gz"
    path.write_bytes(pack(lines.encode())[:-1000])
    done, entries = imported(tmp_path, path)
    assert len(kernel_lines(entries)) == 1
    assert [why.split(":")[0] for why in done.sources[0].skipped] == ["the archive is incomplete or damaged"]


@pytest.mark.parametrize("pack", [gzip.compress, lzma.compress, zstandard.compress])
def test_a_small_archive_that_was_cut_is_read_to_its_cut_and_named(tmp_path: Path, pack: Any) -> None:
    noise = random.Random(1).randbytes(200 << 10).hex()
    lines = f"2026-11-25T20:56:33Z gpu0001 kernel: {XID}\n" + "".join(
        f"2026-11-25T20:56:34Z gpu0001 x: {noise[at : at + 100]}\n" for at in range(0, len(noise), 100)
    )
    path = tmp_path / "messages"
    packed = pack(lines.encode())
    for kept in (len(packed) - 3, 150 << 10):
        path.write_bytes(packed[:kept])
        done, entries = imported(tmp_path, path)
        assert len(kernel_lines(entries)) == 1
        whys = [why.split(":")[0] for why in done.sources[0].skipped]
        assert whys == ["the archive is incomplete or damaged"]
    path.write_bytes(packed[:30])  # nothing of it can be read
    done, _ = imported(tmp_path, path)
    assert done.sources[0].skipped


def test_what_no_program_wrote_ends_no_import(tmp_path: Path) -> None:
    latin = tmp_path / "latin"
    latin.write_bytes('{"MESSAGE":"Gerät"}\n'.encode("latin-1"))
    table = (CAPTURED / "sacct-22.05.txt").read_text()
    sacct = written(tmp_path / "sacct", table.replace("gres/gpu=1,", "gres/gpu=99999999999999999999,"))
    done, entries = imported(tmp_path, latin, sacct)
    assert done.sources[0].skipped
    assert any(entry["route"] == "slurm/jobs" for entry in entries)


def test_bad_lines_cost_themselves(tmp_path: Path) -> None:
    good = f"2026-11-25T20:56:33Z gpu0001 kernel: {XID}\n".encode()
    path = tmp_path / "m"
    with path.open("wb") as file:
        file.write(good)
        for _ in range(48):  # a line of 48 MiB
            file.write(b"x" * (1 << 20))
        file.write(
            b"\n2026-11-25T20:56:34Z gpu0002 kernel: \0" + XID.encode() + b"\n" + bytes(range(128, 256))
        )
        file.write(b"\n" + good.replace(b"33Z", b"59Z"))
        file.write(f"2026-11-25T20:56:59Z ../../etc/x;rm kernel: {XID}\n".encode())
        file.write(f"2026-11-25T20:57:00Z {'a' * 300} kernel: {XID}\n".encode())
    done, entries = imported(tmp_path, path)
    nodes = [(node, at[-3:]) for node, at in kernel_lines(entries)]
    assert nodes == [("gpu0001", "33Z"), ("gpu0001", "59Z")]
    skipped = {why: its.count for why, its in done.sources[0].skipped.items()}
    assert skipped["node: not a valid node name"] == 1
    assert skipped["longer than 256 KiB"] == 1
    assert skipped["binary data: the line contains a NUL"] == 1
    assert played(entries)["incidents"][0]["root"]["node"] == "gpu0001"


def test_a_skipped_line_is_quoted_with_its_file_and_number(tmp_path: Path) -> None:
    """Over several blocks, after lines that are skipped as such, and where a group of lines is judged later."""
    good = f"2026-11-25T20:56:33Z gpu0001 kernel: {XID}\n".encode()
    other = b"2026-11-25T20:56:34Z gpu0001 app: hello\n"
    path = tmp_path / "messages"
    path.write_bytes(
        good
        + b"2026-11-25T20:56:34Z gpu0001 app: \0\n" * 3
        + other * 40_000
        + good.replace(b"kernel", b"mara")  # 40005
        + b"x" * (3 << 20)
        + b"\n"
        + other * 2
        + f"Nov 31 20:56:33 gpu0002 kernel: {XID}\n".encode()  # 40009
        + f"2026-11-25T20:57:00Z {'a' * 300} kernel: {XID}\n".encode()
        + other * 30_000
    )
    done, _ = imported(tmp_path, path)
    places = ("2", "3", "4", "40005", "40006", "40009", "40010")
    assert quotes(done) == sorted(f"messages:{number}" for number in places)
    assert done.sources[0].lines == 70_010


@pytest.mark.parametrize(
    ("kind", "lines", "places"),
    [
        (Kind.sacct, ["JobIDRaw|State|Start|End|NodeList", "1|COMPLETED", "2|x"], "23"),
        (Kind.slurmctld, ["a", "update_node: node a reason set to: b"], "2"),
        (Kind.metrics, ["a 1", "?", "b ="], "123"),
        (Kind.nhc, ["", "ERROR:  nhc:  Health check failed:  a", "x", "Health check failed:  b"], "24"),
        (Kind.journal_json, ["{}", '{"_TRANSPORT":"kernel"'], "2"),
        (Kind.sinfo_reasons, ["REASON USER TIMESTAMP NODELIST", "a b c"], "2"),
        (Kind.nvidia_smi, ["a", "==============NVSMI LOG==============", "Timestamp : x", ""], "2"),
        (Kind.nvsentinel, ["{}", "", '{"a": 1}'], "13"),
    ],
)
def test_each_reader_numbers_what_it_skips(tmp_path: Path, kind: Kind, lines: list[str], places: str) -> None:
    path = tmp_path / "f"
    path.write_text("".join(f"{line}\n" for line in lines))
    done, _ = imported(tmp_path, path, kinds=[kind])
    assert quotes(done) == [f"f:{place}" for place in places]


def archived(pack: Any) -> bytes:
    """Logs of two nodes in one file."""
    held = io.BytesIO()
    pack(
        held, {f"{host}/dmesg": f"[Wed Nov 25 20:56:33 2026] {XID}\n" * 9 for host in ("gpu0001", "gpu0002")}
    )
    return held.getvalue()


def tarred(file: io.BytesIO, texts: dict[str, str]) -> None:
    with tarfile.open(fileobj=file, mode="w") as archive:
        for name, text in texts.items():
            entry = tarfile.TarInfo(name)
            entry.size = len(text)
            archive.addfile(entry, io.BytesIO(text.encode()))


def zipped(file: io.BytesIO, texts: dict[str, str]) -> None:
    with zipfile.ZipFile(file, "w") as archive:
        for name, text in texts.items():
            archive.writestr(name, text)


@pytest.mark.parametrize("caller", ["", "[ T1234]", " [    C12]"])
def test_kernels_own_stamp_dates_no_line_of_a_log(tmp_path: Path, caller: str) -> None:
    """It counts from a boot that the log does not know; with CONFIG_PRINTK_CALLER the thread follows it."""
    head = "2026-11-25T20:56:33.123456+00:00 gpu0001 kernel: "
    _, entries = imported(tmp_path, written(tmp_path / "messages", f"{head}[  123.456789]{caller} {XID}\n"))
    [incident] = played(entries)["incidents"]
    assert [one["at"] for one in incident["evidence"]] == ["2026-11-25T20:56:33.123456Z"]


@pytest.mark.parametrize(
    ("name", "before"),
    [
        ("gpu0001.dmesg", "\x1b[32m[Wed Nov 25 20:56:33 2026] \x1b[0m\x1b[33m"),
        ("gpu0001.dmesg", "kern  :err   : \x1b[32m[Wed Nov 25 20:56:33 2026] \x1b[0m\x1b[33m"),
        ("gpu0001.dmesg", "\x1b[32m2026-11-25T20:56:33,123456+00:00 \x1b[0m\x1b[33m"),
        ("messages", "\x1b[0;1;31mNov 25 20:56:33 gpu0001 kernel: "),
    ],
)
def test_colours_of_a_terminal_are_no_part_of_a_line(tmp_path: Path, name: str, before: str) -> None:
    """`dmesg -T --color=always >FILE`, and what `script` keeps."""
    head, _, rest = XID.partition(": ")
    log = written(tmp_path / name, f"{before}{head}: \x1b[0m\x1b[31m{rest}\x1b[0m\n")
    done, entries = imported(tmp_path, log)
    assert not quotes(done)
    [incident] = played(entries)["incidents"]
    assert (incident["rule"], incident["root"]["node"]) == ("gpu-lost", "gpu0001")
    assert "\x1b" not in json.dumps(entries, ensure_ascii=False)


LOST = (
    "NVRM: The NVIDIA GPU 0000:9b:00.0",
    "NVRM: (PCI ID: 10de:2330) installed in this system has",
    "NVRM: fallen off the bus and is not responding to commands.",
)


@pytest.mark.parametrize(
    ("name", "before"),
    [
        ("gpu0001.dmesg", "[Wed Nov 25 20:56:33 2026] "),
        ("gpu0001.dmesg", "2026-11-25T20:56:33,123456+00:00 "),
        ("messages", "Nov 25 20:56:33 gpu0001 kernel: "),
        ("messages", "2026-11-25T20:56:33.123456+00:00 gpu0001 kernel: "),
    ],
)
def test_rest_of_a_record_is_indented_and_has_no_time(tmp_path: Path, name: str, before: str) -> None:
    blank = "\n" + " " * len(before)
    other = f"{before}mce: CPU12: Core temperature is above threshold, cpu clock is throttled\n"
    log = written(tmp_path / name, other + before + blank.join(LOST) + "\n" + other)
    done, entries = imported(tmp_path, log)
    assert not quotes(done)
    incidents = played(entries)["incidents"]
    assert [(one["rule"], one["root"].get("pci")) for one in incidents] == [("gpu-lost", "0000:9b:00")]


def test_indented_line_behind_another_is_the_rest_of_nothing(tmp_path: Path) -> None:
    head = "[Wed Nov 25 20:56:33 2026] "
    log = written(tmp_path / "gpu0001.dmesg", f"{head}{LOST[0]}\n{head}usb 1-1: new device\n    {LOST[2]}\n")
    done, entries = imported(tmp_path, log)
    assert quotes(done) == ["gpu0001.dmesg:3"]
    assert not played(entries)["incidents"]


@pytest.mark.parametrize("kind", [None, Kind.dmesg])
@pytest.mark.parametrize(
    "content",
    [
        archived(tarred), gzip.compress(archived(tarred)), archived(zipped),
        gzip.compress(gzip.compress(f"[Wed Nov 25 20:56:33 2026] {XID}\n".encode())),
    ],
    ids=["tar", "tar.gz", "zip", "gz.gz"],
)  # fmt: skip
def test_an_archive_of_files_is_none_of_its_lines(tmp_path: Path, content: bytes, kind: Kind | None) -> None:
    """Its name is no host, and its parts begin within a line."""
    path = tmp_path / "logs.dmesg"
    path.write_bytes(content)
    done, entries = imported(tmp_path, path, kinds=[kind])
    assert (entries, done.heard) == ([], {})
    assert [(why, its.count) for why, its in done.sources[0].skipped.items()] == [
        ("an archive of files, or packed twice: unpack it and import the folder", 1)
    ]


@pytest.mark.parametrize(
    ("content", "why"),
    [
        ("", "empty"),
        ("\n \n", "empty"),
        (f"[  123.456789] {XID}\n", "the lines of this dmesg have no date: print it with dmesg -T"),
        (
            f"kern  :err   : [    3.400584] {XID}\n",
            "the lines of this dmesg have no date: print it with dmesg -T",
        ),
        ("a\nb\n", "format not recognized: set it with --as"),
    ],
)
def test_why_a_file_is_not_recognised(tmp_path: Path, content: str, why: str) -> None:
    done, _ = imported(tmp_path, written(tmp_path / "gpu0001.dmesg", content))
    assert list(done.sources[0].skipped) == [why]


def test_a_name_that_is_no_text_is_a_name(tmp_path: Path) -> None:
    """Of a file from a system whose names are Latin-1: of a log that names its hosts, and of one that does not."""
    folder = tmp_path / os.fsdecode(b"caf\xe9")
    folder.mkdir()
    files = [
        folder / os.fsdecode(b"m\xe9ssages"),
        folder / os.fsdecode(b"gpu\xe9.dmesg"),
        folder / "slurmd.log",
    ]
    files[0].write_text(f"2026-11-25T20:56:33Z gpu0001 kernel: {XID}\n")
    files[1].write_text(f"[Wed Nov 25 20:56:33 2026] {XID}\n")
    files[2].write_text("[2026-11-25T20:56:33.000] error: prolog failed: rc:1 output:x\n")
    done, entries = imported(tmp_path, *files)
    assert kernel_lines(entries) == [("gpu0001", "2026-11-25T20:56:33Z")]
    assert done.sources[0].source == "m\\xe9ssages"
    assert list(done.sources[1].skipped) == ["node: not a valid node name"]


@pytest.mark.parametrize(
    ("name", "host"),
    [
        ("dmesg-gpu0007.txt", "gpu0007"),
        ("gpu_7.dmesg.gz", "gpu_7"),
        ("nvidia_smi_gpu_7.txt", "gpu_7"),
        ("dmesg gpu0007.txt", "gpu0007"),
        ("dmesg-gpu0007-2026-11-25.txt", "gpu0007"),
        ("dmesg-gpu-07_20261125T205633.txt", "gpu-07"),
        ("dmesg-20261125", "gpu0009"),
        ("dmesg.1.gz", "gpu0009"),
        ("gpu0007.site.example.dmesg", "gpu0007"),
    ],
)
def test_the_host_of_a_files_name(name: str, host: str) -> None:
    assert host_of(Path("/srv/gpu0009") / name) == host


def test_the_host_that_a_name_gives_is_said(tmp_path: Path) -> None:
    done, _ = imported(tmp_path, written(tmp_path / "gpu0007.dmesg", f"[Wed Nov 25 20:56:33 2026] {XID}\n"))
    assert done.sources[0].notes == [
        "its lines name no host: gpu0007 is taken from the name of the file or folder"
    ]


def test_what_is_no_name_of_a_node_is_no_node(tmp_path: Path) -> None:
    folder = tmp_path / "logs of a rack"
    folder.mkdir()
    log = written(folder / "slurmd.log", "[2026-11-25T20:56:33.000] error: prolog failed: rc:1 output:x\n")
    done, entries = imported(tmp_path, log)
    assert (done.nodes, done.left_out) == (0, {"logs of a rack": 1})
    assert changes(entries, "nodes") == []
    assert all(not entry["body"].get("nodes") for entry in entries if entry["route"] == "slurm/nodes")


def test_a_reason_at_a_time_that_is_none_costs_itself(tmp_path: Path) -> None:
    text = (
        "NodeName=gpu0001 Arch=x86_64 CoresPerSocket=1\n   State=IDLE+DRAIN\n"
        "   Reason=bad fan [root@0001-01-01T00:00:00]\n\n"
        "NodeName=gpu0002 Arch=x86_64 CoresPerSocket=1\n   State=DOWN\n   Reason=x [root@2026-11-20T00:00:00]\n"
    )
    done, entries = imported(tmp_path, written(tmp_path / "nodes.txt", text))
    assert list(done.sources[0].skipped) == ["not a time: 1 is not a plausible year"]
    assert {row["name"] for row in changes(entries, "nodes") if row.get("reason") == "x"} == {"gpu0002"}


def test_a_time_later_than_the_file_is_quoted_as_a_time(tmp_path: Path) -> None:
    path = written(
        tmp_path / "m",
        f"2026-11-25T20:56:33Z gpu0001 kernel: {XID}\n2030-01-01T00:00:00Z gpu0001 kernel: {XID}\n",
    )
    done, _ = imported(tmp_path, path)
    (its,) = done.sources[0].skipped.values()
    assert its.examples == ["m:2: 2030-01-01T00:00:00Z"]


def test_file_of_unknown_format_is_reported(tmp_path: Path) -> None:
    path = tmp_path / "picture.png"
    path.write_bytes(random.Random(2).randbytes(100_000))
    done, entries = imported(tmp_path, path, CAPTURED / "slurmctld-22.05.log")
    assert list(done.sources[0].skipped) == ["format not recognized: set it with --as"]
    assert changes(entries, "nodes")


# --- the journal


def journal(fields: dict[str, Any]) -> str:
    base = {
        "__REALTIME_TIMESTAMP": "1795640193000000", "_HOSTNAME": "gpu0001", "_TRANSPORT": "kernel",
        "_BOOT_ID": "0b11d01416854" + "4bda6ed5fc0bc1c44ae", "MESSAGE": XID, "SYSLOG_FACILITY": "0",
    }  # fmt: skip
    return json.dumps(base | fields)


def test_the_journal_says_whose_a_line_is(tmp_path: Path) -> None:
    forged = {"_TRANSPORT": "syslog", "SYSLOG_IDENTIFIER": "kernel", "_PID": "7", "_HOSTNAME": "gpu0002"}
    path = written(tmp_path / "j", journal({}) + "\n" + journal(forged) + '\n{"cut": "_TRANSPORT":"kernel"\n')
    done, entries = imported(tmp_path, path, kinds=[Kind.journal_json])
    assert [node for node, _ in kernel_lines(entries)] == ["gpu0001"]
    (entry,) = [entry for entry in entries if entry["route"] == "signals/kernel-log"]
    assert entry["body"]["boot_id"] == "0b11d014-1685-44bd-a6ed-5fc0bc1c44ae"
    assert sum(its.count for its in done.sources[0].skipped.values()) == 1


@pytest.mark.parametrize("form", ["pretty", "jq", "jq -s", "seq", "sse"])
def test_records_of_the_journal_in_every_form_of_json(tmp_path: Path, form: str) -> None:
    records = [
        {"__CURSOR": "s=1", "__REALTIME_TIMESTAMP": str(1795640193000000 + n), "_HOSTNAME": "gpu0001", **more}
        for n, more in enumerate(
            (
                {"_TRANSPORT": "syslog", "MESSAGE": XID},
                {"_TRANSPORT": "kernel", "MESSAGE": XID, "_BOOT_ID": "0b11d014168504bd26ed5fc0bc1c44ae"},
                {"_TRANSPORT": "stdout", "MESSAGE": '{\n\t"_TRANSPORT" : "kernel"\n}\n' + XID},
                {"_TRANSPORT": "kernel", "MESSAGE": XID.replace("9b", "9c")},
            )
        )
    ]
    dump = json.dumps
    text = {
        "pretty": "".join(dump(one, indent="\t", separators=(",", " : ")) + "\n" for one in records),
        "jq": "".join(dump(one, indent=2) + "\n" for one in records),
        "jq -s": dump(records, indent=2) + "\n",
        "seq": "".join(f"\x1e{dump(one)}\n" for one in records),
        "sse": "".join(f"data: {dump(one)}\n\n" for one in records),
    }[form]
    (tmp_path / "journal").write_text(text)
    done, entries = imported(tmp_path, tmp_path / "journal")
    assert done.sources[0].kind == "journal-json"
    assert [node for node, _ in kernel_lines(entries)] == ["gpu0001"] * 2
    assert list(done.heard) == ["gpu0001"]


@pytest.mark.parametrize("begin", ["{", "[\n{", "[\n  {"])
def test_a_head_of_blank_lines_is_looked_at_once(begin: str) -> None:
    """Looked at once for each pair of its line ends, it took half an hour."""
    head = begin.encode() + b"\n" * 200
    assert recognised(head + b"\n" * (64 << 10)) is None
    assert recognised(head + b'"_TRANSPORT" : "kernel"\n}\n') is Kind.journal_json


def test_a_record_of_the_journal_without_end_costs_itself(tmp_path: Path) -> None:
    text = json.dumps({"_TRANSPORT": "kernel", "MESSAGE": XID, "_HOSTNAME": "gpu0001",
                       "__REALTIME_TIMESTAMP": "1795640193000000"}, indent="\t")  # fmt: skip
    (tmp_path / "journal").write_text(text + "\n{\n" + "\t,\n" * (3 << 20) + text + "\n")
    done, entries = imported(tmp_path, tmp_path / "journal", kinds=[Kind.journal_json])
    assert len(kernel_lines(entries)) == 2
    assert any("MiB" in why for why in done.sources[0].skipped)


@pytest.mark.parametrize("begin", ["{", '{\n\t"_TRANSPORT" : "kernel",\n\t"MESSAGE" : "a'])
@pytest.mark.parametrize("indent", ["\t", None])
def test_a_record_of_the_journal_that_was_cut_off_hides_no_other(
    tmp_path: Path, begin: str, indent: str | None
) -> None:
    record = {
        "_TRANSPORT": "kernel",
        "MESSAGE": XID,
        "_HOSTNAME": "gpu0001",
        "__REALTIME_TIMESTAMP": "1795640193000000",
    }
    (tmp_path / "journal").write_text(f"{begin}\n{json.dumps(record, indent=indent)}\n{begin}\n")
    done, entries = imported(tmp_path, tmp_path / "journal", kinds=[Kind.journal_json])
    assert len(kernel_lines(entries)) == 1
    assert bool(done.sources[0].skipped) is (indent is None or begin != "{")


def test_a_message_within_an_export_is_no_record(tmp_path: Path) -> None:
    """A user writes a whole record of the kernel, with empty lines around it, into a message."""
    inner = (
        f"hello\n\n__REALTIME_TIMESTAMP=1795640193000000\n_HOSTNAME=gpu0009\n_TRANSPORT=kernel\nMESSAGE={XID}\n\n"
    ).encode()
    head = b"__REALTIME_TIMESTAMP=1795640193000000\n_HOSTNAME=gpu0002\n"
    forged = head + b"_TRANSPORT=stdout\nMESSAGE\n" + len(inner).to_bytes(8, "little") + inner + b"\n\n"
    true = head + b"_TRANSPORT=kernel\nMESSAGE=" + XID.encode() + b"\n\n"
    path = tmp_path / "e"
    path.write_bytes(forged + true + forged + b"__REALTIME_TIMESTAMP=1\nMESSAGE\n\xff\xff\xff\xff\xff\0\0\0x")
    done, entries = imported(tmp_path, path, kinds=[Kind.journal_export])
    assert [node for node, _ in kernel_lines(entries)] == ["gpu0002"]
    skipped = {why: its.count for why, its in done.sources[0].skipped.items()}
    assert skipped == {"not marked as a kernel line": 2}


# --- Slurm


def exported(fields: dict[str, bytes]) -> bytes:
    return b"".join(
        name.encode() + (b"=" + value if b"\n" not in value else b"\n" + len(value).to_bytes(8, "little") + value)
        + b"\n"
        for name, value in fields.items()
    ) + b"\n"  # fmt: skip


@pytest.mark.parametrize("dump", [b"x\n\n_TRANSPORT=kernel\n" * 400_000, b"x" * (9 << 20)])
def test_a_long_record_of_an_export_costs_itself(tmp_path: Path, dump: bytes) -> None:
    """The journal may hold what is left of a program that crashed."""
    base = {"__REALTIME_TIMESTAMP": b"1795640193000000", "_HOSTNAME": b"gpu0001", "_BOOT_ID": b"a" * 32}
    record = exported(base | {"_TRANSPORT": b"kernel", "SYSLOG_FACILITY": b"0", "MESSAGE": XID.encode()})
    crash = exported(base | {"_HOSTNAME": b"gpu0002", "COREDUMP": dump, "_TRANSPORT": b"journal"})
    later = record.replace(b"1795640193", b"1795640199").replace(b"gpu0001", b"gpu0003")
    export = tmp_path / "export"
    export.write_bytes(record + crash + later)
    done, entries = imported(tmp_path, export)
    assert [node for node, _ in kernel_lines(entries)] == ["gpu0001", "gpu0003"]
    assert {why: its.count for why, its in done.sources[0].skipped.items()} == {
        "a record larger than 4 MiB": 1
    }


@pytest.mark.parametrize("encoding", ["utf-8", "utf-16"])
def test_an_export_with_the_line_ends_of_windows_is_read(tmp_path: Path, encoding: str) -> None:
    """As `ssh gpu0001 journalctl -o export > file` of PowerShell writes it."""
    base = {"__REALTIME_TIMESTAMP": b"1795640193000000", "_HOSTNAME": b"gpu0001", "_BOOT_ID": b"a" * 32}
    other = exported(base | {"_TRANSPORT": b"stdout", "MESSAGE": b"hello\r"})
    record = exported(base | {"_TRANSPORT": b"kernel", "SYSLOG_FACILITY": b"0", "MESSAGE": XID.encode()})
    later = record.replace(b"1795640193", b"1795640199").replace(b"gpu0001", b"gpu0003")
    export = tmp_path / "export"
    text = (other + record + b"_FILL=" + b"x" * (3 << 20) + b"\n\n" + later).decode()
    export.write_bytes(text.replace("\n", "\r\n").encode(encoding))
    done, entries = imported(tmp_path, export)
    assert [node for node, _ in kernel_lines(entries)] == ["gpu0001", "gpu0003"]
    assert (done.sources[0].lines, done.sources[0].plain, done.sources[0].skipped) == (4, 2, {})


@pytest.mark.parametrize("ends", [b"\r\n", b"\n"])
def test_behind_a_size_that_changed_line_ends_made_wrong_nothing_is_read(tmp_path: Path, ends: bytes) -> None:
    """What a program wrote into the field could pass for a record of the kernel."""
    head = b"__REALTIME_TIMESTAMP=1795640193000000\n_HOSTNAME=gpu0002\n"
    true = head + b"_TRANSPORT=kernel\nMESSAGE=" + XID.encode() + b"\n\n"
    inner = b"hello\n\n" + true.replace(b"gpu0002", b"gpu0009")
    forged = head + b"_TRANSPORT=stdout\nMESSAGE\n" + len(inner).to_bytes(8, "little") + inner + b"\n\n"
    export = tmp_path / "export"
    export.write_bytes(true.replace(b"\n", b"\r\n") + (forged + true).replace(b"\n", ends))
    done, entries = imported(tmp_path, export)
    assert [node for node, _ in kernel_lines(entries)] == ["gpu0002"]
    (why,) = done.sources[0].skipped
    assert "its line ends were changed to those of Windows" in why


def test_an_export_says_on_which_days_its_hosts_wrote(tmp_path: Path) -> None:
    fields = {"_HOSTNAME": b"gpu0001", "_TRANSPORT": b"syslog", "MESSAGE": b"hello"}
    days = [b"1795640193000000", b"1795726593000000"]
    export = tmp_path / "export"
    export.write_bytes(b"".join(exported({"__REALTIME_TIMESTAMP": day} | fields) for day in days))
    done, _ = imported(tmp_path, export)
    assert done.heard == {"gpu0001": [("2026-11-25", "2026-11-26")]}


def test_the_log_of_22_05(tmp_path: Path) -> None:
    done, entries = imported(tmp_path, CAPTURED / "slurmctld-22.05.log")
    assert (done.cluster, done.nodes, done.sources[0].skipped) == ("pod1", 6, {})
    seen = [(row["at"], row["name"], row["state"], row.get("reason")) for row in changes(entries, "nodes")]
    assert seen == [
        ("2026-11-25T20:56:31.334000Z", "gpu0005", ["IDLE", "DRAIN"], 'ticket 4711, fan: bad "x'),
        ("2026-11-25T20:56:31.340000Z", "gpu0002", ["IDLE", "DRAIN"], "xid 79"),
        ("2026-11-25T20:56:36.413000Z", "gpu0005", ["IDLE"], None),
        ("2026-11-25T20:56:36.433000Z", "gpu0002", ["IDLE"], None),
        ("2026-11-25T20:57:09.852000Z", "gpu0006", ["IDLE", "REBOOT_REQUESTED"], None),
        ("2026-11-25T20:57:13.921000Z", "gpu0006", ["IDLE"], None),
        ("2026-11-25T20:57:18.941000Z", "gpu0001", ["DOWN"], "Node unexpectedly rebooted"),
        ("2026-11-25T20:57:23.908000Z", "gpu0006", ["DOWN"], "dead"),
        ("2026-11-25T20:57:23.917000Z", "gpu0006", ["IDLE"], None),
    ]
    jobs = {(row["id"], row["state"]) for row in changes(entries, "jobs")}
    assert {
        ("1", "COMPLETED"),
        ("2", "PENDING"),
        ("3", "FAILED"),
        ("4", "CANCELLED"),
        ("7", "COMPLETED"),
    } <= jobs


def test_the_log_of_24_11(tmp_path: Path) -> None:
    _, entries = imported(tmp_path, CAPTURED / "slurmctld-24.11.log", zone="Europe/Berlin")
    rows = changes(entries, "nodes")
    drain = next(row for row in rows if row["name"] == "gpu0005")
    assert (drain["at"], drain["state"]) == ("2026-11-25T19:57:37.776000Z", ["IDLE", "DRAIN"])
    down = next(row for row in rows if row["name"] == "gpu0002" and "DOWN" in row["state"])
    assert (down["reason"], down["state"]) == ("Not responding", ["DOWN", "NOT_RESPONDING"])
    lives = [(row["state"], row["restarts"]) for row in changes(entries, "jobs") if row["id"] == "4"]
    assert lives[:3] == [("RUNNING", 0), ("NODE_FAIL", 0), ("PENDING", 1)]


@pytest.mark.parametrize(("release", "without_gpu"), [("22.05", "gpu0003"), ("24.11", "gpu0002")])
def test_hooks_missing_gpus_and_boots_are_read_from_slurmd_logs(
    tmp_path: Path, release: str, without_gpu: str
) -> None:
    """Prolog, epilog and health check with their output, a GPU without its device, and a boot."""
    logs = sorted((CAPTURED / f"slurmd-{release}").iterdir())
    done, entries = imported(tmp_path, *logs)
    assert [source.kind for source in done.sources] == ["slurmd"] * 3
    assert not any(source.skipped for source in done.sources)
    reports = [entry for entry in entries if entry["route"].startswith("signals/hooks/")]
    seen = {
        (entry["route"].rpartition("/")[2], entry["body"]["node"], check["name"], check["text"])
        for entry in reports
        for check in entry["body"]["checks"]
    }
    missing = "slurmd: can't stat gres.conf file /dev/nvidia7: No such file or directory"
    nhc = "rc 1: ERROR:  nhc:  Health check failed:  check_nv_gpus: 7 of 8"
    assert seen == {
        ("prolog", "gpu0002", "prolog", "rc 7: GPU 3 is missing"),
        ("epilog", "gpu0003", "epilog", "rc 4: epilog: ECC errors"),
        ("health-check", "gpu0004", "probe", nhc),
        ("health-check", without_gpu, "gpu-count", missing),
    }
    opened = {(row["rule"], row["root"]["node"]) for row in played(entries)["incidents"]}
    assert {("node-check", "gpu0004"), ("node-check", without_gpu)} <= opened


def test_slurmd_lines_in_syslog_are_imported(tmp_path: Path) -> None:
    text = (
        "Nov 25 20:56:30 gpu0001 slurmd[77]: CPUs=2 Boards=1 Memory=24105 Uptime=90 CPUSpecList=(null)\n"
        "Nov 25 20:56:31 ctl slurmctld[7]: sched: Allocate JobId=6 NodeList=gpu0001 #CPUs=1 Partition=train\n"
        "Nov 25 20:56:32 gpu0001 slurmstepd[9]: error: Detected 1 oom_kill event in StepId=6.batch. Some\n"
        "Nov 25 20:56:33 ctl slurmctld[7]: _job_complete: JobId=6 WEXITSTATUS 137\n"
        "Nov 25 20:56:33 ctl slurmctld[7]: _job_complete: JobId=6 done\n"
        "Nov 25 20:56:34 gpu0001 slurmd[77]: error: [job 6] epilog failed status=1:0\n"
        "Nov 25 20:56:34 ctl slurmctld: error: job_epilog_complete: JobId=6 epilog error on gpu0001, draining"
        " the node\n"
        "Nov 25 20:56:34 ctl slurmctld[7]: drain_nodes: node gpu0001 state set to DRAIN\n"
    )
    _, entries = imported(tmp_path, written(tmp_path / "m", text))
    (row,) = changes(entries, "nodes")
    assert (row["reason"], row["boot_at"]) == ("Epilog error", "2026-11-25T20:55:00Z")
    assert [row["state"] for row in changes(entries, "jobs")] == ["RUNNING", "OUT_OF_MEMORY"]
    (check,) = [entry for entry in entries if entry["route"] == "signals/hooks/epilog"]
    assert check["body"]["checks"] == [{"name": "epilog", "text": "status 1:0"}]


def test_slurm_lines_that_the_journal_took_from_stderr_are_imported(tmp_path: Path) -> None:
    """`slurmctld --systemd` and `slurmd -D` put their own name in front; the journal has put its tag already."""
    text = (
        "Nov 25 20:56:30 ctl slurmctld[483]: slurmctld: validate_node_specs: Node gpu0001 unexpectedly rebooted"
        " boot_time=1795639980 last response=1795639800\n"
        "Nov 25 20:56:31 ctl slurmctld[483]: slurmctld: sched: Allocate JobId=6 NodeList=gpu0001 #CPUs=1"
        " Partition=train\n"
        "Nov 25 20:56:32 ctl slurmctld[483]: slurmctld: _job_complete: JobId=6 WEXITSTATUS 1\n"
        "Nov 25 20:56:32 ctl slurmctld[483]: slurmctld: _job_complete: JobId=6 done\n"
        "Nov 25 20:56:33 ctl slurmctld[483]: slurmctld: error: Nodes gpu0001 not responding\n"
        "Nov 25 20:56:34 gpu0001 slurmd[77]: slurmd: error: prolog failed: rc:256 output:GPU 3 missing\n"
        "Nov 25 20:56:38 gpu0001 slurmd[77]: slurmd-gpu0001: error: [job 6] epilog failed status=1:0\n"
        "Nov 25 20:56:39 gpu0001 slurmd[77]: [2026-11-25T20:56:39.001] error: [job 7] epilog failed status=2:0\n"
    )
    _, entries = imported(tmp_path, written(tmp_path / "m", text))
    assert [row["state"] for row in changes(entries, "jobs")] == ["RUNNING", "FAILED"]
    assert changes(entries, "nodes")
    checks = [entry["body"]["checks"][0] for entry in entries if entry["route"].startswith("signals/hooks")]
    assert [check["text"] for check in checks] == ["rc 256: GPU 3 missing", "status 1:0", "status 2:0"]


def test_a_job_that_slurmctld_saw_run_out_of_memory_did_not_complete(tmp_path: Path) -> None:
    says = (
        "sched: Allocate JobId=6 NodeList=gpu0001 #CPUs=1 Partition=train",
        "_job_complete: JobId=6 OOM failure",
        "_job_complete: JobId=6 done",
    )
    text = "".join(f"[2026-11-25T20:56:3{n}.000] {line}\n" for n, line in enumerate(says))
    _, entries = imported(tmp_path, written(tmp_path / "slurmctld.log", text))
    assert [row["state"] for row in changes(entries, "jobs")] == ["RUNNING", "OUT_OF_MEMORY"]


def test_why_slurm_drained(tmp_path: Path) -> None:
    """Of 22.05 and 24.11 alike: the reason is in the line before the drain."""
    says = (
        "error: validate_node_specs: Prolog or job env setup failure on node gpu0002, draining the node",
        "drain_nodes: node gpu0002 state set to DRAIN",
        "error: Setting node gpu0003 state to INVAL with reason:gres/gpu count reported lower than configured"
        " (7 < 8)",
        "drain_nodes: node gpu0003 state set to DRAIN",
    )
    text = "".join(f"[2026-11-25T20:56:3{n}.000] {line}\n" for n, line in enumerate(says))
    _, entries = imported(tmp_path, written(tmp_path / "slurmctld.log", text))
    assert [(row["name"], row["reason"]) for row in changes(entries, "nodes")] == [
        ("gpu0002", "Prolog error"),
        ("gpu0003", "gres/gpu count reported lower than configured (7 < 8)"),
    ]
    assert {row["rule"] for row in played(entries)["incidents"]} == {"slurm-drain", "below-configured"}


@pytest.mark.parametrize("name", ["sacct-22.05.txt", "sacct-22.05.json"])
def test_an_accounting(tmp_path: Path, name: str) -> None:
    done, entries = imported(tmp_path, CAPTURED / name)
    assert done.sources[0].skipped == {}
    assert (
        done.assumed[-1] == "4 nodes are assumed to have 8 GPUs each, the most that a job used on one node."
    )
    rows = [row for row in changes(entries, "jobs") if row["id"] in {"2", "5"}]
    assert [(row["at"][11:19], row["id"], row["state"], row["restarts"]) for row in rows] == [
        ("21:01:26", "2", "RUNNING", 0),
        ("21:01:31", "2", "PENDING", 1),
        ("21:01:37", "2", "RUNNING", 1),
        ("21:01:44", "5", "RUNNING", 0),
        ("21:02:11", "5", "NODE_FAIL", 0),
        ("21:02:17", "5", "RUNNING", 1),
        ("21:02:22", "2", "CANCELLED", 1),
    ]
    assert rows[0]["name"] == "a|b `q`" or rows[0]["name"] == 'a|b "q"'
    assert rows[0]["gpus"] == {"gpu0002": list(range(8)), "gpu0003": list(range(8))}
    assert rows[0]["user"] == "root"
    forbidden = next(row for row in changes(entries, "jobs") if row["id"] == "3")
    # The JSON of 22.05 does not hold the command of the submission.
    assert forbidden.get("requeue") is (None if name.endswith("json") else False)


def of_tres(tmp_path: Path, tres: str, form: str) -> Path:
    """One job on two nodes that failed, with these allocated TRES, as `sacct -P` or `sacct --json`."""
    if form == "text":
        return written(tmp_path / "sacct", (
            "JobIDRaw|State|Start|End|NodeList|AllocTRES\n"
            f"7|NODE_FAIL|2026-11-25T10:00:00|2026-11-25T12:00:00|gpu[0001-0002]|{tres}\n"
        ))  # fmt: skip
    names = [pair.partition("=")[::2] for pair in tres.split(",")]
    allocated = [
        {"type": kind.partition("/")[0], "name": kind.partition("/")[2] or None, "count": int(count)}
        for kind, count in names
    ]
    job = {
        "job_id": 7, "nodes": "gpu[0001-0002]", "state": {"current": ["NODE_FAIL"]},
        "time": {"start": 1795600800, "end": 1795608000}, "tres": {"allocated": allocated},
    }  # fmt: skip
    return written(tmp_path / "sacct.json", json.dumps({"jobs": [job], "errors": []}))


@pytest.mark.parametrize("form", ["text", "json"])
def test_an_accounting_that_counts_no_gpus_leaves_them_unknown(tmp_path: Path, form: str) -> None:
    """Slurm counts GPUs only if AccountingStorageTRES lists them, which is not its default: a job of such an
    accounting has not none of them."""
    done, entries = imported(tmp_path, of_tres(tmp_path, "cpu=224,node=2", form))
    assert [row["gpus"] for row in changes(entries, "jobs")] == [{}, {}]
    assert done.assumed[-1].startswith("The accounting names no GPUs, so it is unknown")


@pytest.mark.parametrize("form", ["text", "json"])
def test_gpus_that_slurm_counts_by_model(tmp_path: Path, form: str) -> None:
    """AccountingStorageTRES=gres/gpu:h100,gres/gpu:a100, without gres/gpu."""
    tres = "cpu=224,gres/gpu:a100=4,gres/gpu:h100=12,node=2"
    done, entries = imported(tmp_path, of_tres(tmp_path, tres, form))
    held = {"gpu0001": list(range(8)), "gpu0002": list(range(8))}
    assert [row["gpus"] for row in changes(entries, "jobs")] == [held, held]
    assert "names no GPUs" not in str(done.assumed)


@pytest.mark.parametrize("start", ["2026-13-25T10:00:00", "10:00", "3 days ago"])
def test_a_start_that_is_no_time_is_quoted(tmp_path: Path, start: str) -> None:
    """Such a job counted as one that never started, without its line."""
    sacct = written(tmp_path / "sacct", (
        f"JobIDRaw|State|Start|End|NodeList\n1|FAILED|{start}|2026-11-25T11:00:00|gpu0001\n"
        "2|CANCELLED|None|2026-11-25T11:00:00|gpu0001\n3|PENDING|Unknown|Unknown|None assigned\n"
    ))  # fmt: skip
    done, _ = imported(tmp_path, sacct)
    first, never = done.sources[0].skipped.items()
    assert first[0].startswith("not understood:") and f"sacct:2: 1|FAILED|{start}" in str(first[1].examples)
    assert (never[0], never[1].count) == ("a job that never started", 2)


def test_jobs_of_the_hour_that_comes_twice(tmp_path: Path) -> None:
    """sacct prints jobs by number: that an earlier row ends later says nothing. A job that starts in the first
    02:50 and ends in the second 02:05 would never end."""
    row = "COMPLETED|2026-10-25T{}:00|2026-10-25T{}:00|gpu0001\n"
    times = (
        ("00:30", "09:00"),
        ("02:10", "02:40"),
        ("02:10", "02:05"),
        ("02:50", "02:05"),
        ("02:30", "03:10"),
    )
    rows = "".join(f"{number}|{row.format(*both)}" for number, both in enumerate(times, start=1))
    sacct = written(tmp_path / "sacct", "JobIDRaw|State|Start|End|NodeList\n" + rows)
    _, entries = imported(tmp_path, sacct, zone="Europe/Berlin")
    ended = {row["id"]: row for row in changes(entries, "jobs") if "end_at" in row}
    assert [(ended[job]["start_at"][11:16], ended[job]["end_at"][11:16]) for job in "12345"] == [
        ("22:30", "08:00"), ("00:10", "00:40"), ("00:10", "01:05"), ("00:50", "01:05"), ("00:30", "02:10"),
    ]  # fmt: skip


@pytest.mark.parametrize("form", ["text", "json"])
def test_a_job_that_ends_before_it_starts_is_named(tmp_path: Path, form: str) -> None:
    """It ran for ever: any later fault of its node hit it."""
    sacct = of_tres(tmp_path, "gres/gpu=16", form)
    text = sacct.read_text().replace("T12:00:00", "T09:00:00").replace("1795608000", "1795600000")
    done, entries = imported(tmp_path, written(sacct, text))
    assert changes(entries, "jobs") == []
    (skipped,) = done.sources[0].skipped.items()
    assert skipped[0] == "a job that ends before it starts" and "job 7" in str(skipped[1].examples)


def test_a_command_of_many_pipes_costs_no_hours(tmp_path: Path) -> None:
    """Anyone may submit one. The name is found without a copy of the row for each place where it may end."""
    row = "|cat||mara|COMPLETED|2026-11-25T10:00:00|2026-11-25T11:00:00|gpu0001|sbatch --wrap "
    sacct = written(tmp_path / "sacct", (
        f"JobIDRaw|JobName|User|State|Start|End|NodeList|SubmitLine\n1{row}{'|' * 120_000}\n2{row}\n"
    ))  # fmt: skip
    began_s = time.process_time()
    _, entries = imported(tmp_path, sacct)
    assert time.process_time() - began_s < 10
    assert {(row["id"], row["name"]) for row in changes(entries, "jobs")} == {("1", "cat|"), ("2", "cat|")}


def test_samples_without_a_node_are_said_to_find_nothing(tmp_path: Path) -> None:
    """They may be replayed with a recording that has the nodes; alone they show none."""
    samples = written(tmp_path / "dump.txt", (
        '{__name__="DCGM_FI_DEV_GPU_TEMP", Hostname="gpu0001", gpu="0"} 60 1795600800000\n'
    ))  # fmt: skip
    done, entries = imported(tmp_path, samples)
    assert (done.nodes, done.sources[0].signals) == (0, 1)
    assert [entry["route"].partition("?")[0] for entry in entries] == ["signals/openmetrics", "clock"]
    assert str(done.assumed[0]).startswith("No source names a node, so a replay or report")


@pytest.mark.parametrize(
    ("end", "said"),
    [
        ("a|b|/usr/bin/sbatch --wrap=cat|wc --no-requeue", ("a|b", None, False)),
        ("a|b|srun -n 4 train", ("a|b", False, None)),
        ("|sbatch --wrap=cat|wc", (None, None, None)),
        ("a|b|submit.py train", ("a|b|submit.py train", None, None)),
    ],
)
def test_a_comment_with_pipes_hides_no_command(tmp_path: Path, end: str, said: tuple[Any, ...]) -> None:
    """Otherwise a batch job counts as one that Slurm cannot requeue."""
    sacct = written(tmp_path / "sacct", (
        "JobIDRaw|JobName|State|Start|End|NodeList|Comment|SubmitLine\n"
        f"1|train|FAILED|2026-11-25T10:00:00|2026-11-25T11:00:00|gpu0001|{end}\n"
    ))  # fmt: skip
    _, entries = imported(tmp_path, sacct)
    for row in changes(entries, "jobs"):
        assert (row.get("comment"), row.get("batch"), row.get("requeue")) == said


def test_a_long_job_of_an_accounting_costs_itself(tmp_path: Path) -> None:
    def job(number: int, steps: int) -> dict[str, Any]:
        at = {"start": 1795640193, "end": 1795640293}
        step = {"step": {"name": "a } ] {" * 100}}
        return {
            "job_id": number, "nodes": "gpu0001", "state": {"current": "COMPLETED"}, "time": at,
            "steps": [step] * steps,
        }  # fmt: skip

    sacct = tmp_path / "sacct.json"
    sacct.write_text(json.dumps({"jobs": [job(1, 1), job(2, 30_000), job(3, 1)], "errors": []}))
    done, entries = imported(tmp_path, sacct)
    assert {row["id"] for row in changes(entries, "jobs")} == {"1", "3"}
    assert {why: its.count for why, its in done.sources[0].skipped.items()} == {
        "an object larger than 16 MiB": 1
    }


def test_times_of_the_accounting_with_a_zone_are_of_that_zone(tmp_path: Path) -> None:
    """SLURM_TIME_FORMAT=%FT%T%z in the environment of sacct."""
    sacct = written(tmp_path / "sacct", (
        "JobIDRaw|State|Start|End|NodeList\n"
        "1|COMPLETED|2026-11-25T10:00:00+0100|2026-11-25T11:00:00Z|gpu0001\n"
    ))  # fmt: skip
    _, entries = imported(tmp_path, sacct, zone="America/New_York")
    row = next(row for row in changes(entries, "jobs") if "end_at" in row)
    assert (row["start_at"], row["end_at"]) == ("2026-11-25T09:00:00Z", "2026-11-25T11:00:00Z")


def test_completions(tmp_path: Path) -> None:
    _, entries = imported(tmp_path, CAPTURED / "jobcomp-22.05.txt")
    ends = {(row["id"], row["state"], row["at"][11:19]) for row in changes(entries, "jobs")}
    assert {("5", "NODE_FAIL", "20:57:18"), ("7", "COMPLETED", "20:56:38")} <= ends


def test_the_accounting_and_the_log_say_one_thing(tmp_path: Path) -> None:
    alone = imported(tmp_path, CAPTURED / "jobcomp-22.05.txt")[1]
    both = imported(tmp_path, CAPTURED / "slurmctld-22.05.log", CAPTURED / "jobcomp-22.05.txt")[1]
    until = "2026-11-25T20:57:27"
    seen = [
        [(row["id"], row["state"], row["at"]) for row in changes(entries, "jobs") if row["at"] < until]
        for entries in (alone, both)
    ]
    assert [row[:2] for row in seen[0]] == [row[:2] for row in seen[1]]


def test_user_of_a_drain_is_read_from_sinfo(tmp_path: Path) -> None:
    text = (
        "REASON               USER      TIMESTAMP           NODELIST\n"
        "xid 79               mara      2026-11-25T20:56:31 gpu0002\n"
        "ticket 4711, fan: ba root      2026-11-25T20:56:31 gpu0005\n"
    )
    reasons = written(tmp_path / "sinfo", text)
    done, entries = imported(tmp_path, CAPTURED / "slurmctld-22.05.log", reasons)
    assert done.sources[1].kind == "sinfo-R"
    by_node = {row["name"]: row for row in changes(entries, "nodes") if row.get("reason_user")}
    assert by_node["gpu0002"]["reason_user"] == "mara"
    assert by_node["gpu0005"]["reason"] == 'ticket 4711, fan: bad "x'


def test_hosts_by_their_address(tmp_path: Path) -> None:
    record = "NodeName=n{n} \n   Gres=gpu:8\n   NodeAddr=10.0.0.{n} NodeHostName=x{n} \n   State=IDLE\n\n"
    text = "".join(record.format(n=n) for n in (1, 2))
    nodes = written(tmp_path / "nodes", text)
    log = written(tmp_path / "m", f"Nov 25 20:56:33 10.0.0.2 kernel: {XID}\n")
    assert kernel_lines(imported(tmp_path, nodes, log)[1]) == [("n2", "2026-11-25T20:56:33Z")]
    assert kernel_lines(imported(tmp_path, log)[1]) == [("10.0.0.2", "2026-11-25T20:56:33Z")]


def test_a_list_of_nodes_says_which_there_are(tmp_path: Path) -> None:
    text = (
        "NodeName=n1.site Arch=x86_64 \n   CPUAlloc=0 CPUTot=16 \n   Gres=gpu:h100:4(S:0-1)\n"
        "   NodeAddr=n1 NodeHostName=gpu0001 \n   State=IDLE ThreadsPerCore=1\n   Partitions=train \n\n"
    )
    nodes = written(tmp_path / "nodes", text)
    log = written(
        tmp_path / "m",
        f"Nov 25 20:56:33 gpu0001 kernel: {XID}\nNov 25 20:56:34 login7 kernel: {XID}\n",
    )
    done, entries = imported(tmp_path, nodes, log)
    assert kernel_lines(entries) == [("n1.site", "2026-11-25T20:56:33Z")]
    assert done.left_out == {"login7": 1}
    assert entries[0]["body"]["nodes"][0] | {"partitions": ["train"]} == {
        "name": "n1.site", "state": ["IDLE"], "gpus": 4, "gpu_model": "h100", "cpus": 16,
        "partitions": ["train"], "hostname": "gpu0001", "address": "n1",
    }  # fmt: skip


def test_a_list_of_nodes_with_one_line_for_each_says_the_same(tmp_path: Path) -> None:
    """`scontrol show node -o`."""
    text = (
        "NodeName=n1 Arch=x86_64 CoresPerSocket=16  CPUAlloc=6 CPUEfctv=32 CPUTot=32 CPULoad=1.07"
        " AvailableFeatures=ib ActiveFeatures=ib Gres=gpu:h100:4(S:0-1) NodeAddr=10.0.0.1 NodeHostName=gpu0001"
        " Version=25.11.2 OS=Linux 6.8.0 #1 SMP Thu Jun 18 21:54:43 UTC 2026  RealMemory=15867 Sockets=1"
        " State=MIXED+DRAIN ThreadsPerCore=2 Owner=N/A MCS_label=N/A Partitions=train,debug "
        " BootTime=2026-11-17T07:59:58 SlurmdStartTime=2026-11-17T08:00:37 CfgTRES=cpu=32,gres/gpu=4 AllocTRES="
        " CurrentWatts=0 AveWatts=0 Reason=bad DIMM, State=IDLE after RMA [mara@2026-11-20T03:00:00]"
        " ReservationName=repair\n"
        "NodeName=n2 Arch=x86_64 CoresPerSocket=16  CPUAlloc=0 CPUTot=32 CPULoad=0.02 ActiveFeatures=cpu"
        " Gres=(null) NodeAddr=n2 NodeHostName=n2 State=IDLE ThreadsPerCore=2 Partitions=cpu \n"
    )
    split = re.sub(
        r" +(?=(?:CPUAlloc|ActiveF|Gres|NodeAddr|State=M|State=IDLE T|Part|Boot|Reas|Reserv))", "\n   ", text
    )
    one, several = (
        imported(tmp_path, written(tmp_path / name, form))
        for name, form in (("one", text), ("several", split))
    )
    assert not one[0].sources[0].skipped and one[1][:-1] == several[1][:-1]
    (drained,) = [row for row in changes(one[1], "nodes") if row.get("reason")]
    assert (drained["gpus"], drained["gpu_model"], drained["reason_user"]) == (4, "h100", "mara")
    assert drained["reason"] == "bad DIMM, State=IDLE after RMA"


def test_a_node_without_gpus_in_a_list_that_counts_them_has_none(tmp_path: Path) -> None:
    text = "".join(
        f"NodeName={node} Arch=x86_64 \n   Gres={gres}\n   State=IDLE ThreadsPerCore=2\n\n"
        for node, gres in (("gpu0001", "gpu:h100:4"), ("cpu0001", "(null)"))
    )
    log = written(tmp_path / "m", f"Nov 25 20:56:33 gpu0001 kernel: {XID}\n")
    done, entries = imported(tmp_path, written(tmp_path / "nodes", text), log)
    shown = {row["name"]: row["gpus"] for row in entries[0]["body"]["nodes"]}
    assert shown == {"gpu0001": 4, "cpu0001": 0} and done.assumed == []


# --- samples


def test_known_samples_are_imported_from_every_format(tmp_path: Path) -> None:
    labels = 'gpu="0",Hostname="gpu0001"'
    dump = "".join(
        f'{{__name__="DCGM_FI_DEV_GPU_TEMP", gpu="0", Hostname="gpu0001"}} {60 + n} {at_s}000\n'
        for n, at_s in enumerate(range(1795640160, 1795640340, 60))
    )
    text = f"# TYPE DCGM_FI_DEV_GPU_TEMP gauge\nDCGM_FI_DEV_GPU_TEMP{{{labels}}} 71 1795640400000\nup{{}} 1\n"
    ranges = {
        "status": "success",
        "data": {
            "resultType": "matrix",
            "result": [
                {
                    "metric": {
                        "__name__": "DCGM_FI_DEV_GPU_TEMP",
                        "gpu": "0",
                        "Hostname": "gpu0001",
                        "x": 'a"]}',
                    },
                    "values": [[1795640460, "72"], [1795640520, "73"]],
                }
            ],
        },
    }
    files = [
        written(tmp_path / "dump", dump),
        written(tmp_path / "text", text),
        written(tmp_path / "range", json.dumps(ranges)),
    ]
    done, entries = imported(tmp_path, *files)
    assert [source.kind for source in done.sources] == ["metrics", "metrics", "range-query"]
    samples = [entry for entry in entries if entry["route"].startswith("signals/openmetrics")]
    assert [int(entry["body"].split()[1]) for entry in samples] == [60, 61, 62, 71, 72, 73]
    assert [source.signals for source in done.sources] == [3, 1, 2]
    played(entries)


# --- the whole


def test_samples_without_a_possible_time_are_no_signals(tmp_path: Path) -> None:
    samples = "".join(f'DCGM_FI_DEV_GPU_TEMP{{gpu="{gpu}"}} 60 1000\n' for gpu in range(8))
    done, entries = imported(tmp_path, written(tmp_path / "m.txt", samples))
    (source,) = done.sources
    assert (source.signals, [its.count for its in source.skipped.values()]) == (0, [8])
    assert not entries


def test_the_same_twice_gives_the_same_bytes(tmp_path: Path) -> None:
    log = written(tmp_path / "m", "".join(f"Nov 25 20:56:{n:02d} gpu0001 kernel: {XID}\n" for n in range(60)))
    files = (log, CAPTURED / "slurmctld-22.05.log", CAPTURED / "sacct-22.05.txt")
    both = []
    for _ in range(2):
        imported(tmp_path, *files)
        both.append((tmp_path / "r.jsonl.zst").read_bytes())
    assert both[0] == both[1]
    assert not list(tmp_path.glob(".import-*"))


class _Killed(BaseException):
    pass


def test_an_interrupted_import_goes_on_and_gives_the_same_bytes(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Whatever it was reading; what was read before is not read again."""
    monkeypatch.setattr("healer.importing.source_text.BLOCK_BYTES", 2000)
    monkeypatch.setattr("healer.importing.workplace.STATE_EVERY_S", 0.0)
    loss = [f"Nov 25 20:{n // 60:02d}:{n % 60:02d} gpu{n % 7:04d} kernel: {XID}\n" for n in range(600)]
    log = written(tmp_path / "m", "".join(loss))
    packed = tmp_path / "m.gz"
    packed.write_bytes(gzip.compress(log.read_bytes(), mtime=0))
    slurm = [CAPTURED / name for name in ("slurmctld-24.11.log", "sacct-22.05.txt", "jobcomp-22.05.txt")]
    slurmd = CAPTURED / "slurmd-24.11" / "slurmd-gpu0002.log"
    files = (log, packed, *slurm, CAPTURED / "sacct-22.05.json", slurmd)
    imported(tmp_path, *files)
    whole = (tmp_path / "r.jsonl.zst").read_bytes()
    (tmp_path / "r.jsonl.zst").unlink()

    read = Unpacked.read
    reads: list[int] = []
    left = 0

    def read_until_killed(file: Unpacked, size: int) -> bytes:
        nonlocal left
        left -= 1
        if not left:
            raise _Killed
        reads[-1] += 1
        return read(file, size)

    monkeypatch.setattr(Unpacked, "read", read_until_killed)
    for left in (5, 9, 25, 40, 3, 0):  # noqa: B007 - counted down above
        reads.append(0)
        with suppress(_Killed):
            imported(tmp_path, *files)
    assert (tmp_path / "r.jsonl.zst").read_bytes() == whole
    assert sum(reads[:-1]) > 50 and not list(tmp_path.glob(".import-*"))
    reads.append(0)
    imported(tmp_path, *files)
    assert reads[-2] < reads[-1] / 2


def test_files_left_by_another_import_are_not_used(tmp_path: Path) -> None:
    log = written(tmp_path / "m", f"Nov 25 20:56:33 gpu0001 kernel: {XID}\n")
    folder = tmp_path / ".import-r.jsonl.zst"
    folder.mkdir(0o700)
    (folder / "plan").write_bytes(b"of other files")
    (folder / "000000.read").write_bytes(b"whatever")
    assert len(kernel_lines(imported(tmp_path, log)[1])) == 1
    with workplace(tmp_path / "r.jsonl.zst", b"plan"), pytest.raises(OSError, match="another import"):
        imported(tmp_path, log)
    folder.mkdir()
    folder.chmod(0o777)
    with pytest.raises(PermissionError, match="another user"):
        imported(tmp_path, log)


def test_clocks_that_differ_are_found(tmp_path: Path) -> None:
    node = written(tmp_path / "node", "".join(
        f"Nov 25 21:{n:02d}:33 gpu0001 kernel: NVRM: Xid (PCI:0000:9b:00): {n}, x\n" for n in range(45, 50)
    ))  # fmt: skip
    central = written(tmp_path / "central", "".join(
        f"2026-11-25T20:{n:02d}:33Z gpu0001.x kernel: NVRM: Xid (PCI:9b:00): {n}, x\n" for n in range(45, 50)
    ))  # fmt: skip
    done, _ = imported(tmp_path, node, central)
    (offset,) = done.offsets
    assert (offset.first, offset.second, offset.seconds, offset.events) == ("central", "node", 3600.0, 5)
    assert offset.looks_like_a_zone


def test_pseudonyms_are_consistent(tmp_path: Path) -> None:
    sacct = written(tmp_path / "sacct", (
        "JobIDRaw|JobName|User|State|Start|End|NodeList|Comment\n"
        "1|mara-secret|mara|COMPLETED|2026-11-25T10:00:00|2026-11-25T11:00:00|gpu0001|for mara\n"
        "2|mara-secret|mara|COMPLETED|2026-11-25T12:00:00|2026-11-25T13:00:00|gpu0001|\n"
        "3|other|joe|COMPLETED|2026-11-25T12:00:00|2026-11-25T13:00:00|gpu0002|\n"
    ))  # fmt: skip
    reasons = written(
        tmp_path / "r", "REASON USER TIMESTAMP NODELIST\nask mara   joe   2026-11-25T12:30:00 gpu0002\n"
    )
    _, entries = imported(tmp_path, sacct, reasons, pseudonymise=True)
    text = json.dumps(entries[:-1])
    assert "mara" not in text and "joe" not in text
    rows = {row["id"]: row for row in changes(entries, "jobs")}
    assert (rows["1"]["user"], rows["1"]["name"]) == (rows["2"]["user"], rows["2"]["name"])
    assert rows["3"]["user"] != rows["1"]["user"]
    (drain,) = changes(entries, "nodes")
    assert drain["reason_user"] == rows["3"]["user"]
    assert drain["reason"] == f"ask {rows['1']['user']}"


def test_the_words_of_skipped_lines_name_no_one_in_a_recording_to_share(tmp_path: Path) -> None:
    header = "JobIDRaw|JobName|User|State|Start|End|NodeList|Comment\n"
    row = "1|secret|mara|COMPLETED|2026-11-25T10:00:00|2026-11-25T11:00:00|gpu0001|\n"
    broken = "2|secret|mara|\n3|secret||mara|2026-11-25T10:00:00|2026-11-25T11:00:00|gpu0001|\n"
    sacct = written(tmp_path / "sacct", header + row + broken)
    done, entries = imported(tmp_path, sacct, pseudonymise=True)
    assert sum(its.count for its in done.sources[0].skipped.values()) == 2
    assert "mara" in str(done.sources[0].skipped)  # for the person at the terminal
    (source,) = entries[-1]["body"]["imported"]["sources"]
    assert sum(its["count"] for its in source["skipped"].values()) == 2
    assert "mara" not in json.dumps(entries) and "secret" not in json.dumps(entries)


def test_many_runs_are_merged_in_rounds(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("healer.importing.sorted_runs.BUFFER_BYTES", 2000)
    monkeypatch.setattr("healer.importing.sorted_runs.OPEN_RUNS", 3)
    monkeypatch.setattr("healer.importing.sorted_runs.SortedRuns.__init__.__defaults__", (2000,))
    files = [
        written(tmp_path / f"m{number}", "".join(
            f"2026-11-25T20:{n:02d}:{number:02d}Z gpu000{number} kernel: {XID}\n" for n in range(60)
        ))
        for number in range(3)
    ]  # fmt: skip
    _, entries = imported(tmp_path, *files)
    times = [at for _, at in kernel_lines(entries)]
    assert len(times) == 180 and times == sorted(times)


@pytest.mark.parametrize(
    ("head", "kind"),
    [
        (b"__CURSOR=s=1\n__REALTIME_TIMESTAMP=1\n", Kind.journal_export),
        (b'{"_HOSTNAME":"a","__REALTIME_TIMESTAMP":"1"}\n', Kind.journal_json),
        (b"[2026-11-25T20:56:33.1] slurmd version 22.05.8 started\n", Kind.slurmd),
        (b"[Nov 25 20:56:33] error: x\n", Kind.slurmctld),
        (b"[Wed Nov 25 20:56:33 2026] x\n", Kind.dmesg),
        (b"JobID|State|\n", Kind.sacct),
        (b"NODELIST|REASON|USER|TIMESTAMP|STATE\n", Kind.sinfo_reasons),
        (
            b"Wed Nov 25 20:56:33 2026\nREASON               USER         TIMESTAMP  STATE  NODELIST\n",
            Kind.sinfo_reasons,
        ),
        (b"hello world\n", None),
        (b"", None),
    ],
)
def test_recognised(head: bytes, kind: Kind | None) -> None:
    assert recognised(head) == kind


#: Kind -> lines that no honest program writes; each costs itself.
HOSTILE = {
    Kind.slurmctld: (
        "[9999-12-31T23:59:59] Node gpu0001 now responding",
        "[0001-01-01T00:00:00] Node gpu0001 now responding",
        "[2026-11-25T20:56:33] Node gpu0009 unexpectedly rebooted boot_time=999999999999",
        "[2026-11-25T20:56:33] error: Nodes gpu[1-9999999999] not responding, setting DOWN",
        "[2026-11-25T20:56:33] update_node: node gpu[[[1] reason set to: x",
        "[2026-11-25T20:56:33] Allocate JobId=99999999999999999999 NodeList=gpu[0001-2] Partition=x",
        "[Feb 31 20:56:33] Node gpu0001 now responding",
    ),
    Kind.sacct: (
        "JobIDRaw|JobName|State|Start|End|NodeList|AllocTRES",
        "1|x|COMPLETED|9999-12-31T23:59:59|9999-12-31T23:59:59|gpu0001|gres/gpu=9999999999999999999999",
        "1|x|COMPLETED|2026-11-25T20:56:33|2026-11-25T20:50:33|gpu[0001-99999999]|",
        "../x|x|COMPLETED|2026-11-25T20:56:33|2026-11-25T20:57:33|gpu0001|",
        "2|a|b|COMPLETED|RUNNING|2026-11-25T20:56:33|2026-11-25T20:57:33|gpu0001||||||||",
    ),
    Kind.sacct_json: (
        '{"jobs": [{"job_id": 1, "state": {"current": "COMPLETED"}, "nodes": "gpu0001",',
        ' "time": {"start": 99999999999999, "end": 99999999999999}}, {"job_id": "x"}, ' + '{"a":' * 3000,
    ),
    Kind.metrics: (
        'DCGM_FI_DEV_GPU_TEMP{gpu="0",Hostname="gpu0001"} NaN 999999999999999',
        'DCGM_FI_DEV_GPU_TEMP{gpu="0",Hostname="gpu0001"} 1 1e300',
        'DCGM_FI_DEV_GPU_TEMP{gpu="0",Hostname="gpu0001} x"} } 1 -5',
        '{__name__="DCGM_FI_DEV_GPU_TEMP", a="\\"}"} 1 1',
    ),
    Kind.range_query: (
        '{"data": {"resultType": "matrix", "result": [{"metric": {"__name__": "DCGM_FI_DEV_GPU_TEMP"},',
        ' "values": [[1e300, "1"]]}, {"metric": [], "values": {}}, {"metric": {"a":' + "[" * 5000,
    ),
    Kind.journal_json: (
        '{"_TRANSPORT":"kernel","__REALTIME_TIMESTAMP":"99999999999999999","_HOSTNAME":"gpu0001","MESSAGE":"x"}',
        '{"_TRANSPORT":"kernel","MESSAGE":[1,2,999],"_HOSTNAME":"gpu0001","__REALTIME_TIMESTAMP":"1"}',
        '{"_TRANSPORT":"kernel","_HOSTNAME":7}', '"_TRANSPORT":"kernel"' + "[" * 5000,
    ),
    Kind.journal_export: ("__REALTIME_TIMESTAMP=-1", "_TRANSPORT=kernel", "", "_HOSTNAME=" + "a" * 300),
    Kind.sinfo_reasons: (
        "REASON|USER|TIMESTAMP|NODELIST", "a|b", "x|y|0001-01-01T00:00:00|n1", "|y|2026-11-25T20:56:33|gpu[",
    ),
    Kind.nodes: ("NodeName=gpu0001 ", "   Gres=gpu:9999999999", "   Reason=x [root@2026-13-45T99:99:99]"),
    Kind.jobcomp: ("JobId=1 UserId=x(0) GroupId=y(0) Name=z JobState=COMPLETED Partition=p TimeLimit=1",),
    Kind.dmesg: (f"[Wed Feb 31 20:56:33 2026] {XID}", f"[Wed Nov 25 20:56:33 9999] {XID}"),
    Kind.nhc: (
        "20261399 99:99:99 node-mark-offline gpu0001 Health check failed:  x",
        "20261125 20:56:33 node-mark-offline ../../etc/passwd Health check failed:  x",
        "20261125 20:56:33 node-mark-offline <script>alert(1)</script> Health check failed:  x",
        "20261125 20:56:33 node-mark-offline " + "n" * 5000 + " Health check failed:  " + "\x1b[31m" * 900,
    ),
    Kind.nvidia_smi: (
        "==============NVSMI LOG==============", "Timestamp : Wed Feb 31 20:56:33 2026", "GPU 00000000:1B:00.0",
        "==============NVSMI LOG==============", "GPU 00000000:1B:00.0", "    </gpu><x> : ]]>", "   " * 900 + "a : b",
        "<nvidia_smi_log><gpu>", '<!DOCTYPE a [<!ENTITY b "c">]>', "</nvidia_smi_log>",
        "<nvidia_smi_log>" + "<a>" * 3000, "</nvidia_smi_log>",
    ),
    Kind.bug_report: (
        "Start of NVIDIA bug report log file", "uname: Linux ../../x 5.15", "Date: Wed Feb 31 20:56:33 UTC 2026",
        f"Feb 31 20:56:33 gpu0001 kernel: {XID}", "==============NVSMI LOG==============", "GPU 0000:1B:00.0",
    ),
    Kind.nvsentinel: (
        '{"nodeName": 7, "checkName": "x"}', '{"nodeName": "gpu0001", "checkName": ["x"], "generatedTimestamp": 1e300}',
        '{"nodeName": "../x", "checkName": "SysLogsXIDError", "errorCode": ["79"], "generatedTimestamp":'
        ' {"seconds": "9999999999999"}, "entitiesImpacted": [{"entityType": "PCI", "entityValue": "0000:9b:00"}, 7]}',
        '{"nodeName": "<b>", "checkName": "x", "generatedTimestamp": "2026-11-25T20:56:33Z", "entitiesImpacted": 7}',
        '{"nodeName": "gpu0001", "generatedTimestamp": {"$date": {"$numberLong": "x"}}}', '{"a":' * 5000, "[1, 2",
    ),
    Kind.gpud: (
        '[{"component": 7, "events": 8}, {"events": [7]}, {"events": [{"type": "Fatal", "time": 9}]},',
        ' {"events": [{"type": "Fatal", "time": "2026-11-25T20:56:33Z", "extra_info": {"data": "{{{"}}]},',
        ' {"events": [{"type": "Fatal", "time": "9999-11-25T20:56:33Z", "message": "XID 79(x) detected on PCI:0000:9b:00"}]}',
    ),
}  # fmt: skip


@pytest.mark.parametrize("kind", list(HOSTILE))
def test_hostile_lines_cost_themselves(tmp_path: Path, kind: Kind) -> None:
    bad = written(tmp_path / "gpu0001", "\n".join(HOSTILE[kind]) + "\n")
    good = written(tmp_path / "good", f"2026-11-25T20:56:33Z gpu0001 kernel: {XID}\n")
    done, entries = imported(tmp_path, bad, good, kinds=[kind, Kind.syslog])
    assert kernel_lines(entries) == [("gpu0001", "2026-11-25T20:56:33Z")]
    assert done.sources[1].skipped == {}
    assert "gpu-lost" in {incident["rule"] for incident in played(entries)["incidents"]}


@pytest.mark.parametrize("kind", list(Kind))
def test_a_line_without_end_costs_itself_and_no_memory(tmp_path: Path, kind: Kind) -> None:
    """64 MiB, packed into some kB."""
    bad = tmp_path / "gpu0001"
    bad.write_bytes(zstandard.ZstdCompressor().compress(b"a" * (64 << 20)))
    good = written(tmp_path / "good", f"2026-11-25T20:56:33Z gpu0001 kernel: {XID}\n")
    tracemalloc.start()
    try:
        done, entries = imported(tmp_path, bad, good, kinds=[kind, Kind.syslog])
        peak_bytes = tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()
    assert kernel_lines(entries) == [("gpu0001", "2026-11-25T20:56:33Z")]
    assert done.sources[0].skipped and done.sources[1].skipped == {}
    # The list of nodes is one document, the others are read piece by piece.
    assert peak_bytes < (400 if kind is Kind.nodes else 48) << 20


def test_a_clock_that_was_never_set_does_not_make_it_begin_in_1970(tmp_path: Path) -> None:
    text = (
        f"1970-01-01T00:00:09Z gpu0001 kernel: {XID}\n2026-11-25T20:56:33Z gpu0001 kernel: {XID}\n"
        f"2088-01-01T00:00:00Z gpu0001 kernel: {XID}\n"
    )
    done, entries = imported(tmp_path, written(tmp_path / "m", text))
    assert kernel_lines(entries) == [("gpu0001", "2026-11-25T20:56:33Z")]
    assert done.sources[0].skipped["not a plausible time, or later than the file itself"].count == 2
    assert entries[0]["at"].startswith("2026-11-25")


def test_the_words_of_25_11(tmp_path: Path) -> None:
    """25.05 writes `Node(s)`, 25.11 the SLUID behind the job."""
    controller = (
        "[2026-11-25T20:56:33.100] slurmctld version 25.11.7 started on cluster pod1(2175)\n"
        "[2026-11-25T20:57:00.100] error: slurmd error running JobId=7 SLUID=s4Y1HWJ7KQ3G00 on Node(s)=gpu0001:"
        " Prolog error\n"
        "[2026-11-25T20:57:00.101] drain_nodes: node gpu0001 state set to DRAIN\n"
        "[2026-11-25T20:58:00.101] error: slurmd error running JobId=8 on Node(s)=gpu0002: Slurmd could not"
        " create a batch directory\n"
        "[2026-11-25T20:58:00.102] drain_nodes: node gpu0002 state set to DRAIN\n"
    )
    node = (
        "[2026-11-25T20:56:33.100] slurmd version 25.11.7 started\n"
        "[2026-11-25T20:57:00.100] error: JobId=7 SLUID=s4Y1HWJ7KQ3G00 prolog failed status=1:0\n"
        "[2026-11-25T21:30:00.100] error: JobId=9 epilog failed status=2:0\n"
    )
    _, entries = imported(
        tmp_path,
        written(tmp_path / "slurmctld.log", controller),
        written(tmp_path / "slurmd-gpu0001.log", node),
    )
    assert [(row["name"], row["reason"]) for row in changes(entries, "nodes")] == [
        ("gpu0001", "Prolog error"),
        ("gpu0002", "Slurmd could not create a batch directory"),
    ]
    checks = [entry["body"]["checks"][0] for entry in entries if entry["route"].startswith("signals/hooks/")]
    assert checks == [{"name": "prolog", "text": "status 1:0"}, {"name": "epilog", "text": "status 2:0"}]


@pytest.mark.parametrize(
    "lines",
    [
        "2026-13-45T20:56:33Z gpu0001 app: x\n2026-11-25T20:56:34Z gpu0001 app: x\n",
        "9999-99-99T20:56:33Z gpu0001 app: x\n0000-00-00T20:56:34Z gpu0001 app: x\n",
    ],
)
def test_a_host_is_not_heard_on_a_day_that_does_not_exist(tmp_path: Path, lines: str) -> None:
    good = "2026-11-25T20:56:32Z gpu0001 app: x\n"
    done, _ = imported(tmp_path, written(tmp_path / "m", good + lines), kinds=[Kind.syslog])
    assert done.heard == {"gpu0001": [("2026-11-25", "2026-11-25")]}


def test_a_time_of_the_journal_that_is_no_date_costs_its_own_line(tmp_path: Path) -> None:
    lines = "".join(
        json.dumps({"__REALTIME_TIMESTAMP": str(at), "_HOSTNAME": "gpu0001", "_TRANSPORT": "syslog"}) + "\n"
        for at in (1795640193000000, 99999999999999999999)
    )
    done, _ = imported(tmp_path, written(tmp_path / "j", lines), kinds=[Kind.journal_json])
    assert done.heard == {"gpu0001": [("2026-11-25", "2026-11-25")]}


def test_invented_hosts_are_not_all_remembered(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("healer.importing.happenings.HEARD_MOST", 30)
    monkeypatch.setattr("healer.importing.kernel_text.OPEN_MOST", 30)
    lines = "".join(f"2026-11-25T20:56:33Z gpu{n:04d} kernel: {XID}\n" for n in range(100))
    done, entries = imported(tmp_path, written(tmp_path / "m", lines))
    assert len(done.heard) == 30
    assert len(kernel_lines(entries)) == 100
    assert any("30 hosts and days" in str(note) for note in done.sources[0].notes)


def test_a_carriage_return_begins_no_line(tmp_path: Path) -> None:
    log = written(tmp_path / "slurmctld.log", (
        "[2026-11-25T20:56:33.000] slurmctld version 24.11.5 started on cluster c\r\n"
        "[2026-11-25T20:56:34.000] update_node: node gpu0001 reason set to: a\r"
        "[2026-11-25T20:56:35.000] update_node: node gpu0002 state set to DRAINED\r\n"
        "[2026-11-25T20:56:36.000] update_node: node gpu0001 state set to DRAINED\r\n"
        "binary \0 \r \r \r\n"
    ))  # fmt: skip
    done, entries = imported(tmp_path, log, kinds=[Kind.slurmctld])
    assert {row["name"] for row in changes(entries, "nodes")} == {"gpu0001"}
    (tally,) = done.sources
    assert tally.lines == 4 and [each.count for each in tally.skipped.values()] == [1]
