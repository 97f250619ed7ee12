"""Measured signals, step times and rules of the sample cluster, all from one seed."""

import math
import random
from collections.abc import Sequence
from datetime import datetime, timedelta

import msgspec
import numpy as np

from healer.engine.records import IncidentRecord
from healer.model import (
    Cause,
    Column,
    Component,
    FaultBurst,
    FaultClass,
    Incident,
    IncidentState,
    Loss,
    LossReason,
    Mode,
    Observation,
    Outcome,
    Part,
    Reference,
    Remedy,
    Ruleset,
    RunState,
    Sender,
    Sense,
    Severity,
    SlurmSnapshot,
    UnknownSeries,
    Verdict,
)
from healer.model.detection import Chart, ChartLine, ChartMark, Contribution, Evidence, Finding
from healer.model.faults import REPLACED
from healer.model.goodput import Spent
from healer.model.telemetry import FeatureShare, Report, ScorerResult, StepBatch, Unusual
from healer.ports.answers import (
    Arriving,
    CheckpointSeen,
    GoodputSum,
    HeardSender,
    JobErrors,
    JobRows,
    NodeLife,
    NodeStep,
    OutOfService,
    Queue,
    Requeue,
    RuleRecord,
    SendersHeard,
)
from healer.signals.alert_bodies import Site, alertmanager_observations
from healer.text import Said, joined, quoted, say
from tests.support.console_sample import CLUSTER, NOW, Story, digest, milliseconds, node_name

#: The node whose GPU 5 throttles, and when that began.
SLOW_NODE = node_name(7)
SLOW_GPU = 5
BEGAN = NOW - timedelta(minutes=14)
FOUND = BEGAN + timedelta(minutes=2, seconds=10)
_SLOT_S = 5


def alerts() -> list[Observation]:
    """What fires on a node: one with a rule, others without, floods of them too."""
    described = [
        ("NodeClockNotSynchronising", "Clock not synchronised."),
        ("TeamDiskQuota", "Home is <nearly> full."),
        *(("TeamFlood", f"flood {number}") for number in range(30)),
        *((f"Team{number}", "one of many") for number in range(30)),
    ]
    group = {
        "version": "4",
        "alerts": [
            {
                "status": "firing",
                "labels": {"alertname": name, "instance": f"{node_name(1)}:9100"},
                "annotations": {"summary": summary},
                "startsAt": (NOW - timedelta(minutes=9)).isoformat(),
                "fingerprint": f"{number:016x}",
                "generatorURL": "https://prometheus.example/graph?g0.expr=1",
            }
            for number, (name, summary) in enumerate(described)
        ],
    }
    site = Site(CLUSTER, (CLUSTER,), lambda _, node: node == node_name(1), lambda *_: False)
    return list(alertmanager_observations(group, site, NOW - timedelta(minutes=8)).observations)


def clock_mhz(gpu: int, at: datetime, rng: random.Random) -> float:
    slow = gpu == SLOW_GPU and at >= BEGAN and at < NOW - timedelta(minutes=3)
    return round((1290 if slow else 1755) + rng.gauss(0, 9))


def clock_chart() -> Chart:
    rng = random.Random(3)
    start = FOUND - timedelta(minutes=15)
    times = [start + timedelta(seconds=_SLOT_S * slot) for slot in range(180)]
    own = tuple(clock_mhz(SLOW_GPU, at, rng) if slot not in range(60, 66) else None
                for slot, at in enumerate(times))  # fmt: skip
    peers = tuple(1755 + 6 * math.sin(slot / 9) for slot in range(180))
    return Chart(
        title=f"SM clock, {SLOW_NODE} GPU {SLOW_GPU}",
        unit="MHz",
        times=tuple(at.timestamp() for at in times),
        lines=(
            ChartLine(label="GPU 5", role="own", values=own),
            ChartLine(label="peers (7 GPUs)", role="peers", values=peers),
            ChartLine(label="peers, 10%", role="low", values=tuple(one - 32 for one in peers)),
            ChartLine(label="peers, 90%", role="high", values=tuple(one + 24 for one in peers)),
            ChartLine(label="limit", role="threshold", values=tuple(one * 0.85 for one in peers)),
        ),
        marks=(ChartMark(at=BEGAN, label="began"),),
        signal="sm_clock_mhz",
        node=SLOW_NODE,
        gpu=SLOW_GPU,
    )


