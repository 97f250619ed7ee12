"""The API and the console on PostgreSQL, as one application."""

import dataclasses
import re
import tempfile
import threading
import time
from collections.abc import Callable, Iterable, Mapping
from contextlib import suppress
from datetime import datetime
from pathlib import Path
from typing import Any

import sqlalchemy as sa
import structlog
from fastapi import FastAPI
from sqlalchemy.exc import SQLAlchemyError

from healer import bootstrap
from healer.adapters.identity_provider.code_flow import OidcProvider
from healer.adapters.identity_provider.device_flow import DeviceFlow
from healer.adapters.identity_provider.provider_client import ProviderClient
from healer.adapters.identity_provider.proxy_headers import TrustedProxy
from healer.adapters.munge import Munge, NoMunge
from healer.adapters.notify.slack import SlackReplies
from healer.adapters.postgres.arrivals import (
    PostgresLosses,
    PostgresScrapes,
    PostgresSenders,
    PostgresUnknownSeries,
)
from healer.adapters.postgres.engine import reading
from healer.adapters.postgres.events import PostgresEvents
from healer.adapters.postgres.evidence import PostgresEvidence
from healer.adapters.postgres.gate_facts import PostgresHooks
from healer.adapters.postgres.inbox import PostgresSignals
from healer.adapters.postgres.migrate import require_tables
from healer.adapters.postgres.node_rows import PostgresSnapshots
from healer.adapters.postgres.outbox import PostgresMessageBook
from healer.adapters.postgres.own_health import pulses, stored
from healer.adapters.postgres.people_rows import PostgresPeople
from healer.adapters.postgres.read_queries import postgres_queries
from healer.adapters.postgres.rehearsals import PostgresRehearsals
from healer.adapters.postgres.run_rows import logs_of, run_of
from healer.adapters.postgres.samples import PostgresColumns, PostgresSamples
from healer.adapters.postgres.tables import decisions, incidents, runs
from healer.adapters.postgres.token_book import PostgresTokenBook
from healer.adapters.postgres.tokens import OtherTokenKey, PostgresIdempotency, check_key
from healer.adapters.slurm.preferred_reads import PreferredReads
from healer.adapters.slurm.token_proof import RestTokens
from healer.adapters.spool import FileSpool
from healer.adapters.system_clock import SystemClock
from healer.adapters.unix_users import login_name
from healer.api.access import no_cluster
from healer.api.app import create_app
from healer.api.services import Services
from healer.api.site_address import SiteNames
from healer.api.system_routes import process_checks
from healer.bootstrap.prometheus import RememberedCharts, Watched
from healer.bootstrap.rehearse import overlaid
from healer.bootstrap.traced_parts import TracedSignals, traces_of
from healer.console.pages import Pages, Sources, Trying
from healer.console.router import Console
from healer.embedded.user import EmbeddedError
from healer.engine.command import Commands, Site
from healer.engine.controls import Controls, IncidentCommands
from healer.engine.leavers import Leavers
from healer.engine.permission import HookPermits
from healer.engine.reconciler import Reconciler
from healer.engine.records import readiness
from healer.model import Decision, Incident, Outcome, Ruleset
from healer.model.recordings import Recordings
from healer.ports.answers import Arriving, Queue, Readiness, SelfHealth
from healer.ports.scheduling import SlurmReads
from healer.ports.sign_in import SignIn
from healer.ports.signal_stores import SignalStore
from healer.processes.rulebook import Rulebook
from healer.recordings.recording_folder import recordings
from healer.rulebook.cases.casebook import CaseBook
from healer.rulebook.ruleset import RulesInvalid
from healer.settings import ON, Settings, SettingsError, rules_folder
from healer.sim.ledger_tables import Tables
from healer.sim.replay_report import report
from healer.sim.replay_report import since as report_since
from healer.text import from_stored

#: Connections for people's commands, which no signal and no page uses: `healer.api.lanes` has the threads.
_ACTING_POOL = 6
#: Least interval of calls to the broker; no page waits for them.
ASK_EVERY_S = 15.0


