"""What one token may send: bytes and entries per second, with a burst, in this process alone; and what
it sent and lost, counted in memory and written now and then: nothing is lost while the database is away.

A request is let in while its token owes nothing, and is charged afterwards for what it was: so nothing has to
be known beforehand, and the time until the next one is exact. What matters less is refused at a smaller debt:
a token that sends too many metrics can still send events, and one that floods events sends no metrics.
"""

import math
import threading
import time
from collections import OrderedDict
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass
from datetime import datetime
from enum import IntEnum
from typing import Generic, NamedTuple, TypeVar

import msgspec
from starlette.requests import Request

from healer.api.metrics import LOST
from healer.api.problems import Problem, problem_of
from healer.model import Loss, LossReason, Sender, UnknownSeries
from healer.ports.callers import Caller
from healer.ports.request_errors import DiskFull, NoRoom, Unavailable
from healer.ports.signal_stores import LossBook, SenderBook, UnknownBook
from healer.signals.rejects import Rejected
from healer.signals.series import Unknown
from healer.signals.values import TOO_OLD
from healer.text import NO_WORDS, Said, said_by, say

#: Tokens that are remembered. One that is forgotten, the longest unheard, begins with its whole burst.
TOKENS = 20_000


class Kind(IntEnum):
    """What a route brings; the value is how many bursts a token may owe before it is refused, and
    `OWED_OF_BOUND` times as many one that is bound to a node or a job."""

    metrics = 0
    steps = 1
    heartbeats = 2
    events = 10


#: Two bursts of a node are more than its storm of kernel lines, and no more than is walked in minutes.
OWED_OF_BOUND = 0.2


class Rates(NamedTuple):
    """Per second. The burst is `BURST_S` seconds of it."""

    bytes: float
    entries: float
    #: New series: reading one costs a hundred times a sample of a known one.
    series: float


BURST_S = 60.0
#: How often a token that sends all the time is credited: often enough to be exact, rarely enough to be cheap.
_EARN_S = 0.1
#: 10,000 GPUs are 1,250 nodes of 240 samples every 5 s: 60,000 samples/s, and 21 MB/s of remote_write
#: unpacked, the widest form. One token for all of it fits ten times. Their 300,000 series are new to a
#: process that just began: a quarter of the burst.
OF_CLUSTER = Rates(200e6, 600_000, 20_000)
#: node_exporter and dcgm-exporter of one node print 3,000 lines of 100 bytes: every 5 s, six times over; and
#: a storm of 10,000 kernel lines at once is a thirtieth of the burst.
OF_NODE = Rates(2e6, 5_000, 500)
#: Steps of 10,000 ranks each second, at 200 bytes, twice.
OF_JOB = Rates(4e6, 20_000, 500)
#: The routes that bring no events, by what follows /signals/; all others do.
KINDS = {
    "metrics": Kind.metrics,
    "openmetrics": Kind.metrics,
    "prometheus/write": Kind.metrics,
    "nvidia-smi": Kind.metrics,
    "otlp/v1/metrics": Kind.metrics,
    "step-times": Kind.steps,
    "heartbeat": Kind.heartbeats,
}


class OverQuota(Problem):
    """429 with the seconds until this token is heard again."""

    def __init__(self, what: str, rate: float, wait_s: int) -> None:
        super().__init__(
            429,
            say("api.over_quota", rate=rate, what=what, wait_s=wait_s),
            code="quota",
            headers={"Retry-After": str(wait_s)},
        )
        self.more = {"quota": what, "per_s": rate}


@dataclass(slots=True)
class _Account:
    """What is left of the burst; below 0 it is owed. `rates` are those of `caller`, the last one seen."""

    bytes: float
    entries: float
    series: float
    at: float
    caller: Caller
    rates: Rates


