"""The API on a real database, with a cluster of four nodes and no other process beside it."""

import threading
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import httpx
import sqlalchemy as sa
import uvicorn
from fastapi import FastAPI

from healer.adapters.munge import Munge
from healer.adapters.postgres.arrivals import (
    PostgresLosses,
    PostgresScrapes,
    PostgresSenders,
    PostgresUnknownSeries,
)
from healer.adapters.postgres.claims import LedgerParts
from healer.adapters.postgres.engine import make_engine
from healer.adapters.postgres.events import PostgresEvents
from healer.adapters.postgres.evidence import PostgresEvidence
from healer.adapters.postgres.gate_facts import PostgresHooks
from healer.adapters.postgres.glass_rows import PostgresBreakGlass
from healer.adapters.postgres.inbox import PostgresSignals
from healer.adapters.postgres.ledger import PostgresLedger
from healer.adapters.postgres.node_rows import PostgresSnapshots
from healer.adapters.postgres.outbox import PostgresMessageBook
from healer.adapters.postgres.own_health import pulses
from healer.adapters.postgres.people_rows import PostgresPeople
from healer.adapters.postgres.read_queries import postgres_queries
from healer.adapters.postgres.rehearsals import PostgresRehearsals
from healer.adapters.postgres.samples import PostgresColumns, PostgresSamples
from healer.adapters.postgres.tables import incidents, runs
from healer.adapters.postgres.token_book import PostgresTokenBook
from healer.adapters.postgres.tokens import PostgresIdempotency
from healer.adapters.system_clock import SystemClock
from healer.api.app import create_app
from healer.api.services import Services
from healer.bootstrap.web import done
from healer.engine.command import Commands, Site
from healer.engine.controls import Controls, IncidentCommands
from healer.engine.emergency import Emergency
from healer.engine.leavers import Leavers
from healer.engine.permission import HookPermits
from healer.engine.reconciler import Reconciler
from healer.engine.records import readiness
from healer.model import (
    Alias,
    Catalogue,
    Cause,
    Component,
    ContextKind,
    ContextRule,
    FaultClass,
    GuardSettings,
    Incident,
    Playbook,
    Role,
    Rule,
    Ruleset,
    Run,
    Scope,
    Severity,
    Signal,
    SignalKind,
    SlurmJob,
    SlurmNode,
    SlurmSnapshot,
    Step,
    Topology,
    Verb,
    Verdict,
)
from healer.model.recordings import Recorded, Recordings
from healer.ports.answers import AuditVerified
from healer.sim.sim_slurm import SimScheduler
from healer.text import from_stored, to_stored
from tests.support.relays import new_token
from tests.support.seals import seal_all
from tests.support.wait import wait_until

CLUSTER = "pod1"
#: Of the digests of its tokens.
TOKEN_KEY = b"a key of tests".ljust(32, b".")
XID_79 = "NVRM: Xid (PCI:0000:9b:00): 79, pid=4711, name=python, GPU has fallen off the bus."

CATALOGUE = Catalogue(
    signals={
        "gpu_temp_c": Signal(
            name="gpu_temp_c",
            unit="°C",
            kind=SignalKind.gauge,
            scope=Scope.gpu,
            text="GPU temperature",
            source="DCGM field 150",
            aliases=(Alias(name="DCGM_FI_DEV_GPU_TEMP"), Alias(name="nvidia-smi:temperature/gpu_temp")),
        ),
        "load1": Signal(
            name="load1",
            unit="ratio",
            kind=SignalKind.gauge,
            scope=Scope.node,
            text="Load average of one minute",
            source="/proc/loadavg",
            aliases=(Alias(name="node_load1"),),
        ),
    }
)

RULES = Ruleset(
    version="test",
    catalogue=CATALOGUE,
    xids={},
    sxids={},
    rules=(
        Rule(
            name="gpu-lost",
            title="A GPU has fallen off the bus",
            faults=("xid-79",),
            severity=Severity.P1,
            cause=Cause.permanent,
            playbook="gpu-fatal",
        ),
    ),
    guards=GuardSettings(),
    context=(
        ContextRule(
            name="booted", when=ContextKind.booted, faults=("ib-*",), for_min=5, source="links train"
        ),
    ),
    playbooks={
        "drain": Playbook(
            name="drain", title="Drain a node", target="node", steps=(Step(id="drain", do=Verb.drain),)
        ),
        "resume": Playbook(
            name="resume", title="Return a node", target="node", steps=(Step(id="resume", do=Verb.resume),)
        ),
        "requeue": Playbook(
            name="requeue", title="Requeue a job", target="job", steps=(Step(id="requeue", do=Verb.requeue),)
        ),
        "empty": Playbook(
            name="empty",
            title="Empty a node",
            target="node",
            steps=(Step(id="drain", do=Verb.drain), Step(id="move", do=Verb.requeue, for_each="jobs_agreed")),
        ),
        "power-cycle": Playbook(
            name="power-cycle",
            title="Cut the power",
            target="node",
            steps=(Step(id="cut", do=Verb.power_cycle),),
        ),
        "collect": Playbook(
            name="collect",
            title="Collect evidence",
            target="node",
            level=1,
            steps=(Step(id="collect", do=Verb.collect),),
        ),
    },
    topology=Topology(),
)


