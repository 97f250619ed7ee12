"""What the API reads. A page's cursor is opaque."""

from collections.abc import AsyncIterator, Iterator, Sequence
from datetime import datetime
from typing import Any, Protocol

from healer.model import (
    AuditRecord,
    Delivery,
    Incident,
    Inventory,
    Pause,
    Reference,
    Ruleset,
    Run,
    SlurmSnapshot,
    Trial,
)
from healer.model.rehearsal import Outcomes, Rehearsal
from healer.ports.api_answers import (
    AuditVerified,
    BreakerView,
    Event,
    IncidentDetail,
    JobView,
    NodeView,
    Page,
    RuleRecord,
    RunDetail,
    Stats,
)


class Reads(Protocol):
    """All that lists and pages show. Cursors are opaque; a bad one raises Invalid("cursor", …)."""

    def clusters(self) -> list[str]: ...

    def snapshots(self) -> dict[str, SlurmSnapshot]:
        """Slurm's latest picture of every cluster that has one."""
        ...

    def incidents(
        self,
        *,
        clusters: Sequence[str] | None = None,
        state: Sequence[str] = (),
        severity: Sequence[str] = (),
        node: str | None = None,
        q: str | None = None,
        limit: int = 50,
        cursor: str | None = None,
    ) -> Page[Incident]: ...

    def incident(self, incident: str) -> Incident | None:
        """By id or by a unique beginning of it of at least 8 characters."""
        ...

    def merged_into(self, incident: str) -> list[str]:
        """Ids of what was merged into it, the oldest first."""
        ...

    def incident_detail(self, incident: str) -> IncidentDetail | None: ...

    def nodes(
        self,
        rules: Ruleset,
        *,
        clusters: Sequence[str] | None = None,
        verdict: Sequence[str] = (),
        q: str | None = None,
        limit: int = 50,
        cursor: str | None = None,
    ) -> Page[NodeView]: ...

    def node(self, cluster: str, node: str, rules: Ruleset) -> NodeView | None: ...
    def job(self, cluster: str, job: str) -> JobView | None: ...

    def runs(
        self,
        *,
        clusters: Sequence[str] | None = None,
        state: Sequence[str] = (),
        node: str | None = None,
        incident: str | None = None,
        limit: int = 50,
        cursor: str | None = None,
    ) -> Page[Run]: ...

    def run(self, run: str) -> Run | None: ...
    def run_detail(self, run: str, rules: Ruleset) -> RunDetail | None: ...
    def references(self, cluster: str) -> list[Reference]:
        """What nodes of each kind should be."""
        ...

    def inventories(self, cluster: str, node: str | None = None) -> list[Inventory]:
        """What nodes told of themselves; of one node, or of all."""
        ...

    def measured(self, cluster: str, node: str) -> dict[str, float]:
        """What the node's newest test that passed has measured, by the name of the result."""
        ...

    def rule_records(self) -> dict[str, RuleRecord]:
        """Mode set while running and reviews so far, by rule."""
        ...

    def trials(self) -> list[Trial]:
        """New or changed rules and playbooks that have runs left which wait for a person."""
        ...

    def pauses(self, now: datetime) -> list[Pause]:
        """Those in force."""
        ...

    def breakers(self) -> list[BreakerView]: ...

    def audit(
        self,
        *,
        clusters: Sequence[str] | None = None,
        subject: str | None = None,
        actor: str | None = None,
        verb: str | None = None,
        limit: int = 50,
        cursor: str | None = None,
    ) -> Page[AuditRecord]:
        """Newest first."""
        ...

    def stats(self, *, clusters: Sequence[str] | None = None, since: datetime | None = None) -> Stats: ...
    def figures(self) -> dict[str, Any]:
        """The few numbers that /metrics and /readyz show: see `healer.api.metrics`."""
        ...


class MessageBook(Protocol):
    """What people were told, at each sink."""

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
        """Makes what failed due again, audits it, and returns it. Raises Conflict where nothing failed."""
        ...


class Rehearsals(Protocol):
    """Changes of rules that are tried over recordings."""

    def ask(self, asked: Rehearsal) -> Rehearsal:
        """The same id again is the same one. Conflict while another one of the cluster is under way."""
        ...

    def newest(self, clusters: Sequence[str] | None, limit: int) -> list[Rehearsal]:
        """Without texts and results."""
        ...

    def one(self, name: str) -> Rehearsal | None: ...

    def cancel(self, name: str, *, by: str, reason: str, at: datetime) -> Rehearsal:
        """Again changes nothing. Conflict where it has ended otherwise."""
        ...

    def outcomes(self, rehearsal: Rehearsal) -> list[Outcomes]: ...

    def prove(
        self, name: str, rules: Sequence[str], *, by: str, reason: str, at: datetime, request: str
    ) -> list[Outcomes]:
        """Makes what these rules opened in it proof of them as edited. Conflict where it holds none."""
        ...


class RuleFiles(Protocol):
    """The files of the rules in force."""

    def names(self) -> list[str]: ...

    def text(self, name: str) -> str | None:
        """None where there is none of that name. ValueError for a name that cannot be one."""
        ...

    def problems(self, name: str, text: str) -> list[str]:
        """What would be wrong with the whole set if the file said this, as at load."""
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
