"""Reads one source by its kind."""

import errno
import re
import stat
from collections.abc import Callable, Mapping
from datetime import UTC, datetime
from functools import partial
from pathlib import Path
from typing import NamedTuple
from zoneinfo import ZoneInfo

import msgspec

from healer.importing import accounting
from healer.importing.controller_log import ControllerLog
from healer.importing.happenings import Found
from healer.importing.journal_text import JournalText
from healer.importing.kernel_text import KernelText
from healer.importing.kinds import HEAD_BYTES, Kind, holds_files, recognised, why_not
from healer.importing.live_metrics import LiveMetrics, Window
from healer.importing.local_stamps import LocalStamps, micros
from healer.importing.measured_text import MeasuredText
from healer.importing.nhc_log import NhcLog
from healer.importing.node_lists import Reasons, read_nodes
from healer.importing.node_log import NodeLog
from healer.importing.smi_text import BugReport, SmiText
from healer.importing.source_text import STDIN, Bytes, Counter, gzip_time, opened, pieces, without_colours
from healer.importing.tally import Tally
from healer.importing.tool_events import ToolEvents
from healer.importing.workplace import Workplace
from healer.model import LineBook
from healer.signals.series import Names
from healer.text import say

#: This machine's own zone.
LOCAL = "local"
_LOCAL_FILE = Path("/etc/localtime")
#: Words of a file's name that name no host: programs, and when it was written.
_NO_HOST = re.compile(
    r"(?:^|[-_\s]+)(?:dmesg|kern|journal|slurmd|nhc|nvidia|smi|bug|report|gpud|events"
    r"|20\d\d-?[01]\d-?[0-3]\d(?:[-_T]?\d{4,6})?)(?=[-_\s]|$)"
)
#: Kinds whose lines name no host.
_OF_ONE_HOST = frozenset({Kind.dmesg, Kind.slurmd, Kind.nvidia_smi, Kind.gpud})
#: The number of a source is six digits of a key: a month of 1,250 nodes with a file a day each is 37,500.
SOURCES_MOST = 999_999


class Given(msgspec.Struct, frozen=True, kw_only=True):
    """One source and what is known of it. `host`: the node of a `dmesg`, which names none; `written`: when
    the file was last written; `window`: what is asked of a server."""

    number: int
    path: str
    name: str
    kind: Kind | None
    zone: str
    written: datetime
    host: str = ""
    window: Window | None = None


def given(path: str, number: int, name: str, **fields: object) -> Given:
    """Raises OSError."""
    name = _as_text(name)
    if path == STDIN:
        return Given(number=number, path=path, name=name, written=datetime.now(UTC), **fields)  # type: ignore[arg-type]
    if isinstance(window := fields.get("window"), Window):
        return Given(number=number, path=path, name=name, written=window.until, **fields)  # type: ignore[arg-type]
    if not stat.S_ISREG(Path(path).stat().st_mode):
        raise OSError(errno.EINVAL, say("importing.no_file"), path)
    packed_at = gzip_time(path)
    written = datetime.fromtimestamp(packed_at or Path(path).stat().st_mtime, UTC)
    host = fields.pop("host", "") or host_of(Path(path))
    return Given(number=number, path=path, name=name, written=written, host=str(host), **fields)  # type: ignore[arg-type]


def host_of(path: Path) -> str:
    """`gpu0001/dmesg.txt`, `gpu0001.dmesg.gz` and `slurmd-gpu0001.log` are of gpu0001."""
    words = _NO_HOST.sub("", path.name.partition(".")[0]).strip("-_ ")
    return _as_text(words or path.parent.name)


def _as_text(name: str) -> str:
    """A name of any bytes can be opened, but is no text that can be written."""
    return name.encode(errors="surrogateescape").decode(errors="backslashreplace")


def zone_named(name: str) -> ZoneInfo:
    """Raises ValueError."""
    if name != LOCAL:
        try:
            return ZoneInfo(name)
        except (KeyError, OSError, ValueError) as error:
            raise ValueError(say("importing.no_zone", name=name)) from error
    try:
        with _LOCAL_FILE.open("rb") as file:
            return ZoneInfo.from_file(file, key=LOCAL)
    except (OSError, ValueError):
        return ZoneInfo("UTC")


