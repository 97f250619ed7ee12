"""`healer replay`: what would have been done with recorded signals; `healer recordings`: what lies there."""

import sys
import time
from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

import typer

from healer.commands import Failed, say, say_json
from healer.commands.remote import AS_JSON, CLUSTER, Client, print_json, print_table
from healer.settings import Settings, load, rules_folder, shipped_rules
from healer.text import to_text

if TYPE_CHECKING:
    from healer.bootstrap.offline import Span


def print_document(document: dict[str, Any]) -> None:
    """One replay."""
    for incident in document["incidents"]:
        jobs = ", ".join(incident["jobs_hit"]) or "no job"
        say(f"{_headline(incident)}  ({jobs})")
    if document["merged"]:
        say()
        say(f"{len(document['merged'])} turned out to be parts of others")
    for incident in document["merged"]:
        say(f"{incident['opened']}  {incident['rule']} {incident['id'][:8]} into {incident['into'][:8]}")
    say()
    say(f"{len(document['actions'])} actions")
    for row in document["actions"]:
        what = (row["job"] and f"job {row['job']}") or row["node"] or ""
        say(f"{row['at']}  {row['action']:8} {what}  {(row['incident'] or '')[:8]}")
    say()
    say(f"{len(document['held'])} held back")
    for row in document["held"]:
        say(f"{row['at']}  {row['action']:8} {row['job'] or row['node']}  {row['guard']}: {row['why']}")
    if document["differences"]:
        say()
        say("Different from what was done")
        for row in document["differences"]:
            done = f"drained at {row['recorded']}" if row["recorded"] else "not drained"
            now = f"would be drained at {row['replayed']}" if row["replayed"] else "would not be drained"
            say(f"{row['node']}  then {done}, now {now}")


def print_comparison(found: dict[str, Any]) -> None:
    """What differs: first by rule, then each incident and action."""
    if not any((*found["incidents"].values(), *found["actions"].values(), found["held"])):
        say("No difference.")
        return
    rows = [[row[name] for name, _ in _COLUMNS] for row in found["rules"]]
    print_table([title for _, title in _COLUMNS], rows)
    for what, words in (("new", "Only now"), ("lost", "No longer")):
        _section(f"{words}: incidents", [_incident(incident) for incident in found["incidents"][what]])
        _section(f"{words}: actions", [_action(action) for action in found["actions"][what]])
    _section("Different incidents", [_changed(incident) for incident in found["incidents"]["changed"]])
    _section("Earlier or later actions", [_moved(action) for action in found["actions"]["moved"]])
    _section("Held by another guard", [_held_line(row) for row in found["held"]])


_COLUMNS = (
    ("rule", "RULE"), ("before", "BEFORE"), ("after", "NOW"), ("incidents_new", "NEW"),
    ("incidents_lost", "LOST"), ("incidents_changed", "OTHER"), ("actions_new", "ACTIONS+"),
    ("actions_lost", "ACTIONS-"), ("actions_moved", "MOVED"), ("held", "HELD"),
)  # fmt: skip


def _section(title: str, lines: list[str]) -> None:
    if lines:
        say()
        say(f"{title} ({len(lines)})")
        for line in lines:
            say(line)


def _headline(incident: dict[str, Any]) -> str:
    what = f"{incident['severity']} {incident['rule']} {incident['id'][:8]}"
    return f"{incident['opened']}  {what}  {incident['title']}"


def _incident(incident: dict[str, Any]) -> str:
    part = f"  (part of {incident['part_of'][:8]})" if incident["part_of"] else ""
    return f"{_headline(incident)}{part}"


def _action(action: dict[str, Any]) -> str:
    held = action["held"]
    other = f"  there held by {held['guard']}: {held['why']}" if held else ""
    return f"{action['at']}  {action['action']:8} {_target(action)}  {action['rule']}{other}"


def _changed(incident: dict[str, Any]) -> str:
    changes = (
        f"{name} {_value_words(a)} -> {_value_words(b)}" for name, (a, b) in incident["changes"].items()
    )
    return f"{incident['opened']}  {incident['rule']} {incident['id'][:8]}  {'; '.join(changes)}"


def _value_words(value: Any) -> str:
    if isinstance(value, dict):
        return " ".join(f"{name}={part}" for name, part in value.items()) or "none"
    return ", ".join(value) or "none" if isinstance(value, list) else str(value)


