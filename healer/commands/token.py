"""`healer token`: makes, lists and revokes tokens, straight in the database."""

import os
import re
from contextlib import AbstractContextManager
from datetime import UTC, datetime, timedelta
from enum import StrEnum
from typing import Any

import typer

from healer.commands import Failed, Misused, person, print_line
from healer.commands.remote import AS_JSON, add_group, named_columns, print_json, print_list
from healer.model.grants import ACTING
from healer.model.vocabulary import Role
from healer.ports.callers import NewToken
from healer.ports.request_errors import Conflict, Invalid
from healer.ports.service_accounts import OVERLAP, ROUTE_GROUPS, TokenRow, id_in
from healer.settings import load, site_url
from healer.text import joined, said_by, say

_LASTS = re.compile(r"([1-9][0-9]{0,4})([mhdw])")
_UNITS = {"m": "minutes", "h": "hours", "d": "days", "w": "weeks"}
#: A sign-in link expires after this.
_LINK_LASTS = "15m"


class Vouched(StrEnum):
    """What a relay may vouch for."""

    kernel = "kernel"


def register(app: typer.Typer) -> None:
    commands = {"create": create, "list": list_tokens, "rotate": rotate, "revoke": revoke}
    add_group(app, "token", "Tokens for the API.", commands)


def create(
    role: Role = typer.Option(..., help="What the token may do."),
    name: str = typer.Option(
        "",
        help="The person it belongs to; above viewer, the default is your login name. Tokens with one name "
        "belong to one person. OWNER/NAME is a service account of that person: above viewer it is valid for "
        "at most 90 days, and it cannot approve.",
    ),
    *,
    node: str | None = typer.Option(None, help="Bind it to this node: it reports and sees nothing else."),
    job: str | None = typer.Option(None, help="Bind it to this job."),
    cluster: str | None = typer.Option(None, help="Bind it to this cluster."),
    only: list[str] = typer.Option(
        [], help=f"Limit a service account to these routes; repeat for more: {', '.join(ROUTE_GROUPS)}."
    ),
    expires: str | None = typer.Option(
        None,
        help="Validity: 30m, 12h, 90d, 52w. Above viewer 90d is the maximum and the default. "
        "Default otherwise: unlimited; 90d for a service account.",
    ),
    quota: float = typer.Option(1.0, min=0.001, max=1000, help="Multiple of the usual quota of signals."),
    vouches: Vouched | None = typer.Option(
        None, help="For your own relay: its kernel lines count as the nodes' own report. Only role signals."
    ),
    once: bool = typer.Option(
        False, "--once", help=f"A sign-in link for the console instead: works once, for {_LINK_LASTS}."
    ),
    json: bool = AS_JSON,
) -> None:
    """Print a new token. It is shown only once; the database stores its digest."""
    now, lasts = datetime.now(UTC), _LINK_LASTS if once and expires is None else expires
    _check_cluster(cluster, node or job)
    _check_vouching(vouches, role)
    new = _checked(
        NewToken(
            role=role,
            name=name or (person() if role in ACTING else ""),
            node=node,
            job=job,
            cluster=cluster,
            expires_at=None if lasts is None else now + parse_lasts(lasts),
            once=once,
            quota=quota,
            vouches=vouches.value if vouches is not None else "",
            routes=tuple(only),
        ),
        now,
    )
    _print_made(_make(new, now), new, json)


def _print_made(token: str, new: NewToken, json: bool) -> None:
    if json:
        document: dict[str, Any] = {"token": token, "id": id_in(token), "role": new.role.value}
        document |= {"name": new.name, "once": new.once}
        if new.owner:
            document |= {"owner": new.owner, "routes": new.routes}
        print_json(document | {"expires_at": new.expires_at.isoformat() if new.expires_at else None})
    elif new.once:
        print_line(f"{_site().rstrip('/')}/sign-in?token={token}")
    else:
        print_line(token)


def _site() -> str:
    """The address of healer for people: as configured, else that of the healer of the data directory."""
    settings = load()
    if named := os.environ.get("HEALER_URL") or settings.public_url:
        return named
    from healer.embedded.running import find
    from healer.embedded.user import EmbeddedError

    try:
        return find(settings.data_dir).url
    except EmbeddedError:
        return site_url(settings)


def _make(new: NewToken, now: datetime) -> str:
    with _tokens() as tokens:
        try:
            token = tokens.create(new, now=now, by=person())
        except Conflict as error:
            raise Failed(say("commands.of_field", field="--name", text=said_by(error))) from None
        is_sealed = tokens.wait_for_seal(token)
    if not is_sealed:
        print_line(say("commands.token_not_sealed"), err=True)
    return token


