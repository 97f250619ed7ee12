"""A site for the console without a database: reads from a sample, an API that remembers what was pressed.

Run `python -m tests.support.console_site --nodes 1250 --port 8099` to look at the pages by hand.
"""

import asyncio
import json
from collections.abc import AsyncIterator, Callable, Sequence
from datetime import datetime, timedelta
from typing import Any, cast

import msgspec
from fastapi import FastAPI, Request, Response
from fastapi.responses import JSONResponse, StreamingResponse
from starlette.types import ASGIApp, Receive, Scope, Send

from healer.api import problems
from healer.api.edge import speak_to
from healer.api.site_address import SiteNames
from healer.console.pages import Pages, Sources
from healer.console.router import Console
from healer.console.views.buttons import nothing_bars
from healer.console.views.runs_view import asks
from healer.incidents.node_history import similar_to
from healer.model import (
    ENDED_RUN_STATES,
    AuditRecord,
    Breaker,
    Checkpoint,
    Column,
    ContextKind,
    FleetFigure,
    GuardSettings,
    Incident,
    IncidentState,
    Inventory,
    LastContact,
    LemonPart,
    LemonScore,
    Mode,
    NodeComparison,
    Observation,
    Pause,
    Reference,
    Role,
    Ruleset,
    Run,
    RunState,
    Slot,
    SlurmSnapshot,
    Trial,
    Verb,
)
from healer.model.node_states import Holder, NodeCondition, NodeState, node_states
from healer.model.telemetry import Report, StepBatch
from healer.ports.answers import (
    Buckets,
    ChainState,
    ChartFigures,
    CheckpointSeen,
    ClusterState,
    FleetRows,
    IncidentRows,
    JobRows,
    NodeLife,
    NodeRows,
    OpenIncident,
    Page,
    PastFleet,
    Period,
    RestartOffer,
    RuleRecord,
    RunRecord,
    Standing,
    Stats,
)
from healer.ports.callers import Caller, Granted
from healer.ports.directory import SessionRow
from healer.ports.measurements import Devices
from healer.ports.queries import AuditQuery, IncidentQuery, Queries, RunQuery
from healer.ports.request_errors import Invalid
from healer.text import Said, read_said, say, to_stored, to_text
from tests.support import console_blocks, console_desk, console_stories, console_telemetry, console_tokens
from tests.support import console_sample as sample_data
from tests.support.console_sample import CLUSTER, NOW, Sample, shipped
from tests.support.recognised import as_said

CSRF = "csrf-of-the-test"


class SomeSessions:
    """`People`, as far as the page of sessions asks."""

    def sessions(self, now: datetime, *, name: str | None = None) -> list[SessionRow]:
        begun, ends = now - timedelta(hours=2), now + timedelta(hours=10)
        agent = "Mozilla/5.0 (X11; Linux x86_64) Firefox/140.0"
        made = [("aa11bb22cc33", "mara", agent), ("dd44ee55ff66", "jonas", "")]
        rows = [
            SessionRow(
                id=key,
                name=who,
                role=Role.operator,
                created_at=begun,
                seen_at=now,
                ends_at=ends,
                agent=browser,
            )
            for key, who, browser in made
        ]
        return [row for row in rows if name in (None, row.name)]


