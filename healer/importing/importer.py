"""Sources -> one recording: each is read into sorted runs, then all are merged by time."""

import ctypes
import errno
import json
import os
import signal
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import FIRST_COMPLETED, Future, ProcessPoolExecutor, wait
from concurrent.futures.process import BrokenProcessPool
from datetime import date, timedelta
from multiprocessing import active_children, get_context
from pathlib import Path
from typing import Any

import msgspec

from healer import __version__
from healer.importing.folding import Fold
from healer.importing.happenings import Found
from healer.importing.kinds import Kind
from healer.importing.local_stamps import micros
from healer.importing.node_names import NodeNames, Pseudonyms, is_name, short_name
from healer.importing.same_events import Offset, offsets
from healer.importing.slurm_rows import JobRows, NodeRows
from healer.importing.sorted_runs import KEY, merged
from healer.importing.source_text import STDIN
from healer.importing.sources import Given, read_source
from healer.importing.tally import Tally
from healer.importing.workplace import Workplace, workplace
from healer.model import LineBook
from healer.recordings.recording_folder import PACKED, LinesFile
from healer.signals.series import Names
from healer.text import Said, say

#: Sources that say when something began long ago: they do not make the recording begin there.
_LOOKING_BACK = frozenset({Kind.sacct, Kind.sacct_json, Kind.jobcomp, Kind.sinfo_reasons, Kind.nodes})
_PR_SET_PDEATHSIG = 1
#: GPUs of a node of which no source says how many it has.
GPUS = 8


class Wanted(msgspec.Struct, frozen=True, kw_only=True):
    """How to import. `cluster`: if no source names it."""

    output: Path
    cluster: str = ""
    pseudonymise: bool = False
    processes: int = 1


class Imported(msgspec.Struct, frozen=True, kw_only=True):
    """The report. `heard`: node -> spans of days on which it wrote anything, as [first, last]."""

    cluster: str
    entries: int
    nodes: int
    sources: list[Tally]
    offsets: list[Offset]
    assumed: list[Said]
    left_out: dict[str, int]
    heard: dict[str, list[tuple[str, str]]]

    @property
    def is_nothing(self) -> bool:
        """No source brought anything."""
        return not any(source.signals for source in self.sources)


#: Called every second or so with the bytes read and the bytes in all.
Progress = Callable[[int, int], None]
_PROGRESS_S = 1.0
#: Less than this is read in the process itself.
_SMALL_BYTES = 8 << 20


class Reader(msgspec.Struct, frozen=True):
    """What is looked for: shapes of kernel lines, names of signals. `version`: of the rules they are of."""

    book: LineBook
    names: Names
    version: str


def run(sources: Sequence[Given], wanted: Wanted, reader: Reader, progress: Progress) -> Imported:
    """Writes the recording; an existing one is replaced at the end, and never by an empty one. An interrupted
    import continues. Raises OSError."""
    with workplace(wanted.output, _plan(sources, wanted, reader)) as place:
        whole = sum(size(source.path) for source in sources)
        if whole > _SMALL_BYTES:
            found = _read_apart(sources, place, wanted.processes, reader, progress)
        else:
            found = [read_source(source, place, reader.book, reader.names) for source in sources]
        document = _write(found, place.folder, wanted)
        if not document.is_nothing:
            (place.folder / "recording").replace(wanted.output)
        return document


def _plan(sources: Sequence[Given], wanted: Wanted, reader: Reader) -> bytes:
    """The same for the same import: inputs as they are, and what reads them."""
    sizes = [size(source.path) for source in sources]
    options = [__version__, str(KEY), reader.version, wanted.cluster, wanted.pseudonymise]
    # Not as UTF-8: a path is of any bytes.
    return json.dumps([options, sizes, msgspec.to_builtins(list(sources))]).encode()