def temperature_chart() -> Chart:
    rng = random.Random(4)
    start = FOUND - timedelta(minutes=15)
    times = tuple((start + timedelta(seconds=_SLOT_S * slot)).timestamp() for slot in range(180))
    rise = [max(0.0, min(1.0, (slot - 130) / 25)) for slot in range(180)]
    return Chart(
        title=f"GPU temperature, {SLOW_NODE} GPU {SLOW_GPU}",
        unit="°C",
        times=times,
        lines=(
            ChartLine(label="GPU 5", role="own",
                      values=tuple(round(63 + 25 * share + rng.random()) for share in rise)),
            ChartLine(label="peers (7 GPUs)", role="peers", values=(62.0,) * 180),
            ChartLine(label="peers, 10%", role="low", values=(57.0,) * 180),
            ChartLine(label="peers, 90%", role="high", values=(67.5,) * 180),
            ChartLine(label="limit", role="threshold", values=(87.0,) * 180),
        ),
        marks=(ChartMark(at=BEGAN, label="began"),),
        signal="gpu_temp_c",
        node=SLOW_NODE,
        gpu=SLOW_GPU,
    )  # fmt: skip


def ratio_chart() -> Chart:
    rng = random.Random(5)
    steps = range(12_400, 12_500)
    own = tuple(round(1 + (0.18 if step >= 12_460 else 0) + rng.gauss(0, 0.004), 4) for step in steps)
    return Chart(
        title="Compute per unit of work, ratio to the peers' median",
        unit="ratio",
        x="step",
        times=tuple(float(step) for step in steps),
        lines=(
            ChartLine(label="rank 53", role="own", values=own),
            ChartLine(label="peers (63 ranks)", role="peers", values=(1.0,) * 100),
            ChartLine(label="peers, 10%", role="low", values=(0.994,) * 100),
            ChartLine(label="peers, 90%", role="high", values=(1.006,) * 100),
            ChartLine(label="too slow", role="threshold", values=(1.02,) * 100),
        ),
        node=SLOW_NODE,
        gpu=SLOW_GPU,
    )


def clock_text() -> Said:
    """As the detector says what a rule measured."""
    clock = say("detection.figure", label=quoted("SM clock"), value="1290 MHz")
    peers = say("detection.of_peers", value="1755 MHz")
    use = say("detection.figure", label=quoted("GPU utilization"), value="98%")
    text = say(
        "detection.told",
        head=quoted("GPU clock 15% below its peers under high load"),
        text=joined((say("detection.noted", text=clock, note=peers), use), "comma"),
    )
    return say("detection.lasted", text=text, span=say("words.minutes", n=2))


def _finding(fault: str, sense: Sense, at: datetime, text: str, **fields: object) -> Finding:
    place = Component(cluster=CLUSTER, node=SLOW_NODE, gpu=SLOW_GPU)
    return Finding(
        rule=fault,
        fault=fault,
        fault_class=FaultClass.degraded,
        component=place,
        at=at,
        arrived_at=at + timedelta(seconds=1),
        text=text,
        confidence=0.9,
        evidence=(
            Evidence(digest=digest(fault, at), at=at, component=place, text=text, sense=sense),
        ),
        **fields,  # type: ignore[arg-type]
    )  # fmt: skip


def slow_node(jobs: tuple[str, ...]) -> IncidentRecord:
    """A node found slow by two senses, drained when its job had ended."""
    story = Story(
        40,
        "straggler",
        "straggler",
        SLOW_NODE,
        minutes_ago=(NOW - FOUND).total_seconds() / 60,
        gpu=SLOW_GPU,
        fault_class=FaultClass.degraded,
        title="GPU 18% slower than its peers in job 4711",
        severity=Severity.P2,
        state=IncidentState.mitigating,
        cause=Cause.unclear,
        remedy=(Remedy.diagnose, Remedy.ticket),
        nodes={SLOW_NODE: Verdict.suspect},
        jobs_hit=jobs,
    )
    story.decide(31_000, Outcome.act, "Starting slow-node on gpu0007: every guard allows it.")
    story.run(
        "slow-node",
        RunState.running,
        [
            (31_020, "wait-job", "waiting", "job 4711: its next durable checkpoint, or its end", 1),
            (400_000, "wait-job", "done", "Slurm still shows work on gpu0007: it must be empty first.", 1),
            (400_010, "drain", "started", "", 1),
            (400_090, "drain", "done", "Drained: healer:straggler", 1),
        ],
        ms=31_010,
    )
    story.findings = (
        _finding(
            "gpu-clock-low", Sense.metrics, FOUND,
            clock_text(),
            charts=(clock_chart(), temperature_chart()),
        ),
        _finding(
            "straggler", Sense.step_times, FOUND + timedelta(seconds=20),
            "rank 53 on gpu0007 GPU 5: 18% more compute per unit of work than its stage for 6 steps, "
            "since step 12460; job 4711 waits for it",
            charts=(ratio_chart(),),
        ),
        _finding(
            "unusual-node", Sense.forest, FOUND + timedelta(minutes=4),
            "gpu0007 is unusual among 31 busy nodes: score 0.71, threshold 0.62, "
            "since 03:01:20 UTC; gpu power -0.26, peers 0.004; gpu use, mean 25.1, peers 0.3",
            contributions=(
                Contribution(feature="sm_clock_worst", share=0.46, value=-0.26, peers=0.004),
                Contribution(feature="gpu_temp_worst", share=0.31, value=25.1, peers=0.3),
                Contribution(feature="power_worst", share=0.12, value=-0.19, peers=0.01),
            ),
        ),
    )  # fmt: skip
    return story.detail()