def make_sample(nodes: int = 32, *, past: int = 0, empty: bool = False) -> Sample:
    fleet = sample_data.nodes_of(nodes)
    jobs = sample_data.jobs_of(fleet)
    if not empty:
        lost = sample_data.digest(CLUSTER, "gpu-lost", sample_data.node_name(17), 1)[:8]
        stuck = sample_data.digest(CLUSTER, "gpu-fatal", sample_data.node_name(20), 5)[:8]
        set_state = sample_data.set_state
        set_state(
            fleet, 17, ("MIXED", "DRAIN"), f"healer:gpu-lost inc:{lost} Xid 79: GPU fell off the bus", "slurm"
        )
        set_state(
            fleet,
            20,
            ("IDLE", "DRAIN"),
            f"healer:gpu-fatal inc:{stuck} Xid 95: Uncontained memory error",
            "slurm",
        )
        set_state(fleet, 26, ("IDLE", "DRAIN"), "swap riser, back on Friday", "jonas")
        set_state(fleet, 30, ("IDLE", "DRAIN"), "Kill task failed", "root")
        set_state(fleet, 31, ("IDLE", "MAINTENANCE", "RESERVED"), "", "")
        set_state(fleet, 9, ("ALLOCATED",), "", "")
    stories = [] if empty else console_stories.stories(tuple(list(jobs)[:1]))
    details = {story.incident.id: story.detail() for story in stories}
    if not empty:
        slow = console_telemetry.slow_node(tuple(list(jobs)[:1]))
        details[slow.incident.id] = slow
    for old in console_blocks.history(past):
        details[old.incident.id] = old
    known = [detail.incident for detail in details.values()]
    models = {name: node.gpu_model for name, node in fleet.items()}
    for name, detail in details.items():
        alike = similar_to(detail.incident, known, lambda node: models.get(node, ""))
        details[name] = msgspec.structs.replace(detail, similar=tuple(alike))
    runs = {run.run.id: run for detail in details.values() for run in detail.runs}
    records = [record for detail in details.values() for record in detail.records]
    records.sort(key=lambda record: record.at)
    sealed = [
        msgspec.structs.replace(
            record, id=seq, seq=seq if seq < len(records) - 1 else None, hash=sample_data.digest("chain", seq)
        )
        for seq, record in enumerate(records, start=1)
    ]
    slots = tuple(
        Slot(
            cluster=CLUSTER,
            node=run.run.node or "",
            incident=run.run.incident,
            run=run.run.id,
            granted_at=NOW,
            unusable=index == 0,
        )
        for index, run in enumerate(runs.values())
        if run.run.state in (RunState.running, RunState.stuck) and not run.run.shadow
    )
    standing = Standing(
        cluster=CLUSTER,
        breaker=Breaker(cluster=CLUSTER),
        guards=GuardSettings(),
        default_mode=Mode.auto,
        snapshot=SlurmSnapshot(
            cluster=CLUSTER, taken_at=NOW - timedelta(seconds=1.8), nodes=fleet, jobs=jobs
        ),
        slots=slots,
        granted_last_hour=len(slots),
        rules=shipped(),
    )
    return Sample(
        standing=standing,
        details={name: as_said(detail) for name, detail in details.items()},
        runs={name: as_said(run) for name, run in runs.items()},
        records=sealed,
    )


class _Nouns:
    def __init__(self, sample: Sample) -> None:
        self.sample = sample

    @property
    def snapshot(self) -> SlurmSnapshot:
        return self.sample.standing.snapshot or SlurmSnapshot(cluster=CLUSTER, taken_at=NOW)

    @property
    def incidents(self) -> list[Incident]:
        """The newest first."""
        found = [detail.incident for detail in self.sample.details.values()]
        return sorted(found, key=lambda one: one.opened, reverse=True)


class SampleClusters(_Nouns):
    def names(self) -> list[str]:
        return [CLUSTER]

    def snapshots(self) -> dict[str, SlurmSnapshot]:
        return {CLUSTER: self.snapshot}

    def state(self, cluster: str, now: datetime) -> ClusterState:
        asking = [
            run.run for run in self.sample.runs.values() if asks(run.run) or run.run.state is RunState.held
        ]
        is_open = [one.incident for one in self.sample.details.values() if one.incident.is_open]
        return msgspec.structs.replace(
            self.sample.standing, open_incidents=tuple(map(_opened, is_open)), asking=tuple(asking)
        )

    def pauses(self, now: datetime) -> list[Pause]:
        return list(self.sample.standing.pauses)

    def breakers(self) -> list[Breaker]:
        return [self.sample.standing.breaker]


