"""`healer simulate`: a fleet with faults in simulated time, and its score card."""

import contextlib
import time
from collections.abc import Callable
from pathlib import Path

import typer

from healer.commands import Failed, say, say_json
from healer.settings import load, rules_folder
from healer.text import to_text

#: Seconds between lines of progress on standard error.
PROGRESS_S = 5.0


def register(app: typer.Typer) -> None:
    app.command("simulate")(simulate)


def simulate(
    scenario: str | None = typer.Argument(None, help="A scenario's name, or a YAML file."),
    *,
    seed: int = typer.Option(1, min=0, help="Same seed, same bytes."),
    days: float | None = typer.Option(None, help="Number of days instead of the scenario's."),
    alone: bool = typer.Option(False, "--alone", help="Only healer, without the baselines."),
    record: Path | None = typer.Option(None, help="Record what healer saw, for `healer replay`."),
    rules: Path | None = typer.Option(None, help="The rules to use instead of the active ones."),
    as_json: bool = typer.Option(False, "--json", help="Print the score cards as JSON."),
    names: bool = typer.Option(False, "--list", help="List the scenarios that ship."),
) -> None:
    """Run a fleet with faults in simulated time and print the score card; nothing is changed."""
    import msgspec

    from healer.bootstrap import offline
    from healer.rulebook.ruleset import RulesInvalid

    if names:
        for name, title in offline.listed():
            say(f"{name:20} {title}")
        return
    if scenario is None:
        raise typer.BadParameter("name a scenario, or ask for --list")
    settings = load()
    menders = offline.MENDERS[:1] if alone else offline.MENDERS
    try:
        chosen = offline.load(scenario, days=days)
        ruled = offline.rules_for(chosen, rules or rules_folder(settings), settings.settle_s)
        with contextlib.ExitStack() as stack:
            file = stack.enter_context(record.open("wb")) if record is not None else None
            cards = list(offline.simulated(chosen, ruled, seed, menders, file=file, progress=_progress()))
    except OSError as error:
        raise Failed(f"{record} cannot be written: {error.strerror}.") from error
    except (RulesInvalid, ValueError) as error:
        raise Failed(str(error)) from error
    if as_json:
        say_json(msgspec.json.format(msgspec.json.encode(cards, enc_hook=to_text), indent=1))
        return
    say(offline.card_text(cards[0]), lines=True)
    if not alone:
        say()
        say(offline.compared(cards), lines=True)


def _progress() -> Callable[[str, float], None]:
    """Prints progress every few seconds on standard error, for people who watch."""
    printed_at = time.monotonic()

    def report(name: str, share: float) -> None:
        nonlocal printed_at
        now = time.monotonic()
        if now - printed_at >= PROGRESS_S:
            printed_at = now
            say(f"{name}: {share:.0%}", err=True)

    return report
