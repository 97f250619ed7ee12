"""`healer account`: persons of a site without an identity provider, straight in the database; a password of
one's own by the API."""

import os
from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

import typer

from healer.commands import Failed, local, person, print_line
from healer.commands.remote import AS_JSON, Client, add_group, named_columns, print_json, print_list, url_of
from healer.commands.safe_url import check_safe
from healer.model.vocabulary import Role
from healer.ports.request_errors import Invalid
from healer.settings import load
from healer.text import said_by, say

if TYPE_CHECKING:
    from healer.engine.local_accounts import LocalAccounts
    from healer.ports.account_book import Account

_NAME = typer.Argument(help="The person's name, as in the audit.")


def register(app: typer.Typer) -> None:
    commands = {"add": add, "reset": reset, "password": password, "list": list_accounts}
    add_group(app, "account", "Local accounts, for a site without an identity provider.", commands)


def add(
    name: str = _NAME,
    *,
    role: Role | None = typer.Option(None, help="What the person may do, everywhere."),
    group: list[str] = typer.Option(
        [], help="Instead of a role: a group of rules/access.yaml; repeat for more."
    ),
    json: bool = AS_JSON,
) -> None:
    """Create an account. Prints the password and the secret for one-time codes; they are shown only once."""
    with _accounts() as accounts:
        if accounts.book.find(name) is not None:
            raise Failed(say("commands.account_exists", name=name))
        _print_made(accounts, name, role, tuple(group), json)


def reset(name: str = _NAME, json: bool = AS_JSON) -> None:
    """Print a new password and secret. The old ones and the open sessions end."""
    with _accounts() as accounts:
        found = accounts.book.find(name)
        if found is None:
            raise Failed(say("commands.account_missing", name=name))
        _print_made(accounts, name, found[0].role, found[0].groups, json)


def password(
    name: str | None = typer.Argument(None, help="The account. Default: your login name."),
    json: bool = AS_JSON,
) -> None:
    """Change your own password, from anywhere: asks for the old one and a code. Your sessions end."""
    check_safe(url_of(os.environ), "healer account password")
    asked = {name: local(say(f"commands.ask_{name}")) for name in ("password", "code", "new", "again")}
    body = {"name": name or person(), "password": typer.prompt(asked["password"], hide_input=True, err=True)}
    body["code"] = typer.prompt(asked["code"], err=True)
    body["new"] = typer.prompt(asked["new"], hide_input=True, err=True)
    if typer.prompt(asked["again"], hide_input=True, err=True) != body["new"]:
        raise Failed(say("commands.passwords_differ"))
    with Client(anonymous=True) as api:
        changed = api.post("/account/password", body)
    if json:
        print_json(changed)
    else:
        print_line(say("commands.password_changed", name=changed["name"], count=changed["sessions"]))


def list_accounts(json: bool = AS_JSON) -> None:
    """Show all accounts; never their secrets. `healer person NAME --end` ends one."""
    with _accounts() as accounts:
        rows = [_document(account) for account in accounts.book.all()]
    columns = ("name", "role", "groups", "created_at", "created_by")
    print_list(rows, named_columns(columns), json)


def _print_made(
    accounts: "LocalAccounts", name: str, role: Role | None, groups: tuple[str, ...], json: bool
) -> None:
    try:
        made = accounts.make(name, role=role, groups=groups, by=person())
    except Invalid as error:
        raise Failed(say("commands.of_field", field=error.field, text=said_by(error))) from None
    if json:
        secrets = {"password": made.password, "code_secret": made.code_secret, "uri": made.uri}
        print_json(_document(made.account) | secrets)
        return
    print_line(say("commands.account_password", text=made.password))
    print_line(say("commands.account_code", text=made.code_secret))
    print_line(say("commands.account_uri", text=made.uri))
    print_line(say("commands.account_made"), err=True)


def _document(account: "Account") -> dict[str, Any]:
    return {
        "id": account.id,
        "name": account.name,
        "role": account.role.value if account.role is not None else "",
        "groups": " ".join(account.groups),
        "created_at": account.created_at.isoformat(),
        "created_by": account.created_by,
    }


@contextmanager
def _accounts() -> Iterator["LocalAccounts"]:
    from healer.bootstrap.database import accounts

    with accounts(load()) as found:
        if found is None:
            raise Failed(say("commands.has_provider"))
        yield found
