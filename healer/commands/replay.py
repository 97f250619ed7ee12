"""`healer replay`: what would have been done with recorded signals, beside other rules or what was done."""

import sys
from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import TYPE_CHECKING, Any

import typer

from healer.commands import Failed
from healer.commands.replay_print import print_comparison, print_document
from healer.settings import Settings, guard_overrides, load, rules_folder, shipped_rules

if TYPE_CHECKING:
    from healer.bootstrap.replay import Span
    from healer.model import Ruleset

SHIPPED, DONE = "shipped", "done"
KINDS = ("new-actions", "lost", "any")
#: The exit status where --fail-on found what it asks for; 1 is an error.
DIFFERS = 3


def register(app: typer.Typer) -> None:
    app.command("replay")(replay)


def replay(  # noqa: PLR0917 - options of a command
    recordings: list[Path] = typer.Argument(
        help="Recordings by time, or a folder of them; - reads standard input."
    ),
    rules: Path | None = typer.Option(None, help="The rules to judge by, instead of those in force."),
    against: str | None = typer.Option(
        None,
        help="Compare with other rules: a folder, `shipped`, or `done` (what was really done, by the API).",
    ),
    since: str | None = typer.Option(None, help="Only from here on: a moment, or so long ago (36h, 7d)."),
    until: str | None = typer.Option(None, help="Only up to here."),
    samples: bool = typer.Option(True, help="Replay what was measured too: far slower."),
    fail_on: str | None = typer.Option(
        None, "--fail-on", help=f"End with {DIFFERS} where the comparison has these: {', '.join(KINDS)}."
    ),
    as_json: bool = typer.Option(False, "--json", help="Print the whole document as JSON."),
) -> None:
    """Feed recorded signals through detection and decisions in simulated time; nothing is touched."""
    from healer.bootstrap import replay as run

    if fail_on is not None and (fail_on not in KINDS or against is None):
        raise typer.BadParameter(f"one of {', '.join(KINDS)}, with --against", param_hint="--fail-on")
    settings = load()
    now = datetime.now(UTC)
    begin, end = _moment(since, now, "--since"), _moment(until, now, "--until")
    run.quiet()
    judged, span = _played(recordings, _ruled(rules or rules_folder(settings), settings), begin, end, samples)
    if against is None:
        _out(judged, as_json, print_document)
        return
    if against == DONE:
        compared = _done(span)
    else:
        folder = shipped_rules() if against == SHIPPED else Path(against)
        compared, _ = _played(recordings, _ruled(folder, settings), begin, end, samples)
    found = run.compare(compared, judged)
    _out({"against": against, "span": span, **found}, as_json, print_comparison)
    if fail_on is not None and run.differs(found, fail_on):
        raise typer.Exit(DIFFERS)


def _ruled(folder: Path, settings: Settings) -> "Ruleset":
    from healer import ruleset

    try:
        return ruleset.load(
            folder,
            default_mode=settings.mode,
            settle_s=settings.settle_s,
            overrides=guard_overrides(settings),
        )
    except ruleset.RulesInvalid as error:
        raise Failed(str(error)) from error


def _played(
    recordings: list[Path], rules: "Ruleset", since: datetime | None, until: datetime | None, samples: bool
) -> tuple[dict[str, Any], "Span | None"]:
    from healer.bootstrap import replay as run

    names = ", ".join(map(str, recordings))
    try:
        if recordings == [Path("-")]:
            return run.replayed(rules, sys.stdin)
        return run.replayed_files(rules, recordings, since=since, until=until, samples=samples)
    except OSError as error:
        raise Failed(f"{error.filename or names} cannot be read: {error.strerror or error}.") from error
    except ValueError as error:
        raise Failed(f"{names}, {error}") from error


def _done(span: "Span | None") -> dict[str, Any]:
    from healer.commands.remote import client

    if span is None:
        raise Failed("The recording is empty: there is nothing to compare with.")
    with client() as api:
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
        sys.stdout.buffer.write(msgspec.json.format(msgspec.json.encode(document), indent=1) + b"\n")
        sys.stdout.flush()
    else:
        show(document)
