"""The report of `benchmarks/slurm_day.py`: each stage's time, what has to be 0, and what slurmctld felt."""

import json
import re
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from datetime import datetime
from functools import cached_property
from pathlib import Path
from typing import Any, NamedTuple

from benchmarks import _day_slurm
from benchmarks._day_nodes import Breaking, Followers, Node
from benchmarks._day_slurm import Counted, Rpcs
from benchmarks._load import cpu_s, memory_mib, processes_of, quantile
from healer.embedded.embedded_slurm import RealSlurm
from healer.model.hostlist import expand
from healer.model.run import StepEvent
from tests.support.site import Site

#: healer's share of slurmctld's requests.
SHARE_GOAL = 0.05
#: Guards that are caps.
CAPS = frozenset({"floor", "slots", "hourly", "rack", "switch", "partition", "breaker", "cooldown"})
#: An incident that opens so long after a line comes of something else.
OF_LINE_S = 60.0
#: A run that is due for so long, and that no worker took, is stuck too.
OVERDUE_S = 60
#: States of jobs in Slurm's record that are no loss.
_GOOD_ENDS = frozenset({"COMPLETED", "REQUEUED", "PENDING"})
_SET = re.compile(
    r"^\[(\S+)\] update_node: node (\S+) (?:reason set to: (.*)|state set to (DRAIN)\w*)", re.MULTILINE
)


@dataclass
class Window:
    """A span of time, in seconds since 1970, and what slurmctld counted in it."""

    since: float
    until: float = 0.0
    counted: Counted = field(default_factory=lambda: Counted({}, {}))


class Drain(NamedTuple):
    at: float
    node: str
    reason: str


def drains(log: str) -> Iterator[Drain]:
    """healer's, by slurmctld's own log: a drain whose last reason is healer's."""
    reasons: dict[str, str] = {}
    for stamp, node, reason, drained in _SET.findall(log):
        if not drained:
            reasons[node] = reason
        elif reasons.get(node, "").startswith("healer:"):
            yield Drain(datetime.fromisoformat(stamp).timestamp(), node, reasons[node])


class Step(NamedTuple):
    run: str
    step: str
    event: str
    at: float
    guard: str


class Run(NamedTuple):
    id: str
    playbook: str
    node: str
    incident: str
    state: str
    by: str
    question: str


# Wide: what the day was made of, and what is read from its database once it is over.
@dataclass
class Ended:
    """The day is over; healer and Slurm still run."""

    site: Site
    slurm: RealSlurm
    folder: Path
    without: Window
    healed: Window
    followers: Followers
    breaking: Breaking
    nodes: dict[str, Node]
    cpu_before: dict[str, float]

    @cached_property
    def drains(self) -> list[Drain]:
        return list(drains(self.slurm.slurmctld_log.read_text(errors="replace")))

    @cached_property
    def runs(self) -> dict[str, Run]:
        rows = self.site.sql(
            "SELECT id, playbook, coalesce(node, ''), coalesce(incident, ''), state, "
            "doc ->> 'by', coalesce(doc ->> 'question', '') FROM runs ORDER BY created_at"
        )
        return {row[0]: Run(*row) for row in rows}

    @cached_property
    def steps(self) -> dict[str, list[Step]]:
        """Each run's log, in its order."""
        rows = self.site.sql(
            "SELECT run, step, event, extract(epoch FROM at)::float8, "
            "coalesce(doc -> 'data' ->> 'guard', '') FROM run_log ORDER BY seq"
        )
        found: dict[str, list[Step]] = {run: [] for run in self.runs}
        for row in rows:
            found[row[0]].append(Step(*row))
        return found

    @cached_property
    def incidents(self) -> dict[str, tuple[str, float, str]]:
        """Node, moment and rule by id; those of nodes alone."""
        rows = self.site.sql(
            "SELECT id, node, extract(epoch FROM opened)::float8, rule FROM incidents WHERE node IS NOT NULL"
        )
        return {row[0]: (row[1], row[2], row[3]) for row in rows}

    @cached_property
    def answered(self) -> dict[str, float]:
        """Incident -> when the line that it came of was answered with 202."""
        found: dict[str, float] = {}
        for incident, (node, opened, _) in self.incidents.items():
            # A line is in the inbox before its answer is on its way.
            lines = [
                answer.answered
                for answer in self.followers.answers
                if answer.node == node and answer.sent <= opened < answer.answered + OF_LINE_S
            ]
            if lines:
                found[incident] = max(lines)
        return found


