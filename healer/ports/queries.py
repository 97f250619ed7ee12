"""Queries of the API and the console: one Protocol per noun, and its filters.

Every method is one short read (a few indexed queries), safe in a thread pool, and raises nothing for "not
found". Lists are newest first unless noted. A cursor is an opaque text from `Page.next_cursor`; any other
raises Invalid("cursor", …). `clusters` None: all.
"""

import base64
from collections.abc import AsyncIterator, Iterator, Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Any, Protocol

import msgspec

from healer.model import (
    AuditRecord,
    Breaker,
    Delivery,
    Incident,
    Inventory,
    LemonScore,
    Pause,
    Reference,
    Run,
    SlurmSnapshot,
    Trial,
    Verb,
)
from healer.model.run import Outcomes, Rehearsal
from healer.ports.answers import (
    AuditVerified,
    Buckets,
    ChainState,
    ChartFigures,
    CheckpointSeen,
    ClusterState,
    Event,
    FleetRows,
    GoodputSum,
    IncidentRows,
    JobRows,
    NodeLife,
    NodeRows,
    Page,
    PastFleet,
    Period,
    RuleRecord,
    RunRecord,
    Stats,
)
from healer.ports.goodput_book import GoodputBy
from healer.ports.measurements import SignalReads
from healer.ports.request_errors import Invalid
from healer.text import say


def encode_cursor(*key: Any) -> str:
    """The sort key of a page's last row, so that rows added meanwhile shift nothing."""
    return base64.urlsafe_b64encode(msgspec.json.encode(key)).decode().rstrip("=")


def decode_cursor(cursor: str, kind: Any) -> Any:
    """The key as a tuple of `kind`. Raises Invalid("cursor", …)."""
    try:
        raw = base64.urlsafe_b64decode(cursor.encode("ascii") + b"=" * (-len(cursor) % 4))
        return msgspec.json.decode(raw, type=kind)
    except ValueError as error:
        raise Invalid("cursor", say("api.cursor_unknown")) from error


class IncidentQuery(msgspec.Struct, frozen=True, kw_only=True):
    """`open`: True only unresolved, False only resolved, None both. `text` is looked for (any case) in the
    title, rule, fault, node names, job ids and the start of the id. `closed_since`: only what was resolved
    since then."""

    clusters: Sequence[str] | None = None
    open: bool | None = None
    states: Sequence[str] = ()
    severities: Sequence[str] = ()
    node: str | None = None
    text: str = ""
    closed_since: datetime | None = None


class RunQuery(msgspec.Struct, frozen=True, kw_only=True):
    clusters: Sequence[str] | None = None
    states: Sequence[str] = ()
    node: str | None = None
    incident: str | None = None
    playbook: str | None = None


class AuditQuery(msgspec.Struct, frozen=True, kw_only=True):
    """`verb` and `subject` match as prefixes (`incident.`, `node/gpu0001`), `subjects` and `actor` exactly.
    `people_since`: only actions by others than healer since then, without the verbs that begin with one of
    `but`."""

    clusters: Sequence[str] | None = None
    actor: str = ""
    verb: str = ""
    subject: str = ""
    subjects: Sequence[str] = ()
    people_since: datetime | None = None
    but: tuple[str, ...] = ()


class ClusterQueries(Protocol):
    def names(self) -> list[str]:
        """Those that have a picture of Slurm, sorted."""
        ...

    def snapshots(self) -> dict[str, SlurmSnapshot]:
        """Slurm's latest picture of every cluster that has one."""
        ...

    def state(self, cluster: str, now: datetime) -> ClusterState: ...

    def pauses(self, now: datetime) -> list[Pause]:
        """Those in force."""
        ...

    def breakers(self) -> list[Breaker]: ...


class IncidentQueries(Protocol):
    def page(self, query: IncidentQuery, *, limit: int, cursor: str | None = None) -> Page[Incident]: ...

    def named(self, ids: Sequence[str]) -> list[Incident]:
        """In the order of the ids, without those that are gone."""
        ...

    def find(self, incident: str) -> Incident | None:
        """By id, or by its first 8 or more characters (as in Slurm's reason), if only one fits."""
        ...

    def rows(self, incident: str) -> IncidentRows | None:
        """As `one`, with all that is stored of it."""
        ...

    def cures(self, ids: Sequence[str]) -> dict[str, list[Verb]]:
        """By incident: the verbs that its runs did, oldest first."""
        ...


class RunQueries(Protocol):
    def page(self, query: RunQuery, *, limit: int, cursor: str | None = None) -> Page[Run]: ...

    def find(self, run: str) -> Run | None:
        """By id, or by its first 8 or more characters (as in Slurm's reason), if only one fits."""
        ...

    def record(self, run: str) -> RunRecord | None:
        """As `find`, with its log and decisions."""
        ...

    def at_work(self, ids: Sequence[str]) -> dict[str, Run]:
        """By incident: the newest run that works on it and has not ended."""
        ...


