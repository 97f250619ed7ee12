"""`healer replay`: what would have been done with recorded signals; `healer recordings`: what is recorded."""

import sys
import time
from collections.abc import Callable, Sequence
from datetime import UTC, datetime, timedelta
from functools import partial
from io import TextIOWrapper
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple, cast

import typer

from healer.commands import Failed, due_every, print_line, reading, say_document
from healer.commands.remote import AS_JSON, CLUSTER, Client, Column, print_json, print_list
from healer.settings import Settings, load, rules_folder, shipped_rules
from healer.text import Said, joined, quoted, said_by, say

if TYPE_CHECKING:
    from healer.bootstrap.offline import Span


def _target(row: dict[str, Any]) -> str:
    return say("commands.job", job=row["job"]) if row["job"] else row["node"] or ""


_ID: dict[str, Column] = {"OPENED": "opened", "RULE": "rule", "ID": lambda incident: incident["id"][:8]}
_INCIDENT: dict[str, Column] = {"SEV": "severity", **_ID, "WHAT": "title"}
_ACTION: dict[str, Column] = {"AT": "at", "ACTION": "action", "ON": _target}
_OF_RULE: dict[str, Column] = {**_ACTION, "RULE": "rule"}


def print_document(document: dict[str, Any], span: "Span | None") -> None:
    """One replay over `span`; None: of no entry."""
    if span is None or span.since > span.until:
        print_line(say("commands.replay_empty"))
    elif not any(document.values()):
        from healer.console.words import utc

        print_line(say("commands.replay_found_nothing", since=utc(span.since), until=utc(span.until)))
    _section(say("commands.replay_incidents"), document["incidents"], _INCIDENT | {"JOBS HIT": "jobs_hit"})
    into: dict[str, Column] = {"INTO": lambda incident: incident["into"][:8]}
    _section(say("commands.replay_merged"), document["merged"], _ID | into)
    of: dict[str, Column] = {"INCIDENT": lambda action: (action["incident"] or "")[:8]}
    _section(say("commands.replay_actions"), document["actions"], _ACTION | of)
    _section(say("commands.replay_held"), document["held"], _ACTION | {"GUARD": "guard", "WHY": "why"})
    drains: dict[str, Column] = {"NODE": "node", "DRAINED THEN": "recorded", "NOW": "replayed"}
    _section(say("commands.replay_differences"), document["differences"], drains)


def print_comparison(found: dict[str, Any]) -> None:
    """What differs: first by rule, then each incident and action."""
    incidents, actions = found["incidents"], found["actions"]
    if not any((*incidents.values(), *actions.values(), found["held"])):
        print_line(say("commands.no_difference"))
        return
    print_list(found["rules"], _COUNTS, as_json=False)
    part: dict[str, Column] = {"PART OF": lambda incident: (incident["part_of"] or "")[:8]}
    held: dict[str, Column] = {"": _held_there}
    for what in ("new", "lost"):
        _section(say(f"commands.incidents_{what}"), incidents[what], _INCIDENT | part)
        _section(say(f"commands.actions_{what}"), actions[what], _OF_RULE | held)
    _section(say("commands.incidents_changed"), incidents["changed"], _ID | {"CHANGES": _changes})
    _section(say("commands.actions_moved"), actions["moved"], _OF_RULE | {"LATER BY S": "later_s"})
    guards: dict[str, Column] = {
        "BEFORE": lambda row: row["before"]["guard"] if row["before"] else "none",
        "NOW": lambda row: row["guard"] or "none",
    }
    _section(say("commands.held_otherwise"), found["held"], _OF_RULE | guards)


_COUNTS: dict[str, Column] = {
    "RULE": "rule", "BEFORE": "before", "NOW": "after", "NEW": "incidents_new", "LOST": "incidents_lost",
    "OTHER": "incidents_changed", "ACTIONS+": "actions_new", "ACTIONS-": "actions_lost",
    "MOVED": "actions_moved", "HELD": "held",
}  # fmt: skip


def _section(title: Said, rows: Sequence[dict[str, Any]], columns: dict[str, Column]) -> None:
    if rows:
        print_line()
        print_line(say("commands.section", title=title, n=len(rows)))
        print_list(rows, columns, as_json=False)


def _held_there(action: dict[str, Any]) -> str:
    held = action["held"]
    return say("commands.held_there", guard=quoted(held["guard"]), why=quoted(held["why"])) if held else ""


def _changes(incident: dict[str, Any]) -> str:
    changes = incident["changes"].items()
    return "; ".join(f"{name} {_value_words(a)} -> {_value_words(b)}" for name, (a, b) in changes)


def _value_words(value: Any) -> str:
    if isinstance(value, dict):
        return " ".join(f"{name}={part}" for name, part in value.items()) or "none"
    return ", ".join(value) or "none" if isinstance(value, list) else str(value)


SHIPPED, DONE = "shipped", "done"
KINDS = ("new-actions", "lost", "any")
#: The exit status if --fail-on found a match; 1 is an error.
DIFFERS = 3