class SampleIncidents(_Nouns):
    def page(self, query: IncidentQuery, *, limit: int, cursor: str | None = None) -> Page[Incident]:
        return _page([one for one in self.incidents if _fits(one, query)], limit, cursor)

    def named(self, ids: Sequence[str]) -> list[Incident]:
        return [self.sample.details[name].incident for name in ids if name in self.sample.details]

    def find(self, incident: str) -> Incident | None:
        found = self.rows(incident)
        return found.incident if found else None

    def rows(self, incident: str) -> IncidentRows | None:
        found = [detail for key, detail in self.sample.details.items() if key.startswith(incident)]
        if len(found) != 1 or len(incident) < 8:
            return None
        known = [one.incident for one in self.sample.details.values()]
        parts = tuple(_opened(one) for one in known if one.merged_into == found[0].incident.id)
        return msgspec.structs.replace(
            found[0], merged=parts, alike=tuple(known), snapshot=self.sample.standing.snapshot
        )

    def cures(self, ids: Sequence[str]) -> dict[str, list[Verb]]:
        return {}


class SampleRuns(_Nouns):
    def page(self, query: RunQuery, *, limit: int, cursor: str | None = None) -> Page[Run]:
        rows = [detail.run for detail in self.sample.runs.values()]
        rows = [run for run in rows if not query.states or run.state in query.states]
        rows = [run for run in rows if query.node in (None, run.node)]
        rows = [run for run in rows if query.playbook in (None, run.playbook)]
        return _page(sorted(rows, key=lambda run: run.created_at, reverse=True), limit, cursor)

    def find(self, run: str) -> Run | None:
        return self.sample.runs[run].run if run in self.sample.runs else None

    def record(self, run: str) -> RunRecord | None:
        return self.sample.runs.get(run)

    def at_work(self, ids: Sequence[str]) -> dict[str, Run]:
        runs = [run.run for name in ids for run in self.sample.details[name].runs]
        return {run.incident: run for run in runs if run.incident and run.state not in ENDED_RUN_STATES}


class SampleNodes(_Nouns):
    def fleet(self, clusters: Sequence[str] | None, now: datetime) -> FleetRows:
        return FleetRows(snapshots={CLUSTER: self.snapshot})

    def rows(self, cluster: str, node: str, now: datetime) -> NodeRows | None:
        shown = self.snapshot.nodes.get(node)
        if shown is None:
            return None
        first = node == "gpu0001"
        return NodeRows(
            snapshot=self.snapshot,
            node=shown,
            history=tuple(one for one in self.incidents if node in {*one.nodes, one.root.node})[:50],
            inventory=_inventory(node) if first else None,
            lemon=self.lemons(cluster).get(node) if first else None,
            unusual=console_telemetry.unusual(cluster, node),
            standing=_standing(node) if first else None,
        )

    def past(self, cluster: str, at: datetime) -> PastFleet:
        """Two hours of history, in which one node was drained."""
        if not timedelta() <= NOW - at <= timedelta(hours=2):
            return PastFleet()
        was = [one.incident for one in self.sample.details.values() if one.incident.opened <= at]
        drained = NodeState(NodeCondition.drained, Holder.slurm, busy=False)
        return PastFleet(
            states=node_states(self.snapshot) | {"gpu0002": drained, "gone": drained},
            incidents=tuple(_opened(one) for one in was if one.closed is None or one.closed > at),
        )

    def life(self, cluster: str, node: str, since: datetime) -> NodeLife:
        found = tuple(one for one in self.incidents if node in {*one.nodes, one.root.node})
        return console_telemetry.life_of(cluster, node, found)

    def references(self, cluster: str) -> list[Reference]:
        return console_telemetry.references(cluster)

    def inventories(self, cluster: str) -> list[Inventory]:
        return [_inventory("gpu0001")]

    def measured(self, cluster: str, node: str) -> dict[str, float]:
        return {}

    def lemons(self, cluster: str) -> dict[str, LemonScore]:
        part = LemonPart(
            signal="faults", count=2.4, points=2.4, text=say("detection.lemon_part_faults", count=3)
        )
        known = {"gpu0001": 2.4, "gpu0009": 3.5}
        return {
            name: LemonScore(cluster=cluster, node=name, score=score, parts=(part,))
            for name, score in known.items()
        }