def _read_apart(
    sources: Sequence[Given], place: Workplace, processes: int, reader: Reader, progress: Progress
) -> list[Found]:
    """Each source in one of these processes."""
    context = get_context("spawn")
    counter = context.Array("Q", len(sources) + 1, lock=False)
    whole = sum(size(source.path) for source in sources)
    before = [_read_before(source, place, reader) for source in sources]
    for source, found in zip(sources, before, strict=True):
        counter[source.number] = size(source.path) if found is not None else 0
    progress(sum(counter), whole)
    with ProcessPoolExecutor(
        processes, mp_context=context, initializer=_prepare, initargs=(place, reader, counter, os.getpid())
    ) as pool:
        try:
            results = [
                found if found is not None else pool.submit(_read_here, source)
                for source, found in zip(sources, before, strict=True)
            ]
            waiting = {result for result in results if isinstance(result, Future)}
            while waiting:
                _, waiting = wait(waiting, timeout=_PROGRESS_S, return_when=FIRST_COMPLETED)
                progress(sum(counter), whole)
            return [result.result() if isinstance(result, Future) else result for result in results]
        except BaseException as error:  # such as Ctrl-C: the pool would read all other sources first
            pool.shutdown(wait=False, cancel_futures=True)
            for child in active_children():
                child.kill()
            if isinstance(error, BrokenProcessPool):
                raise ChildProcessError(errno.ECHILD, say("importing.reader_killed")) from error
            raise


def _read_before(source: Given, place: Workplace, reader: Reader) -> Found | None:
    """The result of this source, if it was already read; standard input is, because no other process has
    it."""
    if source.path == STDIN:
        return read_source(source, place, reader.book, reader.names)
    return place.finished(source.number)


class _Here:
    """What a process of the pool needs for every source."""

    place: Workplace
    reader: Reader
    counter: Any


def _prepare(place: Workplace, reader: Reader, counter: Any, parent: int) -> None:
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # the parent ends it
    _end_with(parent)
    _Here.place, _Here.reader, _Here.counter = place, reader, counter


def _end_with(parent: int) -> None:
    """An import that continued would collide with it on the same files."""
    ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL, 0, 0, 0)
    if os.getppid() != parent:
        os._exit(1)


def _read_here(source: Given) -> Found:
    return read_source(source, _Here.place, _Here.reader.book, _Here.reader.names, _Here.counter)


def size(path: str) -> int:
    return Path(path).stat().st_size if Path(path).is_file() else 0


def _write(found: Sequence[Found], folder: Path, wanted: Wanted) -> Imported:
    cluster = wanted.cluster or next((each.cluster for each in found if each.cluster), "") or "cluster"
    nodes, assumed = _nodes(found)
    rows = {node: row for each in found for node, row in each.rows.items()}
    others = {
        node: [row[key] for key in ("hostname", "address") if row.get(key)] for node, row in rows.items()
    }
    names = NodeNames(nodes, others)
    heard = _heard(found, names)
    all_nodes = sorted(nodes or heard.keys() | _reported(found, names))
    if not all_nodes:
        assumed = [say("importing.no_nodes")]
    # A list that counts GPUs says of the other nodes in it that they have none.
    counted = rows.keys() if any(row.get("gpus") for row in rows.values()) else ()
    gpus, how = _gpus(found, [node for node in all_nodes if node not in counted], names)
    fixed = {node: {"gpus": gpus.get(node, 0)} | _lasting(rows.get(node, {})) for node in all_nodes}
    people = Pseudonyms({user for each in found for user in each.users}) if wanted.pseudonymise else None
    most, book = max((each.gpus_most for each in found), default=0), _book(found)
    uncounted = [] if most or book is None else [say("importing.gpus_not_counted")]
    jobs = JobRows({node: row["gpus"] for node, row in fixed.items()}, book, counts_gpus=most > 0)
    fold = Fold(cluster, names, NodeRows(fixed), jobs, people)
    with LinesFile(folder / "recording", packed=wanted.output.suffix == PACKED) as file:
        lines = merged((path for each in found for path in each.runs()), folder)
        for entry in fold.entries_of(lines, _start_us(found), all_nodes):
            file.write(entry)
        document = Imported(
            cluster=cluster,
            entries=fold.entries + 1,
            nodes=len(all_nodes),
            sources=[each.tally for each in found],
            offsets=offsets({each.tally.source: each.marks for each in found}),
            assumed=assumed + how + uncounted,
            left_out=dict(sorted(fold.left_out.items())),
            heard=heard,
        )
        file.write(fold.last(described(_shareable(document) if wanted.pseudonymise else document)))
    return document


