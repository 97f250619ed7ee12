"""`healer report`: what healer would have done with a recording, and what people did."""

import os
from pathlib import Path
from typing import TYPE_CHECKING

import typer

from healer.commands import Failed, say, say_json
from healer.settings import load, rules_folder
from healer.text import to_text
from healer.text.language import of_locale

if TYPE_CHECKING:
    from healer.model.site_past import PastReport


def register(app: typer.Typer) -> None:
    app.command("report")(report)


def report(
    recordings: list[Path] = typer.Argument(help="Recordings by time, or a folder of them."),
    output: Path | None = typer.Option(None, help="The file to write: .html, or .pdf by a local Chromium."),
    rules: Path | None = typer.Option(None, help="The rules to use instead of the active ones."),
    samples: bool = typer.Option(True, help="Also replay measurements: much slower."),
    as_json: bool = typer.Option(False, "--json", help="Print the whole report as JSON."),
) -> None:
    """Write what healer would have done with recorded signals, and what people did. Nothing is changed."""
    import msgspec

    from healer.bootstrap import history, log_to_stderr

    if output is not None and output.suffix not in {".html", ".pdf"}:
        raise typer.BadParameter("a name that ends with .html or .pdf", param_hint="--output")
    settings = load()
    log_to_stderr()
    try:
        found = history.reported(recordings, rules or rules_folder(settings), settings, samples=samples)
        if output is not None:
            history.write_report(found, output, of_locale(os.environ))
    except history.PdfImpossible as error:
        raise Failed(str(error)) from error
    except OSError as error:
        names = ", ".join(map(str, recordings))
        raise Failed(f"{error.filename or names} cannot be read: {error.strerror or error}.") from error
    except ValueError as error:
        raise Failed(f"{', '.join(map(str, recordings))}, {error}") from error
    if as_json:
        say_json(msgspec.json.format(msgspec.json.encode(found, enc_hook=to_text), indent=1))
    else:
        _print(found, output)


def _print(found: "PastReport", output: Path | None) -> None:
    from healer.console.views.site_report_view import chapters, lede

    say(str(lede(found)))
    for name, figure, rests in chapters(found)[0].facts:
        say(f"{name}: {figure}. {rests}")
    for row in found.advice:
        agreed = f"{row.agreed} of {row.drains} drains agreed" if row.drains else "no drain"
        say(f"{row.rule}: {row.incidents} incidents, {agreed}; start with {row.mode}")
    if output is not None:
        say(f"{output} is written")
