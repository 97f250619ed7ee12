"""`healer token`: makes, lists and revokes tokens, straight in the database."""

import os
import re
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import UTC, datetime, timedelta
from enum import StrEnum
from typing import Any

import typer

from healer.commands import Failed, person, say
from healer.commands.remote import AS_JSON, add_group, print_json, print_list
from healer.model.shown import shown
from healer.model.vocabulary import Role
from healer.ports.callers import NewToken
from healer.settings import load

_LASTS = re.compile(r"([1-9][0-9]{0,4})([mhdw])")
_UNITS = {"m": "minutes", "h": "hours", "d": "days", "w": "weeks"}
#: A sign-in link expires after this.
_LINK_LASTS = "15m"
_NOT_YET = (
    "the audit has not sealed the record of this token yet, and until then it is refused: start `healer "
    "worker`, which seals, or see what `healer doctor` says"
)


class Vouched(StrEnum):
    """What a relay may vouch for."""

    kernel = "kernel"


def register(app: typer.Typer) -> None:
    commands = {"create": create, "list": list_tokens, "revoke": revoke}
    add_group(app, "token", "Tokens for the API.", commands)


def create(
    role: Role = typer.Option(..., help="What the token may do."),
    name: str = typer.Option("", help="Whose it is. Tokens of one name are one person to the audit."),
    *,
    node: str | None = typer.Option(None, help="Bind it to this node: it speaks of and sees nothing else."),
    job: str | None = typer.Option(None, help="Bind it to this job."),
    cluster: str | None = typer.Option(None, help="Bind it to this cluster."),
    expires: str | None = typer.Option(
        None, help="How long it lasts: 30m, 12h, 90d, 52w. Default: for ever."
    ),
    quota: float = typer.Option(
        1.0, min=0.001, max=1000, help="How many times the usual quota of signals it may send."
    ),
    vouches: Vouched | None = typer.Option(
        None, help="The site's own relay: its kernel lines count as the nodes' own word. Only role signals."
    ),
    once: bool = typer.Option(
        False, "--once", help=f"A sign-in link for the console instead: works once, for {_LINK_LASTS}."
    ),
    json: bool = AS_JSON,
) -> None:
    """Print a new token. It is shown this once; the database keeps only its digest."""
    now = datetime.now(UTC)
    lasts = expires or (_LINK_LASTS if once else None)
    until = None if lasts is None else now + parse_lasts(lasts)
    _check_cluster(cluster, node or job)
    _check_name(name)
    _check_vouching(vouches, role)
    token = _make(
        NewToken(
            role=role,
            name=name,
            node=node,
            job=job,
            cluster=cluster,
            expires_at=until,
            once=once,
            quota=quota,
            vouches=vouches.value if vouches is not None else "",
        ),
        now,
    )
    if json:
        document = {"token": token, "id": token.split("_")[1], "role": role.value, "name": name}
        print_json(document | {"expires_at": until.isoformat() if until else None, "once": once})
    else:
        site = os.environ.get("HEALER_URL") or f"http://{load().listen}"
        say(f"{site.rstrip('/')}/sign-in?token={token}" if once else token)


def _make(new: NewToken, now: datetime) -> str:
    with _tokens() as tokens:
        token = tokens.create(new, now=now, by=person())
        is_sealed = tokens.wait_for_seal(token)
    if not is_sealed:
        say(_NOT_YET, err=True)
    return token


def _check_cluster(cluster: str | None, bound_to: str | None) -> None:
    """Raises Failed for an unknown one, and where a node or job of several clusters is meant."""
    clusters = load().clusters
    if clusters and (cluster not in clusters if cluster else bound_to):
        raise Failed(f"--cluster says which cluster is meant: one of {', '.join(clusters)}")


def _check_name(name: str) -> None:
    if shown(name) != name:
        raise Failed(f"--name holds a character that cannot be seen: {name}")


def _check_vouching(vouches: Vouched | None, role: Role) -> None:
    if vouches is not None and role is not Role.signals:
        raise Failed("--vouches is for tokens of role signals: no other sends kernel lines")


def list_tokens(json: bool = AS_JSON) -> None:
    """Show all tokens, newest first; never their secrets."""
    with _tokens() as tokens:
        found = [dict(row) for row in tokens.all()]
    if json:
        found = [
            {k: v.isoformat() if isinstance(v, datetime) else v for k, v in row.items()} for row in found
        ]
    print_list(found, {name: name for name in _COLUMNS}, json)


#: Columns of `healer token list`, headed as they are named in JSON.
_COLUMNS = (
    "id", "role", "name", "node", "job", "cluster", "quota", "vouches", "created_at", "expires_at",
    "revoked_at",
)  # fmt: skip


def revoke(token: str = typer.Argument(help="The token's id, or the token itself.")) -> None:
    """Make a token worthless, within a second, on all machines. Its sessions end too."""
    identity = token.split("_")[1] if token.startswith("heal_") and token.count("_") >= 2 else token
    with _tokens() as tokens:
        if not tokens.revoke(identity, by=person(), now=datetime.now(UTC)):
            raise Failed(f"there is no token {identity} in force")
    say(f"revoked {identity}")


def parse_lasts(text: str, option: str = "--expires") -> timedelta:
    """`90d` -> 90 days. Raises a usage error that names the option."""
    fits = _LASTS.fullmatch(text)
    if not fits:
        raise typer.BadParameter(f"{text!r} is not a time such as 30m, 12h, 90d or 52w", param_hint=option)
    return timedelta(**{_UNITS[fits[2]]: int(fits[1])})


@contextmanager
def _tokens() -> Iterator[Any]:
    from healer.bootstrap.database import tokens
    from healer.ports.request_errors import Unavailable

    try:
        with tokens(load()) as found:
            yield found
    except Unavailable as error:
        raise Failed(str(error)) from None
