"""`healer import`: turns a site's logs into a recording."""

import errno
import os
import time
from collections.abc import Callable, Iterator, Sequence
from datetime import UTC, datetime
from fnmatch import fnmatchcase
from pathlib import Path
from typing import TYPE_CHECKING

import typer

from healer.commands import Failed, due_every, not_one_of, print_line, reading
from healer.commands.remote import AS_JSON, print_json
from healer.commands.replay import moment
from healer.settings import load, rules_folder
from healer.text import joined, quoted, said_by, say

if TYPE_CHECKING:
    from healer.importing.importer import Imported
    from healer.importing.live_metrics import Window
    from healer.importing.sources import Given
    from healer.importing.tally import Tally


#: Entries named in one line.
_NAMED = 5


def register(app: typer.Typer) -> None:
    app.command("import")(import_history)


def import_history(  # noqa: PLR0917 - options of a command
    sources: list[str] = typer.Argument(
        help="Files and folders, packed or plain, or a Prometheus' address; - reads standard input."
    ),
    output: Path = typer.Option(..., help="The recording to write; packed if it ends with .zst."),
    kinds: list[str] = typer.Option(
        [], "--as", help="Kind of the sources, or GLOB=KIND, if it is not recognised."
    ),
    time_zone: list[str] = typer.Option(
        [], help="Time zone of timestamps without one, or GLOB=ZONE. Default: this machine's."
    ),
    since: str | None = typer.Option(None, help="Of a server: from this time with zone, or age (30d)."),
    until: str | None = typer.Option(None, help="Of a server: up to this time. Default: now."),
    match: str = typer.Option("", help='Of a server: only these series, like cluster="pod1".'),
    token_file: Path | None = typer.Option(None, help="File with the server's bearer token."),
    pseudonymise: bool = typer.Option(False, help="Replace the names of users and jobs."),
    json: bool = AS_JSON,
) -> None:
    """Turn logs, accounting and metrics of the past into a recording. Nothing is changed or sent."""
    from healer.bootstrap import history
    from healer.importing.importer import Wanted, described

    settings = load()
    asked = _asked(since, until, match, token_file)
    files = [file for path in sources for file in files_of(path, output)]
    read = list(_sources(files, _by_name(kinds), _by_name(time_zone), asked))
    if not output.resolve().parent.is_dir():
        raise Failed(say("commands.no_folder", path=str(output.resolve().parent)))
    wanted = Wanted(
        output=output,
        cluster=settings.cluster or "",
        pseudonymise=pseudonymise,
        processes=max(1, min(len(read), len(os.sched_getaffinity(0)))),
    )
    with reading(output, writes=True):
        if output.is_dir():  # known before hours of reading
            raise IsADirectoryError(errno.EISDIR, os.strerror(errno.EISDIR), str(output))
        imported = history.imported(read, wanted, rules_folder(settings), settings, _progress())
    if json:
        print_json(described(imported))
    else:
        print_report(imported, output)
    if imported.is_nothing:
        raise Failed(say("commands.import_nothing"))


def _asked(
    since: str | None, until: str | None, match: str, token_file: Path | None
) -> Callable[[str], "Window"]:
    """What is requested from the server at an address."""
    now = datetime.now(UTC)
    begin, end = moment(since, now, "--since"), moment(until, now, "--until") or now

    def window(url: str) -> "Window":
        from healer.importing.live_metrics import Window

        if begin is None or begin >= end:
            raise typer.BadParameter(say("commands.import_since"), param_hint="--since")
        token = str(token_file.resolve()) if token_file is not None else ""
        whole = end.replace(microsecond=0)
        return Window(url=url, since=begin.replace(microsecond=0), until=whole, match=match, token_file=token)

    return window


def _sources(
    files: Sequence[str],
    kinds: Callable[[str], str],
    zones: Callable[[str], str],
    asked: Callable[[str], "Window"],
) -> Iterator["Given"]:
    from healer.importing.kinds import Kind
    from healer.importing.source_text import is_url
    from healer.importing.sources import LOCAL, SOURCES_MOST, given, zone_named

    if len(files) > SOURCES_MOST:
        raise Failed(say("commands.import_too_many", count=len(files), most=SOURCES_MOST))
    for number, file in enumerate(files):
        if is_url(file):
            yield given(file, number, file, kind=Kind.prometheus, zone=LOCAL, window=asked(file))
            continue
        kind, zone = kinds(file), zones(file) or LOCAL
        if kind and kind not in set(Kind):
            raise typer.BadParameter(not_one_of(kind, Kind), param_hint="--as")
        try:
            zone_named(zone)
            with reading(file):
                source = given(file, number, file, kind=Kind(kind) if kind else None, zone=zone)
        except ValueError as error:
            raise typer.BadParameter(said_by(error), param_hint="--time-zone") from error
        yield source


