"""`healer replay` and `healer simulate`: recordings and scenarios through the walk on simulated ports."""

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from datetime import datetime
from functools import partial
from pathlib import Path
from typing import Any, BinaryIO

import msgspec

from healer.bootstrap import log_to_stderr
from healer.model import GuardSettings, Mode, Ruleset
from healer.recordings.recording import Entry, Source, merged, read
from healer.recordings.recording_folder import LinesFile, chosen, ends_of, lines_of, tracks_of
from healer.rulebook import ruleset
from healer.sim.compare import compare, differs
from healer.sim.fleet.playing import MENDERS, simulate
from healer.sim.fleet.scenario import BadScenario, Scenario, load, shipped
from healer.sim.fleet.score import Card, card_text, compared
from healer.sim.replay_report import since as report_since
from healer.sim.replay_signals import SAMPLES
from healer.sim.replaying import cluster_of, replay
from healer.text import said_by, say

#: Includes names that commands import from here only: they choose no simulated part themselves.
__all__ = [
    "MENDERS", "Span", "card_text", "compare", "compared", "differs", "entries_in", "entries_of", "listed",
    "load", "replayed", "rules_for", "simulated", "span_of",
]  # fmt: skip

#: Called with the time that the replay has reached, once per this many entries.
Progress = Callable[[datetime], None]
_PROGRESS_EVERY = 2000


class Span(msgspec.Struct, frozen=True, kw_only=True):
    """Cluster and time span of a recording."""

    cluster: str
    since: datetime
    until: datetime


def replayed(
    rules: Ruleset,
    entries: Iterable[Entry],
    since: datetime | None = None,
    progress: Progress = lambda _: None,
    modes: Mapping[str, Mode] | None = None,
) -> tuple[dict[str, Any], Span | None]:
    """The document, without what is before `since`, and the span. `modes`: of rules, set while running."""
    watch = _Watch(progress)
    document = replay(rules, watch.over(entries), modes)
    span = watch.span
    if since is None or span is None:
        return document, span
    return report_since(document, since), msgspec.structs.replace(span, since=max(span.since, since))


def span_of(
    paths: Sequence[Path], since: datetime | None, until: datetime | None
) -> tuple[datetime, datetime] | None:
    """First and last time of these files without reading them whole; None if unknown."""
    ends = [span for path in chosen(paths, since, until) if (span := ends_of(path)) is not None]
    if not ends:
        return None
    last = max(last for _, last in ends)
    return min(first for first, _ in ends), min(last, until) if until is not None else last


def entries_of(
    paths: Sequence[Path], since: datetime | None, until: datetime | None, *, samples: bool = True
) -> Iterator[Entry]:
    """Entries of files and folders by time. The file that holds `since` is read from its start, for windows
    and Slurm's picture. Raises OSError and ValueError that name the file, and the line if possible."""
    files = chosen(paths, since, until)
    name = (lambda path: path.name) if len(files) > 1 else (lambda _: "")
    sources = [
        Source(name(path), track, lines_of(path)) for path, track in zip(files, tracks_of(files), strict=True)
    ]
    yield from _kept(merged(sources), until, samples=samples)


def entries_in(lines: Iterable[str], until: datetime | None, *, samples: bool = True) -> Iterator[Entry]:
    """Entries of one recording. Raises ValueError that names a bad line."""
    return _kept(read(lines), until, samples=samples)


def _kept(entries: Iterable[Entry], until: datetime | None, *, samples: bool) -> Iterator[Entry]:
    for entry in entries:
        if until is not None and entry.at > until:
            return
        if samples or entry.route not in SAMPLES:
            yield entry


class _Watch:
    """Reports progress, and learns the cluster and span of the entries."""

    def __init__(self, progress: Progress) -> None:
        self._progress = progress
        self._first = self._last = None
        self._cluster: str | None = None

    def over(self, entries: Iterable[Entry]) -> Iterator[Entry]:
        for number, entry in enumerate(entries):
            if number % _PROGRESS_EVERY == 0:
                self._progress(entry.at)
            self._cluster = self._cluster or cluster_of(entry)
            self._first, self._last = self._first or entry.at, entry.at
            yield entry

    @property
    def span(self) -> Span | None:
        if self._first is None or self._last is None:
            return None
        return Span(cluster=self._cluster or "", since=self._first, until=self._last)


def listed() -> list[tuple[str, str]]:
    """Names and titles of the shipped scenarios."""
    return [(name, load(name).title) for name in shipped()]


def rules_for(scenario: Scenario, folder: Path, settle_s: float) -> Ruleset:
    """The rules with the guards of the scenario. Raises ruleset.RulesInvalid and BadScenario."""
    try:
        given = msgspec.convert(scenario.guards, GuardSettings)
        overrides = {name: getattr(given, name) for name in scenario.guards}
    except (msgspec.ValidationError, AttributeError) as error:
        raise BadScenario(say("simulation.guards", name=scenario.name, why=said_by(error))) from error
    return ruleset.load(folder, default_mode=Mode.auto, settle_s=settle_s, overrides=overrides)


def simulated(
    scenario: Scenario,
    rules: Ruleset,
    seed: int,
    menders: Sequence[str],
    *,
    file: BinaryIO | LinesFile | None = None,
    progress: Callable[[str, float], None] | None = None,
) -> Iterable[Card]:
    """Yields the card of each mender in turn."""
    log_to_stderr()
    for mender in menders:
        report = partial(progress, mender) if progress is not None else None
        yield simulate(
            scenario,
            rules,
            seed,
            mender,
            file=_RecordingFile(file) if file and mender == "healer" else None,
            progress=report,
        )


class _RecordingFile:
    """`recorder.File` over one open file."""

    def __init__(self, file: BinaryIO | LinesFile) -> None:
        self._file, self._new = file, True

    def write(self, line: bytes, at: datetime, route: str, *, samples: bool = False) -> None:
        self._file.write(line + b"\n")

    def begun(self) -> bool:
        new, self._new = self._new, False
        return new
