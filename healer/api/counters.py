"""What is counted in memory and written now and then: nothing of it is lost while the database is away."""

import threading
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from datetime import datetime
from typing import Generic, TypeVar

import msgspec

from healer.api.metrics import LOST
from healer.api.problems import Problem, problem_of
from healer.model import Loss, LossReason, Sender, UnknownSeries
from healer.ports.callers import Caller
from healer.ports.request_errors import DiskFull, NoRoom, Unavailable
from healer.ports.signal_stores import LossBook, SenderBook, UnknownBook
from healer.signals.series import Unknown

K = TypeVar("K")
V = TypeVar("V")


class Summed(Generic[K, V]):
    """What came since the last write, by key. `_lock` guards `_counted`.

    `write` raises when nothing was written. `join(earlier, later)` is both as one; it may change either.
    """

    def __init__(self, write: Callable[[Mapping[K, V]], None], join: Callable[[V, V], V]) -> None:
        self._write, self._join = write, join
        self._counted: dict[K, V] = {}
        self._lock = threading.Lock()

    def _count(self, key: K, one: V) -> None:
        """Under the lock."""
        before = self._counted.get(key)
        self._counted[key] = one if before is None else self._join(before, one)

    def flush(self) -> None:
        """Writes what was counted; raises what `write` raises, and keeps it for the next time."""
        with self._lock:
            counted, self._counted = self._counted, {}
        if not counted:
            return
        try:
            self._write(counted)
        except Exception:
            with self._lock:
                for key, one in counted.items():
                    later = self._counted.get(key)
                    self._counted[key] = one if later is None else self._join(one, later)
            raise


#: Kinds of losses that are counted apart between two writes; tokens have few names, so this is never met.
LOSS_KINDS = 2000


class Losses(Summed[tuple[str, str, LossReason, str], Loss]):
    """Thread-safe. `add` never raises and never asks the database."""

    def __init__(self, book: LossBook, now: Callable[[], datetime]) -> None:
        super().__init__(lambda counted: book.add(list(counted.values())), _joined_losses)
        self._now = now

    def add(
        self,
        source: str,
        reason: LossReason,
        count: int = 1,
        *,
        cluster: str = "",
        who: str = "",
        example: str = "",
    ) -> None:
        """`count` entries of `source` were lost."""
        if count <= 0:
            return
        LOST.labels(source, reason.value).inc(count)
        now = self._now()
        with self._lock:
            key = (cluster, source, reason, who)
            if key not in self._counted and len(self._counted) >= LOSS_KINDS:
                key = (cluster, source, reason, "")
            one = Loss(
                cluster=cluster,
                source=source,
                reason=reason,
                who=key[3],
                count=count,
                first_seen=now,
                last_seen=now,
                example=example,
            )
            self._count(key, one)


def _joined_losses(earlier: Loss, later: Loss) -> Loss:
    return msgspec.structs.replace(
        later,
        count=earlier.count + later.count,
        first_seen=earlier.first_seen,
        example=later.example or earlier.example,
    )


#: Pairs of token and route that are summed up between two writes; what is more is not told apart.
PAIRS = 50_000
REST = "…"


class Senders(Summed[tuple[str, str, str], "_Heard"]):
    """Thread-safe. `heard` never raises and never asks the database."""

    def __init__(self, book: SenderBook, now: Callable[[], datetime], home: str) -> None:
        """`home` is the cluster of tokens that are bound to none."""
        super().__init__(
            lambda counted: book.add([_sender(key, one) for key, one in counted.items()]), _joined_heard
        )
        self._now, self._home = now, home

    def heard(self, caller: Caller, source: str, size: int) -> None:
        """This caller sent a body of that many bytes by that route."""
        now = self._now()
        key = (caller.cluster or self._home, caller.name, source)
        with self._lock:
            if key not in self._counted and len(self._counted) >= PAIRS:
                key = (key[0], REST, source)
            one = self._counted.get(key)
            if one is None:
                node = (caller.node or "") if key[1] != REST else ""
                self._counted[key] = _Heard(node, now, now, 1, size)
            else:
                one.node = caller.node or "" if key[1] != REST else ""
                one.requests += 1
                one.bytes += size
                one.last_seen = now


@dataclass(slots=True)
class _Heard:
    """A `Sender` that is still summed up: changed in place, as each request does so."""

    node: str
    first_seen: datetime
    last_seen: datetime
    requests: int
    bytes: int


def _joined_heard(earlier: _Heard, later: _Heard) -> _Heard:
    later.first_seen = earlier.first_seen
    later.requests += earlier.requests
    later.bytes += earlier.bytes
    return later


def _sender(key: tuple[str, str, str], one: _Heard) -> Sender:
    return Sender(
        cluster=key[0],
        who=key[1],
        source=key[2],
        node=one.node,
        requests=one.requests,
        bytes=one.bytes,
        first_seen=one.first_seen,
        last_seen=one.last_seen,
    )


#: Names that are counted apart between two writes of the tally; what is more is one name.
NAMES = 2000


class Tally(Summed[tuple[str, str], UnknownSeries]):
    """Unknown series, summed up between two writes. At most NAMES of all clusters are counted apart."""

    def __init__(self, book: UnknownBook) -> None:
        super().__init__(lambda counted: book.add(list(counted.values())), _joined_unknown)

    def add(self, cluster: str, unknown: Iterable[tuple[str, Unknown]], now: datetime) -> None:
        with self._lock:
            for name, one in unknown:
                seen = (cluster, name) in self._counted or len(self._counted) < NAMES
                key = (cluster, name if seen else REST)
                fresh = UnknownSeries(
                    cluster=cluster,
                    name=key[1],
                    why=one.why,
                    count=one.count,
                    first_seen=now,
                    last_seen=now,
                    example=one.example,
                )
                self._count(key, fresh)


def _joined_unknown(earlier: UnknownSeries, later: UnknownSeries) -> UnknownSeries:
    return msgspec.structs.replace(later, first_seen=earlier.first_seen, count=earlier.count + later.count)


#: By status, where nothing tells more. 401, 403 and 404 are no losses: who sends there may not, and the audit
#: has refusals of bound tokens.
_BY_STATUS = {
    400: LossReason.bad_body,
    408: LossReason.stalled,
    413: LossReason.too_large,
    415: LossReason.bad_body,
    422: LossReason.bad_body,
    429: LossReason.shed,
    500: LossReason.bad_body,
    503: LossReason.not_ready,
}


def loss_of(error: Exception, *, disk_full: bool = False) -> tuple[LossReason, int, str] | None:
    """(reason, entries, a sentence); None where nothing was lost. A body counts as one entry."""
    if isinstance(error, NoRoom):
        return LossReason.disk_full if error.disk else LossReason.spool_full, error.entries, str(error)
    if isinstance(error, Unavailable):
        full = disk_full or isinstance(error, DiskFull)
        return LossReason.disk_full if full else LossReason.database_away, 1, str(error)
    problem: Problem = problem_of(error)
    reason = LossReason.quota if problem.code == "quota" else _BY_STATUS.get(problem.status)
    return None if reason is None else (reason, problem.lost, problem.detail)
