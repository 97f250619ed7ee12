"""`healer messages`: messages to people, failed deliveries, and their retry."""

import typer

from healer.commands import print_line
from healer.commands.remote import (
    AS_JSON,
    CLUSTER,
    REASON,
    Client,
    Column,
    given,
    print_json,
    print_list,
    second_of,
)
from healer.text import say


def register(app: typer.Typer) -> None:
    group = typer.Typer(help="Pages, messages and tickets, and their delivery.", rich_markup_mode=None)
    group.callback(invoke_without_command=True)(messages)
    group.command("retry")(retry)
    app.add_typer(group, name="messages")


def messages(
    context: typer.Context,
    *,
    state: list[str] = typer.Option(
        [], help="due, digest, sent, failed, over, folded or listed; repeat for more."
    ),
    channel: str | None = typer.Option(None, help="Only those to this channel."),
    cluster: str | None = CLUSTER,
    limit: int = typer.Option(50, min=1, help="Maximum number of rows."),
    json: bool = AS_JSON,
) -> None:
    """List messages and their delivery state, newest first; --state failed shows the dead letters."""
    if context.invoked_subcommand is not None:
        return
    asked = {"state": state, "channel": channel, "cluster": cluster}
    with Client() as api:
        listed = list(api.items("/messages", limit, **asked))
    print_list(listed, _COLUMNS, json, clusters=True)


_COLUMNS: dict[str, Column] = {
    "MESSAGE": "message",
    "CHANNEL": "channel",
    "STATE": "state",
    "TRIES": "tries",
    "AT (UTC)": second_of("at"),
    "WHAT": "title",
    "ERROR": "error",
}


def retry(
    message: str = typer.Argument(help="The message's id."),
    *,
    channel: str | None = typer.Option(
        None, help="Only through this channel; otherwise through every channel that failed."
    ),
    reason: str = REASON,
    json: bool = AS_JSON,
) -> None:
    """Retry a message that could not be delivered."""
    from urllib.parse import quote

    body = given({"reason": reason, "channel": channel})
    with Client() as api:
        found = api.post(f"/messages/{quote(message, safe='')}/retry", body, once=True)
    if json:
        print_json(found)
        return
    for delivery in found["items"]:
        print_line(say("commands.redelivered", message=delivery["message"], channel=delivery["channel"]))