class BrokerWatch:
    """Number of messages that wait at the broker, as last known; None and the reason if it does not
    answer."""

    def __init__(self, settings: Settings) -> None:
        self._settings = settings
        self._answers: dict[str, tuple[int | None, str]] = {}
        self._asked: dict[str, float] = {}
        self._lock = threading.Lock()

    def __call__(self, cluster: str) -> tuple[int | None, str]:
        with self._lock:
            if time.monotonic() - self._asked.get(cluster, float("-inf")) >= ASK_EVERY_S:
                self._asked[cluster] = time.monotonic()
                threading.Thread(target=self._ask, args=(cluster,), name="broker", daemon=True).start()
            return self._answers.get(cluster, (None, ""))

    def _ask(self, cluster: str) -> None:
        answer = self._found(cluster)
        with self._lock:
            self._answers[cluster] = answer

    def _found(self, cluster: str) -> tuple[int | None, str]:
        from kombu.exceptions import ChannelError

        from workers.app import make_app, queue_name

        try:
            app = make_app(bootstrap.broker_url(self._settings), cluster)
            with app.connection_for_write() as connection:
                connection.ensure_connection(max_retries=1, interval_start=0, interval_step=0)
                queue = connection.default_channel.queue_declare(queue_name(cluster), passive=True)
                return queue.message_count, "answers"
        except ChannelError:
            return 0, "answers"  # an empty queue is no queue there
        except (EmbeddedError, OSError) as error:
            return None, str(error)
        except Exception as error:  # each transport of kombu has errors of its own
            return None, f"{type(error).__name__}: {error}"


class OwnHealth:
    """`healer.ports.answers.SelfHealthReads`."""

    def __init__(self, settings: Settings, db: sa.Engine, wired: Services, app: FastAPI) -> None:
        self._db, self._wired, self._app = db, wired, app
        self._broker = BrokerWatch(settings)

    def __call__(self, cluster: str) -> SelfHealth:
        waiting, text = self._broker(cluster)
        book = self._wired.rules
        return SelfHealth(
            stored=stored(self._db, cluster, self._wired.clock.now()),
            checks=self._wired.ready().checks | process_checks(self._app.state),
            queues=tuple(queues(self._app)),
            broker=waiting,
            broker_text=text,
            rules_version=book().version,
            rules_since=book.since if isinstance(book, Rulebook) else None,
        )


def queues(app: FastAPI) -> list[Queue]:
    """Queues of this process that wait to be written."""
    units = {"events": "entries"}
    return [
        Queue(name, queue.depth, queue.bounds.queue, units.get(name, "bytes"))
        for name, queue in app.state.queues.items()
    ]


def done(engine: sa.Engine, cluster: str, rules: Ruleset, since: datetime, until: datetime) -> dict[str, Any]:
    """The document of what healer did, from the database. Pages to people are left out."""
    tables = Tables()
    with reading(engine) as conn:
        touched = sa.and_(incidents.c.cluster == cluster, incidents.c.opened <= until)
        alive = sa.or_(incidents.c.closed.is_(None), incidents.c.closed >= since)
        docs = conn.execute(sa.select(incidents.c.doc).where(touched, alive)).scalars()
        tables.incidents = {
            incident.id: incident for incident in (from_stored(doc, Incident) for doc in docs)
        }
        begun = sa.and_(runs.c.cluster == cluster, runs.c.created_at <= until)
        going = sa.or_(runs.c.ended_at.is_(None), runs.c.ended_at >= since)
        found = [run_of(row) for row in conn.execute(sa.select(runs).where(begun, going))]
        tables.runs = {run.id: run for run in found}
        tables.log = logs_of(conn, list(tables.runs))
        held = sa.and_(
            decisions.c.cluster == cluster,
            decisions.c.at.between(since, until),
            decisions.c.outcome.in_([Outcome.held.value, Outcome.refused.value]),
        )
        judged = conn.execute(sa.select(decisions.c.doc).where(held).order_by(decisions.c.id)).scalars()
        tables.decisions = [from_stored(doc, Decision) for doc in judged]
    return report_since(report(tables, rules, None, {}), since)


#: Names of rule files; scripts are programs of the site and are not tried.
_NAME = re.compile(r"(?:(?:playbooks|detection)/)?[a-z0-9][a-z0-9_.-]{0,80}\.yaml")


class RuleFiles:
    """`healer.ports.queries.RuleFiles`."""

    def __init__(self, settings: Settings) -> None:
        self._settings, self._folder = settings, rules_folder(settings)

    def names(self) -> list[str]:
        found = (path.relative_to(self._folder).as_posix() for path in self._folder.rglob("*.yaml"))
        return sorted(name for name in found if _NAME.fullmatch(name))

    def text(self, name: str) -> str | None:
        """The file's text; None if it does not exist. Raises ValueError for an impossible name."""
        if not _NAME.fullmatch(name):
            raise ValueError("a file of rules/, like policies.yaml or detection/slow.yaml")
        try:
            return (self._folder / name).read_text()
        except FileNotFoundError:
            return None

    def problems(self, name: str, text: str) -> list[str]:
        """Problems of the whole rule set with this text in the file: `FILE:LINE: what`."""
        with tempfile.TemporaryDirectory(prefix="healer-rules-") as made:
            try:
                overlaid(self._folder, Path(made, "rules"), name, text)
                bootstrap.load_site_rules(Path(made, "rules"), self._settings)
            except RulesInvalid as error:
                return [str(problem) for problem in error.problems]
        return []