class SomeFiles:
    """`RuleFiles` of one file; a text with the word `wrong` is."""

    def names(self) -> list[str]:
        return ["policies.yaml"]

    def text(self, name: str) -> str | None:
        if not name.endswith(".yaml"):
            raise ValueError("a file of rules/")
        return "- name: gpu-lost\n" if name == "policies.yaml" else None

    def problems(self, name: str, text: str) -> list[str]:
        return [f"{name}:1: no such field: wrong"] if "wrong" in text else []


RECORDED = Recordings(
    on=True,
    folder="/recordings",
    files=(
        Recorded(
            file="x-events.jsonl.zst", kind="events", lines=7, bytes=900, routes={"clock": 7},
            first=datetime(2026, 11, 20, tzinfo=UTC), last=datetime(2026, 11, 21, tzinfo=UTC),
        ),
    ),
)  # fmt: skip


class NoAudit:
    def verify(self) -> AuditVerified:
        return AuditVerified(ok=True)

    def export(self) -> Iterator[bytes]:
        yield b'{"format":"test"}\n'


def save_run(conn: sa.Connection, run: Run) -> None:
    conn.execute(
        sa.insert(runs).values(
            id=run.id,
            cluster=run.cluster,
            playbook=run.playbook,
            node=run.node,
            job=run.job,
            incident=run.incident,
            state=run.state,
            shadow=run.shadow,
            created_at=run.created_at,
            doc=to_stored(run),
        )
    )


def save_incident(conn: sa.Connection, incident: Incident) -> None:
    conn.execute(
        sa.insert(incidents).values(
            id=incident.id,
            cluster=incident.cluster,
            rule=incident.rule,
            state=incident.state,
            severity=incident.severity,
            node=incident.root.node,
            opened=incident.opened,
            updated=incident.updated,
            closed=incident.closed,
            doc=to_stored(incident),
        )
    )


def incident(number: int, node: str = "gpu0001", **more: Any) -> Incident:
    at = datetime.now(UTC) - timedelta(minutes=number)
    return Incident(
        id=f"{number:08x}" + "a" * 24,
        cluster=CLUSTER,
        rule="gpu-lost",
        fault="xid-79",
        fault_class=FaultClass.fatal,
        title=f"GPU 3 of {node} has fallen off the bus",
        root=Component(cluster=CLUSTER, node=node, gpu=3),
        opened=at,
        updated=at,
        settle_until=at,
        nodes={node: Verdict.isolate},
        severity=Severity.P1,
        jobs_hit=("4711",),
        **more,
    )


def snapshot(nodes: int = 4) -> SlurmSnapshot:
    names = [f"gpu{number:04d}" for number in range(1, nodes + 1)]
    job = SlurmJob(id="4711", state="RUNNING", nodes=tuple(names[:2]), user="alice", partition="train")
    return SlurmSnapshot(
        cluster=CLUSTER,
        taken_at=datetime.now(UTC),
        nodes={name: SlurmNode(name=name, state=("IDLE",), gpus=8, partitions=("train",)) for name in names},
        jobs={"4711": job},
    )


#: No munged is there, unless a test starts one: this machine's own is not asked.
NO_MUNGE = Path("/nonexistent/munge.socket")


