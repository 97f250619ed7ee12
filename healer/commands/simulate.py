"""`healer simulate`: a fleet with faults in simulated time, and its score card."""

import contextlib
from collections.abc import Callable, Iterator
from pathlib import Path

import typer

from healer.commands import due_every, local, print_line, reading, say_document
from healer.settings import load, rules_folder
from healer.text import quoted, say


def simulate(
    scenario: str | None = typer.Argument(None, help="A scenario's name, or a YAML file."),
    *,
    seed: int = typer.Option(
        1, min=0, help="Seed of the random events; the same seed gives the same output."
    ),
    days: float | None = typer.Option(None, help="Number of days instead of the scenario's."),
    alone: bool = typer.Option(False, "--alone", help="Only healer, without the baselines."),
    record: Path | None = typer.Option(None, help="Record what healer saw, for `healer replay`."),
    rules: Path | None = typer.Option(None, help="The rules to use instead of the active ones."),
    as_json: bool = typer.Option(False, "--json", help="Print the score cards as JSON."),
    names: bool = typer.Option(False, "--list", help="List the shipped scenarios."),
) -> None:
    """Run a fleet with faults in simulated time and print the score card; nothing is changed."""
    from healer.bootstrap import offline
    from healer.recordings.recording_folder import PACKED, LinesFile

    if names:
        listed = offline.listed()
        if as_json:
            say_document([{"name": name, "title": title} for name, title in listed])
            return
        for name, title in listed:
            print_line(say("commands.scenario", name=name, title=quoted(title)))
        return
    if scenario is None:
        raise typer.BadParameter(say("commands.no_scenario"))
    settings = load()
    menders = offline.MENDERS[:1] if alone else offline.MENDERS
    chosen = offline.load(scenario, days=days)
    ruled = offline.rules_for(chosen, rules or rules_folder(settings), settings.settle_s)
    with reading(record, writes=True), contextlib.ExitStack() as stack:
        file = stack.enter_context(LinesFile(record, packed=record.suffix == PACKED)) if record else None
        cards = list(offline.simulated(chosen, ruled, seed, menders, file=file, progress=_progress()))
    if as_json:
        say_document(cards)
        return
    print_line(offline.card_text(cards[0]), lines=True)
    if not alone:
        print_line()
        for line in _aligned([[local(cell) for cell in row] for row in offline.compared(cards)]):
            print_line(line)


def _aligned(rows: list[list[str]]) -> Iterator[str]:
    """The first column to the left, the figures to the right."""
    from healer.commands.help_pages import columns

    widths = [max(map(columns, cells)) for cells in zip(*rows, strict=True)]
    for row in rows:
        blanks = [" " * (width - columns(cell)) for cell, width in zip(row, widths, strict=True)]
        figures = (blank + cell for blank, cell in zip(blanks[1:], row[1:], strict=True))
        yield "  ".join([row[0] + blanks[0], *figures]).rstrip()


def _progress() -> Callable[[str, float], None]:
    is_due = due_every(5.0)

    def report(name: str, share: float) -> None:
        if is_due():
            print_line(say("commands.simulate_progress", name=name, share=share), err=True)

    return report