log = structlog.get_logger()

#: Pages sum losses by reason: of 12,500 nodes, each with its own token, some may have lost something.
_LOSSES_SUMMED = 20_000

#: Seconds after the start; it takes a second or two of CPU.
PROVE_AFTER_S = 30.0


def services(settings: Settings, db: sa.Engine, snapshots: PostgresSnapshots) -> Services:
    acting_db = bootstrap.engine(settings, name="healer api acting", pool_size=_ACTING_POOL)
    cluster, *_ = sites = _sites(settings, acting_db, snapshots)
    clock, columns, watched = SystemClock(), PostgresColumns(db), Watched(settings)
    rules, key = _proven_later(bootstrap.rulebook(settings)), bootstrap.tokens_key(settings)
    people, sign_in = PostgresPeople(db, cluster, key), sign_in_of(settings, key)
    commands = Commands(sites, rules, clock, people, provided=sign_in is not None)
    token_book, ledger = PostgresTokenBook(db, cluster, key), sites[cluster].ledger
    queries = postgres_queries(db, snapshots=snapshots, columns=columns, rules=rules)
    incident_commands = IncidentCommands(ledger, rules, clock)
    return Services(
        cluster=cluster,
        spool=_spool(settings.data_dir / "spool"),
        clusters=tuple(sites) if settings.clusters else (),
        clock=clock,
        rules=rules,
        signals=_signals(settings, db, cluster),
        samples=PostgresSamples(db, cluster),
        columns=columns,
        unknown=PostgresUnknownSeries(db),
        losses=PostgresLosses(db),
        scrapes=PostgresScrapes(db),
        senders=PostgresSenders(db),
        queries=queries,
        tokens=token_book,
        people=people,
        sign_in=sign_in,
        accounts=bootstrap.local_accounts(settings, db, cluster),
        token_book=token_book,
        credentials=credentials(settings),
        hooks=HookPermits(PostgresHooks(db, snapshots), rules, clock),
        controls=Controls(ledger, rules, clock, tuple(sites)),
        incidents=incident_commands,
        leavers=Leavers(token_book, queries, incident_commands, clock),
        runs=commands,
        reconcile=Reconciler(commands, clock),
        messages=PostgresMessageBook(db),
        slack_secret=settings.slack_signing_secret,
        tell_slack=SlackReplies().respond,
        emergency=bootstrap.emergency(settings, acting_db, cluster),
        idempotency=PostgresIdempotency(acting_db),
        audit=bootstrap.audit_trail(settings, db),
        events=PostgresEvents(db),
        evidence=PostgresEvidence(db),
        recordings=lambda name: _recordings(settings, name),
        done=lambda name, since, until: done(db, name, rules(), since, until),
        rehearsals=PostgresRehearsals(db),
        rule_files=RuleFiles(settings),
        ready=lambda: watched.with_troubles(_readiness(db, list(sites), rules, clock)),
    )


def _signals(settings: Settings, db: sa.Engine, cluster: str) -> SignalStore:
    store, traces = PostgresSignals(db), traces_of(settings, "api", cluster)
    return store if traces is None else TracedSignals(store, traces)


def _readiness(db: sa.Engine, clusters: list[str], rules: Rulebook, clock: SystemClock) -> Readiness:
    return readiness(lambda: pulses(db, clusters), clock.now(), stale_s=rules().guards.stale_s)


def _proven_later(rules: Rulebook) -> Rulebook:
    """Pages show when rules contradict their test cases; this is checked some time after the start."""
    proof = threading.Timer(PROVE_AFTER_S, rules.prove)
    proof.daemon = True
    proof.start()
    return rules


def sign_in_of(settings: Settings, key: bytes) -> SignIn | None:
    """How people sign in, if the site has an identity provider. Does not query the provider."""
    now = SystemClock().now
    if settings.oidc_issuer is not None:
        client = settings.oidc_client_id or "", settings.oidc_client_secret or ""
        redirect = f"{settings.public_url}/auth/callback"
        provider = ProviderClient(settings.oidc_issuer, client, now)
        return SignIn(provider=OidcProvider(provider, redirect, key), devices=DeviceFlow(provider, key))
    if settings.sign_in_proxy_secret is not None:
        proxy = TrustedProxy(settings.proxies, settings.sign_in_proxy_secret, now)
        return SignIn(proxy=proxy)
    return None


