"""The API and the console on PostgreSQL, as one application."""

import threading
from collections.abc import Callable
from pathlib import Path

import sqlalchemy as sa
import structlog
from fastapi import FastAPI

from healer import bootstrap
from healer.adapters.clock import SystemClock
from healer.adapters.munge import Munge, NoMunge
from healer.adapters.notify.slack import SlackReplies
from healer.adapters.postgres.audit_read import PostgresAuditTrail
from healer.adapters.postgres.columns import PostgresColumns
from healer.adapters.postgres.console_reads import PostgresConsoleReads
from healer.adapters.postgres.events import PostgresEvents
from healer.adapters.postgres.evidence import PostgresEvidence
from healer.adapters.postgres.figures import readiness
from healer.adapters.postgres.history import PostgresSignalReads
from healer.adapters.postgres.hooks import PostgresHooks
from healer.adapters.postgres.idempotency import PostgresIdempotency
from healer.adapters.postgres.inbox import PostgresSignals
from healer.adapters.postgres.ledger import PostgresLedger
from healer.adapters.postgres.losses import PostgresLosses
from healer.adapters.postgres.message_book import PostgresMessageBook
from healer.adapters.postgres.reads import PostgresReads
from healer.adapters.postgres.rehearsals import PostgresRehearsals
from healer.adapters.postgres.samples import PostgresSamples
from healer.adapters.postgres.scrapes import PostgresScrapes
from healer.adapters.postgres.senders import PostgresSenders
from healer.adapters.postgres.snapshots import PostgresSnapshots
from healer.adapters.postgres.tokens import PostgresTokens
from healer.adapters.postgres.unknown_series import PostgresUnknownSeries
from healer.adapters.slurm.preferred import PreferredScheduler
from healer.adapters.spool import FileSpool
from healer.api.access import SESSION_LASTS, Access
from healer.api.app import create_app
from healer.api.services import Services
from healer.bootstrap.done import done
from healer.bootstrap.own import OwnHealth, queues
from healer.bootstrap.prometheus import RememberedCharts, Watched
from healer.bootstrap.recordings import recordings_of
from healer.bootstrap.rule_files import RuleFiles
from healer.bootstrap.tried import Tried
from healer.console.routes import router as console
from healer.engine.command import Commands, Site
from healer.engine.controls import Controls
from healer.engine.reconcile import Reconciler
from healer.model import Role
from healer.model.recordings import Recordings
from healer.ports.callers import NewSession, Session
from healer.ports.console_answers import Arriving
from healer.ports.request_errors import NotFound
from healer.processes.rulebook import Rulebook
from healer.rulebook.cases.casebook import CaseBook
from healer.settings import Settings, SettingsError

log = structlog.get_logger()

#: Seconds after the start; it takes a second or two of CPU.
PROVE_AFTER_S = 30.0


def services(settings: Settings, db: sa.Engine, snapshots: PostgresSnapshots) -> Services:
    clusters = _clusters(settings)
    cluster, *_ = clusters
    several = tuple(clusters) if settings.clusters else ()
    clock = SystemClock()
    rules = bootstrap.rulebook(settings)
    # The pages tell when the shipped or edited rules contradict their cases; not while everything starts.
    proof = threading.Timer(PROVE_AFTER_S, rules.prove)
    proof.daemon = True
    proof.start()
    columns = PostgresColumns(db)
    watched = Watched(settings)
    has_sink = bootstrap.has_sink(settings)
    sites = {
        name: Site(
            PostgresLedger(db, name, snapshots=snapshots, clock=clock, has_sink=has_sink),
            slurm,
            bootstrap.poke(settings, name),
        )
        for name, slurm in clusters.items()
    }
    commands = Commands(sites, rules, clock)
    return Services(
        cluster=cluster,
        spool=_spool(settings.data_dir / "spool"),
        clusters=several,
        clock=clock,
        rules=rules,
        signals=PostgresSignals(db),
        samples=PostgresSamples(db, cluster),
        columns=columns,
        unknown=PostgresUnknownSeries(db),
        losses=PostgresLosses(db),
        scrapes=PostgresScrapes(db),
        senders=PostgresSenders(db),
        history=PostgresSignalReads(db, columns),
        reads=PostgresReads(db, snapshots=snapshots, clock=clock, rules=rules),
        tokens=PostgresTokens(db, cluster),
        credentials=credentials(settings),
        hooks=PostgresHooks(db, snapshots=snapshots, rules=rules, clock=clock),
        controls=Controls(sites[cluster].ledger, rules, clock),
        runs=commands,
        reconcile=Reconciler(commands, rules, clock),
        messages=PostgresMessageBook(db),
        slack_secret=settings.slack_signing_secret,
        tell_slack=SlackReplies().tell,
        idempotency=PostgresIdempotency(db),
        audit=PostgresAuditTrail(db, settings.data_dir),
        events=PostgresEvents(db),
        evidence=PostgresEvidence(db),
        recordings=lambda name: _recordings(settings, name),
        done=lambda name, since, until: done(db, name, rules(), since, until),
        rehearsals=PostgresRehearsals(db),
        rule_files=RuleFiles(settings),
        ready=lambda: watched.with_troubles(
            readiness(db, list(clusters), clock.now(), stale_s=rules().guards.stale_s)
        ),
    )


