"""`healer signals`: who sends, what was not stored, and what nobody knows."""

import typer

from healer.commands.remote import AS_JSON, CLUSTER, client, print_json, print_table

_LIMIT = typer.Option(500, min=1, max=500, help="Rows at most.")


def register(app: typer.Typer) -> None:
    group = typer.Typer(no_args_is_help=True, help="What arrives and what is lost.", rich_markup_mode=None)
    group.command("senders")(senders)
    group.command("losses")(losses)
    group.command("unknown")(unknown)
    app.add_typer(group, name="signals")


def senders(cluster: str | None = CLUSTER, limit: int = _LIMIT, json: bool = AS_JSON) -> None:
    """Show who sends what, the latest first."""
    names = ("who", "source", "node", "requests", "bytes", "last_seen")
    _show("/signals/senders", names, cluster, limit, json)


def losses(cluster: str | None = CLUSTER, limit: int = _LIMIT, json: bool = AS_JSON) -> None:
    """Show what was sent and is not stored, and why: the latest first."""
    names = ("reason", "source", "who", "count", "last_seen", "example")
    _show("/signals/losses", names, cluster, limit, json)


def unknown(cluster: str | None = CLUSTER, limit: int = _LIMIT, json: bool = AS_JSON) -> None:
    """Show the series that no rule can use, the most frequent first."""
    _show("/signals/unknown", ("name", "why", "count", "last_seen"), cluster, limit, json)


def _show(route: str, names: tuple[str, ...], cluster: str | None, limit: int, json: bool) -> None:
    with client() as api:
        found = api.get(route, cluster=cluster, limit=limit)["items"]
    if json:
        print_json(found)
        return
    rows = [[str(one[name])[:100] for name in names] for one in found]
    print_table(tuple(name.upper() for name in names), rows)
