"""What the API needs from the rest of healer, as Protocols; `healer.bootstrap` fills `Services`.

Nothing in `healer.api` imports an adapter, and nothing here imports FastAPI, so adapters may import the
exceptions below cheaply.
"""

from collections.abc import AsyncIterator, Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Any, Protocol

import msgspec

from healer.api.views import (
    AuditVerified,
    BreakerView,
    Event,
    IncidentDetail,
    JobView,
    NodeView,
    Page,
    Preview,
    Readiness,
    RuleRecord,
    RunDetail,
    Stats,
)
from healer.decisions import HookAsk
from healer.model import (
    Answer,
    AuditRecord,
    Breaker,
    Command,
    Delivery,
    Earn,
    Incident,
    Inventory,
    Mode,
    Observation,
    Pause,
    Permit,
    Reference,
    Review,
    Role,
    Ruleset,
    Run,
    SlurmSnapshot,
    Trial,
    UnknownSeries,
    Verdict,
)
from healer.model.drift import Drift, Reconciled
from healer.model.recordings import Recordings
from healer.model.rehearsal import Outcomes, Rehearsal
from healer.ports import Clock, ColumnBook, EvidenceBook, LossBook, Samples, SenderBook, SignalReads, Spool
from healer.ports.pull import ScrapeBook

# --- what a command may answer instead of doing ----------------------------------------------------------


class GuardRefused(Exception):
    """A guard's Refuse: 409 with the guard, its limit and what is used."""

    def __init__(self, answer: Answer) -> None:
        super().__init__(answer.why)
        self.answer = answer


class NotFound(Exception):
    """No such run, incident, node, job, rule, pause or playbook: 404. The text is one sentence."""


class Conflict(Exception):
    """The thing is not in a state that allows it (a run that has ended, …): 409. One sentence."""


class Forbidden(Exception):
    """The caller's role allows it, this case does not (requester = approver): 403. One sentence."""


class Invalid(Exception):
    """The request contradicts itself or the rules: 422. `field` names the field."""

    def __init__(self, field: str, text: str) -> None:
        super().__init__(text)
        self.field = field


class Unavailable(Exception):
    """The database did not answer in time: 503 with Retry-After. Nothing was done."""


class DiskFull(Unavailable):
    """The database answers, and its disk has no room for more."""


class Unstorable(Exception):
    """The database answers, and refuses these very values: asking again cannot help."""


class NoRoom(Exception):
    """The database is away and the spool takes no more: 503 with Retry-After. `disk`: its disk is full."""

    def __init__(self, text: str, *, disk: bool = False) -> None:
        super().__init__(text)
        self.disk = disk
        #: How many things were refused by it.
        self.entries = 1


# --- who asks --------------------------------------------------------------------------------------------


class Caller(msgspec.Struct, frozen=True, kw_only=True):
    """A token or a session. `id` is the token's id; `name` is the person: equal names are one person."""

    id: str
    name: str
    role: Role
    node: str | None = None
    job: str | None = None
    cluster: str | None = None
    #: How many times the usual quota of signals it may send: `healer.api.quotas`.
    quota: float = 1.0
    #: Set for a console session: unsafe methods must bring it as X-Healer-CSRF.
    csrf: str | None = None


class Credential(msgspec.Struct, frozen=True, kw_only=True):
    """A munge credential that was good: who made it, at which address (as its munged knows itself), when."""

    uid: int
    host: str
    encoded_at: datetime
    decoded_at: datetime
    payload: bytes


class CredentialRefused(Exception):
    """Not a good credential. The text goes on after "the credential is refused: "."""


class Credentials(Protocol):
    def decode(self, credential: str) -> Credential:
        """Each one once. Raises CredentialRefused, and Unavailable when munge itself does not work."""
        ...


class Enrolled(msgspec.Struct, frozen=True, kw_only=True):
    """A token's secret, told this once, and until when it works."""

    token: str
    expires_at: datetime


class TooMany(Exception):
    """Asked too often: 429 with Retry-After."""

    def __init__(self, text: str, retry_after_s: int) -> None:
        super().__init__(text)
        self.retry_after_s = retry_after_s


