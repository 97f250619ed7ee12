"""`healer import`: what a site keeps becomes a recording."""

import os
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from fnmatch import fnmatchcase
from pathlib import Path
from typing import TYPE_CHECKING

import typer

from healer.commands import Failed, say
from healer.commands.remote import AS_JSON, print_json
from healer.settings import load, rules_folder

if TYPE_CHECKING:
    from healer.importing.importer import Imported
    from healer.importing.sources import Given
    from healer.importing.tally import Tally

#: Seconds between lines of progress on standard error: on a terminal, and in a log.
PROGRESS_S, PROGRESS_IN_LOG_S = 2.0, 60.0


def register(app: typer.Typer) -> None:
    app.command("import")(import_history)


def import_history(
    sources: list[str] = typer.Argument(help="Files and folders, packed or plain; - reads standard input."),
    output: Path = typer.Option(..., help="The recording to write; packed if it ends with .zst."),
    kinds: list[str] = typer.Option(
        [], "--as", help="The kind of all sources, or GLOB=KIND, where it is not recognised."
    ),
    time_zone: list[str] = typer.Option(
        [], help="The zone of stamps without one, or GLOB=ZONE; this machine's own by default."
    ),
    pseudonymise: bool = typer.Option(False, help="Replace the names of users and jobs."),
    json: bool = AS_JSON,
) -> None:
    """Turn logs, accounting and metrics of the past into a recording. Nothing is changed or sent."""
    import msgspec

    from healer.bootstrap import history
    from healer.importing.importer import Wanted

    settings = load()
    read = list(_sources(sources, _by_name(kinds), _by_name(time_zone)))
    if not output.resolve().parent.is_dir():
        raise Failed(f"{output.resolve().parent} is no folder")
    wanted = Wanted(
        output=output,
        cluster=settings.cluster or "",
        pseudonymise=pseudonymise,
        processes=_processes(len(read)),
    )
    try:
        imported = history.imported(read, wanted, rules_folder(settings), settings, _progress())
    except OSError as error:
        raise Failed(f"{error.filename or output} cannot be written: {error.strerror or error}.") from error
    if json:
        print_json(msgspec.to_builtins(imported))
    else:
        print_report(imported, output)
    if not any(source.signals for source in imported.sources):
        raise Failed("nothing of what was read says anything to healer")


def _processes(sources: int) -> int:
    return max(1, min(sources, len(os.sched_getaffinity(0))))


def _sources(
    paths: Sequence[str], kinds: Callable[[str], str], zones: Callable[[str], str]
) -> Iterator["Given"]:
    """In the order of the command line, files of a folder by name."""
    from healer.importing.kinds import Kind
    from healer.importing.sources import LOCAL, SOURCES_MOST, given, zone_named

    files = [file for path in paths for file in _files(path)]
    if len(files) > SOURCES_MOST:
        raise Failed(f"{len(files)} files: at most {SOURCES_MOST} are read at once")
    for number, file in enumerate(files):
        kind, zone = kinds(file), zones(file) or LOCAL
        if kind and kind not in set(Kind):
            raise typer.BadParameter(f"{kind} is none of {', '.join(Kind)}", param_hint="--as")
        try:
            zone_named(zone)
            yield given(file, number, file, kind=Kind(kind) if kind else None, zone=zone)
        except ValueError as error:
            raise typer.BadParameter(str(error), param_hint="--time-zone") from error
        except OSError as error:
            raise Failed(f"{file} cannot be read: {error.strerror}.") from error


def _files(path: str) -> list[str]:
    if Path(path).is_dir():
        return [str(each) for each in sorted(Path(path).rglob("*")) if each.is_file()]
    return [path]


def _by_name(options: Sequence[str]) -> Callable[[str], str]:
    """The value for a file: of the first GLOB=VALUE that fits its path or name, else the plain one."""
    pairs = [option.partition("=") for option in options if "=" in option]
    plain = next((option for option in options if "=" not in option), "")

    def value(path: str) -> str:
        names = (path, Path(path).name)
        fitting = (found for glob, _, found in pairs if any(fnmatchcase(name, glob) for name in names))
        return next(fitting, plain)

    return value


def _progress() -> Callable[[int, int], None]:
    """Prints the share read and what is left, for people who watch."""
    began_s = printed_s = time.monotonic()
    every_s = PROGRESS_S if sys.stderr.isatty() else PROGRESS_IN_LOG_S

    def report(read: int, whole: int) -> None:
        nonlocal printed_s
        now_s = time.monotonic()
        if now_s - printed_s < every_s or not read or not whole:
            return
        printed_s, share = now_s, read / whole
        left_s = (now_s - began_s) * (1 - share) / share
        say(f"import: {share:.0%} of {whole / 1e9:.2f} GB read, about {left_s / 60:.0f} min left", err=True)

    return report


def print_report(imported: "Imported", output: Path) -> None:
    """What was understood of each source, what was skipped and why, and what was assumed."""
    for source in imported.sources:
        _print_source(source)
    for offset in imported.offsets:
        zone = ": is its time zone right (--time-zone)?" if offset.looks_like_a_zone else ""
        events = f"{offset.events} events in both"
        say(f"CLOCKS  {offset.second} is {offset.seconds:+.1f} s from {offset.first} by {events}{zone}")
    for assumed in imported.assumed:
        say(f"ASSUMED  {assumed}")
    if imported.left_out:
        lines, hosts = sum(imported.left_out.values()), len(imported.left_out)
        first = ", ".join(list(imported.left_out)[:5])
        say(f"LEFT OUT  {lines} lines of {hosts} hosts that are no nodes of the cluster: {first}")
    say(f"{output}: {imported.entries} entries of {imported.nodes} nodes of cluster {imported.cluster}")


def _print_source(source: "Tally") -> None:
    span = f", {source.first:%Y-%m-%d %H:%M} to {source.last:%Y-%m-%d %H:%M} UTC" if source.first else ""
    counts = f"{source.lines} lines, {source.signals} signals, {source.plain} of no interest{span}"
    say(f"{source.source} ({source.kind or 'unknown'}): {counts}")
    for note in source.notes:
        say(f"  note: {note}")
    for why, skipped in sorted(source.skipped.items(), key=lambda item: -item[1].count):
        say(f"  skipped {skipped.count}: {why}")
        for example in skipped.examples:
            say(f"    {example}")
