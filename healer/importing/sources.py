"""Reads one source by its kind."""

from collections.abc import Callable, Mapping
from datetime import UTC, datetime
from pathlib import Path
from zoneinfo import ZoneInfo

import msgspec

from healer.importing import accounting
from healer.importing.controller_log import ControllerLog
from healer.importing.happenings import Found
from healer.importing.journal_text import JournalText
from healer.importing.kernel_text import KernelText
from healer.importing.kinds import HEAD_BYTES, Kind, recognised
from healer.importing.local_stamps import LocalStamps, micros
from healer.importing.measured_text import MeasuredText
from healer.importing.node_lists import Reasons, read_nodes
from healer.importing.source_text import STDIN, Bytes, Counter, blocks, gzip_time, opened
from healer.importing.tally import Tally
from healer.model import LineBook
from healer.signals.series import Names

#: This machine's own zone.
LOCAL = "local"
_LOCAL_FILE = Path("/etc/localtime")
#: The number of a source is four digits of a key.
SOURCES_MOST = 9999
_SLURMD = "what slurmd says of nodes and jobs, slurmctld.log says too"


class Given(msgspec.Struct, frozen=True, kw_only=True):
    """One source and what is known of it. `host`: the node of a `dmesg`, which names none; `written`: when
    the file was last written."""

    number: int
    path: str
    name: str
    kind: Kind | None
    zone: str
    written: datetime
    host: str = ""


def given(path: str, number: int, name: str, **fields: object) -> Given:
    """Raises OSError."""
    if path == STDIN:
        return Given(number=number, path=path, name=name, written=datetime.now(UTC), **fields)  # type: ignore[arg-type]
    packed_at = gzip_time(path)
    written = datetime.fromtimestamp(packed_at or Path(path).stat().st_mtime, UTC)
    host = fields.pop("host", "") or host_of(Path(path))
    return Given(number=number, path=path, name=name, written=written, host=str(host), **fields)  # type: ignore[arg-type]


def host_of(path: Path) -> str:
    """`gpu0001/dmesg.txt`, `gpu0001.dmesg.gz` and `dmesg-gpu0001.txt` are of gpu0001."""
    stem = path.name.partition(".")[0]
    words = [word for word in stem.replace("_", "-").split("-") if word not in {"dmesg", "kern", "journal"}]
    return "-".join(words) or path.parent.name


def zone_named(name: str) -> ZoneInfo:
    """Raises ValueError."""
    if name != LOCAL:
        try:
            return ZoneInfo(name)
        except (KeyError, OSError, ValueError) as error:
            raise ValueError(f"{name} is no time zone such as Europe/Berlin") from error
    try:
        with _LOCAL_FILE.open("rb") as file:
            return ZoneInfo.from_file(file, key=LOCAL)
    except (OSError, ValueError):
        return ZoneInfo("UTC")


def read_source(
    source: Given, folder: Path, book: LineBook, names: Names, counter: Counter | None = None
) -> Found:
    """Never raises for what is in the source: that costs its own lines."""
    tally = Tally(source=source.name)
    found = Found(source.number, tally, folder, micros(source.written))
    try:
        kind = source.kind or _kind(source)
        if kind is None:
            tally.skip("not recognised: say what it is with --as")
            return found
        tally.kind = str(kind)
        stamps = LocalStamps(zone_named(source.zone), source.written)
        readers = _readers(source, found, stamps, book, names)
        readers[kind](opened(source.path, counter, source.number))
    except OSError as error:
        tally.skip(f"cannot be read: {error.strerror or error}")
        return found
    if stamps.skipped_hour:
        tally.note(f"{stamps.skipped_hour} stamps lie in the hour that the clock skips: is the zone right?")
    found.runs()
    return found


def _kind(source: Given) -> Kind | None:
    if source.path == STDIN:
        return None
    return recognised(opened(source.path).read(HEAD_BYTES))


def _readers(
    source: Given, found: Found, stamps: LocalStamps, book: LineBook, names: Names
) -> Mapping[Kind, Callable[[Bytes], None]]:
    written_us = micros(source.written)
    return {
        Kind.syslog: lambda file: KernelText(found, stamps, book).read(file),
        Kind.dmesg: lambda file: KernelText(found, stamps, book, source.host).read(file),
        Kind.journal_json: lambda file: JournalText(found, book, source.host).read_json(file),
        Kind.journal_export: lambda file: JournalText(found, book, source.host).read_export(file),
        Kind.slurmctld: lambda file: ControllerLog(found).read(file, stamps),
        Kind.slurmd: lambda file: _read_slurmd(file, found),
        Kind.sacct: lambda file: accounting.Table(found, stamps).read(file),
        Kind.sacct_json: lambda file: accounting.read_json(file, found),
        Kind.jobcomp: lambda file: accounting.read_completions(file, found, stamps),
        Kind.sinfo_reasons: lambda file: Reasons(found, stamps).read(file),
        Kind.nodes: lambda file: read_nodes(file, found, stamps),
        Kind.metrics: lambda file: MeasuredText(found, names, written_us).read(file),
        Kind.range_query: lambda file: MeasuredText(found, names, written_us).read_ranges(file),
    }


def _read_slurmd(file: Bytes, found: Found) -> None:
    found.tally.note(_SLURMD)
    found.tally.plain += sum(block.count(b"\n") for block in blocks(file, found.tally))
