"""Reservations as Slurm prints them. The texts are those of 22.05.8 and 24.11.5, host names changed."""

from datetime import UTC, datetime

import msgspec
import pytest

from healer.adapters.slurm import parse_json, parse_text
from healer.adapters.slurm.parse_json import NotUnderstood
from healer.model import Reservation

TEXT = """\
ReservationName=healer_1 StartTime=1795188695 EndTime=1826724695 Duration=365-00:00:00
   Nodes=gpu[0003-0004,0007] NodeCnt=3 CoreCnt=48 Features=(null) PartitionName=(null) Flags=MAINT,IGNORE_JOBS
   TRES=cpu=16
   Users=root Groups=(null) Accounts=(null) Licenses=(null) State=ACTIVE BurstBuffer=(null) Watts=n/a
   MaxStartDelay=(null)

ReservationName=spares StartTime=1795188695 EndTime=1795192295 Duration=01:00:00
   Nodes=gpu0005 NodeCnt=1 CoreCnt=32 Features=(null) PartitionName=(null) Flags=SPEC_NODES
   TRES=cpu=32
   Users=(null) Groups=(null) Accounts=ops,research Licenses=(null) State=ACTIVE BurstBuffer=(null)
   MaxStartDelay=(null)

"""
SINCE = datetime(2026, 11, 20, 15, 31, 35, tzinfo=UTC)
ENDLESS = Reservation(
    name="healer_1",
    nodes=("gpu0003", "gpu0004", "gpu0007"),
    users=("root",),
    maintenance=True,
    since=SINCE,
    flags=("MAINT", "IGNORE_JOBS"),
)
HOUR = Reservation(
    name="spares",
    nodes=("gpu0005",),
    accounts=("ops", "research"),
    since=SINCE,
    until=datetime(2026, 11, 20, 16, 31, 35, tzinfo=UTC),
    flags=("SPEC_NODES",),
)


def number(seconds: int, *, wrapped: bool) -> object:
    return {"set": True, "infinite": False, "number": seconds} if wrapped else seconds


def rows(*, wrapped: bool) -> bytes:
    """As v0.0.42 prints them; `wrapped` False: as v0.0.39 does, with plain numbers."""
    return msgspec.json.encode(
        {
            "reservations": [
                {
                    "name": "healer_1", "node_list": "gpu[0003-0004,0007]", "users": "root", "accounts": "",
                    "flags": ["MAINT", "IGNORE_JOBS"], "start_time": number(1795188695, wrapped=wrapped),
                    "end_time": number(1826724695, wrapped=wrapped), "watts": {}, "new_field": 1,
                },
                {
                    "name": "spares", "node_list": "gpu0005", "users": "", "accounts": "ops,research",
                    "flags": ["SPEC_NODES"], "start_time": number(1795188695, wrapped=wrapped),
                    "end_time": number(1795192295, wrapped=wrapped),
                },
            ],
            "errors": [],
        }
    )  # fmt: skip


def test_the_text_of_22_05_is_read() -> None:
    assert parse_text.reservations(TEXT) == {"healer_1": ENDLESS, "spares": HOUR}


@pytest.mark.parametrize("wrapped", [True, False])
def test_the_json_of_every_form_is_read(wrapped: bool) -> None:
    assert parse_json.reservations(rows(wrapped=wrapped)) == {"healer_1": ENDLESS, "spares": HOUR}


def test_no_reservation_is_none_and_another_answer_is_not_understood() -> None:
    assert parse_text.reservations("No reservations in the system\n") == {}
    assert parse_json.reservations(b'{"reservations": []}') == {}
    for text in ("slurm_load_reservations error: whatever\n", TEXT.replace("Nodes=", "Knoten=")):
        with pytest.raises(NotUnderstood):
            parse_text.reservations(text)


@pytest.mark.parametrize(
    "answer",
    [
        b"",
        b"[]",
        b'{"reservations": [{"name": 1}]}',
        b'{"reservations": [{"name": "x", "node_list": "a[1-"}]}',
    ],
)
def test_json_of_another_shape_is_not_understood(answer: bytes) -> None:
    with pytest.raises(NotUnderstood):
        parse_json.reservations(answer)
