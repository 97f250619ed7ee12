"""`healer goodput`: what the GPU-hours of jobs were spent on."""

from collections.abc import Mapping
from typing import Any

import typer

from healer.commands import print_line
from healer.commands.remote import AS_JSON, CLUSTER, Client, Column, print_json, print_list
from healer.text import say


def goodput(
    *,
    by: str = typer.Option("partition", help="job, user, account, partition, cause, rack or month."),
    since: str | None = typer.Option(
        None, "--from", help="Start, like 2026-11-01T00:00:00Z; by default 30 days before the end."
    ),
    until: str | None = typer.Option(None, "--to", help="End; by default now."),
    cluster: str | None = CLUSTER,
    csv: bool = typer.Option(False, "--csv", help="Print a table for a spreadsheet."),
    json: bool = AS_JSON,
) -> None:
    """Show what the GPU-hours of jobs were spent on: productive, lost, hung, waiting and so on."""
    asked = {"by": by, "from": since, "to": until, "cluster": cluster}
    with Client() as api:
        if csv and not json:
            from urllib.parse import urlencode

            given = {name: value for name, value in {**asked, "format": "csv"}.items() if value is not None}
            print_line(api.download(f"/goodput?{urlencode(given)}").decode().rstrip("\n"), lines=True)
            return
        found = api.get("/goodput", **asked)
    if json:
        print_json(found)
        return
    whole = found["sum"] | {"name": say("commands.goodput_sum")}
    print_list([*found["items"], whole], _columns(by, found), as_json=False)


def _columns(by: str, found: Mapping[str, Any]) -> dict[str, Column]:
    """The classes that occur; money where there are prices."""
    columns: dict[str, Column] = {
        by.upper(): lambda row: row["name"] or "-",
        "GPU-HOURS": lambda row: f"{row['total']:,.1f}",
        "EFFECTIVE": lambda row: "-" if row["effective"] is None else f"{row['effective']:.1%}",
    }
    for spent in found["sum"]["gpu_hours"]:
        columns[spent.upper()] = _hours(spent)
    if found["sum"]["cost"]:
        columns[f"COST {found['currency']}".rstrip()] = _money("cost")
        columns["WASTED"] = _money("wasted")
    return columns


def _hours(spent: str) -> Column:
    return lambda row: f"{row['gpu_hours'].get(spent, 0.0):,.1f}"


def _money(name: str) -> Column:
    return lambda row: "-" if row[name] is None else f"{row[name]:,.2f}"