def _check_cluster(cluster: str | None, bound_to: str | None) -> None:
    """Raises Failed for an unknown one, and where a node or job of several clusters is meant."""
    clusters = load().clusters
    if clusters and (cluster not in clusters if cluster else bound_to):
        raise Misused(say("commands.which_cluster", clusters=joined(list(clusters), "comma")))


def _checked(new: NewToken, now: datetime) -> NewToken:
    from healer.engine.token_making import checked_token

    try:
        return checked_token(new, now)
    except Invalid as error:
        raise Misused(say("commands.of_option", option=error.field, text=said_by(error))) from None


def _check_vouching(vouches: Vouched | None, role: Role) -> None:
    if vouches is not None and role is not Role.signals:
        raise Misused(say("commands.vouches_signals"))


def list_tokens(
    *,
    person: str | None = typer.Option(None, help="Only those that this person holds, or owns."),
    json: bool = AS_JSON,
) -> None:
    """Show all tokens, newest first; never their secrets."""
    with _tokens() as tokens:
        found = tokens.all() if person is None else tokens.listed(person=person)
    print_list([_document(row) for row in found], named_columns(_COLUMNS), json)


#: Columns of `healer token list`, headed as they are named in JSON.
_COLUMNS = (
    "id", "role", "name", "routes", "node", "job", "cluster", "quota", "vouches", "created_at", "expires_at",
    "revoked_at", "last_used_at",
)  # fmt: skip


def _document(row: TokenRow) -> dict[str, Any]:
    values = {name: getattr(row, name) for name in row.__struct_fields__} | {"role": row.role.value}
    return {k: v.isoformat() if isinstance(v, datetime) else v for k, v in values.items()}


def rotate(
    token: str = typer.Argument(help="The token's id, or the token itself."),
    *,
    overlap: str = typer.Option(f"{OVERLAP.days}d", help="How long the old one stays valid."),
    expires: str | None = typer.Option(
        None, help="Validity of the new one. Default: as long as the old one."
    ),
    json: bool = AS_JSON,
) -> None:
    """Print a replacement with the same rights. Both tokens are valid during --overlap."""
    from healer.engine.token_making import successor

    now = datetime.now(UTC)
    lasts = None if expires is None else parse_lasts(expires)
    ends = now + parse_lasts(overlap, "--overlap")
    with _tokens() as tokens:
        try:
            rotated = tokens.rotate(
                id_in(token), lambda row: successor(row, now, lasts), by=person(), now=now, ends=ends
            )
        except Invalid as error:
            raise Misused(say("commands.of_option", option=error.field, text=said_by(error))) from None
        is_sealed = tokens.wait_for_seal(rotated.token)
    if not is_sealed:
        print_line(say("commands.token_not_sealed"), err=True)
    if json:
        until = rotated.expires_at.isoformat() if rotated.expires_at else None
        document = {"token": rotated.token, "id": id_in(rotated.token), "expires_at": until}
        print_json(document | {"old_ends_at": rotated.ends_at.isoformat()})
    else:
        print_line(rotated.token)
        print_line(say("commands.old_ends", at=f"{rotated.ends_at:%Y-%m-%d %H:%M} UTC"), err=True)


def revoke(
    token: str | None = typer.Argument(None, help="The token's id, or the token itself."),
    *,
    accounts_of: str | None = typer.Option(None, help="All service accounts of this person instead."),
    json: bool = AS_JSON,
) -> None:
    """Revoke a token on all machines within a second. Its sessions end too."""
    if (token is None) is (accounts_of is None):
        raise Misused(say("commands.revoke_which"))
    now = datetime.now(UTC)
    with _tokens() as tokens:
        if accounts_of is not None:
            rows = tokens.revoke_accounts(accounts_of, by=person(), now=now)
            if not rows:
                raise Failed(say("commands.no_accounts", person=accounts_of))
            ended = {row.id: f"{row.id} {row.name}" for row in rows}
        else:
            identity = id_in(token or "")
            if not tokens.revoke(identity, by=person(), now=now):
                raise Failed(say("commands.no_such_token", id=identity))
            ended = {identity: identity}
    if json:
        print_json([{"id": identity} for identity in ended])
        return
    for line in ended.values():
        print_line(say("commands.revoked", what=line))


def parse_lasts(text: str, option: str = "--expires") -> timedelta:
    """`90d` -> 90 days. Raises a usage error that names the option."""
    fits = _LASTS.fullmatch(text)
    if not fits:
        raise typer.BadParameter(say("commands.no_span", given=text), param_hint=option)
    return timedelta(**{_UNITS[fits[2]]: int(fits[1])})


def _tokens() -> AbstractContextManager[Any]:
    from healer.bootstrap.database import tokens

    return tokens(load())