def _moved(action: dict[str, Any]) -> str:
    seconds = action["later_s"]
    words = f"{abs(seconds):.0f} s {'later' if seconds > 0 else 'earlier'}"
    return f"{action['at']}  {action['action']:8} {_target(action)}  {action['rule']}  {words}"


def _held_line(row: dict[str, Any]) -> str:
    guards = f"{row['before']['guard']} -> {row['guard']}"
    return f"{row['at']}  {row['action']:8} {_target(row)}  {row['rule']}  {guards}"


def _target(row: dict[str, Any]) -> str:
    return f"job {row['job']}" if row["job"] else row["node"] or ""


SHIPPED, DONE = "shipped", "done"
KINDS = ("new-actions", "lost", "any")
#: Seconds between lines of progress on standard error: on a terminal, and in a log.
PROGRESS_S, PROGRESS_IN_LOG_S = 5.0, 60.0
#: The exit status where --fail-on found what it asks for; 1 is an error.
DIFFERS = 3


def register(app: typer.Typer) -> None:
    app.command("replay")(replay)
    app.command("recordings")(recordings)


def replay(  # noqa: PLR0917 - options of a command
    recordings: list[Path] = typer.Argument(
        help="Recordings by time, or a folder of them; - reads standard input."
    ),
    rules: Path | None = typer.Option(None, help="The rules to use instead of the active ones."),
    against: str | None = typer.Option(
        None,
        help="Compare with other rules: a folder, `shipped`, or `done` (what was really done, by the API).",
    ),
    since: str | None = typer.Option(None, help="Start time: a time with zone, or an age (36h, 7d)."),
    until: str | None = typer.Option(None, help="End time."),
    samples: bool = typer.Option(True, help="Also replay measurements: much slower."),
    fail_on: str | None = typer.Option(
        None, "--fail-on", help=f"End with {DIFFERS} where the comparison has these: {', '.join(KINDS)}."
    ),
    as_json: bool = typer.Option(False, "--json", help="Print the whole document as JSON."),
) -> None:
    """Replay recorded signals through detection and decisions in simulated time; nothing is changed."""
    from healer.bootstrap import log_to_stderr
    from healer.bootstrap import offline as run

    if fail_on is not None and (fail_on not in KINDS or against is None):
        raise typer.BadParameter(f"one of {', '.join(KINDS)}, with --against", param_hint="--fail-on")
    settings = load()
    now = datetime.now(UTC)
    begin, end = _moment(since, now, "--since"), _moment(until, now, "--until")
    log_to_stderr()
    rules_dir, what = rules or rules_folder(settings), _What(tuple(recordings), begin, end, samples)
    if against is None or against == DONE:
        judged, span = _play(rules_dir, settings, what)
        if against is None:
            _out(judged, as_json, print_document)
            return
        compared = _done(span)
    else:
        folder = shipped_rules() if against == SHIPPED else Path(against)
        judged, compared, span = _play_both(rules_dir, folder, settings, what)
    found = run.compare(compared, judged)
    _out({"against": against, "span": span, **found}, as_json, print_comparison)
    if fail_on is not None and run.differs(found, fail_on):
        raise typer.Exit(DIFFERS)


class _What(NamedTuple):
    """What is replayed."""

    recordings: tuple[Path, ...]
    since: datetime | None
    until: datetime | None
    samples: bool

    @property
    def is_stdin(self) -> bool:
        return self.recordings == (Path("-"),)


def _play_both(
    rules_dir: Path, other: Path, settings: Settings, what: _What
) -> tuple[dict[str, Any], dict[str, Any], "Span | None"]:
    """Both replays at once, each in a process of its own."""
    from concurrent.futures import ProcessPoolExecutor
    from multiprocessing import get_context

    if what.is_stdin:
        raise typer.BadParameter(
            "standard input can be replayed once only: give a file", param_hint="--against"
        )
    with ProcessPoolExecutor(1, mp_context=get_context("spawn")) as processes:
        compared = processes.submit(_play_in_process, other, what)
        judged, span = _play(rules_dir, settings, what)
        return judged, compared.result()[0], span


