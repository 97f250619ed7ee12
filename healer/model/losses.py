"""What was sent and is not stored: counted by reason, so that nothing is lost unseen."""

from datetime import datetime
from enum import StrEnum

import msgspec


class LossReason(StrEnum):
    """Why something that a sender told is not stored. Words for people: `healer.console.words`."""

    shed = "shed"  # too much waited to be written: 429
    quota = "quota"  # the token sent more than it may: 429
    not_ready = "not_ready"  # Slurm has not been asked yet which nodes there are: 503
    database_away = "database_away"  # nothing could be stored: 503
    disk_full = "disk_full"  # the database's disk, or the spool's
    spool_full = "spool_full"  # the database was away for longer than the spool holds
    too_large = "too_large"  # the body, packed or unpacked: 413
    stalled = "stalled"  # the body did not come in time: 408
    bad_body = "bad_body"  # the body as a whole cannot be read: 400, 415, 422
    rejected = "rejected"  # one entry of a body that was taken
    not_kernel = "not_kernel"  # a log line that its sender does not mark as the kernel's
    late = "late"  # older than the windows, on arrival or when it was looked at
    out_of_order = "out_of_order"  # not newer than the last sample of its series
    series_limit = "series_limit"  # more series than a token, node or cluster may have
    not_recorded = "not_recorded"  # taken and judged, but the recorder could not keep it
    sender = "sender"  # the sender itself says that it lost them


class Loss(msgspec.Struct, frozen=True, kw_only=True):
    """`count` entries of `source` (a route's name, or the part of healer that dropped them) were lost.

    `who` is the name of the token that sent them, empty where it is not known. `example` says it of one.
    """

    cluster: str
    source: str
    reason: LossReason
    who: str = ""
    count: int = 1
    first_seen: datetime
    last_seen: datetime
    example: str = ""


class Sender(msgspec.Struct, frozen=True, kw_only=True):
    """What one token sent by one route. `bytes` as they were sent; `node`: the one that it is bound to."""

    cluster: str
    who: str
    source: str
    node: str = ""
    requests: int = 1
    bytes: int = 0
    first_seen: datetime
    last_seen: datetime