class NodeQueries(Protocol):
    def fleet(self, clusters: Sequence[str] | None, now: datetime) -> FleetRows: ...

    def rows(self, cluster: str, node: str, now: datetime) -> NodeRows | None:
        """None where Slurm shows none of that name."""
        ...

    def past(self, cluster: str, at: datetime) -> PastFleet: ...

    def life(self, cluster: str, node: str, since: datetime) -> NodeLife:
        """What happened to the node since then."""
        ...

    def references(self, cluster: str) -> list[Reference]:
        """What nodes of each kind should be, by kind."""
        ...

    def inventories(self, cluster: str) -> list[Inventory]:
        """What nodes reported of themselves, by node."""
        ...

    def measured(self, cluster: str, node: str) -> dict[str, float]:
        """What the node's newest test that passed has measured, by the name of the result."""
        ...

    def lemons(self, cluster: str) -> dict[str, LemonScore]:
        """By node, of those that fail again and again."""
        ...


class JobQueries(Protocol):
    def rows(self, cluster: str, job: str) -> JobRows: ...

    def checkpoints(self, cluster: str, job: str) -> list[CheckpointSeen]:
        """The last 50 that the job reported, oldest first."""
        ...


class RuleQueries(Protocol):
    def records(
        self, cluster: str | None = None, *, fired_since: datetime | None = None
    ) -> dict[str, RuleRecord]:
        """By name, without rules that never fired and whose mode was never set. `cluster` None: of all.
        Without `fired_since` a rule fired when it opened an incident, and `fired` is 0.
        """
        ...

    def trials(self, cluster: str | None = None) -> list[Trial]:
        """New or changed rules and playbooks that have runs left which wait for a person; None: of all."""
        ...


class AuditQueries(Protocol):
    def page(self, query: AuditQuery, *, limit: int, cursor: str | None = None) -> Page[AuditRecord]:
        """Sealed records and those not sealed yet (`seq` None)."""
        ...

    def chain(self, cluster: str) -> ChainState: ...


class FigureQueries(Protocol):
    def stats(self, clusters: Sequence[str] | None, since: datetime | None) -> Stats:
        """Of the incidents opened since then; None: of all."""
        ...

    def period(self, cluster: str, since: datetime, until: datetime) -> Period:
        """Of the incidents opened from `since` to before `until`."""
        ...

    def charts(self, cluster: str, buckets: Buckets, reviewed: Buckets) -> ChartFigures:
        """The same over time; reviews by the buckets `reviewed`."""
        ...

    def goodput(
        self, clusters: Sequence[str] | None, since: datetime, until: datetime, by: GoodputBy
    ) -> Sequence[GoodputSum]:
        """What GPU-time was spent on, in the hours that begin in that time."""
        ...

    def gauges(self, now: datetime) -> dict[str, dict[tuple[str, ...], float]]:
        """The figures that /metrics shows, by name and label values: see `healer.api.metrics`."""
        ...


@dataclass(frozen=True, kw_only=True)
class Queries:
    """One value for the API and all pages."""

    clusters: ClusterQueries
    incidents: IncidentQueries
    runs: RunQueries
    nodes: NodeQueries
    jobs: JobQueries
    rules: RuleQueries
    audit: AuditQueries
    figures: FigureQueries
    signals: SignalReads


class MessageBook(Protocol):
    """Messages to people, at each sink."""

    def page(
        self,
        *,
        clusters: Sequence[str] | None,
        state: Sequence[str],
        channel: str | None,
        incident: str | None,
        limit: int,
        cursor: str | None,
    ) -> Page[Delivery]: ...

    def cluster_of(self, message: str) -> str:
        """Raises NotFound."""
        ...

    def retry(
        self, message: str, *, channel: str | None, by: str, reason: str, now: datetime
    ) -> Sequence[Delivery]:
        """Makes failed deliveries due again, audits that, and returns them. Raises Conflict if nothing
        failed."""
        ...


class Rehearsals(Protocol):
    """Changed rules that are replayed over recordings."""

    def ask(self, asked: Rehearsal) -> Rehearsal:
        """The same id again is the same rehearsal. Raises Conflict while another one of the cluster is in
        progress."""
        ...

    def newest(self, clusters: Sequence[str] | None, limit: int) -> list[Rehearsal]:
        """Without texts and results."""
        ...

    def find(self, name: str) -> Rehearsal | None: ...

    def cancel(self, name: str, *, by: str, reason: str, at: datetime) -> Rehearsal:
        """Repeating it changes nothing. Raises Conflict if it has ended otherwise."""
        ...

    def outcomes(self, rehearsal: Rehearsal) -> list[Outcomes]: ...

    def real(self, names: Sequence[str]) -> dict[str, bool | None]:
        """Real incidents among these ids: true fault, false alarm, or None: not judged."""
        ...

    def prove(
        self, name: str, rules: Sequence[str], *, by: str, reason: str, at: datetime, request: str
    ) -> list[Outcomes]:
        """Counts what these rules opened in it as proof of their edited text. Raises Conflict if it contains
        none."""
        ...


class RuleFiles(Protocol):
    """The files of the rules in force."""

    def names(self) -> list[str]: ...

    def text(self, name: str) -> str | None:
        """None if there is none of that name. Raises ValueError for an invalid name."""
        ...

    def problems(self, name: str, text: str) -> list[str]:
        """The problems of the whole set if the file had this text, as at load."""
        ...


class AuditTrail(Protocol):
    def verify(self) -> AuditVerified: ...

    def export(self) -> Iterator[bytes]:
        """JSON Lines, as `healer audit export` writes it."""
        ...


class EventFeed(Protocol):
    def listen(self, last_id: int | None) -> AsyncIterator[Event | None]:
        """Events as they happen; None each 15 s of silence. Starts after `last_id` where it still can."""
        ...