class Tokens(Protocol):
    """Tokens and sessions. All digests are SHA-256. Expired, revoked and ended ones are never found."""

    def by_token(self, digest: bytes, now: datetime) -> Caller | None:
        """Never finds a one-time sign-in link."""
        ...

    def by_session(self, digest: bytes, now: datetime) -> Caller | None:
        """`csrf` of the answer is empty; the API derives it from the cookie."""
        ...

    def sign_in(self, digest: bytes, session: bytes, *, now: datetime, until: datetime) -> Caller | None:
        """Uses up a one-time link and opens a session; None when it is unknown, used, expired or revoked."""
        ...

    def sign_out(self, session: bytes, now: datetime) -> None: ...

    def enroll(self, cluster: str, node: str, *, nonce: str, by: str, now: datetime) -> Enrolled:
        """A token for signals of this node alone; `nonce` is spent by it, for ever.

        Those it got before end after a grace. Raises Conflict when the nonce is spent, Forbidden when the
        node's newest token was revoked (a person's word), TooMany.
        """
        ...

    def enroll_job(
        self, cluster: str, job: str, *, nodes: int, nonce: str, by: str, now: datetime
    ) -> Enrolled:
        """A token for step times and checkpoints of this job alone, for a day; `nonce` is spent by it.

        `nodes` is how many the job holds: each may ask. Raises like `enroll`; a revoked one is a no to all
        of the job.
        """
        ...


# --- signals ---------------------------------------------------------------------------------------------


class Arrival(msgspec.Struct, frozen=True):
    """One observation to store. `also`: digests (hex) under which the same signal may be stored already."""

    observation: Observation
    also: tuple[str, ...] = ()


class SignalStore(Protocol):
    """The durable end of the group commit. Called from one thread at a time."""

    def store(self, arrivals: Sequence[Arrival]) -> list[bool]:
        """One INSERT and one durable commit for all; True where the observation was new.

        Raises Unavailable when the database is away: then nothing of it is stored.
        """
        ...


class UnknownBook(Protocol):
    """Series that arrive and have no place, counted by name. At most 2,000 names of a cluster."""

    def add(self, series: Sequence[UnknownSeries]) -> None:
        """Adds the counts to those of the same cluster and name. Raises Unavailable, and adds nothing."""
        ...

    def series(self, clusters: Sequence[str] | None, limit: int) -> list[UnknownSeries]:
        """The most frequent first; None: of all clusters."""
        ...


class HookStanding(msgspec.Struct, frozen=True, kw_only=True):
    """What healer thinks of a node, by its worst open incident, and that incident's title."""

    verdict: Verdict
    reason: str


class Hooks(Protocol):
    """What a hook's answer rests on. Raises Unavailable."""

    def standings(self, cluster: str) -> dict[str, HookStanding]:
        """By node; those with no open incident and on no probation are not in it."""
        ...

    def is_held(self, cluster: str, node: str) -> bool:
        """Whether the node's slot is granted: only then a permit can be had."""
        ...

    def permit(self, ask: HookAsk) -> Permit | None:
        """The gate's permit for this hook to fail, recorded; None where the guards do not allow it now."""
        ...

    def known(self, ask: HookAsk) -> Permit | None:
        """What this very hook was permitted before."""
        ...

    def note_own(self, ask: HookAsk, check: str, at: datetime) -> None:
        """The hook failed at `at` without an answer, because of this check. Known ones are nothing new."""
        ...


# --- doing -----------------------------------------------------------------------------------------------


class RunRequest(msgspec.Struct, frozen=True, kw_only=True):
    """A person (or program) asks for a run. `id` is fixed by the API from the Idempotency-Key.

    The same `id` again is the same request: answer with the run that stands, start nothing.
    """

    id: str
    playbook: str
    cluster: str
    by: str
    reason: str
    node: str | None = None
    job: str | None = None
    incident: str | None = None
    #: What the playbook's `inputs` are, checked against them.
    inputs: dict[str, str | int | bool] = {}
    #: Jobs on the node whose restart the person agrees to.
    restart: tuple[str, ...] = ()


class RunCommands(Protocol):
    """What people do to runs. Each is one transaction that passes the gate and writes its audit record.

    Raises GuardRefused, NotFound, Conflict, Forbidden. `request` is the API's id of this very request: an
    implementation that meets the same one twice answers what stands.
    """

    def preview(self, request: RunRequest) -> Preview:
        """The plan with live checks; does and stores nothing. Guards never raise here: they answer."""
        ...

    def start(self, request: RunRequest) -> Run:
        """A guard's Hold comes back as a run in state `held`; its Refuse is GuardRefused."""
        ...

    def approve(self, run: str, *, by: str, reason: str, request: str, restart: Sequence[str] = ()) -> Run:
        """Forbidden when law 8 wants a second person and `by` is who asked. `restart`: jobs on the run's node
        whose restart `by` agrees to."""
        ...

    def reject(self, run: str, *, by: str, reason: str, request: str) -> Run: ...
    def cancel(self, run: str, *, by: str, reason: str, request: str) -> Run: ...
    def retry(self, run: str, *, by: str, reason: str, request: str, step: str | None = None) -> Run:
        """A stuck run goes on at the step where it stopped. With `step` one that waits or is stuck goes back
        to that step, and does it and all after it anew."""
        ...

    def undo(self, run: str, *, by: str, reason: str, request: str) -> Run:
        """Whatever the run is at, it goes back: what it did is taken back, the last first, and it ends."""
        ...

    def reset_breaker(self, cluster: str, *, by: str, reason: str, request: str) -> Breaker:
        """Open -> half-open. Conflict when it is not open."""
        ...


