"""Dependencies of the API: `healer.bootstrap` fills `Services`.

Nothing in `healer.api` imports an adapter.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from datetime import datetime
from functools import partial
from typing import Any

from starlette.requests import HTTPConnection

from healer.api.site_address import SiteNames
from healer.engine.command import Commands
from healer.engine.controls import Controls, IncidentCommands
from healer.engine.emergency import Emergency
from healer.engine.leavers import Leavers
from healer.engine.local_accounts import LocalAccounts
from healer.engine.permission import HookPermits
from healer.engine.reconciler import Reconciler
from healer.model import Ruleset
from healer.model.recordings import Recordings
from healer.ports.answers import Readiness
from healer.ports.callers import Credentials, Idempotency, SlurmTokens, Tokens
from healer.ports.clock import Clock
from healer.ports.directory import People
from healer.ports.measurements import ColumnBook, Samples, ScrapeBook
from healer.ports.node_exec import EvidenceBook
from healer.ports.queries import AuditTrail, EventFeed, MessageBook, Queries, Rehearsals, RuleFiles
from healer.ports.service_accounts import TokenBook
from healer.ports.sign_in import SignIn
from healer.ports.signal_stores import LossBook, SenderBook, SignalStore, Spool, UnknownBook


# Wide: one field for each port or command set that a route uses, so that a test can put in its own; groups
# of them would be no nouns of their own.
@dataclass(frozen=True, kw_only=True)
class Services:
    """Everything the routes use. `cluster` is the one cluster of this installation (HEALER_CLUSTER).

    `clusters` names them if there are several; what belongs to none of them is recorded under `cluster`.
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
    queries: Queries
    tokens: Tokens
    token_book: TokenBook
    people: People
    leavers: Leavers
    hooks: HookPermits
    controls: Controls
    incidents: IncidentCommands
    runs: Commands
    reconcile: Reconciler
    messages: MessageBook
    emergency: Emergency
    idempotency: Idempotency
    audit: AuditTrail
    events: EventFeed
    evidence: EvidenceBook
    #: The recordings of a cluster, and what was really done in a span of them: the document of a replay.
    recordings: Callable[[str], Recordings]
    done: Callable[[str, datetime, datetime], Mapping[str, Any]]
    rehearsals: Rehearsals
    rule_files: RuleFiles
    ready: Callable[[], Readiness]
    #: Decodes the credentials of a cluster's nodes when they enrol: each cluster has its own key.
    credentials: Callable[[str], Credentials]
    clusters: tuple[str, ...] = ()
    #: Clusters whose users sign in by munge, each with the login name of a user id.
    munge_users: Mapping[str, Callable[[int], str | None]] = field(default_factory=dict)
    #: Clusters whose users sign in by a token of Slurm.
    slurm_tokens: Mapping[str, SlurmTokens] = field(default_factory=dict)
    #: The identity provider; None: the site has none, and a token's name is a person.
    sign_in: SignIn | None = None
    #: People of a site without an identity provider; None if it has one.
    accounts: LocalAccounts | None = None
    #: Where events and step times wait while the database is away; without one their senders get 503.
    spool: Spool | None = None
    #: Slack's signing secret, and how to answer the person who pressed a button.
    slack_secret: str | None = None
    tell_slack: Callable[[str, str], None] = lambda url, text: None
    #: How requests reach this site.
    site: SiteNames = field(default_factory=partial(SiteNames, any_host=True))

    @property
    def served(self) -> tuple[str, ...]:
        """The clusters of this installation. Others in the database were removed from the settings."""
        return self.clusters or (self.cluster,)

    @property
    def only(self) -> str:
        """The cluster of items that name none; empty if there are several: it is never guessed."""
        return "" if len(self.clusters) > 1 else self.cluster


def services_of(request: HTTPConnection) -> Services:
    return request.app.state.services
