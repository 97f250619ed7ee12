"""What the pages need to know, as one Protocol over `healer.model`. The database's side implements it.

Every method is one short read (a few indexed queries), safe to call from a thread pool, and raises nothing
for "not found": it returns None or an empty page. Lists are newest first unless said otherwise. A cursor is
an opaque text that came out of `next_cursor`; a cursor that cannot be read raises `BadCursor`.
"""

from collections.abc import Mapping, Sequence
from datetime import datetime
from typing import TYPE_CHECKING, Protocol

import msgspec

from healer.model import (
    AuditRecord,
    Catalogue,
    Column,
    Incident,
    IncidentState,
    LastHeard,
    LemonScore,
    NodeContext,
    NodeStanding,
    Observation,
    Reference,
    Ruleset,
    Run,
    RunState,
    Severity,
    UnknownSeries,
)
from healer.model.recordings import Recordings
from healer.model.rehearsal import Outcomes, Rehearsal
from healer.model.unusual import Unusual
from healer.ports.console_answers import (
    Arriving,
    ChainState,
    IncidentDetail,
    JobHistory,
    NodeGauges,
    Page,
    RuleBook,
    RunDetail,
    Standing,
)
from healer.ports.period_figures import Period
from healer.ports.pull import Points

if TYPE_CHECKING:
    from healer.model.samples import Report, StepBatch


class BadCursor(ValueError):
    """A cursor that did not come from `next_cursor`."""


class IncidentQuery(msgspec.Struct, frozen=True, kw_only=True):
    """Filters of the list. `open`: True only unresolved, False only resolved, None both. `text` is looked
    for (any case) in the title, rule, fault, node names, job ids and the start of the id."""

    cluster: str
    open: bool | None = None
    state: IncidentState | None = None
    severity: Severity | None = None
    node: str | None = None
    text: str = ""
    #: Only what was resolved since then.
    closed_since: datetime | None = None


class RunQuery(msgspec.Struct, frozen=True, kw_only=True):
    cluster: str
    state: RunState | None = None
    node: str | None = None
    playbook: str | None = None


class AuditQuery(msgspec.Struct, frozen=True, kw_only=True):
    """`verb` and `subject` match from the start (`incident.`, `node/gpu0001`), `actor` whole. `people_since`:
    only what others than healer did, and since then, without the verbs that begin as one of `but`."""

    cluster: str
    actor: str = ""
    verb: str = ""
    subject: str = ""
    people_since: datetime | None = None
    but: tuple[str, ...] = ()


class RehearsalReads(Protocol):
    """What the pages of tried changes need to know."""

    def recordings(self, cluster: str) -> Recordings: ...
    def files(self) -> list[str]: ...
    def text(self, file: str) -> str | None: ...
    def newest(self, cluster: str, limit: int) -> list[Rehearsal]: ...
    def one(self, name: str) -> Rehearsal | None: ...
    def outcomes(self, rehearsal: Rehearsal) -> list[Outcomes]: ...

    def real(self, names: Sequence[str]) -> dict[str, bool | None]:
        """Of these ids those of real incidents: true fault, false alarm, or None: not judged."""
        ...


class ConsoleReads(Protocol):
    def clusters(self) -> list[str]:
        """Names of the clusters known, sorted."""
        ...

    def standing(self, cluster: str) -> Standing | None:
        """None for a cluster that nobody knows."""
        ...

    def incidents(self, query: IncidentQuery, *, limit: int, cursor: str | None = None) -> Page[Incident]:
        """Newest first by `opened`; `evidence` of the items may be cut to the first line."""
        ...

    def incidents_named(self, ids: Sequence[str]) -> list[Incident]:
        """In the order of the ids, without those that are gone."""
        ...

    def at_work(self, ids: Sequence[str]) -> dict[str, Run]:
        """By incident: the newest run that works on it and has not ended."""
        ...

    def incident(self, incident: str) -> IncidentDetail | None:
        """By id, or by its first 8 or more characters (what stands in Slurm's reason), if only one fits."""
        ...

    def runs(self, query: RunQuery, *, limit: int, cursor: str | None = None) -> Page[Run]: ...

    def run(self, run: str) -> RunDetail | None: ...

    def audit(self, query: AuditQuery, *, limit: int, cursor: str | None = None) -> Page[AuditRecord]:
        """Sealed records and those not sealed yet (`seq` None)."""
        ...

    def chain(self, cluster: str) -> ChainState: ...

    def catalogue(self) -> Catalogue:
        """What may be measured."""
        ...

    def rules(self) -> Ruleset:
        """Those in force, by themselves: nothing is read of the database."""
        ...

    def rule_book(self, cluster: str) -> RuleBook: ...

    def period(self, cluster: str, since: datetime) -> Period:
        """Figures of the incidents opened since then."""
        ...

    def unknown_series(self, cluster: str, *, limit: int) -> list[UnknownSeries]:
        """Names that arrive and that no rule can use, most frequent first."""
        ...

    def arriving(self, cluster: str, *, limit: int) -> Arriving:
        """Who sends, and what was not stored: at most so many of each."""
        ...

    def job(self, cluster: str, job: str) -> JobHistory: ...

    def node_signals(
        self, cluster: str, node: str, since: datetime
    ) -> "tuple[list[Report], dict[int, Column]]":
        """What arrived after `since`, oldest first, and what the numbers of its columns stand for; kept for
        about an hour."""
        ...

    def inventory(self, cluster: str, node: str) -> dict[str, str]:
        """What the node told of itself: driver, firmware, settings."""
        ...

    def node_context(self, cluster: str, node: str) -> tuple[NodeContext, ...]:
        """What goes on at the node now, by which its faults are judged."""
        ...

    def lemon(self, cluster: str, node: str) -> LemonScore | None:
        """How much the node fails again and again; None: not at all."""
        ...

    def gauges(self, cluster: str) -> Mapping[str, NodeGauges]:
        """By node, of those that told any in the last minutes. The same mapping while nothing changed."""
        ...

    def paces(self, cluster: str) -> Mapping[str, float]:
        """By node in a job that tells compute times: its slowest rank's over the median of its peers."""
        ...

    def lemons(self, cluster: str) -> Mapping[str, float]:
        """The score of each node that has one."""
        ...

    def unusual(self, cluster: str, node: str) -> Unusual | None:
        """How the node stands among its class in each way of looking at its features; None: no model, or
        nothing measured in the last day."""
        ...

    def fleet_figures(self, cluster: str, node: str) -> NodeStanding | None:
        """What its tests measured beside its model's other nodes, as the detector compared last."""
        ...

    def references(self, cluster: str) -> list[Reference]:
        """What nodes of each kind should be."""
        ...

    def remembers(self, cluster: str) -> bool:
        """Whether a Prometheus-compatible server is set: only then `remembered` gives anything."""
        ...

    def remembered(self, cluster: str, node: str, signal: str, since: datetime, until: datetime) -> "Points":
        """What that server remembers of one signal of a node. Raises HistoryAway."""
        ...

    def heard(self, cluster: str, node: str, since: datetime) -> LastHeard:
        """When the node last spoke, after `since`."""
        ...

    def alerts(self, cluster: str, node: str, since: datetime) -> list[Observation]:
        """What other systems' alerting told of the node, oldest first."""
        ...

    def job_steps(self, cluster: str, job: str, since: datetime) -> "list[StepBatch]": ...