def _inventory(node: str) -> Inventory:
    """Of a node whose first minutes after boot last three minutes more."""
    booted = next(one for one in shipped().context if one.when is ContextKind.booted)
    return Inventory(
        node=node,
        at=NOW,
        facts={"driver": "570.86.15", "vbios": "96.00.99.00.01"},
        booted_at=NOW + timedelta(minutes=3 - booted.for_min),
    )


def _standing(node: str) -> NodeComparison:
    figure = {"at": NOW - timedelta(days=2), "nodes": 40}
    slow = FleetFigure(name="gemm_tflop_per_s", value=612, median=698, spread=7, low=True, **figure)
    well = FleetFigure(name="memory_gb_per_s", value=3990, median=4000, spread=20, **figure)
    return NodeComparison(cluster=CLUSTER, node=node, kind="h100", figures=(slow, well))


class SampleJobs(_Nouns):
    def rows(self, cluster: str, job: str) -> JobRows:
        return console_telemetry.job_rows(job, list(self.sample.details.values()), self.snapshot)

    def checkpoints(self, cluster: str, job: str) -> list[CheckpointSeen]:
        return list(self.rows(cluster, job).checkpoints)


class SampleRules(_Nouns):
    def records(
        self, cluster: str | None = None, *, fired_since: datetime | None = None
    ) -> dict[str, RuleRecord]:
        return console_telemetry.rule_records(shipped(), list(self.sample.details.values()))

    def trials(self, cluster: str | None = None) -> list[Trial]:
        return []


class SampleAudit(_Nouns):
    def page(self, query: AuditQuery, *, limit: int, cursor: str | None = None) -> Page[AuditRecord]:
        rows = [
            record
            for record in reversed(self.sample.records)
            if record.verb.startswith(query.verb)
            and record.subject.startswith(query.subject)
            and (not query.subjects or record.subject in query.subjects)
            and query.actor in ("", record.actor)
            and not record.verb.startswith(query.but or ("nothing begins so",))
            and (query.people_since is None or (record.actor != "healer" and record.at >= query.people_since))
        ]
        return _page(rows, limit, cursor)

    def chain(self, cluster: str) -> ChainState:
        sealed = [record for record in self.sample.records if record.seq is not None]
        last = sealed[-1] if sealed else None
        return ChainState(
            cluster=cluster,
            seq=(last.seq or 0) if last else 0,
            hash=(last.hash or "") if last else "",
            unsealed=len(self.sample.records) - len(sealed),
            checkpoint=Checkpoint(
                cluster=cluster, seq=last.seq or 0, hash=last.hash or "", at=NOW, key="k1", signature=""
            )
            if last
            else None,
        )


class SampleFigures(_Nouns):
    def stats(self, clusters: Sequence[str] | None, since: datetime | None) -> Stats:
        return self.period(CLUSTER, since or NOW - timedelta(days=365), NOW).stats

    def period(self, cluster: str, since: datetime, until: datetime) -> Period:
        return console_desk.period(since, until, [one.incident for one in self.sample.details.values()])

    def charts(self, cluster: str, buckets: Buckets, reviewed: Buckets) -> ChartFigures:
        known = [one.incident for one in self.sample.details.values()]
        return console_desk.chart_figures(buckets, reviewed, known)

    def gauges(self, now: datetime) -> dict[str, Any]:
        return {}