def replay(  # noqa: PLR0917 - options of a command
    recordings: list[Path] = typer.Argument(
        help="Recordings by time, or a folder of them; - reads standard input."
    ),
    rules: Path | None = typer.Option(None, help="The rules to use instead of the active ones."),
    against: str | None = typer.Option(
        None,
        help="Compare with other rules: a folder, `shipped`, or `done` (what was really done, from the API).",
    ),
    since: str | None = typer.Option(None, help="Start time: a time with zone, or an age (36h, 7d)."),
    until: str | None = typer.Option(None, help="End time."),
    samples: bool = typer.Option(True, help="Also replay measurements: much slower."),
    fail_on: str | None = typer.Option(
        None, "--fail-on", help=f"Exit with {DIFFERS} if the comparison contains: {', '.join(KINDS)}."
    ),
    as_json: bool = typer.Option(False, "--json", help="Print the whole document as JSON."),
) -> None:
    """Replay recorded signals through detection and decisions in simulated time; nothing is changed."""
    from healer.bootstrap import log_to_stderr
    from healer.bootstrap import offline as run

    if fail_on is not None and (fail_on not in KINDS or against is None):
        raise typer.BadParameter(
            say("commands.fail_on", kinds=joined(KINDS, "comma")), param_hint="--fail-on"
        )
    settings = load()
    now = datetime.now(UTC)
    begin, end = moment(since, now, "--since"), moment(until, now, "--until")
    log_to_stderr()
    rules_dir, what = rules or rules_folder(settings), _What(tuple(recordings), begin, end, samples)
    if against is None or against == DONE:
        judged, span = _play(rules_dir, settings, what)
        if against is None:
            _print_document(judged, as_json, partial(print_document, span=span))
            return
        compared = _done(_not_empty(span))
    else:
        folder = shipped_rules() if against == SHIPPED else Path(against)
        judged, compared, span = _play_both(rules_dir, folder, settings, what)
    span = _not_empty(span)
    found = run.compare(compared, judged)
    _print_document({"against": against, "span": span, **found}, as_json, print_comparison)
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

    if what.is_stdin or any(path.is_fifo() for path in what.recordings):
        raise typer.BadParameter(say("commands.replay_stdin"), param_hint="--against")
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

    rules = load_site_rules(folder, settings)
    recordings, since, until, samples = what
    names = ", ".join(map(str, recordings))
    try:
        with reading(names):
            if what.is_stdin:
                cast(TextIOWrapper, sys.stdin).reconfigure(errors="surrogateescape")
                return run.replayed(rules, run.entries_in(sys.stdin, until, samples=samples), since)
            progress = _progress(run.span_of(recordings, since, until)) if show_progress else lambda _: None
            entries = run.entries_of(recordings, since, until, samples=samples)
            return run.replayed(rules, entries, since, progress)
    except ValueError as error:
        raise Failed(say("commands.replay_failed", names=names, why=said_by(error))) from error


def _progress(span: tuple[datetime, datetime] | None) -> Callable[[datetime], None]:
    """Prints progress every few seconds on standard error, for people who watch."""
    from healer.console.words import span as words
    from healer.processes.scheduler import Pace, share_of

    pace, is_due = Pace(), due_every(5.0, in_log_s=60.0)

    def report(at: datetime) -> None:
        if span is None or not is_due():
            return
        share = share_of(at, span)
        left_s = pace.left_s(share, time.monotonic())
        if left_s is None:
            print_line(say("commands.replay_progress", share=share), err=True)
        else:
            print_line(say("commands.replay_left", share=share, left=words(round(left_s))), err=True)

    return report


def _not_empty(span: "Span | None") -> "Span":
    """Two replays of nothing agree, which says nothing."""
    if span is None or span.since > span.until:
        raise Failed(say("commands.recording_empty"))
    return span


def _done(span: "Span") -> dict[str, Any]:
    with Client() as api:
        return api.get(
            "/recordings/done",
            since=span.since.isoformat(),
            until=span.until.isoformat(),
            cluster=span.cluster,
        )


def moment(text: str | None, now: datetime, option: str) -> datetime | None:
    """RFC 3339 with its zone, or `36h`, `7d`: that long before `now`."""
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
        raise typer.BadParameter(say("commands.no_moment"), param_hint=option)
    return at


def _print_document(document: dict[str, Any], as_json: bool, show: Callable[[dict[str, Any]], None]) -> None:
    if as_json:
        say_document(document)
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
        print_line(say("commands.recording_off"))
        return
    size = {"folder": str(found.folder), "count": len(found.files), "mb": found.bytes / 1e6}
    print_line(quoted(found.problem) or say("commands.recordings", **size))
    if files := msgspec.to_builtins(found.files):
        print_list(files, _FILES, as_json=False)


_FILES: dict[str, Column] = {
    "FILE": "file",
    "FROM": lambda file: file["first"][:19],
    "TO": lambda file: file["last"][:19],
    "ENTRIES": "lines",
    "MB": lambda file: f"{file['bytes'] / 1e6:.2f}",
    "LOST": lambda file: file["lost"] or "",
    "ROUTES": lambda file: ", ".join(f"{route} {count}" for route, count in sorted(file["routes"].items())),
}