def files_of(path: str, output: Path) -> list[str]:
    """Files of a folder by name, without what this import writes there; what is no file is named. A folder
    that may not be read is an error, as a file is."""
    from healer.importing.workplace import place_of

    def unread(error: OSError) -> None:
        raise error

    written = {output.resolve(), place_of(output)}
    with reading(path):
        if not Path(path).is_dir():
            return [path]
        found = sorted(
            Path(folder, name)
            for folder, folders, names in os.walk(path, onerror=unread)
            for name in [*names, *(each for each in folders if Path(folder, each).is_symlink())]
        )
    files = [each for each in found if each.is_file()]
    _name_others(path, [str(each.relative_to(path)) for each in found if not each.is_file()])
    if not files:
        print_line(say("commands.import_no_files", folder=path), err=True)
    return [str(each) for each in files if written.isdisjoint({each.resolve(), each.resolve().parent})]


def _name_others(folder: str, others: Sequence[str]) -> None:
    if others:
        names = joined([*others[:_NAMED], *["…"] * (len(others) > _NAMED)], "comma")
        print_line(say("commands.import_others", folder=folder, count=len(others), names=names), err=True)


def _by_name(options: Sequence[str]) -> Callable[[str], str]:
    """The value for a file: from the first GLOB=VALUE that matches its path or name, else the plain one."""
    pairs = [option.partition("=") for option in options if "=" in option]
    plain = next((option for option in options if "=" not in option), "")

    def value(path: str) -> str:
        names = (path, Path(path).name)
        fitting = (found for glob, _, found in pairs if any(fnmatchcase(name, glob) for name in names))
        return next(fitting, plain)

    return value


def _progress() -> Callable[[int, int], None]:
    """Prints the share read and what is left, for people who watch."""
    began_s, is_due = time.monotonic(), due_every(2.0, in_log_s=60.0)

    before: int | None = None

    def report(read: int, whole: int) -> None:
        nonlocal before
        if before is None and (before := read):
            print_line(say("commands.import_goes_on", share=read / whole), err=True)
        if not read or not whole or not is_due():
            return
        share = read / whole
        left_s = (time.monotonic() - began_s) * (whole - read) / max(1, read - before)
        print_line(say("commands.import_progress", share=share, gb=whole / 1e9, left=left_s / 60), err=True)

    return report


def print_report(imported: "Imported", output: Path) -> None:
    """What was understood from each source, what was skipped and why, and what was assumed."""
    for source in imported.sources:
        _print_source(source)
    for offset in imported.offsets:
        clocks = say(
            "commands.import_clocks", second=offset.second, seconds=offset.seconds, first=offset.first,
            count=offset.events,
        )  # fmt: skip
        is_zone = offset.looks_like_a_zone
        print_line(say("commands.import_zone", clocks=clocks) if is_zone else clocks)
    for assumed in imported.assumed:
        print_line(say("commands.import_assumed", what=assumed))
    if imported.left_out:
        lines, hosts = sum(imported.left_out.values()), len(imported.left_out)
        first = joined(list(imported.left_out)[:5], "comma")
        print_line(say("commands.import_left_out", lines=lines, count=hosts, hosts=first))
    if imported.is_nothing:
        return
    print_line(
        say(
            "commands.import_done", file=str(output), entries=imported.entries, count=imported.nodes,
            cluster=imported.cluster,
        )
    )  # fmt: skip


def _print_source(source: "Tally") -> None:
    parts = [
        say("commands.things_line", count=source.lines), say("commands.count_signals", count=source.signals),
        say("commands.count_plain", count=source.plain),
    ]  # fmt: skip
    if source.first:
        first, last = (f"{at:%Y-%m-%d %H:%M}" for at in (source.first, source.last))
        parts.append(say("commands.import_span", first=first, last=last))
    kind, counts = quoted(source.kind or "unknown"), joined(parts, "comma")
    print_line(say("commands.import_source", source=source.source, kind=kind, counts=counts))
    for note in source.notes:
        print_line(say("commands.import_note", note=note))
    for why, skipped in sorted(source.skipped.items(), key=lambda item: -item[1].count):
        print_line(say("commands.import_skipped", n=skipped.count, why=why))
        for example in skipped.examples:
            print_line(f"    {example}")
