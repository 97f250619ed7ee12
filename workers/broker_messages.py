"""What is accepted from the broker: names of runs, and nothing else.

Anyone who can reach the broker can write any message. Celery crashes on one that it cannot read, and trusts
a message's own headers: when to begin, what to do next, who wants an answer. So each message is rebuilt from
its id, its runs and its expiry before Celery counts or reads it; any other message is dropped.
"""

import base64
import json
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import datetime
from typing import Annotated, Any, Literal

import msgspec
import redis  # noqa: F401 kombu's own module hides that this is missing, and fails without its name
import structlog
from kombu.connection import Connection
from kombu.transport import TRANSPORT_ALIASES, sqlalchemy, virtual
from kombu.transport import redis as kombu_redis

log = structlog.get_logger()

ADVANCE = "workers.tasks.advance_run"
#: Runs of one message.
TOGETHER = 32
#: What follows the name of a key that is not Celery's.
DISPLACED = ":not-celery's"
#: What a text raises that is no JSON, is nested too deeply, or names a type of kombu's with a wrong value.
_UNREADABLE = (
    ValueError, TypeError, LookupError, AttributeError, ArithmeticError, RecursionError, msgspec.MsgspecError,
)  # fmt: skip

_Name = Annotated[str, msgspec.Meta(pattern="^[!-~]{1,100}$")]
_Runs = Annotated[list[_Name], msgspec.Meta(min_length=1, max_length=TOGETHER)]
_Body = tuple[_Runs, dict[str, Any], dict[str, Any]]


class _Headers(msgspec.Struct):
    task: Literal["workers.tasks.advance_run"]
    id: _Name
    expires: Annotated[datetime, msgspec.Meta(tz=True)] | None = None


class _DeliveryInfo(msgspec.Struct):
    routing_key: _Name
    exchange: Annotated[str, msgspec.Meta(pattern="^[!-~]{0,100}$")]


class _Properties(msgspec.Struct):
    delivery_tag: _Name
    delivery_info: _DeliveryInfo
    body_encoding: Literal["base64"]


class _Written(msgspec.Struct):
    """A message as Celery writes it. `body` is JSON."""

    headers: _Headers
    properties: _Properties
    body: bytes
    content_type: Literal["application/json"] = msgspec.field(name="content-type")


def plain_message(payload: Any) -> dict[str, Any]:
    """The same with what healer needs of it alone. Raises msgspec.MsgspecError where it is not ours."""
    written = msgspec.convert(payload, _Written)
    runs, _, _ = msgspec.json.decode(written.body, type=_Body)
    name, expires = written.headers.id, written.headers.expires
    given = written.properties
    return {
        "body": base64.b64encode(json.dumps([runs, {}, {}]).encode()).decode(),
        "content-encoding": "utf-8",
        "content-type": "application/json",
        "headers": {
            "lang": "py",
            "task": ADVANCE,
            "id": name,
            "expires": expires.isoformat() if expires else None,
        },
        "properties": {
            "correlation_id": name,
            "delivery_mode": 2,
            "delivery_info": msgspec.to_builtins(given.delivery_info),
            "priority": 0,
            "body_encoding": "base64",
            "delivery_tag": given.delivery_tag,
        },
    }


class RunMessage(virtual.Message):
    def __init__(self, payload: Any, channel: Any = None, **options: Any) -> None:
        super().__init__(plain_message(payload), channel=channel, **options)


@contextmanager
def _dropped() -> Iterator[None]:
    """The broker has given it away when it is read, so it does not come again."""
    try:
        yield
    except _UNREADABLE as error:
        log.warning("a message that names no runs is dropped", why=type(error).__name__)


class RedisChannel(kombu_redis.Channel):
    Message = RunMessage


class RedisTransport(kombu_redis.Transport):
    Channel = RedisChannel

    def on_readable(self, fileno: int) -> None:
        with _dropped():
            super().on_readable(fileno)


class PostgresChannel(sqlalchemy.Channel):
    Message = RunMessage


class PostgresTransport(sqlalchemy.Transport):
    Channel = PostgresChannel

    def drain_events(self, connection: Any, timeout: float | None = None) -> None:
        with _dropped():
            super().drain_events(connection, timeout=timeout)


def displace_strangers(connection: Connection, queue: str) -> None:
    """Puts what a stranger has written in the place of a key of Celery's under another name: the first use of
    such a key ends the worker, each time that it is started. PostgreSQL has the runs, and the sweep names
    them again."""
    channel = connection.default_channel
    if not isinstance(channel, RedisChannel):
        return
    kinds = {
        queue: "list",
        channel.keyprefix_queue % queue: "set",
        channel.unacked_key: "hash",
        channel.unacked_index_key: "zset",
        channel.unacked_mutex_key: "string",
    }
    for key, wanted in kinds.items():
        kind = channel.client.type(key).decode()
        if kind not in (wanted, "none"):
            channel.client.rename(key, f"{key}{DISPLACED}")
            log.error(
                "somebody else writes to the broker: give healer a Redis of its own. The key was renamed; no "
                "run is lost",
                key=key, kind=kind, expected=wanted, renamed=f"{key}{DISPLACED}",
            )  # fmt: skip


def install() -> None:
    """kombu finds a transport by the scheme of the broker's URL."""
    ours = f"{__name__}:RedisTransport"
    TRANSPORT_ALIASES.update({"redis": ours, "rediss": ours, "sqla": f"{__name__}:PostgresTransport"})