def _recordings(settings: Settings, cluster: str) -> Recordings:
    try:
        return recordings_of(settings.of(cluster))
    except SettingsError:
        raise NotFound(f"there is no cluster {cluster}") from None


def _spool(folder: Path) -> FileSpool | None:
    """None where nothing can be written: then senders hear 503 while the database is away."""
    try:
        return FileSpool(folder)
    except OSError as error:
        log.error("no signals can be spooled", folder=str(folder), error=str(error))
        return None


def _clusters(settings: Settings) -> dict[str, PreferredScheduler]:
    """How to come to each cluster. Where there are several nothing is asked of Slurm now: one that is away
    must not stop the others, and each scheduler asks its cluster's name before its first use."""
    if settings.clusters:
        return {name: bootstrap.scheduler(one, cluster=name) for name, one in settings.clusters.items()}
    cluster, slurm = bootstrap.cluster_name(settings), bootstrap.scheduler(settings)
    bootstrap.told_cluster(slurm, cluster)
    return {cluster: slurm}


def credentials(settings: Settings) -> Callable[[str], Munge | NoMunge]:
    """Whose munge opens what a node of a cluster sends. Of several each opens for its own cluster alone."""
    if len(settings.clusters) < 2:
        munge = Munge(settings.each()[0].munge_socket)
        return lambda _: munge
    own = {name: Munge(one.munge_socket) for name, one in settings.clusters.items() if one.munge_socket}
    return lambda name: own.get(name) or NoMunge(name)


def web_app(settings: Settings) -> FastAPI:
    """The whole application. The console asks the API's own Access who looks, so there is one truth."""
    db = bootstrap.engine(settings, name="healer api", pool_size=12)
    snapshots = PostgresSnapshots(db)
    wired = services(settings, db, snapshots)
    app = create_app(wired)
    access: Access = app.state.access
    book = wired.rules
    reads = PostgresConsoleReads(
        db,
        snapshots=snapshots,
        clock=wired.clock,
        rules=book,
        signals=wired.history,
        unknown=wired.unknown,
        modes={name: one.mode for name, one in settings.clusters.items()},
        charts=RememberedCharts(settings, wired.rules, wired.columns),
        cases=CaseBook(book.folder) if isinstance(book, Rulebook) else dict,
        rules_error=lambda: book.problem if isinstance(book, Rulebook) else "",
        arriving=lambda cluster, limit: Arriving(
            wired.losses.losses([cluster], limit), wired.senders.senders([cluster], limit), queues(app)
        ),
    )

    def session_of(cookie: str) -> Session | None:
        caller = access.session(cookie)
        if caller is None or caller.node or caller.job or caller.role is Role.signals:
            return None  # tokens of nodes and jobs write signals; they see no pages
        clusters = (caller.cluster,) if caller.cluster else ()
        return Session(name=caller.name, role=caller.role, csrf=caller.csrf or "", clusters=clusters)

    def sign_in(token: str) -> NewSession | None:
        signed = access.sign_in(token)
        if signed is None:
            return None
        return NewSession(cookie=signed[1], max_age_s=int(SESSION_LASTS.total_seconds()))

    pages = console(
        reads, session_of, clock=wired.clock.now, sign_in=sign_in, sign_out=access.sign_out,
        secure_cookie=wired.secure_cookies, link_secret=settings.link_secret,
        rehearsals=Tried(wired, PostgresRehearsals(db)), own=OwnHealth(settings, db, wired, app),
    )  # fmt: skip
    app.include_router(pages)
    app.state.errors.page = pages.error_page
    return app