# --- stages ---


def stages(day: Ended) -> dict[str, list[float]]:
    answers = [answer.answered - answer.sent for answer in day.followers.answers]
    alone, by_person = returns(day)
    return {
        "line sent -> answered 202": answers,
        "line answered -> incident": [
            day.incidents[incident][1] - at for incident, at in day.answered.items()
        ],
        "line answered -> drain in slurmctld's log": [*line_to_drain(day)],
        "drain -> tests of the node ended": [*drain_to(day, ("test", "proof"))],
        "drain -> back in service, by healer alone": alone,
        "drain -> back in service, with a technician": by_person,
        "requeue asked -> job read back as requeued": [*requeues(day)],
    }


def line_to_drain(day: Ended) -> Iterator[float]:
    """Of runs that drain first, and that no guard held."""
    for run in day.runs.values():
        log = day.steps[run.id]
        first = next((step for step in log if is_of(step, ("drain",))), None)
        begun = log[: log.index(first) + 1] if first is not None else []
        if first is None or run.incident not in day.answered or first.event != StepEvent.started:
            continue
        if any(step.event in {StepEvent.waiting, StepEvent.held} for step in begun):
            continue
        at = drain_of(day, run)
        if at is not None:
            yield at - day.answered[run.incident]


def drain_of(day: Ended, run: Run) -> float | None:
    """When slurmctld's log has the first drain that this run began."""
    begun = next((step.at for step in day.steps[run.id] if is_of(step, ("drain",))), None)
    if begun is None:
        return None
    return next((each.at for each in day.drains if each.node == run.node and each.at >= begun - 1), None)


def drain_to(day: Ended, ids: tuple[str, ...]) -> Iterator[float]:
    for run in day.runs.values():
        drained = drain_of(day, run)
        ended = [
            step.at for step in day.steps[run.id] if is_of(step, ids) and step.event in {"done", "failed"}
        ]
        if drained is not None and ended:
            yield ended[-1] - drained


def returns(day: Ended) -> tuple[list[float], list[float]]:
    """From each node's drain out of service to its return, by whether a person asked for that."""
    alone, by_person = list[float](), list[float]()
    for node in {drain.node for drain in day.drains}:
        out = [drain.at for drain in day.drains if drain.node == node]
        back = sorted(
            (step.at, run.by)
            for run in day.runs.values()
            if run.node == node
            for step in day.steps[run.id]
            if is_of(step, ("resume",)) and step.event == StepEvent.done
        )
        since = 0.0
        for at, by in back:
            drained = min((each for each in out if since < each < at), default=None)
            if drained is not None:
                (alone if by == "healer" else by_person).append(at - drained)
            since = at
    return alone, by_person


def requeues(day: Ended) -> Iterator[float]:
    for log in day.steps.values():
        begun: dict[str, float] = {}
        for step in log:
            if is_of(step, ("requeue", "start")) and ":" in step.step:
                if step.event == StepEvent.started:
                    begun.setdefault(step.step, step.at)
                elif step.event == StepEvent.done and step.step in begun:
                    yield step.at - begun[step.step]


def is_of(step: Step, ids: tuple[str, ...]) -> bool:
    """Whether it is one of these steps, also of a playbook inside another."""
    return step.step.partition(":")[0].rpartition("-")[2] in ids


# --- what has to be 0 ---


def wrong_drains(day: Ended) -> Iterator[str]:
    """Nodes that healer drained though nothing had broken there."""
    for drain in day.drains:
        own = [
            fault
            for at, fault in day.breaking.struck
            if fault.node == drain.node and at <= drain.at and (fault.way.hardware or fault.way.sensors)
        ]
        if not own:
            had = ", ".join(fault.way_name for fault in day.nodes[drain.node].faults)
            yield f"{drain.node}: {drain.reason} (its faults: {had or 'none'})"