def read_source(
    source: Given, place: Workplace, book: LineBook, names: Names, counter: Counter | None = None
) -> Found:
    """Never raises because of the source's contents: errors only cost its own lines."""
    if (found := place.finished(source.number)) is not None:
        return found
    try:
        found = _read(source, place, _Shared(book, names, zone_named(source.zone)), counter)
    except OSError as error:
        found = Found(source.number, Tally(source=source.name), place.folder, micros(source.written))
        found.tally.skip(say("importing.unreadable", why=error.strerror or str(error)))
    found.runs()
    place.finish(source.number, found)
    return found


class _Shared(NamedTuple):
    """What every reader has, and no state of one holds."""

    book: LineBook
    names: Names
    zone: ZoneInfo


def _read(source: Given, place: Workplace, shared: _Shared, counter: Counter | None) -> Found:
    """Goes on where an earlier import was interrupted. Raises OSError."""
    by_name = shared._asdict()
    state = place.state(source.number, by_name)
    if state is None:
        found = Found(source.number, Tally(source=source.name), place.folder, micros(source.written))
        kind = _kind(source, found.tally)
        if kind is None:
            return found
        found.tally.kind = str(kind)
        if kind in _OF_ONE_HOST and source.host:
            found.tally.note(say("importing.host_of_name", host=source.host))
        stamps = LocalStamps(shared.zone, source.written)
        state = found, stamps, _reader(kind, source, found, stamps, shared), 0
    found, stamps, read, after = state
    found.tally.read_bytes = after
    keep = place.keeper(source.number, by_name)

    def processed(count: int) -> None:
        keep(lambda: (found.flushed(), stamps, read, count))

    read(opened(source.path, counter, source.number, after, processed))
    if stamps.other_zone:
        found.tally.note(say("importing.other_zone", zone=stamps.other_zone))
    if stamps.skipped_hour:
        found.tally.note(say("importing.skipped_hour", n=stamps.skipped_hour))
    return found


def _kind(source: Given, tally: Tally) -> Kind | None:
    """As given, or by its head. None: nothing of it can be read, and why is noted."""
    if source.path == STDIN or source.window is not None:  # read once only
        if source.kind is None:
            tally.skip(say("importing.not_recognised"))
        return source.kind
    head = without_colours(next(pieces(opened(source.path), tally), b"")[:HEAD_BYTES])
    kind = None if holds_files(head) else source.kind or recognised(head)
    if kind is None and not tally.skipped:
        tally.skip(why_not(head))
    return None if tally.skipped else kind


def _window(source: Given) -> Window:
    """Raises OSError for a file."""
    if source.window is None:
        raise FileNotFoundError(errno.EINVAL, say("importing.not_a_server"))
    return source.window


def _reader(
    kind: Kind, source: Given, found: Found, stamps: LocalStamps, shared: _Shared
) -> Callable[[Bytes], None]:
    """It can be pickled between two blocks."""
    written_us, book, names = micros(source.written), shared.book, shared.names
    readers: Mapping[Kind, Callable[[], Callable[[Bytes], None]]] = {
        Kind.syslog: lambda: KernelText(found, stamps, book).read,
        Kind.dmesg: lambda: KernelText(found, stamps, book, source.host).read,
        Kind.journal_json: lambda: JournalText(found, book, source.host).read_json,
        Kind.journal_export: lambda: JournalText(found, book, source.host).read_export,
        Kind.slurmctld: lambda: ControllerLog(found, stamps).read,
        Kind.slurmd: lambda: NodeLog(found, stamps, source.host).read,
        Kind.sacct: lambda: accounting.Table(found, stamps).read,
        Kind.sacct_json: lambda: partial(accounting.read_json, found=found),
        Kind.jobcomp: lambda: partial(accounting.read_completions, found=found, stamps=stamps),
        Kind.sinfo_reasons: lambda: Reasons(found, stamps).read,
        Kind.nodes: lambda: partial(read_nodes, found=found, stamps=stamps),
        Kind.metrics: lambda: MeasuredText(found, names, written_us).read,
        Kind.range_query: lambda: MeasuredText(found, names, written_us).read_ranges,
        Kind.nhc: lambda: NhcLog(found, stamps, source.host).read,
        Kind.nvidia_smi: lambda: SmiText(found, stamps, written_us, source.host).read,
        Kind.bug_report: lambda: BugReport(found, stamps, written_us, book, source.host).read,
        Kind.nvsentinel: lambda: ToolEvents(found, book).read_nvsentinel,
        Kind.prometheus: lambda: LiveMetrics(found, names, _window(source)).read,
        Kind.gpud: lambda: ToolEvents(found, book, source.host).read_gpud,
    }
    return readers[kind]()