class Quotas:
    """For one event loop. `now` is a clock that only goes forward, in s."""

    def __init__(self) -> None:
        self._accounts: OrderedDict[str, _Account] = OrderedDict()

    def check(self, caller: Caller, kind: Kind, now: float) -> None:
        """Raises OverQuota while the token owes more than this kind may."""
        account = self._accounts.get(caller.owner)
        if account is None:
            return
        if account.caller is caller and account.bytes >= 0 and account.entries >= 0 and account.series >= 0:
            return  # nothing is owed, and time only pays back
        rates = _earn(account, caller, now)
        bursts = kind * OWED_OF_BOUND if caller.node or caller.job else kind
        for what, left, rate in (
            ("bytes", account.bytes, rates.bytes),
            ("entries", account.entries, rates.entries),
            ("new series", account.series, rates.series),
        ):
            owed = -left - bursts * BURST_S * rate
            if owed > 0:
                raise OverQuota(what, rate, max(1, math.ceil(owed / rate)))

    def spend(self, caller: Caller, now: float, *, size: int = 0, entries: int = 0, series: int = 0) -> None:
        """Charges what a request was: bytes unpacked, entries (lines, samples, events), new series."""
        owner = caller.owner
        account = self._accounts.get(owner)
        if account is None:
            rates = rates_of(caller)
            burst = (rates.bytes * BURST_S, rates.entries * BURST_S, rates.series * BURST_S)
            account = self._accounts[owner] = _Account(*burst, now, caller, rates)
            if len(self._accounts) > TOKENS:
                self._accounts.popitem(last=False)
        else:
            if account.caller is not caller or not 0 <= now - account.at < _EARN_S:
                _earn(account, caller, now)
            self._accounts.move_to_end(owner)
        account.bytes -= size
        account.entries -= entries
        account.series -= series

    def __len__(self) -> int:
        return len(self._accounts)


def rates_of(caller: Caller) -> Rates:
    base = OF_NODE if caller.node else OF_JOB if caller.job else OF_CLUSTER
    return Rates(base.bytes * caller.quota, base.entries * caller.quota, base.series * caller.quota)


def _earn(account: _Account, caller: Caller, now: float) -> Rates:
    """Credits the time that passed, up to a whole burst. Runs up to twice a request, so it is unrolled."""
    if account.caller is not caller:
        account.caller, account.rates = caller, rates_of(caller)
    rates = account.rates
    of_bytes, of_entries, of_series = rates
    passed = now - account.at
    if passed < 0:
        passed = 0.0
    left = account.bytes + passed * of_bytes
    account.bytes = left if left < of_bytes * BURST_S else of_bytes * BURST_S
    left = account.entries + passed * of_entries
    account.entries = left if left < of_entries * BURST_S else of_entries * BURST_S
    left = account.series + passed * of_series
    account.series = left if left < of_series * BURST_S else of_series * BURST_S
    account.at = now
    return rates


K = TypeVar("K")
V = TypeVar("V")


class Summed(Generic[K, V]):
    """Counts since the last write, by key. `_lock` guards `_counted`.

    `write` raises when nothing was written. `join(earlier, later)` merges two counts; it may change either.
    """

    def __init__(self, write: Callable[[Mapping[K, V]], None], join: Callable[[V, V], V]) -> None:
        self._write, self._join = write, join
        self._counted: dict[K, V] = {}
        self._lock = threading.Lock()

    def _count(self, key: K, later: V) -> None:
        """Under the lock."""
        earlier = self._counted.get(key)
        self._counted[key] = later if earlier is None else self._join(earlier, later)

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
                newer, self._counted = self._counted, counted
                for key, later in newer.items():
                    self._count(key, later)
            raise


#: Most kinds of losses counted separately between two writes; tokens have few names, so it is never reached.
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
        example: Said = NO_WORDS,
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
            loss = Loss(
                cluster=cluster,
                source=source,
                reason=reason,
                who=key[3],
                count=count,
                first_seen=now,
                last_seen=now,
                example=example,
            )
            self._count(key, loss)


def _joined_losses(earlier: Loss, later: Loss) -> Loss:
    return msgspec.structs.replace(
        later,
        count=earlier.count + later.count,
        first_seen=earlier.first_seen,
        example=later.example or earlier.example,
    )


#: Most pairs of token and route counted separately between two writes; the rest counts as REST.
PAIRS = 50_000
REST = "…"


class Senders(Summed[tuple[str, str, str], "_Heard"]):
    """Thread-safe. `heard` never raises and never asks the database."""

    def __init__(self, book: SenderBook, now: Callable[[], datetime], home: str) -> None:
        """`home` is the cluster of tokens that are bound to none."""
        super().__init__(
            lambda counted: book.add([_sender(key, heard) for key, heard in counted.items()]), _joined_heard
        )
        self._now, self._home = now, home

    def heard(self, caller: Caller, source: str, size: int) -> None:
        """This caller sent a body of that many bytes by that route."""
        now = self._now()
        key = (caller.cluster or self._home, caller.name, source)
        with self._lock:
            if key not in self._counted and len(self._counted) >= PAIRS:
                key = (key[0], REST, source)
            node = (caller.node or "") if key[1] != REST else ""
            heard = self._counted.get(key)
            if heard is None:
                self._counted[key] = _Heard(node, now, now, 1, size)
            else:
                heard.node = node
                heard.requests += 1
                heard.bytes += size
                heard.last_seen = now


@dataclass(slots=True)
class _Heard:
    """A `Sender` still being counted: changed in place, as every request adds to it."""

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