def _play_in_process(folder: Path, what: _What) -> tuple[dict[str, Any], "Span | None"]:
    from healer.bootstrap import log_to_stderr

    log_to_stderr()
    return _play(folder, load(), what, show_progress=False)


def _play(
    folder: Path, settings: Settings, what: _What, *, show_progress: bool = True
) -> tuple[dict[str, Any], "Span | None"]:
    from healer.bootstrap import load_site_rules
    from healer.bootstrap import offline as run
    from healer.rulebook.ruleset import RulesInvalid

    try:
        rules = load_site_rules(folder, settings)
    except RulesInvalid as error:
        raise Failed(str(error)) from error
    recordings, since, until, samples = what
    names = ", ".join(map(str, recordings))
    try:
        if what.is_stdin:
            return run.replayed(rules, sys.stdin)
        progress = _progress(run.span_of(recordings, since, until)) if show_progress else lambda _: None
        return run.replayed_files(
            rules, recordings, since=since, until=until, samples=samples, progress=progress
        )
    except OSError as error:
        raise Failed(f"{error.filename or names} cannot be read: {error.strerror or error}.") from error
    except ValueError as error:
        raise Failed(f"{names}, {error}") from error


def _progress(span: tuple[datetime, datetime] | None) -> Callable[[datetime], None]:
    """Prints progress every few seconds on standard error, for people who watch."""
    from healer.console.words import span as words
    from healer.processes.scheduler import Pace, share_of

    pace, printed_s = Pace(), time.monotonic()
    every_s = PROGRESS_S if sys.stderr.isatty() else PROGRESS_IN_LOG_S

    def report(at: datetime) -> None:
        nonlocal printed_s
        now_s = time.monotonic()
        if span is None or now_s - printed_s < every_s:
            return
        printed_s, share = now_s, share_of(at, span)
        left_s = pace.left_s(share, now_s)
        left = "" if left_s is None else f", about {words(round(left_s))} left"
        say(f"replay: {share:.0%}{left}", err=True)

    return report


def _done(span: "Span | None") -> dict[str, Any]:
    if span is None:
        raise Failed("The recording is empty: there is nothing to compare with.")
    with Client() as api:
        return api.get(
            "/recordings/done",
            since=span.since.isoformat(),
            until=span.until.isoformat(),
            cluster=span.cluster,
        )


def _moment(text: str | None, now: datetime, option: str) -> datetime | None:
    """RFC 3339 with its zone, or `36h`, `7d`: so long before `now`."""
    if text is None:
        return None
    unit = {"h": 1, "d": 24}.get(text[-1:])
    try:
        if unit is not None:
            return now - timedelta(hours=float(text[:-1]) * unit)
        at = datetime.fromisoformat(text)
    except (ValueError, OverflowError):
        at = None
    if at is None or at.tzinfo is None:
        raise typer.BadParameter("a moment with its zone, or a span such as 36h or 7d", param_hint=option)
    return at


def _out(document: dict[str, Any], as_json: bool, show: Callable[[dict[str, Any]], None]) -> None:
    import msgspec

    if as_json:
        say_json(msgspec.json.format(msgspec.json.encode(document, enc_hook=to_text), indent=1))
    else:
        show(document)


def recordings(cluster: str | None = CLUSTER, json: bool = AS_JSON) -> None:
    """List recordings on this machine: time span, content, size, losses."""
    import msgspec

    from healer.recordings.recording_folder import recordings as recordings_in

    found = recordings_in(load().of(cluster).recording)
    if json:
        files = msgspec.to_builtins(found.files)
        print_json({"on": found.on, "folder": found.folder, "problem": found.problem, "files": files})
        return
    if not found.on:
        say("Nothing is recorded: HEALER_RECORDING is not set.")
        return
    say(found.problem or f"{found.folder}: {len(found.files)} files, {found.bytes / 1e6:.1f} MB")
    rows = [
        (
            file.file,
            f"{file.first:%Y-%m-%d %H:%M:%S}",
            f"{file.last:%Y-%m-%d %H:%M:%S}",
            file.lines,
            f"{file.bytes / 1e6:.2f}",
            file.lost or "",
            ", ".join(f"{route} {count}" for route, count in sorted(file.routes.items())),
        )
        for file in found.files
    ]
    if rows:
        print_table(("FILE", "FROM", "TO", "ENTRIES", "MB", "LOST", "ROUTES"), rows)
