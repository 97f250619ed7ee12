"""What the commands that speak to the API share: one client, one way to print."""

import json
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

import typer

from healer.commands import Failed

if TYPE_CHECKING:
    from healer.commands.client import Client

#: Declared once, so that it reads the same everywhere.
AS_JSON = typer.Option(False, "--json", help="Print JSON.")
REASON = typer.Option(..., "--reason", help="Why: it stands in the audit.")
CLUSTER = typer.Option(None, "--cluster", help="The cluster, where there is more than one.")


@contextmanager
def client() -> Iterator["Client"]:
    """A client; what it cannot do ends the command with one sentence."""
    from healer.commands.client import Client, ClientError

    try:
        with Client() as made:
            yield made
    except ClientError as error:
        raise Failed(str(error)) from None


def print_json(value: Any) -> None:
    typer.echo(json.dumps(value, ensure_ascii=False))


def print_table(columns: Sequence[str], rows: Sequence[Sequence[Any]]) -> None:
    """A plain table; nothing is cut when the output is not a terminal."""
    from rich.console import Console
    from rich.table import Table
    from rich.text import Text

    table = Table(*columns, box=None, pad_edge=False, header_style="bold")
    for row in rows:
        table.add_row(*(Text(_words(cell)) for cell in row))
    console = Console(highlight=False)
    if not console.is_terminal:
        console.width = 1000
    console.print(table)


def with_cluster(
    columns: Sequence[str], rows: Sequence[Sequence[Any]], found: Sequence[dict[str, Any]]
) -> tuple[Sequence[str], Sequence[Sequence[Any]]]:
    """The table with the cluster of each row's thing in front, where they are of more than one."""
    if len({one["cluster"] for one in found}) < 2:
        return columns, rows
    return ("CLUSTER", *columns), [(one["cluster"], *row) for one, row in zip(found, rows, strict=True)]


def _words(cell: Any) -> str:
    match cell:
        case None:
            return ""
        case True | False:
            return "yes" if cell else "no"
        case list() | tuple():
            return " ".join(str(one) for one in cell)
    return str(cell)
