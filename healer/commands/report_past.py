"""`healer report`: what healer would have done with a recording, and what people did."""

import os
from pathlib import Path
from typing import TYPE_CHECKING

import typer

from healer.commands import Failed, assumed, print_line, reading, say_document
from healer.model.site_past import Assumptions
from healer.settings import load, rules_folder
from healer.text import quoted, said_by, say
from healer.text.language import of_locale

if TYPE_CHECKING:
    from healer.model.site_past import PastReport


def report(
    recordings: list[Path] = typer.Argument(help="Recordings by time, or a folder of them."),
    *,
    output: Path | None = typer.Option(None, help="The file to write: .html, or .pdf by a local Chromium."),
    rules: Path | None = typer.Option(None, help="The rules to use instead of the active ones."),
    samples: bool = typer.Option(True, help="Also replay measurements: much slower."),
    assume: list[str] = typer.Option(
        [],
        metavar="NAME=NUMBER",
        help="An assumption: start_up_s, checkpoint_h or price, like price=2.5; repeat for more.",
    ),
    as_json: bool = typer.Option(False, "--json", help="Print the whole report as JSON."),
) -> None:
    """Write what healer would have done with recorded signals, and what people did. Nothing is changed."""
    from healer.bootstrap import history, log_to_stderr

    if output is not None and output.suffix not in {".html", ".pdf"}:
        raise typer.BadParameter(say("commands.report_name"), param_hint="--output")
    assumptions = assumed(assume, Assumptions)
    settings = load()
    log_to_stderr()
    names = ", ".join(map(str, recordings))
    try:
        with reading(names):
            found = history.reported(
                recordings, rules or rules_folder(settings), settings, samples=samples,
                assumed=assumptions,
            )  # fmt: skip
        if output is not None:
            with reading(output, writes=True):
                history.write_report(found, output, of_locale(os.environ))
    except ValueError as error:
        raise Failed(say("commands.replay_failed", names=names, why=said_by(error))) from error
    if as_json:
        say_document(found)
    else:
        _print(found, output)


def _print(found: "PastReport", output: Path | None) -> None:
    from healer.console.views.site_report_view import chapters, lede

    print_line(lede(found))
    for name, figure, rests in chapters(found)[0].facts:
        print_line(say("commands.report_fact", name=name, figure=figure, rests=rests))
    for row in found.advice:
        agreed = say("commands.report_no_drain")
        if row.drains:
            agreed = say("commands.report_agreed", agreed=row.agreed, count=row.drains)
        print_line(
            say(
                "commands.report_advice", rule=row.rule, count=row.incidents, agreed=agreed,
                mode=quoted(row.mode),
            )
        )  # fmt: skip
    if output is not None:
        print_line(say("commands.written", file=str(output)))