class SampleSignals(_Nouns):
    def node_signals(
        self, cluster: str, node: str, since: datetime
    ) -> tuple[list[Report], dict[int, Column]]:
        return console_telemetry.reports_of(node, since)

    def fleet_reports(
        self, cluster: str, nodes: Sequence[str], since: datetime
    ) -> tuple[list[Report], dict[int, Column]]:
        return console_telemetry.fleet_reports(nodes)

    def fleet_steps(self, cluster: str, jobs: Sequence[str], since: datetime) -> list[StepBatch]:
        return [batch for job in jobs for batch in self.job_steps(cluster, job, since)]

    def devices(self, cluster: str, since: datetime, *, limit: int, after: str = "") -> Devices:
        return Devices({}, {}, False)

    def heard(self, cluster: str, node: str, since: datetime) -> LastContact:
        return LastContact(heartbeat_at=NOW, lines_lost=3) if node == "gpu0001" else LastContact()

    def clock_skews(self, cluster: str, since: datetime) -> dict[str, float]:
        return {}

    def alerts(self, cluster: str, node: str, since: datetime) -> list[Observation]:
        return console_telemetry.alerts() if node == "gpu0001" else []

    def job_steps(self, cluster: str, job: str, since: datetime) -> list[StepBatch]:
        shown = self.snapshot.jobs.get(job)
        return console_telemetry.job_steps(job, shown.nodes) if shown else []

    def sampled_steps(self, cluster: str, job: str, moments: Sequence[datetime]) -> list[StepBatch]:
        return self.job_steps(cluster, job, min(moments))


def queries_of(sample: Sample) -> Queries:
    """What the pages read, of a sample in memory."""
    return Queries(
        clusters=SampleClusters(sample),
        incidents=SampleIncidents(sample),
        runs=SampleRuns(sample),
        nodes=SampleNodes(sample),
        jobs=SampleJobs(sample),
        rules=SampleRules(sample),
        audit=SampleAudit(sample),
        figures=SampleFigures(sample),
        signals=SampleSignals(sample),
    )


def standing_of(sample: Sample) -> Standing:
    state = queries_of(sample).clusters.state(CLUSTER, NOW)
    assert isinstance(state, Standing)
    return state


def _opened(incident: Incident) -> OpenIncident:
    return msgspec.convert(incident, OpenIncident, from_attributes=True, dec_hook=read_said)


def _fits(incident: Incident, query: IncidentQuery) -> bool:
    nodes = {*incident.nodes, incident.root.node}
    parts = (incident.id, incident.title, incident.rule, incident.fault, *filter(None, nodes))
    text = " ".join(parts).lower()
    return (
        query.open in (None, incident.is_open)
        and (not query.states or incident.state in query.states)
        and (not query.severities or incident.severity in query.severities)
        and (query.node is None or query.node in nodes)
        and (
            query.closed_since is None
            or (incident.closed is not None and incident.closed >= query.closed_since)
        )
        and query.text.lower() in f"{text} {' '.join(incident.jobs_hit)}"
    )


def _page(rows: list[Any], limit: int, cursor: str | None) -> Page[Any]:
    try:
        start = int(cursor or 0)
    except ValueError as error:
        raise Invalid("cursor", "no number") from error
    more = start + limit < len(rows)
    return Page(items=rows[start : start + limit], next_cursor=str(start + limit) if more else None)


#: Signs the links of messages.
LINK_SECRET = "a secret of the site's own, long enough"


class _HeadMode(dict[str, Mode]):
    """The head of the pages shows mode auto, while the rules stand as their files say."""

    def get(self, cluster: str, default: Any = None) -> Any:
        return Mode.auto


class _Speaking:
    """Chooses the language, as the Edge of the API does."""

    def __init__(self, app: ASGIApp) -> None:
        self._app = app

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] == "http":
            speak_to(Request(scope))
        await self._app(scope, receive, send)