class Reconcile(Protocol):
    """Where healer's book and Slurm do not agree. Raises Unavailable."""

    def drifts(self, cluster: str) -> list[Drift]: ...

    def repair(self, cluster: str, *, by: str, reason: str, request: str) -> list[Reconciled]:
        """Each that is healer's own, through the gate and into the audit."""
        ...


class Commands(Protocol):
    """What people tell: rows of their own, or commands in the detector's inbox; each with its audit record.

    `request` makes a repeat harmless: the same one again changes nothing.
    """

    def tell(self, command: Command, *, request: str) -> int:
        """Puts the command into the inbox, committed; the row's id."""
        ...

    def consumed(self, row: int) -> bool:
        """Whether the detector has taken it."""
        ...

    def note(self, incident: str, text: str, *, by: str, at: datetime, request: str) -> None: ...
    def pause(self, pause: Pause, *, request: str) -> Pause: ...
    def learn(self, reference: Reference, *, reason: str, request: str) -> None:
        """Takes it in place of the one of its kind."""
        ...

    def forget_reference(
        self, reference: Reference, *, by: str, reason: str, at: datetime, request: str
    ) -> None: ...
    def end_pause(self, pause: str, *, by: str, reason: str, at: datetime, request: str) -> Pause: ...

    def set_mode(
        self,
        rule: str,
        mode: Mode,
        *,
        by: str,
        reason: str,
        at: datetime,
        request: str,
        earn: Earn,
        given: Mode,
        texts: Mapping[str, str],
    ) -> None:
        """`given`: the mode by the files; `texts`: what rules say now. Conflict where auto is not earned."""
        ...

    def judge_mode(
        self,
        rule: str,
        *,
        incident: str,
        review: Review,
        given: Mode,
        earn: Earn,
        texts: Mapping[str, str],
        at: datetime,
        request: str,
    ) -> None:
        """After a review: a rule in mode auto falls back to approve where it is wrong too often."""
        ...

    def audit(self, record: AuditRecord) -> None: ...


class Kept(msgspec.Struct, frozen=True):
    """An answer kept for a repeat of the same request."""

    status: int
    headers: dict[str, str]
    body: bytes


class KeyInFlight(Exception):
    """Another request with this key is being worked on."""


class KeyReused(Exception):
    """The key was used with another body."""


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


class Idempotency(Protocol):
    def once(self, key: str, who: str, request: bytes, now: datetime, act: Callable[[], Kept]) -> Kept:
        """Runs `act` once per (key, who) in 24 h and keeps its answer; a repeat gets the kept answer.

        The row is committed before `act`; when the process dies in between, the next request with the key
        runs `act` again, with the same request id. Answers of 500 and above are not kept.
        """
        ...


# --- reading ---------------------------------------------------------------------------------------------


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


@dataclass(frozen=True, kw_only=True)
class Services:
    """Everything the routes use. `cluster` is the one cluster of this installation (HEALER_CLUSTER).

    Where there are several `clusters` names them, and what belongs to none of them is recorded at `cluster`.
    """

    cluster: str
    clock: Clock
    rules: Callable[[], Ruleset]
    signals: SignalStore
    samples: Samples
    columns: ColumnBook
    unknown: UnknownBook
    losses: LossBook
    senders: SenderBook
    scrapes: ScrapeBook
    #: What pages draw.
    history: SignalReads
    reads: Reads
    tokens: Tokens
    hooks: Hooks
    commands: Commands
    runs: RunCommands
    reconcile: Reconcile
    messages: MessageBook
    idempotency: Idempotency
    audit: AuditTrail
    events: EventFeed
    #: What was collected on nodes.
    evidence: EvidenceBook
    #: What was recorded of a cluster, and what was really done in a span of it: the document of a replay.
    recordings: Callable[[str], Recordings]
    done: Callable[[str, datetime, datetime], Mapping[str, Any]]
    rehearsals: Rehearsals
    rule_files: RuleFiles
    ready: Callable[[], Readiness]
    #: How nodes of a cluster prove who they are when they enrol: each cluster has a key of its own.
    credentials: Callable[[str], Credentials]
    clusters: tuple[str, ...] = ()
    #: Where events and step times wait while the database is away; without one their senders hear 503.
    spool: Spool | None = None
    #: What Slack signs presses of its buttons with, and how an answer goes back to who pressed.
    slack_secret: str | None = None
    tell_slack: Callable[[str, str], None] = lambda url, text: None
    #: Cookies only over HTTPS; off for the loopback address.
    secure_cookies: bool = False

    @property
    def only(self) -> str:
        """The cluster of what names none; empty where there are several: it is never guessed."""
        return "" if len(self.clusters) > 1 else self.cluster
