"""What tells how slurmctld is: `scontrol ping` and `sdiag`, as text (22.05) and as JSON (from 23.02).

The same JSON comes from slurmrestd's `/ping` and `/diag`.
"""

import re
from collections.abc import Sequence

import msgspec

from healer.adapters.slurm.parse_json import NotUnderstood


class Server(msgspec.Struct, frozen=True):
    """One slurmctld of the configuration. `role`: `primary` or `backup`."""

    host: str
    role: str
    up: bool


class Queues(msgspec.Struct, frozen=True):
    """Requests in work, messages that wait to leave, records that wait for slurmdbd."""

    threads: int | None = None
    agent: int | None = None
    dbd: int | None = None


_SERVER = re.compile(r"^Slurmctld\((\w+)\) at (\S+) is (UP|DOWN)", re.MULTILINE)
_QUEUES = {
    "threads": re.compile(r"^Server thread count:\s+(\d+)", re.MULTILINE),
    "agent": re.compile(r"^Agent queue size:\s+(\d+)", re.MULTILINE),
    "dbd": re.compile(r"^DBD Agent queue size:\s+(\d+)", re.MULTILINE),
}


class _Ping(msgspec.Struct, frozen=True):
    """`ping` up to v0.0.39, `pinged` from v0.0.40, both the words UP and DOWN; `responding` from v0.0.42."""

    hostname: str = ""
    mode: str = "primary"
    ping: str | None = None
    pinged: str | None = None
    responding: bool | None = None


class _Pings(msgspec.Struct, frozen=True):
    pings: list[_Ping] = []


class _Statistics(msgspec.Struct, frozen=True):
    server_thread_count: int | None = None
    agent_queue_size: int | None = None
    dbd_agent_queue_size: int | None = None


class _Diag(msgspec.Struct, frozen=True):
    statistics: _Statistics


def servers_from_text(text: str) -> list[Server]:
    """Of `scontrol ping`; it prints the same words where one of them is down. NotUnderstood on others."""
    found = [Server(host, _role(mode), state == "UP") for mode, host, state in _SERVER.findall(text)]
    if not found:
        raise NotUnderstood(f"scontrol ping said {text.strip()[:200]!r}.")
    return found


def servers_from_json(raw: bytes) -> list[Server]:
    """Of `scontrol ping --json` or `/ping`."""
    try:
        pings = msgspec.json.decode(raw, type=_Pings).pings
    except msgspec.DecodeError as error:
        raise NotUnderstood(f"Slurm's ping could not be read: {error}.") from error
    return [Server(ping.hostname, _role(ping.mode), _up(ping)) for ping in pings]


def answering(servers: Sequence[Server]) -> Server | None:
    """Who is in charge: the first that is up, since Slurm asks them in this order too."""
    return next((server for server in servers if server.up), None)


def queues_from_text(text: str) -> Queues:
    """Of `sdiag`; what it does not print is None."""
    found = {name: pattern.search(text) for name, pattern in _QUEUES.items()}
    return Queues(**{name: int(match[1]) for name, match in found.items() if match})


def queues_from_json(raw: bytes) -> Queues:
    """Of `sdiag --json` or `/diag`."""
    try:
        told = msgspec.json.decode(raw, type=_Diag).statistics
    except msgspec.DecodeError as error:
        raise NotUnderstood(f"Slurm's diagnostics could not be read: {error}.") from error
    return Queues(told.server_thread_count, told.agent_queue_size, told.dbd_agent_queue_size)


def _role(mode: str) -> str:
    return "primary" if mode.lower() == "primary" else "backup"


def _up(ping: _Ping) -> bool:
    if ping.responding is not None:
        return ping.responding
    return (ping.pinged or ping.ping or "").upper() == "UP"