def stuck(day: Ended) -> Iterator[str]:
    for run in day.runs.values():
        if run.state == "stuck":
            last = day.steps[run.id][-1].step if day.steps[run.id] else ""
            yield f"{run.playbook} on {run.node}, {last}: {run.question[:300]}"
    overdue = day.site.sql(
        "SELECT playbook, node, state, wake_at, lease_until FROM runs WHERE state IN ('running', 'waiting') "
        "AND greatest(wake_at, lease_until) < now() - make_interval(secs => %s)",
        OVERDUE_S,
    )
    for playbook, node, state, wake_at, lease_until in overdue:
        yield f"{playbook} on {node} is {state}, due at {wake_at}, lease until {lease_until}"


def lost_jobs(day: Ended) -> Iterator[str]:
    """Jobs that ended before their time on nodes that all lived, and restarts that their owners refused."""
    jobs = _day_slurm.noted(day.folder, 0, 0).jobs
    dead = {fault.node for _, fault in day.breaking.struck if fault.way.silent}
    for record in _day_slurm.ended_jobs(day.slurm.directory / "log/ended.txt"):
        nodes = record.get("NodeList", "")
        if record["JobState"] not in _GOOD_ENDS and not dead & set(names_of(nodes)):
            yield f"job {record['JobId']} on {nodes}: {record['JobState']}"
    for job, run in day.site.sql("SELECT job, run FROM requeues"):
        if jobs.get(job, {}).get("comment") == "healer:keep" and day.runs[run].by == "healer":
            yield f"job {job} was restarted though its owner wrote healer:keep, by {day.runs[run].playbook}"


def names_of(nodes: str) -> list[str]:
    return expand(nodes) if nodes.startswith("gpu") else []


def bad_audit(day: Ended) -> Iterator[str]:
    try:
        day.site.audit_holds()
    except AssertionError as error:
        yield str(error)[:500]


HAS_TO_BE_0: dict[str, Callable[[Ended], Iterator[str]]] = {
    "runs stuck": stuck,
    "wrong drains": wrong_drains,
    "jobs lost": lost_jobs,
    "faults of the audit chain": bad_audit,
}


# --- printing ---


def print_report(day: Ended) -> bool:
    """Whether all is 0 that has to be."""
    print_stages(day)
    print_counts(day)
    good = print_zeros(day)
    print_latency(day)
    print_requests(day)
    print_processes(day)
    print_errors(day)
    return good


def print_stages(day: Ended) -> None:
    print(f"\n{'stage, in s':44} {'n':>6} {'p50':>8} {'p95':>8} {'p99':>8} {'max':>8}")
    for name, values in stages(day).items():
        print(f"{name:44} {len(values):6} {figures(values, ' '.join(['{:8.3f}'] * 4))}")


def figures(values: Sequence[float], form: str) -> str:
    if not values:
        return "-"
    return form.format(*(quantile(list(values), share) for share in (0.5, 0.95, 0.99)), max(values))


def print_counts(day: Ended) -> None:
    ways = Counter(fault.way_name for _, fault in day.breaking.struck)
    rules = Counter(rule for _, _, rule in day.incidents.values())
    states = Counter(f"{run.playbook} {run.state}" for run in day.runs.values())
    held = Counter(
        guard
        for log in day.steps.values()
        for guard in {step.guard for step in log if step.event == StepEvent.held}
    )
    caps = sum(
        any(step.event == StepEvent.held and step.guard in CAPS for step in log) for log in day.steps.values()
    )
    print(f"\nfaults {len(day.breaking.struck)} ({day.breaking.skipped} skipped): {listed(ways)}")
    print(f"incidents {len(day.incidents)}: {listed(rules)}")
    print(f"runs {len(day.runs)}: {listed(states)}")
    print(f"runs held by caps {caps}; by each guard: {listed(held)}")
    print(f"drains {len(day.drains)} of {len({drain.node for drain in day.drains})} nodes")
    for run in day.runs.values():
        if run.state in {"running", "waiting", "held", "waiting_approval", "proposed"} and day.steps[run.id]:
            last = day.steps[run.id][-1]
            print(
                f"  not ended: {run.playbook} on {run.node} {run.state}: "
                f"{last.step} {last.event} {last.guard}"
            )
    last_s = max(0.0, day.followers.refused_at - day.healed.since)
    print(f"requests of followers {day.followers.sent}, not taken: {listed(day.followers.refused)}")
    print(f"  the last of those {last_s:.0f} s after the window's begin")