class Site:
    """The application and what was pressed in it. `say` sends an event to every open page."""

    def __init__(
        self,
        sample: Sample,
        *,
        role: Role = Role.admin,
        clock: Callable[[], datetime] | None = None,
        others: Sequence[str] = (),
    ):
        """`others`: clusters beside the sample's."""
        self.sample = sample
        self.role = role
        #: What mara may do where, for a person whom an identity provider knows.
        self.granted: Granted | None = None
        #: The one cluster of mara's token.
        self.bound_to: str | None = None
        #: Why mara may not approve a run.
        self.bars: Callable[[Run], Said | None] = nothing_bars
        self.pressed: list[tuple[str, dict[str, Any], dict[str, str]]] = []
        self.refuse: dict[str, Any] | None = None
        self.tokens = {"good"}
        self.ended: list[str] = []
        self.own = console_desk.own()
        self._listeners: set[tuple[asyncio.AbstractEventLoop, asyncio.Queue[str]]] = set()
        self.app = FastAPI(redirect_slashes=False)
        self.app.state.site = SiteNames(any_host=True)
        self.app.add_middleware(_Speaking)
        self.queries = queries_of(sample)
        pages = Pages(
            Sources(
                queries=self.queries,
                rules=self._rules,
                rules_error=lambda: sample.standing.rules_error,
                clock=clock or (lambda: NOW),
                unknown=lambda cluster, limit: console_telemetry.unknown_series()[:limit],
                arriving=lambda cluster, limit: console_telemetry.arriving(),
                bars=lambda by: self.bars,
                modes=_HeadMode(dict.fromkeys(others, Mode.auto)),
                cases=lambda: {shipped().rules[0].name: 3},
                self_health=lambda _: self.own,
                leavers=console_tokens.leavers(self.queries, NOW),
            ),
            self,
            link_secret=LINK_SECRET,
            people=cast(Any, SomeSessions()),
        )
        self.console = Console(pages)
        self.app.include_router(self.console)
        problems.install(self.app, "/api/v1").page = self.console.error_page
        self.app.get("/api/v1/events/stream")(self._stream)
        self.app.get("/api/v1/audit/verify")(lambda: {"ok": True, "broken": []})
        self.app.post("/api/v1/{path:path}")(self._press)
        self.app.delete("/api/v1/{path:path}")(self._press)

    def _rules(self) -> Ruleset:
        return msgspec.structs.replace(shipped(), guards=self.sample.standing.guards)

    def session(self, cookie: str, address: str) -> Caller | None:
        mara = Caller(
            id="mara", name="mara", role=self.role, csrf=CSRF, granted=self.granted, cluster=self.bound_to
        )
        return mara if cookie == "cookie-good" else None

    def job_owner(self, cookie: str, address: str) -> Caller | None:
        return Caller(id="ann", name="ann", role=self.role) if cookie == "cookie-owner" else None

    def sign_in(self, token: str, address: str) -> str | None:
        if token not in self.tokens:
            return None
        self.tokens.discard(token)
        return "cookie-good"

    def sign_out(self, cookie: str) -> None:
        self.ended.append(cookie)

    async def _press(self, path: str, request: Request) -> Response:
        body = json.loads(await request.body() or b"{}")
        dry = request.query_params.get("dry_run") == "true"
        self.pressed.append(
            (f"{request.method} {request.url.path}{'?dry_run' if dry else ''}", body, dict(request.headers))
        )
        if request.headers.get("x-healer-csrf") != CSRF:
            return JSONResponse({"title": "CSRF", "status": 403, "code": "csrf"}, 403)
        if dry:
            return JSONResponse(DRY_RUN)
        if self.refuse is not None:
            refused = msgspec.json.encode(self.refuse, enc_hook=to_text)
            return Response(refused, 409, media_type="application/problem+json")
        taken = self._taken(path, body)
        if taken is not None:
            return JSONResponse(to_stored(taken))
        return JSONResponse({"id": "run-1", "state": "running"}, 202)

    def _taken(self, path: str, body: dict[str, Any]) -> Incident | None:
        """The incident as it is now, where a person's word of it is one that the pages show at once."""
        name, _, verb = path.removeprefix("incidents/").partition("/")
        change: dict[str, Any] = {}
        if verb == "acknowledge":
            change = {"acknowledged_by": "mara"}
        elif verb == "merge":
            change = {"state": IncidentState.resolved, "closed": NOW, "merged_into": body["into"]}
        detail = self.sample.details.get(name)
        if detail is None or not change:
            return None
        incident = msgspec.structs.replace(detail.incident, **change)
        self.sample.details[name] = msgspec.structs.replace(detail, incident=incident)
        return incident

    def say(self, event: str, data: dict[str, Any]) -> None:
        for loop, queue in list(self._listeners):
            loop.call_soon_threadsafe(queue.put_nowait, f"event: {event}\ndata: {json.dumps(data)}\n\n")

    async def _stream(self, request: Request) -> StreamingResponse:
        async def body() -> AsyncIterator[str]:
            me = (asyncio.get_running_loop(), asyncio.Queue[str]())
            self._listeners.add(me)
            try:
                yield ": hello\n\n"
                while True:
                    yield await me[1].get()
            finally:
                self._listeners.discard(me)

        return StreamingResponse(
            body(), media_type="text/event-stream", headers={"Cache-Control": "no-store"}
        )