class Api:
    """The application with its adapters, and a client for each role."""

    def __init__(self, database: sa.Engine, *, nodes: int = 4, munge_socket: Path = NO_MUNGE) -> None:
        url = database.url.render_as_string(hide_password=False)
        self.engine = make_engine(url)
        #: In force; a test may change them.
        self.rules = RULES
        self.snapshots = PostgresSnapshots(self.engine)
        if nodes:
            self.snapshots.put(snapshot(nodes))
        self.tokens = PostgresTokenBook(self.engine, CLUSTER, TOKEN_KEY)
        self.people = PostgresPeople(self.engine, CLUSTER, TOKEN_KEY)
        self.events = PostgresEvents(self.engine)
        self.evidence = PostgresEvidence(self.engine)
        self.signals = PostgresSignals(self.engine)
        clock = SystemClock()
        self.slurm = SimScheduler(CLUSTER, clock, max(nodes, 1))
        ledger = PostgresLedger(
            LedgerParts(
                engine=self.engine, cluster=CLUSTER, snapshots=self.snapshots, clock=clock, has_sink=False
            )
        )
        sites = {CLUSTER: Site(ledger, self.slurm, lambda _: None)}
        commands = Commands(sites, self._rules, clock, self.people)
        columns = PostgresColumns(self.engine)
        self.samples = PostgresSamples(self.engine, CLUSTER)
        queries = postgres_queries(self.engine, snapshots=self.snapshots, columns=columns, rules=self._rules)
        incident_commands = IncidentCommands(ledger, self._rules, clock)
        self.services = Services(
            cluster=CLUSTER,
            clock=clock,
            rules=self._rules,
            signals=self.signals,
            samples=self.samples,
            columns=columns,
            unknown=PostgresUnknownSeries(self.engine),
            losses=PostgresLosses(self.engine),
            scrapes=PostgresScrapes(self.engine),
            senders=PostgresSenders(self.engine),
            queries=queries,
            tokens=self.tokens,
            people=self.people,
            token_book=self.tokens,
            credentials=lambda _: Munge(munge_socket),
            hooks=HookPermits(PostgresHooks(self.engine, self.snapshots), self._rules, clock),
            controls=Controls(ledger, self._rules, clock),
            incidents=incident_commands,
            leavers=Leavers(self.tokens, queries, incident_commands, clock),
            recordings=lambda _: RECORDED,
            done=lambda name, since, until: done(self.engine, name, self.rules, since, until),
            rehearsals=PostgresRehearsals(self.engine),
            rule_files=SomeFiles(),
            runs=commands,
            reconcile=Reconciler(commands, clock),
            messages=PostgresMessageBook(self.engine),
            emergency=Emergency(PostgresBreakGlass(self.engine, CLUSTER, TOKEN_KEY), CLUSTER, clock),
            idempotency=PostgresIdempotency(self.engine),
            audit=NoAudit(),
            events=self.events,
            evidence=self.evidence,
            ready=lambda: readiness(lambda: pulses(self.engine, [CLUSTER]), clock.now(), stale_s=30),
        )
        self.app: FastAPI = create_app(self.services)

    def _rules(self) -> Ruleset:
        return self.rules

    def look(self) -> None:
        """Reads the simulated Slurm, as the poller does."""
        self.snapshots.put(self.slurm.snapshot())

    def runs(self) -> list[Run]:
        with self.engine.connect() as conn:
            return [from_stored(doc, Run) for doc in conn.execute(sa.select(runs.c.doc)).scalars()]

    def token(self, role: Role | str, **bound: Any) -> str:
        name = bound.pop("name", str(role))
        made = self.tokens.create(new_token(role, name=name, **bound), now=datetime.now(UTC), by="test")
        seal_all(self.engine)
        return made

    def headers(self, role: Role | str, **bound: Any) -> dict[str, str]:
        return {"Authorization": f"Bearer {self.token(role, **bound)}"}

    def close(self) -> None:
        self.events.close()
        self.signals.close()
        self.samples.close()
        self.engine.dispose()


@contextmanager
def serving(
    database: sa.Engine, *, nodes: int = 4, munge_socket: Path = NO_MUNGE, port: int = 0
) -> Iterator[tuple[Api, httpx.Client]]:
    """An Api behind a real uvicorn on a port of 127.0.0.1 (0: a free one), and a client for it."""
    api = Api(database, nodes=nodes, munge_socket=munge_socket)
    config = uvicorn.Config(api.app, host="127.0.0.1", port=port, log_level="warning", access_log=False)
    server = uvicorn.Server(config)
    thread = threading.Thread(target=server.run, daemon=True)
    thread.start()
    try:
        wait_until(lambda: server.started, what="uvicorn serves")
        port = server.servers[0].sockets[0].getsockname()[1]
        # Without TLS there is nothing to verify: else it reads all certificates that there are.
        with httpx.Client(base_url=f"http://127.0.0.1:{port}", timeout=20, verify=False) as client:
            yield api, client
    finally:
        api.events.close()
        server.should_exit = True
        thread.join(timeout=10)
        api.close()