def listed(counts: Counter[str]) -> str:
    return ", ".join(f"{name} {count}" for name, count in counts.most_common()) or "none"


def print_zeros(day: Ended) -> bool:
    good = True
    print()
    for name, find in HAS_TO_BE_0.items():
        found = list(find(day))
        good = good and not found
        print(f"{name}: {len(found)}")
        for each in found[:20]:
            print(f"  {each}")
    return good


def print_latency(day: Ended) -> None:
    """What users felt, in ms, without and with healer."""
    windows = [
        _day_slurm.noted(day.folder, window.since, window.until) for window in (day.without, day.healed)
    ]
    head = f"{'n':>6} {'p50':>7} {'p95':>7} {'p99':>7} {'max':>7}"
    print(f"\n{'users wait, in ms':18} | without {head} | with {head}")
    form = "{:7.1f} {:7.1f} {:7.1f} {:7.1f}"
    for command in sorted(windows[0].took):
        cells = []
        for noted in windows:
            values = [value * 1000 for value in noted.took.get(command, [])]
            cells.append(f"{len(values):6} {figures(values, form)}")
        print(f"{command:18} |         {cells[0]} |      {cells[1]}")
    failed = [len(noted.failed) for noted in windows]
    print(f"commands that failed: {failed[0]} | {failed[1]} {windows[1].failed[:3]}")


def print_requests(day: Ended) -> None:
    for name, window in (("without", day.without), ("with", day.healed)):
        every = _day_slurm.total(window.counted.users.values())
        seconds = window.until - window.since
        busy = every.micros / 1e6 / seconds
        print(f"\nslurmctld {name} healer: {every.requests / seconds:.1f} requests/s, {busy:.2%} of the time")
        print_table(window.counted.users, every)
    every = _day_slurm.total(day.healed.counted.users.values())
    ours = _day_slurm.total(day.healed.counted.users.get(user, Rpcs()) for user in _day_slurm.HEALER)
    by_count, by_time = ours.requests / max(1, every.requests), ours.micros / max(1, every.micros)
    busy = ours.micros / 1e6 / (day.healed.until - day.healed.since)
    print(
        f"healer's share: {by_count:.1%} of requests, {by_time:.1%} of their time; "
        f"{busy:.2%} of slurmctld's time in all"
    )
    print(f"  goal {SHARE_GOAL:.0%}: " + ("met" if max(by_count, by_time) < SHARE_GOAL else "NOT MET"))
    print_table(day.healed.counted.types, every)


def print_table(rpcs: dict[str, Rpcs], every: Rpcs) -> None:
    for name, rpc in sorted(rpcs.items(), key=lambda pair: -pair[1].micros):
        shares = rpc.requests / max(1, every.requests), rpc.micros / max(1, every.micros)
        each_us = rpc.micros / max(1, rpc.requests)
        print(
            f"  {name:40} {rpc.requests:8} {shares[0]:6.1%} {rpc.micros / 1e3:10.0f} ms {shares[1]:6.1%}  "
            f"{each_us:8.0f} us each"
        )


def print_processes(day: Ended) -> None:
    seconds = day.healed.until - day.healed.since
    print(f"\n{'process':12} {'CPU %':>7} {'PSS MiB':>9}")
    sums = [0.0, 0.0]
    for name, pids in sorted(processes_of(day.site.stack).items()):
        share = (cpu_s(pids) - day.cpu_before.get(name, 0.0)) / seconds * 100
        memory = memory_mib(pids)
        sums = [sums[0] + share, sums[1] + memory]
        print(f"{name:12} {share:7.1f} {memory:9.0f}")
    print(f"{'all':12} {sums[0]:7.1f} {sums[1]:9.0f}")


def print_errors(day: Ended) -> None:
    """Lines of healer's own logs at level error."""
    for log in sorted((day.site.stack.data_dir / "log").glob("*.log")):
        found = [line for line in log.read_text(errors="replace").splitlines() if is_error(line)]
        if found:
            print(f"{log.name}: {len(found)} errors, like {found[0][:600]}")


def is_error(line: str) -> bool:
    if not line.startswith("{"):
        return line.startswith("Traceback")
    try:
        about: dict[str, Any] = json.loads(line)
    except ValueError:
        return False
    return about.get("level") in {"error", "critical"} or "exception" in about