def _shareable(document: Imported) -> Imported:
    """Without the text of skipped lines: the names in them are unknown."""
    return msgspec.structs.replace(document, sources=[each.without_words() for each in document.sources])


def _lasting(row: Mapping[str, Any]) -> dict[str, Any]:
    return {name: value for name, value in row.items() if value}


def _nodes(found: Sequence[Found]) -> tuple[set[str], list[Said]]:
    """The cluster's nodes, and what was assumed about them."""
    listed = {node for each in found if each.complete for node in each.nodes}
    named = {node for each in found for node in each.nodes if is_name(node)}
    if listed:
        return listed, []
    names = NodeNames(named, {})
    with_lines = {short_name(host) for each in found for host in each.hosts if names.node(host) is None}
    if named:
        return named | with_lines, [say("importing.nodes_of_logs")]
    return set(), [say("importing.nodes_of_hosts")]


def _gpus(
    found: Sequence[Found], unknown: Sequence[str], names: NodeNames
) -> tuple[dict[str, int], list[Said]]:
    """GPUs of the nodes that no list counts, and what was assumed about them."""
    most = max((each.gpus_most for each in found), default=0)
    if most and unknown:
        by_jobs = say("importing.gpus_of_jobs", nodes=len(unknown), gpus=most)
        return dict.fromkeys(unknown, most), [by_jobs]
    listed = _listed(found, names)
    gpus = {node: listed.get(node, GPUS) for node in unknown}
    assumed: list[Said] = []
    if by_list := sum(node in listed for node in unknown):
        assumed.append(say("importing.gpus_listed", nodes=by_list))
    if by_list < len(unknown):
        assumed.append(say("importing.gpus_assumed", nodes=len(unknown) - by_list, gpus=GPUS))
    return gpus, assumed


def _listed(found: Sequence[Found], names: NodeNames) -> dict[str, int]:
    """Node -> the most GPUs that nvidia-smi listed on a node of its model: on the node itself, some may have
    been lost all the time."""
    rows = [(names.node(host), *row) for each in found for host, row in each.gpus_listed.items()]
    most: dict[str, int] = {}
    for _, model, count in rows:
        most[model] = max(most.get(model, 0), count)
    return {node: most[model] for node, model, _ in rows if node is not None}


def _book(found: Sequence[Found]) -> tuple[int, int] | None:
    spans = [each.book for each in found if each.book is not None]
    return (min(first for first, _ in spans), max(last for _, last in spans)) if spans else None


def _start_us(found: Sequence[Found]) -> int:
    firsts = [each.tally.first for each in found if each.tally.first is not None]
    logs = [
        each.tally.first
        for each in found
        if each.tally.first is not None and each.tally.kind not in _LOOKING_BACK
    ]
    return micros(min(logs or firsts)) if firsts else 0


def _reported(found: Sequence[Found], names: NodeNames) -> set[str]:
    """Nodes that a source mentions, even if they wrote no line themselves."""
    hosts = (names.node(host) for each in found for host in each.hosts)
    return {node for node in hosts if node is not None and is_name(node)}


def _heard(found: Sequence[Found], names: NodeNames) -> dict[str, list[tuple[str, str]]]:
    days: dict[str, set[str]] = {}
    for each in found:
        for host, its in each.heard.items():
            node = names.node(host)
            if node is not None and is_name(node):
                days.setdefault(node, set()).update(its - {""})
    return {node: _spans(its) for node, its in sorted(days.items())}


def _spans(days: set[str]) -> list[tuple[str, str]]:
    found: list[tuple[str, str]] = []
    for day in sorted(days):
        if found and date.fromisoformat(day) - date.fromisoformat(found[-1][1]) == timedelta(days=1):
            found[-1] = found[-1][0], day
        else:
            found.append((day, day))
    return found


def described(document: Imported) -> Mapping[str, Any]:
    """As JSON and recordings have it: in English."""
    return msgspec.to_builtins(document, enc_hook=str)