#: Signal -> (of GPU, value of GPU `n` at `t`).
def _values(gpu: int, at: datetime, rng: random.Random) -> dict[str, float]:
    hot = gpu == SLOW_GPU and BEGAN <= at < NOW - timedelta(minutes=3)
    return {
        "gpu_temp_c": round((88 if hot else 60 + gpu % 3) + rng.random()),
        "memory_temp_c": round((94 if hot else 71) + rng.random()),
        "gpu_util_percent": 98 if rng.random() < 0.9 else 91,
        "power_w": round((520 if hot else 655) + rng.gauss(0, 8), 1),
        "sm_clock_mhz": clock_mhz(gpu, at, rng),
        "ecc_sbe_volatile_total": 3 if gpu == 2 else 0,
        "ecc_dbe_volatile_total": 0,
        "row_remap_uncorrectable_rows": 1 if gpu == 2 else 0,
        "row_remap_pending": int(gpu == 6),
        "row_remap_failed": 0,
        "clock_event_reasons": 0x60 if hot else 0x4,
    }


def reports_of(node: str, since: datetime) -> tuple[list[Report], dict[int, Column]]:
    """15 s between reports, nothing of nodes whose number ends in 3."""
    if node.endswith("3"):
        return [], {}
    rng = random.Random(node)
    columns: dict[Column, int] = {}
    found: list[Report] = []
    at = max(since, NOW - timedelta(minutes=60))
    at = NOW - timedelta(seconds=15 * int((NOW - at).total_seconds() // 15))
    while at <= NOW:
        slow = node == SLOW_NODE
        cells: list[tuple[Column, float]] = []
        for gpu in range(8):
            for name, value in _values(gpu if slow or gpu != SLOW_GPU else 4, at, rng).items():
                # GPU 6 of the slow node stopped reporting its memory's temperature four minutes ago.
                if not (slow and gpu == 6 and name == "memory_temp_c" and at > NOW - timedelta(minutes=4)):
                    cells.append((Column(name, Part(gpu=gpu)), value))
        seconds = (at - NOW).total_seconds() + 3600
        cells += [
            (Column("load1"), round(30 + rng.random(), 2)),
            (Column("ib_symbol_error_total", Part(port="mlx5_0/1")), float(int(seconds / 20) if slow else 4)),
            (Column("ib_rcv_bytes_total", Part(port="mlx5_0/1")), seconds * 1e9),
            (
                Column("nvlink_link_replay_total", Part(gpu=5, link=11)),
                float(int(seconds / 90) if slow else 0),
            ),
            (Column("net_up", Part(port="eth0")), 1.0),
        ]
        numbers = [columns.setdefault(column, len(columns)) for column, _ in cells]
        values = np.array([value for _, value in cells])
        found.append(Report(CLUSTER, node, at, at + milliseconds(40), np.array(numbers, np.int32), values))
        at += timedelta(seconds=15)
    return found, {number: one for one, number in columns.items()}


def steps_of(
    job: str, nodes: tuple[str, ...], *, ranks_per_node: int = 8, steps: int = 180, stages: int = 1,
    whole_only: bool = False,
) -> list[StepBatch]:  # fmt: skip
    """Equal work of 5 s a step; the rank on SLOW_GPU of SLOW_NODE needs 18% more from step 120 on."""
    rng = np.random.default_rng(int(job) if job.isdigit() else 1)
    ranks = np.arange(len(nodes) * ranks_per_node, dtype=np.int32)
    found = []
    for index in range(steps):
        step = 12_340 + index
        compute = 4.1 * (1 + rng.normal(0, 0.004, len(ranks)))
        stage = ranks * stages // len(ranks)
        compute *= 1 + 0.12 * stage
        if SLOW_NODE in nodes and index >= 120:
            compute[nodes.index(SLOW_NODE) * ranks_per_node + SLOW_GPU % ranks_per_node] *= 1.18
        whole = np.full(len(ranks), compute.max() + 0.5 + (3.0 if step % 60 == 0 else 0))
        blank = np.full(len(ranks), np.nan)
        at = (NOW - timedelta(seconds=5.2 * (steps - index))).timestamp()
        found.append(
            StepBatch(
                cluster=CLUSTER, job=job, restart=0, arrived_at=NOW, nodes=nodes, rank=ranks,
                step=np.full(len(ranks), step, np.int64), at=np.full(len(ranks), at),
                node=(ranks // ranks_per_node).astype(np.int32),
                gpu=(ranks % ranks_per_node).astype(np.int32), stage=stage.astype(np.int32),
                step_s=whole, compute_s=blank if whole_only else compute,
                comm_s=blank if whole_only else whole - compute, data_s=blank,
                work=blank if whole_only else np.full(len(ranks), 8192.0), loss=blank, grad_norm=blank,
            )
        )  # fmt: skip
    return found


def job_steps(job: str, nodes: tuple[str, ...]) -> list[StepBatch]:
    """The first job reports all, the second only whole steps, the third is large, the fourth reports
    nothing."""
    match int(job) % 4:
        case 3:
            return steps_of(job, nodes, stages=2)
        case 0:
            return steps_of(job, nodes, whole_only=True)
        case 1:
            return steps_of(job, nodes, ranks_per_node=96)
    return []


ERRORS = JobErrors(
    fault="xid-45",
    lines=1232,
    nodes=3,
    node="gpu0007",
    since=NOW - timedelta(minutes=4),
    until=NOW - timedelta(minutes=3),
)


SPENT = tuple(
    GoodputSum(name=cause, partition="train", spent=spent, gpu_hours=hours)
    for cause, spent, hours in (
        ("", Spent.productive, 1204.5),
        ("xid-79", Spent.lost, 64.0),
        ("xid-79", Spent.hung, 3.25),
        ("", Spent.starting, 12.0),
        ("", Spent.queued, 8.5),
    )
)


def job_rows(job: str, details: list[IncidentRecord], snapshot: SlurmSnapshot) -> JobRows:
    hit = [one.incident for one in details if job in one.incident.jobs_hit]
    seen = tuple(
        CheckpointSeen(
            at=NOW - timedelta(seconds=5.2 * (180 - step)), step=12_340 + step, durable=step != 140
        )
        for step in (20, 80, 140)
    )
    return JobRows(
        snapshot=snapshot,
        incidents=tuple(sorted(hit, key=lambda one: one.opened, reverse=True)),
        requeues=(Requeue(at=NOW - timedelta(minutes=3), restarts=1, incident=hit[0].id),) if hit else (),
        errors=(ERRORS,) if job == "4711" else (),
        checkpoints=seen if job == "4711" else (),
        goodput=SPENT if job == "4711" else (),
    )


def life_of(cluster: str, node: str, incidents: tuple[Incident, ...]) -> NodeLife:
    """A node that was out of service twice, once for a new GPU."""
    first, second = NOW - timedelta(days=200), NOW - timedelta(days=40)
    return NodeLife(
        incidents=tuple(sorted(incidents, key=lambda one: one.opened)),
        outs=(
            OutOfService(drained_at=first, released_at=first + timedelta(days=6)),
            OutOfService(drained_at=second, released_at=second + timedelta(hours=2)),
        ),
        steps=(
            NodeStep(at=first + timedelta(hours=1), verb="ticket", run="run-1"),
            NodeStep(at=first + timedelta(days=6), verb="resume", run="run-1"),
            NodeStep(at=second + timedelta(hours=1), verb="reboot", run="run-2"),
            NodeStep(at=second + timedelta(hours=2), verb="resume", run="run-2"),
        ),
        parts=(
            FaultBurst(
                cluster=cluster,
                node=node,
                part="GPU-5f1e",
                fault=REPLACED,
                pci="0000:9b:00",
                fault_class=FaultClass.informational,
                began_at=first + timedelta(days=5),
                last_at=first + timedelta(days=5),
            ),
        ),
    )


def rule_records(rules: Ruleset, details: list[IncidentRecord]) -> dict[str, RuleRecord]:
    records: dict[str, RuleRecord] = {}
    for detail in sorted(details, key=lambda one: one.incident.opened):
        one, before = detail.incident, records.get(detail.incident.rule, RuleRecord())
        records[one.rule] = RuleRecord(
            last_at=one.opened,
            last_incident=one.id,
            open=before.open + one.is_open,
            fired=before.fired + (one.opened > NOW - timedelta(days=7)),
        )
    first = rules.rules[0].name
    changed = msgspec.structs.replace(
        records.get(first, RuleRecord()), mode=Mode.approve, mode_by="mara", mode_at=NOW - timedelta(days=2)
    )
    return records | {first: changed}


def unknown_series() -> list[UnknownSeries]:
    new = say("signals.not_in_catalogue")
    return [
        UnknownSeries(
            cluster=CLUSTER, name=name, why=why, count=count, example=example,
            first_seen=NOW - timedelta(days=3), last_seen=NOW - timedelta(seconds=7),
        )
        for name, why, count, example in (
            ("DCGM_FI_DEV_NEW_THING", new, 412_000, {"gpu": "3", "Hostname": "gpu0007"}),
            ("<script>alert(1)</script>", new, 12, {}),
            ("DCGM_FI_DEV_GPU_TEMP", say("signals.no_such_node"), 60, {"Hostname": "elsewhere-01"}),
        )
    ]  # fmt: skip


def arriving() -> Arriving:
    """A whole-cluster sender, nodes, one that fell silent; each reason of a loss."""

    def sender(who: str, source: str, ago_s: float, *, node: str = "") -> Sender:
        return Sender(
            cluster=CLUSTER, who=who, source=source, node=node, requests=17_280, bytes=412_000_000,
            first_seen=NOW - timedelta(days=3), last_seen=NOW - timedelta(seconds=ago_s),
        )  # fmt: skip

    losses = [
        Loss(
            cluster=CLUSTER, source="metrics" if number % 2 else "prometheus/write", reason=reason,
            who="prometheus" if number % 3 else "", count=7 ** (number % 6), example="time: older",
            first_seen=NOW - timedelta(days=2), last_seen=NOW - timedelta(minutes=97 * number),
        )
        for number, reason in enumerate(LossReason)
    ]  # fmt: skip
    senders = [
        sender("prometheus", "prometheus/write", 3),
        sender("node pod1/gpu0007", "kernel-log", 8, node="gpu0007"),
        sender("node pod1/gpu0007", "heartbeat", 9, node="gpu0007"),
        sender("<script>alert(1)</script>", "logs", 60),
        sender("alertmanager", "alertmanager", 5_400),
        sender(f"job {CLUSTER}/4711", "step-times", 5_400),
    ]
    queues = [
        Queue("events", 0, 50_000, "entries"),
        Queue("steps", 9_000_000, 16 * 2**20, "bytes"),
        Queue("metrics", 63 * 2**20, 64 * 2**20, "bytes"),
    ]
    heard = [HeardSender(each, each.who == "alertmanager") for each in senders]
    heard.sort(key=lambda each: not each.silent)
    return Arriving(losses, SendersHeard(len({each.who for each in senders}), 1, heard), queues)


def references(cluster: str) -> list[Reference]:
    return [
        Reference(
            cluster=cluster, kind="h100", node="gpu0002", at=NOW, by="ann", facts={"driver": "580.65.06"}
        )
    ]


def unusual(cluster: str, node: str) -> Unusual | None:
    """One node that its class's model has scored."""
    if node != "gpu0001":
        return None
    parts = (
        FeatureShare(feature="SM clock, slowest; own past", share=0.41, away=-6.8),
        FeatureShare(feature="gpu temperature, hottest", share=0.22, away=2.3),
    )
    result = ScorerResult(way="forest", score=0.71, threshold=0.62, middle=0.41, parts=parts)
    return Unusual(
        cluster=cluster,
        node=node,
        at=NOW - timedelta(minutes=2),
        hardware="h100",
        load="busy",
        model="4f1c09d2a77be0",
        scored=96,
        ways=(result,),
    )


def fleet_reports(nodes: Sequence[str]) -> tuple[list[Report], dict[int, Column]]:
    """Of all nodes but each tenth: eight GPUs; the slow node's fifth is at 91 °C and held down by it, and its
    last reports nothing."""
    names = ("gpu_temp_c", "clock_event_reasons")
    columns = [Column(name, Part(gpu=gpu)) for name in names for gpu in range(8)]
    numbers = np.arange(len(columns), dtype=np.int32)
    found = []
    for number, node in enumerate(nodes):
        temperature = [48.0 + (number * 7 + gpu * 5) % 34 for gpu in range(8)]
        reasons = [4.0 if value > 78 else 1.0 for value in temperature]
        if node == SLOW_NODE:
            temperature[5], temperature[7], reasons[5], reasons[7] = 91.0, np.nan, 64.0, np.nan
        if number % 10:
            found.append(Report(CLUSTER, node, NOW, NOW, numbers, np.array(temperature + reasons)))
    return found, dict(enumerate(columns))