def _sites(settings: Settings, db: sa.Engine, snapshots: PostgresSnapshots) -> dict[str, Site]:
    return {
        name: Site(
            bootstrap.ledger(settings, db, name, snapshots=snapshots), slurm, bootstrap.poke(settings, name)
        )
        for name, slurm in _clusters(settings).items()
    }


def _recordings(settings: Settings, cluster: str) -> Recordings:
    try:
        return recordings(settings.of(cluster).recording)
    except SettingsError:
        raise no_cluster(cluster, settings.clusters or (settings.cluster or "",)) from None


def _spool(folder: Path) -> FileSpool | None:
    """None if the folder cannot be written: senders then get 503 while the database is away."""
    try:
        return FileSpool(folder)
    except OSError as error:
        log.error("spool not usable", folder=str(folder), error=str(error))
        return None


def _clusters(settings: Settings) -> dict[str, PreferredReads[SlurmReads]]:
    """Each cluster's Slurm. With several, Slurm is not called now: one that is away must not stop
    the others, and each checks its cluster's name before its first use."""
    if settings.clusters:
        return {
            name: bootstrap.slurm_reads(cluster, cluster=name) for name, cluster in settings.clusters.items()
        }
    cluster, slurm = bootstrap.cluster_name(settings), bootstrap.slurm_reads(settings)
    bootstrap.is_own_cluster(slurm, cluster)
    return {cluster: slurm}


def credentials(settings: Settings) -> Callable[[str], Munge | NoMunge]:
    """Returns the munge that decodes credentials of a cluster's nodes; with several, each for its own
    only."""
    if len(settings.clusters) < 2:
        munge = Munge(settings.each()[0].munge_socket)
        return lambda _: munge
    by_cluster = {
        name: Munge(cluster.munge_socket)
        for name, cluster in settings.clusters.items()
        if cluster.munge_socket
    }
    return lambda name: by_cluster.get(name) or NoMunge(name)


def slurm_tokens(clusters: Mapping[str, Settings]) -> dict[str, RestTokens]:
    """The verifiers of Slurm tokens, for the clusters whose users sign in with them."""
    return {
        name: RestTokens(settings.slurm_rest_url, cluster=name, timeout_s=bootstrap.SLURM_TIMEOUT_S)
        for name, settings in clusters.items()
        if settings.slurm_login == ON and settings.slurm_rest_url is not None
    }


def web_app(settings: Settings, names: Callable[[], Iterable[str]] = tuple) -> FastAPI:
    """The whole application. The console authenticates by the API's own Access. `names` are those of the
    certificate."""
    db = bootstrap.engine(settings, name="healer api", pool_size=12)
    require_tables(db)
    snapshots = PostgresSnapshots(db)
    with suppress(SQLAlchemyError), db.connect() as conn:  # a database that is away is no other key
        try:
            check_key(conn, bootstrap.tokens_key(settings))
        except OtherTokenKey as error:
            raise SettingsError(str(error)) from None
    site = SiteNames(settings.public_url, settings.proxies, names=names)
    wired = services(settings, db, snapshots)
    named = wired.clusters or (wired.cluster,)
    users = {name: login_name for name in named if settings.of(name).munge_login == ON}
    tokens = slurm_tokens({name: settings.of(name) for name in named})
    wired = dataclasses.replace(wired, site=site, munge_users=users, slurm_tokens=tokens)
    app = create_app(wired)
    book = wired.rules
    sources = Sources(
        queries=wired.queries,
        rules=book,
        clock=wired.clock.now,
        unknown=lambda cluster, limit: wired.unknown.series([cluster], limit),
        arriving=lambda cluster, limit: Arriving(
            wired.losses.losses([cluster], _LOSSES_SUMMED),
            wired.senders.heard(cluster, limit, wired.clock.now()),
            queues(app),
        ),
        bars=wired.runs.bars,
        modes={name: settings.of(name).mode for name in named},
        rules_error=lambda: book.problem if isinstance(book, Rulebook) else "",
        cases=CaseBook(book.folder) if isinstance(book, Rulebook) else dict,
        charts=RememberedCharts(settings, wired.rules, wired.columns),
        trying=Trying(rehearsals=wired.rehearsals, files=wired.rule_files, recordings=wired.recordings),
        self_health=OwnHealth(settings, db, wired, app),
        leavers=wired.leavers,
    )
    pages = Pages(
        sources,
        app.state.access,
        link_secret=settings.link_secret,
        people=wired.people,
        sign_in=wired.sign_in,
        accounts=wired.accounts,
    )
    console = Console(pages)
    app.include_router(console)
    app.state.errors.page = console.error_page
    return app