DRY_RUN: dict[str, Any] = {
    "playbook": "drain-reboot-verify",
    "outcome": "act",
    "plan": [
        {"id": "drain", "title": "Drain the node", "do": "drain"},
        {"id": "list-jobs", "title": "List the affected jobs", "check": "jobs_hit"},
        {"id": "requeue", "title": "Requeue each job hit", "do": "requeue"},
        {"id": "wait-drained", "title": "Wait until no job is on the node", "wait": "drained"},
        {"id": "reboot", "title": "Reboot through Slurm", "do": "reboot"},
        {"id": "verify", "title": "Prove it: dcgmi diag -r 2", "do": "diagnose"},
    ],
    "answers": [
        {"guard": "breaker", "kind": "allow", "why": "Breaker is closed.", "used": 1, "limit": 5},
        {
            "guard": "slots",
            "kind": "allow",
            "why": "2 slots held, 10 allowed at once.",
            "used": 2,
            "limit": 10,
        },
        {
            "guard": "floor",
            "kind": "allow",
            "why": "29 nodes would stay in service; 28 must.",
            "used": 29,
            "limit": 28,
        },
    ],
    "jobs_hit": ["4711"],
    "restarts": to_stored(
        [
            RestartOffer(
                job="4711", restarts=2, name="train", user="alice", nodes=16, possible=True, why="allowed"
            ),
            RestartOffer(
                job="4712",
                restarts=0,
                name="shell",
                user="bob",
                nodes=1,
                possible=False,
                why="Job 4712 is no batch job.",
            ),
        ]
    ),
}


def main() -> None:
    import argparse

    import uvicorn

    parser = argparse.ArgumentParser()
    parser.add_argument("--nodes", type=int, default=32)
    parser.add_argument("--port", type=int, default=8099)
    parser.add_argument("--past", type=int, default=0)
    parser.add_argument("--empty", action="store_true")
    parser.add_argument("--storm", action="store_true")
    parser.add_argument("--role", default="admin")
    options = parser.parse_args()
    sample = make_sample(options.nodes, past=options.past, empty=options.empty)
    if options.storm:
        sample_data.storm(sample)
    site = Site(sample, role=Role(options.role))
    print(f"http://127.0.0.1:{options.port}/sign-in?token=good", flush=True)
    uvicorn.run(site.app, host="127.0.0.1", port=options.port, log_level="warning")


if __name__ == "__main__":
    main()
