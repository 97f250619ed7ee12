"""The identity of a fault event: the same event has the same digest, by whatever route it comes.

The best that the signal offers, in this order:

1. boot id and the kernel's sequence number;
2. boot id, the time stamp in the line, and the content (the line without its prefix);
3. the event's time by the sender's clock, and the content;
4. the time stamp in the line and the content;
5. boot id if there is one, the content and its arrival: the same content again within 10 minutes is the same
   event. After a reboot it is another: a node that fails again at once.

Cluster and node are always included. Digests are SHA-256 in hex. One event reported by two senders that know
different things about it has two digests: `observations.node_picture` finds those.
"""

import hashlib
from collections.abc import Iterable
from datetime import datetime
from typing import NamedTuple

import msgspec

#: Form 5: minutes in which the same content is the same event.
ARRIVAL_WINDOW_MIN = 10


class Identity(msgspec.Struct, frozen=True):
    """`digest` is stored. The event is also known already if one of `alternatives` is stored."""

    digest: str
    alternatives: tuple[str, ...] = ()


def digest_of(*parts: object) -> str:
    """One digest of a list of words. Each is hashed with its length, so that no two lists collide."""
    return hashlib.sha256(_packed(parts)).hexdigest()


def _packed(parts: Iterable[object]) -> bytes:
    texts = [str(part) for part in parts]
    whole = "".join([f"{len(text)}:{text}" for text in texts])
    if whole.isascii():  # the usual case: then a letter is a byte
        return whole.encode("ascii")
    words = [text.encode("utf-8", "surrogatepass") for text in texts]
    return b"".join([b"%d:%b" % (len(word), word) for word in words])


class Origin(NamedTuple):
    """The node that sent an event, and what counts its events: None if the sender gives neither."""

    cluster: str
    node: str
    boot_id: str | None = None
    seq: int | None = None
    stamp: str | None = None


def identify(origin: Origin, content: str, *, event_at: datetime | None, arrived_at: datetime) -> Identity:
    """The identity of one event. `event_at` is the sender's time, None without one.

    Form 5 counts arrival in whole minutes: the digest is that of the minute of arrival, the alternatives
    those of the ten minutes before. So the window is exact to a minute, and the store needs no other rule
    than "unique".
    """
    cluster, node, boot_id, seq, stamp = origin
    where = (cluster, node)
    if boot_id and seq is not None:
        return Identity(digest_of("seq", *where, boot_id, seq))
    if boot_id and stamp:
        return Identity(digest_of("stamp", *where, boot_id, stamp, content))
    if event_at is not None:
        return Identity(digest_of("time", *where, f"{event_at.timestamp():.6f}", content))
    if stamp and stamp.strip("0."):  # lines from the first moment of a boot all have the stamp 0
        return Identity(digest_of("stamp", *where, "", stamp, content))
    minute = int(arrived_at.timestamp()) // 60
    words = _packed(("arrival", *where, stamp or "", content, *([boot_id] if boot_id else [])))
    digest, *alternatives = (
        hashlib.sha256(words + _packed((minute - back,))).hexdigest()
        for back in range(ARRIVAL_WINDOW_MIN + 1)
    )
    return Identity(digest, tuple(alternatives))


def relayed_digest(digest: str) -> str:
    """The digest of the same signal from a relay, so that it never replaces the node's own report."""
    return digest_of("relayed", digest)