def _sender(key: tuple[str, str, str], heard: _Heard) -> Sender:
    cluster, who, source = key
    return Sender(cluster=cluster, who=who, source=source, **asdict(heard))


#: Most names counted separately between two writes of the tally; the rest counts as REST.
NAMES = 2000


class Tally(Summed[tuple[str, str], UnknownSeries]):
    """Unknown series, counted between two writes. At most NAMES of all clusters are counted separately."""

    def __init__(self, book: UnknownBook) -> None:
        super().__init__(lambda counted: book.add(list(counted.values())), _joined_unknown)

    def add(self, cluster: str, unknown: Iterable[tuple[str, Unknown]], now: datetime) -> None:
        with self._lock:
            for name, series in unknown:
                fits = (cluster, name) in self._counted or len(self._counted) < NAMES
                key = (cluster, name if fits else REST)
                counted = UnknownSeries(
                    cluster=cluster,
                    name=key[1],
                    why=series.why,
                    count=series.count,
                    first_seen=now,
                    last_seen=now,
                    example=series.example,
                )
                self._count(key, counted)


def _joined_unknown(earlier: UnknownSeries, later: UnknownSeries) -> UnknownSeries:
    return msgspec.structs.replace(later, first_seen=earlier.first_seen, count=earlier.count + later.count)


#: Reason by HTTP status, where nothing says more. 401, 403 and 404 are no losses: that sender may not send
#: there, and the audit has refusals of bound tokens.
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


def loss_of(error: Exception, *, disk_full: bool = False) -> tuple[LossReason, int, Said] | None:
    """(reason, entries, a sentence); None where nothing was lost. A body counts as one entry."""
    if isinstance(error, NoRoom):
        return LossReason.disk_full if error.disk else LossReason.spool_full, error.entries, said_by(error)
    if isinstance(error, Unavailable):
        full = disk_full or isinstance(error, DiskFull)
        return LossReason.disk_full if full else LossReason.database_away, 1, said_by(error)
    problem: Problem = problem_of(error)
    reason = LossReason.quota if problem.code == "quota" else _BY_STATUS.get(problem.status)
    return None if reason is None or not problem.lost else (reason, problem.lost, problem.detail)


#: Key of a request's scope for its Caller, for what is counted after a failure.
SENDER = "healer.sender"


def route_of(path: str) -> str:
    """What follows `/signals/`: the name under which a route's signals and losses are counted."""
    return path.partition("/signals/")[2]


class Meter:
    """Charges what senders send, and counts what of it is not stored. For one event loop."""

    def __init__(self, losses: Losses, senders: Senders, cluster: str) -> None:
        """`cluster` is that of tokens that are bound to none."""
        self.losses, self._senders, self._cluster, self._quotas = losses, senders, cluster, Quotas()

    def check(self, caller: Caller, path: str, now: float) -> None:
        """Raises OverQuota while this token owes too much for this route."""
        self._quotas.check(caller, KINDS.get(route_of(path), Kind.events), now)

    def received(self, caller: Caller, path: str, size: int) -> None:
        """Counts and charges a whole body of `size` bytes."""
        self._senders.heard(caller, route_of(path), size)
        self._quotas.spend(caller, time.monotonic(), size=size)

    def charge(self, caller: Caller, *, size: int = 0, entries: int = 0, series: int = 0) -> None:
        """Counts bytes, entries (lines, samples, events) and new series against their sender's quota."""
        self._quotas.spend(caller, time.monotonic(), size=size, entries=entries, series=series)

    def stored(
        self,
        request: Request,
        entries: int,
        rejected: Sequence[Rejected] = (),
        more: int = 0,
        *,
        series: int = 0,
    ) -> None:
        """After a body was stored: charges its entries and new series, and counts those entries that were too
        late or wrong.

        `entries` without the rejected ones; `more`: rejected beyond those that are named."""
        self.charge(request.scope[SENDER], entries=entries + len(rejected) + more, series=series)
        if not rejected:
            return
        late = [entry for entry in rejected if entry.reason.startswith(TOO_OLD)]
        wrong = [entry for entry in rejected if not entry.reason.startswith(TOO_OLD)]
        self.lose(request, LossReason.late, len(late), TOO_OLD)
        self.lose(request, LossReason.rejected, len(wrong) + more, (wrong or rejected)[0].reason)

    def lose(self, request: Request, reason: LossReason, count: int, example: Said, *, at: str = "") -> None:
        """Counts entries of this request that are not stored; for the cluster `at` if it is known."""
        caller: Caller = request.scope[SENDER]
        cluster = at or caller.cluster or self._cluster
        route = route_of(request.scope["path"])
        self.losses.add(route, reason, count, cluster=cluster, who=caller.name, example=example)
