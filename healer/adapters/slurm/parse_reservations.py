"""Reservations: `scontrol show reservation` as text (22.05, SLURM_TIME_FORMAT=%s) and as JSON (from 23.02).

The same JSON comes from slurmrestd's `/reservations`.
"""

import re
from collections.abc import Sequence
from datetime import timedelta
from itertools import pairwise

import msgspec

from healer.adapters.slurm import slurm_words as words
from healer.adapters.slurm import strict_hostlist as hostlist
from healer.adapters.slurm.parse_json import NotUnderstood, Problem, check_errors
from healer.model import Reservation

#: "Duration=infinite" is stored by Slurm as a year from the start.
_ENDLESS = timedelta(days=364)
_START = re.compile(r"^ReservationName=", re.MULTILINE)
_NAME = re.compile(r"^ReservationName=(\S+)")
_PAIR = re.compile(r"(?:^|\s)(StartTime|EndTime|Nodes|Flags|Users|Accounts)=(\S*)")


class _Number(msgspec.Struct, frozen=True):
    set: bool = False
    infinite: bool = False
    number: int = 0


class _Reservation(msgspec.Struct, frozen=True):
    name: str
    node_list: str | None = None
    users: str | None = None
    accounts: str | None = None
    flags: str | list[str] | None = None
    start_time: int | _Number | None = None
    end_time: int | _Number | None = None


class _Answer(msgspec.Struct, frozen=True):
    errors: list[Problem] = []
    reservations: list[_Reservation] = []


def from_json(raw: bytes) -> dict[str, Reservation]:
    """All reservations by name. NotUnderstood on anything else."""
    try:
        answer = msgspec.json.decode(raw, type=_Answer)
        check_errors(answer.errors)
        return {
            told.name: reservation(
                told.name,
                nodes=told.node_list or "",
                users=_names(told.users),
                accounts=_names(told.accounts),
                flags=_names(told.flags),
                since=_seconds(told.start_time),
                until=_seconds(told.end_time),
            )
            for told in answer.reservations
        }
    except (msgspec.DecodeError, ValueError) as error:
        raise NotUnderstood(f"Slurm's reservations could not be read: {error}.") from error


def from_text(text: str) -> dict[str, Reservation]:
    """All reservations by name; none at all is "No reservations in the system". NotUnderstood on a record
    that cannot be read: a reservation that is overlooked would let jobs be put where they may not run."""
    starts = [match.start() for match in _START.finditer(text)]
    records = [text[start:end] for start, end in pairwise([*starts, len(text)])]
    if not records and text.strip() and "No reservations" not in text:
        raise NotUnderstood(f"scontrol show reservation said {text.strip()[:200]!r}.")
    return {found.name: found for found in map(_record, records)}


def _record(text: str) -> Reservation:
    name, told = _NAME.match(text), dict(_PAIR.findall(text))
    if name is None or not {"StartTime", "EndTime", "Nodes", "Flags"} <= set(told):
        raise NotUnderstood(f"scontrol show reservation said {text.strip()[:200]!r}.")
    try:
        return reservation(
            name[1],
            nodes=told["Nodes"],
            users=_names(told.get("Users")),
            accounts=_names(told.get("Accounts")),
            flags=_names(told["Flags"]),
            since=int(told["StartTime"]),
            until=int(told["EndTime"]),
        )
    except ValueError as error:
        raise NotUnderstood(f"The reservation {name[1]} could not be read: {error}.") from error


def reservation(
    name: str,
    *,
    nodes: str,
    users: Sequence[str],
    accounts: Sequence[str],
    flags: Sequence[str],
    since: int,
    until: int,
) -> Reservation:
    """`nodes` is a host list; times are Unix seconds, 0 for none. ValueError on a malformed host list."""
    start, end = words.moment(since), words.moment(until)
    return Reservation(
        name=name,
        nodes=hostlist.expand(nodes),
        users=tuple(users),
        accounts=tuple(accounts),
        maintenance="MAINT" in flags,
        since=start,
        until=None if start and end and end - start >= _ENDLESS else end,
        flags=tuple(flags),
    )


def _names(value: str | list[str] | None) -> list[str]:
    parts = value.split(",") if isinstance(value, str) else value or []
    return [part for part in parts if part and part != "(null)"]


def _seconds(value: int | _Number | None) -> int:
    if isinstance(value, _Number):
        return value.number if value.set and not value.infinite else 0
    return value or 0
