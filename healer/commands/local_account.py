"""`healer account`: persons of a site without an identity provider, straight in the database; a password of
one's own by the API."""

import os
from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

import typer

from healer.commands import Failed, person, say
from healer.commands.remote import AS_JSON, Client, add_group, print_json, print_list, url_of
from healer.commands.safe_url import check_safe
from healer.model.vocabulary import Role
from healer.ports.request_errors import Conflict, Invalid, Unavailable
from healer.settings import load

if TYPE_CHECKING:
    from healer.engine.local_accounts import LocalAccounts
    from healer.ports.account_book import Account

_NAME = typer.Argument(help="The person's name, as in the audit.")


def register(app: typer.Typer) -> None:
    commands = {"add": add, "reset": reset, "password": password, "list": list_accounts}
    add_group(app, "account", "People of a site without an identity provider.", commands)


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
            raise Failed(f"{name} has an account: `healer account reset {name}` makes new secrets")
        _print_made(accounts, name, role, tuple(group), json)


def reset(name: str = _NAME, json: bool = AS_JSON) -> None:
    """Print a new password and secret. The old ones and the open sessions end."""
    with _accounts() as accounts:
        found = accounts.book.find(name)
        if found is None:
            raise Failed(f"{name} has no account: `healer account add {name}` makes one")
        _print_made(accounts, name, found[0].role, found[0].groups, json)


def password(
    name: str | None = typer.Argument(None, help="The account. Default: your login name."),
    json: bool = AS_JSON,
) -> None:
    """Change your own password, from anywhere: asks for the old one and a code. Your sessions end."""
    check_safe(url_of(os.environ), "healer account password")
    body = {"name": name or person(), "password": typer.prompt("current password", hide_input=True, err=True)}
    body["code"] = typer.prompt("code of your authenticator app", err=True)
    body["new"] = typer.prompt("new password", hide_input=True, confirmation_prompt=True, err=True)
    with Client(anonymous=True) as api:
        changed = api.post("/account/password", body)
    if json:
        print_json(changed)
    else:
        say(f"the password of {changed['name']} was changed; {changed['sessions']} sessions ended")


def list_accounts(json: bool = AS_JSON) -> None:
    """Show all accounts; never their secrets. `healer person NAME --end` ends one."""
    with _accounts() as accounts:
        rows = [_document(account) for account in accounts.book.all()]
    columns = ("name", "role", "groups", "created_at", "created_by")
    print_list(rows, {column: column for column in columns}, json)


def _print_made(
    accounts: "LocalAccounts", name: str, role: Role | None, groups: tuple[str, ...], json: bool
) -> None:
    try:
        made = accounts.make(name, role=role, groups=groups, by=person())
    except Invalid as error:
        raise Failed(f"{error.field}: {error}") from None
    except Conflict as error:
        raise Failed(str(error)) from None
    if json:
        secrets = {"password": made.password, "code_secret": made.code_secret, "uri": made.uri}
        print_json(_document(made.account) | secrets)
        return
    say(f"password     {made.password}")
    say(f"code secret  {made.code_secret}")
    say(f"for an app   {made.uri}")
    say("hand them over and clear this screen: healer cannot show them again", err=True)


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

    try:
        with accounts(load()) as found:
            if found is None:
                raise Failed("this site has an identity provider: add the person there")
            yield found
    except Unavailable as error:
        raise Failed(str(error)) from None
